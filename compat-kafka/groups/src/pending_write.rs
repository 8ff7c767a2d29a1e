//! The action of a group at the end of a write to its log.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::member::ClassicGroupMember;
use super::member_requests::RequestToken;

/// The action at the end of a write.
#[derive(Debug, Clone)]
pub(super) enum PendingWrite {
    /// The leader's assignment; the members' syncs are answered after it.
    Assignment { generation: i32, assignments: BTreeMap<String, Bytes> },
    /// A static member's new id; its join is answered after it.
    Replacement(Box<StaticMemberReplacement>),
    /// The group has no members, and no request waits.
    EmptyGroup,
    /// The group was of another kind before.
    Migration,
}

/// A member's new id on its way to the log, and the state to restore if that fails.
#[derive(Debug, Clone)]
pub(super) struct StaticMemberReplacement {
    pub(super) token: RequestToken,
    pub(super) id: String,
    pub(super) previous: ClassicGroupMember,
    pub(super) previous_leader: Option<String>,
    pub(super) generation: i32,
    pub(super) supports_skip_assignment: bool,
}
