//! User time in the place that a topic sets [F26], and its limits [F42], over the wire.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use compat_kafka::KafkaOptions;
use engine::{EngineError, PartitionView, Payload, PayloadHeader, RecordBatch};
use hlc::UserTime;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::produce_response::PartitionProduceResponse;
use kafka_protocol::messages::{
    DescribeConfigsRequest, IncrementalAlterConfigsRequest, ListOffsetsRequest, ProduceRequest,
};
use kafka_protocol::protocol::StrBytes;
use kafka_records::{BatchBuilder, CompressionType, HEADER_BYTES};
use storage::disk::MemoryDisk;
use testkit::kafka::{START, TestKafkaConnection, TestKafkaEngine, TestKafkaServer};
use testkit::requests::{produce_request, topic_name};

const OK: i16 = 0;
const INVALID_TIMESTAMP: i16 = 32;
const INVALID_RECORD: i16 = 87;
const NOW: i64 = START as i64;
const LATEST_BY_TIME: i64 = -3;

async fn start_server(disk: &MemoryDisk) -> TestKafkaServer {
    TestKafkaServer::start(Arc::new(disk.clone()), KafkaOptions::default(), 1 << 20).await
}

/// Stops a fixture cleanly; its data is on the disk.
fn stop(server: TestKafkaServer) {
    server.engine.close();
}

/// A batch whose records are `{"t":…}`, with different, decreasing timestamps.
fn json(times: &[i64]) -> Bytes {
    let mut builder = BatchBuilder::new(CompressionType::Lz4);
    for (nth, time) in (0..).zip(times) {
        builder.record(NOW - nth, Some(b"k"), Some(format!("{{\"t\":{time}}}").as_bytes()), &[]);
    }
    builder.build()
}

fn values(values: &[&str]) -> Bytes {
    let mut builder = BatchBuilder::new(CompressionType::None);
    for value in values {
        builder.record(NOW, None, Some(value.as_bytes()), &[]);
    }
    builder.build()
}

/// A batch that was checked already.
fn engine_batch(records: &Bytes, count: u32, least: i64, most: i64) -> RecordBatch {
    let head = PayloadHeader::new(&records[..HEADER_BYTES]);
    let payload = Payload { header: head, rest: records.slice(HEADER_BYTES..) };
    RecordBatch {
        payload,
        count,
        times: (UserTime(least), UserTime(most)),
        producer: None,
        expected_base: None,
        holder: None,
    }
}

async fn produce(
    wire: &mut TestKafkaConnection,
    topic: &str,
    batch: Bytes,
) -> PartitionProduceResponse {
    let answer = wire.ask(9, &produce_request(topic, 0, &batch)).await.unwrap();
    answer.responses[0].partition_responses[0].clone()
}

fn blamed(answer: &PartitionProduceResponse) -> Vec<i32> {
    answer.record_errors.iter().map(|error| error.batch_index).collect()
}

/// The offset and the time in the response of ListOffsets.
async fn at(wire: &mut TestKafkaConnection, topic: &str, time: i64) -> (i64, i64) {
    let partition = ListOffsetsPartition::default().with_timestamp(time);
    let topic =
        ListOffsetsTopic::default().with_name(topic_name(topic)).with_partitions(vec![partition]);
    let request = ListOffsetsRequest::default().with_topics(vec![topic]);
    let answer = wire.ask(7, &request).await.unwrap();
    let found = &answer.topics[0].partitions[0];
    assert_eq!(found.error_code, OK);
    (found.offset, found.timestamp)
}

async fn set(
    server: &TestKafkaServer,
    topic: &str,
    settings: &[(&str, &str)],
) -> Result<(), EngineError> {
    let change = |configs: &mut std::collections::BTreeMap<String, String>| {
        for (key, value) in settings {
            configs.insert((*key).to_owned(), (*value).to_owned());
        }
        Ok(())
    };
    server.engine.topics().configure(topic, change, false).await
}

