//! A server that runs its maintenance while it is killed in between. Records that retention removed
//! are gone from the disk, a compacted topic keeps the newest value of each key, and all else is
//! there.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bytes::Bytes;
use kafka_records::{BatchBuilder, BatchIterator, CompressionType, DecompressionLimit, records};
use testkit::directory::TestDirectory;
use testkit::process::{RawKafkaConnection, TestServer, http_get, wait_until};

const OFFSET_OUT_OF_RANGE: i16 = 1;
const INVALID_TOPIC: i16 = 17;
const EARLIEST: i64 = -2;
const LATEST: i64 = -1;
const INCARNATIONS: usize = 3;
const KEYS: usize = 8;
const VALUE_BYTES: usize = 32 << 10;
/// Rounds per incarnation: each writes one batch to each topic.
const ROUNDS: usize = 120;
const RETENTION_BYTES: u64 = 1 << 20;
/// Bytes that stay on the disk: a megabyte of records, some keys, and the segments that are open,
/// or sorted and not removed yet. Each incarnation writes as much again.
const ALLOCATED_BYTES_MAX: u64 = 6 << 20;

const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };

const SETTINGS: [&str; 8] = [
    "--set",
    "storage.segment-bytes=1MiB",
    "--set",
    "log.retention.check.interval.ms=100",
    "--set",
    "log.cleaner.backoff.ms=100",
    "--set",
    "log.segment.delete.delay.ms=100",
];

fn batch(key: Option<&str>, value: &str) -> Bytes {
    let key = key.map(str::as_bytes);
    BatchBuilder::new(CompressionType::None)
        .record(1_700_000_000_000, key, Some(value.as_bytes()), &[])
        .build()
}

/// A different value for each round, of the same length.
fn value(life: usize, round: usize) -> String {
    let mut value = format!("{life}/{round}/");
    value.extend(std::iter::repeat_n('x', VALUE_BYTES - value.len()));
    value
}

/// The disk space of a directory's files.
fn allocated_bytes(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).expect("it can be listed");
    // A file may be removed between the two calls.
    let metadata = entries.filter_map(|entry| entry.ok()?.metadata().ok());
    metadata.map(|metadata| metadata.blocks() * 512).sum()
}

fn metric(server: &TestServer, name: &str) -> u64 {
    let (_, metrics) = http_get(server.http, "/metrics").expect("it answers");
    let line = metrics.lines().find(|line| line.starts_with(name) && !line.starts_with('#'));
    let value = line.and_then(|line| line.split_whitespace().last());
    value.unwrap_or_else(|| panic!("no metric {name}")).parse().expect("a number")
}

/// All records of a partition: offset, key and value.
fn read_all(wire: &mut RawKafkaConnection, topic: &str) -> Vec<(i64, Option<String>, String)> {
    let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).expect("text");
    let (_, mut next) = wire.offset_at(topic, 0, EARLIEST);
    let (_, end) = wire.offset_at(topic, 0, LATEST);
    let mut found = Vec::new();
    while next < end {
        let (error, _, bytes) = wire.fetch(topic, 0, next);
        assert_eq!(error, 0, "{topic} at {next}");
        for batch in BatchIterator::new(&bytes) {
            let (header, batch) = batch.expect("a whole batch");
            let batch = Bytes::copy_from_slice(batch);
            for record in records(&batch, LIMIT).expect("records") {
                let record = record.expect("a record");
                let value = text(record.value.expect("a value"));
                found.push((record.offset, record.key.map(text), value));
            }
            next = header.last_offset() + 1;
        }
    }
    found
}

#[derive(Default)]
struct WrittenRecords {
    count: usize,
    by_key: BTreeMap<String, (i64, String)>,
    /// The log start of the topic with retention.
    start: i64,
}

