//! A server on a disk that is full to the last byte (F16): it reads, refuses writes, and comes back by itself
//! once something was given up. The disk is a small one in memory, mounted for this, which only root can
//! do; elsewhere this is skipped, and says so.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka_records::{BatchBuilder, Codec};
use rustix::mount::{MountFlags, UnmountFlags};
use tests::mount::say;
use tests::wire::Wire;
use tests::{Directory, Server};

const SETTINGS: &[&str] = &[
    "--set=storage.segment-bytes=1MiB",
    "--set=storage.deleted-topic-retention=1ms",
    "--set=log.retention.check.interval.ms=50",
    "--set=log.segment.delete.delay.ms=50",
];
const PATIENCE: Duration = Duration::from_secs(60);

/// A disk of 24 MiB.
struct Disk {
    _directory: Directory,
    path: PathBuf,
}

impl Disk {
    fn mount(test: &str) -> Option<Disk> {
        let directory = Directory::new();
        let path = directory.path().join("disk");
        fs::create_dir(&path).expect("a directory can be made");
        let options = c"size=24m";
        match rustix::mount::mount("none", &path, "tmpfs", MountFlags::empty(), options) {
            Ok(()) => Some(Disk { _directory: directory, path }),
            Err(error) => {
                say(&format!("SKIPPED {test}: no disk can be mounted: {error}"));
                None
            }
        }
    }

    fn free_bytes(&self) -> u64 {
        let stat = rustix::fs::statvfs(&self.path).expect("it is mounted");
        stat.f_bavail * stat.f_frsize
    }

    /// Another program takes all that is left.
    fn fill(&self) {
        let mut file = fs::File::create(self.path.join("ballast")).expect("a name takes no room");
        for length in [64 << 10, 4 << 10, 1] {
            while file.write_all(&vec![0; length]).is_ok() {}
        }
        assert_eq!(self.free_bytes(), 0);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH);
    }
}

fn batch(bytes: usize) -> Bytes {
    let mut batch = BatchBuilder::new(Codec::None);
    batch.record(1_700_000_000_000, None, Some(&vec![7; bytes]), &[]);
    batch.build()
}

fn end(wire: &mut Wire, topic: &str) -> i64 {
    wire.offset_at(topic, 0, -1).1
}

/// Reads the records at both ends of a topic.
fn read(wire: &mut Wire, topic: &str, first: i64) {
    for offset in [first, end(wire, topic) - 1] {
        let (error, _, records) = wire.fetch(topic, 0, offset);
        assert!(error == 0 && !records.is_empty(), "{topic} at {offset}: {error}");
    }
}

fn until(what: &str, mut claim: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !claim() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

fn delete(server: &Server, topic: &str) {
    let bootstrap = server.kafka.to_string();
    let ended = tests::run(&["topics", "delete", topic, "--bootstrap", &bootstrap], "");
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

fn check(data: &Path) {
    let data = data.to_str().expect("a path of letters");
    let ended = tests::run(&["check", data, "--verify"], "");
    assert!(ended.stdout().contains("problems\t0"), "{ended:?}");
}

#[test]
fn f16_a_server_on_a_full_disk_reads_refuses_and_makes_room_also_after_it_was_killed() {
    let test = "f16_a_server_on_a_full_disk_reads_refuses_and_makes_room_also_after_it_was_killed";
    let Some(disk) = Disk::mount(test) else { return };
    let data = disk.path.join("data");
    let server = Server::start(&data, SETTINGS).expect("there is room");
    let mut wire = Wire::connect(server.kafka);
    for topic in ["kept", "gone", "late"] {
        wire.create(topic, 1, &[]);
    }
    // A file holds records of one of them, or of both: those of one go as a whole.
    for topic in ["kept", "gone"] {
        for _ in 0..50 {
            assert_eq!(wire.produce(topic, 0, &batch(100_000)).0, 0);
        }
    }
    disk.fill();
    // What fits into files that are there is taken.
    let mut refused = 0;
    until("a full disk refuses", || {
        refused = wire.produce("late", 0, &batch(100_000)).0;
        refused != 0
    });
    assert_eq!(refused, 56, "KAFKA_STORAGE_ERROR");
    read(&mut wire, "kept", 0);
    read(&mut wire, "gone", 0);
    server.kill().expect("it can be killed");

    let server = Server::start(&data, SETTINGS).expect("it starts on a full disk");
    let mut wire = Wire::connect(server.kafka);
    read(&mut wire, "kept", 0);
    delete(&server, "gone");
    until("space is given back", || disk.free_bytes() > 3 << 20);
    until("writes are taken again", || wire.produce("late", 0, &batch(1000)).0 == 0);
    assert_eq!(end(&mut wire, "kept"), 50);
    read(&mut wire, "kept", 0);
    server.kill().expect("it can be killed");
    check(&data);

    // Room that others give back is as good.
    let server = Server::start(&data, SETTINGS).expect("it starts");
    let mut wire = Wire::connect(server.kafka);
    disk.fill();
    until("a full disk refuses", || wire.produce("late", 0, &batch(100_000)).0 != 0);
    fs::remove_file(disk.path.join("ballast")).expect("it is there");
    until("writes are taken again", || wire.produce("late", 0, &batch(100_000)).0 == 0);
    server.stop().expect("it stops");
    check(&data);
}
