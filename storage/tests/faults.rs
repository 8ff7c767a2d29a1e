//! Disks that fill up, and that fail.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hlc::{Cut, SysTime};
use storage::disk::{DiskFault, MemoryDisk};
use storage::timekeeper::TimeError;
use storage::{AppendError, Durability, LogId, Offset, Options, StorageError};
use testkit::store::{StoreFixture, append, durably, manual_clock, one, problems, segments};

fn options() -> Options {
    Options { segment_bytes_max: 4096, manual_maintenance: true, ..Options::default() }
}

// A full disk.

#[test]
fn a_full_disk_refuses_a_group_whole_and_takes_appends_again_once_there_is_room() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    durably(&fixture, 1, b"before");
    let commits = fixture.calls.commits.load(Ordering::SeqCst);
    let used = disk.used_bytes();
    disk.arm(DiskFault::FullAt(used + 100));
    for durability in [Durability::Synced, Durability::Written] {
        let group = vec![append(1, &[1; 3000]), append(2, &[2; 3000])];
        let results = fixture.append(group, durability);
        for result in &results {
            assert!(
                matches!(result, Err(AppendError::Storage(StorageError::NoSpace { .. }))),
                "{results:?}"
            );
        }
    }
    assert_eq!(fixture.calls.commits.load(Ordering::SeqCst), commits);
    assert_eq!(fixture.store.stop_reason(), None);
    assert_eq!(fixture.read(LogId(1))[0].payload, b"before"[..], "reads go on");
    assert_eq!(fixture.store.log(LogId(2)).unwrap().end(), Offset(0));
    disk.remove_capacity_limit();
    durably(&fixture, 1, b"after");
    assert_eq!(fixture.store.log(LogId(1)).unwrap().end(), Offset(2), "offsets are dense");
    let reopened = StoreFixture::open(&disk.after_crash(|_| 0), options(), &clock).unwrap();
    let payloads: Vec<_> = reopened.replayed.iter().map(|entry| &entry.payload[..]).collect();
    assert_eq!(payloads, [&b"before"[..], b"after"]);
}

#[test]
fn a_write_that_fills_the_disk_midway_is_taken_back_and_rolls_the_stage_back() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { segment_bytes_max: 1 << 20, ..Options::default() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    one(&fixture, 1, &[1; 100], Durability::Written).unwrap();
    let used = disk.used_bytes();
    disk.arm(DiskFault::FullAt(used + 500));
    let promised = fixture.frontier();
    assert!(matches!(
        one(&fixture, 1, &[2; 900], Durability::Written),
        Err(AppendError::Storage(StorageError::NoSpace { .. }))
    ));
    assert_eq!(fixture.calls.rollbacks.load(Ordering::SeqCst), 1, "rolled back");
    clock.advance(Duration::from_millis(50));
    assert!(fixture.frontier() > promised, "what is gone for good holds no frontier back");
    // The first of two fits on the disk, and is withdrawn with the second.
    let group =
        fixture.append(vec![append(1, &[7; 100]), append(1, &[8; 900])], Durability::Written);
    assert!(
        group.iter().all(|result| matches!(
            result,
            Err(AppendError::Storage(StorageError::NoSpace { .. }))
        )),
        "{group:?}"
    );
    let killed = StoreFixture::open(&disk.after_kill(), options, &clock).unwrap();
    assert_eq!((killed.replayed.len(), killed.store.torn_bytes), (1, 0));
    // A small group still fits.
    one(&fixture, 1, &[3; 100], Durability::Written).unwrap();
    disk.remove_capacity_limit();
    one(&fixture, 1, &[4; 900], Durability::Synced).unwrap();
    let reopened = StoreFixture::open(&disk.after_crash(|_| 0), options, &clock).unwrap();
    let firsts: Vec<_> = reopened.replayed.iter().map(|entry| entry.payload[0]).collect();
    assert_eq!(firsts, [1, 3, 4]);
}

