//! The past, read through our own client from a real server: a moment's answer is the same for
//! ever, exact to the record, and refused if it cannot be given.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::history::{HistoryErrorCode, PendingMomentPolicy, moment_topic};
use client::{
    Client, ClientError, FetchOptions, NewTopic, OffsetSpec, Options, RequiredAcks, ResponseError,
};
use hlc::{Cut, Moment, MomentSelector, SysTime, UserTime};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{GroupId, MetadataRequest, OffsetCommitRequest};
use kafka_protocol::protocol::StrBytes;
use kafka_records::{
    BatchBuilder, BatchHeader, BatchIterator, CompressionType, DecompressionLimit, check, records,
};
use testkit::directory::TestDirectory;
use testkit::process::{RawKafkaConnection, TestServer};
use testkit::requests::topic_name;

const INVALID_TOPIC: i16 = 17;
const TIMEOUT: Duration = Duration::from_secs(5);

async fn connect(server: &TestServer) -> Client {
    let client = Client::connect(&server.kafka.to_string(), Options::default()).await;
    client.expect("the server answers")
}

async fn create(client: &mut Client, topic: &str, partitions: i32) {
    let topic =
        NewTopic { name: topic.to_owned(), partitions: Some(partitions), ..NewTopic::default() };
    client.create_topic(&topic).await.expect("the topic is made");
}

/// A batch of records with these times, and the times as values.
fn batch(codec: CompressionType, times: &[i64]) -> Bytes {
    let mut builder = BatchBuilder::new(codec);
    for time in times {
        builder.record(*time, None, Some(time.to_string().as_bytes()), &[]);
    }
    builder.build()
}

async fn produce(client: &mut Client, topic: &str, partition: i32, batch: Bytes) -> i64 {
    let batches = BTreeMap::from([(partition, batch)]);
    let placed = client.produce(topic, RequiredAcks::All, batches).await.expect("it is written");
    placed[0].base_offset
}

/// The moment up to which the server can answer. It includes all that was acknowledged before.
async fn now(client: &mut Client) -> Moment {
    let all = Moment::Sys(Cut::ALL);
    let cut = client.cut(&all, None, PendingMomentPolicy::Frontier, TIMEOUT).await.expect("a cut");
    cut.at.parse().expect("a moment")
}

/// Offsets and values of a partition as a client sees them, without leaving anything out.
async fn read(client: &mut Client, topic: &str, partition: i32) -> Vec<(i64, String)> {
    let ends = client.offsets(topic, &[partition], OffsetSpec::Latest).await.expect("its end");
    let starts =
        client.offsets(topic, &[partition], OffsetSpec::Earliest).await.expect("its start");
    let bound = |found: BTreeMap<i32, Option<i64>>| found[&partition].expect("a log has bounds");
    let (mut next, end) = (bound(starts), bound(ends));
    let mut found = Vec::new();
    while next < end {
        let from = [(partition, next)];
        let fetched = client.fetch(topic, &from, &FetchOptions::default()).await.expect("a fetch");
        assert_eq!(fetched[0].end, end, "it does not grow");
        for (header, bytes) in BatchIterator::new(&fetched[0].batches).flatten() {
            check(bytes).expect("a batch that is whole");
            let batch = Bytes::copy_from_slice(bytes);
            for record in records(&batch, DecompressionLimit { decompressed_bytes_max: 1 << 20 })
                .expect("one")
            {
                let record = record.expect("a record");
                let value = record.value.unwrap_or_default();
                found.push((record.offset, String::from_utf8(value.to_vec()).expect("text")));
            }
            next = header.last_offset() + 1;
        }
    }
    found
}

fn numbered(values: impl IntoIterator<Item = (i64, i64)>) -> Vec<(i64, String)> {
    values.into_iter().map(|(offset, value)| (offset, value.to_string())).collect()
}

