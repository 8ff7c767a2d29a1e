//! The checks before offsets are committed, fetched or deleted, or expire.

use std::sync::Arc;
use std::time::Duration;

use engine::TopicId;

use super::super::commit::{CommitFence, CommitKind, OffsetExpirationCondition};
use super::super::error::GroupError;
use super::super::subscriptions::GroupSubscriptions;
use super::ConsumerGroup;
use super::member::ConsumerGroupMember;

/// A partition that a member commits for.
pub type CommittedPartition = (TopicId, u32);

impl ConsumerGroup {
    /// Checks whether this client may commit offsets. A member may name an earlier epoch of its
    /// own, as long as it has had each partition since then (KIP-1251).
    pub fn check_commit(
        &self,
        fence: &CommitFence,
        partitions: &dyn Fn() -> Vec<CommittedPartition>,
    ) -> Result<(), GroupError> {
        let names_nobody = fence.member_id.is_empty() && fence.group_instance_id.is_none();
        let is_outside = fence.generation_id < 0 && self.members.is_empty();
        let is_old = fence.kind == CommitKind::Transactional && names_nobody;
        if is_outside || is_old && fence.generation_id == -1 {
            return Ok(());
        }
        let member = self.members.get(&fence.member_id).ok_or(GroupError::UnknownMemberId)?;
        if member.classic.is_none() && !fence.knows_epochs {
            return Err(GroupError::UnsupportedVersion);
        }
        if fence.generation_id == member.epoch {
            return Ok(());
        }
        let is_covered = |(topic, index): CommittedPartition| {
            let epoch_in = |partitions: &super::AssignedPartitions| {
                partitions.get(&topic)?.get(&index).copied()
            };
            let since = epoch_in(&member.assigned).or_else(|| epoch_in(&member.revoking));
            since.is_some_and(|since| fence.generation_id >= since)
        };
        let is_earlier = fence.generation_id < member.epoch;
        if is_earlier && partitions().into_iter().all(is_covered) {
            Ok(())
        } else {
            Err(stale(member))
        }
    }

    /// Checks whether a member that names its epoch may see offsets.
    pub fn check_fetch(&self, member: Option<&str>, epoch: i32) -> Result<(), GroupError> {
        let Some(id) = member else {
            return if epoch < 0 { Ok(()) } else { Err(GroupError::UnknownMemberId) };
        };
        let member = self.members.get(id).ok_or(GroupError::UnknownMemberId)?;
        if member.epoch == epoch { Ok(()) } else { Err(stale(member)) }
    }

    /// The topics that members read: their offsets may not be deleted, and do not expire.
    pub fn subscriptions(&self) -> GroupSubscriptions {
        if self.subscription.is_unresolved() {
            GroupSubscriptions::Unknown
        } else {
            GroupSubscriptions::Topics(Arc::new(self.subscription.names()))
        }
    }

    /// Checks whether the group may be deleted.
    pub fn check_delete(&self) -> Result<(), GroupError> {
        if self.members.is_empty() { Ok(()) } else { Err(GroupError::NonEmptyGroup) }
    }

    /// The condition under which offsets of the group may expire.
    pub fn offset_expiration_condition(&self, now: Duration) -> OffsetExpirationCondition {
        let retention = self.options.offsets_retention;
        let is_long = self.empty_since.is_none_or(|since| now.saturating_sub(since) >= retention);
        if !self.members.is_empty() {
            OffsetExpirationCondition::Subscribed(self.subscriptions())
        } else if is_long {
            OffsetExpirationCondition::Unused
        } else {
            OffsetExpirationCondition::RecentlyUsed
        }
    }
}

fn stale(member: &ConsumerGroupMember) -> GroupError {
    match member.classic {
        Some(_) => GroupError::IllegalGeneration,
        None => GroupError::StaleMemberEpoch,
    }
}
