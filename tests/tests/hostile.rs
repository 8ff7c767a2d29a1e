//! Clients that are hostile or broken: each is refused, and only it.
//!
//! After every attack, a good client that was connected all along and a new one still write and
//! read, in the same server process.

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{
    ApiVersionsRequest, CreateTopicsRequest, JoinGroupRequest, MetadataRequest, ProduceRequest,
};
use kafka_protocol::protocol::Request;
use kafka_records::{
    BatchBuilder, BatchHeader, BatchIterator, CompressionType, HEADER_BYTES, set_crc,
};
use testkit::directory::TestDirectory;
use testkit::process::{RawKafkaConnection, TestServer, resident_bytes, resident_bytes_peak};
use testkit::requests::{
    encode_frame, fetch_request, length_prefixed, list_offsets_request, produce_request,
};
use testkit::rng::SeededRng;

const MIB: u64 = 1 << 20;
/// The timestamp of a record, where it does not matter.
const TIME_MS: i64 = 1_700_000_000_000;

const CORRUPT_MESSAGE: i16 = 2;
const MESSAGE_TOO_LARGE: i16 = 10;
const UNSUPPORTED_VERSION: i16 = 35;
const INVALID_RECORD: i16 = 87;

fn batch(value: &[u8]) -> Bytes {
    BatchBuilder::new(CompressionType::None).record(TIME_MS, None, Some(value), &[]).build()
}

/// A server, and a good client that connected first.
struct HostileTestServer {
    server: TestServer,
    good: RawKafkaConnection,
    written: i64,
    _data: TestDirectory,
}

impl HostileTestServer {
    fn new(arguments: &[&str]) -> HostileTestServer {
        let data = TestDirectory::new();
        let server = TestServer::start(data.path(), arguments).expect("the server starts");
        let mut good = RawKafkaConnection::connect(server.kafka);
        good.create_topic("good", 1, &[]);
        let mut victim = HostileTestServer { server, good, written: 0, _data: data };
        victim.assert_serves();
        victim
    }

    fn connect(&self) -> RawKafkaConnection {
        RawKafkaConnection::connect(self.server.kafka)
    }

    /// Sends `bytes`, then shuts down. The server must close the connection without a response.
    fn assert_disconnects(&self, what: &str, bytes: &[u8]) {
        let mut wire = self.connect();
        let _ = wire.send(bytes);
        wire.shutdown_write();
        let words = wire.read_until_closed();
        assert!(words.is_empty(), "{what} was answered: {words:?}");
    }

    /// The good client, and a new one, write and read.
    fn assert_serves(&mut self) {
        let mut new = RawKafkaConnection::connect(self.server.kafka);
        for wire in [&mut self.good, &mut new] {
            let value = format!("value {}", self.written);
            assert_eq!(wire.produce("good", 0, &batch(value.as_bytes())), (0, self.written));
            let (error, end, batches) = wire.fetch("good", 0, self.written);
            assert_eq!((error, end), (0, self.written + 1));
            assert!(batches.ends_with(&[value.as_bytes(), &[0]].concat()), "{batches:?}");
            self.written += 1;
        }
        assert!(self.server.is_running(), "it is the process that was there before");
    }
}

/// Bytes that look random, the same in every run.
fn random_bytes(seed: u64, count: usize) -> Vec<u8> {
    SeededRng::new(seed).bytes(count)
}

/// A frame with a header of version 1, of a client without a name.
fn request(key: i16, version: i16, body: &[u8]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    bytes.put_i16(key);
    bytes.put_i16(version);
    bytes.put_i32(7);
    bytes.put_i16(-1);
    bytes.put_slice(body);
    length_prefixed(&bytes)
}

/// The same with an empty list of tagged fields in the header: version 2.
fn flexible_request(key: i16, version: i16, body: &[u8]) -> Vec<u8> {
    request(key, version, &[&[0], body].concat())
}

#[test]
fn bytes_that_are_no_frames_end_their_own_connection_only() {
    let mut victim = HostileTestServer::new(&[]);
    for (what, length) in [
        ("a negative length", -1),
        ("the most negative length", i32::MIN),
        ("the largest length", i32::MAX),
        ("a length just above the limit", (100 << 20) + 1),
        ("an empty frame", 0),
    ] {
        victim.assert_disconnects(what, &length.to_be_bytes());
    }
    victim.assert_disconnects("a frame without room for a header", &length_prefixed(&[0, 3, 0]));
    victim.assert_disconnects("half a length", &[0, 0]);
    for seed in 1..=100 {
        let what = format!("noise of seed {seed}");
        victim.assert_disconnects(&what, &random_bytes(seed, 1 + 7 * seed as usize));
        victim.assert_disconnects(
            &what,
            &length_prefixed(&random_bytes(seed, 1 + 7 * seed as usize)),
        );
    }
    victim.assert_serves();
}

