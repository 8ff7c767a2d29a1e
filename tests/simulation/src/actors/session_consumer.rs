//! A consumer with a fetch session (KIP-227): many partitions, of which a response has those in
//! which something is new. It checks that nothing is left out: if a session answers that there is
//! nothing, it has given everything that could be read when it was asked.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::{FetchRequest, MetadataRequest};
use kafka_records::BatchIterator;
use testkit::requests::topic_name;
use testkit::rng::SeededRng;
use uuid::Uuid;

use super::{COMPACTED_TOPIC, STANDING_TOPICS, TRANSIENT_TOPICS, pause};
use crate::audit::read_records;
use crate::facts::SimFact;
use crate::wire::SimClient;
use crate::world::SimWorld;

const FETCH: i16 = 12;
const METADATA: i16 = 12;
const OFFSET_OUT_OF_RANGE: i16 = 1;
/// The most answers until a session has nothing more.
const ANSWERS_MAX: usize = 200;

/// A topic and a partition.
type Place = (&'static str, u32);

/// The ends of partitions that exist, and the ids of their topics.
#[derive(Debug, PartialEq, Eq)]
struct ReadableEnds {
    topics: BTreeMap<&'static str, Uuid>,
    ends: BTreeMap<Place, i64>,
}

pub(crate) struct SessionConsumer {
    world: Rc<SimWorld>,
    who: String,
    client: SimClient,
    /// Asks for the ends, and has no session.
    other: SimClient,
    rng: SeededRng,
    /// 0 or 1, as in Kafka: whether it reads committed records alone.
    isolation: i8,
    /// The partitions that it reads, and the offset of the next record of each.
    positions: BTreeMap<Place, i64>,
    /// The id and the next epoch of the session.
    session: Option<(i32, i32)>,
    /// The partitions of the session, with the offsets that it was told.
    told: BTreeMap<Place, i64>,
}

/// The contents of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AnswerContents {
    batches: usize,
    errors: usize,
}

impl SessionConsumer {
    pub(crate) fn new(world: &Rc<SimWorld>, nth: usize, mut rng: SeededRng) -> SessionConsumer {
        SessionConsumer {
            world: Rc::clone(world),
            who: format!("session_consumer {nth}"),
            client: SimClient::new(world, rng.fork()),
            other: SimClient::new(world, rng.fork()),
            rng,
            isolation: (nth % 2) as i8,
            positions: BTreeMap::new(),
            session: None,
            told: BTreeMap::new(),
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            pause(&mut self.rng, 5, 150).await;
            self.change();
            if let Ok(Err(why)) = self.round().await {
                self.world.fail(&self.who, &why);
                return;
            }
        }
    }

    /// Reads other partitions, goes on elsewhere in one, or does without its session or its
    /// connection.
    fn change(&mut self) {
        let standing = STANDING_TOPICS.iter().map(|(name, partitions, _)| (*name, *partitions));
        let topics = standing.chain(TRANSIENT_TOPICS.map(|name| (name, 2)));
        for (topic, partitions) in topics {
            for partition in 0..partitions {
                if self.rng.one_in(10) {
                    self.positions.remove(&(topic, partition));
                } else if self.rng.one_in(3) {
                    self.positions.entry((topic, partition)).or_insert(0);
                }
            }
        }
        for position in self.positions.values_mut() {
            if self.rng.one_in(50) {
                *position = (*position - self.rng.between(0, 12) as i64).max(0);
            }
        }
        if self.rng.one_in(20) {
            self.session = None;
        }
        if self.rng.one_in(20) {
            self.client.disconnect();
        }
    }

    /// Reads until there is nothing more, and checks that there is not.
    async fn round(&mut self) -> std::io::Result<Result<(), String>> {
        let life = self.world.incarnation.get();
        let before = self.readable_ends().await?;
        let mut quiet = false;
        for _ in 0..ANSWERS_MAX {
            match self.fetch().await? {
                Err(why) => return Ok(Err(why)),
                Ok(Some(contents)) if contents == AnswerContents::default() => {
                    quiet = true;
                    break;
                }
                Ok(_) => {}
            }
        }
        if !quiet {
            return Ok(Ok(()));
        }
        let after = self.readable_ends().await?;
        if life != self.world.incarnation.get() {
            return Ok(Ok(()));
        }
        let mut seen = 0;
        for (place, end) in &before.ends {
            let is_same = after.topics.get(place.0).is_some_and(|id| before.topics[place.0] == *id);
            if !is_same {
                continue;
            }
            let Some(position) = self.positions.get(place) else { continue };
            if position < end && after.ends.contains_key(place) {
                let why = format!(
                    "the session {:?} has nothing new, and {place:?} ends at {end}, and not at {position}",
                    self.session
                );
                return Ok(Err(why));
            }
            seen += 1;
        }
        self.world.note(&self.who, &format!("{seen} partitions have nothing new"));
        if seen > 1 && self.session.is_some_and(|(_, epoch)| epoch > 1) {
            self.world.report(&SimFact::SessionQuiet);
        }
        Ok(Ok(()))
    }

