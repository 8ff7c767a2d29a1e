//! Corruption and loss of each kind of file: checksums find it, it is never served as data, and
//! soft files are rebuilt (F16, F19, M3).

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::Bytes;
use hlc::{Cut, ManualClock, OsClock};
use storage::disk::{Disk, DiskFault, MemoryDisk};
use storage::{
    AppendError, CompactedEntry, CompactionHorizon, Durability, HistoryError, LogId, Offset,
    OpenError, Options, StorageError,
};
use testkit::disks::HangingDisk;
use testkit::rng::SeededRng;
use testkit::store::{StoreFixture, append, manual_clock};

const LOGS: u64 = 4;

fn options() -> Options {
    Options {
        segment_bytes_max: 24 << 10,
        tail_bytes_max: 0,
        index_bytes_max: 0,
        idle_logs_max: 0,
        uncovered_segments_max: 1,
        manual_maintenance: true,
        ..Options::default()
    }
}

fn logs() -> impl Iterator<Item = LogId> {
    (0..LOGS).map(LogId)
}

type WrittenPayloads = BTreeMap<(u64, u64), Bytes>;

/// A store that has a file of each kind, stopped by a loss of power, and its content.
fn a_disk_with_every_kind_of_file(clock: &Arc<ManualClock>) -> (MemoryDisk, WrittenPayloads) {
    let (disk, mut random) = (MemoryDisk::new(), SeededRng::new(7));
    let fixture = StoreFixture::open(&disk, options(), clock).unwrap();
    let write = |from: u64, until: u64, random: &mut SeededRng| {
        for nth in from..until {
            // The last log gets no more entries, so that nothing of it follows what may be lost.
            let log = if nth >= 24 { nth % (LOGS - 1) } else { nth % LOGS };
            let length = 300 + random.below(4500) as usize;
            fixture.append(vec![append(log, &random.bytes(length))], Durability::Synced);
        }
    };
    let seal = || {
        fixture.store.roll_segment();
        fixture.append(Vec::new(), Durability::Written);
    };
    write(0, 24, &mut random);
    seal();
    fixture.store.run_maintenance().unwrap();
    let (until, stamp) = fixture.store.replaceable_prefix(LogId(1), Cut::ALL).unwrap();
    let pieces = fixture.store.log(LogId(1)).unwrap().read(Offset(0), until, usize::MAX).unwrap();
    let compacted = CompactionHorizon { compacted_to: stamp.next(), clean_to: until };
    let replaced = fixture.store.replace_prefix::<StorageError>(
        LogId(1),
        until,
        &mut |emit| {
            for piece in pieces.iter().skip(1) {
                emit(CompactedEntry { entry: piece.entry, payload: piece.read()?.slice(..200) })?;
            }
            Ok(compacted)
        },
        &mut |_| true,
    );
    assert!(replaced.unwrap());
    fixture.store.advance_log_start(&[(LogId(0), Offset(4))]).unwrap();
    for _ in 0..3 {
        fixture.store.reclaim().unwrap();
    }
    write(24, 36, &mut random);
    seal();
    // One log alone: sorting gains nothing, and the segment stays.
    for _ in 0..3 {
        fixture.append(vec![append(2, &random.bytes(700))], Durability::Synced);
    }
    seal();
    fixture.store.run_maintenance().unwrap();
    write(36, 40, &mut random);
    // Sorted entries are gone from their old place.
    fixture.store.reclaim().unwrap();
    fixture.store.reclaim().unwrap();
    assert!(
        fixture.store.history_stats().reclaimed_bytes.load(std::sync::atomic::Ordering::Relaxed)
            > 0
    );
    let payloads = read_payloads(&fixture).unwrap();
    // The bound file knows the manifest, and what was synced.
    clock.advance(Duration::from_secs(2));
    fixture.frontier();
    let crashed = disk.after_crash(|_| 0);
    drop(fixture);
    (crashed, payloads)
}