#[tokio::test]
async fn a_cut_is_the_same_whenever_it_is_asked_for_also_after_a_restart() {
    let data = TestDirectory::new();
    let mut cuts = Vec::new();
    for life in 0..3 {
        let server = TestServer::start(data.path(), &[]).expect("it starts");
        let mut client = connect(&server).await;
        if life == 0 {
            create(&mut client, "a", 3).await;
            create(&mut client, "b", 1).await;
        }
        for round in 0..5 {
            produce(&mut client, "a", round % 3, batch(CompressionType::None, &[1, 2])).await;
            produce(&mut client, "b", 0, batch(CompressionType::Zstd, &[3])).await;
            let at = now(&mut client).await;
            let cut = client
                .cut(&at, None, PendingMomentPolicy::Refuse, TIMEOUT)
                .await
                .expect("a past cut");
            let written = (life * 5 + i64::from(round) + 1) * 3;
            let ends: i64 = cut.partitions.iter().map(|held| held.end).sum();
            assert_eq!((cut.partitions.len(), ends), (4, written), "all that was acknowledged");
            assert!(cut.durable, "it was acknowledged with acks=all");
            cuts.push((at, cut));
        }
        for (at, before) in &cuts {
            let cut = client
                .cut(at, None, PendingMomentPolicy::Refuse, TIMEOUT)
                .await
                .expect("a past cut");
            assert_eq!((&cut.hash, &cut.partitions), (&before.hash, &before.partitions), "{at}");
        }
        if life == 1 {
            server.kill().expect("it can be killed");
        } else {
            assert!(server.stop().expect("it stops").success());
        }
    }
    let hashes: std::collections::BTreeSet<&String> =
        cuts.iter().map(|(_, cut)| &cut.hash).collect();
    assert_eq!(hashes.len(), cuts.len(), "each differs from the others");
}

#[tokio::test]
async fn a_moment_topic_is_what_was_there_before_it_and_a_window_what_came_between() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut client = connect(&server).await;
    create(&mut client, "t", 2).await;
    let empty = now(&mut client).await;
    let mut moments = Vec::new();
    for index in 0..6 {
        produce(
            &mut client,
            "t",
            0,
            batch(CompressionType::None, &[100 + 2 * index, 101 + 2 * index]),
        )
        .await;
        moments.push(now(&mut client).await);
    }
    let at = |moment: &Moment| moment_topic("t", &MomentSelector::At(*moment));
    assert_eq!(read(&mut client, &at(&empty), 0).await, []);
    for (index, moment) in moments.iter().enumerate() {
        let expected = numbered((0..2 * (index as i64 + 1)).map(|offset| (offset, 100 + offset)));
        assert_eq!(read(&mut client, &at(moment), 0).await, expected);
        assert_eq!(read(&mut client, &at(moment), 1).await, []);
    }
    for first in 0..moments.len() {
        for second in first + 1..moments.len() {
            let window = MomentSelector::window(moments[first], moments[second]).expect("a window");
            let expected = 2 * (first as i64 + 1)..2 * (second as i64 + 1);
            let expected = numbered(expected.map(|offset| (offset, 100 + offset)));
            assert_eq!(read(&mut client, &moment_topic("t", &window), 0).await, expected);
        }
    }
    // Offsets after a moment's end are out of range, as after any log's.
    let topic = at(&moments[0]);
    let beyond = client.fetch(&topic, &[(0, 3)], &FetchOptions::default()).await;
    let error = beyond.expect_err("behind the end").response_error();
    assert_eq!(error, Some(ResponseError::OffsetOutOfRange));
}

