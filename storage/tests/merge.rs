//! Merging: many small segments become few, and no answer differs from
//! before.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hlc::{Cut, Hlc, ManualClock};
use storage::disk::{Disk, MemoryDisk};
use storage::{Durability, LogId, Offset, Options, StorageError};
use testkit::rng::SeededRng;
use testkit::store::{StoreFixture, append, manual_clock};

const LOGS: u64 = 5;
/// The segments that are as large as they may become here, and those that wait for more.
const SEGMENTS_MAX: usize = 24;

fn options() -> Options {
    Options {
        segment_frames_max: 12,
        uncovered_segments_max: 1,
        merge_bytes_min: 32 << 10,
        ..testkit::store::in_files_stepped()
    }
}

/// The content of the logs, without its location.
#[derive(Debug, PartialEq, Eq)]
struct LogContents {
    payloads: Vec<(u64, u64, Vec<u8>)>,
    tips: Vec<(u64, Hlc, Offset, u128)>,
}

fn contents(fixture: &StoreFixture, cuts: &[Hlc]) -> LogContents {
    try_contents(fixture, cuts).unwrap()
}

/// The same, while corrupt indexes are rebuilt.
fn contents_after_rebuild(fixture: &StoreFixture, cuts: &[Hlc]) -> LogContents {
    for _ in 0..8 {
        if let Ok(contents) = try_contents(fixture, cuts) {
            return contents;
        }
        let _ = fixture.store.run_maintenance();
    }
    contents(fixture, cuts)
}

fn try_contents(fixture: &StoreFixture, cuts: &[Hlc]) -> Result<LogContents, StorageError> {
    let (mut payloads, mut tips) = (Vec::new(), Vec::new());
    for id in 0..LOGS {
        let log = fixture.store.log(LogId(id))?;
        for piece in log.read(log.start(), Offset(u64::MAX), usize::MAX)? {
            payloads.push((id, piece.entry.base.0, piece.read()?.to_vec()));
        }
        let from = log.horizon().lost_to;
        for cut in cuts.iter().filter(|cut| **cut > from) {
            let tip = log.tip_at(Cut::below(*cut))?;
            tips.push((id, *cut, tip.end, tip.chain));
        }
    }
    Ok(LogContents { payloads, tips })
}

fn write(fixture: &StoreFixture, clock: &ManualClock, random: &mut SeededRng, count: usize) {
    for _ in 0..count {
        clock.advance(Duration::from_millis(7));
        let log = if random.one_in(3) { random.below(LOGS) } else { 1 };
        let payload = random.bytes(40);
        fixture.append(vec![append(log, &payload)], Durability::Synced).remove(0).unwrap();
    }
}

/// Writes many segments and runs maintenance only at times, so that segments of several ages are
/// merged.
fn grow(
    fixture: &StoreFixture,
    clock: &ManualClock,
    random: &mut SeededRng,
    rounds: usize,
) -> Vec<Hlc> {
    let mut cuts = Vec::new();
    for round in 0..rounds {
        write(fixture, clock, random, 30);
        let cut = fixture.frontier();
        if round % 6 == 0 {
            cuts.push(cut);
        }
        fixture.store.run_maintenance().unwrap();
    }
    cuts
}

fn problems(disk: &MemoryDisk) -> Vec<String> {
    storage::check::verify(disk, &[], &mut |_| {}).unwrap().problems
}

fn files(disk: &MemoryDisk, kind: &str) -> usize {
    disk.list().unwrap().iter().filter(|name| name.ends_with(kind)).count()
}

