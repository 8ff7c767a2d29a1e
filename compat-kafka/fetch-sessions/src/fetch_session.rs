//! A fetch session (KIP-227): the partitions that a consumer reads, so that neither its requests
//! nor the responses repeat those in which nothing changes.
//!
//! A partition is *due* if a fetch may find something in it: records, an error, or other bounds
//! than those that the client has. Every other one is at its end and watched, and an append makes
//! it due. So a fetch costs what has changed, and little for what the session has.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use engine::LogWatcher;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::TopicName;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::protocol::StrBytes;
use kafka_topics::ReadableTopic;
use parking_lot::Mutex;
use tokio::sync::Notify;
use uuid::Uuid;

/// The number of a topic in its session.
pub type TopicNumber = u32;

/// The key of a topic in a session: its id or its name, as in the version of the session's
/// requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum TopicKey {
    Id(Uuid),
    Name(TopicName),
}

/// A topic of a request, or those of its partitions in a session that are due.
pub struct ResolvedFetchTopic {
    pub number: TopicNumber,
    pub topic: FetchTopic,
    pub readable: Result<ReadableTopic, ResponseError>,
}

/// The outcome of a fetch in a partition, without the records.
#[derive(Clone, Copy, Debug)]
pub struct FetchOutcome {
    pub topic: TopicNumber,
    pub partition: i32,
    /// True if the client has everything that it may read now.
    pub is_at_end: bool,
    pub high_watermark: i64,
    pub log_start: i64,
    pub has_records: bool,
    pub is_error: bool,
}

impl FetchOutcome {
    /// The bounds that the client has after the response; `None` after an error, so that the next
    /// response has them again.
    fn bounds(&self) -> Option<(i64, i64)> {
        (!self.is_error).then_some((self.high_watermark, self.log_start))
    }
}

pub struct FetchSession {
    /// The epoch of the next request.
    epoch: i32,
    is_by_id: bool,
    numbers: HashMap<TopicKey, TopicNumber>,
    topics: BTreeMap<TopicNumber, SessionTopic>,
    partition_count: usize,
    next_number: TopicNumber,
    /// Partitions that are due, in the order of their turns.
    due: BTreeSet<(u64, TopicNumber, i32)>,
    next_turn: u64,
    growth: Arc<GrowthSignal>,
}

struct SessionTopic {
    /// Its name or id, without partitions.
    topic: FetchTopic,
    readable: Result<ReadableTopic, ResponseError>,
    partitions: BTreeMap<i32, SessionPartition>,
}

struct SessionPartition {
    requested: FetchPartition,
    turn: u64,
    /// The high watermark and the log start in the last response that had the partition.
    sent: Option<(i64, i64)>,
    watch: Arc<PartitionWatch>,
}

/// The partitions that have grown since the last look, and a wake-up.
#[derive(Default)]
struct GrowthSignal {
    grown: Mutex<Vec<(TopicNumber, i32)>>,
    notify: Notify,
}

/// Makes a partition due when its log grows.
struct PartitionWatch {
    growth: Arc<GrowthSignal>,
    topic: TopicNumber,
    partition: i32,
    /// True if the log of the topic as it is now will call it. A log calls a watcher once.
    is_armed: AtomicBool,
}

impl LogWatcher for PartitionWatch {
    fn on_append(&self) {
        self.is_armed.store(false, Ordering::Release);
        self.growth.grown.lock().push((self.topic, self.partition));
        self.growth.notify.notify_one();
    }
}

/// The number of partitions that a name counts as: none, unless it is longer than names of topics
/// are.
fn name_partitions(name: &TopicName) -> usize {
    name.len() / 256
}

impl FetchSession {
    pub fn new(is_by_id: bool) -> FetchSession {
        FetchSession {
            epoch: 1,
            is_by_id,
            numbers: HashMap::new(),
            topics: BTreeMap::new(),
            partition_count: 0,
            next_number: 0,
            due: BTreeSet::new(),
            next_turn: 0,
            growth: Arc::default(),
        }
    }

    /// The number of its partitions. A long name of a topic counts as more.
    pub(crate) fn partition_count(&self) -> usize {
        self.partition_count
    }

    /// Begins a request of this epoch.
    pub(crate) fn begin(&mut self, epoch: i32, is_by_id: bool) -> Result<(), ResponseError> {
        if epoch != self.epoch {
            return Err(ResponseError::InvalidFetchSessionEpoch);
        }
        if is_by_id != self.is_by_id {
            return Err(ResponseError::FetchSessionTopicIdError);
        }
        self.epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        Ok(())
    }

    /// Adds and changes partitions, and removes those that are forgotten.
    pub fn update(&mut self, topics: Vec<FetchTopic>, forgotten: &[ForgottenTopic]) {
        for topic in topics {
            self.update_topic(topic);
        }
        for topic in forgotten {
            self.forget(topic);
        }
    }

