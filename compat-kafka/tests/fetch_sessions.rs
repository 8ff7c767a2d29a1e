//! Fetch sessions (KIP-227) on the wire.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use compat_kafka::KafkaOptions;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic, ForgottenTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::{FetchRequest, FetchResponse};
use kafka_records::BatchIterator;
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaConnection, TestKafkaServer, one_record_batch};
use testkit::requests::{produce_request, topic_name};
use testkit::rng::SeededRng;

const NO_WAIT: Duration = Duration::ZERO;
const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(20);
/// By name; [`BY_ID`] and later versions name topics by id.
const BY_NAME: i16 = 12;
const BY_ID: i16 = 13;

async fn server(options: KafkaOptions) -> TestKafkaServer {
    TestKafkaServer::start(Arc::new(MemoryDisk::new()), options, 64 << 20).await
}

async fn create(server: &TestKafkaServer, name: &str, id: u8, partitions: u32) {
    let created = server.engine.topics().create(name, partitions, BTreeMap::new(), [id; 16], false);
    created.await.unwrap();
}

async fn append(connection: &mut TestKafkaConnection, topic: &str, partition: i32, value: &[u8]) {
    let request = produce_request(topic, partition, &one_record_batch(value));
    let answer = connection.ask(9, &request).await.unwrap();
    assert_eq!(answer.responses[0].partition_responses[0].error_code, 0);
}

/// A consumer with a session, as Java's client has one.
struct SessionClient {
    connection: TestKafkaConnection,
    version: i16,
    session: (i32, i32),
    max_bytes: i32,
}

impl SessionClient {
    async fn new(server: &TestKafkaServer, version: i16) -> SessionClient {
        let connection = server.connect().await;
        SessionClient { connection, version, session: (0, 0), max_bytes: 1 << 20 }
    }

    /// Sends a request of the session, and takes its id and epoch on.
    async fn ask(
        &mut self,
        topics: Vec<FetchTopic>,
        forgotten: Vec<ForgottenTopic>,
        wait: Duration,
    ) -> FetchResponse {
        let request = FetchRequest::default()
            .with_session_id(self.session.0)
            .with_session_epoch(self.session.1)
            .with_max_wait_ms(wait.as_millis() as i32)
            .with_min_bytes(1)
            .with_max_bytes(self.max_bytes)
            .with_topics(topics)
            .with_forgotten_topics_data(forgotten);
        let answer = self.connection.ask(self.version, &request).await.unwrap();
        if answer.error_code == 0 {
            let is_over = answer.session_id == 0;
            self.session = if is_over { (0, 0) } else { (answer.session_id, self.session.1 + 1) };
        }
        answer
    }

    /// The response to a request about nothing new: the partitions by index.
    async fn poll(&mut self, wait: Duration) -> Vec<(i32, PartitionData)> {
        let answer = self.ask(Vec::new(), Vec::new(), wait).await;
        assert_eq!(answer.error_code, 0);
        partitions(answer)
    }
}

fn partitions(answer: FetchResponse) -> Vec<(i32, PartitionData)> {
    let found = answer.responses.into_iter().flat_map(|topic| topic.partitions);
    found.map(|partition| (partition.partition_index, partition)).collect()
}

fn indexes(found: &[(i32, PartitionData)]) -> Vec<i32> {
    found.iter().map(|(index, _)| *index).collect()
}

/// A topic of a request, by name and by id.
fn topic(name: &str, id: u8, offsets: impl IntoIterator<Item = (i32, i64)>) -> FetchTopic {
    let partition = |(index, offset)| {
        FetchPartition::default()
            .with_partition(index)
            .with_fetch_offset(offset)
            .with_partition_max_bytes(1 << 20)
    };
    FetchTopic::default()
        .with_topic(topic_name(name))
        .with_topic_id(uuid::Uuid::from_bytes([id; 16]))
        .with_partitions(offsets.into_iter().map(partition).collect())
}

fn forgotten(name: &str, id: u8, partitions: Vec<i32>) -> ForgottenTopic {
    ForgottenTopic::default()
        .with_topic(topic_name(name))
        .with_topic_id(uuid::Uuid::from_bytes([id; 16]))
        .with_partitions(partitions)
}

