//! The files of a backup, and what a store keeps for one. `model.rs` opens copies and compares what
//! they answer.

use std::sync::Arc;
use std::time::Duration;

use hlc::ManualClock;
use storage::backup::{
    BackupPoint, CopiedContent, CopiedFile, copy_file, finish_copy, plan_copy, plan_copy_of_stopped,
};
use storage::disk::MemoryDisk;
use storage::{Durability, Offset, Options};
use testkit::store::{StoreFixture, append, files, manual_clock};

/// Two sealed segments, of which the second is sorted by log if `is_scattered`, and an open one.
fn fixture(disk: &MemoryDisk, clock: &Arc<ManualClock>) -> StoreFixture {
    let options = Options { manual_maintenance: true, tail_bytes_max: 1, ..Options::default() };
    let fixture = StoreFixture::open(disk, options, clock).unwrap();
    for segment in 0..2_u64 {
        for nth in 0..6 {
            // The second segment has two logs in turn, and is sorted.
            let log = 5 + segment * (nth % 2);
            fixture.append(vec![append(log, b"sealed")], Durability::Synced);
        }
        fixture.store.roll_segment();
        fixture.store.sync().unwrap();
        fixture.store.run_maintenance().unwrap();
    }
    fixture.append(vec![append(5, b"open")], Durability::Synced);
    fixture
}

/// A copy that is made while the store goes on, as its files by name.
fn copy(disk: &MemoryDisk, begun: &BackupPoint) -> MemoryDisk {
    let (plan, target) = (plan_copy(disk, &begun.point).unwrap(), MemoryDisk::new());
    plan.files.iter().for_each(|file| copy_file(disk, &target, file).unwrap());
    finish_copy(&target, &plan).unwrap();
    target
}

#[test]
fn a_plan_has_the_files_of_the_manifest_whole_and_begins_open_ones() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = fixture(&disk, &clock);
    let begun = fixture.store.begin_backup().unwrap();
    let manifest = &begun.point.manifest;
    let data: Vec<String> = manifest.data_files().collect();
    assert!(data.iter().any(|name| name.ends_with(".sorted")), "{data:?}");
    let plan = plan_copy(&disk, &begun.point).unwrap();
    for name in &data {
        let file = plan.files.iter().find(|file| file.name == *name).unwrap();
        assert_eq!((&file.content, file.is_soft), (&CopiedContent::Whole, false), "{name}");
    }
    // The open segment is copied up to the end, whatever is written behind it.
    let open: Vec<&CopiedFile> =
        plan.files.iter().filter(|file| !file.is_soft && !data.contains(&file.name)).collect();
    let CopiedContent::Beginning(bytes) = open[0].content else { panic!("{open:?}") };
    assert_eq!((open.len(), bytes), (1, 64 + begun.point.end - manifest.indexed_to));
    let hard = plan.files.iter().take_while(|file| !file.is_soft).count();
    assert_eq!(hard, data.len() + open.len(), "hard files come first");
    // Each index and proof is soft.
    for suffix in [".index", ".proof"] {
        let soft = plan.files.iter().filter(|file| file.name.ends_with(suffix));
        assert!(soft.clone().count() > 0 && soft.clone().all(|file| file.is_soft), "{suffix}");
    }
    // What was removed since does not belong to it, and what was added neither.
    fixture.append(vec![append(5, b"behind the end")], Durability::Synced);
    let later = plan_copy(&disk, &begun.point).unwrap();
    assert_eq!(later.files, plan.files);
    assert_eq!(files(&copy(&disk, &begun)), files(&copy(&disk, &begun)));
    drop(begun);
    fixture.store.close();
    let stopped = plan_copy_of_stopped(&disk).unwrap();
    assert!(stopped.files.iter().all(|file| disk.names().contains(&file.name)), "{stopped:?}");
}

#[test]
fn a_store_tells_how_long_a_backup_runs_and_what_it_keeps() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = fixture(&disk, &clock);
    let store = &fixture.store;
    assert_eq!((store.oldest_backup(), store.backup_held_bytes()), (None, 0));
    let begun = store.timekeeper().wall_now();
    let first = store.begin_backup().unwrap();
    clock.advance(Duration::from_secs(60));
    let second = store.begin_backup().unwrap();
    assert_eq!(store.oldest_backup(), Some(begun));
    let is_there = |name: &String| disk.names().contains(name);
    let data: Vec<String> = first.point.manifest.data_files().collect();
    assert!(data.iter().all(is_there));
    for log in [5, 6] {
        let end = store.log(storage::LogId(log)).unwrap().end();
        store.advance_log_start(&[(storage::LogId(log), Offset(end.0 - 1))]).unwrap();
    }
    for _ in 0..3 {
        store.reclaim().unwrap();
        store.run_maintenance().unwrap();
    }
    assert!(data.iter().all(is_there), "a backup keeps them");
    assert!(store.backup_held_bytes() > 0);
    drop(first);
    assert_eq!(store.oldest_backup(), Some(hlc::SysTime(begun.0 + 60_000)));
    assert!(data.iter().all(is_there), "the other backup keeps them");
    drop(second);
    assert_eq!((store.oldest_backup(), store.backup_held_bytes()), (None, 0));
    for _ in 0..3 {
        store.reclaim().unwrap();
        store.run_maintenance().unwrap();
    }
    assert!(!data.iter().all(is_there), "nobody keeps them");
}
