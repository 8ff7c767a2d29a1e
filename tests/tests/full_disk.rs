//! A server on a disk that is full to the last byte (F16): it reads, refuses writes, and recovers
//! by itself once retention removes something. The disk is a small one in memory, mounted for this,
//! which only root can do. Elsewhere the test is skipped, with a notice.

use std::ffi::CStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::{GroupId, OffsetCommitRequest, OffsetFetchRequest};
use kafka_protocol::protocol::StrBytes;
use kafka_records::{BatchBuilder, CompressionType};
use rustix::mount::{MountFlags, UnmountFlags};
use testkit::directory::TestDirectory;
use testkit::process::mount::print_notice;
use testkit::process::{RawKafkaConnection, TestServer, http_get, wait_until};
use testkit::requests::topic_name;

const SETTINGS: &[&str] = &[
    "--set=storage.segment-bytes=1MiB",
    "--set=storage.deleted-topic-retention=1ms",
    "--set=log.retention.check.interval.ms=50",
    "--set=log.segment.delete.delay.ms=50",
];
/// The longest wait until a disk has no room for the catalog.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A disk in memory.
pub(crate) struct SmallDisk {
    _directory: TestDirectory,
    pub(crate) path: PathBuf,
}

impl SmallDisk {
    pub(crate) fn mount(test: &str, size: &CStr) -> Option<SmallDisk> {
        let directory = TestDirectory::new();
        let path = directory.path().join("disk");
        fs::create_dir(&path).expect("a directory can be made");
        match rustix::mount::mount("none", &path, "tmpfs", MountFlags::empty(), size) {
            Ok(()) => Some(SmallDisk { _directory: directory, path }),
            Err(error) => {
                print_notice(&format!("SKIPPED {test}: no disk can be mounted: {error}"));
                None
            }
        }
    }

    fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.path).expect("it is mounted");
        stat.f_bavail * stat.f_frsize
    }

    /// Another program takes all that is left.
    pub(crate) fn fill(&self) {
        let mut file = fs::File::create(self.path.join("ballast")).expect("a name takes no room");
        for length in [64 << 10, 4 << 10, 1] {
            while file.write_all(&vec![0; length]).is_ok() {}
        }
        assert_eq!(self.free_bytes(), 0);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
    }
}

fn batch(bytes: usize) -> Bytes {
    let mut batch = BatchBuilder::new(CompressionType::None);
    batch.record(1_700_000_000_000, None, Some(&vec![7; bytes]), &[]);
    batch.build()
}

fn end(wire: &mut RawKafkaConnection, topic: &str) -> i64 {
    wire.offset_at(topic, 0, -1).1
}

/// Reads the records at both ends of a topic.
fn read(wire: &mut RawKafkaConnection, topic: &str, first: i64) {
    for offset in [first, end(wire, topic) - 1] {
        let (error, _, records) = wire.fetch(topic, 0, offset);
        assert!(error == 0 && !records.is_empty(), "{topic} at {offset}: {error}");
    }
}

