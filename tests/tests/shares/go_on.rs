//! A client that does a little of everything, and is refused nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::add_partitions_to_txn_request::AddPartitionsToTxnTopic;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::share_fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest, DeleteTopicsRequest, EndTxnRequest, GetTelemetrySubscriptionsRequest,
    GroupId, InitProducerIdRequest, InitProducerIdResponse, MetadataRequest, OffsetCommitRequest,
    PushTelemetryRequest, ShareFetchRequest, TransactionalId,
};
use serde_json::{Value, json};
use testkit::process::{RawKafkaConnection, TestServer, connect_from, http_get};
use testkit::requests::{fetch_request, str_bytes, topic_name};
use uuid::Uuid;
use zk_wire::{ConnectRequest, ConnectResponse, JuteWriter};

use super::idempotent_batch;

const HOST: u8 = 1;
const TOPIC: &str = "orders";
/// A request of 128 KiB and more is a large one.
const LARGE_BYTES: usize = 200_000;
const ZK_CREATE: i32 = 1;
const ZK_EXISTS: i32 = 3;
const ZK_GET_CHILDREN: i32 = 8;
const ZK_CLOSE_SESSION: i32 = -11;
const ZK_HISTORY: i32 = i32::from_be_bytes([0, 0, b'F', b'F']);
const EPHEMERAL: i32 = 1;

pub(crate) fn group_id(text: &str) -> GroupId {
    GroupId(str_bytes(text))
}

pub(crate) fn transactional_id(text: &str) -> TransactionalId {
    TransactionalId(str_bytes(text))
}

/// Asks for a producer id.
pub(crate) fn init_producer(
    wire: &mut RawKafkaConnection,
    transactional: Option<&str>,
) -> InitProducerIdResponse {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(transactional.map(transactional_id))
        .with_transaction_timeout_ms(60_000);
    wire.call(4, &request).expect("an answer")
}

pub(crate) fn add_partitions(
    wire: &mut RawKafkaConnection,
    id: &str,
    producer: &InitProducerIdResponse,
    topic: &str,
    partitions: Vec<i32>,
) -> i16 {
    let topic =
        AddPartitionsToTxnTopic::default().with_name(topic_name(topic)).with_partitions(partitions);
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(transactional_id(id))
        .with_v3_and_below_producer_id(producer.producer_id)
        .with_v3_and_below_producer_epoch(producer.producer_epoch)
        .with_v3_and_below_topics(vec![topic]);
    let answer = wire.call(3, &request).expect("an answer");
    answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
}

pub(crate) fn add_offsets(
    wire: &mut RawKafkaConnection,
    id: &str,
    producer: &InitProducerIdResponse,
    group: &str,
) -> i16 {
    let request = AddOffsetsToTxnRequest::default()
        .with_transactional_id(transactional_id(id))
        .with_producer_id(producer.producer_id)
        .with_producer_epoch(producer.producer_epoch)
        .with_group_id(group_id(group));
    wire.call(3, &request).expect("an answer").error_code
}

/// Commits an offset as a consumer that is in no group.
pub(crate) fn commit_offset(wire: &mut RawKafkaConnection, topic: &str, group: &str) -> i16 {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(1);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name(topic))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group_id(group))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let answer = wire.call(8, &request).expect("an answer");
    answer.topics[0].partitions[0].error_code
}

pub(crate) fn topic_id(wire: &mut RawKafkaConnection, topic: &str) -> Uuid {
    let named = kafka_protocol::messages::metadata_request::MetadataRequestTopic::default()
        .with_name(Some(topic_name(topic)));
    let request = MetadataRequest::default().with_topics(Some(vec![named]));
    wire.call(12, &request).expect("an answer").topics[0].topic_id
}