fn records(data: &PartitionData) -> usize {
    data.records.as_ref().map_or(0, Bytes::len)
}

#[tokio::test]
async fn a_response_has_only_the_partitions_that_changed() {
    for version in [7, 11, BY_NAME, BY_ID, 18] {
        let server = server(KafkaOptions::default()).await;
        create(&server, "t", 1, 4).await;
        let mut writer = server.connect().await;
        append(&mut writer, "t", 2, b"before").await;
        let mut client = SessionClient::new(&server, version).await;
        let first =
            client.ask(vec![topic("t", 1, (0..4).map(|index| (index, 0)))], vec![], NO_WAIT).await;
        assert!(first.session_id > 0, "version {version}");
        let first = partitions(first);
        assert_eq!(indexes(&first), [0, 1, 2, 3], "the first response has all");
        assert!(records(&first[2].1) > 0);
        // The client has not said that it has the record.
        assert_eq!(indexes(&client.poll(NO_WAIT).await), [2]);
        let update = vec![topic("t", 1, [(2, 1)])];
        assert!(partitions(client.ask(update, vec![], NO_WAIT).await).is_empty());
        for _ in 0..3 {
            assert!(client.poll(NO_WAIT).await.is_empty());
        }
        append(&mut writer, "t", 3, b"one").await;
        append(&mut writer, "t", 0, b"two").await;
        let both = client.poll(NO_WAIT).await;
        assert_eq!(indexes(&both), [0, 3], "in the order of the session");
        assert!(both.iter().all(|(_, data)| records(data) > 0 && data.high_watermark == 1));
        // One moves on, one is forgotten.
        let (update, gone) = (vec![topic("t", 1, [(3, 1)])], vec![forgotten("t", 1, vec![0])]);
        assert!(partitions(client.ask(update, gone, NO_WAIT).await).is_empty());
        append(&mut writer, "t", 0, b"three").await;
        assert!(client.poll(NO_WAIT).await.is_empty(), "it was forgotten");
        // It is woken by an append, also by a second one to the same partition.
        for offset in 1..3 {
            let (found, ()) = tokio::join!(client.poll(LONG), append(&mut writer, "t", 1, b"four"));
            assert_eq!(indexes(&found), [1]);
            let update = vec![topic("t", 1, [(1, offset)])];
            assert!(partitions(client.ask(update, vec![], NO_WAIT).await).is_empty());
        }
        let counts = server.kafka.fetch_session_counts();
        assert_eq!((counts.sessions, counts.partitions), (1, 3));
        // All are forgotten: the session ends.
        let gone = vec![forgotten("t", 1, vec![1, 2, 3])];
        assert_eq!(client.ask(vec![], gone, NO_WAIT).await.session_id, 0);
        assert_eq!(server.kafka.fetch_session_counts().sessions, 0);
    }
}

