//! Requests to append, and their results.

use std::collections::VecDeque;
use std::sync::Arc;

use hlc::{Hlc, UserTime};
use parking_lot::{Condvar, Mutex};

use crate::checksum::combine_checksums;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::journal::PAYLOAD_BYTES_MAX;
use crate::log::Log;
use crate::payload::Payload;
use crate::proof::Digest;
use crate::timekeeper::TimeError;

/// Combining two checksums takes as long as checksumming about this many bytes.
const COMBINE_BYTES_MIN: usize = 8 << 10;

/// The place in which an append must be stored before it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In the page cache: it survives this process, not the machine.
    Written,
    /// On stable storage.
    Synced,
}

#[derive(Debug)]
pub struct LogAppend<N> {
    pub log: LogId,
    /// A kind of entry, defined by the store's user.
    pub kind: u8,
    /// A leader epoch.
    pub epoch: u32,
    /// The number of offsets that it takes.
    pub count: u32,
    /// The smallest and the largest user time in it.
    pub user: (UserTime, UserTime),
    pub payload: Payload,
    /// The CRC-32C of the payload's bytes from an index on, if the caller knows it: then these
    /// bytes are not read again.
    pub crc_from: Option<(usize, u32)>,
    /// The information that the stage needs about it.
    pub note: N,
}

impl<N> LogAppend<N> {
    pub(super) fn payload_crc(&self) -> u32 {
        let (head, rest) = (self.payload.header.as_slice(), &self.payload.rest);
        match self.crc_from {
            Some((0, crc)) => crc,
            Some((from, crc)) if from <= head.len() && rest.len() > COMBINE_BYTES_MIN => {
                let length = head.len() - from + rest.len();
                combine_checksums(crc32c::crc32c(&head[..from]), crc, length)
            }
            _ => crc32c::crc32c_append(crc32c::crc32c(head), rest),
        }
    }
}

/// The meaning of appends to the store's user. Called on the writer's thread, in append order.
pub trait AppendStage: Send + 'static {
    /// The information that an append carries for the stage.
    type Note: Send + 'static;
    /// The reason an append is refused.
    type Refusal: Clone + Send + 'static;

    /// Fills in `append`, which is about to take `base` and `stamp`; or refuses it. The rest of its
    /// payload may become shorter, and stays as it is otherwise.
    ///
    /// # Errors
    /// The append is refused and takes no offset.
    fn stage(
        &mut self,
        append: &mut LogAppend<Self::Note>,
        base: Offset,
        stamp: Hlc,
    ) -> Result<(), Self::Refusal>;

    /// All appends staged since the last call are visible now.
    fn commit(&mut self);

    /// None of the appends staged since the last call will ever be visible.
    fn rollback(&mut self);

    /// The state after all committed appends, for
    /// [`ReplayHandler::restore`](crate::ReplayHandler::restore). Called when a segment is rolled.
    fn state(&self) -> Vec<u8>;
}

/// The place of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendReceipt {
    /// Its first offset.
    pub base: Offset,
    pub stamp: Hlc,
    /// The position after it in the journal.
    pub journal_end: u64,
}

/// The reason an append failed. In every case nothing of it remains.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError<R> {
    /// The stage refused it.
    #[error("the append was refused")]
    Refused(R),
    /// No stamp can be assigned.
    #[error("{0}")]
    Time(TimeError),
    /// The disk did not take it, where its log ends cannot be read, or the store has stopped. But
    /// for the last, reads go on, and the same append may succeed later: once there is room, or the
    /// index is rebuilt.
    #[error("{0}")]
    Storage(StorageError),
}

/// The results of a request, one for each of its appends.
pub type AppendResults<R> = Vec<Result<AppendReceipt, AppendError<R>>>;

pub(super) struct StoreRequest<S: AppendStage> {
    pub(super) appends: Vec<LogAppend<S::Note>>,
    /// The log of each.
    pub(super) logs: Vec<Arc<Log>>,
    /// The digest of each payload after its first bytes, if proofs are written.
    pub(super) bodies: Vec<Digest>,
    pub(super) durability: Durability,
    /// True if it asks for a sync although the store does not sync by default.
    pub(super) must_sync: bool,
    /// True if it may use the space that is reserved for appends that free space.
    pub(super) uses_reserve: bool,
    pub(super) done: Box<dyn FnOnce(AppendResults<S::Refusal>) + Send>,
}

