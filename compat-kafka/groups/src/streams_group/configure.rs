//! The configuration of a topology with the topics that there are: the number of tasks of each
//! subtopology, and the internal topics that are still to be made.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::error::GroupError;
use super::status::StreamsStatus;
use super::topology::{InternalTopic, Subtopology, Topology};

/// The most tasks that an application may have: each is kept twice and more.
const TASKS_MAX: usize = 100_000;
/// The most topics that a message names.
const NAMED_MAX: usize = 3;

/// A topology, configured with the topics that there are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfiguredTopology {
    /// `None` if topics of others are missing, or do not fit each other.
    pub(super) subtopologies: Option<BTreeMap<String, ConfiguredSubtopology>>,
    /// The internal topics that have to be made, each with its number of partitions.
    pub(super) missing: Vec<InternalTopic>,
    /// The reason why nothing can be assigned yet.
    pub(super) problem: Option<StreamsStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfiguredSubtopology {
    pub(super) tasks: u32,
    pub(super) is_stateful: bool,
    /// With their numbers of partitions.
    pub(super) repartition_sources: Vec<InternalTopic>,
    pub(super) changelogs: Vec<InternalTopic>,
}

impl ConfiguredTopology {
    /// Configures a topology. `partitions` knows how many partitions a topic has, if it exists.
    ///
    /// # Errors
    /// The topology is not valid, whatever topics there are.
    pub(super) fn of(
        topology: &Topology,
        partitions: &dyn Fn(&str) -> Option<u32>,
    ) -> Result<ConfiguredTopology, GroupError> {
        let mut counts = PartitionCounts { existing: partitions, decided: BTreeMap::new() };
        match counts.configure(topology) {
            Ok((subtopologies, missing)) => {
                let problem = (!missing.is_empty()).then(|| {
                    let names = missing.iter().map(|topic| topic.name.as_str());
                    StreamsStatus::missing_internal(&named(names))
                });
                Ok(ConfiguredTopology { subtopologies: Some(subtopologies), missing, problem })
            }
            Err(Misfit::Topics(status)) => Ok(ConfiguredTopology {
                subtopologies: None,
                missing: Vec::new(),
                problem: Some(status),
            }),
            Err(Misfit::Topology) => Err(GroupError::InvalidTopology),
        }
    }

    /// True if tasks can be assigned.
    pub(super) fn is_ready(&self) -> bool {
        self.problem.is_none()
    }

    /// The number of tasks of a subtopology; `None` if there is no such one.
    pub(super) fn tasks(&self, subtopology: &str) -> Option<u32> {
        Some(self.subtopologies.as_ref()?.get(subtopology)?.tasks)
    }
}

/// The reason why a topology cannot be configured.
enum Misfit {
    /// The topics do not fit it.
    Topics(StreamsStatus),
    /// No topics would.
    Topology,
}

type TopologyParts = (BTreeMap<String, ConfiguredSubtopology>, Vec<InternalTopic>);

struct PartitionCounts<'a> {
    existing: &'a dyn Fn(&str) -> Option<u32>,
    /// The partition counts of internal topics.
    decided: BTreeMap<String, u32>,
}

