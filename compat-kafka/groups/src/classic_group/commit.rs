//! The checks before offsets are committed, deleted, or expire.

use std::time::Duration;

use super::super::commit::{CommitFence, CommitKind, OffsetExpirationCondition};
use super::super::error::GroupError;
use super::super::state::ClassicGroupState;
use super::super::subscriptions::{CONSUMER_PROTOCOL_TYPE, GroupSubscriptions};
use super::ClassicGroup;

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
