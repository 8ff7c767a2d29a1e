//! One principal floods what everybody shares, and another one goes on as before.

mod floods;
mod go_on;
mod walk;

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{
    InitProducerIdRequest, InitProducerIdResponse, ProduceRequest, SaslAuthenticateRequest,
    SaslHandshakeRequest,
};
use kafka_protocol::protocol::StrBytes;
use kafka_records::{BatchBuilder, CompressionType};
use serde_json::Value;
use testkit::directory::TestDirectory;
use testkit::process::{
    RawKafkaConnection, TIMEOUT, TestServer, connect_from, http_get, raise_descriptor_limit,
    resident_bytes, resident_bytes_peak, run,
};
use testkit::requests::{encode_frame, list_offsets_request, produce_request};

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
    nth_batch(producer, epoch, 0)
}

/// A batch of one record, with the sequence number `nth`.
fn nth_batch(producer: i64, epoch: i16, nth: i32) -> Bytes {
    let mut builder = BatchBuilder::new(CompressionType::None);
    builder
        .producer(producer, epoch, nth)
        .record(1_700_000_000_000, None, Some(b"value"), &[])
        .build()
}

/// A batch with one value of so many bytes.
fn plain_batch(bytes: usize) -> Bytes {
    let mut builder = BatchBuilder::new(CompressionType::None);
    builder.record(1_700_000_000_000, None, Some(&vec![7; bytes]), &[]).build()
}

/// A producer id that the server gives.
fn new_producer(wire: &mut RawKafkaConnection) -> InitProducerIdResponse {
    let request = InitProducerIdRequest::default().with_transactional_id(None);
    let given = wire.call(4, &request).expect("an answer");
    assert_eq!(given.error_code, 0);
    given
}

/// The first batch of a producer that the server gives an id.
fn new_producer_batch(wire: &mut RawKafkaConnection) -> Bytes {
    let given = new_producer(wire);
    idempotent_batch(given.producer_id.0, given.producer_epoch)
}

/// Sends batches at once, and reads the answers: the error and the base offset of each.
fn produce_pipelined(
    wire: &mut RawKafkaConnection,
    batches: impl Iterator<Item = Bytes>,
) -> Vec<(i16, i64)> {
    let (mut frames, mut count) = (BytesMut::new(), 0);
    for batch in batches {
        let request = produce_request("orders", 0, &batch).with_acks(1);
        frames.put(&encode_frame(PRODUCE_VERSION, &request)[..]);
        count += 1;
    }
    wire.send(&frames).expect("it is read");
    let answer = |_| {
        let response = wire.receive_response::<ProduceRequest>(PRODUCE_VERSION).expect("an answer");
        let partition = &response.responses[0].partition_responses[0];
        (partition.error_code, partition.base_offset)
    };
    (0..count).map(answer).collect()
}

/// Set when it is dropped, also by a test that fails: so that the other thread ends.
pub(crate) struct EndOfFlood<'a>(pub(crate) &'a AtomicBool);

impl Drop for EndOfFlood<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
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

/// A producer sends batches, and some of them again, while somebody else invents producers in the
/// same topic. With `FREEZEFRAME_IDEMPOTENT_BATCHES` there are as many.
#[test]
fn no_batch_is_stored_twice_beside_invented_producers() {
    /// As many as a client of Kafka has on their way at once.
    const IN_FLIGHT: i32 = 5;
    let batches = std::env::var("FREEZEFRAME_IDEMPOTENT_BATCHES");
    let batches: i32 = batches.map_or(2_000, |text| text.parse().expect("a number"));
    let data = TestDirectory::new();
    ["alice", "bob"].iter().for_each(|user| add_user(&data, user));
    let server = serve(&data);
    let mut alice = log_in(&server, "alice");
    alice.create_topic("orders", 2, &[]);
    let producer = new_producer(&mut alice);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bob = log_in(&server, "bob");
            let mut invented = 1_000_000..;
            while !is_over.load(Ordering::Relaxed) {
                let batches = invented.by_ref().take(100).map(|id| idempotent_batch(id, 0));
                let request = |batch| produce_request("orders", 1, &batch).with_acks(1);
                let frames: Vec<_> =
                    batches.map(|batch| encode_frame(PRODUCE_VERSION, &request(batch))).collect();
                bob.send(&frames.concat()).expect("it is read");
                for _ in &frames {
                    bob.receive_response::<ProduceRequest>(PRODUCE_VERSION).expect("an answer");
                }
            }
        });
        let _end = EndOfFlood(&is_over);
        for first in (0..batches).step_by(IN_FLIGHT as usize) {
            let window = || {
                let nth = first..(first + IN_FLIGHT).min(batches);
                nth.map(|nth| nth_batch(producer.producer_id.0, producer.producer_epoch, nth))
            };
            let expected: Vec<_> =
                window().zip(i64::from(first)..).map(|(_, at)| (0, at)).collect();
            assert_eq!(produce_pipelined(&mut alice, window()), expected);
            if first % 7 == 0 {
                assert_eq!(produce_pipelined(&mut alice, window()), expected, "sent again");
            }
        }
    });
    let end = alice.call(7, &list_offsets_request("orders", 0, -1)).expect("an answer");
    assert_eq!(end.topics[0].partitions[0].offset, i64::from(batches));
}

/// Strangers send as much as they may before they log in.
#[test]
fn strangers_cost_little_memory() {
    const STRANGERS: usize = 4_000;
    /// The largest message of a stranger that is read to its end has 64 KiB.
    const SENT_BYTES: usize = 60 << 10;
    const COST_MAX: u64 = 128 << 20;
    raise_descriptor_limit();
    let data = TestDirectory::new();
    add_user(&data, "alice");
    let server = serve(&data);
    let before = resident_bytes(server.pid());
    let message = [&(SENT_BYTES as u32 + 1).to_be_bytes()[..], &vec![0; SENT_BYTES]].concat();
    let begin = |nth: usize| {
        let stream = connect_from(2 + (nth % 200) as u8, server.kafka).ok()?;
        stream.set_nonblocking(true).ok()?;
        // Unread bytes stay with the kernel.
        let _ = (&stream).write(&message);
        Some(stream)
    };
    let strangers: Vec<_> = (0..STRANGERS).filter_map(begin).collect();
    let begun = Instant::now();
    // The memory has no room for half of them, and each of the others is refused or makes somebody
    // give way.
    let usage = || budget(&server, "login-memory");
    while usage()["refused"].as_u64() < Some(STRANGERS as u64 / 2) {
        assert!(begun.elapsed() < TIMEOUT, "{}", usage());
        std::thread::sleep(Duration::from_millis(20));
    }
    let cost = resident_bytes_peak(server.pid()) - before;
    println!("{} strangers cost {} MiB", strangers.len(), cost >> 20);
    assert!(cost <= COST_MAX, "{} strangers cost {} MiB", strangers.len(), cost >> 20);
    log_in(&server, "alice");
}