#[test]
fn requests_that_are_not_served_end_the_connection_but_api_versions_says_what_is() {
    let mut victim = HostileTestServer::new(&[]);
    for key in [-1, 4, 7, 9999, i16::MAX] {
        victim.assert_disconnects(&format!("API {key}"), &request(key, 0, &[]));
    }
    for (key, version) in [(0, 2), (0, 99), (1, 3), (1, 99), (3, -1), (3, 99), (3, i16::MIN)] {
        victim
            .assert_disconnects(&format!("API {key} v{version}"), &request(key, version, &[0; 64]));
    }
    let mut wire = victim.connect();
    wire.send(&flexible_request(18, 99, &[1, 1, 0])).expect("it can be sent");
    let answer = wire.receive_response::<ApiVersionsRequest>(0).expect("an answer in version 0");
    assert_eq!(answer.error_code, UNSUPPORTED_VERSION);
    assert!(answer.api_keys.iter().any(|api| api.api_key == 18), "it says what it serves");
    victim.assert_serves();
}

#[test]
fn a_body_cut_short_anywhere_ends_the_connection() {
    fn assert_truncations_disconnect<R: Request>(
        victim: &HostileTestServer,
        version: i16,
        request: &R,
    ) {
        let whole = encode_frame(version, request);
        for length in (8..whole.len() - 4).rev().step_by(2) {
            let what = format!("API {} v{version} of {length} bytes", R::KEY);
            victim.assert_disconnects(&what, &length_prefixed(&whole[4..4 + length]));
        }
    }
    let mut victim = HostileTestServer::new(&[]);
    assert_truncations_disconnect(&victim, 9, &produce_request("good", 0, &batch(b"never")));
    assert_truncations_disconnect(&victim, 12, &fetch_request("good", 0, 0, Duration::ZERO));
    assert_truncations_disconnect(&victim, 6, &list_offsets_request("good", 0, 1));
    assert_truncations_disconnect(&victim, 12, &MetadataRequest::default());
    assert_truncations_disconnect(
        &victim,
        1,
        &MetadataRequest::default().with_topics(Some(vec![])),
    );
    assert_truncations_disconnect(&victim, 7, &CreateTopicsRequest::default());
    assert_truncations_disconnect(&victim, 9, &JoinGroupRequest::default());
    victim.assert_serves();
}

#[test]
fn counts_that_the_bytes_do_not_bear_out_reserve_no_memory() {
    let mut victim = HostileTestServer::new(&[]);
    let before = resident_bytes_peak(victim.server.pid());
    // As an unsigned varint: 0x7fffffff elements, and as many as can be encoded.
    let huge: [&[u8]; 2] = [&[0x80, 0x80, 0x80, 0x80, 0x08], &[0xff, 0xff, 0xff, 0xff, 0x0f]];
    for count in huge {
        let bombs: [(&str, i16, i16, Vec<u8>); 5] = [
            ("Metadata's topics", 3, 12, count.to_vec()),
            ("Produce's topics", 0, 9, [&[0, 0xff, 0xff, 0, 0, 0, 0], count].concat()),
            ("Fetch's topics", 1, 12, [&[0xff; 21][..], count].concat()),
            ("DeleteTopics' names", 20, 6, count.to_vec()),
            ("DescribeGroups' groups", 15, 5, count.to_vec()),
        ];
        for (what, key, version, body) in bombs {
            let body = [&body[..], &[0; 32]].concat();
            victim.assert_disconnects(what, &flexible_request(key, version, &body));
        }
        // In the header itself: tagged fields.
        let header = request(3, 12, &[count, &[0; 16]].concat());
        victim.assert_disconnects("tagged fields of a header", &header);
    }
    for count in [i32::MAX, -2, 1 << 24] {
        let body = [&count.to_be_bytes()[..], &[0; 32]].concat();
        victim.assert_disconnects("Metadata's topics", &request(3, 1, &body));
    }
    // A name longer than its frame.
    victim.assert_disconnects(
        "a client's name",
        &length_prefixed(&[0, 3, 0, 1, 0, 0, 0, 7, 0x7f, 0xff, b'a']),
    );
    let grown = resident_bytes_peak(victim.server.pid()).saturating_sub(before);
    assert!(grown < 64 * MIB, "it grew by {} MiB", grown / MIB);
    victim.assert_serves();
}

