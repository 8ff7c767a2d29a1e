//! Floods: for each budget, a client that takes as much of it as it gets.

use std::any::Any;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, CreatePartitionsRequest, CreateTopicsRequest, FetchRequest,
    GetTelemetrySubscriptionsRequest, InitProducerIdResponse, ProduceRequest, PushTelemetryRequest,
};
use serde_json::{Value, json};
use testkit::process::{RawKafkaConnection, TestServer, connect_from};
use testkit::requests::{encode_frame, fetch_request, str_bytes, topic_name};

use super::go_on::{
    ZkSession, add_offsets, add_partitions, commit_offset, group_id, init_producer, moment_in,
    post, share_fetch, topic_id,
};
use super::idempotent_batch;

/// The flooder's address is 127.0.0.2.
pub(crate) const FLOODER: u8 = 2;

/// The resources that a flood holds until it is dropped.
type FloodHold = Box<dyn Any>;
pub(crate) type Flood = fn(&TestServer) -> FloodHold;

/// A flood for each budget. The room that an earlier one took stays taken, except room that
/// connections hold.
pub(crate) const FLOODS: [(&str, Flood); 32] = [
    ("producers", producers),
    ("producers-of-unknown-ids", unknown_producers),
    ("transactional-ids", transactional_ids),
    ("transaction-partitions", transaction_partitions),
    ("transaction-offsets", transaction_offsets),
    ("group-bytes", group_bytes),
    ("groups", groups),
    ("topics", topics),
    ("partitions", partitions),
    ("pins", pins),
    ("fetch-session-partitions", fetch_session_partitions),
    ("fetch-sessions", fetch_sessions),
    ("share-session-partitions", share_session_partitions),
    ("share-sessions", share_sessions),
    ("metric-bytes", metric_bytes),
    ("open-tree-files", open_files),
    ("history-turns", history_turns),
    ("group-answers", group_answers),
    ("http-requests", http_requests),
    ("http-connections", http_connections),
    ("large-requests", large_requests),
    ("pipelined-requests", pipelined_requests),
    ("responses", responses),
    ("connections", connections),
    ("flight-bytes", flight),
    ("zookeeper-reads", znode_reads),
    ("zookeeper-restores", znode_restores),
    ("zookeeper-watch-bytes", znode_watches),
    ("znode-bytes", znode_bytes),
    ("znodes", znodes),
    ("zookeeper-sessions", zookeeper_sessions),
    ("zookeeper-connections", zookeeper_connections),
];

/// A topic with most of the partitions that one client may have.
const WIDE: &str = "wide";
const WIDE_PARTITIONS: i32 = 2500;

fn kafka(server: &TestServer) -> RawKafkaConnection {
    RawKafkaConnection::connect_from(FLOODER, server.kafka).expect("it listens")
}

fn nothing() -> FloodHold {
    Box::new(())
}

/// Produces a batch of one producer to all partitions of the wide topic; the error of the last one.
fn produce_wide(wire: &mut RawKafkaConnection, id: i64, epoch: i16) -> i16 {
    let records = idempotent_batch(id, epoch);
    let partition = |index| {
        PartitionProduceData::default().with_index(index).with_records(Some(records.clone()))
    };
    let data = TopicProduceData::default()
        .with_name(topic_name(WIDE))
        .with_partition_data((0..WIDE_PARTITIONS).map(partition).collect());
    let request =
        ProduceRequest::default().with_acks(1).with_timeout_ms(30_000).with_topic_data(vec![data]);
    let answer = wire.call(9, &request).expect("an answer");
    answer.responses[0].partition_responses.last().expect("a partition").error_code
}

fn producers(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    // It may be there.
    create(&mut wire, WIDE, WIDE_PARTITIONS);
    loop {
        let InitProducerIdResponse { producer_id, producer_epoch, .. } =
            init_producer(&mut wire, None);
        if produce_wide(&mut wire, producer_id.0, producer_epoch) != 0 {
            return nothing();
        }
    }
}

fn unknown_producers(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    let invented = 1_000_000_000..;
    invented.take_while(|id| produce_wide(&mut wire, *id, 0) == 0).for_each(drop);
    nothing()
}

/// Text of so many bytes.
fn long(nth: usize, bytes: usize) -> String {
    format!("{nth:0>bytes$}")
}

fn transactional_ids(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    let is_given = |nth: &usize| init_producer(&mut wire, Some(&long(*nth, 900))).error_code == 0;
    (0..).take_while(is_given).for_each(drop);
    nothing()
}

