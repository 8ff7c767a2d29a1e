//! A server under churn for a long time: topics come and go, offsets are committed, records age and
//! are compacted, moments are read, clients come and go. It must not grow: not in memory, not on
//! the disk, not in descriptors.
//!
//! `FREEZEFRAME_SOAK_SECONDS` sets the duration. Without it a short run only shows that every actor
//! works. Growth is judged from [`JUDGED_MIN`] on, because usage has to stabilize first.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{DeleteTopicsRequest, GroupId, OffsetCommitRequest};
use kafka_protocol::protocol::StrBytes;
use kafka_records::{BatchBuilder, BatchIterator, CompressionType};
use testkit::directory::TestDirectory;
use testkit::process::{RawKafkaConnection, TestServer, resident_bytes};
use testkit::requests::topic_name;

const EARLIEST: i64 = -2;
const LATEST: i64 = -1;
const SHORT_RUN: Duration = Duration::from_secs(10);
/// From this duration on, a run can show whether something grows.
const JUDGED_MIN: Duration = Duration::from_secs(600);
/// The interval of samples of what the server holds.
const SAMPLE_EVERY: Duration = Duration::from_secs(2);
/// The most that the last third of a run may hold in addition to the middle third and a tenth of
/// it.
const MEMORY_SLACK_BYTES: u64 = 16 << 20;
const DISK_SLACK_BYTES: u64 = 8 << 20;
const DESCRIPTOR_SLACK: u64 = 16;

/// Retention and segments so short that what grows with history grows within minutes.
const SETTINGS: [&str; 11] = [
    "storage.segment-bytes=1MiB",
    "storage.segment-age-min=1s",
    "storage.tail-bytes=16MiB",
    "storage.offsets-retention=20s",
    "storage.deleted-topic-retention=10s",
    "log.retention.check.interval.ms=1000",
    "log.cleaner.backoff.ms=1000",
    "log.segment.delete.delay.ms=1000",
    "log.cleaner.delete.retention.ms=10000",
    "log.retention.ms=60000",
    "log.roll.ms=5000",
];

/// One round of an actor's work.
type ActorRound = Box<dyn FnMut(&mut RawKafkaConnection, u64) + Send>;

struct SoakActor {
    what: &'static str,
    pause: Duration,
    /// A new connection is opened after so many rounds.
    rounds_per_connection: u64,
    round: ActorRound,
}

fn batch(key: Option<&str>, value_bytes: usize) -> Bytes {
    let value = vec![b'x'; value_bytes];
    BatchBuilder::new(CompressionType::None)
        .record(now_ms() as i64, key.map(str::as_bytes), Some(&value), &[])
        .build()
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
}

fn actors() -> Vec<SoakActor> {
    let actor = |what, pause_ms, rounds_per_connection, round: ActorRound| SoakActor {
        what,
        pause: Duration::from_millis(pause_ms),
        rounds_per_connection,
        round,
    };
    vec![
        actor("produces what ages", 5, 1000, Box::new(produce_bulk)),
        actor("produces tiny batches", 2, 5000, Box::new(produce_tiny)),
        actor("produces what is compacted", 5, 1000, Box::new(produce_keyed)),
        actor("makes and deletes topics", 200, 50, Box::new(churn_topics)),
        actor("commits offsets of many groups", 10, 500, Box::new(commit_offsets)),
        actor("reads from the beginning", 100, 20, Box::new(read_from_start)),
        actor("reads moments", 50, 20, Box::new(read_moment)),
    ]
}

fn produce_bulk(wire: &mut RawKafkaConnection, round: u64) {
    let (error, _) = wire.produce("bulk", (round % 4) as i32, &batch(None, 8 << 10));
    assert_eq!(error, 0);
}

fn produce_tiny(wire: &mut RawKafkaConnection, round: u64) {
    let (error, _) = wire.produce("tiny", (round % 2) as i32, &batch(None, 16));
    assert_eq!(error, 0);
}

fn produce_keyed(wire: &mut RawKafkaConnection, round: u64) {
    let key = format!("k{}", round * 7919 % 500);
    assert_eq!(wire.produce("state", 0, &batch(Some(&key), 512)).0, 0);
}

fn churn_topics(wire: &mut RawKafkaConnection, round: u64) {
    let topic = format!("churn-{}-{round}", now_ms());
    wire.create_topic(&topic, 1, &[]);
    assert_eq!(wire.produce(&topic, 0, &batch(None, 1 << 10)).0, 0);
    let gone = DeleteTopicState::default().with_name(Some(topic_name(&topic)));
    let request = DeleteTopicsRequest::default().with_topics(vec![gone]).with_timeout_ms(10_000);
    let answer = wire.call(6, &request).expect("an answer");
    assert_eq!(answer.responses[0].error_code, 0);
}

fn commit_offsets(wire: &mut RawKafkaConnection, round: u64) {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(round as i64);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("bulk"))
        .with_partitions(vec![partition]);
    let group = format!("group-{}", round % 10);
    let request = OffsetCommitRequest::default()
        .with_group_id(GroupId(StrBytes::from_string(group)))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let answer = wire.call(8, &request).expect("an answer");
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
}

fn read_from_start(wire: &mut RawKafkaConnection, round: u64) {
    let partition = (round % 4) as i32;
    let (_, start) = wire.offset_at("bulk", partition, EARLIEST);
    let (_, end) = wire.offset_at("bulk", partition, LATEST);
    let (error, _, bytes) = wire.fetch("bulk", partition, start);
    const OFFSET_OUT_OF_RANGE: i16 = 1;
    // Retention may run between the two.
    assert!(error == 0 || error == OFFSET_OUT_OF_RANGE, "error {error}");
    let mut next = start;
    for batch in BatchIterator::new(&bytes) {
        // The last one may be incomplete.
        let Ok((header, _)) = batch else { break };
        assert_eq!(header.base_offset, next, "offsets are dense");
        next = header.last_offset() + 1;
    }
    assert!(error != 0 || next > start || start == end);
}

