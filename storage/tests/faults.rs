//! Disks that fill up, fail and rot; files that go missing; directories that are not ours.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use harness::{Rig, TempDir, Verdict, append, manual_clock};
use hlc::{Cut, ManualClock, SysTime};
use storage::disk::{Disk, Fault, MemoryDisk, RealDisk};
use storage::journal::{FRAME_BYTES, SEGMENT_HEADER_BYTES};
use storage::timekeeper::TimeError;
use storage::{
    Append, AppendError, Durability, Home, HomeError, LogId, Offset, OpenError, Options,
};

const HEADER: usize = SEGMENT_HEADER_BYTES as usize;
const FRAME: usize = FRAME_BYTES;

fn options() -> Options {
    Options { segment_bytes_max: 4096, tended_by_hand: true, ..Options::default() }
}

fn one(rig: &Rig, log: u64, payload: &[u8], how: Durability) -> harness::TestResult {
    rig.append(vec![append(log, payload)], how).remove(0)
}

fn durably(rig: &Rig, log: u64, payload: &[u8]) {
    one(rig, log, payload, Durability::Synced).expect("a healthy disk takes an append");
}

/// Names and bytes of all files.
fn files(disk: &MemoryDisk) -> BTreeMap<String, Vec<u8>> {
    let names = disk.list().unwrap();
    names.into_iter().map(|name| (name.clone(), disk.bytes(&name))).collect()
}

fn segments(disk: &MemoryDisk) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.retain(|name| name.ends_with(".journal"));
    names.sort();
    names
}

/// The store refuses to open; it names `file`, and leaves every file as it was.
fn assert_refused(disk: &MemoryDisk, clock: &Arc<ManualClock>, file: &str) -> OpenError {
    let before = files(disk);
    let error = Rig::open(disk, options(), clock).expect_err("damage is no reason to go on");
    assert!(error.to_string().contains(file), "{error}");
    assert!(files(disk) == before, "a refusal changes nothing: {error}");
    error
}

fn problems(disk: &MemoryDisk) -> Vec<String> {
    let before = files(disk);
    let report = storage::check::check(disk, &mut |_| {}).unwrap();
    assert!(files(disk) == before, "a check changes nothing");
    report.problems
}

fn assert_checked(disk: &MemoryDisk, file: &str) {
    let found = problems(disk);
    assert!(found.iter().any(|problem| problem.contains(file)), "{found:?}");
}

/// Three segments of about 4 KiB, ten frames of 1000 bytes each on its own group; the machine
/// stopped, so that only frames and the first bound know what was synced.
fn crashed_with_three_segments(clock: &Arc<ManualClock>) -> MemoryDisk {
    let disk = MemoryDisk::new();
    let rig = Rig::open(&disk, options(), clock).unwrap();
    for index in 0..10u8 {
        durably(&rig, u64::from(index % 2), &[index; 1000]);
    }
    let crashed = disk.after_crash(|_| 0);
    assert_eq!(segments(&crashed).len(), 4);
    assert_eq!(problems(&crashed), [""; 0]);
    crashed
}

const FRAME_WHOLE: usize = FRAME + 1000;

// A full disk.

#[test]
fn a_full_disk_refuses_a_group_whole_and_takes_appends_again_once_there_is_room() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    durably(&rig, 1, b"before");
    let commits = rig.calls.commits.load(Ordering::SeqCst);
    let held = disk.held_bytes();
    disk.arm(Fault::FullAt(held + 100));
    for durability in [Durability::Synced, Durability::Written] {
        let group = vec![append(1, &[1; 3000]), append(2, &[2; 3000])];
        let results = rig.append(group, durability);
        for result in &results {
            assert!(matches!(result, Err(AppendError::Disk(_))), "{results:?}");
        }
    }
    assert_eq!(rig.calls.commits.load(Ordering::SeqCst), commits);
    assert_eq!(rig.store.stopped(), None);
    assert_eq!(rig.read(LogId(1))[0].payload, b"before"[..], "reads go on");
    assert_eq!(rig.store.log(LogId(2)).unwrap().end(), Offset(0));
    disk.make_room();
    durably(&rig, 1, b"after");
    assert_eq!(rig.store.log(LogId(1)).unwrap().end(), Offset(2), "offsets are dense");
    let reopened = Rig::open(&disk.after_crash(|_| 0), options(), &clock).unwrap();
    let payloads: Vec<_> = reopened.replayed.iter().map(|seen| &seen.payload[..]).collect();
    assert_eq!(payloads, [&b"before"[..], b"after"]);
}