#[test]
fn a_disk_too_full_for_a_new_segment_refuses_and_recovers() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for index in 0..3 {
        durably(&fixture, 1, &[index; 1000]);
    }
    let used = disk.used_bytes();
    disk.arm(DiskFault::FullAt(used));
    for _ in 0..3 {
        assert!(matches!(
            one(&fixture, 1, &[9; 1000], Durability::Synced),
            Err(AppendError::Storage(StorageError::NoSpace { .. }))
        ));
    }
    disk.remove_capacity_limit();
    durably(&fixture, 1, &[3; 1000]);
    assert_eq!(segments(&disk).len(), 2);
    let reopened = StoreFixture::open(&disk.after_crash(|_| 1), options(), &clock).unwrap();
    let firsts: Vec<_> = reopened.replayed.iter().map(|entry| entry.payload[0]).collect();
    assert_eq!(firsts, [0, 1, 2, 3]);
}

#[test]
fn a_segment_without_room_to_be_rolled_refuses_and_is_rolled_later() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for index in 0..3 {
        durably(&fixture, 1, &[index; 1000]);
    }
    disk.arm(DiskFault::NoSpaceToTruncate);
    assert!(matches!(
        one(&fixture, 1, &[9; 1000], Durability::Synced),
        Err(AppendError::Storage(StorageError::NoSpace { .. }))
    ));
    assert_eq!(fixture.store.stop_reason(), None);
    assert_eq!(fixture.read(LogId(1)).len(), 3, "reads go on");
    let firsts = |disk: &MemoryDisk| -> Vec<u8> {
        let reopened = StoreFixture::open(disk, options(), &clock).unwrap();
        reopened.replayed.iter().map(|entry| entry.payload[0]).collect()
    };
    assert_eq!(firsts(&disk.after_crash(|_| 0)), [0, 1, 2]);
    durably(&fixture, 1, &[3; 1000]);
    assert_eq!(segments(&disk).len(), 2);
    assert_eq!(firsts(&disk.after_crash(|_| 1)), [0, 1, 2, 3]);
}

/// Fills the disk to its last byte, as other users of it may.
fn fill(disk: &MemoryDisk) {
    disk.arm(DiskFault::FullAt(disk.used_bytes()));
}

/// F16: whatever fills the disk, an operation that frees space can be written down.
#[test]
fn f16_the_log_start_can_advance_on_a_disk_that_is_full_to_the_last_byte() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { manual_stepping: true, ..options() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    for index in 0..20 {
        durably(&fixture, 1, &[index; 1000]);
    }
    fixture.store.run_maintenance().unwrap();
    fill(&disk);
    assert!(matches!(
        one(&fixture, 1, &[9; 3000], Durability::Synced),
        Err(AppendError::Storage(StorageError::NoSpace { .. }))
    ));
    // The deletion of a topic is recorded, in a new segment if necessary.
    for _ in 0..3 {
        let (sender, results) = std::sync::mpsc::channel();
        let event = vec![append(2, &[8; 1500])];
        fixture.store.append_with_reserve(event, Durability::Synced, move |results| {
            sender.send(results).unwrap();
        });
        while fixture.store.step() {}
        assert!(results.recv().unwrap()[0].is_ok());
    }
    fixture.store.advance_log_start(&[(LogId(1), Offset(16))]).unwrap();
    // The released space is only for that, although there is space now.
    let refused = one(&fixture, 1, b"small", Durability::Synced);
    let Err(AppendError::Storage(error)) = refused else { panic!("{refused:?}") };
    assert!(error.is_full(), "{error}");
    let message = error.to_string();
    assert!(message.contains("reserved for advancing log starts"), "{message}");
    let before = disk.used_bytes();
    fixture.store.reclaim().unwrap();
    fixture.store.reclaim().unwrap();
    assert!(disk.used_bytes() + 12_000 < before, "space was reclaimed");
    assert!(fixture.read(LogId(1))[0].payload == [16; 1000][..], "the rest is read");
    // There is space for the reserve again once others release theirs.
    disk.remove_capacity_limit();
    durably(&fixture, 1, b"after");
    assert!(disk.names().contains(&storage::RESERVE_FILE.to_owned()));
    drop(fixture);
    assert_eq!(problems(&disk), [""; 0]);
    let reopened = StoreFixture::open(&disk.after_crash(|_| 0), options, &clock).unwrap();
    assert_eq!(reopened.store.log(LogId(2)).unwrap().end(), Offset(3));
    assert_eq!(reopened.store.log(LogId(1)).unwrap().start(), Offset(16));
}

