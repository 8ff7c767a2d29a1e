//! The topics that members of groups subscribe to: those that there are, and moments of them.

use std::sync::Arc;

use engine::{Topic, TopicId, WaitPolicy};
use futures_util::FutureExt;
use kafka_groups::{GroupTopic, GroupTopics, TopicFilter};
use regex::Regex;

use crate::readable_topics::ReadableTopics;

impl GroupTopics for ReadableTopics {
    fn version(&self) -> u64 {
        self.engine.topics().last_change().bits()
    }

    fn named(&self, name: &str) -> Option<GroupTopic> {
        let topic = self.engine.topics().named(name);
        topic.map(|topic| group_topic(&topic)).or_else(|| self.readable_moment(name))
    }

    fn by_id(&self, id: &TopicId) -> Option<GroupTopic> {
        let topic = self.engine.topics().by_id(id);
        let moment = || self.moments.name_of(id).and_then(|name| self.readable_moment(&name));
        topic.map(|topic| group_topic(&topic)).or_else(moment)
    }

    fn name_of(&self, id: &TopicId) -> Option<Arc<str>> {
        let name = self.engine.topics().name_of(id);
        name.or_else(|| self.moments.name_of(id).map(Arc::from))
    }

    fn count(&self) -> usize {
        self.engine.topics().count()
    }

    fn are_restricted(&self) -> bool {
        self.engine.security().options().authorizer.is_enabled
    }

    fn matching(&self, pattern: &Regex) -> Option<Vec<Arc<str>>> {
        (!self.are_restricted()).then(|| self.matching_for(pattern, &|_| true))
    }

    fn matching_for(&self, pattern: &Regex, may_know: TopicFilter<'_>) -> Vec<Arc<str>> {
        let topics = self.engine.topics().matching(|name| pattern.is_match(name) && may_know(name));
        topics.iter().map(|topic| Arc::clone(&topic.name)).collect()
    }
}

impl ReadableTopics {
    /// A moment of a topic, if it can be read by now.
    fn readable_moment(&self, name: &str) -> Option<GroupTopic> {
        let resolved = self.moments.resolve(&self.engine, name, WaitPolicy::Refuse).now_or_never();
        let view = resolved?.ok()??;
        let partitions = view.partitions.len() as u32;
        Some(GroupTopic { name: name.into(), id: self.moments.topic_id(name), partitions })
    }
}

fn group_topic(topic: &Topic) -> GroupTopic {
    let partitions = topic.partitions.len() as u32;
    GroupTopic { name: Arc::clone(&topic.name), id: topic.id, partitions }
}