impl PartitionCounts<'_> {
    fn of(&self, topic: &str) -> Option<u32> {
        (self.existing)(topic).or_else(|| self.decided.get(topic).copied())
    }

    fn configure(&mut self, topology: &Topology) -> Result<TopologyParts, Misfit> {
        let missing = topology.sources().into_iter().filter(|name| (self.existing)(name).is_none());
        let missing: Vec<&str> = missing.collect();
        if !missing.is_empty() {
            let status = StreamsStatus::missing_sources(&named(missing.into_iter()));
            return Err(Misfit::Topics(status));
        }
        self.decide_repartition(topology)?;
        let internal = topology
            .subtopologies
            .values()
            .flat_map(|subtopology| &subtopology.repartition_sources);
        let internal: BTreeMap<&str, u32> =
            internal.map(|topic| (topic.name.as_str(), topic.partitions)).collect();
        for subtopology in topology.subtopologies.values() {
            for group in &subtopology.copartitioned {
                self.copartition(group, &internal)?;
            }
        }
        let mut configured = BTreeMap::new();
        let mut tasks_total = 0;
        for (id, subtopology) in &topology.subtopologies {
            let tasks = self.tasks(subtopology)?;
            tasks_total += tasks as usize;
            for changelog in &subtopology.changelogs {
                self.decided.insert(changelog.name.clone(), tasks);
            }
            configured.insert(id.clone(), self.subtopology(subtopology, tasks));
        }
        if tasks_total > TASKS_MAX {
            return Err(Misfit::Topics(StreamsStatus::misfit(format!(
                "The topology has {tasks_total} tasks with these topics. It may have {TASKS_MAX}."
            ))));
        }
        let missing = self.missing(&configured)?;
        Ok((configured, missing))
    }

    /// The tasks of a subtopology: one for each partition of the topic that has most.
    fn tasks(&self, subtopology: &Subtopology) -> Result<u32, Misfit> {
        let mut max = 0;
        for topic in subtopology.read_topics() {
            max = max.max(self.of(topic).ok_or(Misfit::Topology)?);
        }
        Ok(max)
    }

    /// Gives each repartition topic without a number as many partitions as the largest topic that
    /// its writer reads.
    fn decide_repartition(&mut self, topology: &Topology) -> Result<(), Misfit> {
        let subtopologies = topology.subtopologies.values();
        for topic in subtopologies.clone().flat_map(|subtopology| &subtopology.repartition_sources)
        {
            if topic.partitions > 0 {
                self.decided.insert(topic.name.clone(), topic.partitions);
            }
        }
        let subtopology_list: Vec<&Subtopology> = subtopologies.clone().collect();
        let mut readers: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, subtopology) in subtopology_list.iter().enumerate() {
            for topic in &subtopology.repartition_sources {
                readers.entry(&topic.name).or_default().push(index);
            }
        }
        // In the order of Kafka, which goes through all subtopologies again and again: the sinks of
        // each are decided when it is reached for the first time since one of its sources is known.
        let mut rounds: BTreeSet<(usize, usize)> = (0..subtopology_list.len())
            .filter(|index| self.most_read(subtopology_list[*index]).is_some())
            .map(|index| (0, index))
            .collect();
        let mut is_done = vec![false; subtopology_list.len()];
        while let Some((round, index)) = rounds.pop_first() {
            if std::mem::replace(&mut is_done[index], true) {
                continue;
            }
            let Some(count) = self.most_read(subtopology_list[index]) else { continue };
            for sink in &subtopology_list[index].repartition_sinks {
                if self.decided.contains_key(sink) {
                    continue;
                }
                self.decided.insert(sink.clone(), count);
                let readers = readers.get(sink.as_str()).into_iter().flatten();
                let waiting = readers.filter(|reader| !is_done[**reader]);
                rounds
                    .extend(waiting.map(|reader| (round + usize::from(*reader <= index), *reader)));
            }
        }
        let is_decided = |sink: &String| self.decided.contains_key(sink);
        if !subtopology_list
            .iter()
            .flat_map(|subtopology| &subtopology.repartition_sinks)
            .all(is_decided)
        {
            // Only a loop is left.
            return Err(Misfit::Topology);
        }
        let mut sources = subtopologies.flat_map(|subtopology| &subtopology.repartition_sources);
        // A topic without a writer has no number.
        if sources.all(|topic| self.decided.contains_key(&topic.name)) {
            Ok(())
        } else {
            Err(Misfit::Topology)
        }
    }

    /// The number of partitions of the largest topic that it reads, of those that are known.
    fn most_read(&self, subtopology: &Subtopology) -> Option<u32> {
        let internal = subtopology.repartition_sources.iter();
        let internal = internal.filter_map(|topic| self.decided.get(&topic.name).copied());
        let sources = subtopology.sources.iter().filter_map(|topic| (self.existing)(topic));
        internal.chain(sources).max()
    }

    /// Gives the repartition topics of a group the number of partitions that all of it needs.
    /// `repartition` has all of the topology, with their numbers.
    fn copartition(
        &mut self,
        group: &BTreeSet<String>,
        repartition: &BTreeMap<&str, u32>,
    ) -> Result<(), Misfit> {
        let internal = group.iter().map(String::as_str);
        let internal: BTreeMap<&str, u32> =
            internal.filter_map(|name| Some((name, *repartition.get(name)?))).collect();
        let count = |topic: &str| self.of(topic).ok_or(Misfit::Topology);
        let of_others: Vec<&str> =
            group.iter().map(String::as_str).filter(|name| !internal.contains_key(name)).collect();
        let fixed: Vec<&str> =
            internal.iter().filter(|topic| *topic.1 > 0).map(|topic| *topic.0).collect();
        let leading = match (of_others.is_empty(), fixed.is_empty()) {
            (false, _) => of_others,
            (true, false) => fixed.clone(),
            (true, true) => Vec::new(),
        };
        let mut counts = BTreeMap::new();
        for topic in &leading {
            counts.insert(*topic, count(topic)?);
        }
        let needed = match counts.values().next() {
            Some(first) if counts.values().any(|count| count != first) => {
                return Err(Misfit::Topics(StreamsStatus::misfit(format!(
                    "Following topics do not have the same number of partitions: [{counts:?}]"
                ))));
            }
            Some(first) => *first,
            None => {
                let mut max = 0;
                for topic in internal.keys() {
                    max = max.max(count(topic)?);
                }
                max
            }
        };
        for topic in fixed {
            let partitions = count(topic)?;
            if partitions != needed {
                return Err(Misfit::Topics(StreamsStatus::misfit(format!(
                    "Number of partitions [{partitions}] of repartition topic [{topic}] doesn't match number of \
                     partitions [{needed}] of the source topic."
                ))));
            }
        }
        let decided = internal.keys().map(|topic| ((*topic).to_owned(), needed));
        let decided: Vec<(String, u32)> = decided.collect();
        self.decided.extend(decided);
        Ok(())
    }

    fn subtopology(&self, subtopology: &Subtopology, tasks: u32) -> ConfiguredSubtopology {
        let with_count = |topic: &InternalTopic| InternalTopic {
            partitions: match topic.partitions {
                0 => self.decided.get(&topic.name).copied().unwrap_or(0),
                count => count,
            },
            ..topic.clone()
        };
        ConfiguredSubtopology {
            tasks,
            is_stateful: !subtopology.changelogs.is_empty(),
            repartition_sources: subtopology.repartition_sources.iter().map(with_count).collect(),
            changelogs: subtopology.changelogs.iter().map(with_count).collect(),
        }
    }

    /// The internal topics that do not exist.
    fn missing(
        &self,
        configured: &BTreeMap<String, ConfiguredSubtopology>,
    ) -> Result<Vec<InternalTopic>, Misfit> {
        let mut missing = BTreeMap::new();
        let needed = configured.values().flat_map(|subtopology| {
            subtopology.repartition_sources.iter().chain(&subtopology.changelogs)
        });
        for topic in needed {
            match (self.existing)(&topic.name) {
                None => drop(missing.insert(&topic.name, topic.clone())),
                Some(existing) if existing != topic.partitions => {
                    return Err(Misfit::Topics(StreamsStatus::misfit(format!(
                        "Existing topic {} has different number of partitions: expected {}, found {existing}",
                        topic.name, topic.partitions
                    ))));
                }
                Some(_) => {}
            }
        }
        Ok(missing.into_values().collect())
    }
}