impl WrittenRecords {
    fn write(&mut self, wire: &mut RawKafkaConnection, life: usize) {
        for round in 0..ROUNDS {
            let (value, offset) = (value(life, round), self.count as i64);
            let key = format!("k{}", round % KEYS);
            assert_eq!(wire.produce("kept", 0, &batch(None, &value)), (0, offset));
            assert_eq!(wire.produce("state", 0, &batch(Some(&key), &value)), (0, offset));
            assert_eq!(wire.produce("all", 0, &batch(None, &key)), (0, offset));
            self.by_key.insert(key, (offset, value));
            self.count += 1;
        }
    }

    fn check(&mut self, wire: &mut RawKafkaConnection) {
        let (end, start) = (self.count as i64, wire.offset_at("kept", 0, EARLIEST).1);
        assert!(start >= self.start, "a start never falls: {start}");
        self.start = start;
        assert_eq!(wire.fetch("kept", 0, start - 1).0, OFFSET_OUT_OF_RANGE);
        let kept = read_all(wire, "kept");
        // More may have gone since.
        let first = kept.first().expect("some is kept").0;
        assert!(first >= start);
        assert_eq!(kept.iter().map(|read| read.0).collect::<Vec<_>>(), Vec::from_iter(first..end));
        let bytes: usize = kept.iter().map(|read| read.2.len()).sum();
        assert!(bytes as u64 >= RETENTION_BYTES - VALUE_BYTES as u64, "{bytes}");
        let mut by_key = BTreeMap::new();
        let mut last = -1;
        for (offset, key, value) in read_all(wire, "state") {
            assert!(offset > last);
            last = offset;
            by_key.insert(key.expect("a key"), (offset, value));
        }
        assert!(by_key == self.by_key, "the newest of each key");
        let all = read_all(wire, "all");
        assert_eq!(all.len(), self.count);
        let expected = |nth: usize| format!("k{}", nth % ROUNDS % KEYS);
        assert!(all.iter().enumerate().all(|(nth, read)| read.2 == expected(nth)));
    }
}

#[test]
fn a_server_that_is_killed_in_between_applies_retention_compacts_and_reclaims_space() {
    let data = TestDirectory::new();
    let journal = data.path().join("journal");
    let mut written = WrittenRecords::default();
    let mut early = None;
    for life in 0..INCARNATIONS {
        let server = TestServer::start(data.path(), &SETTINGS).expect("it starts after a kill");
        let mut wire = RawKafkaConnection::connect(server.kafka);
        if life == 0 {
            wire.create_topic("kept", 1, &[("retention.bytes", &RETENTION_BYTES.to_string())]);
            wire.create_topic(
                "state",
                1,
                &[("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.01")],
            );
            wire.create_topic("all", 1, &[]);
        } else {
            written.check(&mut wire);
        }
        written.write(&mut wire, life);
        if life == 0 {
            // A moment of the first incarnation, before anything of this size was removed.
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            early = Some(since.expect("after 1970").as_millis() + 1);
        }
        let start = written.start;
        wait_until("the start moves", || wire.offset_at("kept", 0, EARLIEST).1 > start);
        wait_until("a log is compacted", || metric(&server, "freezeframe_logs_compacted") > 0);
        wait_until("most of the compacted is gone", || {
            // Except for what is in the open segment.
            read_all(&mut wire, "state").len() < KEYS + ROUNDS / 3
        });
        wait_until("space comes back", || allocated_bytes(&journal) < ALLOCATED_BYTES_MAX);
        written.check(&mut wire);
        if life + 1 < INCARNATIONS {
            server.kill().expect("it is killed");
        } else {
            server.stop().expect("it stops");
        }
    }
    // Every moment is what it was, or an error.
    let server = TestServer::start(data.path(), &SETTINGS).expect("it starts again");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    written.check(&mut wire);
    let moment = early.expect("there was a first incarnation");
    for topic in ["kept", "state"] {
        let (error, ..) = wire.fetch(&format!("{topic}.__at.s{moment}"), 0, 0);
        assert_eq!(error, INVALID_TOPIC, "{topic}");
    }
    let all = read_all(&mut wire, &format!("all.__at.s{moment}"));
    assert_eq!(all.len(), ROUNDS);
}