/// All payloads that are kept, by log and offset; an error if any of them cannot be read.
fn read_payloads(fixture: &StoreFixture) -> Result<WrittenPayloads, StorageError> {
    let mut payloads = WrittenPayloads::new();
    for id in logs() {
        let log = fixture.store.log(id)?;
        for piece in log.read(log.start(), Offset(u64::MAX), usize::MAX)? {
            payloads.insert((id.0, piece.entry.base.0), piece.read()?);
        }
    }
    Ok(payloads)
}

/// Reads all payloads, again and again while corrupt indexes are rebuilt.
fn read_payloads_after_rebuild(fixture: &StoreFixture) -> Result<WrittenPayloads, StorageError> {
    for _ in 0..8 {
        if let Ok(payloads) = read_payloads(fixture) {
            return Ok(payloads);
        }
        let _ = fixture.store.run_maintenance();
    }
    read_payloads(fixture)
}

fn kinds(disk: &MemoryDisk) -> BTreeMap<&'static str, Vec<String>> {
    let mut kinds: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    for name in disk.names() {
        let is_base = name.starts_with("log-");
        let kind = match name.rsplit_once('.').map_or("", |(_, kind)| kind) {
            "index" if is_base => "index of a compacted prefix",
            "index" => "index",
            "sorted" if is_base => "compacted prefix",
            "sorted" => "sorted",
            "journal" => "journal",
            "latest" => "latest",
            "proof" => "proof",
            _ if name == "bound" => "bound",
            _ if name == "manifest" => "manifest",
            // The file has no content.
            _ if name == storage::RESERVE_FILE => continue,
            _ => panic!("what is {name}?"),
        };
        kinds.entry(kind).or_default().push(name);
    }
    kinds
}

fn is_soft(kind: &str) -> bool {
    kind.starts_with("index") || ["latest", "proof"].contains(&kind)
}

/// A disk has what was written, or returns an error that names the file.
fn check_corrupt_file(
    disk: &MemoryDisk,
    clock: &Arc<ManualClock>,
    written: &WrittenPayloads,
    soft: bool,
    file: &str,
) {
    let fixture = match StoreFixture::open(disk, options(), clock) {
        Ok(fixture) => fixture,
        Err(error) => {
            assert!(!soft, "soft files are rebuilt: {file}: {error}");
            let message = error.to_string();
            // The position of a missing segment is known.
            let start = file.trim_end_matches(".journal").trim_start_matches('0');
            let place = format!("at position {start}:");
            let is_named = [file, "journal/", &place].iter().any(|name| message.contains(*name));
            assert!(is_named, "{file}: {error}");
            return;
        }
    };
    match read_payloads_after_rebuild(&fixture) {
        Ok(payloads) => {
            let lost: Vec<_> =
                written.iter().filter(|(at, _)| !payloads.contains_key(at)).collect();
            assert!(payloads == *written, "{file}: {:?}", lost.first());
        }
        Err(error) => {
            assert!(!soft, "soft files are rebuilt: {file}: {error}");
            assert!(error.to_string().contains(file), "{file}: {error}");
        }
    }
}

/// A start verifies the payloads that it reads; others are verified when they are read.
#[test]
fn f16_a_flipped_bit_in_any_kind_of_file_is_never_served() {
    let clock = manual_clock();
    let (disk, written) = a_disk_with_every_kind_of_file(&clock);
    let kinds = kinds(&disk);
    assert_eq!(kinds.len(), 9, "{kinds:?}");
    let mut random = SeededRng::new(3);
    for (kind, names) in kinds {
        for name in names {
            let length = disk.bytes(&name).len() as u64;
            let ends = (0..8).chain([16, 40, 63, 64, 70, 100, 144, 180]).chain(length - 8..length);
            let ends = ends.chain([4096, 4100, 4150, 8192, 8200, 8300]);
            let offsets: Vec<u64> = (0..24).map(|_| random.below(length)).collect();
            for at in ends.chain(offsets).filter(|at| *at < length) {
                // The bytes between the slots of the bound file are not read.
                let disk = disk.after_kill();
                disk.corrupt(&name, at as usize, 1 << random.below(8));
                check_corrupt_file(&disk, &clock, &written, is_soft(kind), &name);
            }
        }
    }
}

