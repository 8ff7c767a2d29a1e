//! Logs of which nothing is left, and that nobody uses any more, leave the manifest. What a file still has of
//! such a log is never taken for something that is kept.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hlc::{ManualClock, WallClock};
use storage::disk::{Disk, DiskFault, MemoryDisk};
use storage::manifest::Manifest;
use storage::{Durability, LogId, Offset, Options};
use testkit::store::{StoreFixture, append, manual_clock};

/// The log that stays.
const KEPT: LogId = LogId(1);
/// The first of the logs that come and go.
const FIRST: u64 = 10;
/// So few logs are not worth a search of the sealed segments.
const FEW: usize = 100;

fn options() -> Options {
    Options {
        uncovered_segments_max: 2,
        merge_bytes_min: 16 << 10,
        ..testkit::store::in_files_stepped()
    }
}

/// A store in which logs come and go.
struct LogChurn {
    disk: MemoryDisk,
    clock: Arc<ManualClock>,
    /// The next log to create.
    next: u64,
    /// How many entries the log that stays has.
    kept: u64,
}

impl LogChurn {
    fn new() -> LogChurn {
        LogChurn { disk: MemoryDisk::new(), clock: manual_clock(), next: FIRST, kept: 0 }
    }

    fn open(&self) -> StoreFixture {
        StoreFixture::open(&self.disk, options(), &self.clock).expect("the store opens")
    }

    /// Creates some logs, and advances their log starts to their ends. The disk may fail.
    fn create_and_truncate_logs(&mut self, rig: &StoreFixture, count: u64) -> std::io::Result<()> {
        for _ in 0..count {
            let log = self.next;
            self.next += 1;
            let appends = vec![append(log, &[log as u8; 100]), append(log, b"last")];
            let results = rig.append(appends, Durability::Synced);
            results.into_iter().try_for_each(|result| result.map(drop)).map_err(io_error)?;
            rig.store.advance_log_start(&[(LogId(log), Offset(2))])?;
        }
        let result = rig.append(vec![append(KEPT.0, &[7; 50])], Durability::Synced).remove(0);
        self.kept += 1;
        result.map(drop).map_err(io_error)
    }

    /// Rolls, indexes, sorts, reclaims and removes; returns how many logs were removed.
    fn remove_unused_logs(&self, rig: &StoreFixture) -> std::io::Result<usize> {
        self.run_maintenance(rig)?;
        let next = self.next;
        rig.store.remove_logs(&|log| log.0 < FIRST || log.0 >= next)
    }

    fn run_maintenance(&self, rig: &StoreFixture) -> std::io::Result<()> {
        rig.store.roll_segment();
        rig.append(Vec::new(), Durability::Written);
        rig.store.run_maintenance()?;
        for _ in 0..3 {
            rig.store.reclaim()?;
        }
        rig.store.run_maintenance()
    }

    fn manifest_log_count(&self) -> usize {
        Manifest::read(&self.disk).unwrap().logs.len()
    }

    fn check(&self) {
        let report = storage::check::verify(&self.disk, &[], &mut |_| {}).unwrap();
        assert_eq!(report.problems, [""; 0]);
    }

    /// The log that stays is complete, and of the others there is nothing.
    fn examine(&self, rig: &StoreFixture) {
        let kept = rig.read(KEPT).len() as u64;
        assert!(kept == self.kept || kept + 1 == self.kept, "{kept} of {}", self.kept);
        for log in FIRST..self.next {
            let held = rig.store.log(LogId(log)).unwrap();
            // The last one's log start may not have advanced yet.
            let is_last = log + 1 == self.next;
            assert!(held.start() == held.end() || is_last, "log {log} is alive again");
        }
    }
}

fn io_error(error: impl std::fmt::Display) -> std::io::Error {
    std::io::Error::other(error.to_string())
}

#[test]
fn what_the_manifest_names_follows_what_there_is_and_not_what_there_ever_was() {
    let mut churn = LogChurn::new();
    let mut rig = churn.open();
    let (mut most, mut forgotten) = (0, 0);
    for round in 0..40 {
        churn.create_and_truncate_logs(&rig, 25).unwrap();
        forgotten += churn.remove_unused_logs(&rig).unwrap();
        most = most.max(churn.manifest_log_count());
        if round % 7 == 0 {
            drop(rig);
            churn.check();
            rig = churn.open();
            churn.examine(&rig);
        }
    }
    assert!(most < 300, "{most} logs of 1000 are named");
    assert!(forgotten > 700, "{forgotten} logs were removed");
    let stats = rig.store.history_stats();
    assert!(stats.removed_logs.load(Ordering::Relaxed) > 0);
    // A removed log is like one that never existed.
    let gone = rig.store.log(LogId(FIRST)).unwrap();
    assert_eq!((gone.start(), gone.end()), (Offset(0), Offset(0)));
}

#[test]
fn a_log_that_somebody_knows_or_holds_is_not_removed() {
    let mut churn = LogChurn::new();
    let rig = churn.open();
    churn.create_and_truncate_logs(&rig, 100).unwrap();
    let held = rig.store.log(LogId(FIRST + 3)).unwrap();
    churn.remove_unused_logs(&rig).unwrap();
    // The last segment stays, empty or not, until there is another.
    churn.create_and_truncate_logs(&rig, 1).unwrap();
    let before = churn.manifest_log_count();
    assert!(rig.store.remove_logs(&|_| true).unwrap() == 0 && churn.manifest_log_count() == before);
    churn.remove_unused_logs(&rig).unwrap();
    let manifest = Manifest::read(&churn.disk).unwrap();
    assert!(manifest.logs.len() < 10, "{}", manifest.logs.len());
    assert!(manifest.logs.contains_key(&held.id));
    assert_eq!((held.start(), held.end()), (Offset(2), Offset(2)));
}