fn read_moment(wire: &mut RawKafkaConnection, round: u64) {
    let moment = now_ms() - 1000 - round % 5000;
    let topic = format!("tiny.__at.s{moment}");
    // A moment before the server's first second names a topic that did not exist yet.
    let _ = wire.fetch(&topic, 0, 0);
}

fn spawn(
    mut actor: SoakActor,
    server: &TestServer,
    stop: &Arc<AtomicBool>,
    rounds: &Arc<AtomicU64>,
) -> JoinHandle<()> {
    let (address, stop, rounds) = (server.kafka, Arc::clone(stop), Arc::clone(rounds));
    std::thread::spawn(move || {
        let mut wire = RawKafkaConnection::connect(address);
        for round in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            if round % actor.rounds_per_connection == 0 {
                wire = RawKafkaConnection::connect(address);
            }
            (actor.round)(&mut wire, round);
            rounds.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(actor.pause);
        }
    })
}

/// The resources that a server holds at one moment.
#[derive(Clone, Copy, Debug)]
struct ResourceSample {
    memory_bytes: u64,
    disk_bytes: u64,
    files: u64,
    descriptors: u64,
}

impl ResourceSample {
    fn of(server: &TestServer, data: &Path) -> ResourceSample {
        let (disk_bytes, files) = disk_usage(data);
        let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it runs");
        ResourceSample {
            memory_bytes: resident_bytes(server.pid()),
            disk_bytes,
            files,
            descriptors: open.count() as u64,
        }
    }
}

/// The bytes and the number of files of a directory.
fn disk_usage(directory: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    let mut sum = (0, 0);
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        // A file may be removed between the two calls.
        let Ok(metadata) = entry.metadata() else { continue };
        let (bytes, files) = if metadata.is_dir() { disk_usage(&entry.path()) } else { (0, 1) };
        sum.0 += bytes + metadata.blocks() * 512;
        sum.1 += files;
    }
    sum
}

fn median(samples: &[ResourceSample], of: impl Fn(&ResourceSample) -> u64) -> u64 {
    let mut values: Vec<u64> = samples.iter().map(of).collect();
    values.sort_unstable();
    values[values.len() / 2]
}

/// Compares the last third of a run with the third before it.
fn assert_no_growth(samples: &[ResourceSample]) {
    let third = samples.len() / 3;
    let (before, after) = (&samples[third..2 * third], &samples[2 * third..]);
    type ResourceMeasure = (&'static str, fn(&ResourceSample) -> u64, u64);
    let measures: [ResourceMeasure; 4] = [
        ("bytes of memory", |held| held.memory_bytes, MEMORY_SLACK_BYTES),
        ("bytes of disk", |held| held.disk_bytes, DISK_SLACK_BYTES),
        ("files", |held| held.files, DESCRIPTOR_SLACK),
        ("descriptors", |held| held.descriptors, DESCRIPTOR_SLACK),
    ];
    let grown: Vec<String> = measures
        .iter()
        .map(|(what, of, slack)| (what, median(before, of), median(after, of), slack))
        .inspect(|(what, before, after, _)| eprintln!("{what}: {before}, then {after}"))
        .filter(|(_, before, after, slack)| *after > before + before / 10 + *slack)
        .map(|(what, before, after, _)| format!("{what} from {before} to {after}"))
        .collect();
    assert!(grown.is_empty(), "it grows: {}", grown.join(", "));
}

#[test]
fn a_server_under_churn_grows_neither_in_memory_nor_on_disk_nor_in_descriptors() {
    let length = std::env::var("FREEZEFRAME_SOAK_SECONDS").map_or(SHORT_RUN, |seconds| {
        Duration::from_secs(seconds.parse().expect("FREEZEFRAME_SOAK_SECONDS is a number"))
    });
    let data = TestDirectory::new();
    let settings: Vec<&str> = SETTINGS.iter().flat_map(|setting| ["--set", setting]).collect();
    let mut server = TestServer::start(data.path(), &settings).expect("it starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("bulk", 4, &[("retention.bytes", "4194304")]);
    wire.create_topic("tiny", 2, &[("retention.ms", "30000")]);
    wire.create_topic(
        "state",
        1,
        &[("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0.1")],
    );
    let stop = Arc::new(AtomicBool::new(false));
    let mut running = BTreeMap::new();
    for actor in actors() {
        let (what, rounds) = (actor.what, Arc::new(AtomicU64::new(0)));
        running.insert(what, (spawn(actor, &server, &stop, &rounds), rounds));
    }
    let (began, mut samples) = (Instant::now(), Vec::new());
    while began.elapsed() < length {
        std::thread::sleep(SAMPLE_EVERY.min(length - began.elapsed().min(length)));
        assert!(server.is_running(), "it runs");
        for (what, (actor, _)) in &running {
            assert!(!actor.is_finished(), "the actor that {what} has stopped");
        }
        samples.push(ResourceSample::of(&server, data.path()));
        if samples.len() % 30 == 0 {
            eprintln!("{:>5} s {:?}", began.elapsed().as_secs(), samples.last());
        }
    }
    stop.store(true, Ordering::Relaxed);
    for (what, (actor, rounds)) in running {
        actor.join().expect("an actor ends");
        let rounds = rounds.load(Ordering::Relaxed);
        eprintln!("{what}: {rounds} rounds");
        assert!(rounds > 0, "one that {what} did its work");
    }
    if length >= JUDGED_MIN {
        assert_no_growth(&samples);
    }
    assert!(server.stop().expect("it stops").success());
}
