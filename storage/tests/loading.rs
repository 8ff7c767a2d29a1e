//! Loading logs into memory: latest-run tables and links that are wrong, lost, or rebuilt
//! meanwhile.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use storage::disk::{Disk, MemoryDisk};
use storage::{Durability, LogId, Offset, Options};
use testkit::disks::{DiskHook, HookedDisk};
use testkit::store::{StoreFixture, append, manual_clock};

fn options() -> Options {
    Options { uncovered_segments_max: 0, proofs: false, ..testkit::store::in_files_stepped() }
}

fn roll_segment(fixture: &StoreFixture) {
    fixture.store.roll_segment();
    fixture.append(Vec::new(), Durability::Written);
    fixture.store.run_maintenance().unwrap();
}

fn write(disk: &MemoryDisk, name: &str, bytes: &[u8]) {
    disk.remove(name).unwrap();
    disk.create(name).unwrap().write_at(&mut [IoSlice::new(bytes)], 0).unwrap();
}

/// `idle_logs_max`: how many unused logs stay in memory.
#[test]
fn an_idle_log_stays_although_many_others_are_in_use() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture =
        StoreFixture::open(&disk, Options { idle_logs_max: 2, ..options() }, &clock).unwrap();
    for log in 0..4 {
        fixture.append(vec![append(log, b"x")], Durability::Synced);
    }
    roll_segment(&fixture);
    let _used: Vec<_> = (0..3).map(|log| fixture.store.log(LogId(log)).unwrap()).collect();
    let idle = Arc::downgrade(&fixture.store.log(LogId(3)).unwrap());
    fixture.store.run_maintenance().unwrap();
    assert!(idle.upgrade().is_some(), "one idle log, where two may be, was dropped");
}

struct NoopWatcher;

impl storage::log::LogWatcher for NoopWatcher {
    fn on_append(&self) {}
}

/// A watcher that was dropped before its call would keep the log in memory for ever.
#[test]
fn a_log_leaves_memory_when_those_who_watched_it_have_left() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    fixture.append(vec![append(1, b"x")], Durability::Synced);
    roll_segment(&fixture);
    let watcher: Arc<dyn storage::log::LogWatcher> = Arc::new(NoopWatcher);
    let log = fixture.store.log(LogId(1)).unwrap();
    log.watch(&watcher);
    let weak = Arc::downgrade(&log);
    drop((log, watcher));
    fixture.store.run_maintenance().unwrap();
    assert!(weak.upgrade().is_none(), "it is held by nobody, and watched by nobody");
}

/// A jump that leads to its own run, under a valid checksum.
#[test]
fn links_in_a_circle_are_an_error_and_no_endless_search() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for _ in 0..3 {
        fixture.append(vec![append(1, b"x")], Durability::Synced);
        roll_segment(&fixture);
    }
    fixture.store.close();
    let mut names: Vec<String> =
        disk.names().into_iter().filter(|name| name.ends_with(".index")).collect();
    names.sort();
    let name = names.pop().unwrap();
    let start: u64 = name.split('.').next().unwrap().parse().unwrap();
    // Block 0 is the header, 1 has the entry, 2 the run; the jump is at 112 of it.
    let mut bytes = disk.bytes(&name);
    bytes[2 * 4096 + 8 + 112..][..8].copy_from_slice(&start.to_le_bytes());
    let crc = crc32c::crc32c(&start.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &2_u64.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &bytes[2 * 4096 + 4..3 * 4096]);
    bytes[2 * 4096..2 * 4096 + 4].copy_from_slice(&crc.to_le_bytes());
    write(&disk, &name, &bytes);
    let (sender, read) = mpsc::channel();
    std::thread::spawn(move || {
        let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
        let log = fixture.store.log(LogId(1)).unwrap();
        let _ =
            sender.send(log.read(Offset(0), Offset(u64::MAX), usize::MAX).map(|read| read.len()));
    });
    let read = read.recv_timeout(Duration::from_secs(20));
    assert!(read.is_ok(), "a search that does not end");
}

/// A sorted segment lost the end of a log together with its index; a latest-run table names it. The
/// remedy in the error message must not lead to offsets that are assigned twice.
#[test]
fn what_an_error_says_is_to_be_done_gives_out_no_offset_twice() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for _ in 0..3 {
        for log in 1..3 {
            fixture.append(vec![append(log, &[log as u8; 100])], Durability::Synced);
        }
    }
    roll_segment(&fixture);
    let end = fixture.store.log(LogId(2)).unwrap().end();
    assert_eq!(end, Offset(3));
    fixture.store.close();
    let find = |kind: &str| disk.names().into_iter().find(|name| name.ends_with(kind)).unwrap();
    let (filed, heads) = (find(".sorted"), find(".latest"));
    let bytes = disk.bytes(&filed);
    // The frames of log 2 come last.
    let at = bytes.windows(100).position(|window| window == [2; 100]).unwrap();
    write(&disk, &filed, &bytes[..at - 32 - storage::journal::FRAME_BYTES]);
    disk.remove(&filed.replace(".sorted", ".index")).unwrap();
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    let error = fixture.store.log(LogId(2)).unwrap_err().to_string();
    fixture.store.close();
    drop(fixture);
    if error.contains("remove *.latest") {
        disk.remove(&heads).unwrap();
    }
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    let appended = fixture.append(vec![append(2, b"new")], Durability::Synced);
    if let Ok(appended) = &appended[0] {
        assert!(appended.base >= end, "given out twice: {:?}, after: {error}", appended.base);
    }
}