/// The id that the flood of ids got first.
fn first_id() -> String {
    long(0, 900)
}

fn transaction_partitions(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    let id = first_id();
    let producer = init_producer(&mut wire, Some(&id));
    let added = |first: &i32| {
        let partitions = (*first..first + 50).collect();
        add_partitions(&mut wire, &id, &producer, WIDE, partitions) == 0
    };
    (0..).step_by(50).take_while(added).for_each(drop);
    nothing()
}

fn transaction_offsets(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    let id = long(1, 900);
    let producer = init_producer(&mut wire, Some(&id));
    let is_added = |nth: &usize| add_offsets(&mut wire, &id, &producer, &long(*nth, 200)) == 0;
    (0..).take_while(is_added).for_each(drop);
    nothing()
}

fn group_bytes(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    let topics: Vec<_> = (0..500).map(|nth| topic_name(&long(nth, 200))).collect();
    let is_joined = |nth: &usize| {
        let request = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(group_id(&format!("b-large-{nth}")))
            .with_member_id(str_bytes("m"))
            .with_rebalance_timeout_ms(60_000)
            .with_subscribed_topic_names(Some(topics.clone()))
            .with_topic_partitions(Some(Vec::new()));
        wire.call(1, &request).expect("an answer").error_code == 0
    };
    (0..).take_while(is_joined).for_each(drop);
    nothing()
}

fn groups(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    let is_made = |nth: &usize| commit_offset(&mut wire, WIDE, &format!("b-{nth}")) == 0;
    (0..).take_while(is_made).for_each(drop);
    nothing()
}

fn create(wire: &mut RawKafkaConnection, name: &str, partitions: i32) -> i16 {
    let topic = CreatableTopic::default()
        .with_name(topic_name(name))
        .with_num_partitions(partitions)
        .with_replication_factor(1);
    let request = CreateTopicsRequest::default().with_topics(vec![topic]);
    wire.call(5, &request).expect("an answer").topics[0].error_code
}

/// More partitions of the wide topic: no more topics may be made.
fn partitions(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    let is_grown = |count: &i32| {
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name(WIDE))
            .with_count(*count)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]);
        wire.call(3, &request).expect("an answer").results[0].error_code == 0
    };
    (WIDE_PARTITIONS + 50..).step_by(50).take_while(is_grown).for_each(drop);
    nothing()
}

fn topics(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    let is_made = |nth: &usize| create(&mut wire, &format!("b-{nth}"), 1) == 0;
    (0..).take_while(is_made).for_each(drop);
    nothing()
}

fn pins(server: &TestServer) -> FloodHold {
    let at = moment_in(Duration::ZERO);
    let is_set = |nth: &usize| {
        let pin = json!({"op": "pin", "name": format!("b{nth}"), "at": at, "for_ms": 600_000});
        post(FLOODER, server.http, &pin).0 == 200
    };
    (0..).take_while(is_set).for_each(drop);
    nothing()
}

fn wide_session(partitions: i32) -> FetchRequest {
    let topic = FetchTopic::default().with_topic(topic_name("nothing")).with_partitions(
        (0..partitions).map(|index| FetchPartition::default().with_partition(index)).collect(),
    );
    FetchRequest::default().with_session_epoch(0).with_max_bytes(1).with_topics(vec![topic])
}

fn fetch_session_partitions(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    let request = wide_session(30_000);
    while wire.call(12, &request).expect("an answer").session_id != 0 {}
    nothing()
}

fn fetch_sessions(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    let request = wide_session(1);
    while wire.call(12, &request).expect("an answer").session_id != 0 {}
    nothing()
}

/// Opens share sessions, each with a connection of its own, until one is refused.
fn open_share_sessions(server: &TestServer, partitions: i32) -> FloodHold {
    let topic = topic_id(&mut kafka(server), WIDE);
    let mut held = Vec::new();
    loop {
        let mut wire = kafka(server);
        let member = format!("m{}", held.len());
        let request = share_fetch("b-shares", &member, topic, 0..partitions);
        let answer = wire.call(1, &request).expect("an answer");
        held.push(wire);
        if answer.error_code != 0 {
            let why = answer.error_message.unwrap_or_default();
            assert!(why.starts_with("127.0.0.2 holds"), "{why}");
            return Box::new(held);
        }
    }
}

fn share_session_partitions(server: &TestServer) -> FloodHold {
    open_share_sessions(server, 30_000)
}

fn share_sessions(server: &TestServer) -> FloodHold {
    open_share_sessions(server, 1)
}