/// F16: a start on a full disk needs no space that is not there.
#[test]
fn f16_a_store_starts_on_a_full_disk_reads_and_advances_the_log_start() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { manual_stepping: true, ..options() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    for index in 0..20 {
        durably(&fixture, 1, &[index; 1000]);
    }
    fixture.store.run_maintenance().unwrap();
    fill(&disk);
    fixture.store.advance_log_start(&[(LogId(1), Offset(3))]).unwrap();
    let disk = disk.after_kill();
    // Another program takes the released space.
    disk.arm(DiskFault::FullAt(disk.used_bytes() - 1));
    clock.advance(Duration::from_secs(5));
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    assert_eq!(fixture.store.log(LogId(1)).unwrap().start(), Offset(3));
    assert!(matches!(
        one(&fixture, 1, b"small", Durability::Synced),
        Err(AppendError::Storage(StorageError::NoSpace { .. }))
    ));
    assert!(fixture.read(LogId(1))[0].payload == [3; 1000][..]);
    disk.remove_capacity_limit();
    durably(&fixture, 1, b"after");
}

/// F16: what cannot be indexed for lack of space keeps nothing from being reclaimed, even after a
/// restart.
#[test]
fn f16_what_lies_before_the_log_start_is_reclaimed_although_there_is_no_room_for_an_index() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { manual_stepping: true, ..options() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    for index in 0..20 {
        durably(&fixture, 1, &[index; 1000]);
    }
    fixture.store.run_maintenance().unwrap();
    // Rolled, and not indexed yet.
    for index in 20..30 {
        durably(&fixture, 1, &[index; 1000]);
    }
    fill(&disk);
    fixture.store.advance_log_start(&[(LogId(1), Offset(18))]).unwrap();
    drop(fixture);
    let disk = disk.after_kill();
    fill(&disk);
    clock.advance(Duration::from_secs(5));
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    let before = disk.used_bytes();
    assert!(fixture.store.run_maintenance().unwrap_err().is_full());
    fixture.store.reclaim().unwrap();
    fixture.store.reclaim().unwrap();
    assert!(disk.used_bytes() + 10_000 < before, "{} of {before} are held", disk.used_bytes());
    fixture.store.run_maintenance().unwrap();
    drop(fixture);
    disk.remove_capacity_limit();
    assert_eq!(problems(&disk), [""; 0]);
}

/// Withdrawing a group syncs one file; rolled segments that were not synced still are not.
#[test]
fn f18_rolling_back_a_group_does_not_claim_that_sealed_segments_were_synced() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for index in 0..4 {
        one(&fixture, 1, &[index; 1000], Durability::Written).unwrap();
    }
    assert_eq!(segments(&disk).len(), 2);
    let used = disk.used_bytes();
    disk.arm(DiskFault::FullAt(used));
    assert!(matches!(
        one(&fixture, 1, &[9; 1000], Durability::Written),
        Err(AppendError::Storage(StorageError::NoSpace { .. }))
    ));
    disk.remove_capacity_limit();
    drop(fixture);
    let reopened = StoreFixture::open(&disk.after_crash(|_| 0), options(), &clock).unwrap();
    assert_eq!(reopened.replayed.len(), 4, "closing syncs all that was not");
}

// Failed syncs.