#[test]
fn a_write_that_fills_the_disk_midway_is_taken_back_and_rolls_the_stage_back() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { segment_bytes_max: 1 << 20, ..Options::default() };
    let rig = Rig::open(&disk, options, &clock).unwrap();
    one(&rig, 1, &[1; 100], Durability::Written).unwrap();
    let held = disk.held_bytes();
    disk.arm(Fault::FullAt(held + 500));
    let promised = rig.frontier();
    assert!(matches!(one(&rig, 1, &[2; 900], Durability::Written), Err(AppendError::Disk(_))));
    assert_eq!(rig.calls.rollbacks.load(Ordering::SeqCst), 1, "rolled back");
    clock.advance(Duration::from_millis(50));
    assert!(rig.frontier() > promised, "what is gone for good holds no frontier back");
    // The first of two fits on the disk, and is taken back with the second.
    let group = rig.append(vec![append(1, &[7; 100]), append(1, &[8; 900])], Durability::Written);
    assert!(group.iter().all(|result| matches!(result, Err(AppendError::Disk(_)))), "{group:?}");
    let killed = Rig::open(&disk.after_kill(), options, &clock).unwrap();
    assert_eq!((killed.replayed.len(), killed.store.torn_bytes), (1, 0));
    // A small group still fits.
    one(&rig, 1, &[3; 100], Durability::Written).unwrap();
    disk.make_room();
    one(&rig, 1, &[4; 900], Durability::Synced).unwrap();
    let reopened = Rig::open(&disk.after_crash(|_| 0), options, &clock).unwrap();
    let firsts: Vec<_> = reopened.replayed.iter().map(|seen| seen.payload[0]).collect();
    assert_eq!(firsts, [1, 3, 4]);
}

#[test]
fn a_disk_too_full_for_a_new_segment_refuses_and_recovers() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    for index in 0..3 {
        durably(&rig, 1, &[index; 1000]);
    }
    let held = disk.held_bytes();
    disk.arm(Fault::FullAt(held));
    for _ in 0..3 {
        assert!(matches!(one(&rig, 1, &[9; 1000], Durability::Synced), Err(AppendError::Disk(_))));
    }
    disk.make_room();
    durably(&rig, 1, &[3; 1000]);
    assert_eq!(segments(&disk).len(), 2);
    let reopened = Rig::open(&disk.after_crash(|_| 1), options(), &clock).unwrap();
    let firsts: Vec<_> = reopened.replayed.iter().map(|seen| seen.payload[0]).collect();
    assert_eq!(firsts, [0, 1, 2, 3]);
}

/// Fills the disk to its last byte, as others on it may.
fn fill(disk: &MemoryDisk) {
    disk.arm(Fault::FullAt(disk.held_bytes()));
}

/// F16: whatever fills the disk, what makes room can be written down.
#[test]
fn f16_history_can_be_given_up_on_a_disk_that_is_full_to_the_last_byte() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { driven_by_hand: true, ..options() };
    let rig = Rig::open(&disk, options, &clock).unwrap();
    for index in 0..20 {
        durably(&rig, 1, &[index; 1000]);
    }
    rig.store.tend().unwrap();
    fill(&disk);
    assert!(matches!(one(&rig, 1, &[9; 3000], Durability::Synced), Err(AppendError::Disk(_))));
    // Whoever says that a topic ends gets it said, in a new segment if need be.
    for _ in 0..3 {
        let (sender, said) = std::sync::mpsc::channel();
        let event = vec![append(2, &[8; 1500])];
        rig.store.append_to_make_space(event, Durability::Synced, move |results| {
            sender.send(results).unwrap();
        });
        while rig.store.turn() {}
        assert!(said.recv().unwrap()[0].is_ok());
    }
    rig.store.give_up(&[(LogId(1), Offset(16))]).unwrap();
    // What was let go of is for that only, although there is room now.
    let refused = one(&rig, 1, b"small", Durability::Synced);
    let Err(AppendError::Disk(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("kept for giving up history"), "{why}");
    let before = disk.held_bytes();
    rig.store.free().unwrap();
    rig.store.free().unwrap();
    assert!(disk.held_bytes() + 12_000 < before, "space was given back");
    assert!(rig.read(LogId(1))[0].payload == [16; 1000][..], "the rest is read");
    // There is room for what is kept again once others let go of theirs.
    disk.make_room();
    durably(&rig, 1, b"after");
    assert!(disk.names().contains(&storage::RESERVE_FILE.to_owned()));
    drop(rig);
    assert_eq!(problems(&disk), [""; 0]);
    let reopened = Rig::open(&disk.after_crash(|_| 0), options, &clock).unwrap();
    assert_eq!(reopened.store.log(LogId(2)).unwrap().end(), Offset(3));
    assert_eq!(reopened.store.log(LogId(1)).unwrap().start(), Offset(16));
}

