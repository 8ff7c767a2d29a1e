//! A store that its caller steps: what it does on request, and what it reports about itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hlc::{OsClock, WallClock};
use storage::disk::{Disk, MemoryDisk};
use storage::timekeeper::BoundFile;
use storage::{Durability, LogId, Options};
use testkit::store::{StoreFixture, append, in_files_stepped, manual_clock};

const PATIENCE: Duration = Duration::from_secs(60);

fn put(fixture: &StoreFixture, log: u64) -> hlc::Hlc {
    let appended = fixture.append(vec![append(log, &[7; 100])], Durability::Synced).remove(0);
    appended.unwrap().stamp
}

fn wait_for(condition: &str, is_there: impl Fn() -> bool) {
    let begun = OsClock.read().steady;
    while !is_there() {
        assert!(OsClock.read().steady - begun < PATIENCE, "{condition}");
        std::thread::yield_now();
    }
}

#[test]
fn a_step_says_whether_there_was_anything_to_do() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, in_files_stepped(), &clock).unwrap();
    assert!(!fixture.store.step(), "nothing");
    let written = fixture.begin_append(vec![append(1, b"a")], Durability::Synced);
    assert!(fixture.store.step(), "a group");
    assert!(written.try_recv().unwrap()[0].is_ok());
    assert!(!fixture.store.step());
    clock.advance(Duration::from_secs(60));
    fixture.store.timekeeper().frontier();
    assert!(fixture.store.step(), "a bound that is wanted");
    assert!(!fixture.store.step());
}

#[test]
fn the_segment_that_is_written_is_open_since_its_first_stamp() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, in_files_stepped(), &clock).unwrap();
    assert_eq!(fixture.store.open_since(), None);
    let first = put(&fixture, 1);
    clock.advance(Duration::from_millis(5));
    put(&fixture, 2);
    assert_eq!(fixture.store.open_since(), Some(first));
    fixture.store.roll_segment();
    fixture.step_until_idle();
    assert_eq!(fixture.store.open_since(), None, "the next one is empty");
    let next = put(&fixture, 1);
    assert_eq!(fixture.store.open_since(), Some(next));
    drop(fixture);
    // The next incarnation knows it too.
    let fixture = StoreFixture::open(&disk, in_files_stepped(), &clock).unwrap();
    assert_eq!(fixture.store.open_since(), Some(next));
}

#[test]
fn data_files_are_counted_whether_they_are_indexed_or_not() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, in_files_stepped(), &clock).unwrap();
    let on_disk = || {
        let is_data = |name: &String| name.ends_with(".journal") || name.ends_with(".sorted");
        disk.names().iter().filter(|name| is_data(name)).count()
    };
    for _ in 0..3 {
        put(&fixture, 1);
        fixture.store.roll_segment();
        fixture.step_until_idle();
        assert_eq!(fixture.store.segment_count(), on_disk());
    }
    assert!(on_disk() >= 3);
    let indexed = || fixture.store.history_stats().indexed.load(Ordering::Relaxed);
    assert_eq!(indexed(), 0);
    fixture.store.run_maintenance().unwrap();
    assert_eq!(indexed(), 3);
    assert_eq!(fixture.store.segment_count(), on_disk());
}

/// Even if neither the append nor the options ask for stable storage.
#[test]
fn when_it_is_said_that_all_is_synced_it_is() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { durability: Durability::Written, ..in_files_stepped() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    put(&fixture, 1);
    let replayed_after_crash = |disk: &MemoryDisk| {
        StoreFixture::open(&disk.after_crash(|_| 0), options, &clock).unwrap().replayed.len()
    };
    assert_eq!(replayed_after_crash(&disk), 0);
    let is_said = Arc::new(AtomicBool::new(false));
    let signal = Arc::clone(&is_said);
    fixture.store.when_synced(move || signal.store(true, Ordering::SeqCst));
    fixture.step_until_idle();
    assert!(is_said.load(Ordering::SeqCst));
    assert_eq!(replayed_after_crash(&disk), 1);
}