/// A request that opens a share session with these partitions.
pub(crate) fn share_fetch(
    group: &str,
    member: &str,
    topic: Uuid,
    partitions: std::ops::Range<i32>,
) -> ShareFetchRequest {
    let partition = |index| FetchPartition::default().with_partition_index(index);
    let topic = FetchTopic::default()
        .with_topic_id(topic)
        .with_partitions(partitions.map(partition).collect());
    ShareFetchRequest::default()
        .with_group_id(Some(group_id(group)))
        .with_member_id(Some(str_bytes(member)))
        .with_share_session_epoch(0)
        .with_topics(vec![topic])
}

/// A document's answer over HTTP: the status and the body.
pub(crate) fn post(host: u8, http: SocketAddr, document: &Value) -> (u16, Value) {
    let mut stream = connect_from(host, http).expect("it listens");
    let body = document.to_string();
    write!(
        stream,
        "POST /v1 HTTP/1.1\r\nHost: {http}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}")))
}

/// A moment by this machine's clock.
pub(crate) fn moment_in(time: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later");
    format!("s{}", (now + time).as_millis())
}

/// A session of ZooKeeper.
pub(crate) struct ZkSession {
    stream: TcpStream,
}

impl ZkSession {
    /// Begins one; `None` if the server has no room for it.
    pub(crate) fn begin(host: u8, address: SocketAddr) -> Option<ZkSession> {
        let stream = connect_from(host, address).ok()?;
        let mut session = ZkSession { stream };
        let request = ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: 30_000,
            session_id: 0,
            password: Some(Bytes::from_static(&[0; 16])),
            read_only: Some(false),
        };
        session.send(|out| request.write(out)).ok()?;
        ConnectResponse::read(session.receive().ok()?).ok()?;
        Some(session)
    }

    fn send(&mut self, write: impl FnOnce(&mut BytesMut)) -> std::io::Result<()> {
        let mut body = BytesMut::new();
        write(&mut body);
        self.stream.write_all(&[&(body.len() as i32).to_be_bytes()[..], &body].concat())
    }

    fn receive(&mut self) -> std::io::Result<Bytes> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut frame = vec![0; i32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame)?;
        Ok(frame.into())
    }

    /// Asks for the children of a znode, without waiting for the reply.
    pub(crate) fn send_get_children(&mut self, path: &str) {
        let ask = |out: &mut BytesMut| {
            out.int(1);
            out.int(ZK_GET_CHILDREN);
            out.string(Some(path));
            out.bool(false);
        };
        self.send(ask).expect("it reads");
    }

    /// Watches whether a znode is there.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn watch(&mut self, path: &str) -> std::io::Result<()> {
        let ask = |out: &mut BytesMut| {
            out.int(1);
            out.int(ZK_EXISTS);
            out.string(Some(path));
            out.bool(true);
        };
        self.send(ask)?;
        self.receive().map(drop)
    }

    /// Asks for something of the past, without waiting for the reply.
    pub(crate) fn send_history(&mut self, document: &Value) {
        let ask = |out: &mut BytesMut| {
            out.int(1);
            out.int(ZK_HISTORY);
            out.buffer(Some(document.to_string().as_bytes()));
        };
        self.send(ask).expect("it reads");
    }

    /// Asks for a znode, without waiting for the reply.
    pub(crate) fn send_create(&mut self, path: &str, data: &[u8], flags: i32) {
        let create = |out: &mut BytesMut| {
            out.int(1);
            out.int(ZK_CREATE);
            out.string(Some(path));
            out.buffer(Some(data));
            out.int(1);
            out.int(31);
            out.string(Some("world"));
            out.string(Some("anyone"));
            out.int(flags);
        };
        self.send(create).expect("it reads");
    }

    fn close(mut self) {
        let close = |out: &mut BytesMut| {
            out.int(2);
            out.int(ZK_CLOSE_SESSION);
        };
        self.send(close).expect("it reads");
        assert_eq!(self.error(), 0);
    }

    /// The error of the next reply.
    pub(crate) fn error(&mut self) -> i32 {
        let reply = self.receive().expect("a reply");
        // After the xid and the zxid.
        i32::from_be_bytes(reply[12..16].try_into().expect("a header"))
    }

    pub(crate) fn create(&mut self, path: &str, data: &[u8], flags: i32) -> i32 {
        self.send_create(path, data, flags);
        self.error()
    }
}