/// F16: a start on a full disk takes no room that is not there.
#[test]
fn f16_a_store_starts_on_a_full_disk_reads_and_gives_up() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { driven_by_hand: true, ..options() };
    let rig = Rig::open(&disk, options, &clock).unwrap();
    for index in 0..20 {
        durably(&rig, 1, &[index; 1000]);
    }
    rig.store.tend().unwrap();
    fill(&disk);
    rig.store.give_up(&[(LogId(1), Offset(3))]).unwrap();
    let disk = disk.after_kill();
    // Somebody else takes what was let go of.
    disk.arm(Fault::FullAt(disk.held_bytes() - 1));
    clock.advance(Duration::from_secs(5));
    let rig = Rig::open(&disk, options, &clock).unwrap();
    assert_eq!(rig.store.log(LogId(1)).unwrap().start(), Offset(3));
    assert!(matches!(one(&rig, 1, b"small", Durability::Synced), Err(AppendError::Disk(_))));
    assert!(rig.read(LogId(1))[0].payload == [3; 1000][..]);
    disk.make_room();
    durably(&rig, 1, b"after");
}

/// F16: what cannot be indexed for want of room keeps nothing from being freed, also not after a restart.
#[test]
fn f16_what_was_given_up_is_freed_although_there_is_no_room_for_an_index() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { driven_by_hand: true, ..options() };
    let rig = Rig::open(&disk, options, &clock).unwrap();
    for index in 0..20 {
        durably(&rig, 1, &[index; 1000]);
    }
    rig.store.tend().unwrap();
    // Sealed, and not indexed yet.
    for index in 20..30 {
        durably(&rig, 1, &[index; 1000]);
    }
    fill(&disk);
    rig.store.give_up(&[(LogId(1), Offset(18))]).unwrap();
    drop(rig);
    let disk = disk.after_kill();
    fill(&disk);
    clock.advance(Duration::from_secs(5));
    let rig = Rig::open(&disk, options, &clock).unwrap();
    let before = disk.held_bytes();
    assert_eq!(rig.store.tend().unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    rig.store.free().unwrap();
    rig.store.free().unwrap();
    assert!(disk.held_bytes() + 10_000 < before, "{} of {before} are held", disk.held_bytes());
    rig.store.tend().unwrap();
    drop(rig);
    disk.make_room();
    assert_eq!(problems(&disk), [""; 0]);
}

/// Taking a group back syncs one file; sealed segments that nobody synced are still not.
#[test]
fn f18_withdrawing_a_group_does_not_claim_that_sealed_segments_were_synced() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    for index in 0..4 {
        one(&rig, 1, &[index; 1000], Durability::Written).unwrap();
    }
    assert_eq!(segments(&disk).len(), 2);
    let held = disk.held_bytes();
    disk.arm(Fault::FullAt(held));
    assert!(matches!(one(&rig, 1, &[9; 1000], Durability::Written), Err(AppendError::Disk(_))));
    disk.make_room();
    drop(rig);
    let reopened = Rig::open(&disk.after_crash(|_| 0), options(), &clock).unwrap();
    assert_eq!(reopened.replayed.len(), 4, "closing syncs all that was not");
}

// Failed syncs.

