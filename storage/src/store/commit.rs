//! Commits that come from elsewhere: when a group is visible, or that it never will be.
//!
//! A store that commits by itself publishes each group as soon as it is written. With
//! [`Commit::Later`] an authority says when: several groups are in flight then, written and not
//! visible, and the authority may have them cut off again. Such a store leads, and stages what is
//! appended, or follows, and takes over what another one has staged.
//!
//! Invariants:
//! - Nothing that is in flight is seen by a reader, an index, a proof, a frontier or a backup.
//! - What is published is never cut off.

use std::sync::Arc;

use hlc::Hlc;

use super::take_over::{ForeignGroup, TakeOverError, TakeOverResult};
use super::{AppendStage, Store};
use crate::error::StorageError;
use crate::journal::SegmentHeader;
use crate::timekeeper::CommittedBound;

/// The most groups in flight. Requests wait until there are fewer.
pub(super) const GROUPS_IN_FLIGHT_MAX: usize = 4;
/// The most bytes of journal in flight, but for the last group.
pub(super) const BYTES_IN_FLIGHT_MAX: u64 = 16 << 20;

/// The decision when a written group becomes visible: whose it is.
#[derive(Clone, Default)]
pub enum Commit {
    /// The store: at once.
    #[default]
    Local,
    /// Somebody else. At the start, everything below `committed_to` is visible; what the journal has
    /// behind it is in flight.
    Later { authority: Arc<dyn CommitAuthority>, committed_to: u64, bound: PromiseBound },
}

/// The bound below which promises are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromiseBound {
    /// That of the bound file, below which stamps are given too.
    File,
    /// That of the last commit ([`Store::publish_to`]). Stamps need none.
    Commits {
        /// The bound in force at the start.
        in_force: Hlc,
        /// The last bound in the journal, committed or not: after a restart, stamps lie above it and
        /// above the last stamp in the journal.
        last: Hlc,
    },
}

impl Commit {
    pub(super) fn is_later(&self) -> bool {
        matches!(self, Commit::Later { .. })
    }

    /// The bound of promises at the start, if it comes from commits. `last` is the last stamp in the
    /// journal.
    pub(super) fn committed_bound(&self, last_stamp: Hlc) -> Option<CommittedBound> {
        match self {
            Commit::Later { bound: PromiseBound::Commits { in_force, last }, .. } => {
                let floor = in_force.max(last).previous().max(last_stamp);
                Some(CommittedBound { in_force: *in_force, floor })
            }
            Commit::Later { bound: PromiseBound::File, .. } | Commit::Local => None,
        }
    }

    /// True if promises are bounded by commits.
    pub(super) fn bounds_promises(&self) -> bool {
        matches!(self, Commit::Later { bound: PromiseBound::Commits { .. }, .. })
    }

    /// The position below which everything is visible at the start.
    pub(super) fn committed_to(&self) -> u64 {
        match self {
            Commit::Local => u64::MAX,
            Commit::Later { committed_to, .. } => *committed_to,
        }
    }
}

/// Decides about groups in flight.
pub trait CommitAuthority: Send + Sync {
    /// A group is written, and in flight. Called on the writer's thread, in order; it must not wait
    /// for the store.
    fn on_written(&self, group: &WrittenGroup<'_>);
}

/// A group that was staged here, and is in flight.
#[derive(Debug)]
pub struct WrittenGroup<'a> {
    /// The position of its first frame.
    pub start: u64,
    /// The position after its last frame.
    pub end: u64,
    /// The journal is on stable storage up to here.
    pub synced_to: u64,
    /// The header of the segment that begins with it, if one does.
    pub segment: Option<SegmentHeader>,
    /// Its bytes, in order.
    pub slices: Vec<&'a [u8]>,
}

impl WrittenGroup<'_> {
    /// A copy of it, for another store.
    pub fn to_foreign(&self) -> ForeignGroup {
        let WrittenGroup { start, segment, slices, .. } = self;
        ForeignGroup { start: *start, segment: *segment, bytes: slices.concat().into() }
    }
}

/// An order of the authority.
pub(super) enum CommitOrder {
    Publish {
        position: u64,
        bound: Option<Hlc>,
    },
    Truncate {
        position: u64,
        done: Box<dyn FnOnce(Result<(), TruncateError>) + Send>,
    },
    TakeOver {
        group: ForeignGroup,
        done: Box<dyn FnOnce(TakeOverResult) + Send>,
    },
    /// Appends are staged here, with stamps above this one.
    Lead {
        above: Hlc,
    },
    /// Appends are staged elsewhere.
    Follow,
}

/// The reason nothing was cut off.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TruncateError {
    /// What is committed stays for ever.
    #[error("the journal is committed up to {committed_to}, and is not cut off at {position}")]
    Committed { position: u64, committed_to: u64 },
    /// The journal ends before, or no group begins there.
    #[error("no group of the journal begins at {position}")]
    NoGroup { position: u64 },
    /// The disk fails, and the store has stopped.
    #[error("{0}")]
    Storage(#[from] StorageError),
}

impl<S: AppendStage> Store<S> {
    /// Publishes the groups in flight that end at or below `position`. With
    /// [`PromiseBound::Commits`], promises are given below `bound` from then on. Orders are carried out
    /// in order.
    pub fn publish_to(&self, position: u64, bound: Option<Hlc>) {
        self.order(CommitOrder::Publish { position, bound });
    }

    /// Cuts off the groups in flight from `position` on, where one of them begins, and fails their
    /// requests. `done` is called once that is on stable storage.
    pub fn truncate(
        &self,
        position: u64,
        done: impl FnOnce(Result<(), TruncateError>) + Send + 'static,
    ) {
        self.order(CommitOrder::Truncate { position, done: Box::new(done) });
    }

    /// From here on appends are staged here, with stamps above `above`, once all that is in flight is
    /// visible. The first group begins a segment: so the place at which others may have to cut off what
    /// they have is always one where a segment begins.
    pub fn lead(&self, above: Hlc) {
        self.order(CommitOrder::Lead { above });
    }

    /// From here on groups are taken over ([`Store::take_over`]), and no append is staged: requests wait.
    /// Those whose groups are in flight fail with [`AppendError::Undecided`](super::AppendError); the
    /// groups stay, and others decide about them.
    pub fn follow(&self) {
        self.order(CommitOrder::Follow);
    }

    pub(super) fn order(&self, order: CommitOrder) {
        let mut state = self.shared.queue.state.lock();
        if state.closing {
            drop(state);
            return order.refuse(&StorageError::Interrupted);
        }
        state.orders.push_back(order);
        drop(state);
        self.shared.queue.filled.notify_one();
    }
}

impl CommitOrder {
    pub(super) fn refuse(self, error: &StorageError) {
        match self {
            CommitOrder::Publish { .. } | CommitOrder::Lead { .. } | CommitOrder::Follow => {}
            CommitOrder::Truncate { done, .. } => done(Err(error.clone().into())),
            CommitOrder::TakeOver { done, .. } => done(Err(TakeOverError::Storage(error.clone()))),
        }
    }
}