/// The client that goes on.
pub(crate) struct GoingOn<'a> {
    server: &'a TestServer,
    /// The first batch of an idempotent producer, which it sends again and again.
    batch: Bytes,
    share_topic: Uuid,
    rounds: u32,
}

impl GoingOn<'_> {
    pub(crate) fn new(server: &TestServer) -> GoingOn<'_> {
        let mut wire = RawKafkaConnection::connect(server.kafka);
        wire.create_topic(TOPIC, 1, &[]);
        let producer = init_producer(&mut wire, None);
        let batch = idempotent_batch(producer.producer_id.0, producer.producer_epoch);
        assert_eq!(wire.produce(TOPIC, 0, &batch), (0, 0));
        let share_topic = topic_id(&mut wire, TOPIC);
        GoingOn { server, batch, share_topic, rounds: 0 }
    }

    /// Does a little of everything, under names of its own.
    pub(crate) fn go_on(&mut self, flooded: &str) {
        self.rounds += 1;
        self.repeat(flooded);
    }

    /// Does it again, under the same names.
    pub(crate) fn repeat(&mut self, flooded: &str) {
        let name = format!("a{}", self.rounds);
        let mut wire = RawKafkaConnection::connect(self.server.kafka);
        self.produce(&mut wire, flooded);
        transact(&mut wire, &name, flooded);
        use_groups(&mut wire, &name, flooded);
        use_topics(&mut wire, &name, flooded);
        self.fetch(&mut wire, &name, flooded);
        push_metrics(&mut wire, flooded);
        self.ask_for_the_past(&name, flooded);
        self.use_znodes(&name, flooded);
    }

    fn produce(&self, wire: &mut RawKafkaConnection, flooded: &str) {
        assert_eq!(wire.produce(TOPIC, 0, &self.batch), (0, 0), "a duplicate. {flooded}");
        let producer = init_producer(wire, None);
        let batch = idempotent_batch(producer.producer_id.0, producer.producer_epoch);
        assert_eq!(wire.produce(TOPIC, 0, &batch).0, 0, "{flooded}");
        assert_eq!(wire.produce(TOPIC, 0, &super::plain_batch(LARGE_BYTES)).0, 0, "{flooded}");
    }

    fn fetch(&self, wire: &mut RawKafkaConnection, name: &str, flooded: &str) {
        let opening = fetch_request(TOPIC, 0, 0, Duration::ZERO).with_session_epoch(0);
        let answer = wire.call(12, &opening).expect("an answer");
        assert_ne!(answer.session_id, 0, "no session. {flooded}");
        assert!(answer.responses[0].partitions[0].records.is_some(), "{flooded}");
        let closing = fetch_request(TOPIC, 0, 0, Duration::ZERO)
            .with_session_id(answer.session_id)
            .with_session_epoch(-1);
        wire.call(12, &closing).expect("an answer");
        let mut request = share_fetch("a-shares", name, self.share_topic, 0..1);
        for epoch in [0, -1] {
            request = request.with_share_session_epoch(epoch);
            let answer = wire.call(1, &request).expect("an answer");
            assert_eq!(answer.error_code, 0, "{:?}. {flooded}", answer.error_message);
        }
    }

    fn ask_for_the_past(&self, name: &str, flooded: &str) {
        let ask = |document: Value| {
            let (status, body) = post(HOST, self.server.http, &document);
            assert_eq!(status, 200, "{document} {body}. {flooded}");
            body
        };
        let at = moment_in(Duration::ZERO);
        ask(json!({"op": "cut", "at": at, "topics": [TOPIC], "when": "wait"}));
        ask(json!({"op": "diff", "from": "s1", "until": at, "only": ["topics"]}));
        ask(json!({"op": "pin", "name": name, "at": at, "for_ms": 60_000}));
        ask(json!({"op": "unpin", "name": name}));
        let path = format!("/topics/{TOPIC}/0.jsonl");
        let opened = ask(json!({"op": "tree", "do": "open", "path": path}));
        let open = &opened["open"];
        let read = ask(json!({"op": "tree", "do": "read", "open": open, "at": 0, "length": 10}));
        assert!(read["base64"].is_string(), "{read}. {flooded}");
        ask(json!({"op": "tree", "do": "close", "open": open}));
        let (status, _) = http_get(self.server.http, "/metrics").expect("an answer");
        assert_eq!(status, 200, "{flooded}");
    }

    fn use_znodes(&self, name: &str, flooded: &str) {
        let address = self.server.zookeeper.expect("it is served");
        let mut session = ZkSession::begin(HOST, address)
            .unwrap_or_else(|| panic!("no session for another client. {flooded}"));
        assert_eq!(session.create(&format!("/{name}"), b"x", EPHEMERAL), 0, "{flooded}");
        session.close();
    }
}