/// One segment whose data is corrupt, so that its index cannot be rebuilt, and which a table
/// covers.
#[test]
fn latest_run_tables_go_on_although_one_index_cannot_be_rebuilt() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let no_cache = Options { index_bytes_max: 0, uncovered_segments_max: 1, ..options() };
    let fixture = StoreFixture::open(&disk, no_cache, &clock).unwrap();
    for _ in 0..3 {
        fixture.append(vec![append(1, b"rots")], Durability::Synced);
        roll_segment(&fixture);
    }
    let tables = || disk.names().iter().filter(|name| name.ends_with(".latest")).cloned().max();
    let before = tables();
    assert!(before.is_some());
    fixture.store.close();
    drop(fixture);
    let clock = manual_clock();
    clock.advance(Duration::from_secs(60));
    let fixture = StoreFixture::open(&disk, no_cache, &clock).unwrap();
    let first = format!("{:020}", 0);
    disk.corrupt(&format!("{first}.index"), 4096 + 50, 1);
    disk.corrupt(&format!("{first}.journal"), 64 + 20, 1);
    let log = fixture.store.log(LogId(1)).unwrap();
    assert!(log.read(Offset(0), Offset(1), usize::MAX).is_err(), "it is corrupt");
    drop(log);
    for _ in 0..20 {
        fixture.append(vec![append(2, b"x")], Durability::Synced);
        fixture.store.roll_segment();
        fixture.append(Vec::new(), Durability::Written);
        let _ = fixture.store.run_maintenance();
    }
    assert_ne!(tables(), before, "20 segments later there is no other latest-run table");
}

/// A table that lacks a log, and has another twice, is intact and wrong: the log is found where it
/// was long ago, or not at all. A check must report it: nothing else does.
#[test]
fn a_check_reports_a_latest_run_table_that_lacks_a_log() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for log in 1..3 {
        fixture.append(vec![append(log, b"x")], Durability::Synced);
    }
    roll_segment(&fixture);
    fixture.store.close();
    drop(fixture);
    let name = disk.names().into_iter().find(|name| name.ends_with(".latest")).unwrap();
    let mut bytes = disk.bytes(&name);
    // Two records of 32 bytes each, from 8 of block 1 on: the second becomes the first.
    bytes.copy_within(4096 + 8..4096 + 40, 4096 + 40);
    let crc = crc32c::crc32c(&0_u64.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &1_u64.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &bytes[4096 + 4..]);
    bytes[4096..4096 + 4].copy_from_slice(&crc.to_le_bytes());
    write(&disk, &name, &bytes);
    let problems = storage::check::verify(&disk, &[], &mut |_| {}).unwrap().problems;
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    let end = fixture.store.log(LogId(2)).unwrap().end();
    assert!(!problems.is_empty(), "log 2 ends at {end:?} now, and the check says nothing");
}

thread_local! {
    /// The error of reading sectors of latest-run tables, in this test.
    static READ_ERROR: Cell<Option<Errno>> = const { Cell::new(None) };
}

type ReadAction = (String, u64, Box<dyn FnOnce() + Send>);

/// Calls an action before a position of a file is read, once.
#[derive(Default)]
struct ReadHook(Mutex<Option<ReadAction>>);

impl DiskHook for ReadHook {
    fn before_read(&self, name: &str, position: u64) -> io::Result<()> {
        let is_it = |(file, at, _): &mut ReadAction| file == name && *at == position;
        let action = self.0.lock().take_if(is_it);
        if let Some((_, _, act)) = action {
            act();
        }
        if position > 0
            && name.ends_with(".latest")
            && let Some(errno) = READ_ERROR.get()
        {
            return Err(errno.into());
        }
        Ok(())
    }
}