/// F18: nothing is given up of what may be lost, also where it was indexing that asked for the sync.
#[test]
fn f18_nothing_is_given_up_once_a_sync_of_a_sealed_segment_has_failed() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { driven_by_hand: true, ..options() };
    let rig = Rig::open(&disk, options, &clock).unwrap();
    for index in 0..5 {
        one(&rig, 1, &[index; 1000], Durability::Written).unwrap();
    }
    disk.arm(Fault::SyncFails(0));
    rig.store.tend().unwrap_err();
    assert!(rig.store.stopped().is_some());
    rig.store.sync().unwrap_err();
    rig.store.give_up(&[(LogId(1), Offset(5))]).unwrap_err();
    drop(rig);
    let log =
        Rig::open(&disk.after_crash(|_| 0), options, &clock).unwrap().store.log(LogId(1)).unwrap();
    assert!(log.start() <= log.end(), "{:?} to {:?}", log.start(), log.end());
    assert_eq!(log.start(), Offset(0));
}

#[test]
fn a_failed_sync_stops_the_store_and_acknowledges_nothing_queued_behind_it() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = || Options { segment_bytes_max: 1 << 30, ..Options::default() };
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    durably(&rig, 1, b"good");
    disk.arm(Fault::SyncFails(0));
    // Three groups: the writer is held back between them by their size.
    let large = |byte| vec![append(1, &vec![byte; 17 << 20])];
    let how = Durability::Synced;
    let results = rig.append_as_one_group(vec![(large(1), how), (large(2), how), (large(3), how)]);
    for result in results.iter().flatten() {
        assert!(matches!(result, Err(AppendError::Stopped(_))), "{result:?}");
    }
    let why = rig.store.stopped().expect("the store has stopped");
    assert!(why.contains("sync journal: input/output error"), "{why}");
    assert!(matches!(one(&rig, 1, b"x", how), Err(AppendError::Stopped(_))));
    assert_eq!(rig.read(LogId(1)).len(), 1, "reads go on");
    rig.store.close();
    let reopened = Rig::open(&disk.after_crash(|_| 1), options(), &clock).unwrap();
    assert_eq!(reopened.replayed.len(), 1, "what the kernel dropped is not claimed to be synced");
    drop(reopened);
    let reopened = Rig::open(&disk.after_kill(), options(), &clock).unwrap();
    assert_eq!(reopened.replayed[0].payload, b"good"[..]);
}

/// After a failed sync the next one says that all is well: closing must not believe it.
#[test]
fn f18_closing_after_a_failed_sync_does_not_claim_what_was_lost() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    durably(&rig, 1, b"good");
    one(&rig, 1, b"only written", Durability::Written).unwrap();
    disk.arm(Fault::SyncFails(0));
    one(&rig, 1, b"lost", Durability::Synced).unwrap_err();
    rig.store.close();
    let reopened = Rig::open(&disk.after_crash(|_| 1), options(), &clock).unwrap();
    assert_eq!(reopened.replayed.len(), 1);
}

/// F9, B2: the frames of the failed group are in the page cache, and the next life finds them.
#[test]
fn a_failed_sync_holds_the_frontier_below_the_group_that_may_be_found_later() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    disk.arm(Fault::SyncFails(0));
    // The segment's creation syncs; let that be.
    one(&rig, 1, b"first", Durability::Synced).unwrap_err();
    durably(&rig, 1, b"first");
    disk.arm(Fault::SyncFails(0));
    assert!(matches!(one(&rig, 1, b"lost?", Durability::Synced), Err(AppendError::Stopped(_))));
    clock.advance(Duration::from_millis(300));
    let frontier = rig.frontier();
    let before = rig.store.log(LogId(1)).unwrap().offset_at(Cut::through(frontier)).unwrap();
    rig.store.close();
    assert!(rig.frontier() >= frontier);
    let reopened = Rig::open(&disk.after_kill(), options(), &clock).unwrap();
    assert_eq!(reopened.replayed.len(), 2, "this test is about a group that is found");
    assert_eq!(
        reopened.store.log(LogId(1)).unwrap().offset_at(Cut::through(frontier)).unwrap(),
        before
    );
}

#[test]
fn one_failed_renewal_of_the_bound_costs_no_append_once_the_disk_is_well() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    durably(&rig, 1, b"a");
    disk.arm(Fault::SyncFails(0));
    clock.advance(Duration::from_millis(600));
    rig.store.timekeeper().frontier();
    while rig.store.timekeeper().is_renewing() {
        std::thread::yield_now();
    }
    clock.advance(Duration::from_secs(60));
    durably(&rig, 1, b"b");
}

