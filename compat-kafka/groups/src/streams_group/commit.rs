//! The check before offsets are committed, and the topics whose offsets stay.

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use engine::TopicId;

use super::super::commit::CommitFence;
use super::super::error::GroupError;
use super::super::modern_group::CommittedPartition;
use super::super::subscriptions::GroupSubscriptions;
use super::StreamsGroup;
use super::topology::Topology;

impl StreamsGroup {
    /// Checks whether this client may commit offsets: `ModernGroup::check_commit`. A member has a
    /// partition as long as it has the task that reads it.
    pub fn check_commit(
        &self,
        fence: &CommitFence,
        partitions: &dyn Fn() -> Vec<CommittedPartition>,
    ) -> Result<(), GroupError> {
        let subtopologies = LazyCell::new(|| self.subtopologies_by_topic());
        self.base.check_commit(fence, partitions, |member, (topic, index)| {
            let id = *subtopologies.get(&topic)?;
            let epoch_in = |tasks: &super::GivenTasks| tasks.active.get(id)?.get(&index).copied();
            epoch_in(&member.assigned).or_else(|| epoch_in(&member.revoking))
        })
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

    /// The topics that members read: their offsets may not be deleted, and do not expire.
    pub fn subscriptions(&self) -> GroupSubscriptions {
        let topology = if self.base.members.is_empty() { None } else { self.topology.as_ref() };
        let topics = topology.map(Topology::read_topics).unwrap_or_default();
        GroupSubscriptions::Topics(Arc::new(topics.into_iter().map(str::to_owned).collect()))
    }
}
