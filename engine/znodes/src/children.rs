//! The children of a znode, sorted by name. Names are looked up in the table that the slots are of,
//! so that a child takes about 4 bytes here.

use crate::table::ZnodeSlot;

/// The most children in one chunk.
const CHUNK_MAX: usize = 256;

/// Invariant: no chunk is empty, and names rise, within a chunk and from one to the next.
#[derive(Debug, Default)]
pub(crate) struct ChildIndex {
    chunks: Vec<Vec<ZnodeSlot>>,
    len: usize,
}

/// The place of a child that is there, or would be.
#[derive(Clone, Copy)]
struct ChildPlace {
    chunk: usize,
    at: usize,
}

impl ChildIndex {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// In the order of their names.
    pub(crate) fn slots(&self) -> impl Iterator<Item = ZnodeSlot> {
        self.chunks.iter().flatten().copied()
    }

    /// The child with a name.
    pub(crate) fn get<'a>(
        &self,
        name: &[u8],
        name_of: impl Fn(ZnodeSlot) -> &'a [u8],
    ) -> Option<ZnodeSlot> {
        let place = self.find(name, name_of).ok()?;
        Some(self.chunks[place.chunk][place.at])
    }

    /// Adds a child; returns true if there was none with its name.
    pub(crate) fn insert<'a>(
        &mut self,
        name: &[u8],
        slot: ZnodeSlot,
        name_of: impl Fn(ZnodeSlot) -> &'a [u8],
    ) -> bool {
        let Err(ChildPlace { chunk, at }) = self.find(name, name_of) else { return false };
        self.len += 1;
        let Some(children) = self.chunks.get_mut(chunk) else {
            self.chunks.push(vec![slot]);
            return true;
        };
        if children.len() < CHUNK_MAX {
            children.insert(at, slot);
            return true;
        }
        let is_last = chunk + 1 == self.chunks.len();
        let children = &mut self.chunks[chunk];
        if is_last && at == children.len() {
            // Names that rise, as those of sequential znodes, fill their chunks.
            self.chunks.push(vec![slot]);
            return true;
        }
        let mut upper = children.split_off(CHUNK_MAX / 2);
        children.shrink_to_fit();
        match at.checked_sub(children.len()) {
            Some(at) => upper.insert(at, slot),
            None => children.insert(at, slot),
        }
        self.chunks.insert(chunk + 1, upper);
        true
    }

    /// Removes the child with a name.
    pub(crate) fn remove<'a>(
        &mut self,
        name: &[u8],
        name_of: impl Fn(ZnodeSlot) -> &'a [u8],
    ) -> Option<ZnodeSlot> {
        let ChildPlace { chunk, at } = self.find(name, name_of).ok()?;
        self.len -= 1;
        let removed = self.chunks[chunk].remove(at);
        if self.chunks[chunk].is_empty() {
            self.chunks.remove(chunk);
        }
        Some(removed)
    }

    fn find<'a>(
        &self,
        name: &[u8],
        name_of: impl Fn(ZnodeSlot) -> &'a [u8],
    ) -> Result<ChildPlace, ChildPlace> {
        let after = self.chunks.partition_point(|chunk| name_of(chunk[0]) <= name);
        let chunk = after.saturating_sub(1);
        let Some(children) = self.chunks.get(chunk) else {
            return Err(ChildPlace { chunk, at: 0 });
        };
        match children.binary_search_by(|child| name_of(*child).cmp(name)) {
            Ok(at) => Ok(ChildPlace { chunk, at }),
            Err(at) => Err(ChildPlace { chunk, at }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map, with enough names for many chunks, in runs that rise and at random.
        #[test]
        fn children_are_those_of_a_map(
            steps in prop::collection::vec((any::<bool>(), 0_u32..2000, 1_u32..600), 1..12)
        ) {
            let names: Vec<String> = (0..2600).map(|slot| format!("n{slot:05}")).collect();
            let name_of = |slot: ZnodeSlot| names[slot.0 as usize].as_bytes();
            let (mut index, mut model) = (ChildIndex::default(), BTreeMap::new());
            for (is_insert, from, count) in steps {
                for slot in (from..from + count).map(ZnodeSlot) {
                    let name = name_of(slot);
                    if is_insert {
                        let is_new = model.insert(name, slot).is_none();
                        prop_assert_eq!(index.insert(name, slot, name_of), is_new);
                    } else {
                        prop_assert_eq!(index.remove(name, name_of), model.remove(name));
                    }
                }
                prop_assert_eq!(index.len(), model.len());
                prop_assert!(index.slots().eq(model.values().copied()));
                prop_assert!(index.chunks.iter().all(|chunk| (1..=CHUNK_MAX).contains(&chunk.len())));
            }
            for slot in (0..2600).map(ZnodeSlot) {
                let found = index.get(name_of(slot), name_of);
                prop_assert_eq!(found, model.get(name_of(slot)).copied());
            }
        }
    }
}