    /// One request of the session. `None` if there was no answer to it, and it begins another one.
    async fn fetch(&mut self) -> std::io::Result<Result<Option<AnswerContents>, String>> {
        let (session_id, epoch) = self.session.unwrap_or((0, 0));
        let is_whole = epoch == 0;
        let told = if is_whole { BTreeMap::new() } else { std::mem::take(&mut self.told) };
        let news = self.positions.iter().filter(|(place, at)| told.get(*place) != Some(*at));
        let forgotten = told.keys().filter(|place| !self.positions.contains_key(*place));
        let request = FetchRequest::default()
            .with_max_wait_ms(if self.rng.one_in(8) { 40 } else { 0 })
            .with_min_bytes(1)
            .with_max_bytes(if self.rng.one_in(2) { 300 } else { 1 << 20 })
            .with_isolation_level(self.isolation)
            .with_session_id(session_id)
            .with_session_epoch(epoch)
            .with_topics(fetch_topics(news))
            .with_forgotten_topics_data(forgotten_topics(forgotten));
        // Until there is an answer, nobody knows what the session has.
        self.session = None;
        let answer = self.client.call(FETCH, &request).await?;
        if answer.error_code != 0 {
            return Ok(Ok(None));
        }
        self.session = match (is_whole, answer.session_id) {
            (true, 0) => None,
            (true, id) => Some((id, 1)),
            (false, _) => Some((session_id, epoch + 1)),
        };
        self.told = self.positions.clone();
        let mut contents = AnswerContents::default();
        for topic in &answer.responses {
            for partition in &topic.partitions {
                let place = self.positions.keys().find(|(name, index)| {
                    *name == &**topic.topic && *index as i32 == partition.partition_index
                });
                let Some(place) = place.copied() else {
                    let index = partition.partition_index;
                    return Ok(Err(format!("nobody asked for {}/{index}", &**topic.topic)));
                };
                if let Err(why) = self.take(place, partition, &mut contents) {
                    return Ok(Err(format!("{place:?}: {why}")));
                }
            }
        }
        Ok(Ok(Some(contents)))
    }

    fn take(
        &mut self,
        place: Place,
        answer: &PartitionData,
        contents: &mut AnswerContents,
    ) -> Result<(), String> {
        if answer.error_code == OFFSET_OUT_OF_RANGE {
            // As `auto.offset.reset=earliest` does.
            self.positions.insert(place, answer.log_start_offset.max(0));
        }
        if answer.error_code != 0 {
            // A topic that does not exist is no news, however often it is said.
            contents.errors += usize::from(answer.error_code == OFFSET_OUT_OF_RANGE);
            return Ok(());
        }
        let position = self.positions.get_mut(&place).expect("it was asked for");
        for batch in BatchIterator::new(&answer.records.clone().unwrap_or_default()) {
            let (header, batch) = batch.map_err(|error| error.to_string())?;
            let next = header.last_offset() + 1;
            if next <= *position {
                return Err(format!("a batch ends at {next}, below {position}"));
            }
            if header.base_offset > *position && place.0 != COMPACTED_TOPIC {
                return Err(format!("{position} is missing before {}", header.base_offset));
            }
            *position = next;
            contents.batches += 1;
            if header.is_control() {
                continue;
            }
            let records = read_records(&Bytes::copy_from_slice(batch))?;
            if let Some(record) = records.first() {
                self.world.report(&SimFact::Consumed { batch: record.batch });
            }
        }
        Ok(())
    }

    /// Reads the end up to which each partition can be read, without a session.
    async fn readable_ends(&mut self) -> std::io::Result<ReadableEnds> {
        let names: std::collections::BTreeSet<_> =
            self.positions.keys().map(|(name, _)| *name).collect();
        let topic = |name| MetadataRequestTopic::default().with_name(Some(topic_name(name)));
        let request = MetadataRequest::default()
            .with_topics(Some(names.iter().map(|name| topic(name)).collect()));
        let answer = self.other.call(METADATA, &request).await?;
        let mut topics = BTreeMap::new();
        for topic in answer.topics.iter().filter(|topic| topic.error_code == 0) {
            let name = topic.name.as_ref().map(|name| &***name);
            if let Some(name) = names.iter().find(|known| name == Some(**known)) {
                topics.insert(*name, topic.topic_id);
            }
        }
        let request = FetchRequest::default()
            .with_max_bytes(1)
            .with_isolation_level(self.isolation)
            .with_topics(fetch_topics(self.positions.iter()));
        let answer = self.other.call(FETCH, &request).await?;
        let mut ends = BTreeMap::new();
        for topic in &answer.responses {
            for partition in topic.partitions.iter().filter(|one| one.high_watermark >= 0) {
                let end = match self.isolation {
                    0 => partition.high_watermark,
                    _ => partition.last_stable_offset,
                };
                let index = partition.partition_index as u32;
                if let Some((name, _)) = topics.get_key_value(&**topic.topic) {
                    ends.insert((*name, index), end);
                }
            }
        }
        Ok(ReadableEnds { topics, ends })
    }
}

fn fetch_topics<'a>(places: impl Iterator<Item = (&'a Place, &'a i64)>) -> Vec<FetchTopic> {
    let mut topics: BTreeMap<&str, Vec<FetchPartition>> = BTreeMap::new();
    for ((topic, partition), position) in places {
        let partition = FetchPartition::default()
            .with_partition(*partition as i32)
            .with_fetch_offset(*position)
            .with_partition_max_bytes(1 << 20);
        topics.entry(topic).or_default().push(partition);
    }
    let topic = |(name, partitions)| {
        FetchTopic::default().with_topic(topic_name(name)).with_partitions(partitions)
    };
    topics.into_iter().map(topic).collect()
}

fn forgotten_topics<'a>(places: impl Iterator<Item = &'a Place>) -> Vec<ForgottenTopic> {
    let mut topics: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in places {
        topics.entry(topic).or_default().push(*partition as i32);
    }
    let topic = |(name, partitions)| {
        ForgottenTopic::default().with_topic(topic_name(name)).with_partitions(partitions)
    };
    topics.into_iter().map(topic).collect()
}