fn transact(wire: &mut RawKafkaConnection, name: &str, flooded: &str) {
    let producer = init_producer(wire, Some(name));
    assert_eq!(producer.error_code, 0, "{flooded}");
    assert_eq!(add_partitions(wire, name, &producer, TOPIC, vec![0]), 0, "{flooded}");
    assert_eq!(add_offsets(wire, name, &producer, "a-group"), 0, "{flooded}");
    let request = EndTxnRequest::default()
        .with_transactional_id(transactional_id(name))
        .with_producer_id(producer.producer_id)
        .with_producer_epoch(producer.producer_epoch)
        .with_committed(true);
    assert_eq!(wire.call(3, &request).expect("an answer").error_code, 0, "{flooded}");
}

fn use_groups(wire: &mut RawKafkaConnection, name: &str, flooded: &str) {
    assert_eq!(commit_offset(wire, TOPIC, name), 0, "{flooded}");
    let member = format!("{name}-members");
    for (epoch, subscribed) in [(0, Some(vec![topic_name(TOPIC)])), (-1, None)] {
        let request = ConsumerGroupHeartbeatRequest::default()
            .with_group_id(group_id(&member))
            .with_member_id(str_bytes("m"))
            .with_member_epoch(epoch)
            .with_rebalance_timeout_ms(if epoch == 0 { 1000 } else { -1 })
            .with_subscribed_topic_names(subscribed)
            .with_topic_partitions((epoch == 0).then(Vec::new));
        let answer = wire.call(1, &request).expect("an answer");
        assert_eq!(answer.error_code, 0, "{:?}. {flooded}", answer.error_message);
    }
    let request =
        DeleteGroupsRequest::default().with_groups_names(vec![group_id(name), group_id(&member)]);
    for result in wire.call(2, &request).expect("an answer").results {
        assert_eq!(result.error_code, 0, "{flooded}");
    }
}

fn use_topics(wire: &mut RawKafkaConnection, name: &str, flooded: &str) {
    wire.create_topic(name, 1, &[]);
    let topic = DeleteTopicState::default().with_name(Some(topic_name(name)));
    let request = DeleteTopicsRequest::default().with_topics(vec![topic]);
    let answer = wire.call(6, &request).expect("an answer");
    assert_eq!(answer.responses[0].error_code, 0, "{flooded}");
}

fn push_metrics(wire: &mut RawKafkaConnection, flooded: &str) {
    let asked = wire.call(0, &GetTelemetrySubscriptionsRequest::default()).expect("an answer");
    assert_eq!(asked.error_code, 0, "{flooded}");
    let request = PushTelemetryRequest::default()
        .with_client_instance_id(asked.client_instance_id)
        .with_subscription_id(asked.subscription_id)
        .with_metrics(super::floods::gauges("orders.seen", 1));
    let pushed = wire.call(0, &request).expect("an answer");
    assert_eq!(pushed.error_code, 0, "{flooded}");
}