/// A rebuilt index has no run of what was removed, but the frames may still exist.
#[test]
fn a_log_whose_frames_may_be_left_without_a_run_is_not_removed() {
    let mut churn = LogChurn::new();
    let rig = churn.open();
    // Most of the segment stays, so that it is not sorted because of what was removed.
    rig.append(vec![append(KEPT.0, &[1; 60_000])], Durability::Synced).remove(0).unwrap();
    churn.kept += 1;
    churn.create_and_truncate_logs(&rig, 100).unwrap();
    rig.store.roll_segment();
    rig.append(Vec::new(), Durability::Written);
    rig.store.close();
    drop(rig);
    let index = |churn: &LogChurn| {
        churn.disk.names().into_iter().filter(|name| name.ends_with(".index")).min()
    };
    let mut rig = churn.open();
    rig.store.run_maintenance().unwrap();
    churn.remove_unused_logs(&rig).unwrap();
    let mut lost = 0;
    for _ in 0..3 {
        drop(rig);
        let name = index(&churn).unwrap();
        churn.disk.remove(&name).unwrap();
        rig = churn.open();
        lost += 1;
        churn.remove_unused_logs(&rig).unwrap();
        churn.examine(&rig);
        drop(rig);
        churn.check();
        rig = churn.open();
    }
    assert_eq!(lost, 3);
    churn.examine(&rig);
}

#[test]
fn a_crash_at_any_operation_brings_nothing_back() {
    let work = |churn: &mut LogChurn| {
        let Ok(rig) = StoreFixture::open(&churn.disk, options(), &churn.clock) else { return };
        for _ in 0..2 {
            let done = churn
                .create_and_truncate_logs(&rig, 3)
                .and_then(|()| churn.remove_unused_logs(&rig));
            if done.is_err() {
                return;
            }
        }
    };
    let prepare = || {
        let mut churn = LogChurn::new();
        let rig = churn.open();
        for _ in 0..3 {
            churn.create_and_truncate_logs(&rig, 30).unwrap();
            churn.remove_unused_logs(&rig).unwrap();
        }
        // Enough logs wait for removal.
        churn.create_and_truncate_logs(&rig, 70).unwrap();
        drop(rig);
        churn
    };
    let prepared = prepare();
    let again = || {
        let LogChurn { next, kept, .. } = prepared;
        let clock = Arc::new(ManualClock::at(prepared.clock.read().wall));
        LogChurn { disk: prepared.disk.after_kill(), clock, next, kept }
    };
    let mut churn = again();
    let before = churn.disk.operations();
    work(&mut churn);
    let (operations, left) = (churn.disk.operations() - before, churn.manifest_log_count());
    assert!(left < FEW, "{left} are named");
    for operation in 0..operations {
        let mut churn = again();
        churn.disk.arm(DiskFault::CrashAt(churn.disk.operations() + operation));
        work(&mut churn);
        let disk = churn.disk.after_crash(|count| operation as usize % count);
        let LogChurn { next, kept, .. } = churn;
        let clock = Arc::new(ManualClock::at(churn.clock.read().wall));
        let mut second = LogChurn { disk, clock, next, kept };
        let rig = second.open();
        second.examine(&rig);
        second.kept = rig.read(KEPT).len() as u64;
        let last = rig.store.log(LogId(second.next - 1)).unwrap().end();
        rig.store.advance_log_start(&[(LogId(second.next - 1), last)]).unwrap();
        // A refused or lost operation had no effect: the next log is another.
        second.next += 1;
        second.create_and_truncate_logs(&rig, 70).unwrap();
        for _ in 0..2 {
            second.create_and_truncate_logs(&rig, 1).unwrap();
            second.remove_unused_logs(&rig).unwrap();
        }
        second.examine(&rig);
        drop(rig);
        assert!(
            second.manifest_log_count() < FEW,
            "{operation}: {} are named",
            second.manifest_log_count()
        );
        second.check();
        second.examine(&second.open());
    }
}

/// Then it is unknown which of two manifests is on the disk. A log that was removed here is neither missed
/// nor named again.
#[test]
fn a_sync_that_fails_while_logs_are_removed_costs_nothing() {
    for nth in 0..4 {
        let mut churn = LogChurn::new();
        let rig = churn.open();
        for count in [100, 1, 1] {
            churn.create_and_truncate_logs(&rig, count).unwrap();
            churn.run_maintenance(&rig).unwrap();
        }
        let is_known = |log: LogId| log.0 < FIRST || log.0 >= FIRST + 100;
        churn.disk.arm(DiskFault::SyncFails(nth));
        let first = rig.store.remove_logs(&is_known);
        let has_failed = !churn.disk.has_pending_sync_failure();
        assert_eq!(first.is_err(), has_failed, "{nth}: {first:?}");
        churn.disk.arm(DiskFault::SyncFails(u64::MAX));
        if nth == 0 {
            assert!(has_failed);
        }
        let left = churn.disk.after_crash(|count| nth as usize % count);
        let second = rig.store.remove_logs(&is_known).unwrap();
        assert_eq!(first.unwrap_or(0) + second, 100, "{nth}");
        rig.store.reclaim().unwrap();
        churn.examine(&rig);
        drop(rig);
        assert!(churn.manifest_log_count() < 10, "{nth}: {} are named", churn.manifest_log_count());
        churn.check();
        let clock = Arc::new(ManualClock::at(churn.clock.read().wall));
        let crashed = LogChurn { disk: left, clock, next: churn.next, kept: churn.kept };
        let rig = crashed.open();
        crashed.examine(&rig);
        drop(rig);
        crashed.check();
    }
}
