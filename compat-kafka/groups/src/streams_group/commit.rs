//! The checks before offsets are committed, fetched or deleted, or expire.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::TopicId;

use super::super::commit::{CommitFence, CommitKind, OffsetExpirationCondition};
use super::super::consumer_group::CommittedPartition;
use super::super::error::GroupError;
use super::super::subscriptions::GroupSubscriptions;
use super::StreamsGroup;
use super::topology::Topology;

impl StreamsGroup {
    /// Checks whether this client may commit offsets. A member may name an earlier epoch of its
    /// own, as long as it has had the task of each partition since then.
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
        if !fence.knows_epochs {
            return Err(GroupError::UnsupportedVersion);
        }
        if fence.generation_id == member.epoch {
            return Ok(());
        }
        let subtopologies = self.subtopologies_by_topic();
        let is_covered = |(topic, index): CommittedPartition| {
            let since = |id: &str| {
                let epoch_in =
                    |tasks: &super::GivenTasks| tasks.active.get(id)?.get(&index).copied();
                epoch_in(&member.assigned).or_else(|| epoch_in(&member.revoking))
            };
            let since = subtopologies.get(&topic).and_then(|id| since(id));
            since.is_some_and(|since| fence.generation_id >= since)
        };
        let is_earlier = fence.generation_id < member.epoch;
        if is_earlier && partitions().into_iter().all(is_covered) {
            Ok(())
        } else {
            Err(GroupError::StaleMemberEpoch)
        }
    }

    /// The subtopology that reads each topic.
    fn subtopologies_by_topic(&self) -> BTreeMap<TopicId, &str> {
        let subtopologies = self.topology.iter().flat_map(|topology| &topology.subtopologies);
        let topics = subtopologies.flat_map(|(id, subtopology)| {
            subtopology
                .read_topics()
                .filter_map(move |name| Some((self.topics.get(name)?.id, id.as_str())))
        });
        topics.collect()
    }

    /// Checks whether a member that names its epoch may see offsets.
    pub fn check_fetch(&self, member: Option<&str>, epoch: i32) -> Result<(), GroupError> {
        let Some(id) = member else {
            return if epoch < 0 { Ok(()) } else { Err(GroupError::UnknownMemberId) };
        };
        let member = self.members.get(id).ok_or(GroupError::UnknownMemberId)?;
        if member.epoch == epoch { Ok(()) } else { Err(GroupError::StaleMemberEpoch) }
    }

    /// The topics that members read: their offsets may not be deleted, and do not expire.
    pub fn subscriptions(&self) -> GroupSubscriptions {
        let topology = if self.members.is_empty() { None } else { self.topology.as_ref() };
        let topics = topology.map(Topology::read_topics).unwrap_or_default();
        GroupSubscriptions::Topics(Arc::new(topics.into_iter().map(str::to_owned).collect()))
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
