//! Payloads in memory: those in flight, and the newest that were appended.
//!
//! One budget covers the whole process; the oldest payload leaves first, whichever log it belongs
//! to.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::data_cache::DataCache;
use crate::entry::Entry;
use crate::log::Log;
use crate::payload::Payload;

/// The memory that a payload takes besides its bytes. Without it, many small payloads would exceed
/// the budget many times over.
const PAYLOAD_OVERHEAD_BYTES: usize =
    size_of::<Payload>() + size_of::<Entry>() + size_of::<(Arc<Log>, usize)>();

/// The payloads that are in memory, oldest first, under one budget with the blocks of data files.
pub(crate) struct PayloadTail {
    order: VecDeque<(Arc<Log>, usize)>,
    used_bytes: usize,
    blocks: Arc<DataCache>,
}

impl PayloadTail {
    pub(crate) fn new(blocks: Arc<DataCache>) -> PayloadTail {
        PayloadTail { order: VecDeque::new(), used_bytes: 0, blocks }
    }

    /// Counts a payload that was just published in `log`, and evicts the oldest while the budget is
    /// exceeded.
    pub(crate) fn admit(&mut self, log: &Arc<Log>, bytes: usize) {
        let bytes = bytes + PAYLOAD_OVERHEAD_BYTES;
        self.order.push_back((Arc::clone(log), bytes));
        self.used_bytes += bytes;
        let budget_bytes = self.blocks.tail_bytes_max();
        while self.used_bytes > budget_bytes {
            let Some((oldest, bytes)) = self.order.pop_front() else { break };
            oldest.evict_oldest();
            self.used_bytes -= bytes;
        }
        self.blocks.set_tail_bytes(self.used_bytes);
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }
}
