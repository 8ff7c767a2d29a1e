//! Logs of which nothing is left, and that nobody uses any more, leave the manifest. Entries of
//! such a log that a file still has are never taken for kept ones.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hlc::{ManualClock, WallClock};
use storage::disk::{Disk, DiskFault, MemoryDisk};
use storage::manifest::Manifest;
use storage::{Durability, LogId, Offset, Options, StorageError};
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
    next: u64,
    /// The number of entries of the log that stays.
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
    fn create_and_truncate_logs(
        &mut self,
        fixture: &StoreFixture,
        count: u64,
    ) -> Result<(), StorageError> {
        for _ in 0..count {
            let log = self.next;
            self.next += 1;
            let appends = vec![append(log, &[log as u8; 100]), append(log, b"last")];
            let results = fixture.append(appends, Durability::Synced);
            results.into_iter().try_for_each(|result| result.map(drop)).map_err(io_error)?;
            fixture.store.advance_log_start(&[(LogId(log), Offset(2))])?;
        }
        let result = fixture.append(vec![append(KEPT.0, &[7; 50])], Durability::Synced).remove(0);
        self.kept += 1;
        result.map(drop).map_err(io_error)
    }

    /// Rolls, indexes, sorts, reclaims and removes; returns how many logs were removed.
    fn remove_unused_logs(&self, fixture: &StoreFixture) -> Result<usize, StorageError> {
        self.run_maintenance(fixture)?;
        let next = self.next;
        fixture.store.remove_logs(&|log| log.0 < FIRST || log.0 >= next)
    }

    fn run_maintenance(&self, fixture: &StoreFixture) -> Result<(), StorageError> {
        fixture.store.roll_segment();
        fixture.append(Vec::new(), Durability::Written);
        fixture.store.run_maintenance()?;
        for _ in 0..3 {
            fixture.store.reclaim()?;
        }
        fixture.store.run_maintenance()
    }

    fn manifest_log_count(&self) -> usize {
        Manifest::read(&self.disk).unwrap().logs.len()
    }

    fn check(&self) {
        let report = storage::check::verify(&self.disk, &[], &mut |_| {}).unwrap();
        assert_eq!(report.problems, [""; 0]);
    }

    /// The log that stays is complete, and of the others there is nothing.
    fn examine(&self, fixture: &StoreFixture) {
        let count = fixture.read(KEPT).len() as u64;
        assert!(count == self.kept || count + 1 == self.kept, "{count} of {}", self.kept);
        for log in FIRST..self.next {
            let stored = fixture.store.log(LogId(log)).unwrap();
            // The last one's log start may not have advanced yet.
            let is_last = log + 1 == self.next;
            assert!(stored.start() == stored.end() || is_last, "log {log} is alive again");
        }
    }
}

fn io_error(error: impl std::fmt::Display) -> StorageError {
    std::io::Error::other(error.to_string()).into()
}

#[test]
fn what_the_manifest_names_follows_what_there_is_and_not_what_there_ever_was() {
    let mut churn = LogChurn::new();
    let mut fixture = churn.open();
    let (mut peak, mut forgotten) = (0, 0);
    for round in 0..40 {
        churn.create_and_truncate_logs(&fixture, 25).unwrap();
        forgotten += churn.remove_unused_logs(&fixture).unwrap();
        peak = peak.max(churn.manifest_log_count());
        if round % 7 == 0 {
            drop(fixture);
            churn.check();
            fixture = churn.open();
            churn.examine(&fixture);
        }
    }
    assert!(peak < 300, "{peak} logs of 1000 are named");
    assert!(forgotten > 700, "{forgotten} logs were removed");
    let stats = fixture.store.history_stats();
    assert!(stats.removed_logs.load(Ordering::Relaxed) > 0);
    // A removed log is like one that never existed.
    let removed = fixture.store.log(LogId(FIRST)).unwrap();
    assert_eq!((removed.start(), removed.end()), (Offset(0), Offset(0)));
}

#[test]
fn a_log_that_somebody_knows_or_holds_is_not_removed() {
    let mut churn = LogChurn::new();
    let fixture = churn.open();
    churn.create_and_truncate_logs(&fixture, 100).unwrap();
    let stored = fixture.store.log(LogId(FIRST + 3)).unwrap();
    churn.remove_unused_logs(&fixture).unwrap();
    // The last segment stays, empty or not, until there is another.
    churn.create_and_truncate_logs(&fixture, 1).unwrap();
    let before = churn.manifest_log_count();
    assert!(
        fixture.store.remove_logs(&|_| true).unwrap() == 0 && churn.manifest_log_count() == before
    );
    churn.remove_unused_logs(&fixture).unwrap();
    let manifest = Manifest::read(&churn.disk).unwrap();
    assert!(manifest.logs.len() < 10, "{}", manifest.logs.len());
    assert!(manifest.logs.contains_key(&stored.id));
    assert_eq!((stored.start(), stored.end()), (Offset(2), Offset(2)));
}

