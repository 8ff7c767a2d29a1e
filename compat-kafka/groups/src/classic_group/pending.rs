//! Issued member ids that have not joined yet (KIP-394), and their memory.

use std::collections::BTreeSet;

/// The memory of an id, besides its bytes; the deadline holds another copy.
const OVERHEAD_BYTES: usize = 128;

/// Issued member ids that have not joined yet.
#[derive(Debug, Clone, Default)]
pub(super) struct PendingMembers {
    ids: BTreeSet<String>,
    bytes: usize,
}

impl PendingMembers {
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn insert(&mut self, id: String) {
        let bytes = bytes(&id);
        if self.ids.insert(id) {
            self.bytes += bytes;
        }
    }

    pub(super) fn remove(&mut self, id: &str) -> bool {
        let is_there = self.ids.remove(id);
        if is_there {
            self.bytes -= bytes(id);
        }
        is_there
    }

    pub(super) fn clear(&mut self) {
        *self = PendingMembers::default();
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &String> {
        self.ids.iter()
    }
}

fn bytes(id: &str) -> usize {
    OVERHEAD_BYTES + 2 * id.len()
}