#[tokio::test]
async fn a_time_is_looked_up_where_the_topic_says_and_the_answer_stays() {
    let disk = MemoryDisk::new();
    let server = start_server(&disk).await;
    let mut wire = server.connect().await;
    server.topic("t", &[("freezeframe.user.time", "json:/t")]).await;
    assert_eq!(produce(&mut wire, "t", json(&[100, 300, 200])).await.base_offset, 0);
    assert_eq!(produce(&mut wire, "t", json(&[150, 400])).await.base_offset, 3);
    let asked = [0, 100, 101, 250, 301, 400, 401, LATEST_BY_TIME];
    let expected = [(0, 100), (0, 100), (1, 300), (1, 300), (4, 400), (4, 400), (-1, -1), (4, 400)];
    for (time, found) in asked.into_iter().zip(expected) {
        assert_eq!(at(&mut wire, "t", time).await, found, "asked for {time}");
    }
    // The setting changes, and existing records keep their times.
    set(&server, "t", &[("freezeframe.user.time", "header:when;unit=s")]).await.unwrap();
    for (time, found) in asked.into_iter().zip(expected) {
        assert_eq!(at(&mut wire, "t", time).await, found, "asked for {time}, changed");
    }
    let mut builder = BatchBuilder::new(CompressionType::Gzip);
    builder.record(NOW, None, Some(b"{\"t\":1}"), &[("when", Some(b"0.350"))]);
    builder.record(NOW, None, None, &[("when", Some(b"9")), ("when", Some(b"0.500"))]);
    assert_eq!(produce(&mut wire, "t", builder.build()).await.base_offset, 5);
    set(&server, "t", &[("freezeframe.user.time", "timestamp")]).await.unwrap();
    assert_eq!(produce(&mut wire, "t", values(&["x"])).await.base_offset, 7);
    let asked = [0, 301, 401, 500, 501, LATEST_BY_TIME];
    let expected = [(0, 100), (4, 400), (6, 500), (6, 500), (7, NOW), (7, NOW)];
    for (time, found) in asked.into_iter().zip(expected) {
        assert_eq!(at(&mut wire, "t", time).await, found, "asked for {time}, mixed");
    }
    stop(server);
    let server = self::start_server(&disk).await;
    let mut wire = server.connect().await;
    for (time, found) in asked.into_iter().zip(expected) {
        assert_eq!(at(&mut wire, "t", time).await, found, "asked for {time}, restarted");
    }
}

/// The paper's Figure 5: by user time and by system time one sees different things.
#[tokio::test]
async fn moments_of_user_time_and_of_system_time_differ() {
    let server = start_server(&MemoryDisk::new()).await;
    let mut wire = server.connect().await;
    server.topic("t", &[("freezeframe.user.time", "csv:2")]).await;
    for line in ["a,5000", "b,3000", "c,7000"] {
        assert_eq!(produce(&mut wire, "t", values(&[line])).await.error_code, OK);
        server.clock.advance(Duration::from_millis(10));
    }
    // By system time, before the third was accepted: the first two. By user time: up to the first
    // that is 4000 or later, which is the very first.
    let end = |asked: String| {
        let engine = Arc::clone(&server.engine);
        async move {
            let ask = asked.parse().unwrap();
            let view = engine.seek().view("t", ask, engine::WaitPolicy::Refuse).await.unwrap();
            view.partitions[0].end().0
        }
    };
    assert_eq!(end(format!("s{}", START + 15)).await, 2);
    assert_eq!(end("u4000".to_owned()).await, 0);
    assert_eq!(end("u6000".to_owned()).await, 2);
    assert_eq!(end(format!("u9000@s{}", START + 5)).await, 1);
    // The exact set of a user time is what the records themselves contain.
    let topic = server.engine.topics().named("t").unwrap();
    let partition = &topic.partitions[0];
    let mut exact = Vec::new();
    for piece in PartitionView::present(partition).read(0, 1 << 20).unwrap() {
        let times = server.engine.user_times().of_batch(partition, &piece).unwrap();
        exact.extend(times.into_iter().filter(|(_, time)| time.is_some_and(|time| time.0 < 6000)));
    }
    let exact: Vec<u64> = exact.into_iter().map(|(offset, _)| offset.0).collect();
    assert_eq!(exact, [0, 1]);
}

