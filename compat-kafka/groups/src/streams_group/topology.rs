//! The topology of an application: its subtopologies, the topics that they read, and the internal
//! topics that they need.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::super::error::GroupError;
use super::super::topic_subscription::{GroupTopic, GroupTopics};

/// The topology of an application.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The application's own number of it; 0 and above.
    pub epoch: i32,
    pub subtopologies: BTreeMap<String, Subtopology>,
}

/// A part of a topology. It has one task for each partition of what it reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subtopology {
    /// Topics of others that it reads.
    pub sources: BTreeSet<String>,
    /// Topics that the application makes for itself, and that this reads.
    pub repartition_sources: Vec<InternalTopic>,
    /// The repartition topics that it writes.
    pub repartition_sinks: BTreeSet<String>,
    /// The topics that its state is restored from.
    pub changelogs: Vec<InternalTopic>,
    /// Sources that need the same number of partitions.
    pub copartitioned: Vec<BTreeSet<String>>,
}

/// A topic that the application makes for itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InternalTopic {
    pub name: String,
    /// 0 if that follows from the topics that are read.
    pub partitions: u32,
    /// 0 for the server's default.
    pub replication: i16,
    pub configs: BTreeMap<String, String>,
}

impl Topology {
    /// Checks what depends on no topic.
    pub(super) fn check(&self) -> Result<(), GroupError> {
        let is_sound = |subtopology: &Subtopology| {
            let (sources, changelogs) = (&subtopology.sources, &subtopology.changelogs);
            let is_any_read = !sources.is_empty() || !subtopology.repartition_sources.is_empty();
            let read_topics: BTreeSet<&str> = subtopology.read_topics().collect();
            let is_read = |topic: &String| read_topics.contains(topic.as_str());
            is_any_read
                && changelogs.iter().all(|topic| topic.partitions == 0)
                && subtopology.copartitioned.iter().flatten().all(is_read)
        };
        if self.epoch >= 0 && self.subtopologies.values().all(is_sound) {
            Ok(())
        } else {
            Err(GroupError::InvalidTopology)
        }
    }

    /// The topics of others that the application reads.
    pub fn sources(&self) -> BTreeSet<&str> {
        let sources = self.subtopologies.values().flat_map(|subtopology| &subtopology.sources);
        sources.map(String::as_str).collect()
    }

    /// All topics that the application reads.
    pub fn read_topics(&self) -> BTreeSet<&str> {
        self.subtopologies.values().flat_map(Subtopology::read_topics).collect()
    }

    /// The topics that it names anywhere. Some may come several times.
    pub fn all_topics(&self) -> impl Iterator<Item = &str> {
        self.subtopologies.values().flat_map(Subtopology::all_topics)
    }

    /// All topics that have to be there.
    pub(super) fn required_topics(&self) -> BTreeSet<&str> {
        let changelogs =
            self.subtopologies.values().flat_map(|subtopology| &subtopology.changelogs);
        self.read_topics().into_iter().chain(changelogs.map(|topic| topic.name.as_str())).collect()
    }

    /// The required topics that exist.
    pub(super) fn existing_topics(&self, topics: &dyn GroupTopics) -> BTreeMap<String, GroupTopic> {
        let required = self.required_topics().into_iter();
        required.filter_map(|name| Some((name.to_owned(), topics.named(name)?))).collect()
    }

    /// About the memory that it takes.
    pub(in super::super) fn bytes(&self) -> usize {
        let texts = |names: &BTreeSet<String>| -> usize {
            names.iter().map(|text| text.len() + TEXT_BYTES).sum()
        };
        let topics = |topics: &[InternalTopic]| topics.iter().map(InternalTopic::bytes).sum();
        let subtopology = |(id, subtopology): (&String, &Subtopology)| -> usize {
            let sizes: [usize; 5] = [
                texts(&subtopology.sources),
                texts(&subtopology.repartition_sinks),
                topics(&subtopology.repartition_sources),
                topics(&subtopology.changelogs),
                subtopology.copartitioned.iter().map(|group| texts(group) + SET_BYTES).sum(),
            ];
            id.len() + SUBTOPOLOGY_BYTES + sizes.iter().sum::<usize>()
        };
        self.subtopologies.iter().map(subtopology).sum()
    }
}

/// About the memory of a text besides its bytes, of a set without its texts, and of a subtopology
/// without either.
const TEXT_BYTES: usize = 32;
const SET_BYTES: usize = 32;
const SUBTOPOLOGY_BYTES: usize = 256;

impl Subtopology {
    /// The topics that it reads.
    pub fn read_topics(&self) -> impl Iterator<Item = &str> {
        let internal = self.repartition_sources.iter().map(|topic| topic.name.as_str());
        self.sources.iter().map(String::as_str).chain(internal)
    }
}

impl Subtopology {
    /// The topics that it names anywhere.
    pub fn all_topics(&self) -> impl Iterator<Item = &str> {
        let changelogs = self.changelogs.iter().map(|topic| topic.name.as_str());
        let sinks = self.repartition_sinks.iter().map(String::as_str);
        self.read_topics().chain(sinks).chain(changelogs)
    }
}

impl InternalTopic {
    fn bytes(&self) -> usize {
        let texts =
            self.configs.iter().map(|(key, value)| key.len() + value.len() + 2 * TEXT_BYTES);
        self.name.len() + 2 * TEXT_BYTES + texts.sum::<usize>()
    }
}