fn delete(server: &TestServer, topic: &str) {
    let ended = server.run(&["topics", "delete", topic], "");
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

fn check(data: &Path) {
    let data = data.to_str().expect("a path of letters");
    let ended = testkit::process::run(&["check", data, "--verify"], "");
    assert!(ended.stdout().contains("problems\t0"), "{ended:?}");
}

#[test]
fn f16_a_server_on_a_full_disk_reads_refuses_and_makes_room_also_after_it_was_killed() {
    let test = "f16_a_server_on_a_full_disk_reads_refuses_and_makes_room_also_after_it_was_killed";
    let Some(disk) = SmallDisk::mount(test, c"size=24m") else { return };
    let data = disk.path.join("data");
    let server = TestServer::start(&data, SETTINGS).expect("there is room");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    for topic in ["kept", "gone", "late"] {
        wire.create_topic(topic, 1, &[]);
    }
    // A file holds records of one of them, or of both. Files with only one topic's records go as a
    // whole.
    for topic in ["kept", "gone"] {
        for _ in 0..50 {
            assert_eq!(wire.produce(topic, 0, &batch(100_000)).0, 0);
        }
    }
    disk.fill();
    // Writes that fit into existing files are accepted.
    let mut refused = 0;
    wait_until("a full disk refuses", || {
        refused = wire.produce("late", 0, &batch(100_000)).0;
        refused != 0
    });
    assert_eq!(refused, 56, "KAFKA_STORAGE_ERROR");
    read(&mut wire, "kept", 0);
    read(&mut wire, "gone", 0);
    server.kill().expect("it can be killed");

    let server = TestServer::start(&data, SETTINGS).expect("it starts on a full disk");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    read(&mut wire, "kept", 0);
    delete(&server, "gone");
    wait_until("space is given back", || disk.free_bytes() > 3 << 20);
    wait_until("writes are taken again", || wire.produce("late", 0, &batch(1000)).0 == 0);
    assert_eq!(end(&mut wire, "kept"), 50);
    read(&mut wire, "kept", 0);
    server.kill().expect("it can be killed");
    check(&data);

    // Space that other programs free is as good.
    let server = TestServer::start(&data, SETTINGS).expect("it starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    disk.fill();
    wait_until("a full disk refuses", || wire.produce("late", 0, &batch(100_000)).0 != 0);
    fs::remove_file(disk.path.join("ballast")).expect("it is there");
    wait_until("writes are taken again", || wire.produce("late", 0, &batch(100_000)).0 == 0);
    server.stop().expect("it stops");
    check(&data);
}

const COORDINATOR_LOAD_IN_PROGRESS: i16 = 14;

fn commit(wire: &mut RawKafkaConnection, offset: i64) {
    let partition = OffsetCommitRequestPartition::default()
        .with_committed_offset(offset)
        .with_committed_metadata(Some(StrBytes::from_string("m".repeat(4000))));
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let group = GroupId(StrBytes::from_string(format!("g{}", offset % 7)));
    let request = OffsetCommitRequest::default().with_group_id(group).with_topics(vec![topic]);
    let answer = wire.call(8, &request).expect("an answer");
    assert_eq!(answer.topics[0].partitions[0].error_code, 0, "a commit is in the journal");
}

/// The committed offset of a group; `None` while it is being loaded.
fn committed(wire: &mut RawKafkaConnection, group: i64) -> Option<i64> {
    let request = OffsetFetchRequest::default()
        .with_group_id(GroupId(StrBytes::from_string(format!("g{group}"))))
        .with_topics(None);
    let answer = wire.call(7, &request).expect("an answer");
    match answer.error_code {
        0 => answer.topics.first().map(|topic| topic.partitions[0].committed_offset),
        code => {
            assert_eq!(code, COORDINATOR_LOAD_IN_PROGRESS);
            None
        }
    }
}

fn metric(server: &TestServer, name: &str) -> u64 {
    let (_, page) = http_get(server.http, "/metrics").expect("an answer");
    let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.and_then(|number| number.parse().ok()).expect("a number")
}

/// Commits and produces until `is_enough`. Returns the last offset that was committed.
fn write_until(
    wire: &mut RawKafkaConnection,
    from: i64,
    mut is_enough: impl FnMut(&mut RawKafkaConnection, i64) -> bool,
) -> i64 {
    let begun = Instant::now();
    for offset in from.. {
        assert!(begun.elapsed() < TIMEOUT, "the catalog's disk is full");
        commit(wire, offset);
        assert_eq!(wire.produce("t", 0, &batch(100)).0, 0);
        // Never an earlier one.
        let held = committed(wire, offset % 7);
        assert!(held.is_none_or(|held| held == offset), "{held:?} after {offset}");
        if is_enough(wire, offset) {
            return offset;
        }
    }
    unreachable!("there are numbers enough")
}

fn assert_committed(wire: &mut RawKafkaConnection, last: i64) {
    for offset in last - 6..=last {
        wait_until("the catalog is rebuilt", || {
            let held = committed(wire, offset % 7);
            assert!(held.is_none_or(|held| held == offset), "{held:?} of {offset}");
            held.is_some()
        });
    }
}

#[test]
fn a_full_disk_under_the_catalog_ends_no_service_and_a_kill_in_the_midst_of_it_loses_nothing() {
    let test = "a_full_disk_under_the_catalog_ends_no_service";
    let Some(disk) = SmallDisk::mount(test, c"size=64m") else { return };
    let directory = TestDirectory::new();
    let data = directory.path().join("data");
    let server = TestServer::start(&data, &[]).expect("it starts");
    RawKafkaConnection::connect(server.kafka).create_topic("t", 1, &[]);
    server.stop().expect("it stops");
    // From now on it has a disk of its own.
    let (catalog, there) = (data.join("catalog"), disk.path.join("catalog"));
    fs::remove_dir_all(&catalog).expect("it is soft");
    fs::create_dir(&there).expect("there is room");
    std::os::unix::fs::symlink(&there, &catalog).expect("a link can be made");
    let server = TestServer::start(&data, &[]).expect("it starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    let last = write_until(&mut wire, 1, |_, offset| offset == 300);
    disk.fill();
    // Killed when a client is first told to retry, or gets a response from another catalog.
    let last = write_until(&mut wire, last + 1, |wire, offset| {
        committed(wire, offset % 7).is_none()
            || metric(&server, "freezeframe_catalog_rebuilds_total") > 0
    });
    server.kill().expect("it can be killed");

    let server = TestServer::start(&data, &[]).expect("it starts where the catalog has no room");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    assert_committed(&mut wire, last);
    let last = write_until(&mut wire, last + 1, |_, offset| offset == last + 300);
    let in_memory = |server: &TestServer| metric(server, "freezeframe_catalog_in_memory") == 1;
    wait_until("there is no room for a catalog", || in_memory(&server));
    assert_committed(&mut wire, last);
    assert_eq!(server.stop().expect("it stops").code(), Some(0));

    fs::remove_file(disk.path.join("ballast")).expect("it is there");
    let server = TestServer::start(&data, &[]).expect("it starts");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    assert_committed(&mut wire, last);
    assert!(!in_memory(&server));
    server.stop().expect("it stops");
    check(&data);
}

/// The other file system also takes no links.
#[test]
fn a_backup_onto_a_disk_that_fills_is_refused_and_leaves_nothing() {
    let test = "a_backup_onto_a_disk_that_fills_is_refused_and_leaves_nothing";
    let Some(disk) = SmallDisk::mount(test, c"size=6m") else { return };
    let directory = TestDirectory::new();
    let data = directory.path().join("data");
    let server = TestServer::start(&data, &[]).expect("a server");
    let mut wire = RawKafkaConnection::connect(server.kafka);
    wire.create_topic("orders", 1, &[]);
    let backup = |name: &str| {
        let target = disk.path.join(name);
        let (target, data) = (target.to_str().expect("letters"), data.to_str().expect("letters"));
        testkit::process::run(&["backup", target, "--data-dir", data], "")
    };
    let copied = backup("small");
    assert!(copied.stdout().contains(" copied\n"), "without links: {copied:?}");
    check(&disk.path.join("small"));
    for _ in 0..8 {
        assert_eq!(wire.produce("orders", 0, &batch(900_000)).0, 0);
    }
    let free = disk.free_bytes();
    backup("large").assert_failed(1, &["No space left", "free space"]);
    assert!(!disk.path.join("large").exists());
    assert_eq!(disk.free_bytes(), free);
    assert_eq!(wire.produce("orders", 0, &batch(100)).0, 0, "the server goes on");
}