/// A batch of three, and a topic's name that shows `[start, end)` of it.
async fn fetched_at(asked: &str, offset: i64) -> (i16, Vec<i64>) {
    let server = start_server(&MemoryDisk::new()).await;
    let mut wire = server.connect().await;
    server.topic("t", &[]).await;
    let mut builder = BatchBuilder::new(CompressionType::None);
    for time in [1000, 2000, 3000] {
        builder.record(time, None, Some(b"v"), &[]);
    }
    assert_eq!(wire.produce("t", builder.build()).await, (OK, 0));
    let (code, bytes) = wire.fetch(&format!("t.__at.{asked}"), offset).await.unwrap();
    let limit = kafka_records::DecompressionLimit { decompressed_bytes_max: 1 << 20 };
    let offsets = if bytes.is_empty() {
        Vec::new()
    } else {
        kafka_records::records(&bytes, limit)
            .unwrap()
            .map(|record| record.unwrap().offset)
            .collect()
    };
    (code, offsets)
}

/// Otherwise a consumer that has read to the end gets, again and again, what it has.
#[tokio::test]
async fn the_end_of_a_moment_inside_of_a_batch_is_an_end_with_nothing_behind_it() {
    assert_eq!(fetched_at("u2500", 1).await, (OK, vec![0, 1]));
    assert_eq!(fetched_at("u2500", 2).await, (OK, vec![]));
    assert_eq!(fetched_at("u1000..u2500", 2).await, (OK, vec![]));
    // Windows that hold nothing, inside the batch and at its edges.
    assert_eq!(fetched_at("u1500..u1700", 1).await, (OK, vec![]));
    assert_eq!(fetched_at("u0..u500", 0).await, (OK, vec![]));
    assert_eq!(fetched_at("u4000..u5000", 3).await, (OK, vec![]));
}

#[tokio::test]
async fn a_strict_topic_refuses_times_that_fall_and_names_the_records() {
    let disk = MemoryDisk::new();
    let server = start_server(&disk).await;
    let mut wire = server.connect().await;
    let settings =
        [("freezeframe.user.time", "json:/t"), ("freezeframe.user.time.order", "strict")];
    server.topic("t", &settings).await;
    assert_eq!(produce(&mut wire, "t", json(&[10, 10, 20])).await.error_code, OK);
    // Within a batch.
    let answer = produce(&mut wire, "t", json(&[30, 25, 31, 29])).await;
    assert_eq!((answer.error_code, blamed(&answer)), (INVALID_TIMESTAMP, vec![1, 3]));
    // Below the partition's last.
    let answer = produce(&mut wire, "t", json(&[18, 19, 20, 21])).await;
    assert_eq!((answer.error_code, blamed(&answer)), (INVALID_TIMESTAMP, vec![0, 1]));
    let message = answer.record_errors[0].batch_index_error_message.as_ref().unwrap();
    assert!(message.contains("user time 18 falls below the one before it, 20"), "{message}");
    assert_eq!(produce(&mut wire, "t", json(&[20])).await.base_offset, 3);
    stop(server);
    let server = self::start_server(&disk).await;
    let mut wire = server.connect().await;
    assert_eq!(produce(&mut wire, "t", json(&[19])).await.error_code, INVALID_TIMESTAMP);
    assert_eq!(produce(&mut wire, "t", json(&[20, 21])).await.base_offset, 4);
    // Lenient again, and any order is accepted. Strict after that begins at the largest.
    set(&server, "t", &[("freezeframe.user.time.order", "lenient")]).await.unwrap();
    assert_eq!(produce(&mut wire, "t", json(&[50, 1])).await.error_code, OK);
    set(&server, "t", &[("freezeframe.user.time.order", "strict")]).await.unwrap();
    assert_eq!(produce(&mut wire, "t", json(&[49])).await.error_code, INVALID_TIMESTAMP);
    assert_eq!(produce(&mut wire, "t", json(&[50])).await.error_code, OK);
}