/// The fields of protocol buffers: their number and type, and bytes with their length or a double.
fn put_field(out: &mut BytesMut, number: u8, bytes: &[u8]) {
    out.put_u8(number << 3 | 2);
    let mut length = bytes.len();
    while length >= 0x80 {
        out.put_u8(length as u8 | 0x80);
        length >>= 7;
    }
    out.put_u8(length as u8);
    out.put_slice(bytes);
}

fn message(number: u8, bytes: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    put_field(&mut out, number, bytes);
    out
}

/// `MetricsData` of OpenTelemetry with so many gauges.
pub(crate) fn gauges(name: &str, count: usize) -> Bytes {
    let mut metrics = BytesMut::new();
    for nth in 0..count {
        let mut point = BytesMut::new();
        point.put_u8(4 << 3 | 1);
        point.put_f64_le(1.0);
        let mut metric = BytesMut::new();
        put_field(&mut metric, 1, format!("{name}.{nth}").as_bytes());
        put_field(&mut metric, 5, &message(1, &point));
        put_field(&mut metrics, 2, &metric);
    }
    message(1, &message(2, &metrics)).freeze()
}

fn metric_bytes(server: &TestServer) -> FloodHold {
    let data = gauges(&long(0, 1900), 2000);
    let mut held = Vec::new();
    for _ in 0..16 {
        let mut wire = kafka(server);
        let asked = wire.call(0, &GetTelemetrySubscriptionsRequest::default()).expect("an answer");
        let request = PushTelemetryRequest::default()
            .with_client_instance_id(asked.client_instance_id)
            .with_subscription_id(asked.subscription_id)
            .with_metrics(data.clone());
        assert_eq!(wire.call(0, &request).expect("an answer").error_code, 0);
        held.push(wire);
    }
    Box::new(held)
}

fn open_files(server: &TestServer) -> FloodHold {
    let path = format!("/topics/{WIDE}/0.jsonl");
    for _ in 0..40 {
        let (status, opened) =
            post(FLOODER, server.http, &json!({"op": "tree", "do": "open", "path": path}));
        assert_eq!(status, 200, "{opened}");
    }
    nothing()
}

/// Requests that are sent over HTTP, and whose answers nobody reads.
fn send_posts(http: SocketAddr, document: &Value, count: usize) -> FloodHold {
    let body = document.to_string();
    let request = format!(
        "POST /v1 HTTP/1.1\r\nHost: {http}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let send = |_| {
        let mut stream = connect_from(FLOODER, http).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        Some(stream)
    };
    Box::new((0..count).filter_map(send).collect::<Vec<_>>())
}

fn history_turns(server: &TestServer) -> FloodHold {
    send_posts(
        server.http,
        &json!({"op": "diff", "from": "s1", "until": moment_in(Duration::ZERO)}),
        20,
    )
}

fn group_answers(server: &TestServer) -> FloodHold {
    send_posts(server.http, &json!({"op": "groups", "at": moment_in(Duration::ZERO)}), 20)
}

/// Questions about a moment that comes in three seconds.
fn http_requests(server: &TestServer) -> FloodHold {
    let at = moment_in(Duration::from_secs(3));
    let waits = json!({"op": "cut", "at": at, "when": "wait", "patience_ms": 5000});
    send_posts(server.http, &waits, 30)
}

fn http_connections(server: &TestServer) -> FloodHold {
    let open = (0..100).filter_map(|_| connect_from(FLOODER, server.http).ok());
    Box::new(open.collect::<Vec<_>>())
}

/// The beginning of large requests that never end.
fn large_requests(server: &TestServer) -> FloodHold {
    let begin = |_| {
        let mut stream = connect_from(FLOODER, server.kafka).ok()?;
        let bytes = vec![0; 512 << 10];
        stream.write_all(&(1_000_000_u32).to_be_bytes()).ok()?;
        stream.write_all(&[0, 0, 0, 9]).ok()?;
        let _ = stream.write_all(&bytes);
        Some(stream)
    };
    Box::new((0..30).filter_map(begin).collect::<Vec<_>>())
}

/// Small requests behind one that waits.
fn pipelined_requests(server: &TestServer) -> FloodHold {
    let waiting = fetch_request("orders", 0, 1_000_000, Duration::from_secs(20));
    let small = encode_frame(9, &small_produce(100_000));
    let begin = |_| {
        let mut stream = connect_from(FLOODER, server.kafka).ok()?;
        stream.set_nonblocking(true).ok()?;
        stream.write_all(&encode_frame(12, &waiting)).ok()?;
        for _ in 0..20 {
            if stream.write_all(&small).is_err() {
                break;
            }
        }
        Some(stream)
    };
    Box::new((0..30).filter_map(begin).collect::<Vec<_>>())
}

