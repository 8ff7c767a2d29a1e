//! The topics that exist, and those that existed.
//!
//! Every version of every topic stays in memory, by stamp. A name is resolved as of the requested
//! moment, so a topic that was deleted since is still found in the past. A deleted topic without
//! records is removed in the end (`Namespace::remove_topics`); only the time span from its
//! creation to its deletion stays known.

pub mod event;
pub mod pin_table;
mod removed_topics;
mod restatement;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Bound;
use std::sync::Arc;

use hlc::{Cut, Hlc, SysTime, TOPIC_MARK};
use storage::{Log, LogId, LogSource, Offset};

use crate::active_rules::ActiveRules;
use crate::config::TopicConfig;
use crate::error::EngineError;
use crate::log_transactions::LogTransactions;
use crate::numbering::FIRST_PARTITION;
use crate::user_time::{UserTimeRule, UserTimeRules, next_rule};
use event::NamespaceEvent;
use pin_table::PinTable;
use removed_topics::RemovedTopicSpans;
pub(crate) use restatement::{ReferencedLogs, load_restatement};

/// The maximum length of the name of a topic or a pin.
const NAME_LENGTH_MAX: usize = 249;

/// Identifies a topic beyond its name.
pub type TopicId = [u8; 16];

/// One version of a topic: its state from one change to the next.
#[derive(Debug)]
pub struct Topic {
    pub name: Arc<str>,
    pub id: TopicId,
    /// The stamp of its creation.
    pub created: Hlc,
    /// The settings that are set on it.
    pub config: TopicConfig,
    /// Its partitions, in order.
    pub partitions: Vec<Arc<Partition>>,
    /// The rule of its user time, unless that is the records' timestamps.
    rule: Option<Arc<UserTimeRule>>,
    /// All rules that it has had.
    rules: Arc<UserTimeRules>,
}

#[derive(Debug)]
pub struct Partition {
    /// Its index in its topic.
    pub index: u32,
    /// Its records.
    pub log: Arc<Log>,
    /// Its open transactions.
    pub transactions: Arc<LogTransactions>,
    /// The user time rules that its topic has had.
    pub(crate) rules: Arc<UserTimeRules>,
}

impl Partition {
    /// The epoch of its leader, which new records carry. The first leader has epoch 0, and there is
    /// no other yet.
    pub fn leader_epoch(&self) -> u32 {
        0
    }

    /// The log start: the first offset that has not been removed.
    pub fn start(&self) -> Offset {
        self.log.start()
    }

    /// Returns true if the user time of every record is and always was the record's own timestamp.
    pub fn uses_record_timestamps(&self) -> bool {
        self.rules.are_all_timestamps()
    }

    /// The offset after the last visible record.
    pub fn end(&self) -> Offset {
        self.log.end()
    }

    /// The last stable offset: below it, every transaction has ended.
    pub fn stable_end(&self) -> Offset {
        // In this order: a transaction is open before its first record is visible.
        let end = self.end();
        let first = self.transactions.first_unstable();
        first.map_or(end, |first| first.min(end)).max(self.start())
    }
}

impl Topic {
    /// A topic without partitions.
    pub(crate) fn new(name: Arc<str>, id: TopicId, created: Hlc, config: TopicConfig) -> Topic {
        let (rule, rules) =
            (UserTimeRule::from_config(&config, created), Arc::new(UserTimeRules::default()));
        rules.push(created, rule.as_ref());
        Topic { name, id, created, config, partitions: Vec::new(), rule, rules }
    }

    /// The topic with other settings, from `stamp` on.
    fn with_config(&self, config: TopicConfig, stamp: Hlc) -> Topic {
        let rule = next_rule(self.rule.as_ref(), &config, stamp);
        self.rules.push(stamp, rule.as_ref());
        Topic { config, rule, ..self.copy() }
    }

    /// Returns true if a plug-in extracts its user times, or ever did.
    pub(crate) fn had_plugin(&self) -> bool {
        self.rules.any_plugin()
    }

    fn copy(&self) -> Topic {
        Topic {
            name: Arc::clone(&self.name),
            id: self.id,
            created: self.created,
            config: self.config.clone(),
            partitions: self.partitions.clone(),
            rule: self.rule.clone(),
            rules: Arc::clone(&self.rules),
        }
    }

    /// Adds `count` partitions. Their logs are numbered from `first_log` on.
    fn add_partitions(
        &mut self,
        count: u32,
        first_log: u64,
        log: &LogSource,
    ) -> Result<(), String> {
        let from = self.partitions.len() as u32;
        for nth in 0..count {
            let log = log(LogId(first_log + u64::from(nth))).map_err(|error| error.to_string())?;
            let rules = Arc::clone(&self.rules);
            let (index, transactions) = (from + nth, Arc::default());
            self.partitions.push(Arc::new(Partition { index, log, transactions, rules }));
        }
        Ok(())
    }