#[tokio::test]
async fn of_two_producers_at_once_no_strict_topic_takes_a_time_behind_a_later_one() {
    let server = start_server(&MemoryDisk::new()).await;
    let settings =
        [("freezeframe.user.time", "json:/t"), ("freezeframe.user.time.order", "strict")];
    server.topic("t", &settings).await;
    let mut tasks = Vec::new();
    for producer in 0..4i64 {
        let mut wire = server.connect().await;
        tasks.push(tokio::spawn(async move {
            let mut taken = 0;
            for nth in 0..50i64 {
                let answer = produce(&mut wire, "t", json(&[nth * 4 + producer])).await;
                assert!([OK, INVALID_TIMESTAMP].contains(&answer.error_code));
                taken += usize::from(answer.error_code == OK);
            }
            taken
        }));
    }
    let mut taken = 0;
    for task in tasks {
        taken += task.await.unwrap();
    }
    let topic = server.engine.topics().named("t").unwrap();
    let partition = &topic.partitions[0];
    let pieces = PartitionView::present(partition).read(0, 1 << 20).unwrap();
    let times: Vec<_> = pieces
        .iter()
        .flat_map(|piece| server.engine.user_times().of_batch(partition, piece).unwrap())
        .map(|(_, time)| time.unwrap())
        .collect();
    assert_eq!(times.len(), taken);
    assert!(times.is_sorted(), "{times:?}");
    assert!(taken >= 50, "at least the times of one producer are taken: {taken}");
}

