//! One principal floods what everybody shares, and another one goes on as before.

mod floods;
mod go_on;
mod walk;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{
    InitProducerIdRequest, ProduceRequest, SaslAuthenticateRequest, SaslHandshakeRequest,
};
use kafka_protocol::protocol::StrBytes;
use kafka_records::{BatchBuilder, CompressionType};
use serde_json::Value;
use testkit::directory::TestDirectory;
use testkit::process::{RawKafkaConnection, TestServer, http_get, run};
use testkit::requests::{encode_frame, produce_request};

const POLICY_VIOLATION: i16 = 44;
const PRODUCE_VERSION: i16 = 9;

fn add_user(data: &TestDirectory, name: &str) {
    let directory = data.path().to_str().expect("a path in UTF-8");
    let added = run(&["users", "add", name, "--data-dir", directory], "secret\n");
    assert_eq!(added.code, Some(0), "{}", added.stderr);
}

fn serve(data: &TestDirectory) -> TestServer {
    let listeners = "listeners=SASL_PLAINTEXT://127.0.0.1:0";
    let settings = ["--set", listeners, "--set", "sasl.enabled.mechanisms=PLAIN"];
    TestServer::start(data.path(), &settings).expect("it starts")
}

fn log_in(server: &TestServer, user: &str) -> RawKafkaConnection {
    let mut wire = RawKafkaConnection::connect(server.kafka);
    let mechanism = StrBytes::from_static_str("PLAIN");
    let handshake = SaslHandshakeRequest::default().with_mechanism(mechanism);
    assert_eq!(wire.call(1, &handshake).expect("an answer").error_code, 0);
    let message = Bytes::from(format!("\0{user}\0secret"));
    let login = SaslAuthenticateRequest::default().with_auth_bytes(message);
    assert_eq!(wire.call(2, &login).expect("an answer").error_code, 0);
    wire
}

fn idempotent_batch(producer: i64, epoch: i16) -> Bytes {
    let mut builder = BatchBuilder::new(CompressionType::None);
    builder
        .producer(producer, epoch, 0)
        .record(1_700_000_000_000, None, Some(b"value"), &[])
        .build()
}

/// A batch with one value of so many bytes.
fn plain_batch(bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new(CompressionType::None);
    builder.record(1_700_000_000_000, None, Some(&vec![7; bytes]), &[]).build()
}

/// The first batch of a producer that the server gives an id.
fn new_producer_batch(wire: &mut RawKafkaConnection) -> Bytes {
    let request = InitProducerIdRequest::default().with_transactional_id(None);
    let given = wire.call(4, &request).expect("an answer");
    assert_eq!(given.error_code, 0);
    idempotent_batch(given.producer_id.0, given.producer_epoch)
}

fn budget(server: &TestServer, name: &str) -> Value {
    let (status, body) = http_get(server.http, "/v1/budgets").expect("an answer");
    assert_eq!(status, 200, "{body}");
    let document: Value = serde_json::from_str(&body).expect("a document");
    let budgets = document["budgets"].as_array().expect("a list");
    budgets.iter().find(|budget| budget["name"] == name).expect(name).clone()
}

/// More invented producers in alice's partition than a server has room for.
#[test]
fn invented_producers_break_nobody_elses_idempotence() {
    const FLOOD: i64 = 25_000;
    const PIPELINED: i64 = 100;
    let data = TestDirectory::new();
    ["alice", "bob"].iter().for_each(|user| add_user(&data, user));
    let server = serve(&data);
    let mut alice = log_in(&server, "alice");
    alice.create_topic("orders", 1, &[]);
    let batch = new_producer_batch(&mut alice);
    assert_eq!(alice.produce("orders", 0, &batch), (0, 0));
    let mut bob = log_in(&server, "bob");
    let (mut refused, mut last) = (0, String::new());
    for first in (0..FLOOD).step_by(PIPELINED as usize) {
        let mut frames = BytesMut::new();
        for nth in first..first + PIPELINED {
            let records = idempotent_batch(1_000_000 + nth, 0);
            let request = produce_request("orders", 0, &records).with_acks(1);
            frames.put(&encode_frame(PRODUCE_VERSION, &request)[..]);
        }
        bob.send(&frames).expect("it is read");
        for _ in 0..PIPELINED {
            let response =
                bob.receive_response::<ProduceRequest>(PRODUCE_VERSION).expect("an answer");
            let partition = &response.responses[0].partition_responses[0];
            if partition.error_code != 0 {
                assert_eq!(partition.error_code, POLICY_VIOLATION);
                refused += 1;
                last = partition.error_message.as_deref().unwrap_or_default().to_owned();
            }
        }
    }
    assert!(refused > 0 && last.starts_with("User:bob holds"), "{refused} {last}");
    assert_eq!(alice.produce("orders", 0, &batch), (0, 0), "the retry is a duplicate");
    let usage = budget(&server, "producers-of-unknown-ids");
    assert_eq!(usage["largest"]["name"], "User:bob", "{usage}");
    // A new producer of somebody else finds room, also after a restart.
    let new_producer = |server: &TestServer, user: &str| {
        let mut wire = log_in(server, user);
        let batch = new_producer_batch(&mut wire);
        wire.produce("orders", 0, &batch).0
    };
    assert_eq!(new_producer(&server, "alice"), 0);
    server.stop().expect("it stops");
    let server = serve(&data);
    assert_eq!(log_in(&server, "alice").produce("orders", 0, &batch), (0, 0));
    assert_eq!(new_producer(&server, "alice"), 0);
}