    /// The rule of its user time; `None` where that is the records' own timestamps, in any order.
    pub fn user_time(&self) -> Option<&Arc<UserTimeRule>> {
        self.rule.as_ref()
    }

    /// The partition `index`.
    ///
    /// # Errors
    /// It does not exist.
    pub fn partition(&self, index: i32) -> Result<&Arc<Partition>, EngineError> {
        usize::try_from(index).ok().and_then(|index| self.partitions.get(index)).ok_or_else(|| {
            EngineError::UnknownPartition { topic: self.name.to_string(), partition: index }
        })
    }
}

/// Checks that a name is a valid topic name by Kafka's rules, and contains no moment.
///
/// # Errors
/// It is not valid.
pub fn check_topic_name(name: &str) -> Result<(), EngineError> {
    let fault = name_error(name).or_else(|| {
        let is_moment = name.contains(TOPIC_MARK);
        is_moment.then(|| format!("'{name}' asks for a moment of another topic, by {TOPIC_MARK}"))
    });
    match fault {
        None => Ok(()),
        Some(fault) => Err(EngineError::TopicName(format!("topic name is invalid: {fault}"))),
    }
}

/// Checks that no other topic has a name that differs only in '.' and '_'.
///
/// # Errors
/// There is one.
pub fn check_collision(namespace: &Namespace, name: &str) -> Result<(), EngineError> {
    match namespace.colliding_topic(name) {
        None => Ok(()),
        Some(other) => Err(EngineError::TopicName(format!(
            "Topic '{name}' collides with existing topic: {}",
            other.name
        ))),
    }
}

/// The reason that a name cannot be the name of a topic or a pin, by Kafka's rules and in Kafka's
/// words.
pub(crate) fn name_error(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("the empty string is not allowed".to_owned());
    }
    if name == "." || name == ".." {
        return Some(format!("'{name}' is not allowed"));
    }
    // Kafka counts UTF-16 units.
    if name.encode_utf16().count() > NAME_LENGTH_MAX {
        let length_max = NAME_LENGTH_MAX;
        return Some(format!(
            "the length of '{name}' is longer than the max allowed length {length_max}"
        ));
    }
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let rule = "contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'";
    (!name.bytes().all(is_fit)).then(|| format!("'{name}' {rule}"))
}

/// All versions of one topic: each with the stamp from which it holds; `None` for the deletion.
type TopicVersions = Vec<(Hlc, Option<Arc<Topic>>)>;

/// The hasher is deterministic, so iteration order is the same in each run of a simulation. Only
/// the server chooses ids, so collisions cannot be provoked.
type TopicsById = HashMap<TopicId, TopicVersions, BuildHasherDefault<DefaultHasher>>;

#[derive(Default)]
/// The topics that exist, and those that existed; and the pins.
pub struct Namespace {
    by_id: TopicsById,
    current: BTreeMap<Arc<str>, Arc<Topic>>,
    /// The ids that a name has had, in order of creation.
    names: HashMap<Arc<str>, Vec<TopicId>>,
    next_log: u64,
    /// The partitions of all existing topics.
    partition_count: usize,
    /// The stamp of the newest version of any topic.
    last_change: Hlc,
    pub(crate) producer_ids_below: i64,
    pub(crate) pins: PinTable,
    /// The time spans of topics that are removed.
    removed_topics: RemovedTopicSpans,
    /// The topics whose deletion is on its way to the journal.
    being_deleted: BTreeSet<TopicId>,
}

impl Namespace {
    pub(crate) fn new() -> Namespace {
        Namespace { next_log: FIRST_PARTITION, ..Namespace::default() }
    }

    /// The lowest log number that no partition has had.
    pub(crate) fn next_log(&self) -> u64 {
        self.next_log
    }

    /// The topic of that name.
    pub fn topic(&self, name: &str) -> Option<&Arc<Topic>> {
        self.current.get(name)
    }

    /// Another topic whose name differs only in '.' and '_'. Kafka's metrics cannot tell such names
    /// apart, so Kafka allows only one of them.
    pub fn colliding_topic(&self, name: &str) -> Option<&Arc<Topic>> {
        let stem = &name[..name.find(['.', '_'])?];
        let unified = |name: &str| name.replace('.', "_");
        let unified_name = unified(name);
        let from = self.current.range::<str, _>((Bound::Included(stem), Bound::Unbounded));
        from.map(|(_, topic)| topic)
            .take_while(|topic| topic.name.starts_with(stem))
            .filter(|topic| topic.name.len() == name.len() && *topic.name != *name)
            .find(|topic| unified(&topic.name) == unified_name)
    }