#[test]
fn a_bound_that_cannot_be_written_refuses_appends_and_says_so() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    durably(&rig, 1, b"a");
    disk.arm(Fault::CrashAt(disk.operations()));
    clock.advance(Duration::from_secs(60));
    let results = rig.append_as_one_group(vec![(vec![append(1, b"b")], Durability::Written)]);
    assert!(matches!(results[0][0], Err(AppendError::Time(TimeError::Bound(_)))), "{results:?}");
}

/// B5: a promise asked for while the store closes must not exceed the bound that closing wrote.
#[test]
fn b5_a_promise_given_after_closing_is_kept_by_the_next_life() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    durably(&rig, 1, b"a");
    rig.store.close();
    clock.advance(Duration::from_millis(400));
    let promised = rig.store.timekeeper().frontier();
    rig.store.timekeeper().fence();
    let promised = promised.max(rig.store.timekeeper().frontier());
    clock.step_to(SysTime(harness::BEGIN.0));
    let reopened = Rig::open(&disk, options(), &clock).unwrap();
    let stamp = one(&reopened, 1, b"b", Durability::Written).unwrap().stamp;
    assert!(stamp > promised, "{stamp} <= {promised}");
}

#[test]
fn a_store_dropped_by_a_completion_does_not_wait_for_itself() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Arc::new(Rig::open(&disk, options(), &clock).unwrap());
    let (sender, receiver) = std::sync::mpsc::channel();
    let (held, dropped_here) = std::sync::mpsc::channel::<()>();
    let inside = Arc::clone(&rig);
    rig.store.append(vec![append(1, b"a")], Durability::Written, move |results| {
        let _ = dropped_here.recv();
        drop(inside);
        sender.send(results.len()).unwrap();
    });
    drop(rig);
    drop(held);
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(1));
}

// Rot.

#[test]
fn rot_in_a_frame_header_that_was_synced_refuses_to_open_and_names_the_place() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    for (index, name) in segments(&disk).iter().take(3).enumerate() {
        for at in [0, 5, 40, FRAME_WHOLE + 8, 2 * FRAME_WHOLE + 79] {
            let disk = disk.after_kill();
            disk.rot(name, HEADER + at, 4);
            let frame = 3 * index + at / FRAME_WHOLE;
            let error = assert_refused(&disk, &clock, name);
            let position = format!("position={},", frame * FRAME_WHOLE);
            assert!(error.to_string().contains(&position), "{error}");
            assert_checked(&disk, name);
            assert_checked(&disk, &position);
        }
    }
}

#[test]
fn rot_in_a_payload_that_a_later_frame_knew_to_be_synced_refuses_to_open() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    for name in segments(&disk).iter().take(3) {
        let disk = disk.after_kill();
        disk.rot(name, HEADER + FRAME_WHOLE + FRAME + 500, 1);
        assert_refused(&disk, &clock, name);
        assert_checked(&disk, name);
    }
}

/// Opening reads headers only below what the bound file knows to be synced: starting must not take
/// as long as reading everything. A check reads it all.
#[test]
fn rot_in_a_payload_below_the_bound_file_s_mark_is_found_by_a_check_and_by_whoever_reads_it() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    durably(&rig, 1, &[1; 1000]);
    durably(&rig, 1, &[2; 1000]);
    drop(rig);
    disk.rot(&segments(&disk)[0], HEADER + FRAME + 500, 1);
    assert_checked(&disk, "position=0,");
    // A start reads no such payload by itself; what is replayed here does.
    let Err(refused) = Rig::open(&disk, options(), &clock) else {
        panic!("nobody is given rotten bytes");
    };
    assert!(refused.to_string().contains(&segments(&disk)[0]), "{refused}");
}

#[test]
fn rot_in_a_segment_header_refuses_to_open_whichever_segment_it_is() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    for name in segments(&disk) {
        for at in [0, 9, 17, 61] {
            let disk = disk.after_kill();
            disk.rot(&name, at, 2);
            assert_refused(&disk, &clock, &name);
            assert_checked(&disk, &name);
        }
    }
}

