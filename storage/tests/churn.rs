//! Thirty days of tiny batches, in a little time: the files on the disk are in proportion to the
//! retained records, and not to all that were ever written.
//!
//! Scaled down by default: a day has few batches, and so has a segment. `STORAGE_CHURN_BATCHES`
//! sets how many a day has, and `STORAGE_CHURN_FRAMES` how many a segment has. With `--nocapture`
//! the numbers are printed.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hlc::{Cut, Hlc, ManualClock, OsClock, SysTime, WallClock};
use storage::disk::RealDisk;
use storage::manifest::Manifest;
use storage::{Durability, LogId, Offset, Options};
use testkit::directory::TestDirectory;
use testkit::rng::SeededRng;
use testkit::store::{StoreFixture, StoredEntry, append};

const DAYS: u64 = 30;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The log that keeps a day, and the one that keeps a week.
const DAILY: LogId = LogId(1);
const WEEKLY: LogId = LogId(2);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn options(frames: u64) -> Options {
    Options {
        segment_frames_max: frames,
        tail_bytes_max: 0,
        manual_maintenance: true,
        manual_stepping: true,
        ..Options::default()
    }
}

/// Advances the log start past everything that is older than `days`.
fn apply_retention(fixture: &StoreFixture, log: LogId, days: u32, now: SysTime) {
    let from = SysTime(now.0.saturating_sub((DAY * days).as_millis() as u64));
    let stored = fixture.store.log(log).unwrap();
    let start = stored.tip_at(Cut::below(Hlc::at(from))).unwrap().end.max(stored.start());
    fixture.store.advance_log_start(&[(log, start)]).unwrap();
}

/// Two topics, each batch goes to one of them; and one that is created and deleted now and then.
fn run_days(fixture: &StoreFixture, clock: &ManualClock, batches: u64) {
    let mut random = SeededRng::new(1);
    let between = DAY / u32::try_from(batches).unwrap();
    let mut next_log = 10;
    for nth in 0..DAYS * batches {
        clock.advance(between);
        let log = if random.one_in(2) { DAILY } else { WEEKLY };
        let mut appends = vec![append(log.0, &random.bytes(150))];
        let is_short = nth % 100 == 0;
        if is_short {
            next_log += 1;
            appends.push(append(next_log, b"once"));
        }
        // The bound is renewed as its thread would.
        let durability = if nth % 50 == 0 { Durability::Synced } else { Durability::Written };
        fixture.append(appends, durability).remove(0).unwrap();
        if is_short {
            fixture.store.advance_log_start(&[(LogId(next_log), Offset(1))]).unwrap();
        }
        if nth % (batches / 6).max(1) == 0 {
            let now = fixture.store.timekeeper().wall_now();
            apply_retention(fixture, DAILY, 1, now);
            apply_retention(fixture, WEEKLY, 7, now);
            fixture.store.reclaim().unwrap();
            fixture.store.run_maintenance().unwrap();
            fixture.store.remove_logs(&is_known).unwrap();
        }
    }
    for _ in 0..3 {
        fixture.store.reclaim().unwrap();
        fixture.store.run_maintenance().unwrap();
        fixture.store.remove_logs(&is_known).unwrap();
    }
}

/// Returns true if a log may still be used: the log of a deleted topic may not.
fn is_known(log: LogId) -> bool {
    [DAILY, WEEKLY].contains(&log)
}

/// The number of files of a kind, and their space; without the reserve, whose size is independent.
fn space_of(directory: &Path, kind: &str) -> (u64, u64) {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let of_kind = files.filter(|file| {
        let name = file.file_name();
        name != "reserve" && name.to_string_lossy().ends_with(kind)
    });
    of_kind.fold((0, 0), |(count, bytes), file| {
        (count + 1, bytes + file.metadata().unwrap().blocks() * 512)
    })
}

/// The space of a store in which nothing else ever existed.
fn space_of_a_new_store(entries: &[StoredEntry], frames: u64, wall: Arc<dyn WallClock>) -> u64 {
    let directory = TestDirectory::new();
    let fixture = StoreFixture::open_on(
        Arc::new(RealDisk::open(directory.path()).unwrap()),
        options(frames),
        wall,
    );
    let fixture = fixture.unwrap();
    for (nth, entry) in entries.iter().enumerate() {
        fixture
            .append(vec![append(entry.log.0, &entry.payload)], Durability::Written)
            .remove(0)
            .unwrap();
        if (nth as u64).is_multiple_of(frames) {
            fixture.store.run_maintenance().unwrap();
        }
    }
    for _ in 0..3 {
        fixture.store.reclaim().unwrap();
        fixture.store.run_maintenance().unwrap();
    }
    space_of(directory.path(), "").1
}