    /// The stamp of the newest version of any topic, deletions included.
    pub(crate) fn last_change(&self) -> Hlc {
        self.last_change
    }

    /// The number of topics that exist, and the number of their partitions.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.current.len(), self.partition_count)
    }

    /// Returns true if a topic has, or had, that name; a removed topic does not count.
    pub(crate) fn has_current_or_past(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    pub(crate) fn topic_by_id(&self, id: &TopicId) -> Option<&Arc<Topic>> {
        self.by_id.get(id)?.last()?.1.as_ref()
    }

    /// Returns true if a topic exists and its deletion has not begun.
    ///
    /// An append that is queued before the borrow of the namespace ends precedes the topic's
    /// deletion in the journal.
    pub fn accepts_offsets(&self, id: &TopicId) -> bool {
        self.topic_by_id(id).is_some() && !self.being_deleted.contains(id)
    }

    /// Notes that the deletion of a topic is about to be queued.
    pub(crate) fn begin_deletion(&mut self, id: TopicId) {
        self.being_deleted.insert(id);
    }

    /// Notes that the deletion of a topic failed.
    pub(crate) fn cancel_deletion(&mut self, id: &TopicId) {
        self.being_deleted.remove(id);
    }

    pub(crate) fn topics(&self) -> impl Iterator<Item = &Arc<Topic>> {
        self.current.values()
    }

    /// The topic of that name in `cut`. If there is none, it may have been removed
    /// ([`Namespace::removed_in`]).
    pub fn topic_at(&self, name: &str, cut: Cut) -> Option<Arc<Topic>> {
        // The newest id whose creation the cut admits: a name belongs to one topic at a time.
        let ids = self.names.get(name)?;
        ids.iter().rev().find_map(|id| {
            let versions = self.by_id.get(id)?;
            cut.admits(versions.first()?.0).then(|| version_at(versions, cut))
        })?
    }

    /// All topics in `cut`, by name. Removed topics are missing ([`Namespace::removed_in`]).
    pub(crate) fn topics_at(&self, cut: Cut) -> Vec<Arc<Topic>> {
        let mut topics: Vec<Arc<Topic>> =
            self.by_id.values().filter_map(|versions| version_at(versions, cut)).collect();
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        topics
    }

    /// Every topic that existed at some time between two cuts, by name and then by age. Removed
    /// topics are missing ([`Namespace::removed_in`], [`Namespace::removed_between`]).
    pub fn topics_between(&self, from: Cut, until: Cut) -> Vec<TopicDelta> {
        let between = |versions: &TopicVersions| TopicDelta::from_versions(versions, from, until);
        let mut topics: Vec<TopicDelta> = self.by_id.values().filter_map(between).collect();
        topics.sort_by(|a, b| (&a.last.name, a.last.created).cmp(&(&b.last.name, b.last.created)));
        topics
    }

    /// The number of partitions that a topic had in `cut`; 0 if it did not exist, or is removed.
    pub(crate) fn partition_count_at(&self, id: &TopicId, cut: Cut) -> usize {
        let topic = self.by_id.get(id).and_then(|versions| version_at(versions, cut));
        topic.map_or(0, |topic| topic.partitions.len())
    }

    /// The name of a topic that exists, or existed and is not removed.
    pub fn name_of(&self, id: &TopicId) -> Option<Arc<str>> {
        self.by_id.get(id)?.iter().find_map(|(_, topic)| Some(Arc::clone(&topic.as_ref()?.name)))
    }

    /// Every topic that exists, or existed and is not removed, in its last state, with the stamp of
    /// its deletion if it was deleted.
    pub(crate) fn topics_including_deleted(
        &self,
    ) -> impl Iterator<Item = (&Arc<Topic>, Option<Hlc>)> {
        self.by_id.values().filter_map(last_version)
    }

    /// The same for one topic.
    pub(crate) fn topic_including_deleted(
        &self,
        id: &TopicId,
    ) -> Option<(&Arc<Topic>, Option<Hlc>)> {
        self.by_id.get(id).and_then(last_version)
    }

    /// The stamp of a topic's deletion, if it was deleted and is not removed.
    pub(crate) fn deleted_at(&self, id: &TopicId) -> Option<Hlc> {
        let (stamp, topic) = self.by_id.get(id)?.last()?;
        topic.is_none().then_some(*stamp)
    }

    /// Gives the writer's thread the rules of the existing topics.
    pub(crate) fn restore_rules(&self, in_force: &ActiveRules) {
        for topic in self.current.values() {
            let Some(rule) = &topic.rule else { continue };
            topic.partitions.iter().for_each(|partition| in_force.restore(partition.log.id, rule));
        }
    }

    /// Applies `event` to the namespace. `log` returns the log of an id.
    pub(crate) fn apply(
        &mut self,
        event: &NamespaceEvent,
        stamp: Hlc,
        log: &LogSource,
    ) -> Result<(), String> {
        match event {
            NamespaceEvent::TopicCreated { name, id, first_log, partitions, configs } => {
                let name: Arc<str> = name.as_str().into();
                let config = TopicConfig::new(configs.clone()).map_err(|e| e.to_string())?;
                let mut topic = Topic::new(Arc::clone(&name), *id, stamp, config);
                topic.add_partitions(*partitions, *first_log, log)?;
                self.next_log = self.next_log.max(first_log + u64::from(*partitions));
                self.names.entry(name).or_default().push(*id);
                self.put_version(*id, stamp, Some(topic))
            }
            NamespaceEvent::TopicDeleted { id } => self.put_version(*id, stamp, None),
            NamespaceEvent::PartitionsAdded { id, first_log, more } => {
                let Some(topic) = self.topic_by_id(id).cloned() else { return Ok(()) };
                let mut changed = topic.copy();
                changed.add_partitions(*more, *first_log, log)?;
                self.next_log = self.next_log.max(first_log + u64::from(*more));
                self.put_version(*id, stamp, Some(changed))
            }
            NamespaceEvent::TopicConfigured { id, configs } => {
                let Some(topic) = self.topic_by_id(id).cloned() else { return Ok(()) };
                let config = TopicConfig::new(configs.clone()).map_err(|e| e.to_string())?;
                self.put_version(*id, stamp, Some(topic.with_config(config, stamp)))
            }
            NamespaceEvent::ProducerIdsGranted { below } => {
                self.producer_ids_below = self.producer_ids_below.max(*below);
                Ok(())
            }
            NamespaceEvent::PinSet { name, at, expires_ms, topics } => {
                let at = Cut::below(Hlc::from_bits(*at));
                self.pins.set(name, at, SysTime(*expires_ms), topics.as_deref(), stamp);
                Ok(())
            }
            NamespaceEvent::PinRemoved { name } => {
                self.pins.remove(name);
                Ok(())
            }
            NamespaceEvent::NamespaceRestated { .. } => Ok(()),
        }
    }

    fn put_version(&mut self, id: TopicId, stamp: Hlc, topic: Option<Topic>) -> Result<(), String> {
        let versions = self.by_id.entry(id).or_default();
        if let Some((_, Some(last))) = versions.last() {
            self.current.remove(&last.name);
            self.partition_count -= last.partitions.len();
        } else if topic.is_none() {
            // A journal may delete a topic twice; the second deletion has no effect.
            return Ok(());
        }
        if topic.is_none() {
            self.being_deleted.remove(&id);
        }
        let topic = topic.map(Arc::new);
        self.last_change = self.last_change.max(stamp);
        versions.push((stamp, topic.clone()));
        if let Some(topic) = topic {
            self.partition_count += topic.partitions.len();
            self.current.insert(Arc::clone(&topic.name), topic);
        }
        Ok(())
    }
}