#[tokio::test]
async fn log_starts_deletions_and_new_partitions_are_told() {
    for version in [BY_NAME, BY_ID] {
        let server = server(KafkaOptions::default()).await;
        create(&server, "t", 1, 2).await;
        let mut writer = server.connect().await;
        append(&mut writer, "t", 0, b"one").await;
        append(&mut writer, "t", 0, b"two").await;
        let mut client = SessionClient::new(&server, version).await;
        let all = vec![topic("t", 1, [(0, 2), (1, 0), (2, 0)])];
        let first = partitions(client.ask(all, vec![], NO_WAIT).await);
        let unknown = ResponseError::UnknownTopicOrPartition.code();
        assert_eq!((indexes(&first), first[2].1.error_code), (vec![0, 1, 2], unknown));
        // A partition that fails is in each response, and at once.
        assert_eq!(indexes(&client.poll(LONG).await), [2]);
        server.engine.topics().add_partitions("t", 3, false).await.unwrap();
        let found = client.poll(NO_WAIT).await;
        assert_eq!((indexes(&found), found[0].1.error_code), (vec![2], 0));
        assert!(client.poll(NO_WAIT).await.is_empty());

        let present = server.engine.topics().named("t").unwrap();
        server.engine.topics().delete_records(&present, 0, 1).await.unwrap();
        let found = client.poll(NO_WAIT).await;
        assert_eq!((indexes(&found), found[0].1.log_start_offset), (vec![0], 1));
        assert!(client.poll(NO_WAIT).await.is_empty());
        server.engine.topics().delete_records(&present, 0, 2).await.unwrap();
        // It is no reason to respond before the time is over.
        let found = client.poll(SHORT).await;
        assert_eq!((indexes(&found), found[0].1.log_start_offset), (vec![0], 2));

        server.engine.topics().delete(present.id).await.unwrap();
        let gone = match version {
            BY_ID => ResponseError::UnknownTopicId,
            _ => ResponseError::UnknownTopicOrPartition,
        };
        for _ in 0..2 {
            let found = client.poll(LONG).await;
            assert_eq!(indexes(&found), [0, 1, 2]);
            assert!(found.iter().all(|(_, data)| data.error_code == gone.code()));
        }
        if version == BY_NAME {
            // Another topic of that name.
            create(&server, "t", 9, 3).await;
            let found = client.poll(NO_WAIT).await;
            let error = ResponseError::OffsetOutOfRange.code();
            assert_eq!((indexes(&found), found[0].1.error_code), (vec![0, 1, 2], error));
            // And once more, with nothing in between and the same bounds.
            let update = vec![topic("t", 9, [(0, 0), (1, 0), (2, 0)])];
            client.ask(update, vec![], NO_WAIT).await;
            assert!(client.poll(NO_WAIT).await.is_empty());
            server.engine.topics().delete([9; 16]).await.unwrap();
            create(&server, "t", 10, 3).await;
            let (found, ()) =
                tokio::join!(client.poll(LONG), append(&mut writer, "t", 1, b"in the new one"));
            assert_eq!(indexes(&found), [1]);
        }
    }
}

#[tokio::test]
async fn a_session_is_refused_ended_and_replaced_as_in_kafka() {
    let server = server(KafkaOptions { fetch_sessions_max: 1, ..KafkaOptions::default() }).await;
    create(&server, "t", 1, 1).await;
    let all = || vec![topic("t", 1, [(0, 0)])];
    let mut client = SessionClient::new(&server, BY_NAME).await;
    let asked = async |client: &mut SessionClient, session: (i32, i32), topics| {
        client.session = session;
        let answer = client.ask(topics, vec![], NO_WAIT).await;
        (answer.error_code, answer.session_id)
    };
    let (error, id) = asked(&mut client, (0, 0), all()).await;
    assert!(error == 0 && id > 0);
    // Nobody else gets one.
    let mut other = SessionClient::new(&server, BY_NAME).await;
    assert_eq!(asked(&mut other, (0, 0), all()).await, (0, 0));
    let not_found = ResponseError::FetchSessionIdNotFound.code();
    let bad_epoch = ResponseError::InvalidFetchSessionEpoch.code();
    let by_id = ResponseError::FetchSessionTopicIdError.code();
    assert_eq!(asked(&mut other, (id ^ 1, 1), vec![]).await, (not_found, 0));
    assert_eq!(asked(&mut other, (0, 1), vec![]).await, (not_found, 0));
    for epoch in [2, 7, i32::MAX, i32::MIN, -2] {
        assert_eq!(asked(&mut client, (id, epoch), vec![]).await, (bad_epoch, 0), "{epoch}");
    }
    other.version = BY_ID;
    assert_eq!(asked(&mut other, (id, 1), vec![]).await, (by_id, 0));
    // It survives its connection, and goes on where it was.
    let mut client = SessionClient::new(&server, BY_NAME).await;
    assert_eq!(asked(&mut client, (id, 1), vec![]).await, (0, id));
    assert_eq!(asked(&mut client, (id, 1), vec![]).await, (bad_epoch, 0), "it was used");
    assert_eq!(asked(&mut client, (id, 2), vec![]).await, (0, id));
    // A new one takes its place, and then none.
    let (error, next) = asked(&mut client, (id, 0), all()).await;
    assert!(error == 0 && next > 0);
    assert_eq!(server.kafka.fetch_session_counts().sessions, 1);
    assert_eq!(asked(&mut client, (next, -1), all()).await, (0, 0));
    assert_eq!(server.kafka.fetch_session_counts().sessions, 0);
    assert_eq!(asked(&mut client, (next, 1), vec![]).await, (not_found, 0));
    // Nothing to fetch opens none.
    assert_eq!(asked(&mut client, (0, 0), vec![]).await, (0, 0));
}

