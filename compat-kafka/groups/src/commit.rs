//! The commits of offsets to a group, and the expiry of offsets.

use super::subscriptions::GroupSubscriptions;

/// The identity of the client that commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitFence {
    /// The member's id; empty for a client that uses no group management.
    pub member_id: String,
    pub group_instance_id: Option<String>,
    /// The member's generation; -1 for a client that uses no group management.
    pub generation_id: i32,
    /// The API by which the client commits.
    pub kind: CommitKind,
    /// True if the version of the request has member epochs (KIP-848).
    pub knows_epochs: bool,
}

/// The API of a request that commits offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitKind {
    /// `OffsetCommit`.
    Plain,
    /// `TxnOffsetCommit`: the group's state does not matter, and old clients name no member.
    Transactional,
}

/// The offsets of a group that may expire (KIP-211).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OffsetExpirationCondition {
    /// All of them: as far as is known here, the group has had no members for long.
    Unused,
    /// Its members left recently: offsets that were committed with their own retention.
    RecentlyUsed,
    /// Offsets of topics that its members do not read.
    Subscribed(GroupSubscriptions),
    /// None: the topics that its members read are unknown or changing.
    InUse,
}

impl CommitFence {
    pub(super) fn names_a_member(&self) -> bool {
        let is_named = !self.member_id.is_empty() || self.group_instance_id.is_some();
        self.generation_id >= 0 || is_named
    }
}