#[test]
fn f16_a_lost_file_of_any_kind_is_named_or_rebuilt() {
    let clock = manual_clock();
    let (disk, written) = a_disk_with_every_kind_of_file(&clock);
    for (kind, names) in kinds(&disk) {
        for name in names {
            let disk = disk.after_kill();
            disk.remove(&name).unwrap();
            check_corrupt_file(&disk, &clock, &written, is_soft(kind), &name);
            if !is_soft(kind) {
                assert!(StoreFixture::open(&disk, options(), &clock).is_err(), "{name} is missed");
            }
        }
    }
}

/// All soft files may be gone at once; and any two of them may be corrupt.
#[test]
fn f16_all_indexes_are_rebuilt_together() {
    let clock = manual_clock();
    let (disk, written) = a_disk_with_every_kind_of_file(&clock);
    let soft: Vec<String> = kinds(&disk)
        .into_iter()
        .filter(|(kind, _)| is_soft(kind))
        .flat_map(|kind| kind.1)
        .collect();
    let without = disk.after_kill();
    soft.iter().for_each(|name| without.remove(name).unwrap());
    check_corrupt_file(&without, &clock, &written, true, "all");
    for first in &soft {
        for second in soft.iter().filter(|second| *second > first) {
            // The blocks of runs in one; the header, or the runs, in the other.
            for back in [0, 4096] {
                let disk = disk.after_kill();
                for (name, at) in [(first, 4200), (second, 4200 * back / 4096)] {
                    let length = disk.bytes(name).len();
                    disk.corrupt(name, at.min(length - 1), 4);
                }
                check_corrupt_file(&disk, &clock, &written, true, first);
            }
        }
    }
}

/// An index is rebuilt from its sorted segment: a lost frame is noticed, even at the end of a run.
#[test]
fn f16_an_index_is_not_made_of_a_sorted_segment_that_lost_a_frame() {
    let clock = manual_clock();
    let (disk, written) = a_disk_with_every_kind_of_file(&clock);
    for name in kinds(&disk).remove("sorted").unwrap() {
        let bytes = disk.bytes(&name);
        let frames = (64..bytes.len() - 4).filter(|at| bytes[*at..at + 4] == *b"FFJ1");
        for at in frames {
            let disk = disk.after_kill();
            disk.corrupt(&name, at + 20, 1);
            disk.remove(&format!("{}.index", name.trim_end_matches(".sorted"))).unwrap();
            check_corrupt_file(&disk, &clock, &written, false, &name);
        }
    }
}

/// Only segments, and no other file that would tell.
#[test]
fn m3_a_manifest_that_is_missing_or_old_is_refused() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for _ in 0..3 {
        fixture.append(vec![append(1, &[1; 500])], Durability::Synced);
        fixture.store.roll_segment();
        fixture.append(Vec::new(), Durability::Written);
        fixture.store.run_maintenance().unwrap();
    }
    let old = disk.bytes("manifest");
    fixture.store.advance_log_start(&[(LogId(1), Offset(1))]).unwrap();
    drop(fixture);
    assert!(!disk.names().iter().any(|name| name.ends_with(".sorted")));
    let restored = disk.after_kill();
    restored.remove("manifest").unwrap();
    for bytes in [None, Some(old)] {
        if let Some(bytes) = bytes {
            let file = restored.create("manifest").unwrap();
            file.write_at(&mut [io::IoSlice::new(&bytes)], 0).unwrap();
        }
        let error = StoreFixture::open(&restored, options(), &clock).unwrap_err();
        assert!(matches!(error, OpenError::History(HistoryError::Manifest(_))), "{error}");
        assert!(error.to_string().contains("journal/manifest"), "{error}");
    }
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    assert_eq!(fixture.store.log(LogId(1)).unwrap().start(), Offset(1));
}

