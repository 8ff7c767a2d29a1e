//! The actions that a group asks of its caller.

use super::member_requests::{JoinResult, RequestToken, SyncResult};
use super::snapshot::GroupSnapshot;

/// Identifies a snapshot on its way to the log, from [`GroupEffect::Persist`] to
/// [`ClassicGroup::persisted`](super::ClassicGroup::persisted).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub(super) u64);

/// The result of a write to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteResult {
    /// The snapshot, or a later one of the same group, survives a restart.
    Stored,
    /// The snapshot may be lost.
    Failed,
}

/// A change that a group writes to the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupChange {
    /// The group's snapshot.
    pub snapshot: Vec<u8>,
    /// Members that are stored one by one; `None` if one is gone.
    pub members: Vec<(String, Option<Vec<u8>>)>,
    /// True if the log is to have no other members.
    pub is_whole: bool,
}

impl GroupChange {
    /// A snapshot that holds all members.
    pub fn whole(snapshot: Vec<u8>) -> GroupChange {
        GroupChange { snapshot, members: Vec::new(), is_whole: true }
    }

    /// Applies this change to the contents of the log.
    #[cfg(test)]
    pub(super) fn apply(&self, log: &mut engine::groups::StoredGroup) {
        log.snapshot.clone_from(&self.snapshot);
        if self.is_whole {
            log.members.clear();
        }
        for (id, member) in &self.members {
            match member {
                Some(member) => drop(log.members.insert(id.clone(), member.clone())),
                None => drop(log.members.remove(id)),
            }
        }
    }
}

/// An action for the caller of a [`ClassicGroup`](super::ClassicGroup).
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
    /// Write this to the group's log, after all earlier ones, and call
    /// [`ClassicGroup::persisted`](super::ClassicGroup::persisted). It may be skipped if a later
    /// snapshot is written instead.
    Persist {
        /// The id for the callback.
        write: WriteId,
        snapshot: GroupSnapshot,
    },
}