#[tokio::test]
async fn a_moment_of_user_time_ends_exactly_before_its_first_record_whatever_packs_the_batch() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut client = connect(&server).await;
    for codec in [
        CompressionType::None,
        CompressionType::Gzip,
        CompressionType::Snappy,
        CompressionType::Lz4,
        CompressionType::Zstd,
    ] {
        let topic = format!("t-{codec:?}").to_lowercase();
        create(&mut client, &topic, 1).await;
        produce(&mut client, &topic, 0, batch(codec, &[100, 200, 300])).await;
        produce(&mut client, &topic, 0, batch(codec, &[400, 500, 600, 700])).await;
        // Late, and out of order.
        produce(&mut client, &topic, 0, batch(codec, &[150, 800, 250])).await;
        let known = now(&mut client).await;
        let Moment::Sys(known) = known else { panic!("{known}") };
        produce(&mut client, &topic, 0, batch(codec, &[1, 2])).await;
        let times = [100, 200, 300, 400, 500, 600, 700, 150, 800, 250];
        for edge in [0, 100, 101, 300, 301, 400, 401, 650, 700, 701, 800, 801, 9000] {
            let count = times.iter().position(|time| *time >= edge).unwrap_or(times.len());
            let expected = numbered((0..).zip(times[..count].iter().copied()));
            let moment = Moment::User { before: UserTime(edge), known: Some(known) };
            let wire = moment_topic(&topic, &MomentSelector::At(moment));
            assert_eq!(read(&mut client, &wire, 0).await, expected, "{wire}");
        }
        // As known now, unless the name says otherwise.
        let wire = format!("{topic}.__at.u9000");
        assert_eq!(read(&mut client, &wire, 0).await.len(), times.len() + 2);
        let wire = format!("{topic}.__at.u550");
        assert_eq!(read(&mut client, &wire, 0).await.len(), 5, "inside of the second batch");
    }
}

#[tokio::test]
async fn a_batch_at_the_edge_is_still_its_producers_and_of_its_codec() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut client = connect(&server).await;
    create(&mut client, "t", 1).await;
    let mut builder = BatchBuilder::new(CompressionType::Lz4);
    builder.producer(4242, 0, 0);
    for time in [10, 20, 30] {
        builder.record(time, Some(b"key"), None, &[("name", Some(b"1")), ("name", None)]);
    }
    produce(&mut client, "t", 0, batch(CompressionType::None, &[1])).await;
    produce(&mut client, "t", 0, builder.build()).await;
    let mut wire = RawKafkaConnection::connect(server.kafka);
    let (error, end, bytes) = wire.fetch("t.__at.u25", 0, 1);
    assert_eq!((error, end), (0, 3));
    let header = BatchHeader::parse(&bytes).expect("a batch");
    assert_eq!(header.total_bytes(), bytes.len(), "and no other");
    assert_eq!((header.base_offset, header.record_count), (1, 2));
    assert_eq!((header.base_timestamp, header.max_timestamp), (10, 20));
    assert_eq!((header.producer_id, header.producer_epoch, header.base_sequence), (4242, 0, 0));
    assert_eq!(header.compression(), Ok(CompressionType::Lz4));
    let limit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };
    for record in records(&bytes, limit).expect("a batch").map(|record| record.expect("whole")) {
        assert_eq!((record.key.as_deref(), record.value), (Some(&b"key"[..]), None));
        assert_eq!(record.headers.len(), 2, "{:?}", record.headers);
    }
    // And in the middle of the moment, at the second record of its last batch.
    let (error, _, bytes) = wire.fetch("t.__at.u25", 0, 2);
    let header = BatchHeader::parse(&bytes).expect("a batch");
    assert_eq!((error, header.base_offset, header.last_offset()), (0, 1, 2));
}