/// Each name takes a byte of the request, 32 once it is read, and 150 in the answer.
#[test]
fn a_request_of_millions_of_names_is_refused_and_one_of_many_takes_its_room() {
    let mut victim = HostileTestServer::new(&[]);
    let before = resident_bytes_peak(victim.server.pid());
    let keys = |count: usize| {
        let mut body = vec![0];
        let mut left = count + 1;
        while left >= 0x80 {
            body.push(left as u8 | 0x80);
            left >>= 7;
        }
        body.push(left as u8);
        body.resize(body.len() + count, 1);
        body.push(0);
        flexible_request(10, 4, &body)
    };
    victim.assert_disconnects("60 million keys", &keys(60_000_000));
    let grown = resident_bytes_peak(victim.server.pid()).saturating_sub(before);
    assert!(grown < 200 * MIB, "it grew by {} MiB", grown / MIB);
    let mut wire = victim.connect();
    wire.send(&keys(1_000_000)).expect("it is read");
    assert!(wire.receive().expect("it is answered").len() > 10_000_000);
    let grown = resident_bytes_peak(victim.server.pid()).saturating_sub(before);
    assert!(grown < 800 * MIB, "it grew by {} MiB", grown / MIB);
    // No name is that long, whatever its length is written with.
    let long = [&[0, 2, 0x81, 0x80, 0x02][..], &[b'a'; 0x8000], &[0]].concat();
    victim.assert_disconnects("a long name", &flexible_request(10, 4, &long));
    victim.assert_serves();
}

#[test]
fn questions_about_the_past_that_nest_too_deep_or_are_too_long_are_refused() {
    let mut victim = HostileTestServer::new(&[]);
    let key = i16::from_be_bytes(*b"FF");
    let mut wire = victim.connect();
    for document in ["[".repeat(1 << 19), r#"{"op":"cut","at":"#.repeat(10_000), String::new()] {
        wire.send(&request(key, 0, document.as_bytes())).expect("it can be sent");
        let answer = wire.receive().expect("a refusal");
        let answer: serde_json::Value = serde_json::from_slice(&answer[4..]).expect("JSON");
        assert_eq!(answer["error"]["code"], "bad_request", "{answer}");
    }
    wire.send(&request(key, 0, &[b'['; (1 << 20) + 1])).expect("it can be sent");
    let answer = wire.receive().expect("a refusal");
    let answer: serde_json::Value = serde_json::from_slice(&answer[4..]).expect("JSON");
    assert_eq!(answer["error"]["code"], "too_large", "{answer}");
    victim.assert_disconnects("another version", &request(key, 1, b"{}"));
    victim.assert_serves();
}

/// `batch` with its header changed, and the checksum recomputed.
fn with_header(batch: &Bytes, change: impl FnOnce(&mut BatchHeader)) -> Bytes {
    let mut header = BatchHeader::parse(batch).expect("a batch");
    change(&mut header);
    with_checksum(header, &batch[HEADER_BYTES..])
}

fn with_checksum(header: BatchHeader, rest: &[u8]) -> Bytes {
    let mut bytes = header.to_bytes();
    set_crc(&mut bytes, rest);
    [&bytes, rest].concat().into()
}

