//! Topics for tests of groups.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::TopicId;
use parking_lot::Mutex;
use regex::Regex;

use super::{GroupTopic, GroupTopics, TopicFilter};

#[derive(Debug, Default)]
pub(crate) struct TestTopics {
    topics: Mutex<(u64, BTreeMap<String, u32>)>,
    are_restricted: AtomicBool,
}

impl TestTopics {
    pub(crate) fn new(topics: &[(&str, u32)]) -> TestTopics {
        let test_topics = TestTopics::default();
        topics.iter().for_each(|(name, partitions)| test_topics.set(name, *partitions));
        test_topics
    }

    /// Creates a topic, or adds partitions; 0 deletes it.
    pub(crate) fn set(&self, name: &str, partitions: u32) {
        let (version, topics) = &mut *self.topics.lock();
        *version += 1;
        match partitions {
            0 => drop(topics.remove(name)),
            _ => drop(topics.insert(name.to_owned(), partitions)),
        }
    }

    /// From here on, clients may not know of all topics.
    pub(crate) fn restrict(&self) {
        self.are_restricted.store(true, Ordering::Relaxed);
    }

    /// A moment that is over: no topic changes by that.
    pub(crate) fn pass(&self, moment: &str, partitions: u32) {
        self.topics.lock().1.insert(moment.to_owned(), partitions);
    }

    pub(crate) fn partitions(&self) -> BTreeMap<TopicId, u32> {
        self.topics.lock().1.iter().map(|(name, count)| (id(name), *count)).collect()
    }
}

/// The id of a topic in tests: its name.
pub(crate) fn id(name: &str) -> TopicId {
    let mut id = [0; 16];
    id[..name.len()].copy_from_slice(name.as_bytes());
    id
}

impl GroupTopics for TestTopics {
    fn version(&self) -> u64 {
        self.topics.lock().0
    }

    fn named(&self, name: &str) -> Option<GroupTopic> {
        let partitions = *self.topics.lock().1.get(name)?;
        Some(GroupTopic { name: name.into(), id: id(name), partitions })
    }

    fn by_id(&self, topic_id: &TopicId) -> Option<GroupTopic> {
        let name = self.name_of(topic_id)?;
        self.named(&name)
    }

    fn name_of(&self, topic_id: &TopicId) -> Option<Arc<str>> {
        let topics = self.topics.lock();
        topics.1.keys().find(|name| id(name) == *topic_id).map(|name| name.as_str().into())
    }

    fn count(&self) -> usize {
        self.topics.lock().1.len()
    }

    fn are_restricted(&self) -> bool {
        self.are_restricted.load(Ordering::Relaxed)
    }

    fn matching(&self, pattern: &Regex) -> Option<Vec<Arc<str>>> {
        (!self.are_restricted()).then(|| self.matching_for(pattern, &|_| true))
    }

    fn matching_for(&self, pattern: &Regex, may_know: TopicFilter<'_>) -> Vec<Arc<str>> {
        let topics = self.topics.lock();
        topics
            .1
            .keys()
            .filter(|name| pattern.is_match(name) && may_know(name))
            .map(|name| name.as_str().into())
            .collect()
    }
}