#[test]
fn rot_in_the_tail_that_nobody_synced_is_cut_off() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    durably(&rig, 1, &[1; 100]);
    for index in 2..5 {
        one(&rig, 1, &[index; 100], Durability::Written).unwrap();
    }
    let disk = disk.after_kill();
    let name = &segments(&disk)[0];
    let second = HEADER + FRAME + 104;
    disk.rot(name, second + FRAME + 3, 1);
    let report = storage::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!((report.frames, report.problems), (1, vec![]));
    assert_eq!(report.torn_bytes, 3 * (FRAME as u64 + 104) - 4, "up to the last written byte");
    let reopened = Rig::open(&disk, options(), &clock).unwrap();
    assert_eq!(reopened.replayed.len(), 1);
    assert_eq!(reopened.store.torn_bytes, report.torn_bytes);
    assert_eq!(disk.bytes(name).len(), second);
}

#[test]
fn zeros_written_ahead_are_no_torn_tail() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, Options::default(), &clock).unwrap();
    durably(&rig, 1, &[1; 100]);
    let crashed = disk.after_crash(|_| 0);
    let name = &segments(&crashed)[0];
    assert!(crashed.bytes(name).len() > 1 << 20, "zeros stand ahead");
    let report = storage::check::check(&crashed, &mut |_| {}).unwrap();
    assert_eq!((report.torn_bytes, report.problems), (0, vec![]));
    let reopened = Rig::open(&crashed, Options::default(), &clock).unwrap();
    assert_eq!(reopened.store.torn_bytes, 0);
    assert_eq!(crashed.bytes(name).len(), HEADER + FRAME + 104, "and are cut off");
}

#[test]
fn rot_in_a_slot_of_the_bound_file_refuses_to_open() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    drop(Rig::open(&disk, options(), &clock).unwrap());
    let disk = disk.after_crash(|_| 0);
    for slot in [0, 4096] {
        for at in [0, 10, 20, 30, 47] {
            let disk = disk.after_kill();
            disk.rot("bound", slot + at, 16);
            let error = assert_refused(&disk, &clock, "journal/bound").to_string();
            assert!(error.contains(&format!("position={slot}")), "{error}");
            assert_checked(&disk, "bound");
        }
    }
}

// Missing files.

#[test]
fn a_missing_segment_refuses_to_open() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    for (index, name) in segments(&disk)[..3].iter().enumerate() {
        let disk = disk.after_kill();
        disk.remove(name).unwrap();
        let start: u64 = name.trim_end_matches(".journal").parse().unwrap();
        // Without a first one, what follows begins too late; without another, the one before it
        // ends too early.
        let place = match index {
            0 => "expected one that begins at 0, ".to_owned(),
            _ => format!("position={start},"),
        };
        assert_refused(&disk, &clock, &place);
        assert_checked(&disk, &place);
    }
    // That the last is gone is known after a clean end only.
    drop(Rig::open(&disk, options(), &clock).unwrap());
    let last = segments(&disk).pop().unwrap();
    disk.remove(&last).unwrap();
    assert_refused(&disk, &clock, "the journal is damaged");
    assert_checked(&disk, "the journal is damaged");
}

#[test]
fn b5_a_missing_bound_file_refuses_to_open() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    // A torn tail beside it: not even that is touched.
    disk.rot(&segments(&disk)[3], HEADER + FRAME, 1);
    disk.remove("bound").unwrap();
    let error = assert_refused(&disk, &clock, "journal/bound");
    assert!(matches!(error, OpenError::BoundLost), "{error}");
    assert_checked(&disk, "bound");
}

#[test]
fn b5_a_bound_file_older_than_the_journal_refuses_to_open() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    durably(&rig, 1, b"a");
    let old = disk.bytes("bound");
    clock.advance(Duration::from_secs(5));
    durably(&rig, 1, b"b");
    drop(rig);
    disk.remove("bound").unwrap();
    let file = disk.create("bound").unwrap();
    file.write_at(&mut [std::io::IoSlice::new(&old)], 0).unwrap();
    assert_refused(&disk, &clock, "journal/bound");
    assert_checked(&disk, "bound");
}

#[test]
fn a_disk_with_nothing_on_it_opens_as_a_new_store() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    assert_eq!(problems(&disk), [""; 0]);
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    assert_eq!((rig.replayed.len(), rig.store.torn_bytes), (0, 0));
    drop(rig);
    assert_eq!(problems(&disk), [""; 0]);
}

