//! Maintenance of sealed segments, one step after the other: cases that once gave a wrong answer,
//! or kept a store from opening, and must not again.

use std::time::Duration;

use hlc::{Cut, Hlc};
use storage::disk::{Disk, MemoryDisk};
use storage::{
    AppendReceipt, CompactedEntry, CompactionHorizon, Durability, EntrySink, LogId, Offset,
    Options, StorageError,
};
use testkit::store::{StoreFixture, append, manual_clock};

fn options() -> Options {
    Options { manual_maintenance: true, proofs: false, tail_bytes_max: 0, ..Options::default() }
}

fn put(fixture: &StoreFixture, log: u64, payload: &[u8]) -> AppendReceipt {
    fixture.append(vec![append(log, payload)], Durability::Synced).pop().unwrap().unwrap()
}

fn roll_segment(fixture: &StoreFixture) {
    fixture.store.roll_segment();
    fixture.store.sync().unwrap();
    fixture.store.run_maintenance().unwrap();
}

fn reclaim_all(fixture: &StoreFixture) {
    for _ in 0..3 {
        fixture.store.reclaim().unwrap();
        fixture.store.run_maintenance().unwrap();
    }
}

/// The index file that belongs to a data file.
fn index_of(data: &str) -> String {
    data.rsplit_once('.').unwrap().0.to_owned() + ".index"
}

/// F9: a segment of which nothing is left was sorted, and lost its stamps with its entries.
#[test]
fn f9_a_cut_stays_as_it_was_when_nothing_is_left_of_a_later_segment() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    let mut stamps: Vec<Hlc> = Vec::new();
    for log in [1, 2] {
        for n in 0..10u8 {
            let stamp = put(&fixture, log, &[n; 100]).stamp;
            stamps.extend((log == 1).then_some(stamp));
            clock.advance(Duration::from_millis(10));
        }
        roll_segment(&fixture);
    }
    let ends = |fixture: &StoreFixture| -> Vec<u64> {
        let log = fixture.store.log(LogId(1)).unwrap();
        stamps.iter().map(|stamp| log.offset_at(Cut::through(*stamp)).unwrap().0).collect()
    };
    let before: Vec<u64> = (1..=10).collect();
    assert_eq!(ends(&fixture), before);
    fixture.store.advance_log_start(&[(LogId(2), Offset(10))]).unwrap();
    reclaim_all(&fixture);
    assert_eq!(ends(&fixture), before);
    for n in 0..10u8 {
        put(&fixture, 1, &[n; 100]);
        clock.advance(Duration::from_millis(10));
    }
    roll_segment(&fixture);
    assert_eq!(ends(&fixture), before);
    drop(fixture);
    assert_eq!(ends(&StoreFixture::open(&disk, options(), &clock).unwrap()), before);
}

/// A rebuilt index that was refused was found and used by the next start.
#[test]
fn f16_frames_that_are_gone_are_missed_at_every_start() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for _ in 0..2 {
        for n in 0..30u8 {
            put(&fixture, 1, &[n; 1000]);
            put(&fixture, 2, &[n; 1000]);
        }
        roll_segment(&fixture);
    }
    fixture.store.close();
    drop(fixture);
    let filed = disk.names().into_iter().filter(|name| name.ends_with(".sorted")).min().unwrap();
    // The beginning of the index is lost, and the last frames of log 2 read as zeros, as holes do.
    disk.corrupt(&index_of(&filed), 20, 1);
    let bytes = disk.bytes(&filed);
    let from = bytes.len() - 12 * (1000 + 112);
    for (at, byte) in bytes.iter().enumerate().skip(from).filter(|(_, byte)| **byte != 0) {
        disk.corrupt(&filed, at, *byte);
    }
    for start in 0..3 {
        let refused =
            StoreFixture::open(&disk, options(), &clock).expect_err("frames are gone").to_string();
        assert!(refused.contains(&filed), "start {start}: {refused}");
    }
}

/// Three segments: log 1 has entries in the first and the third, and all of it is removed.
fn with_a_log_reclaimed_behind_a_segment(disk: &MemoryDisk) -> String {
    let fixture = StoreFixture::open(disk, options(), &manual_clock()).unwrap();
    put(&fixture, 2, b"m");
    (0..5u8).for_each(|n| drop(fixture.append(vec![append(1, &[n; 100])], Durability::Synced)));
    roll_segment(&fixture);
    (0..5u8).for_each(|n| drop(fixture.append(vec![append(2, &[n; 1000])], Durability::Synced)));
    roll_segment(&fixture);
    for n in 0..5u8 {
        put(&fixture, 1, &[n; 100]);
        put(&fixture, 2, &[n; 3000]);
    }
    roll_segment(&fixture);
    put(&fixture, 2, b"end");
    roll_segment(&fixture);
    fixture.store.advance_log_start(&[(LogId(1), Offset(10))]).unwrap();
    reclaim_all(&fixture);
    let second = fixture.store.sealed_segments()[1].data().name().to_owned();
    fixture.store.close();
    index_of(&second)
}