impl<S: AppendStage> StoreRequest<S> {
    pub(super) fn new(
        appends: Vec<LogAppend<S::Note>>,
        durability: Durability,
        done: Box<dyn FnOnce(AppendResults<S::Refusal>) + Send>,
    ) -> StoreRequest<S> {
        StoreRequest {
            appends,
            logs: Vec::new(),
            bodies: Vec::new(),
            durability,
            must_sync: false,
            uses_reserve: false,
            done,
        }
    }
}

pub(super) fn check_lengths<N>(appends: &[LogAppend<N>]) {
    for append in appends {
        let length = append.payload.len();
        assert!(
            length <= PAYLOAD_BYTES_MAX as usize,
            "no payload is longer than {PAYLOAD_BYTES_MAX} bytes: {length}"
        );
    }
}

pub(super) struct StoreRequestQueue<S: AppendStage> {
    pub(super) state: Mutex<StoreRequestQueueState<S>>,
    pub(super) filled: Condvar,
}

impl<S: AppendStage> StoreRequestQueue<S> {
    pub(super) fn new() -> StoreRequestQueue<S> {
        let state = StoreRequestQueueState {
            requests: VecDeque::new(),
            wants_roll: false,
            closing: false,
            stopped: None,
        };
        StoreRequestQueue { state: Mutex::new(state), filled: Condvar::new() }
    }
}

pub(super) struct StoreRequestQueueState<S: AppendStage> {
    pub(super) requests: VecDeque<StoreRequest<S>>,
    pub(super) wants_roll: bool,
    pub(super) closing: bool,
    pub(super) stopped: Option<Arc<str>>,
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::PayloadHeader;

    /// A known checksum of a part of a payload is used for it; computing it gives the same.
    #[test]
    fn a_checksum_that_is_known_from_an_index_on_is_that_of_the_whole() {
        let bytes = |length: usize, first: u8| -> Vec<u8> {
            (0..length).map(|i| (i * 31) as u8 ^ first).collect()
        };
        for head in [0, 1, 16, 64] {
            for rest in [0, 1, 100, COMBINE_BYTES_MIN, COMBINE_BYTES_MIN + 1, 3 * COMBINE_BYTES_MIN]
            {
                let (head, rest) = (bytes(head, 3), bytes(rest, 7));
                let whole = [&head[..], &rest].concat();
                for from in [0, 1, head.len() / 2, head.len(), head.len() + 1] {
                    let suffix_crc = crc32c::crc32c(&whole[from.min(whole.len())..]);
                    let append = LogAppend {
                        log: LogId(1),
                        kind: 0,
                        epoch: 0,
                        count: 1,
                        user: (UserTime(0), UserTime(0)),
                        payload: Payload {
                            header: PayloadHeader::new(&head),
                            rest: Bytes::copy_from_slice(&rest),
                        },
                        crc_from: Some((from, suffix_crc)),
                        note: (),
                    };
                    let expected = crc32c::crc32c(&whole);
                    let place = (head.len(), rest.len(), from);
                    assert_eq!(append.payload_crc(), expected, "{place:?}");
                    let unknown = LogAppend { crc_from: None, ..append };
                    assert_eq!(unknown.payload_crc(), expected, "{place:?}");
                }
            }
        }
    }

    /// Otherwise the body would be read once more for nothing.
    #[test]
    fn a_checksum_that_is_known_of_all_is_taken_as_it_is() {
        let append = |crc_from, rest: usize| LogAppend {
            log: LogId(1),
            kind: 0,
            epoch: 0,
            count: 1,
            user: (UserTime(0), UserTime(0)),
            payload: Payload { header: PayloadHeader::new(&[1; 8]), rest: vec![2; rest].into() },
            crc_from,
            note: (),
        };
        assert_eq!(append(Some((0, 77)), 5).payload_crc(), 77);
        // A long body is not read; reading a short one is faster than combining checksums.
        let body = COMBINE_BYTES_MIN + 1;
        let (append_77, other) = (append(Some((8, 77)), body), append(Some((8, 78)), body));
        assert_ne!(append_77.payload_crc(), other.payload_crc());
        let short = [append(Some((8, 77)), 9), append(None, 9)];
        assert_eq!(short[0].payload_crc(), short[1].payload_crc());
    }
}