/// A topic at both ends of a time range.
#[derive(Clone, Debug)]
pub struct TopicDelta {
    /// Its state at the beginning, if it existed.
    pub before: Option<Arc<Topic>>,
    /// Its last state within the range.
    pub last: Arc<Topic>,
    /// The stamp of its deletion, if it was deleted within the range.
    pub deleted: Option<Hlc>,
}

impl TopicDelta {
    fn from_versions(versions: &TopicVersions, from: Cut, until: Cut) -> Option<TopicDelta> {
        let below = |cut: Cut| versions.partition_point(|(stamp, _)| cut.admits(*stamp));
        let (from, until) = (below(from), below(until));
        let before = match from.checked_sub(1).map(|last| &versions[last].1) {
            // It was deleted earlier.
            Some(None) => return None,
            Some(Some(topic)) => Some(Arc::clone(topic)),
            None => None,
        };
        let (stamp, after) = versions[..until].last()?;
        let last = versions[..until].iter().rev().find_map(|(_, topic)| topic.clone())?;
        let deleted = after.is_none().then_some(*stamp);
        Some(TopicDelta { before, last, deleted })
    }
}

fn last_version(versions: &TopicVersions) -> Option<(&Arc<Topic>, Option<Hlc>)> {
    match &**versions {
        [.., (_, Some(topic)), (deleted, None)] => Some((topic, Some(*deleted))),
        [.., (_, Some(topic))] => Some((topic, None)),
        _ => None,
    }
}

fn version_at(versions: &TopicVersions, cut: Cut) -> Option<Arc<Topic>> {
    let count = versions.partition_point(|(stamp, _)| cut.admits(*stamp));
    versions[..count].last()?.1.clone()
}