/// Entries removed in a later segment were taken for corruption in this one.
#[test]
fn a_lost_index_is_rebuilt_where_a_log_start_lies_in_a_later_segment() {
    for at in [20, 4096 + 50] {
        let disk = MemoryDisk::new();
        let index = with_a_log_reclaimed_behind_a_segment(&disk);
        disk.corrupt(&index, at, 1);
        for _ in 0..2 {
            let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
            let log = fixture.store.log(LogId(2)).unwrap();
            // The first reader of a corrupt block gets an error; then the index is rebuilt.
            let _ = log.read(Offset(0), Offset(u64::MAX), usize::MAX);
            fixture.store.run_maintenance().unwrap();
            assert_eq!(fixture.read(LogId(2)).len(), 12);
        }
    }
}

/// A rebuilt index listed a log of which nothing is looked up in its segment any more, the
/// next one did not, and the check took that for corruption.
#[test]
fn rebuilt_indexes_agree_about_a_log_with_a_compacted_prefix() {
    let disk = MemoryDisk::new();
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
    for log in [1, 2, 1, 2] {
        put(&fixture, log, b"payload");
        roll_segment(&fixture);
    }
    let log = fixture.store.log(LogId(1)).unwrap();
    let (until, _) = fixture.store.replaceable_prefix(log.id, Cut::ALL).unwrap();
    let mut fill = |emit: EntrySink<'_>| {
        let last = log.payload_at(Offset(1))?.expect("an entry");
        let compacted_to = last.entry.stamp.next();
        emit(CompactedEntry { entry: last.entry, payload: last.read()? })?;
        Ok(CompactionHorizon { compacted_to, clean_to: until })
    };
    assert!(
        fixture
            .store
            .replace_prefix::<StorageError>(log.id, until, &mut fill, &mut |_| true)
            .unwrap()
    );
    drop(fixture);
    let indexes = disk.names().into_iter().filter(|name| name.ends_with(".index"));
    indexes.take(2).for_each(|name| disk.remove(&name).unwrap());
    drop(StoreFixture::open(&disk, options(), &manual_clock()).unwrap());
    let report = storage::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
}

/// A closed store said that all was synced, and advanced a log start beyond the end of its journal.
#[test]
fn a_store_that_is_closed_advances_no_log_start() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    (0..5u8).for_each(|n| drop(fixture.append(vec![append(1, &[n; 100])], Durability::Synced)));
    fixture.store.close();
    fixture.store.sync().unwrap_err();
    fixture.store.advance_log_start(&[(LogId(1), Offset(3))]).unwrap_err();
    assert_eq!(fixture.store.log(LogId(1)).unwrap().start(), Offset(0));
    assert!(!disk.names().iter().any(|name| name == "manifest"));
}

/// The index of the newest segment is rebuilt without the removed run of the log, and the index of
/// the segment before it still has one. The manifest says where the log ended.
#[test]
fn a_log_whose_start_is_its_end_goes_on_where_it_ended() {
    let disk = MemoryDisk::new();
    let options = Options { idle_logs_max: 0, uncovered_segments_max: 0, ..options() };
    let fixture = StoreFixture::open(&disk, options, &manual_clock()).unwrap();
    for _ in 0..2 {
        put(&fixture, 1, b"truncated");
        put(&fixture, 2, b"kept");
        roll_segment(&fixture);
    }
    let tip = fixture.store.log(LogId(1)).unwrap().tip();
    fixture.store.advance_log_start(&[(LogId(1), tip.end)]).unwrap();
    fixture.store.close();
    drop(fixture);
    let soft = |name: &String| name.ends_with(".index") || name.ends_with(".latest");
    let mut names: Vec<String> = disk.names().into_iter().filter(soft).collect();
    // All but the index of the first segment.
    names.retain(|name| name != "00000000000000000000.index");
    assert!(names.len() >= 2, "{names:?}");
    names.iter().for_each(|name| disk.remove(name).unwrap());
    let fixture = StoreFixture::open(&disk, options, &manual_clock()).unwrap();
    assert_eq!(fixture.store.log(LogId(1)).unwrap().tip(), tip);
    put(&fixture, 1, b"goes on");
    let log = fixture.store.log(LogId(1)).unwrap();
    assert_eq!((log.start(), log.end()), (tip.end, Offset(tip.end.0 + 1)));
}