/// Every partition has its turn, however little fits into a response (KIP-74).
#[tokio::test]
async fn no_partition_waits_for_ever_behind_others() {
    let server = server(KafkaOptions::default()).await;
    create(&server, "t", 1, 5).await;
    let mut writer = server.connect().await;
    for round in 0..4 {
        for partition in 0..5 {
            append(&mut writer, "t", partition, &[round; 1000]).await;
        }
    }
    let mut client = SessionClient::new(&server, BY_NAME).await;
    client.max_bytes = 1;
    let mut next = [0; 5];
    let mut seen = Vec::new();
    let mut update = vec![topic("t", 1, (0..5).map(|index| (index, 0)))];
    for _ in 0..20 {
        let answer = client.ask(std::mem::take(&mut update), vec![], NO_WAIT).await;
        let found = partitions(answer);
        let with_records: Vec<_> = found.iter().filter(|(_, data)| records(data) > 0).collect();
        assert_eq!(with_records.len(), 1, "one batch fits");
        let index = with_records[0].0;
        next[index as usize] += 1;
        seen.push(index);
        update = vec![topic("t", 1, [(index, next[index as usize])])];
    }
    assert_eq!(next, [4; 5]);
    let turns = seen.chunks(5).all(|turn| (0..5).all(|index| turn.contains(&index)));
    assert!(turns, "each once in five responses: {seen:?}");
}

/// A moment of a topic in a session, beside the topic itself.
#[tokio::test]
async fn the_past_can_be_in_a_session() {
    let server = server(KafkaOptions::default()).await;
    create(&server, "t", 1, 1).await;
    let mut writer = server.connect().await;
    append(&mut writer, "t", 0, b"then").await;
    server.clock.advance(Duration::from_secs(2));
    let then = format!("t.__at.s{}", server.engine.wall_now().0 - 1000);
    append(&mut writer, "t", 0, b"now").await;
    let mut client = SessionClient::new(&server, BY_NAME).await;
    let both = vec![topic(&then, 0, [(0, 0)]), topic("t", 1, [(0, 0)])];
    let answer = client.ask(both, vec![], NO_WAIT).await;
    let ends: Vec<i64> =
        answer.responses.iter().map(|topic| topic.partitions[0].high_watermark).collect();
    assert_eq!(ends, [1, 2]);
    let update = vec![topic(&then, 0, [(0, 1)]), topic("t", 1, [(0, 2)])];
    assert!(partitions(client.ask(update, vec![], NO_WAIT).await).is_empty());
    append(&mut writer, "t", 0, b"later").await;
    let answer = client.ask(vec![], vec![], NO_WAIT).await;
    assert_eq!(answer.responses.len(), 1);
    assert_eq!(&*answer.responses[0].topic.0, "t");
}

/// The next offset that a client reads in a partition, and the bounds that it was told.
type ClientPosition = (i64, Option<(i64, i64)>);