fn small_produce(bytes: usize) -> ProduceRequest {
    testkit::requests::produce_request(WIDE, 0, &super::plain_batch(bytes)).with_acks(1)
}

/// Fetches whose answers nobody reads.
fn responses(server: &TestServer) -> FloodHold {
    let mut wire = kafka(server);
    for _ in 0..40 {
        assert_eq!(wire.produce(WIDE, 1, &super::plain_batch(100_000)).0, 0);
    }
    let fetch = encode_frame(12, &fetch_request(WIDE, 1, 0, Duration::ZERO));
    let begin = |_| {
        let mut stream = connect_from(FLOODER, server.kafka).ok()?;
        stream.write_all(&fetch).ok()?;
        stream.read_exact(&mut [0; 4]).ok()?;
        Some(stream)
    };
    Box::new((0..20).filter_map(begin).collect::<Vec<_>>())
}

fn connections(server: &TestServer) -> FloodHold {
    let open = (0..200).filter_map(|_| connect_from(FLOODER, server.kafka).ok());
    Box::new(open.collect::<Vec<_>>())
}

fn zk(server: &TestServer) -> SocketAddr {
    server.zookeeper.expect("it is served")
}

/// Sends more than may be in flight to the disk, without reading replies.
fn flight(server: &TestServer) -> FloodHold {
    let produce = encode_frame(9, &small_produce(100_000));
    let begin = |_| {
        let mut stream = connect_from(FLOODER, server.kafka).ok()?;
        stream.set_nonblocking(true).ok()?;
        while stream.write_all(&produce).is_ok() {}
        Some(stream)
    };
    let producers: Vec<_> = (0..8).filter_map(begin).collect();
    let mut session = ZkSession::begin(FLOODER, zk(server)).expect("a session");
    for _ in 0..40 {
        session.send_create("/b-flight", &[7; 400_000], 0);
    }
    Box::new((producers, session))
}

/// Asks from many connections, without reading replies.
fn ask_znodes(server: &TestServer, ask: impl Fn(&mut ZkSession)) -> FloodHold {
    let begin = |_| {
        let mut session = ZkSession::begin(FLOODER, zk(server))?;
        ask(&mut session);
        Some(session)
    };
    Box::new((0..20).filter_map(begin).collect::<Vec<_>>())
}

fn znode_reads(server: &TestServer) -> FloodHold {
    let path = format!("/.at/{}/zookeeper", moment_in(Duration::ZERO));
    ask_znodes(server, |session| (0..50).for_each(|_| session.send_get_children(&path)))
}

fn znode_restores(server: &TestServer) -> FloodHold {
    let restore = json!({"op": "restore", "path": "/zookeeper", "at": moment_in(Duration::ZERO), "dry_run": true});
    ask_znodes(server, |session| (0..20).for_each(|_| session.send_history(&restore)))
}

/// Watches znodes that are not there over two connections. Together they take more than they may,
/// so the first one ends.
fn znode_watches(server: &TestServer) -> FloodHold {
    let watch = |_| {
        let mut session = ZkSession::begin(FLOODER, zk(server)).expect("a session");
        for nth in 0..300 {
            session.watch(&format!("/b-{}", long(nth, 2000))).expect("a reply");
        }
        session
    };
    Box::new([0, 1].map(watch))
}

fn znode_bytes(server: &TestServer) -> FloodHold {
    let mut session = ZkSession::begin(FLOODER, zk(server)).expect("a session");
    let is_made = |nth: &usize| session.create(&format!("/b-large-{nth}"), &[7; 50_000], 0) == 0;
    (0..).take_while(is_made).for_each(drop);
    nothing()
}

fn znodes(server: &TestServer) -> FloodHold {
    let mut session = ZkSession::begin(FLOODER, zk(server)).expect("a session");
    let is_made = |nth: &usize| session.create(&format!("/b-{nth}"), b"", 0) == 0;
    (0..).take_while(is_made).for_each(drop);
    nothing()
}

/// Each session's connection goes at once; the session stays.
fn zookeeper_sessions(server: &TestServer) -> FloodHold {
    for _ in 0..100 {
        drop(ZkSession::begin(FLOODER, zk(server)));
    }
    nothing()
}

fn zookeeper_connections(server: &TestServer) -> FloodHold {
    let open = (0..200).filter_map(|_| connect_from(FLOODER, zk(server)).ok());
    Box::new(open.collect::<Vec<_>>())
}