#[test]
fn a_broken_batch_is_refused_with_kafkas_code_and_leaves_no_trace() {
    let mut victim = HostileTestServer::new(&[]);
    let mut wire = victim.connect();
    wire.create_topic("t", 1, &[("max.message.bytes", "1000")]);
    let good = batch(b"good");
    let flipped = |at: usize| {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1;
        Bytes::from(bytes)
    };
    let of_magic = |magic: u8| {
        let mut bytes = good.to_vec();
        bytes[16] = magic;
        Bytes::from(bytes)
    };
    let header = BatchHeader::parse(&good).expect("a batch");
    let rest = b"this is no gzip at all";
    let length = (HEADER_BYTES - 12 + rest.len()) as i32;
    let refused = [
        ("a flipped bit", flipped(good.len() - 2), CORRUPT_MESSAGE),
        ("a flipped checksum", flipped(17), CORRUPT_MESSAGE),
        ("cut short", good.slice(..good.len() - 1), CORRUPT_MESSAGE),
        ("a piece of a header", good.slice(..20), CORRUPT_MESSAGE),
        ("magic 0", of_magic(0), INVALID_RECORD),
        ("magic 1", of_magic(1), INVALID_RECORD),
        ("magic 3", of_magic(3), INVALID_RECORD),
        ("two batches", [&good[..], &good].concat().into(), INVALID_RECORD),
        (
            "a control batch",
            with_header(&good, |header| header.attributes |= 1 << 5),
            INVALID_RECORD,
        ),
        ("append time", with_header(&good, |header| header.attributes |= 1 << 3), INVALID_RECORD),
        ("a count that lies", with_header(&good, |header| header.record_count = 2), INVALID_RECORD),
        (
            "a count as large as can be",
            with_header(&good, |header| {
                (header.record_count, header.last_offset_delta) = (i32::MAX, i32::MAX - 1);
            }),
            INVALID_RECORD,
        ),
        ("an unknown codec", with_header(&good, |header| header.attributes |= 7), INVALID_RECORD),
        (
            "what is no gzip",
            with_checksum(BatchHeader { length, attributes: 1, ..header }, rest),
            INVALID_RECORD,
        ),
        ("too large", batch(&[b'x'; 1000]), MESSAGE_TOO_LARGE),
    ];
    for (what, records, error) in refused {
        assert_eq!(wire.produce("t", 0, &records), (error, -1), "{what}");
    }
    assert_eq!(wire.fetch("t", 0, 0), (0, 0, Bytes::new()), "nothing was written");
    assert_eq!(wire.produce("t", 0, &good), (0, 0));
    victim.assert_serves();
}

/// A batch of one record, compressed by zstd: blocks of one repeated byte, as many as `unpacked`
/// takes.
fn zstd_bomb(unpacked: u64) -> Bytes {
    const BLOCK_BYTES: u64 = 128 << 10;
    // Magic, no content size, a window of 128 KiB.
    let mut packed = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38];
    let blocks = unpacked / BLOCK_BYTES;
    for block in 1..=blocks {
        let header = (BLOCK_BYTES << 3) | (1 << 1) | u64::from(block == blocks);
        packed.extend_from_slice(&header.to_le_bytes()[..3]);
        packed.push(0);
    }
    let header = BatchHeader::parse(&batch(b"")).expect("a batch");
    let length = (HEADER_BYTES - 12 + packed.len()) as i32;
    with_checksum(BatchHeader { length, attributes: 4, ..header }, &packed)
}

#[test]
fn a_compression_bomb_is_refused_and_does_not_exhaust_memory() {
    let mut victim = HostileTestServer::new(&[]);
    let bomb = zstd_bomb(8 << 30);
    assert!(bomb.len() < 1 << 20, "{} bytes", bomb.len());
    let mut wires: Vec<RawKafkaConnection> = (0..4).map(|_| victim.connect()).collect();
    wires[0].create_topic("bomb", 1, &[]);
    for wire in &mut wires {
        wire.send(&encode_frame(8, &produce_request("bomb", 0, &bomb))).expect("it can be sent");
    }
    for wire in &mut wires {
        let answer = wire.receive_response::<ProduceRequest>(8).expect("an answer");
        let answer = &answer.responses[0].partition_responses[0];
        assert_eq!((answer.error_code, answer.base_offset), (MESSAGE_TOO_LARGE, -1), "{answer:?}");
    }
    assert_eq!(wires[0].fetch("bomb", 0, 0), (0, 0, Bytes::new()), "nothing was written");
    let peak = resident_bytes_peak(victim.server.pid());
    assert!(peak < 640 * MIB, "{} MiB", peak / MIB);
    victim.assert_serves();
}