#[test]
fn many_small_segments_become_few_large_ones_and_every_answer_stays() {
    for seed in testkit::store::seeds(2) {
        let (disk, clock, mut random) = (MemoryDisk::new(), manual_clock(), SeededRng::new(seed));
        let apart = Options { merge_bytes_min: 0, ..options() };
        let fixture = StoreFixture::open(&disk, apart, &clock).unwrap();
        let cuts = grow(&fixture, &clock, &mut random, 60);
        let before = contents(&fixture, &cuts);
        assert!(
            fixture.store.sealed_segments().len() > 100,
            "{}",
            fixture.store.sealed_segments().len()
        );
        drop(fixture);
        let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
        assert_eq!(contents(&fixture, &cuts), before);
        fixture.store.run_maintenance().unwrap();
        assert!(
            fixture.store.sealed_segments().len() <= SEGMENTS_MAX,
            "{} segments",
            fixture.store.sealed_segments().len()
        );
        assert_eq!(contents(&fixture, &cuts), before);
        for _ in 0..3 {
            fixture.store.reclaim().unwrap();
        }
        assert_eq!(contents(&fixture, &cuts), before);
        assert_eq!(files(&disk, ".index"), fixture.store.sealed_segments().len());
        // Entries written after it are found with it, by new lookups too.
        let later = grow(&fixture, &clock, &mut random, 20);
        let cuts: Vec<Hlc> = cuts.into_iter().chain(later).collect();
        let before = contents(&fixture, &cuts);
        drop(fixture);
        assert_eq!(problems(&disk), [""; 0]);
        let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
        assert_eq!(contents(&fixture, &cuts), before);
        // A third more is kept.
        let parts_max = SEGMENTS_MAX + SEGMENTS_MAX / 3;
        assert!(
            fixture.store.sealed_segments().len() <= parts_max,
            "{} segments",
            fixture.store.sealed_segments().len()
        );
    }
}

#[test]
fn an_index_of_a_merged_segment_is_rebuilt() {
    let (disk, clock, mut random) = (MemoryDisk::new(), manual_clock(), SeededRng::new(7));
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    let cuts = grow(&fixture, &clock, &mut random, 60);
    assert!(fixture.store.history_stats().merged.load(Ordering::Relaxed) > 20);
    let before = contents(&fixture, &cuts);
    drop(fixture);
    for name in disk.names().iter().filter(|name| name.ends_with(".index")) {
        let without = disk.after_kill();
        without.remove(name).unwrap();
        let fixture = StoreFixture::open(&without, options(), &clock).unwrap();
        assert_eq!(contents(&fixture, &cuts), before, "without {name}");
        drop(fixture);
        assert_eq!(problems(&without), [""; 0], "without {name}");
        let corrupt = disk.after_kill();
        corrupt.corrupt(name, 4096 + 50, 0x40);
        let fixture = StoreFixture::open(&corrupt, options(), &clock).unwrap();
        assert_eq!(contents_after_rebuild(&fixture, &cuts), before, "corruption in {name}");
    }
}

/// The entries that are kept in the end take as much space as if no others had ever existed.
#[test]
fn what_lies_before_the_log_start_leaves_few_files_and_little_space() {
    for seed in testkit::store::seeds(2) {
        let (disk, clock, mut random) = (MemoryDisk::new(), manual_clock(), SeededRng::new(seed));
        let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
        let mut cuts = Vec::new();
        for _ in 0..25 {
            cuts.extend(grow(&fixture, &clock, &mut random, 5));
            // One log keeps all of its few entries; the others keep the newest.
            let starts = (1..LOGS).map(|id| {
                let end = fixture.store.log(LogId(id)).unwrap().end().0;
                (LogId(id), Offset(end.saturating_sub(if id == 1 { 300 } else { 40 })))
            });
            fixture.store.advance_log_start(&starts.collect::<Vec<_>>()).unwrap();
            for _ in 0..2 {
                fixture.store.reclaim().unwrap();
            }
            fixture.store.run_maintenance().unwrap();
        }
        for _ in 0..3 {
            fixture.store.reclaim().unwrap();
            fixture.store.run_maintenance().unwrap();
        }
        let segments = fixture.store.sealed_segments().len();
        assert!(segments <= SEGMENTS_MAX + 6, "{segments} segments");
        let before = contents(&fixture, &cuts);
        let entries_kept = before.payloads.len() as u64;
        let indexed: u64 = fixture
            .store
            .sealed_segments()
            .iter()
            .map(|segment| segment.index().header.entries)
            .sum();
        assert!(
            indexed < 2 * entries_kept,
            "{indexed} entries in indexes, where {entries_kept} are kept"
        );
        drop(fixture);
        assert_eq!(problems(&disk), [""; 0]);
        let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
        assert_eq!(contents(&fixture, &cuts), before);
    }
}
