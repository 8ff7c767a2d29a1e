//! Payloads that the disk returns with other bytes than were written.
//!
//! Every payload that is read for a consumer is compared with the checksum of its entry before its
//! last byte goes out. One that differs is remembered, so that the next fetch ends before it, and a
//! fetch of it is answered with CORRUPT_MESSAGE. Java's consumer throws at that (KAFKA-9206), and
//! librdkafka's reports it. With KAFKA_STORAGE_ERROR both would retry for ever. A consumer that
//! seeks past the payload goes on. A payload that cannot be read at all is treated the same.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use engine::{DataFileBlock, Entry, EntryPayload, Offset, StorageError, blocking};
use hlc::Hlc;
use parking_lot::Mutex;

/// The most payloads that are remembered. The oldest is forgotten first, and found again by the
/// next read of it.
const CORRUPTIONS_MAX: usize = 4096;

/// The expected checksum of a payload, and the checksum of the bytes that were read so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningChecksum {
    id: PayloadId,
    base: Offset,
    so_far: u32,
}

/// Stamps are unique, and a payload that was rewritten has another checksum.
type PayloadId = (Hlc, u32);

impl RunningChecksum {
    pub(crate) fn of(entry: &Entry) -> RunningChecksum {
        RunningChecksum { id: (entry.stamp, entry.payload_crc), base: entry.base, so_far: 0 }
    }

    /// True if nothing of the payload was read yet.
    pub(crate) fn is_new(&self) -> bool {
        self.so_far == 0
    }

    /// Adds the next bytes of the payload.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.so_far = crc32c::crc32c_append(self.so_far, bytes);
    }

    /// Adds `range` of a block, whose checksum another reader may have computed already.
    pub(crate) fn update_from_block(&mut self, block: &DataFileBlock, range: Range<usize>) {
        self.so_far = block.crc_append(self.so_far, range);
    }

    /// True if the bytes that were read are the payload that was written.
    pub(crate) fn matches(&self) -> bool {
        self.so_far == self.id.1
    }

    /// The error for a payload that differs, found at `position` of `file`.
    pub(crate) fn mismatch(&self, file: &str, position: u64) -> Corruption {
        self.corruption(file, position, "a payload's checksum does not match".to_owned())
    }

    /// The error for a payload that cannot be read, or not to its end: `position` of `file` failed.
    pub(crate) fn unreadable(&self, file: &str, position: u64, error: &StorageError) -> Corruption {
        self.corruption(file, position, format!("a payload cannot be read: {error}"))
    }

    fn corruption(&self, file: &str, position: u64, cause: String) -> Corruption {
        Corruption { id: self.id, base: self.base, file: file.to_owned(), position, cause }
    }
}

/// A payload that differs from what was written, or that cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "the journal is corrupt in {file} at position {position}, offset {}: {cause}; `freezeframe check` says more", .base.0
)]
pub(crate) struct Corruption {
    id: PayloadId,
    base: Offset,
    file: String,
    position: u64,
    cause: String,
}

/// The payloads that this incarnation found corrupt.
#[derive(Debug, Default)]
pub(crate) struct CorruptionCache {
    state: Mutex<CorruptionCacheState>,
    /// The number of known payloads. While it is 0, no lock is taken.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct CorruptionCacheState {
    ids: HashSet<PayloadId>,
    order: VecDeque<PayloadId>,
}

impl CorruptionCache {
    /// Remembers a payload, and logs it the first time.
    pub(crate) fn record(&self, corruption: &Corruption) {
        let mut known = self.state.lock();
        if !known.ids.insert(corruption.id) {
            return;
        }
        known.order.push_back(corruption.id);
        if known.order.len() > CORRUPTIONS_MAX
            && let Some(oldest) = known.order.pop_front()
        {
            known.ids.remove(&oldest);
        }
        self.count.store(known.ids.len(), Ordering::Release);
        drop(known);
        tracing::error!("{corruption}; consumers get CORRUPT_MESSAGE for it");
    }

    /// The index of the first piece that is known to be corrupt. A corrupt piece at index 0 is read
    /// again, because the disk may return it correctly by now.
    pub(crate) fn first_corrupt(&self, pieces: &[EntryPayload]) -> Option<usize> {
        loop {
            match self.position_in(pieces) {
                Some(0) if blocking::read(&pieces[0]).is_ok() => self.remove(&pieces[0]),
                known => return known,
            }
        }
    }

    fn remove(&self, piece: &EntryPayload) {
        let (mut known, id) = (self.state.lock(), RunningChecksum::of(&piece.entry).id);
        known.ids.remove(&id);
        known.order.retain(|known| *known != id);
        self.count.store(known.ids.len(), Ordering::Release);
    }

    fn position_in(&self, pieces: &[EntryPayload]) -> Option<usize> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let known = self.state.lock();
        pieces.iter().position(|piece| known.ids.contains(&RunningChecksum::of(&piece.entry).id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corruption(number: u64) -> Corruption {
        Corruption {
            id: (Hlc::from_bits(number), 0),
            base: Offset(number),
            file: String::new(),
            position: 0,
            cause: String::new(),
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_newest_stays() {
        let rot = CorruptionCache::default();
        for number in 0..2 * CORRUPTIONS_MAX as u64 {
            rot.record(&corruption(number));
            rot.record(&corruption(number));
        }
        let known = rot.state.lock();
        assert_eq!((known.ids.len(), known.order.len()), (CORRUPTIONS_MAX, CORRUPTIONS_MAX));
        assert!(known.ids.contains(&corruption(2 * CORRUPTIONS_MAX as u64 - 1).id));
    }

    #[test]
    fn a_checksum_matches_in_whichever_pieces_the_payload_is_read() {
        let bytes = b"a payload of some length";
        let mut checksum =
            RunningChecksum { id: (Hlc::ZERO, crc32c::crc32c(bytes)), base: Offset(0), so_far: 0 };
        checksum.update(&bytes[..5]);
        assert!(!checksum.matches());
        checksum.update(&bytes[5..]);
        assert!(checksum.matches());
    }
}
