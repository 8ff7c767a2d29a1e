//! What the caller of a group has to do.

use super::member_requests::{JoinResult, RequestToken, SyncResult};
use super::snapshot::GroupSnapshot;

/// Identifies a snapshot on its way to the log, from [`GroupEffect::Persist`] to
/// [`ClassicGroup::persisted`](super::ClassicGroup::persisted).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub(super) u64);

/// How a write to the log ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteResult {
    /// The snapshot, or a later one of the same group, survives a restart.
    Stored,
    /// The snapshot may be lost.
    Failed,
}

/// What the caller of a [`ClassicGroup`](super::ClassicGroup) has to do.
#[derive(Debug, Clone, PartialEq)]
pub enum GroupEffect {
    /// Answer a join request.
    Join {
        /// The request.
        token: RequestToken,
        /// The response.
        answer: JoinResult,
    },
    /// Answer a sync request.
    Sync {
        /// The request.
        token: RequestToken,
        /// The response.
        answer: SyncResult,
    },
    /// Write this to the group's log, after all earlier ones, and call [`ClassicGroup::persisted`](super::ClassicGroup::persisted).
    /// It may be skipped if a later snapshot is written instead.
    Persist {
        /// The id for the callback.
        write: WriteId,
        snapshot: GroupSnapshot,
    },
}
