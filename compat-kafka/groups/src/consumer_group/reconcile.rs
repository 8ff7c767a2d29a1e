//! One step of a member towards its target assignment (KIP-848).
//!
//! A member first revokes partitions, and confirms that by the partitions it reports as owned. Only
//! then it moves to the epoch of the target, and gets partitions that no other member still owns.

use std::collections::BTreeSet;

use engine::TopicId;

use super::super::partitions::{AssignedPartitions, PartitionSet, has_any};
use super::member::{ConsumerGroupMember, MemberState};

/// The inputs of a step besides the member.
pub(super) struct ReconcileContext<'a> {
    /// The epoch of the target assignment.
    pub(super) target_epoch: i32,
    /// The topics that the member subscribes to now.
    pub(super) subscribed: &'a BTreeSet<TopicId>,
    /// True if they changed with this request.
    pub(super) is_subscription_new: bool,
    /// The partitions that the member says it owns; `None` if it does not say.
    pub(super) owned: Option<&'a PartitionSet>,
    /// True if another member has a partition, or has not confirmed that it gave it up.
    pub(super) is_held_by_other: &'a dyn Fn(TopicId, u32) -> bool,
}

impl ReconcileContext<'_> {
    /// Moves the member one step on.
    pub(super) fn step(&self, member: &mut ConsumerGroupMember) {
        match member.state {
            MemberState::Stable if member.epoch != self.target_epoch => self.advance(member),
            MemberState::Stable if self.is_subscription_new => self.drop_unsubscribed(member),
            MemberState::Stable => {}
            MemberState::UnrevokedPartitions if self.may_own(&member.revoking) => {
                if self.is_subscription_new {
                    self.drop_unsubscribed(member);
                }
            }
            MemberState::UnrevokedPartitions | MemberState::UnreleasedPartitions => {
                self.advance(member);
            }
        }
    }

    /// True if the member may still own any of these partitions. It may own all if it does not say.
    fn may_own(&self, partitions: &AssignedPartitions) -> bool {
        self.owned.is_none_or(|owned| has_any(partitions, owned))
    }

    fn advance(&self, member: &mut ConsumerGroupMember) {
        let (mut kept, mut revoked) = (AssignedPartitions::new(), AssignedPartitions::new());
        for (topic, indexes) in &member.assigned {
            let target = self.target(member, topic);
            for (index, epoch) in indexes {
                let stays = target.is_some_and(|target| target.contains(index));
                let partitions = if stays { &mut kept } else { &mut revoked };
                partitions.entry(*topic).or_default().insert(*index, *epoch);
            }
        }
        if !revoked.is_empty() && self.may_own(&revoked) {
            member.state = MemberState::UnrevokedPartitions;
            member.move_to(member.epoch);
            (member.assigned, member.revoking) = (kept, revoked);
            return;
        }
        let mut is_any_held = false;
        for (topic, target) in &member.target {
            if !self.subscribed.contains(topic) {
                continue;
            }
            for index in target {
                if kept.get(topic).is_some_and(|indexes| indexes.contains_key(index)) {
                    continue;
                }
                if (self.is_held_by_other)(*topic, *index) {
                    is_any_held = true;
                } else {
                    kept.entry(*topic).or_default().insert(*index, self.target_epoch);
                }
            }
        }
        member.state =
            if is_any_held { MemberState::UnreleasedPartitions } else { MemberState::Stable };
        member.move_to(self.target_epoch);
        (member.assigned, member.revoking) = (kept, AssignedPartitions::new());
    }

    /// Takes the partitions of topics away that the member does not subscribe to any more, before
    /// there is a new target.
    fn drop_unsubscribed(&self, member: &mut ConsumerGroupMember) {
        let (mut kept, mut revoked) = (member.assigned.clone(), member.revoking.clone());
        kept.retain(|topic, indexes| {
            let stays = self.subscribed.contains(topic);
            if !stays {
                revoked.entry(*topic).or_default().append(indexes);
            }
            stays
        });
        if kept.len() == member.assigned.len() {
            return;
        }
        if self.may_own(&revoked) {
            member.state = MemberState::UnrevokedPartitions;
            member.revoking = revoked;
        }
        member.move_to(member.epoch);
        member.assigned = kept;
    }

    fn target<'m>(
        &self,
        member: &'m ConsumerGroupMember,
        topic: &TopicId,
    ) -> Option<&'m BTreeSet<u32>> {
        if self.subscribed.contains(topic) { member.target.get(topic) } else { None }
    }
}