/// F18: no log start advances over entries that may be lost, even if indexing requested the sync.
#[test]
fn f18_no_log_start_advances_once_a_sync_of_a_sealed_segment_has_failed() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { manual_stepping: true, ..options() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    for index in 0..5 {
        one(&fixture, 1, &[index; 1000], Durability::Written).unwrap();
    }
    disk.arm(DiskFault::SyncFails(0));
    fixture.store.run_maintenance().unwrap_err();
    assert!(fixture.store.stop_reason().is_some());
    fixture.store.sync().unwrap_err();
    fixture.store.advance_log_start(&[(LogId(1), Offset(5))]).unwrap_err();
    drop(fixture);
    let log = StoreFixture::open(&disk.after_crash(|_| 0), options, &clock)
        .unwrap()
        .store
        .log(LogId(1))
        .unwrap();
    assert!(log.start() <= log.end(), "{:?} to {:?}", log.start(), log.end());
    assert_eq!(log.start(), Offset(0));
}

#[test]
fn a_failed_sync_stops_the_store_and_acknowledges_nothing_queued_behind_it() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = || Options { segment_bytes_max: 1 << 30, ..Options::default() };
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    durably(&fixture, 1, b"good");
    let (stops, stopped) = std::sync::mpsc::channel();
    fixture.store.on_stop(move || stops.send(()).unwrap());
    disk.arm(DiskFault::SyncFails(0));
    // Three groups: their size keeps the writer from combining them.
    let large = |byte| vec![append(1, &vec![byte; 17 << 20])];
    let durability = Durability::Synced;
    let results = fixture.append_as_one_group(vec![
        (large(1), durability),
        (large(2), durability),
        (large(3), durability),
    ]);
    for result in results.iter().flatten() {
        assert!(
            matches!(result, Err(AppendError::Storage(StorageError::Stopped { .. }))),
            "{result:?}"
        );
    }
    assert_eq!(stopped.try_iter().count(), 1, "the listener was told once, before the answers");
    let reason = fixture.store.stop_reason().expect("the store has stopped");
    assert!(
        reason.starts_with("sync journal: ") && reason.ends_with(": input/output error"),
        "{reason}"
    );
    assert!(matches!(
        one(&fixture, 1, b"x", durability),
        Err(AppendError::Storage(StorageError::Stopped { .. }))
    ));
    assert_eq!(fixture.read(LogId(1)).len(), 1, "reads go on");
    fixture.store.close();
    let reopened = StoreFixture::open(&disk.after_crash(|_| 1), options(), &clock).unwrap();
    assert_eq!(reopened.replayed.len(), 1, "what the kernel dropped is not claimed to be synced");
    drop(reopened);
    let reopened = StoreFixture::open(&disk.after_kill(), options(), &clock).unwrap();
    assert_eq!(reopened.replayed[0].payload, b"good"[..]);
}

/// Clients that send several requests at a time read refusals in the order of their requests.
#[test]
fn what_comes_after_a_stop_is_refused_behind_what_was_queued_before_it() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { manual_stepping: true, ..options() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    durably(&fixture, 1, b"good");
    disk.arm(DiskFault::SyncFails(0));
    let refused = Arc::new(std::sync::Mutex::new(Vec::new()));
    let push = |nth: u8| {
        let refused = Arc::clone(&refused);
        let appends = vec![append(1, &[nth])];
        // Each with the reserve is a group by itself.
        fixture.store.append_with_reserve(appends, Durability::Synced, move |results| {
            assert!(results[0].is_err());
            refused.lock().unwrap().push(nth);
        });
    };
    push(1);
    push(2);
    assert!(fixture.store.step());
    assert!(fixture.store.stop_reason().is_some());
    push(3);
    while fixture.store.step() {}
    assert_eq!(*refused.lock().unwrap(), [1, 2, 3]);
}