#[test]
fn a_batch_that_unpacks_to_more_than_was_allowed_since_harms_nothing_around_it() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("the server starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("t", 1, &[]);
    let large = BatchBuilder::new(CompressionType::Zstd)
        .record(2000, None, Some(&vec![b'x'; 2 << 20]), &[])
        .record(3000, None, None, &[])
        .build();
    let at =
        |time_ms| BatchBuilder::new(CompressionType::None).record(time_ms, None, None, &[]).build();
    assert_eq!(wire.produce("t", 0, &at(1000)), (0, 0));
    assert_eq!(wire.produce("t", 0, &large), (0, 1));
    assert_eq!(wire.produce("t", 0, &at(4000)), (0, 3));
    assert_eq!(wire.offset_at("t", 0, 2001), (0, 2));
    assert_eq!(server.stop().expect("it stops").code(), Some(0));
    let arguments = ["--set", "limits.unpacked-bytes=1MiB"];
    let server = TestServer::start(data.path(), &arguments).expect("the server starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    assert_eq!(wire.offset_at("t", 0, 1000), (0, 0));
    assert_eq!(wire.offset_at("t", 0, 3001), (0, 3));
    assert_eq!(wire.produce("t", 0, &large), (MESSAGE_TOO_LARGE, -1));
    assert_eq!(wire.produce("t", 0, &at(5000)), (0, 4), "it can still be written");
    let (error, end, batches) = wire.fetch("t", 0, 0);
    let counts = BatchIterator::new(&batches).map(|batch| batch.expect("a batch").0.record_count);
    assert_eq!((error, end, counts.sum::<i32>()), (0, 5, 5), "and read");
    assert_eq!(wire.fetch("t.__at.u1001", 0, 0).0, 0);
}

#[test]
fn more_half_sent_requests_than_there_is_room_for_do_not_keep_others_out() {
    let mut victim = HostileTestServer::new(&[]);
    let mut half_open: Vec<RawKafkaConnection> = (0..400).map(|_| victim.connect()).collect();
    for wire in &mut half_open {
        wire.send(&(90_i32 << 20).to_be_bytes()).expect("it can be sent");
        wire.send(&[0; 100 << 10]).expect("it can be sent");
    }
    let begun = Instant::now();
    let large = batch(&vec![b'x'; 500 << 10]);
    assert_eq!(victim.good.produce("good", 0, &large), (0, victim.written));
    victim.written += 1;
    victim.assert_serves();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let resident = resident_bytes(victim.server.pid());
    assert!(resident < 300 * MIB, "{} MiB", resident / MIB);
}

#[test]
fn connections_that_announce_gigabytes_and_send_little_cost_little_and_block_nobody() {
    let mut victim = HostileTestServer::new(&[]);
    let mut half_open: Vec<RawKafkaConnection> = (0..40).map(|_| victim.connect()).collect();
    for sent in [1 << 10, 100 << 10] {
        for wire in &mut half_open {
            if sent == 1 << 10 {
                wire.send(&(90_i32 << 20).to_be_bytes()).expect("it can be sent");
            }
            wire.send(&vec![0; sent]).expect("it can be sent");
        }
        let begun = Instant::now();
        for _ in 0..10 {
            victim.assert_serves();
        }
        // Larger than what is free of the budget for requests.
        let large = batch(&vec![b'x'; 500 << 10]);
        assert_eq!(victim.good.produce("good", 0, &large), (0, victim.written));
        victim.written += 1;
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let resident = resident_bytes(victim.server.pid());
        assert!(resident < 300 * MIB, "{} MiB", resident / MIB);
    }
    drop(half_open);
    victim.assert_serves();
}

#[test]
fn a_client_that_does_not_read_its_answers_is_not_read_from_for_ever() {
    let mut victim = HostileTestServer::new(&[]);
    let mut wire = victim.connect();
    wire.create_topic("large", 1, &[]);
    assert_eq!(wire.produce("large", 0, &batch(&vec![b'x'; 900 << 10])), (0, 0));
    let mut deaf = victim.connect();
    let ask = encode_frame(12, &fetch_request("large", 0, 0, Duration::ZERO));
    for _ in 0..500 {
        deaf.send(&ask).expect("small requests fit into the socket's buffers");
    }
    for _ in 0..10 {
        victim.assert_serves();
    }
    // 450 MiB of responses are due.
    let resident = resident_bytes(victim.server.pid());
    assert!(resident < 300 * MIB, "{} MiB", resident / MIB);
}

#[test]
fn more_connections_than_are_allowed_are_refused_and_the_others_go_on() {
    let data = TestDirectory::new();
    let mut server =
        TestServer::start(data.path(), &["--set", "max.connections=4"]).expect("the server starts");
    let metadata = MetadataRequest::default();
    let mut open: Vec<RawKafkaConnection> =
        (0..4).map(|_| RawKafkaConnection::connect(server.kafka)).collect();
    for wire in &mut open {
        wire.call(12, &metadata).expect("within the limit");
    }
    for _ in 0..20 {
        let mut wire = RawKafkaConnection::connect(server.kafka);
        let _ = wire.send(&encode_frame(12, &metadata));
        assert!(wire.read_until_closed().is_empty(), "beyond the limit");
    }
    for wire in &mut open {
        wire.call(12, &metadata).expect("those who were there go on");
    }
    // A client that disconnects makes room, once the server has noticed.
    open.pop();
    let begun = Instant::now();
    while RawKafkaConnection::connect(server.kafka).call(12, &metadata).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "there is room again");
    }
    assert!(server.is_running());
}