#[test]
fn no_offset_is_given_out_twice_because_an_index_was_rebuilt_while_latest_run_tables_were_merged() {
    const LOGS: u64 = 130;
    const ASKED: u64 = 100;
    let options = Options {
        tail_bytes_max: 0,
        index_bytes_max: 0,
        idle_logs_max: 0,
        uncovered_segments_max: 1,
        manual_maintenance: true,
        manual_stepping: true,
        proofs: false,
        ..Options::default()
    };
    let (memory, clock) = (MemoryDisk::new(), manual_clock());
    let hook = Arc::new(ReadHook::default());
    let open = || {
        let disk = Arc::new(HookedDisk::new(memory.clone(), Arc::clone(&hook)));
        Arc::new(StoreFixture::open_on(disk, options, clock.clone()).unwrap())
    };
    let seal = |fixture: &StoreFixture| {
        fixture.store.roll_segment();
        fixture.append(Vec::new(), Durability::Written);
        fixture.store.run_maintenance().unwrap();
    };
    let fixture = open();
    for log in 1..=LOGS {
        fixture.append(vec![append(log, b"first")], Durability::Synced);
    }
    seal(&fixture);
    fixture.store.advance_log_start(&[(LogId(1), Offset(1))]).unwrap();
    clock.advance(std::time::Duration::from_secs(2));
    fixture.frontier();
    fixture.store.close();
    drop(fixture);
    clock.advance(std::time::Duration::from_secs(60));
    let fixture = open();
    fixture.append(vec![append(1000, b"another segment")], Durability::Synced);
    // Runs are in blocks 5 to 9, 30 each. Block 8 becomes corrupt. While latest runs of block 6 are
    // read, another reader requests a log in block 8, and finds that.
    let name = format!("{:020}.index", 0);
    memory.corrupt(&name, 8 * 4096 + 100, 1);
    let asking = Arc::clone(&fixture);
    let ask_elsewhere = move || {
        let read_end = move || asking.store.log(LogId(ASKED)).map(|log| log.end());
        assert_eq!(std::thread::spawn(read_end).join().unwrap().unwrap(), Offset(1));
    };
    *hook.0.lock() = Some((name, 6 * 4096, Box::new(ask_elsewhere)));
    seal(&fixture);
    assert!(hook.0.lock().is_none(), "latest-run tables were merged");
    let ends = |fixture: &StoreFixture| -> Vec<u64> {
        let is_lost = |log: &u64| fixture.store.log(LogId(*log)).unwrap().end() != Offset(1);
        (1..=LOGS).filter(is_lost).collect()
    };
    let lost = ends(&fixture);
    let Some(log) = lost.first() else { return };
    let appended = fixture.append(vec![append(*log, b"second")], Durability::Synced);
    let again = appended[0].as_ref().unwrap().base;
    assert!(lost.is_empty(), "{lost:?} lost their entries; offset {again:?} was given out twice");
}

/// A latest-run table is soft: if a sector of it cannot be read, the indexes still say where logs
/// are.
#[test]
fn a_bad_sector_in_a_latest_run_table_makes_no_log_unreadable() {
    let fixture = store_with_table(&MemoryDisk::new());
    READ_ERROR.set(Some(Errno::IO));
    let first = fixture.store.log(LogId(1)).map(|log| log.end());
    let tended = fixture.store.run_maintenance();
    let again = fixture.store.log(LogId(1)).map(|log| log.end());
    READ_ERROR.set(None);
    assert!(again.is_ok(), "{first:?}, {tended:?}, {again:?}");
}

/// It is not corrupt: it stays in use, and nothing is made again.
#[test]
fn a_latest_run_table_that_cannot_be_opened_for_a_moment_is_kept() {
    let disk = MemoryDisk::new();
    let fixture = store_with_table(&disk);
    let tables = || -> Vec<(String, Vec<u8>)> {
        let names = disk.names().into_iter().filter(|name| name.ends_with(".latest"));
        names.map(|name| (name.clone(), disk.bytes(&name))).collect()
    };
    let before = tables();
    assert_eq!(before.len(), 1);
    READ_ERROR.set(Some(Errno::MFILE));
    let refused = fixture.store.log(LogId(1)).map(|log| log.end());
    READ_ERROR.set(None);
    assert!(refused.is_err_and(|error| error.is_out_of_descriptors()));
    fixture.store.run_maintenance().unwrap();
    assert_eq!(tables(), before);
    READ_ERROR.set(Some(Errno::MFILE));
    let uses_table = fixture.store.log(LogId(1)).is_err();
    READ_ERROR.set(None);
    assert!(uses_table, "the table is in use");
    assert_eq!(fixture.store.log(LogId(1)).unwrap().end(), Offset(1));
}

/// A store with one sealed segment, which a latest-run table covers, and no log in memory.
fn store_with_table(disk: &MemoryDisk) -> StoreFixture {
    let options = Options {
        tail_bytes_max: 0,
        index_bytes_max: 0,
        idle_logs_max: 0,
        uncovered_segments_max: 0,
        manual_maintenance: true,
        manual_stepping: true,
        proofs: false,
        ..Options::default()
    };
    let disk = Arc::new(HookedDisk::new(disk.clone(), Arc::new(ReadHook::default())));
    let fixture = StoreFixture::open_on(disk, options, manual_clock()).unwrap();
    fixture.append(vec![append(1, b"first")], Durability::Synced);
    fixture.store.roll_segment();
    fixture.append(Vec::new(), Durability::Written);
    fixture.store.run_maintenance().unwrap();
    fixture.store.run_maintenance().unwrap();
    fixture
}