#[test]
#[should_panic(expected = "no payload is longer")]
fn an_append_that_recovery_would_take_for_damage_is_not_accepted() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let rig = Rig::open(&disk, options(), &clock).unwrap();
    // Untouched zeros: no memory is used for them.
    let payload = storage::Payload::plain(vec![0; (1 << 30) + 1].into());
    let append: Append<Verdict> = Append { payload, ..append(1, b"") };
    rig.store.append(vec![append], Durability::Written, |_| {});
}

#[test]
fn tiny_payloads_cannot_hold_far_more_memory_than_the_budget() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { tail_bytes_max: 1000, ..Options::default() };
    let rig = Rig::open(&disk, options, &clock).unwrap();
    rig.append((0..500).map(|_| append(1, b"")).collect(), Durability::Written);
    let pieces = rig.store.log(LogId(1)).unwrap().read(Offset(0), Offset(500), usize::MAX).unwrap();
    let in_memory =
        pieces.iter().filter(|piece| matches!(piece.data, storage::PieceData::Memory(_))).count();
    assert!(in_memory <= 20, "{in_memory} payloads are held");
}

// The data directory.

#[test]
fn a_data_directory_is_used_by_one_process_at_a_time() {
    let directory = TempDir::new("in-use");
    let home = Home::take(directory.path(), || "c1".to_owned()).unwrap();
    let error = Home::take(directory.path(), || "c2".to_owned()).unwrap_err();
    assert!(matches!(error, HomeError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    drop(home);
    assert_eq!(Home::take_existing(directory.path()).unwrap().cluster_id(), "c1");
}

#[test]
fn a_data_directory_of_another_version_is_refused() {
    let directory = TempDir::new("version");
    drop(Home::take(directory.path(), || "c1".to_owned()).unwrap());
    fs::write(directory.path().join("FREEZEFRAME"), "format 1\ncluster c1\n").unwrap();
    match Home::take(directory.path(), String::new) {
        Err(HomeError::Version { found, .. }) => assert_eq!(found, "1"),
        other => panic!("{other:?}"),
    }
    for damaged in [&b""[..], b"\0\0\0", b"\xff\xfe", b"format 4\n", b"format 4\ncluster \n"] {
        fs::write(directory.path().join("FREEZEFRAME"), damaged).unwrap();
        for taken in
            [Home::take(directory.path(), String::new), Home::take_existing(directory.path())]
        {
            assert!(matches!(taken, Err(HomeError::Identity { .. })), "{taken:?}");
        }
    }
}

#[test]
fn a_directory_has_its_identity_only_once_its_first_start_is_done_and_its_journal_from_then_on() {
    let directory = TempDir::new("settled");
    let identity = directory.path().join("FREEZEFRAME");
    let journal = directory.path().join("journal");
    let home = Home::begin(directory.path(), || "c1".to_owned()).unwrap();
    fs::create_dir(&journal).unwrap();
    home.expect_journal().unwrap();
    drop(home);
    assert!(!identity.exists(), "its first start was cut short");
    let mut home = Home::begin(directory.path(), || "c2".to_owned()).unwrap();
    home.expect_journal().unwrap();
    fs::write(journal.join("bound"), [0; 8]).unwrap();
    home.settle().unwrap();
    drop(home);
    let begun = || Home::begin(directory.path(), || "c3".to_owned()).unwrap();
    assert_eq!(begun().cluster_id(), "c2");
    begun().expect_journal().unwrap();
    let lost = |how: &str| {
        let error = begun().expect_journal().unwrap_err();
        assert!(matches!(error, HomeError::NoJournal { .. }), "{how}: {error}");
    };
    fs::write(journal.join("bound"), []).unwrap();
    lost("an empty bound alone");
    fs::remove_file(journal.join("bound")).unwrap();
    lost("an empty journal");
    fs::remove_dir(&journal).unwrap();
    lost("no journal");
}

#[test]
fn a_directory_is_looked_at_without_a_change_to_it_and_no_server_takes_it_meanwhile() {
    let directory = TempDir::new("looked-at");
    drop(Home::take(directory.path(), || "c1".to_owned()).unwrap());
    fs::write(directory.path().join("LOCK"), "17\n").unwrap();
    let looking = Home::take_existing(directory.path()).unwrap();
    let error = Home::take(directory.path(), String::new).unwrap_err();
    assert!(matches!(error, HomeError::InUse { .. }), "{error}");
    drop(looking);
    assert_eq!(fs::read(directory.path().join("LOCK")).unwrap(), b"17\n");
    fs::remove_file(directory.path().join("LOCK")).unwrap();
    Home::take_existing(directory.path()).unwrap();
    assert!(!directory.path().join("LOCK").exists());
}

#[test]
fn a_directory_that_is_not_ours_is_refused_and_left_alone() {
    let directory = TempDir::new("foreign");
    fs::write(directory.path().join("thesis.tex"), "x").unwrap();
    let error = Home::take(directory.path(), String::new).unwrap_err();
    assert!(matches!(error, HomeError::Foreign { .. }), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    let error = Home::take_existing(&directory.path().join("nowhere")).unwrap_err();
    assert!(matches!(error, HomeError::Missing { .. }), "{error}");
    assert!(!directory.path().join("nowhere").exists());
}

#[test]
fn a_directory_whose_making_was_cut_short_is_taken_again() {
    let directory = TempDir::new("cut-short");
    fs::write(directory.path().join("LOCK"), "1\n").unwrap();
    fs::write(directory.path().join("FREEZEFRAME.new"), "for").unwrap();
    assert_eq!(Home::take(directory.path(), || "c1".to_owned()).unwrap().cluster_id(), "c1");
}

/// Large groups go around the page cache, and end within a block.
#[test]
fn payloads_of_any_length_read_back_from_a_real_disk_through_the_cache_and_around_it() {
    let directory = TempDir::new("blocks");
    let options = Options { tail_bytes_max: 0, ..Options::default() };
    let open = || {
        let disk = Arc::new(RealDisk::open(directory.path()).unwrap());
        Rig::open_on(disk, options, Arc::new(hlc::OsClock)).unwrap()
    };
    let mut random = harness::Random::new(1);
    let payloads: Vec<Vec<u8>> =
        [1, 4016, 300_001, 262_144, 70_000, 3_000_017, 8, 2_097_152 - 80, 5, 400_003]
            .into_iter()
            .map(|length| random.bytes(length))
            .collect();
    let examine = |rig: &Rig, count: usize| {
        let mut buffer = storage::LoadBuffer::default();
        let pieces =
            rig.store.log(LogId(1)).unwrap().read(Offset(0), Offset(u64::MAX), usize::MAX).unwrap();
        assert_eq!(pieces.len(), count);
        for (piece, payload) in pieces.iter().zip(&payloads) {
            assert!(piece.read().unwrap() == payload[..]);
            let storage::PieceData::File { file, at } = &piece.data else {
                panic!("none in memory")
            };
            let length = payload.len();
            if file.load_cached(&mut buffer, *at, length).unwrap() {
                assert!(buffer.bytes() == payload);
            }
            file.load(&mut buffer, *at, length).unwrap();
            assert!(buffer.bytes() == payload);
        }
    };
    let mut rig = open();
    for (index, payload) in payloads.iter().enumerate() {
        let how = [Durability::Synced, Durability::Written][index % 2];
        one(&rig, 1, payload, how).unwrap();
        examine(&rig, index + 1);
        if index % 4 == 3 {
            drop(rig);
            rig = open();
            examine(&rig, index + 1);
        }
    }
    drop(rig);
    examine(&open(), payloads.len());
}

#[test]
fn a_store_on_a_real_directory_reads_back_what_was_written() {
    let directory = TempDir::new("real");
    let home = Home::take(directory.path(), || "c1".to_owned()).unwrap();
    let open = || {
        let disk = Arc::new(RealDisk::open(&home.journal()).unwrap());
        Rig::open_on(disk, options(), Arc::new(hlc::OsClock)).unwrap()
    };
    let rig = open();
    for index in 0..20u8 {
        durably(&rig, u64::from(index % 3), &vec![index; 100 * usize::from(index)]);
    }
    let before = rig.all((0..3).map(LogId));
    drop(rig);
    let rig = open();
    assert_eq!(rig.replayed, before);
    assert_eq!(rig.all((0..3).map(LogId)), before);
    let disk = RealDisk::open(&home.journal()).unwrap();
    let report = storage::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!((report.frames, report.problems), (20, vec![]));
}