#[tokio::test]
async fn a_topic_that_was_deleted_or_created_again_is_still_what_it_was() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut client = connect(&server).await;
    let before = now(&mut client).await;
    create(&mut client, "t", 1).await;
    produce(&mut client, "t", 0, batch(CompressionType::None, &[1])).await;
    let first = now(&mut client).await;
    client.delete_topic("t").await.expect("it is deleted");
    let between = now(&mut client).await;
    create(&mut client, "t", 2).await;
    produce(&mut client, "t", 0, batch(CompressionType::None, &[2])).await;
    let second = now(&mut client).await;
    client.delete_topic("t").await.expect("it is deleted");
    let server = {
        server.kill().expect("it can be killed");
        TestServer::start(data.path(), &[]).expect("it starts again")
    };
    let mut client = connect(&server).await;
    assert!(client.topics().await.expect("topics").is_empty(), "there is none now");
    let at = |moment: &Moment| moment_topic("t", &MomentSelector::At(*moment));
    assert_eq!(read(&mut client, &at(&first), 0).await, numbered([(0, 1)]));
    assert_eq!(read(&mut client, &at(&second), 0).await, numbered([(0, 2)]));
    for (moment, partitions) in
        [(before, None), (first, Some(1)), (between, None), (second, Some(2))]
    {
        let then = client.topics_at(Some(&moment)).await.expect("topics then");
        let found: Vec<_> = then.topics.iter().map(|topic| topic.partitions).collect();
        assert_eq!(found, Vec::from_iter(partitions), "{moment}");
        assert!(then.topics.iter().all(|topic| topic.name == "t" && topic.deleted.is_some()));
        if partitions.is_none() {
            let error = client.topic(&at(&moment)).await.expect_err("there was none");
            assert_eq!(error.response_error(), Some(ResponseError::InvalidTopicException));
        }
    }
    assert!(client.topics_at(None).await.expect("topics now").topics.is_empty());
}

fn ahead(of: Moment, ms: u64) -> Moment {
    let Moment::Sys(cut) = of else { panic!("{of} is not of system time") };
    Moment::Sys(Cut::before(SysTime(cut.bound().time().0 + ms)))
}

#[tokio::test]
async fn a_moment_far_ahead_is_refused_at_once_and_one_just_ahead_is_waited_for() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut client = connect(&server).await;
    create(&mut client, "t", 1).await;
    produce(&mut client, "t", 0, batch(CompressionType::None, &[1])).await;
    let far = ahead(now(&mut client).await, 3_600_000);
    let begun = Instant::now();
    let refused = client.cut(&far, None, PendingMomentPolicy::Wait, TIMEOUT).await;
    let Err(ClientError::History(refusal)) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.code, HistoryErrorCode::FarFuture);
    assert!(refusal.frontier.is_some(), "it says how far it can answer");
    let error =
        client.topic(&moment_topic("t", &MomentSelector::At(far))).await.expect_err("far ahead");
    assert_eq!(error.response_error(), Some(ResponseError::InvalidTopicException));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let soon = ahead(now(&mut client).await, 2000);
    let refused = client.cut(&soon, None, PendingMomentPolicy::Refuse, TIMEOUT).await;
    let Err(ClientError::History(refusal)) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.code, HistoryErrorCode::NotYet);
    let cut = client
        .cut(&soon, None, PendingMomentPolicy::Wait, TIMEOUT)
        .await
        .expect("it was waited for");
    assert_eq!((cut.at, cut.partitions[0].end), (soon.to_string(), 1));
    let soon = ahead(soon, 200);
    assert_eq!(read(&mut client, &moment_topic("t", &MomentSelector::At(soon)), 0).await.len(), 1);
}

/// Sends Metadata as a stock client that may create topics; returns the error code.
fn metadata(wire: &mut RawKafkaConnection, topic: &str) -> i16 {
    let topic = MetadataRequestTopic::default().with_name(Some(topic_name(topic)));
    let request = MetadataRequest::default()
        .with_topics(Some(vec![topic]))
        .with_allow_auto_topic_creation(true);
    wire.call(12, &request).expect("an answer").topics[0].error_code
}