/// The first few of these names.
fn named<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let first = names[..names.len().min(NAMED_MAX)].join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => first,
        more => format!("{first} and {more} additional topics"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Goes through all subtopologies until nothing changes.
    fn decide_round_by_round(
        subtopologies: &[Subtopology],
        existing: &dyn Fn(&str) -> Option<u32>,
    ) -> BTreeMap<String, u32> {
        let mut decided = BTreeMap::new();
        loop {
            let before = decided.len();
            for subtopology in subtopologies {
                let internal = subtopology.repartition_sources.iter();
                let internal = internal.filter_map(|topic| decided.get(&topic.name).copied());
                let sources = subtopology.sources.iter().filter_map(|topic| existing(topic));
                let Some(count) = internal.chain(sources).max() else { continue };
                for sink in &subtopology.repartition_sinks {
                    decided.entry(sink.clone()).or_insert(count);
                }
            }
            if decided.len() == before {
                return decided;
            }
        }
    }

    fn subtopologies() -> impl Strategy<Value = Vec<Subtopology>> {
        let topics = || prop::collection::btree_set(0..12_u8, 0..4);
        let topic_sets = (prop::collection::btree_set(0..3_u8, 0..2), topics(), topics());
        let subtopology = topic_sets.prop_map(|(sources, read, written)| Subtopology {
            sources: sources.into_iter().map(|number| format!("s{number}")).collect(),
            repartition_sources: read
                .into_iter()
                .map(|number| InternalTopic { name: format!("r{number}"), ..Default::default() })
                .collect(),
            repartition_sinks: written.into_iter().map(|number| format!("r{number}")).collect(),
            ..Default::default()
        });
        prop::collection::vec(subtopology, 0..10)
    }

    proptest! {
        #[test]
        fn repartition_topics_get_what_going_through_all_again_and_again_gives(all in subtopologies()) {
            let existing = |topic: &str| match topic {
                "s0" => Some(3),
                "s1" => Some(7),
                "s2" => Some(5),
                _ => None,
            };
            let expected = decide_round_by_round(&all, &existing);
            let named = all.iter().enumerate();
            let named = named.map(|(number, subtopology)| (format!("{number:02}"), subtopology.clone()));
            let topology = Topology { epoch: 0, subtopologies: named.collect() };
            let mut counts = PartitionCounts { existing: &existing, decided: BTreeMap::new() };
            let is_whole = counts.decide_repartition(&topology).is_ok();
            prop_assert_eq!(&counts.decided, &expected);
            let has = |name: &String| expected.contains_key(name);
            let sinks = all.iter().flat_map(|subtopology| &subtopology.repartition_sinks).all(has);
            let mut sources = all.iter().flat_map(|subtopology| &subtopology.repartition_sources);
            prop_assert_eq!(is_whole, sinks && sources.all(|topic| has(&topic.name)));
        }
    }
}
