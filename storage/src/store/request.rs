//! Requests to append: their types, their results, the writer's queue, and the half of [`Store`]
//! that fills it.

use std::collections::VecDeque;
use std::sync::Arc;

use hlc::{Hlc, UserTime};
use parking_lot::{Condvar, Mutex};

use crate::entry::{Entry, LogId, Offset};
use crate::error::StorageError;
use crate::journal::{PAYLOAD_BYTES_MAX, RecoverError};
use crate::log::Log;
use crate::payload::Payload;
use crate::proof::{Digest, body_digest};
use crate::timekeeper::TimeError;

use super::commit::CommitOrder;
use super::writer::{complete, fail};
use super::{GroupNumber, ReplayedEntry, Store};

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

/// The meaning of appends to the store's user. Called on the writer's thread, in append order.
///
/// Several groups may be staged before the first of them is visible. A stage takes its changes back by
/// group ([`UndoLog`](super::UndoLog)).
pub trait AppendStage: Send + 'static {
    /// The information that an append carries for the stage.
    type Note: Send + 'static;
    /// The reason an append is refused.
    type Refusal: Clone + Send + 'static;

    /// Begins a group: what is staged from now on belongs to it.
    fn begin(&mut self, group: GroupNumber);

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

    /// A staged entry is about to be visible. Called in the order of the journal, before
    /// [`AppendStage::commit`] of its group.
    fn publish(&mut self, _log: LogId, _entry: &Entry, _payload: &Payload) {}

    /// The appends of the groups up to `group` are visible now.
    fn commit(&mut self, group: GroupNumber);

    /// Checks that an entry of another store is of a kind that this stage knows.
    ///
    /// # Errors
    /// [`RecoverError::Unusable`]: the group of the entry is not taken over.
    fn check_kind(&self, _entry: &Entry) -> Result<(), RecoverError> {
        Ok(())
    }

    /// [`AppendStage::publish`] for an entry that was not staged: another store staged it, or an earlier
    /// incarnation. Nothing is staged.
    fn replay(&mut self, replayed: &ReplayedEntry<'_>);

    /// The appends of the groups from `from` on will never be visible.
    fn rollback(&mut self, from: GroupNumber);

    /// The state after all visible groups, whatever is staged behind them, for
    /// [`ReplayHandler::restore`](crate::ReplayHandler::restore). Called at the end of a segment.
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

/// The reason an append failed. Nothing of it remains, unless it says otherwise.
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
    /// It was written, and cut off before it was committed.
    #[error("the append was cut off before it was committed")]
    CutOff,
    /// It was written, and another node decides about it: it may become visible, or not.
    #[error("another node decides about the append")]
    Undecided,
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

impl<S: AppendStage> Store<S> {
    /// Appends all of `appends`, in order, in one group; then calls `done` on the writer's thread,
    /// with one result each. Calls of `done` come in append order. If the store has stopped or is
    /// closing, `done` is called at once, on this thread.
    ///
    /// The caller limits how much is in flight.
    ///
    /// # Panics
    /// If a payload is longer than [`PAYLOAD_BYTES_MAX`](crate::journal::PAYLOAD_BYTES_MAX),
    /// because recovery would take it for corruption.
    pub fn append(
        &self,
        appends: Vec<LogAppend<S::Note>>,
        durability: Durability,
        done: impl FnOnce(AppendResults<S::Refusal>) + Send + 'static,
    ) {
        self.enqueue(appends, durability, false, Box::new(done));
    }

    /// The same for an append that leads to space being reclaimed. When the disk is full, it may
    /// use the space that is reserved for that. Nothing else is appended then until there is room
    /// again.
    ///
    /// # Panics
    /// As [`Store::append`].
    pub fn append_with_reserve(
        &self,
        appends: Vec<LogAppend<S::Note>>,
        durability: Durability,
        done: impl FnOnce(AppendResults<S::Refusal>) + Send + 'static,
    ) {
        self.enqueue(appends, durability, true, Box::new(done));
    }

    /// The journal's thread reads no files, so the tips of logs are read here. It does not read
    /// payloads either: they are hashed here, where they were just read and are in the CPU caches.
    fn enqueue(
        &self,
        appends: Vec<LogAppend<S::Note>>,
        durability: Durability,
        makes_space: bool,
        done: Box<dyn FnOnce(AppendResults<S::Refusal>) + Send>,
    ) {
        check_lengths(&appends);
        let logs =
            appends.iter().map(|append| self.log(append.log)).collect::<Result<_, StorageError>>();
        let bodies: Vec<_> = if self.shared.history.proves {
            appends.iter().map(|append| body_digest(&append.payload)).collect()
        } else {
            Vec::new()
        };
        let request = StoreRequest {
            uses_reserve: makes_space,
            bodies,
            ..StoreRequest::new(appends, durability, done)
        };
        match logs {
            Ok(logs) => self.push(StoreRequest { logs, ..request }),
            Err(error) => {
                let error = error.during("an index cannot be read");
                complete(vec![fail(request, &AppendError::Storage(error))]);
            }
        }
    }

    /// Puts everything visible on stable storage, whatever its appends and the options ask for, and
    /// then calls `done`. It is also called if the store has stopped ([`Store::stop_reason`]).
    pub fn when_synced(&self, done: impl FnOnce() + Send + 'static) {
        let done = Box::new(move |_: AppendResults<S::Refusal>| done());
        let (appends, durability) = (Vec::new(), Durability::Synced);
        self.push(StoreRequest { must_sync: true, ..StoreRequest::new(appends, durability, done) });
    }

    fn push(&self, request: StoreRequest<S>) {
        let mut state = self.shared.queue.state.lock();
        // After a stop, the writer refuses it, behind those that are queued: refusals come in order
        // too.
        if state.closing {
            let why = state.stopped.clone().unwrap_or_else(|| "it is being closed".into());
            drop(state);
            let error = StorageError::Stopped { why };
            return complete(vec![fail(request, &AppendError::Storage(error))]);
        }
        state.requests.push_back(request);
        // The writer sleeps only on an empty queue.
        let was_empty = state.requests.len() == 1;
        drop(state);
        if was_empty {
            self.shared.queue.filled.notify_one();
        }
    }
}

fn check_lengths<N>(appends: &[LogAppend<N>]) {
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
            orders: VecDeque::new(),
            wants_roll: false,
            closing: false,
            stopped: None,
        };
        StoreRequestQueue { state: Mutex::new(state), filled: Condvar::new() }
    }
}

pub(super) struct StoreRequestQueueState<S: AppendStage> {
    pub(super) requests: VecDeque<StoreRequest<S>>,
    /// The orders of the commit authority. They go first.
    pub(super) orders: VecDeque<CommitOrder>,
    pub(super) wants_roll: bool,
    pub(super) closing: bool,
    pub(super) stopped: Option<Arc<str>>,
}