/// A reader that holds a payload for longer than two rounds gets an error, and no zeros.
#[test]
fn a_payload_of_a_run_that_was_reclaimed_meanwhile_is_an_error_or_what_was_written() {
    let (disk, clock, mut random) = (MemoryDisk::new(), manual_clock(), SeededRng::new(5));
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    let payloads: Vec<Vec<u8>> = (0..20).map(|_| random.bytes(1000)).collect();
    for payload in &payloads {
        fixture.append(vec![append(1, payload), append(2, payload)], Durability::Synced);
    }
    fixture.store.roll_segment();
    fixture.append(Vec::new(), Durability::Written);
    fixture.store.run_maintenance().unwrap();
    let pieces =
        fixture.store.log(LogId(1)).unwrap().read(Offset(0), Offset(20), usize::MAX).unwrap();
    let read = |count: usize| {
        let read = pieces.iter().zip(&payloads).filter(|(piece, payload)| match piece.read() {
            Ok(bytes) => {
                assert!(bytes == payload[..], "other bytes than were written");
                true
            }
            Err(_) => false,
        });
        assert!(read.count() >= count);
    };
    fixture.store.advance_log_start(&[(LogId(1), Offset(20))]).unwrap();
    read(20);
    fixture.store.reclaim().unwrap();
    read(20);
    fixture.store.reclaim().unwrap();
    fixture.store.reclaim().unwrap();
    assert!(pieces.iter().any(|piece| piece.read().is_err()), "space was reclaimed");
    read(0);
}

/// The power fails after space was reclaimed and before the manifest says so.
#[test]
fn f16_a_crash_between_reclaiming_space_and_recording_it_is_survived_without_indexes_too() {
    let (disk, clock, mut random) = (MemoryDisk::new(), manual_clock(), SeededRng::new(5));
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for _ in 0..20 {
        let payload = random.bytes(1000);
        fixture.append(vec![append(1, &payload), append(2, &payload)], Durability::Synced);
    }
    fixture.store.roll_segment();
    fixture.append(Vec::new(), Durability::Written);
    fixture.store.run_maintenance().unwrap();
    fixture.store.advance_log_start(&[(LogId(1), Offset(20))]).unwrap();
    fixture.store.reclaim().unwrap();
    let written = read_payloads(&fixture).unwrap();
    // The first operation is the punch.
    disk.arm(DiskFault::CrashAt(disk.operations() + 1));
    fixture.store.reclaim().unwrap_err();
    let crashed = disk.after_crash(|count| count - 1);
    drop(fixture);
    for without_indexes in [false, true] {
        let disk = crashed.after_kill();
        if without_indexes {
            let names = disk.names();
            let indexes = names.iter().filter(|name| name.ends_with(".index"));
            indexes.for_each(|name| disk.remove(name).unwrap());
        }
        let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
        assert!(read_payloads(&fixture).unwrap() == written);
        // Nothing is reclaimed before it is known to be proved.
        fixture.store.run_maintenance().unwrap();
        let freed = fixture.store.reclaim().unwrap();
        // A rebuilt index does not know where it was.
        assert!(freed.reclaimed_bytes > 0 || without_indexes, "it is reclaimed again: {freed:?}");
    }
}

/// The indexing thread ends in the middle of other work, and a writer waits for it.
#[test]
fn a_store_that_is_closed_while_a_writer_waits_for_indexes_ends() {
    let disk = HangingDisk::at_creations(".proof");
    let closed_gate = disk.hook.close();
    let options = Options { segment_bytes_max: 2048, ..Options::default() };
    let fixture =
        StoreFixture::open_on(Arc::new(disk.clone()), options, Arc::new(OsClock)).unwrap();
    let append_one = || fixture.append(vec![append(1, &[1; 1500])], Durability::Written);
    append_one();
    append_one();
    disk.hook.wait_until_reached();
    // Each append rolls the segment before it; the last waits for room.
    for _ in 0..4 {
        append_one();
    }
    let last = fixture.begin_append(vec![append(1, &[1; 1500])], Durability::Written);
    let (sender, closed) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fixture.store.close();
            sender.send(()).unwrap();
        });
        // The gate opens once closing has begun.
        while !fixture.store.is_closing() {
            std::thread::yield_now();
        }
        drop(closed_gate);
        closed.recv_timeout(Duration::from_secs(30)).expect("closing ends");
    });
    let results = last.recv_timeout(Duration::from_secs(30)).expect("an append completes");
    assert!(results[0].is_ok(), "{results:?}");
}