/// The directory for a process that only opens a store, and the time there.
const OPENED: &str = "STORAGE_CHURN_OPENED";
/// The memory that a start takes at most, with the rest of a test process.
const START_BYTES_MAX: u64 = 64 << 20;

/// Opens a store, as the first action of this process.
fn start_alone(opened: &str, frames: u64) {
    let (directory, now) = opened.rsplit_once('@').unwrap();
    let clock = ManualClock::at(SysTime(now.parse().unwrap()));
    let disk = Arc::new(RealDisk::open(Path::new(directory)).unwrap());
    let began = OsClock.read().steady;
    let fixture = StoreFixture::open_on(disk, options(frames), Arc::new(clock)).unwrap();
    let elapsed = OsClock.read().steady - began;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let bytes = peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
    eprintln!("a start takes {elapsed:?}, and its process {bytes} bytes of memory at most");
    assert!(bytes <= START_BYTES_MAX, "{bytes} bytes");
    drop(fixture);
}

#[test]
fn a_start_after_thirty_days() {
    // Only the other test calls it this way.
    if let Ok(opened) = std::env::var(OPENED) {
        start_alone(&opened, number("STORAGE_CHURN_FRAMES", 40));
    }
}

#[test]
fn thirty_days_of_tiny_batches_leave_what_is_kept() {
    let (batches, frames) =
        (number("STORAGE_CHURN_BATCHES", 480), number("STORAGE_CHURN_FRAMES", 40));
    let directory = TestDirectory::new();
    let disk = || Arc::new(RealDisk::open(directory.path()).unwrap());
    let clock = Arc::new(ManualClock::at(SysTime(1_800_000_000_000)));
    let wall = || Arc::clone(&clock) as Arc<dyn WallClock>;
    let fixture = StoreFixture::open_on(disk(), options(frames), wall()).unwrap();
    run_days(&fixture, &clock, batches);
    drop(fixture);

    let now = clock.read().wall.0;
    let started = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_start_after_thirty_days", "--nocapture"])
        .env(OPENED, format!("{}@{now}", directory.path().display()))
        .status();
    assert!(started.unwrap().success());
    let fixture = StoreFixture::open_on(disk(), options(frames), wall()).unwrap();
    let stored = fixture.all([DAILY, WEEKLY]);
    let kept_bytes: u64 = stored.iter().map(|entry| 80 + entry.payload.len() as u64).sum();
    let entries: u64 =
        fixture.store.sealed_segments().iter().map(|segment| segment.index().header.entries).sum();
    let segments = fixture.store.sealed_segments().len();
    let sealed = DAYS * batches / frames;
    eprintln!(
        "{sealed} segments, {segments} sealed, {} batches of {kept_bytes} bytes kept",
        stored.len()
    );
    for kind in ["", ".journal", ".sorted", ".index", ".latest", ".proof", "manifest"] {
        let (count, bytes) = space_of(directory.path(), kind);
        let name = if kind.is_empty() { "all" } else { kind };
        eprintln!(
            "{name}: {count} files, {bytes} bytes, {:.2} of what is kept",
            bytes as f64 / kept_bytes as f64
        );
    }
    let of_new = space_of_a_new_store(&stored, frames, wall());
    let (files, of_all) = space_of(directory.path(), "");
    eprintln!("{:.2} of the room of a new store", of_all as f64 / of_new as f64);
    // A file ends with a whole block.
    let of_blocks = files * 4096;
    assert!(
        of_all * 10 <= of_new * 13 + of_blocks * 10,
        "{of_all} bytes, a new store takes {of_new}"
    );
    assert!(files <= 5 * segments as u64 + 32, "{files} files of {segments} segments");
    let manifest = Manifest::read(&*disk()).unwrap();
    eprintln!("{} logs in the manifest", manifest.logs.len());
    // The logs that a segment still refers to, and a few that wait for more.
    let runs: u64 =
        fixture.store.sealed_segments().iter().map(|segment| segment.index().header.runs).sum();
    assert!(manifest.logs.len() as u64 <= 128 + runs, "{} logs", manifest.logs.len());
    assert!(segments <= 60, "{segments} merged of {sealed} segments");
    assert!(
        entries <= 2 * stored.len() as u64,
        "{entries} entries are indexed, {} are kept",
        stored.len()
    );
    drop(fixture);
    let report = storage::check::verify(&*disk(), &[], &mut |_| {}).unwrap();
    assert_eq!(report.problems, [""; 0]);
}