#[test]
fn a_store_that_is_dropped_is_closed() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    put(&fixture, 1);
    let is_clean = || BoundFile::read(&disk).unwrap().unwrap().clean;
    assert!(!is_clean());
    drop(fixture);
    assert!(is_clean());
}

#[test]
fn sealed_segments_are_maintained_in_the_background_if_that_was_asked_for() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    fixture.store.start_maintenance(None).unwrap();
    put(&fixture, 1);
    fixture.store.roll_segment();
    fixture.store.sync().unwrap();
    wait_for("an index", || disk.names().iter().any(|name| name.ends_with(".index")));
    fixture.store.close();
}

/// A small append does not wait until gigabytes in front of it are written as one group.
#[test]
fn a_group_takes_what_is_queued_up_to_a_bound() {
    const LARGE: usize = 1 << 20;
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, in_files_stepped(), &clock).unwrap();
    let large = vec![1; LARGE];
    let waiting: Vec<_> = (0..40)
        .map(|_| fixture.begin_append(vec![append(1, &large)], Durability::Synced))
        .collect();
    let mut groups = 0;
    while fixture.store.step() {
        groups += 1;
    }
    assert!(waiting.iter().all(|done| done.try_recv().is_ok()));
    let stats = fixture.store.stats();
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!((read(&stats.appends), read(&stats.groups)), (40, groups));
    assert_eq!(read(&stats.syncs), groups);
    assert_eq!(read(&stats.bytes), 40 * (LARGE as u64 + 80));
    assert!((3..40).contains(&groups), "{groups}");
    // Small ones are taken together.
    let waiting: Vec<_> =
        (0..40).map(|_| fixture.begin_append(vec![append(1, b"x")], Durability::Written)).collect();
    assert!(fixture.store.step() && !fixture.store.step());
    assert!(waiting.iter().all(|done| done.try_recv().is_ok()));
    assert_eq!((read(&stats.groups), read(&stats.syncs)), (groups + 1, groups));
}

/// Indexes hold the stage's state. If the newest are lost, the stage replays the entries since the
/// last state that exists, and only those.
#[test]
fn a_stage_is_shown_again_what_it_remembered_in_indexes_that_are_lost() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, in_files_stepped(), &clock).unwrap();
    let mut by_segment: Vec<Vec<hlc::Hlc>> = Vec::new();
    for segment in 0..4 {
        by_segment.push((0..6).map(|nth| put(&fixture, 1 + (nth + segment) % 3)).collect());
        fixture.store.roll_segment();
        fixture.step_until_idle();
        fixture.store.run_maintenance().unwrap();
    }
    let behind = put(&fixture, 1);
    drop(fixture);
    // Each segment has one for each layout that it had.
    let mut starts: Vec<String> = disk.names();
    starts.retain(|name| name.ends_with(".journal"));
    starts.iter_mut().for_each(|name| name.truncate(20));
    let is_lost = |name: &str, lost: &[String]| {
        name.ends_with(".index") && lost.iter().any(|start| name.starts_with(start.as_str()))
    };
    for first_kept in 0..=4 {
        let disk_left = disk.after_kill();
        for name in disk_left.names().iter().filter(|name| is_lost(name, &starts[first_kept..])) {
            disk_left.remove(name).unwrap();
        }
        let fixture = StoreFixture::open(&disk_left, in_files_stepped(), &clock).unwrap();
        let mut shown: Vec<hlc::Hlc> = fixture.replayed.iter().map(|entry| entry.stamp).collect();
        shown.sort();
        let mut expected = by_segment[first_kept..].concat();
        expected.push(behind);
        assert_eq!(shown, expected, "{first_kept} are left");
        assert_eq!(fixture.all((1..=3).map(LogId)).len(), 25);
    }
}