/// A client knows at the end what the log has, whatever happened in between; and a response never
/// tells what the client has already.
#[tokio::test]
async fn random_sessions_miss_nothing() {
    for seed in 0..20 {
        let mut rng = SeededRng::new(seed);
        let server = server(KafkaOptions::default()).await;
        create(&server, "a", 1, 6).await;
        create(&server, "b", 2, 3).await;
        let places: Vec<(&str, u8, i32)> = (0..6)
            .map(|index| ("a", 1, index))
            .chain((0..3).map(|index| ("b", 2, index)))
            .collect();
        let mut writer = server.connect().await;
        let version = if rng.below(2) == 0 { BY_NAME } else { BY_ID };
        let mut client = SessionClient::new(&server, version).await;
        client.max_bytes = [1, 3000, 1 << 20][rng.below(3) as usize];
        // The partitions that are read, with the next offset, and the bounds that the client was
        // told.
        let mut read: BTreeMap<(String, i32), ClientPosition> = BTreeMap::new();
        let mut changed: Vec<(&str, u8, i32)> = places.clone();
        let mut steps = 0;
        loop {
            let is_over = steps >= 150;
            steps += 1;
            let mut forget = Vec::new();
            if !is_over {
                let (name, id, index) = places[rng.below(places.len() as u64) as usize];
                match rng.below(10) {
                    0..6 => {
                        append(&mut writer, name, index, &vec![7; rng.below(2000) as usize]).await
                    }
                    6 => {
                        let present = server.engine.topics().named(name).unwrap();
                        let end = present.partitions[index as usize].end().0;
                        let before = rng.below(end + 1) as i64;
                        server
                            .engine
                            .topics()
                            .delete_records(&present, index, before)
                            .await
                            .unwrap();
                    }
                    7 => {
                        let is_read = read.remove(&(name.to_owned(), index)).is_some();
                        forget.extend(is_read.then(|| forgotten(name, id, vec![index])));
                        changed.retain(|place| *place != (name, id, index) || !is_read);
                    }
                    8 => changed.push((name, id, index)),
                    _ => {}
                }
            } else {
                changed.extend(
                    places.iter().filter(|(name, _, index)| {
                        !read.contains_key(&((*name).to_owned(), *index))
                    }),
                );
            }
            if client.session == (0, 0) {
                // It opens another one, which has nothing yet.
                read.values_mut().for_each(|(_, told)| *told = None);
                let is_read =
                    |place: &&(&str, u8, i32)| read.contains_key(&(place.0.to_owned(), place.2));
                changed.extend(places.iter().filter(is_read));
            }
            changed.sort_unstable();
            changed.dedup();
            let topics = changed.drain(..).map(|(name, id, index)| {
                let next = read.entry((name.to_owned(), index)).or_default().0;
                topic(name, id, [(index, next)])
            });
            let topics = topics.collect();
            let answer = client.ask(topics, forget, NO_WAIT).await;
            assert_eq!(answer.error_code, 0, "seed {seed}");
            let is_empty = answer.responses.is_empty();
            for found in answer.responses {
                let (name, id) = places
                    .iter()
                    .find(|(name, id, _)| {
                        *name == &*found.topic.0 || found.topic_id.as_bytes() == &[*id; 16]
                    })
                    .map(|(name, id, _)| (*name, *id))
                    .unwrap();
                for data in found.partitions {
                    let index = data.partition_index;
                    let (next, told) = read.get_mut(&(name.to_owned(), index)).unwrap();
                    if data.error_code != 0 {
                        // Deleted below: the client begins at the log start.
                        assert_eq!(data.error_code, ResponseError::OffsetOutOfRange.code());
                        *next = data.log_start_offset;
                        *told = None;
                        changed.push((name, id, index));
                        continue;
                    }
                    let bounds = Some((data.high_watermark, data.log_start_offset));
                    let before = *next;
                    for batch in BatchIterator::new(&data.records.clone().unwrap_or_default()) {
                        let Ok((header, _)) = batch else { break };
                        assert_eq!(header.base_offset, *next, "seed {seed} {name}/{index}");
                        *next = header.last_offset() + 1;
                    }
                    let is_news = *next > before || *told != bounds;
                    assert!(is_news, "seed {seed} {name}/{index}: {bounds:?} again");
                    *told = bounds;
                    if *next > before {
                        changed.push((name, id, index));
                    }
                }
            }
            if is_over && is_empty && changed.is_empty() {
                break;
            }
            assert!(steps < 1000, "seed {seed} does not come to an end");
        }
        for (name, _, index) in &places {
            let present = server.engine.topics().named(name).unwrap();
            let partition = &present.partitions[*index as usize];
            let (end, start) = (partition.end().0 as i64, partition.start().0 as i64);
            let (next, told) = read[&((*name).to_owned(), *index)];
            assert_eq!((next, told), (end, Some((end, start))), "seed {seed} {name}/{index}");
        }
    }
}