    fn key(&self, id: Uuid, name: &TopicName) -> TopicKey {
        if self.is_by_id { TopicKey::Id(id) } else { TopicKey::Name(name.clone()) }
    }

    fn update_topic(&mut self, mut topic: FetchTopic) {
        let partitions = std::mem::take(&mut topic.partitions);
        if partitions.is_empty() {
            return;
        }
        // Copy the topic: its name and its unknown fields would keep the request's whole frame.
        let name = TopicName(StrBytes::from_string(topic.topic.to_string()));
        topic = FetchTopic::default().with_topic(name).with_topic_id(topic.topic_id);
        let key = self.key(topic.topic_id, &topic.topic);
        if !self.numbers.contains_key(&key) {
            self.partition_count += name_partitions(&topic.topic);
        }
        let next_number = &mut self.next_number;
        let number = *self.numbers.entry(key).or_insert_with(|| {
            *next_number += 1;
            *next_number
        });
        let session_topic = self.topics.entry(number).or_insert_with(|| SessionTopic {
            topic,
            // It is looked up before anything is read.
            readable: Err(ResponseError::UnknownTopicOrPartition),
            partitions: BTreeMap::new(),
        });
        for mut requested in partitions {
            requested.unknown_tagged_fields.clear();
            let index = requested.partition;
            let turn = match session_topic.partitions.get_mut(&index) {
                Some(partition) => {
                    partition.requested = requested;
                    partition.turn
                }
                None => {
                    let turn = self.next_turn;
                    self.next_turn += 1;
                    self.partition_count += 1;
                    let watch = Arc::new(PartitionWatch {
                        growth: Arc::clone(&self.growth),
                        topic: number,
                        partition: index,
                        is_armed: AtomicBool::new(false),
                    });
                    let partition = SessionPartition { requested, turn, sent: None, watch };
                    session_topic.partitions.insert(index, partition);
                    turn
                }
            };
            self.due.insert((turn, number, index));
        }
    }

    fn forget(&mut self, forgotten: &ForgottenTopic) {
        let key = self.key(forgotten.topic_id, &forgotten.topic);
        let Some(number) = self.numbers.get(&key).copied() else { return };
        let Some(topic) = self.topics.get_mut(&number) else { return };
        for index in &forgotten.partitions {
            if let Some(partition) = topic.partitions.remove(index) {
                self.due.remove(&(partition.turn, number, *index));
                self.partition_count -= 1;
            }
        }
        if topic.partitions.is_empty() {
            self.partition_count -= name_partitions(&topic.topic.topic);
            self.topics.remove(&number);
            self.numbers.remove(&key);
        }
    }

    /// The numbers of its topics.
    pub fn topic_numbers(&self) -> Vec<TopicNumber> {
        self.topics.keys().copied().collect()
    }

    /// A topic as requests name it.
    pub fn topic(&self, number: TopicNumber) -> Option<&FetchTopic> {
        self.topics.get(&number).map(|topic| &topic.topic)
    }

    /// Takes what a topic's name or id stands for now. Its partitions are due if that has changed,
    /// or if their bounds are others than the client has.
    pub fn refresh(&mut self, number: TopicNumber, readable: Result<ReadableTopic, ResponseError>) {
        let Some(topic) = self.topics.get_mut(&number) else { return };
        let is_same = match (&topic.readable, &readable) {
            (Ok(ReadableTopic::Present(before)), Ok(ReadableTopic::Present(now))) => {
                Arc::ptr_eq(before, now)
            }
            // A moment is cheap to resolve, and does not grow.
            _ => false,
        };
        let present = match &readable {
            Ok(ReadableTopic::Present(now)) if is_same => Some(Arc::clone(now)),
            _ => None,
        };
        for (index, partition) in &topic.partitions {
            if !is_same {
                // The watched log may be another topic's.
                partition.watch.is_armed.store(false, Ordering::Release);
            }
            let is_sent = present.as_ref().is_some_and(|present| {
                let start = usize::try_from(*index)
                    .ok()
                    .and_then(|index| present.partitions.get(index))
                    .map(|partition| partition.start().0 as i64);
                partition.sent.map(|sent| sent.1) == start
            });
            if !is_sent {
                self.due.insert((partition.turn, number, *index));
            }
        }
        topic.readable = readable;
    }

