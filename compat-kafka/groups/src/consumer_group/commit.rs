//! The check before offsets are committed, and the topics whose offsets stay.

use std::sync::Arc;

use super::super::commit::CommitFence;
use super::super::error::GroupError;
use super::super::modern_group::CommittedPartition;
use super::super::subscriptions::GroupSubscriptions;
use super::ConsumerGroup;

impl ConsumerGroup {
    /// Checks whether this client may commit offsets: `ModernGroup::check_commit`.
    pub fn check_commit(
        &self,
        fence: &CommitFence,
        partitions: &dyn Fn() -> Vec<CommittedPartition>,
    ) -> Result<(), GroupError> {
        self.base.check_commit(fence, partitions, |member, (topic, index)| {
            let epoch_in = |partitions: &super::AssignedPartitions| {
                partitions.get(&topic)?.get(&index).copied()
            };
            epoch_in(&member.assigned).or_else(|| epoch_in(&member.revoking))
        })
    }

    /// The topics that members read: their offsets may not be deleted, and do not expire.
    pub fn subscriptions(&self) -> GroupSubscriptions {
        if self.subscription.is_unresolved() {
            GroupSubscriptions::Unknown
        } else {
            GroupSubscriptions::Topics(Arc::new(self.subscription.names()))
        }
    }
}