#[tokio::test]
async fn bounds_hold_for_the_time_in_the_record() {
    let server = start_server(&MemoryDisk::new()).await;
    let mut wire = server.connect().await;
    let settings = [
        ("freezeframe.user.time", "json:/t"),
        ("message.timestamp.before.max.ms", "1000"),
        ("message.timestamp.after.max.ms", "500"),
    ];
    server.topic("t", &settings).await;
    assert_eq!(produce(&mut wire, "t", json(&[NOW - 1000, NOW + 500])).await.error_code, OK);
    let outside = json(&[NOW, NOW - 1001, NOW + 501, -1]);
    let answer = produce(&mut wire, "t", outside).await;
    assert_eq!((answer.error_code, blamed(&answer)), (INVALID_TIMESTAMP, vec![1, 2, 3]));
    // Kafka's own bound on the timestamp holds too.
    let mut builder = BatchBuilder::new(CompressionType::None);
    builder.record(NOW - 2000, None, Some(format!("{{\"t\":{NOW}}}").as_bytes()), &[]);
    let answer = produce(&mut wire, "t", builder.build()).await;
    assert_eq!((answer.error_code, blamed(&answer)), (INVALID_TIMESTAMP, vec![]));
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_by_name_and_other_partitions_go_on() {
    let server = start_server(&MemoryDisk::new()).await;
    let mut wire = server.connect().await;
    server.topic("t", &[("freezeframe.user.time", "csv:1")]).await;
    server.topic("other", &[]).await;
    let data = |topic, batch| {
        let partition = PartitionProduceData::default().with_records(Some(batch));
        TopicProduceData::default()
            .with_name(topic_name(topic))
            .with_partition_data(vec![partition])
    };
    let both = vec![data("t", values(&["5", "soon", "6", ""])), data("other", values(&["x"]))];
    let request = ProduceRequest::default().with_acks(-1).with_topic_data(both);
    let answer = wire.ask(9, &request).await.unwrap();
    let [refused, taken] = &answer.responses[..] else { panic!("two topics were asked") };
    let (refused, taken) = (&refused.partition_responses[0], &taken.partition_responses[0]);
    assert_eq!((refused.error_code, blamed(refused)), (INVALID_RECORD, vec![1, 3]));
    let message = refused.record_errors[0].batch_index_error_message.as_ref().unwrap();
    assert!(message.contains("was expected: \"soon\""), "{message}");
    assert_eq!((taken.error_code, taken.base_offset), (OK, 0));
    assert_eq!(produce(&mut wire, "t", values(&["5"])).await.base_offset, 0, "nothing was left");
}

#[tokio::test]
async fn what_cannot_be_read_is_kept_where_the_topic_says_so_and_is_found_by_no_time() {
    let server = start_server(&MemoryDisk::new()).await;
    let mut wire = server.connect().await;
    let settings =
        [("freezeframe.user.time", "csv:1"), ("freezeframe.user.time.unreadable", "keep")];
    server.topic("t", &settings).await;
    assert_eq!(produce(&mut wire, "t", values(&["no", "time"])).await.error_code, OK);
    assert_eq!(at(&mut wire, "t", 0).await, (-1, -1));
    assert_eq!(at(&mut wire, "t", LATEST_BY_TIME).await, (-1, -1));
    assert_eq!(produce(&mut wire, "t", values(&["none", "50", "none", "40"])).await.error_code, OK);
    assert_eq!(produce(&mut wire, "t", values(&["none"])).await.error_code, OK);
    assert_eq!(at(&mut wire, "t", 0).await, (3, 50));
    assert_eq!(at(&mut wire, "t", 51).await, (-1, -1));
    assert_eq!(at(&mut wire, "t", LATEST_BY_TIME).await, (3, 50));
    let topic = server.engine.topics().named("t").unwrap();
    let pieces = PartitionView::present(&topic.partitions[0]).read(0, 1 << 20).unwrap();
    let times = server.engine.user_times().of_batch(&topic.partitions[0], &pieces[1]).unwrap();
    let times: Vec<_> = times.into_iter().map(|(_, time)| time.map(|time| time.0)).collect();
    assert_eq!(times, [None, Some(50), None, Some(40)]);
    let entry = &pieces[1].entry;
    assert_eq!((entry.user_min.0, entry.user_max.0), (40, 50));
}

#[tokio::test]
async fn a_topic_of_append_times_has_the_user_time_that_is_in_the_record() {
    let server = start_server(&MemoryDisk::new()).await;
    let mut wire = server.connect().await;
    let settings =
        [("freezeframe.user.time", "json:/t"), ("message.timestamp.type", "LogAppendTime")];
    server.topic("t", &settings).await;
    let answer = produce(&mut wire, "t", json(&[100, 200])).await;
    assert_eq!(answer.log_append_time_ms, NOW);
    assert_eq!(at(&mut wire, "t", 150).await, (1, 200));
    assert_eq!(at(&mut wire, "t", 201).await, (-1, -1));
    // Without a place in the record, it is the append's, and rises by itself.
    let settings =
        [("freezeframe.user.time", "timestamp"), ("freezeframe.user.time.order", "strict")];
    set(&server, "t", &settings).await.unwrap();
    assert_eq!(produce(&mut wire, "t", json(&[100, 50])).await.error_code, OK);
    assert_eq!(at(&mut wire, "t", 201).await, (2, NOW));
}

#[tokio::test]
async fn a_batch_that_was_checked_by_another_setting_is_sent_back() {
    let server = start_server(&MemoryDisk::new()).await;
    server.topic("t", &[("freezeframe.user.time", "json:/t")]).await;
    let before = server.engine.topics().named("t").unwrap();
    set(&server, "t", &[("retention.ms", "5000")]).await.unwrap();
    let same = server.engine.topics().named("t").unwrap();
    set(&server, "t", &[("freezeframe.user.time", "csv:1")]).await.unwrap();
    let mut wire = server.connect().await;
    assert_eq!(produce(&mut wire, "t", values(&["5"])).await.error_code, OK);
    for stale in [before, same] {
        let batches = vec![(stale, 0, engine_batch(&json(&[5]), 1, 5, 5))];
        let result = server.engine.append(batches, engine::Durability::Synced).await.remove(0);
        assert!(matches!(result, Err(EngineError::UserTimeChanged)), "{result:?}");
    }
    let topic = server.engine.topics().named("t").unwrap();
    assert_eq!(topic.partitions[0].end().0, 1);
}

#[tokio::test]
async fn a_batch_that_a_strict_topic_has_is_known_again_and_not_refused() {
    let server = start_server(&MemoryDisk::new()).await;
    let mut wire = server.connect().await;
    let settings =
        [("freezeframe.user.time", "json:/t"), ("freezeframe.user.time.order", "strict")];
    server.topic("t", &settings).await;
    let of_producer = |time: i64, sequence: i32| {
        let mut builder = BatchBuilder::new(CompressionType::None);
        builder.producer(9, 0, sequence);
        builder.record(NOW, None, Some(format!("{{\"t\":{time}}}").as_bytes()), &[]);
        builder.build()
    };
    assert_eq!(produce(&mut wire, "t", of_producer(10, 0)).await.base_offset, 0);
    assert_eq!(produce(&mut wire, "t", of_producer(20, 1)).await.base_offset, 1);
    let again = produce(&mut wire, "t", of_producer(10, 0)).await;
    assert_eq!((again.error_code, again.base_offset), (OK, 0));
    assert_eq!(
        produce(&mut wire, "t", of_producer(15, 2)).await.error_code,
        INVALID_TIMESTAMP,
        "and takes no sequence number"
    );
    assert_eq!(produce(&mut wire, "t", of_producer(20, 2)).await.base_offset, 2);
}

/// A plug-in with this body.
fn plugin(user_time: &str) -> Bytes {
    let text = format!(
        "(module (memory (export \"memory\") 1) \
           (func (export \"alloc\") (param i32) (result i32) (i32.const 1024)) \
           (func (export \"user_time\") (param i32 i32 i32 i32 i64) (result i64) {user_time}))"
    );
    wat::parse_str(text).unwrap().into()
}

#[tokio::test]
async fn a_topic_goes_on_with_the_plug_in_that_it_was_given() {
    let disk = MemoryDisk::new();
    let server = start_server(&disk).await;
    let mut wire = server.connect().await;
    server.engine.plugins().add("p", plugin("(i64.const 100)")).await.unwrap();
    server.topic("old", &[("freezeframe.user.time", "wasm:p")]).await;
    assert_eq!(produce(&mut wire, "old", values(&["x"])).await.error_code, OK);
    server.engine.plugins().add("p", plugin("(i64.const 200)")).await.unwrap();
    server.topic("new", &[("freezeframe.user.time", "wasm:p")]).await;
    assert_eq!(produce(&mut wire, "new", values(&["x"])).await.error_code, OK);
    assert_eq!(produce(&mut wire, "old", values(&["x"])).await.error_code, OK);
    server.engine.plugins().remove("p").await.unwrap();
    let gone = set(&server, "new", &[("freezeframe.user.time", "wasm:other")]).await.unwrap_err();
    assert!(gone.to_string().contains("freezeframe plugins add other FILE"), "{gone}");
    let expected = [("old", 0, (0, 100)), ("old", 101, (-1, -1)), ("new", 101, (0, 200))];
    for (topic, time, found) in expected {
        assert_eq!(at(&mut wire, topic, time).await, found, "{topic} {time}");
    }
    stop(server);
    let server = self::start_server(&disk).await;
    let mut wire = server.connect().await;
    for (topic, time, found) in expected {
        assert_eq!(at(&mut wire, topic, time).await, found, "{topic} {time}, restarted");
    }
    assert_eq!(produce(&mut wire, "old", values(&["x"])).await.error_code, OK);
    assert_eq!(at(&mut wire, "old", 101).await, (-1, -1));
    // A setting that names the plug-in again fails.
    let gone = set(&server, "old", &[("freezeframe.user.time", "timestamp")]).await;
    assert!(gone.is_ok());
    let gone = set(&server, "old", &[("freezeframe.user.time", "wasm:p")]).await.unwrap_err();
    assert!(gone.to_string().contains("there is no plug-in p"), "{gone}");
}

#[tokio::test]
async fn a_plug_in_and_compaction_keep_away_from_each_other() {
    let server = start_server(&MemoryDisk::new()).await;
    server.engine.plugins().add("p", plugin("(i64.const 5)")).await.unwrap();
    let (rule, compact) = (("freezeframe.user.time", "wasm:p"), ("cleanup.policy", "compact"));
    server.topic("asks", &[rule]).await;
    server.topic("compacted", &[compact]).await;
    for (topic, setting) in [("asks", compact), ("compacted", rule)] {
        let refused = set(&server, topic, &[setting]).await.unwrap_err().to_string();
        assert!(refused.contains("not compact where a plug-in finds, or found"), "{refused}");
    }
    // User times that the plug-in has found stay, whatever finds the rest.
    set(&server, "asks", &[("freezeframe.user.time", "timestamp")]).await.unwrap();
    let settings = [("freezeframe.user.time", "timestamp"), compact];
    assert!(set(&server, "asks", &settings).await.is_err());
}

#[tokio::test]
async fn a_plug_in_that_does_not_end_makes_records_unreadable_and_says_which_it_is() {
    let server = start_server(&MemoryDisk::new()).await;
    let mut wire = server.connect().await;
    // It loops over values that begin with an l.
    let picky = "(if (i32.eq (i32.load8_u (local.get 2)) (i32.const 108)) (then (loop $again (br $again)))) (i64.const 5)";
    server.engine.plugins().add("picky", plugin(picky)).await.unwrap();
    server.topic("refuses", &[("freezeframe.user.time", "wasm:picky")]).await;
    let answer = produce(&mut wire, "refuses", values(&["a", "loop", "b"])).await;
    assert_eq!((answer.error_code, blamed(&answer)), (INVALID_RECORD, vec![1]));
    let message = answer.record_errors[0].batch_index_error_message.as_ref().unwrap();
    assert!(message.contains("the plug-in picky was stopped"), "{message}");
    let settings =
        [("freezeframe.user.time", "wasm:picky"), ("freezeframe.user.time.unreadable", "keep")];
    server.topic("keeps", &settings).await;
    assert_eq!(produce(&mut wire, "keeps", values(&["loop", "b"])).await.error_code, OK);
    assert_eq!(at(&mut wire, "keeps", 0).await, (1, 5));
    // A batch of only such values costs more than a batch may.
    let answer = produce(&mut wire, "keeps", values(&["l"; 1000])).await;
    assert_eq!((answer.error_code, blamed(&answer)), (INVALID_RECORD, vec![]));
    let message = answer.error_message.unwrap();
    assert!(message.contains("picky works too long for the records of one batch"), "{message}");
}

#[tokio::test]
async fn what_compaction_leaves_has_the_times_that_it_had() {
    let fixture = TestKafkaEngine::new();
    let settings = [
        ("freezeframe.user.time", "json:/t"),
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0"),
    ];
    let topic = fixture.topic("t", 1, &settings).await;
    let keyed = |records: &[(&str, i64)]| {
        let mut builder = BatchBuilder::new(CompressionType::Zstd);
        for (key, time) in records {
            let value = format!("{{\"t\":{time}}}");
            builder.record(NOW, Some(key.as_bytes()), Some(value.as_bytes()), &[]);
        }
        builder.build()
    };
    for (records, (least, most)) in [
        (&[("a", 100), ("b", 300), ("c", 50)][..], (50, 300)),
        (&[("a", 200)], (200, 200)),
        (&[("d", 900), ("c", 60)], (60, 900)),
    ] {
        let batch = engine_batch(&keyed(records), records.len() as u32, least, most);
        let batches = vec![(Arc::clone(&topic), 0, batch)];
        fixture.engine.append(batches, engine::Durability::Synced).await.remove(0).unwrap();
        fixture.advance_clock(10);
    }
    let change = |configs: &mut std::collections::BTreeMap<String, String>| {
        configs.insert("freezeframe.user.time".to_owned(), "csv:1".to_owned());
        Ok(())
    };
    fixture.engine.topics().configure("t", change, false).await.unwrap();
    fixture.roll_and_index().await;
    fixture.advance_clock(10);
    assert_eq!(fixture.engine.maintenance().compact_due().await.unwrap(), 1);
    let fixture = fixture.restart();
    let view = fixture.present("t", 0);
    let mut left = Vec::new();
    for piece in view.read(0, 1 << 20).unwrap() {
        left.extend(fixture.engine.user_times().of_batch(&view.partition, &piece).unwrap());
    }
    let left: Vec<_> = left.into_iter().map(|(at, time)| (at.0, time.unwrap().0)).collect();
    assert_eq!(left, [(1, 300), (3, 200), (4, 900), (5, 60)]);
    let first = |time| {
        let found = fixture.engine.seek().first_at_or_after(&view, UserTime(time)).unwrap();
        found.map(|found| (found.offset.0, found.time.0))
    };
    assert_eq!((first(250), first(301), first(901)), (Some((1, 300)), Some((4, 900)), None));
    let latest = fixture.engine.seek().latest_by_user_time(&view).unwrap().unwrap();
    assert_eq!((latest.offset.0, latest.time.0), (4, 900));
}

#[tokio::test]
async fn the_settings_are_altered_described_and_refused_with_what_would_do() {
    const INVALID_CONFIG: i16 = 40;
    const TOPIC: i8 = 2;
    let server = start_server(&MemoryDisk::new()).await;
    let mut wire = server.connect().await;
    server.topic("t", &[]).await;
    let alter = |value: &str| {
        let config = AlterableConfig::default()
            .with_name(StrBytes::from_static_str("freezeframe.user.time"))
            .with_value(Some(StrBytes::from_string(value.to_owned())));
        let resource = AlterConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(StrBytes::from_static_str("t"))
            .with_configs(vec![config]);
        IncrementalAlterConfigsRequest::default().with_resources(vec![resource])
    };
    for (value, code, says) in [
        ("json:/event/time;unit=s", OK, ""),
        ("json:/event/time;unit=h", INVALID_CONFIG, "wants unit=s, ms, us or ns"),
        ("protobuf:3", INVALID_CONFIG, "give timestamp, header:NAME, json:/POINTER"),
        ("wasm:nobody", INVALID_CONFIG, "freezeframe plugins add nobody FILE"),
    ] {
        let answer = wire.ask(1, &alter(value)).await.unwrap();
        let answer = &answer.responses[0];
        assert_eq!(answer.error_code, code, "{value}");
        let message = answer.error_message.as_deref().unwrap_or_default();
        assert!(message.contains(says), "{value}: {message}");
    }
    let resource = DescribeConfigsResource::default()
        .with_resource_type(TOPIC)
        .with_resource_name(StrBytes::from_static_str("t"))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let answer = wire.ask(4, &request).await.unwrap();
    let settings = answer.results[0].configs.iter();
    let settings: Vec<_> = settings
        .filter(|setting| setting.name.starts_with("freezeframe."))
        .map(|setting| (&*setting.name, setting.value.as_deref().unwrap_or_default()))
        .collect();
    assert_eq!(
        settings,
        [
            ("freezeframe.user.time", "json:/event/time;unit=s"),
            ("freezeframe.user.time.order", "lenient"),
            ("freezeframe.user.time.unreadable", "refuse"),
        ]
    );
}