/// Nothing hangs on a full disk: not even writers while nothing can be indexed.
#[test]
fn f16_writers_are_refused_and_do_not_hang_while_the_disk_is_too_full_to_index() {
    let disk = MemoryDisk::new();
    let options = Options { segment_bytes_max: 2048, ..Options::default() };
    let fixture =
        StoreFixture::open_on(Arc::new(disk.clone()), options, Arc::new(OsClock)).unwrap();
    let append_one = || fixture.append(vec![append(1, &[1; 900])], Durability::Synced).remove(0);
    append_one().unwrap();
    disk.arm(DiskFault::FullAt(disk.used_bytes() + 20_000));
    let mut refused = 0;
    while refused < 5 {
        match append_one() {
            Ok(_) => {}
            Err(AppendError::Storage(error)) if error.is_full() => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    let log = fixture.store.log(LogId(1)).unwrap();
    let end = log.end();
    assert_eq!(fixture.read(LogId(1)).len() as u64, end.0, "reads go on");
    assert_eq!(fixture.store.stop_reason(), None);
    disk.remove_capacity_limit();
    // The indexing thread retries after a while.
    while append_one().is_err() {
        std::thread::yield_now();
    }
    assert!(log.end() > end);
}

/// Advancing a log start frees space: there is space for a manifest, or a reserve; else it reports
/// what is missing.
#[test]
fn f16_room_is_made_on_a_full_disk_by_advancing_the_log_start() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for _ in 0..100 {
        fixture.append(vec![append(1, &[1; 900]), append(2, &[2; 900])], Durability::Synced);
    }
    fixture.store.run_maintenance().unwrap();
    // The reserve is spent, and there is no space to allocate it again.
    disk.arm(DiskFault::FullAt(disk.used_bytes()));
    fixture.store.advance_log_start(&[(LogId(1), Offset(1))]).unwrap();
    disk.arm(DiskFault::FullAt(disk.used_bytes()));
    let error = fixture
        .store
        .advance_log_start(&[(LogId(1), Offset(90)), (LogId(2), Offset(90))])
        .unwrap_err();
    assert!(error.is_full(), "{error}");
    assert!(error.to_string().contains("the manifest, which takes"), "{error}");
    assert_eq!(fixture.store.log(LogId(1)).unwrap().start(), Offset(1));
    disk.arm(DiskFault::FullAt(disk.used_bytes() + 2000));
    fixture.store.advance_log_start(&[(LogId(1), Offset(90)), (LogId(2), Offset(90))]).unwrap();
    let full = disk.used_bytes();
    for _ in 0..3 {
        fixture.store.reclaim().unwrap();
    }
    assert!(disk.used_bytes() < full / 2, "{} of {full} are held", disk.used_bytes());
    disk.remove_capacity_limit();
    fixture.append(vec![append(1, &[3; 900])], Durability::Synced).remove(0).unwrap();
}

/// A log start beyond what a crash leaves would assign offsets twice.
#[test]
fn f18_a_log_start_that_advances_on_a_full_disk_was_synced_before() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { segment_frames_max: 4, ..options() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    for _ in 0..4 {
        fixture.append(vec![append(1, &[1; 900])], Durability::Written).remove(0).unwrap();
    }
    // There is space for a manifest, but not for the header of a segment: the next append needs
    // one.
    disk.arm(DiskFault::FullAt(disk.used_bytes() + 2000));
    fixture.append(vec![append(1, &[1; 3000])], Durability::Written).remove(0).unwrap_err();
    fixture.store.advance_log_start(&[(LogId(1), Offset(4))]).unwrap();
    let crashed = disk.after_crash(|_| 0);
    let log = StoreFixture::open(&crashed, options, &clock).unwrap().store.log(LogId(1)).unwrap();
    assert_eq!((log.start(), log.end()), (Offset(4), Offset(4)));
}