/// A rebuilt index has no run of what was removed, but the frames may still exist.
#[test]
fn a_log_whose_frames_may_be_left_without_a_run_is_not_removed() {
    let mut churn = LogChurn::new();
    let fixture = churn.open();
    // Most of the segment stays, so that it is not sorted because of what was removed.
    fixture.append(vec![append(KEPT.0, &[1; 60_000])], Durability::Synced).remove(0).unwrap();
    churn.kept += 1;
    churn.create_and_truncate_logs(&fixture, 100).unwrap();
    fixture.store.roll_segment();
    fixture.append(Vec::new(), Durability::Written);
    fixture.store.close();
    drop(fixture);
    let index = |churn: &LogChurn| {
        churn.disk.names().into_iter().filter(|name| name.ends_with(".index")).min()
    };
    let mut fixture = churn.open();
    fixture.store.run_maintenance().unwrap();
    churn.remove_unused_logs(&fixture).unwrap();
    let mut lost = 0;
    for _ in 0..3 {
        drop(fixture);
        let name = index(&churn).unwrap();
        churn.disk.remove(&name).unwrap();
        fixture = churn.open();
        lost += 1;
        churn.remove_unused_logs(&fixture).unwrap();
        churn.examine(&fixture);
        drop(fixture);
        churn.check();
        fixture = churn.open();
    }
    assert_eq!(lost, 3);
    churn.examine(&fixture);
}

#[test]
fn a_crash_at_any_operation_brings_nothing_back() {
    let work = |churn: &mut LogChurn| {
        let Ok(fixture) = StoreFixture::open(&churn.disk, options(), &churn.clock) else { return };
        for _ in 0..2 {
            let result = churn
                .create_and_truncate_logs(&fixture, 3)
                .and_then(|()| churn.remove_unused_logs(&fixture));
            if result.is_err() {
                return;
            }
        }
    };
    let prepare = || {
        let mut churn = LogChurn::new();
        let fixture = churn.open();
        for _ in 0..3 {
            churn.create_and_truncate_logs(&fixture, 30).unwrap();
            churn.remove_unused_logs(&fixture).unwrap();
        }
        // Enough logs wait for removal.
        churn.create_and_truncate_logs(&fixture, 70).unwrap();
        drop(fixture);
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
    let (operations, logs_left) = (churn.disk.operations() - before, churn.manifest_log_count());
    assert!(logs_left < FEW, "{logs_left} are named");
    for operation in 0..operations {
        let mut churn = again();
        churn.disk.arm(DiskFault::CrashAt(churn.disk.operations() + operation));
        work(&mut churn);
        let disk = churn.disk.after_crash(|count| operation as usize % count);
        let LogChurn { next, kept, .. } = churn;
        let clock = Arc::new(ManualClock::at(churn.clock.read().wall));
        let mut second = LogChurn { disk, clock, next, kept };
        let fixture = second.open();
        second.examine(&fixture);
        second.kept = fixture.read(KEPT).len() as u64;
        let last = fixture.store.log(LogId(second.next - 1)).unwrap().end();
        fixture.store.advance_log_start(&[(LogId(second.next - 1), last)]).unwrap();
        // A refused or lost operation had no effect: the next log is another.
        second.next += 1;
        second.create_and_truncate_logs(&fixture, 70).unwrap();
        for _ in 0..2 {
            second.create_and_truncate_logs(&fixture, 1).unwrap();
            second.remove_unused_logs(&fixture).unwrap();
        }
        second.examine(&fixture);
        drop(fixture);
        assert!(
            second.manifest_log_count() < FEW,
            "{operation}: {} are named",
            second.manifest_log_count()
        );
        second.check();
        second.examine(&second.open());
    }
}

/// Then it is unknown which of two manifests is on the disk. A log that was removed here is neither
/// missed nor named again.
#[test]
fn a_sync_that_fails_while_logs_are_removed_costs_nothing() {
    for nth in 0..4 {
        let mut churn = LogChurn::new();
        let fixture = churn.open();
        for count in [100, 1, 1] {
            churn.create_and_truncate_logs(&fixture, count).unwrap();
            churn.run_maintenance(&fixture).unwrap();
        }
        let is_known = |log: LogId| log.0 < FIRST || log.0 >= FIRST + 100;
        churn.disk.arm(DiskFault::SyncFails(nth));
        let first = fixture.store.remove_logs(&is_known);
        let has_failed = !churn.disk.has_pending_sync_failure();
        assert_eq!(first.is_err(), has_failed, "{nth}: {first:?}");
        churn.disk.arm(DiskFault::SyncFails(u64::MAX));
        if nth == 0 {
            assert!(has_failed);
        }
        let disk = churn.disk.after_crash(|count| nth as usize % count);
        let second = fixture.store.remove_logs(&is_known).unwrap();
        assert_eq!(first.unwrap_or(0) + second, 100, "{nth}");
        fixture.store.reclaim().unwrap();
        churn.examine(&fixture);
        drop(fixture);
        assert!(churn.manifest_log_count() < 10, "{nth}: {} are named", churn.manifest_log_count());
        churn.check();
        let clock = Arc::new(ManualClock::at(churn.clock.read().wall));
        let crashed = LogChurn { disk, clock, next: churn.next, kept: churn.kept };
        let fixture = crashed.open();
        crashed.examine(&fixture);
        drop(fixture);
        crashed.check();
    }
}
