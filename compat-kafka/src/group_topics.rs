//! The topics that members of groups subscribe to.

use std::sync::Arc;

use engine::{Engine, Topic, TopicId};
use regex::Regex;

use crate::groups::{GroupTopic, GroupTopics};

pub(crate) struct EngineGroupTopics {
    engine: Arc<Engine>,
}

impl EngineGroupTopics {
    pub(crate) fn new(engine: Arc<Engine>) -> EngineGroupTopics {
        EngineGroupTopics { engine }
    }
}

impl GroupTopics for EngineGroupTopics {
    fn version(&self) -> u64 {
        self.engine.topics().last_change().bits()
    }

    fn named(&self, name: &str) -> Option<GroupTopic> {
        self.engine.topics().named(name).map(|topic| group_topic(&topic))
    }

    fn by_id(&self, id: &TopicId) -> Option<GroupTopic> {
        self.engine.topics().by_id(id).map(|topic| group_topic(&topic))
    }

    fn name_of(&self, id: &TopicId) -> Option<Arc<str>> {
        self.engine.topics().name_of(id)
    }

    fn count(&self) -> usize {
        self.engine.topics().count()
    }

    fn matching(&self, pattern: &Regex) -> Vec<Arc<str>> {
        let topics = self.engine.topics().matching(|name| pattern.is_match(name));
        topics.iter().map(|topic| Arc::clone(&topic.name)).collect()
    }
}

fn group_topic(topic: &Topic) -> GroupTopic {
    let partitions = topic.partitions.len() as u32;
    GroupTopic { name: Arc::clone(&topic.name), id: topic.id, partitions }
}