/// After a failed sync the next one reports success: closing must not believe it.
#[test]
fn f18_closing_after_a_failed_sync_does_not_claim_what_was_lost() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    durably(&fixture, 1, b"good");
    one(&fixture, 1, b"only written", Durability::Written).unwrap();
    disk.arm(DiskFault::SyncFails(0));
    one(&fixture, 1, b"lost", Durability::Synced).unwrap_err();
    fixture.store.close();
    let reopened = StoreFixture::open(&disk.after_crash(|_| 1), options(), &clock).unwrap();
    assert_eq!(reopened.replayed.len(), 1);
}

/// F9, B2: the frames of the failed group are in the page cache, and the next incarnation finds
/// them.
#[test]
fn a_failed_sync_holds_the_frontier_below_the_group_that_may_be_found_later() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    disk.arm(DiskFault::SyncFails(0));
    // The creation of the segment syncs; that one fails first.
    one(&fixture, 1, b"first", Durability::Synced).unwrap_err();
    durably(&fixture, 1, b"first");
    disk.arm(DiskFault::SyncFails(0));
    assert!(matches!(
        one(&fixture, 1, b"lost?", Durability::Synced),
        Err(AppendError::Storage(StorageError::Stopped { .. }))
    ));
    clock.advance(Duration::from_millis(300));
    let frontier = fixture.frontier();
    let before = fixture.store.log(LogId(1)).unwrap().offset_at(Cut::through(frontier)).unwrap();
    fixture.store.close();
    assert!(fixture.frontier() >= frontier);
    let reopened = StoreFixture::open(&disk.after_kill(), options(), &clock).unwrap();
    assert_eq!(reopened.replayed.len(), 2, "this test is about a group that is found");
    assert_eq!(
        reopened.store.log(LogId(1)).unwrap().offset_at(Cut::through(frontier)).unwrap(),
        before
    );
}

#[test]
fn one_failed_renewal_of_the_bound_costs_no_append_once_the_disk_is_well() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    durably(&fixture, 1, b"a");
    disk.arm(DiskFault::SyncFails(0));
    clock.advance(Duration::from_millis(600));
    fixture.store.timekeeper().frontier();
    while fixture.store.timekeeper().is_renewing() {
        std::thread::yield_now();
    }
    clock.advance(Duration::from_secs(60));
    durably(&fixture, 1, b"b");
}

#[test]
fn a_bound_that_cannot_be_written_refuses_appends_and_says_so() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    durably(&fixture, 1, b"a");
    disk.arm(DiskFault::CrashAt(disk.operations()));
    clock.advance(Duration::from_secs(60));
    let results = fixture.append_as_one_group(vec![(vec![append(1, b"b")], Durability::Written)]);
    assert!(matches!(results[0][0], Err(AppendError::Time(TimeError::Bound(_)))), "{results:?}");
}

/// B5: a promise requested while the store closes must not exceed the bound that closing wrote.
#[test]
fn b5_a_promise_given_after_closing_is_kept_by_the_next_incarnation() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    durably(&fixture, 1, b"a");
    fixture.store.close();
    clock.advance(Duration::from_millis(400));
    let promised = fixture.store.timekeeper().frontier();
    fixture.store.timekeeper().fence();
    let promised = promised.max(fixture.store.timekeeper().frontier());
    clock.step_to(SysTime(testkit::store::BEGIN.0));
    let reopened = StoreFixture::open(&disk, options(), &clock).unwrap();
    let stamp = one(&reopened, 1, b"b", Durability::Written).unwrap().stamp;
    assert!(stamp > promised, "{stamp} <= {promised}");
}

#[test]
fn a_store_dropped_by_a_completion_does_not_wait_for_itself() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = Arc::new(StoreFixture::open(&disk, options(), &clock).unwrap());
    let (sender, receiver) = std::sync::mpsc::channel();
    let (guard, dropped_here) = std::sync::mpsc::channel::<()>();
    let inside = Arc::clone(&fixture);
    fixture.store.append(vec![append(1, b"a")], Durability::Written, move |results| {
        let _ = dropped_here.recv();
        drop(inside);
        sender.send(results.len()).unwrap();
    });
    drop(fixture);
    drop(guard);
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(1));
}