#[tokio::test]
async fn what_only_looks_like_a_moment_is_refused_and_never_made_a_topic() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut client = connect(&server).await;
    create(&mut client, "t", 1).await;
    produce(&mut client, "t", 0, batch(CompressionType::None, &[1])).await;
    let mut wire = RawKafkaConnection::connect(server.kafka);
    for moment in [
        "",
        "5",
        "x5",
        "s",
        "u",
        "s-1",
        "sabc",
        "s1.5",
        "sh12",
        "shxxxxxxxxxxxxxxxx",
        "uh0000000000000001",
        "s5.as.s6",
        "u5.as.u6",
        "u5.as.",
        "s6..s5",
        "s5..s5",
        "s5..u6",
        "s5..",
        "..s5",
        "s99999999999999999999",
        "s281474976710656",
    ] {
        let topic = format!("t.__at.{moment}");
        assert_eq!(metadata(&mut wire, &topic), INVALID_TOPIC, "{topic}");
        let (error, _) = wire.offset_at(&topic, 0, -1);
        assert_eq!(error, INVALID_TOPIC, "{topic}");
        let (error, base) = wire.produce(&topic, 0, &batch(CompressionType::None, &[1]));
        assert_eq!((error, base), (INVALID_TOPIC, -1), "{topic}");
    }
    // A moment of a topic that never existed.
    assert_eq!(metadata(&mut wire, "never.__at.u5"), INVALID_TOPIC);
    assert_eq!(metadata(&mut wire, "never.__at.s5"), INVALID_TOPIC);
    let new = NewTopic { name: "n.__at.s5".to_owned(), ..NewTopic::default() };
    let error =
        client.create_topic(&new).await.expect_err("such names are for moments").response_error();
    assert_eq!(error, Some(ResponseError::InvalidTopicException));
    let topics: Vec<String> =
        client.topics().await.expect("topics").into_iter().map(|topic| topic.name).collect();
    assert_eq!(topics, ["t"], "none was made");
}

#[tokio::test]
async fn the_past_cannot_be_written() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let mut client = connect(&server).await;
    create(&mut client, "t", 1).await;
    produce(&mut client, "t", 0, batch(CompressionType::None, &[1])).await;
    let at = now(&mut client).await;
    let topic = moment_topic("t", &MomentSelector::At(at));
    let before = client.cut(&at, None, PendingMomentPolicy::Refuse, TIMEOUT).await.expect("a cut");
    assert_eq!(read(&mut client, &topic, 0).await.len(), 1);
    let batches = BTreeMap::from([(0, batch(CompressionType::None, &[2]))]);
    let error = client.produce(&topic, RequiredAcks::All, batches).await.expect_err("it is past");
    assert_eq!(error.response_error(), Some(ResponseError::InvalidTopicException));
    assert!(error.to_string().contains("produce to the topic itself"), "{error}");
    let error = client.delete_topic(&topic).await.expect_err("it is past");
    assert!(error.response_error().is_some(), "{error}");
    assert_eq!(read(&mut client, &topic, 0).await.len(), 1);
    let after = client.cut(&at, None, PendingMomentPolicy::Refuse, TIMEOUT).await.expect("a cut");
    assert_eq!(after.hash, before.hash);
    assert_eq!(client.topics().await.expect("topics").len(), 1);
}

fn commit(wire: &mut RawKafkaConnection, group: &str, offset: i64) {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(StrBytes::from_string(group.to_owned())))
        .with_topics(vec![topic]);
    let answer = wire.call(8, &request).expect("an answer");
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
}

#[tokio::test]
async fn what_groups_had_committed_can_be_read_as_of_a_moment_also_after_a_restart() {
    let data = TestDirectory::new();
    let mut moments = Vec::new();
    for life in 0..2 {
        let server = TestServer::start(data.path(), &[]).expect("it starts");
        let mut client = connect(&server).await;
        let mut wire = RawKafkaConnection::connect(server.kafka);
        if life == 0 {
            create(&mut client, "t", 1).await;
            moments.push((now(&mut client).await, None));
        }
        for offset in [3, 5, 2] {
            commit(&mut wire, "g", offset + life);
            commit(&mut wire, "other", 77);
            moments.push((now(&mut client).await, Some(offset + life)));
        }
        for (moment, offset) in &moments {
            let then = client.offsets_at(Some(moment), Some("g")).await.expect("offsets then");
            let held: Vec<i64> = then
                .groups
                .iter()
                .inspect(|group| assert_eq!(group.group, "g"))
                .flat_map(|group| group.offsets.iter().map(|held| held.offset))
                .collect();
            assert_eq!(held, Vec::from_iter(*offset), "at {moment} in incarnation {life}");
        }
        let all = client.offsets_at(None, None).await.expect("offsets now");
        assert_eq!(all.groups.len(), 2);
        server.kill().expect("it can be killed");
    }
}
