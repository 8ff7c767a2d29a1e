//! The checks before offsets are committed, deleted, or expire.

use std::time::Duration;

use super::classic_group::ClassicGroup;
use super::error::GroupError;
use super::state::ClassicGroupState;
use super::subscriptions::{CONSUMER_PROTOCOL_TYPE, GroupSubscriptions};

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

impl ClassicGroup {
    /// The condition under which offsets of the group may expire.
    pub fn offset_expiration_condition(&self, now: Duration) -> OffsetExpirationCondition {
        let is_consumers = self.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE);
        let retention = self.options.offsets_retention;
        let is_long = self.empty_since.is_none_or(|since| now.saturating_sub(since) >= retention);
        match self.state {
            ClassicGroupState::Empty if is_long => OffsetExpirationCondition::Unused,
            ClassicGroupState::Empty => OffsetExpirationCondition::RecentlyUsed,
            ClassicGroupState::Stable if is_consumers => {
                OffsetExpirationCondition::Subscribed(self.subscriptions.clone())
            }
            _ => OffsetExpirationCondition::InUse,
        }
    }

    /// Checks whether this client may commit offsets. A member's commit counts as a heartbeat.
    pub fn check_commit(&mut self, now: Duration, fence: &CommitFence) -> Result<(), GroupError> {
        self.fence_commit(fence)?;
        let is_alive =
            matches!(self.state, ClassicGroupState::Stable | ClassicGroupState::PreparingRebalance);
        if is_alive && fence.kind == CommitKind::Plain {
            self.refresh_session(now, &fence.member_id);
        }
        Ok(())
    }

    fn fence_commit(&self, fence: &CommitFence) -> Result<(), GroupError> {
        if self.state == ClassicGroupState::Dead {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        if fence.generation_id < 0 && self.state == ClassicGroupState::Empty {
            return Ok(());
        }
        if fence.names_a_member() {
            self.check_member(&fence.member_id, fence.group_instance_id.as_deref())?;
            self.check_generation(fence.generation_id)?;
        } else if fence.kind == CommitKind::Plain && self.state != ClassicGroupState::Empty {
            return Err(GroupError::UnknownMemberId);
        }
        let is_completing = self.state == ClassicGroupState::CompletingRebalance;
        if fence.kind == CommitKind::Plain && is_completing {
            return Err(GroupError::RebalanceInProgress);
        }
        Ok(())
    }

    /// Checks whether offsets may be deleted, and returns the topics whose offsets may not: those
    /// in the result are [`GroupError::GroupSubscribedToTopic`].
    pub fn check_offset_delete(&self) -> Result<GroupSubscriptions, GroupError> {
        let is_consumers = self.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE);
        match self.state {
            ClassicGroupState::Dead => Err(GroupError::GroupIdNotFound),
            ClassicGroupState::Empty => Ok(self.subscriptions.clone()),
            _ if is_consumers => Ok(self.subscriptions.clone()),
            _ => Err(GroupError::NonEmptyGroup),
        }
    }

    /// Checks whether the group may be deleted.
    pub fn check_delete(&self) -> Result<(), GroupError> {
        match self.state {
            ClassicGroupState::Empty => Ok(()),
            ClassicGroupState::Dead => Err(GroupError::GroupIdNotFound),
            _ => Err(GroupError::NonEmptyGroup),
        }
    }
}

impl CommitFence {
    fn names_a_member(&self) -> bool {
        let is_named = !self.member_id.is_empty() || self.group_instance_id.is_some();
        self.generation_id >= 0 || is_named
    }
}