    /// The partitions that are due, in their turns. From now on the session is woken when they
    /// grow: the caller reads them afterwards, so nothing is missed in between.
    pub fn take_due(&mut self) -> Vec<ResolvedFetchTopic> {
        for (number, index) in std::mem::take(&mut *self.growth.grown.lock()) {
            let topic = self.topics.get(&number);
            if let Some(partition) = topic.and_then(|topic| topic.partitions.get(&index)) {
                self.due.insert((partition.turn, number, index));
            }
        }
        let mut topics: Vec<ResolvedFetchTopic> = Vec::new();
        for (_, number, index) in &self.due {
            let Some(topic) = self.topics.get(number) else { continue };
            let Some(partition) = topic.partitions.get(index) else { continue };
            partition.arm(&topic.readable);
            match topics.last_mut().filter(|last| last.number == *number) {
                Some(last) => last.topic.partitions.push(partition.requested.clone()),
                None => {
                    let partitions = vec![partition.requested.clone()];
                    topics.push(ResolvedFetchTopic {
                        number: *number,
                        topic: topic.topic.clone().with_partitions(partitions),
                        readable: topic.readable.clone(),
                    });
                }
            }
        }
        topics
    }

    /// True if a response has a partition: the client learns something from it.
    pub fn is_news(&self, outcome: &FetchOutcome) -> bool {
        let topic = self.topics.get(&outcome.topic);
        let partition = topic.and_then(|topic| topic.partitions.get(&outcome.partition));
        let sent = partition.and_then(|partition| partition.sent);
        outcome.has_records || outcome.is_error || sent != outcome.bounds()
    }

    /// Partitions in which nothing was found, and of which the client has the bounds, are not due
    /// until they grow.
    pub fn remove_quiet(&mut self, outcomes: &[FetchOutcome]) {
        for outcome in outcomes {
            if !outcome.is_at_end || self.is_news(outcome) {
                continue;
            }
            let topic = self.topics.get(&outcome.topic);
            let partition = topic.and_then(|topic| topic.partitions.get(&outcome.partition));
            if let Some(turn) = partition.map(|partition| partition.turn) {
                self.due.remove(&(turn, outcome.topic, outcome.partition));
            }
        }
    }

    /// Notes what a response has. Partitions whose records it has go behind all others, so that
    /// each has its turn.
    pub fn mark_sent(&mut self, outcomes: &[FetchOutcome]) {
        for outcome in outcomes {
            let topic = self.topics.get_mut(&outcome.topic);
            let partition = topic.and_then(|topic| topic.partitions.get_mut(&outcome.partition));
            let Some(partition) = partition else { continue };
            partition.sent = outcome.bounds();
            if outcome.has_records {
                self.due.remove(&(partition.turn, outcome.topic, outcome.partition));
                partition.turn = self.next_turn;
                self.next_turn += 1;
                // Its records come again until the client asks for the next ones.
                self.due.insert((partition.turn, outcome.topic, outcome.partition));
            }
        }
        self.remove_quiet(outcomes);
    }

    /// Waits until a partition has grown since the last [`FetchSession::take_due`].
    pub async fn grown(&self) {
        self.growth.notify.notified().await;
    }
}

impl SessionPartition {
    /// Has the partition's log call the watch when it grows. The past does not grow.
    fn arm(&self, readable: &Result<ReadableTopic, ResponseError>) {
        let Ok(ReadableTopic::Present(topic)) = readable else { return };
        let Ok(partition) = topic.partition(self.requested.partition) else { return };
        if !self.watch.is_armed.swap(true, Ordering::AcqRel) {
            let watch: Arc<dyn LogWatcher> = Arc::clone(&self.watch) as Arc<dyn LogWatcher>;
            partition.log.watch(&watch);
        }
    }
}

impl std::fmt::Debug for FetchSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FetchSession({} partitions, {} due)", self.partition_count, self.due.len())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// A session takes no more memory for a request than is counted.
    #[test]
    fn a_session_keeps_nothing_of_a_request_and_counts_long_names() {
        let mut session = FetchSession::new(false);
        let frame = Bytes::from(vec![b'a'; 10_000]);
        let name = TopicName(StrBytes::try_from(frame.slice(..)).unwrap());
        let mut partition = FetchPartition::default();
        partition.unknown_tagged_fields.insert(99, frame.slice(..5000));
        let mut topic = FetchTopic::default().with_topic(name.clone());
        topic.unknown_tagged_fields.insert(99, frame.slice(..5000));
        for _ in 0..2 {
            session.update(vec![topic.clone().with_partitions(vec![partition.clone()])], &[]);
            assert_eq!(session.partition_count(), 1 + 10_000 / 256);
        }
        let forgotten = ForgottenTopic::default().with_topic(name).with_partitions(vec![0]);
        drop((topic, partition));
        session.forget(&forgotten);
        assert_eq!(session.partition_count(), 0);
        session.update_topic(
            FetchTopic::default()
                .with_topic(forgotten.topic)
                .with_partitions(vec![FetchPartition::default()]),
        );
        assert!(frame.is_unique(), "the frame is free");
        assert_eq!(session.take_due().len(), 1);
    }
}
