//! Corrupt disks; missing files; directories that are not ours.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use hlc::ManualClock;
use storage::disk::{Disk, MemoryDisk, RealDisk};
use storage::journal::{FRAME_BYTES, SEGMENT_HEADER_BYTES};
use storage::{
    DataDirectory, DataDirectoryError, Durability, LogAppend, LogId, Offset, OpenError, Options,
};
use testkit::directory::TestDirectory;
use testkit::rng::SeededRng;
use testkit::store::{
    StageVerdict, StoreFixture, append, durably, files, manual_clock, one, problems, segments,
};

const HEADER: usize = SEGMENT_HEADER_BYTES as usize;
const FRAME: usize = FRAME_BYTES;
const FRAME_WHOLE: usize = FRAME + 1000;

fn options() -> Options {
    Options { segment_bytes_max: 4096, manual_maintenance: true, ..Options::default() }
}

/// The store refuses to open; it names `file`, and leaves every file as it was.
fn assert_refused(disk: &MemoryDisk, clock: &Arc<ManualClock>, file: &str) -> OpenError {
    let before = files(disk);
    let error =
        StoreFixture::open(disk, options(), clock).expect_err("a corrupt store does not open");
    assert!(error.to_string().contains(file), "{error}");
    assert!(files(disk) == before, "a refusal changes nothing: {error}");
    error
}

fn assert_checked(disk: &MemoryDisk, file: &str) {
    let problems = problems(disk);
    assert!(problems.iter().any(|problem| problem.contains(file)), "{problems:?}");
}

/// Three segments of about 4 KiB, ten frames of 1000 bytes, each in its own group; the machine
/// stopped, so that only frames and the first bound say what was synced.
fn crashed_with_three_segments(clock: &Arc<ManualClock>) -> MemoryDisk {
    let disk = MemoryDisk::new();
    let fixture = StoreFixture::open(&disk, options(), clock).unwrap();
    for index in 0..10u8 {
        durably(&fixture, u64::from(index % 2), &[index; 1000]);
    }
    let crashed = disk.after_crash(|_| 0);
    assert_eq!(segments(&crashed).len(), 4);
    assert_eq!(problems(&crashed), [""; 0]);
    crashed
}

// Corruption.

#[test]
fn corruption_in_a_frame_header_that_was_synced_refuses_to_open_and_names_the_place() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    for (index, name) in segments(&disk).iter().take(3).enumerate() {
        for at in [0, 5, 40, FRAME_WHOLE + 8, 2 * FRAME_WHOLE + 79] {
            let disk = disk.after_kill();
            disk.corrupt(name, HEADER + at, 4);
            let frame = 3 * index + at / FRAME_WHOLE;
            let error = assert_refused(&disk, &clock, name);
            let position = format!("at position {}:", frame * FRAME_WHOLE);
            assert!(error.to_string().contains(&position), "{error}");
            assert_checked(&disk, name);
            assert_checked(&disk, &position);
        }
    }
}

#[test]
fn corruption_in_a_payload_that_a_later_frame_knew_to_be_synced_refuses_to_open() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    for name in segments(&disk).iter().take(3) {
        let disk = disk.after_kill();
        disk.corrupt(name, HEADER + FRAME_WHOLE + FRAME + 500, 1);
        assert_refused(&disk, &clock, name);
        assert_checked(&disk, name);
    }
}

/// Below the position that the bound file says is synced, opening reads headers only: a start must
/// not take as long as reading everything. A check reads it all.
#[test]
fn corruption_in_a_payload_below_the_bound_file_s_mark_is_found_by_a_check_and_by_readers() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    durably(&fixture, 1, &[1; 1000]);
    durably(&fixture, 1, &[2; 1000]);
    drop(fixture);
    disk.corrupt(&segments(&disk)[0], HEADER + FRAME + 500, 1);
    assert_checked(&disk, "at position 0:");
    // A start reads no such payload by itself; the replay of this test does.
    let Err(refused) = StoreFixture::open(&disk, options(), &clock) else {
        panic!("corrupt bytes are never returned");
    };
    assert!(refused.to_string().contains(&segments(&disk)[0]), "{refused}");
}

#[test]
fn corruption_in_a_segment_header_refuses_to_open_whichever_segment_it_is() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    for name in segments(&disk) {
        for at in [0, 9, 17, 61] {
            let disk = disk.after_kill();
            disk.corrupt(&name, at, 2);
            assert_refused(&disk, &clock, &name);
            assert_checked(&disk, &name);
        }
    }
}

#[test]
fn corruption_in_the_tail_that_nobody_synced_is_truncated() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    durably(&fixture, 1, &[1; 100]);
    for index in 2..5 {
        one(&fixture, 1, &[index; 100], Durability::Written).unwrap();
    }
    let disk = disk.after_kill();
    let name = &segments(&disk)[0];
    let second = HEADER + FRAME + 104;
    disk.corrupt(name, second + FRAME + 3, 1);
    let report = storage::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!((report.frames, report.problems), (1, vec![]));
    assert_eq!(report.torn_bytes, 3 * (FRAME as u64 + 104) - 4, "up to the last written byte");
    let reopened = StoreFixture::open(&disk, options(), &clock).unwrap();
    assert_eq!(reopened.replayed.len(), 1);
    assert_eq!(reopened.store.torn_bytes, report.torn_bytes);
    assert_eq!(disk.bytes(name).len(), second);
}

/// Nothing follows the last group before a pause. The bound file knows that it was synced.
#[test]
fn a_flipped_bit_in_the_last_group_before_a_pause_is_corruption() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    durably(&fixture, 1, &[1; 100]);
    durably(&fixture, 1, &[2; 100]);
    clock.advance(Duration::from_secs(1));
    fixture.store.run_maintenance().unwrap();
    fixture.step_until_idle();
    let disk = disk.after_crash(|_| 0);
    let name = &segments(&disk)[0];
    disk.corrupt(name, HEADER + FRAME + 104 + 40, 1);
    assert_refused(&disk, &clock, name);
    assert_checked(&disk, name);
}

#[test]
fn zeros_written_ahead_are_no_torn_tail() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, Options::default(), &clock).unwrap();
    durably(&fixture, 1, &[1; 100]);
    let crashed = disk.after_crash(|_| 0);
    let name = &segments(&crashed)[0];
    assert!(crashed.bytes(name).len() > 1 << 20, "zeros stand ahead");
    let report = storage::check::check(&crashed, &mut |_| {}).unwrap();
    assert_eq!((report.torn_bytes, report.problems), (0, vec![]));
    let reopened = StoreFixture::open(&crashed, Options::default(), &clock).unwrap();
    assert_eq!(reopened.store.torn_bytes, 0);
    assert_eq!(crashed.bytes(name).len(), HEADER + FRAME + 104, "and are cut off");
}

#[test]
fn corruption_in_a_slot_of_the_bound_file_refuses_to_open() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    drop(StoreFixture::open(&disk, options(), &clock).unwrap());
    let disk = disk.after_crash(|_| 0);
    for slot in [0, 4096] {
        for at in [0, 10, 20, 30, 47] {
            let disk = disk.after_kill();
            disk.corrupt("bound", slot + at, 16);
            let error = assert_refused(&disk, &clock, "journal/bound").to_string();
            assert!(error.contains(&format!("position {slot}")), "{error}");
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
        // Without the first segment, the next begins too late; without another, the one before it
        // ends too early.
        let place = match index {
            0 => "expected one that begins at 0, ".to_owned(),
            _ => format!("at position {start}:"),
        };
        assert_refused(&disk, &clock, &place);
        assert_checked(&disk, &place);
    }
    // The loss of the last one is known after a clean end only.
    drop(StoreFixture::open(&disk, options(), &clock).unwrap());
    let last = segments(&disk).pop().unwrap();
    disk.remove(&last).unwrap();
    assert_refused(&disk, &clock, "the journal is corrupt");
    assert_checked(&disk, "the journal is corrupt");
}

#[test]
fn b5_a_missing_bound_file_refuses_to_open() {
    let clock = manual_clock();
    let disk = crashed_with_three_segments(&clock);
    // There is a torn tail too: not even that is changed.
    disk.corrupt(&segments(&disk)[3], HEADER + FRAME, 1);
    disk.remove("bound").unwrap();
    let error = assert_refused(&disk, &clock, "journal/bound");
    assert!(matches!(error, OpenError::BoundLost), "{error}");
    assert_checked(&disk, "bound");
}

#[test]
fn b5_a_bound_file_older_than_the_journal_refuses_to_open() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    durably(&fixture, 1, b"a");
    let old = disk.bytes("bound");
    clock.advance(Duration::from_secs(5));
    durably(&fixture, 1, b"b");
    drop(fixture);
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
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    assert_eq!((fixture.replayed.len(), fixture.store.torn_bytes), (0, 0));
    drop(fixture);
    assert_eq!(problems(&disk), [""; 0]);
}

#[test]
#[should_panic(expected = "no payload is longer")]
fn an_append_that_recovery_would_take_for_corruption_is_not_accepted() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    // Untouched zeros: they use no memory.
    let payload = storage::Payload::without_header(vec![0; (1 << 30) + 1].into());
    let append: LogAppend<StageVerdict> = LogAppend { payload, ..append(1, b"") };
    fixture.store.append(vec![append], Durability::Written, |_| {});
}

#[test]
fn tiny_payloads_cannot_hold_far_more_memory_than_the_budget() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { tail_bytes_max: 1000, ..Options::default() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    fixture.append((0..500).map(|_| append(1, b"")).collect(), Durability::Written);
    let pieces =
        fixture.store.log(LogId(1)).unwrap().read(Offset(0), Offset(500), usize::MAX).unwrap();
    let in_memory = pieces
        .iter()
        .filter(|piece| matches!(piece.location, storage::PayloadLocation::Memory(_)))
        .count();
    assert!(in_memory <= 20, "{in_memory} payloads are held");
}

// The data directory.

#[test]
fn a_data_directory_is_used_by_one_process_at_a_time() {
    let directory = TestDirectory::new();
    let home = DataDirectory::open(directory.path(), || "c1".to_owned()).unwrap();
    let error = DataDirectory::open(directory.path(), || "c2".to_owned()).unwrap_err();
    assert!(matches!(error, DataDirectoryError::InUse { .. }), "{error}");
    assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
    drop(home);
    assert_eq!(DataDirectory::open_existing(directory.path()).unwrap().cluster_id(), "c1");
}

#[test]
fn a_data_directory_of_another_version_is_refused() {
    let directory = TestDirectory::new();
    drop(DataDirectory::open(directory.path(), || "c1".to_owned()).unwrap());
    fs::write(directory.path().join("FREEZEFRAME"), "format 1\ncluster c1\n").unwrap();
    match DataDirectory::open(directory.path(), String::new) {
        Err(DataDirectoryError::Version { found, .. }) => assert_eq!(found, "1"),
        other => panic!("{other:?}"),
    }
    // Of a later one, the lock file stays as it is too, and the error says what to run.
    fs::write(directory.path().join("LOCK"), "1\n").unwrap();
    let later = "format 8\nname c1\nprogram 99.1.0\n";
    fs::write(directory.path().join("FREEZEFRAME"), later).unwrap();
    for opened in [
        DataDirectory::open(directory.path(), String::new),
        DataDirectory::open_existing(directory.path()),
    ] {
        let error = opened.unwrap_err().to_string();
        for words in ["format 8", "format 7", "freezeframe 99.1.0 or later", "the backup"] {
            assert!(error.contains(words), "{error}");
        }
    }
    assert_eq!(fs::read_to_string(directory.path().join("LOCK")).unwrap(), "1\n");
    assert_eq!(fs::read_to_string(directory.path().join("FREEZEFRAME")).unwrap(), later);
    for damaged in [&b""[..], b"\0\0\0", b"\xff\xfe", b"format 7\n", b"format 7\ncluster \n"] {
        fs::write(directory.path().join("FREEZEFRAME"), damaged).unwrap();
        assert_identity_is_corrupt(&directory);
    }
}

/// A server refuses the directory; an inspection goes on, and knows why.
#[track_caller]
fn assert_identity_is_corrupt(directory: &TestDirectory) {
    let opened = DataDirectory::open(directory.path(), String::new);
    assert!(matches!(opened, Err(DataDirectoryError::Identity { .. })), "{opened:?}");
    let inspected = DataDirectory::open_existing(directory.path()).unwrap();
    let error = inspected.identity_error();
    assert!(matches!(error, Some(DataDirectoryError::Identity { .. })), "{error:?}");
}

#[test]
fn a_flipped_bit_makes_no_directory_that_of_another_cluster() {
    let directory = TestDirectory::new();
    drop(DataDirectory::open(directory.path(), || "c1".to_owned()).unwrap());
    let identity = directory.path().join("FREEZEFRAME");
    let written = fs::read(&identity).unwrap();
    let at = b"format 7\ncluster ".len();
    let mut flipped = written.clone();
    flipped[at] ^= 1;
    fs::write(&identity, &flipped).unwrap();
    assert_identity_is_corrupt(&directory);
    assert_eq!(fs::read(&identity).unwrap(), flipped, "nothing was changed");
    fs::write(&identity, written).unwrap();
    let inspected = DataDirectory::open_existing(directory.path()).unwrap();
    assert!(inspected.identity_error().is_none());
}

#[test]
fn an_identity_without_a_checksum_gets_one_at_a_start() {
    let directory = TestDirectory::new();
    drop(DataDirectory::open(directory.path(), || "c1".to_owned()).unwrap());
    let identity = directory.path().join("FREEZEFRAME");
    let whole = fs::read(&identity).unwrap();
    let bare = "format 7\ncluster c1\n";
    fs::write(&identity, bare).unwrap();
    assert_eq!(DataDirectory::open_existing(directory.path()).unwrap().cluster_id(), "c1");
    // A start that fails before it is done, and one that a crash ended in between, change nothing.
    drop(DataDirectory::open_uncommitted(directory.path(), String::new).unwrap());
    fs::write(directory.path().join("FREEZEFRAME.new"), "form").unwrap();
    assert_eq!(fs::read(&identity).unwrap(), bare.as_bytes());
    let home = DataDirectory::open(directory.path(), || "c2".to_owned()).unwrap();
    assert_eq!((home.cluster_id(), fs::read(&identity).unwrap()), ("c1", whole));
    assert!(!directory.path().join("FREEZEFRAME.new").exists());
}

#[test]
fn a_start_goes_on_although_an_identity_gets_no_checksum() {
    let directory = TestDirectory::new();
    drop(DataDirectory::open(directory.path(), || "c1".to_owned()).unwrap());
    let identity = directory.path().join("FREEZEFRAME");
    fs::write(&identity, "format 7\ncluster c1\n").unwrap();
    // A directory in the place of the file: as little can be written as on a full disk.
    fs::create_dir(directory.path().join("FREEZEFRAME.new")).unwrap();
    assert_eq!(DataDirectory::open(directory.path(), String::new).unwrap().cluster_id(), "c1");
    assert_eq!(fs::read(&identity).unwrap(), b"format 7\ncluster c1\n");
}

#[test]
fn a_directory_has_its_identity_only_once_its_first_start_is_done_and_its_journal_from_then_on() {
    let directory = TestDirectory::new();
    let identity = directory.path().join("FREEZEFRAME");
    let journal = directory.path().join("journal");
    let home = DataDirectory::open_uncommitted(directory.path(), || "c1".to_owned()).unwrap();
    fs::create_dir(&journal).unwrap();
    home.require_journal().unwrap();
    drop(home);
    assert!(!identity.exists(), "its first start was cut short");
    let mut home = DataDirectory::open_uncommitted(directory.path(), || "c2".to_owned()).unwrap();
    home.require_journal().unwrap();
    fs::write(journal.join("bound"), [0; 8]).unwrap();
    home.commit_identity().unwrap();
    drop(home);
    let begun = || DataDirectory::open_uncommitted(directory.path(), || "c3".to_owned()).unwrap();
    assert_eq!(begun().cluster_id(), "c2");
    begun().require_journal().unwrap();
    let lost = |case: &str| {
        let error = begun().require_journal().unwrap_err();
        assert!(matches!(error, DataDirectoryError::NoJournal { .. }), "{case}: {error}");
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
    let directory = TestDirectory::new();
    drop(DataDirectory::open(directory.path(), || "c1".to_owned()).unwrap());
    fs::write(directory.path().join("LOCK"), "17\n").unwrap();
    let looking = DataDirectory::open_existing(directory.path()).unwrap();
    let error = DataDirectory::open(directory.path(), String::new).unwrap_err();
    assert!(matches!(error, DataDirectoryError::InUse { .. }), "{error}");
    drop(looking);
    assert_eq!(fs::read(directory.path().join("LOCK")).unwrap(), b"17\n");
    fs::remove_file(directory.path().join("LOCK")).unwrap();
    DataDirectory::open_existing(directory.path()).unwrap();
    assert!(!directory.path().join("LOCK").exists());
}

#[test]
fn a_directory_that_is_not_ours_is_refused_and_left_alone() {
    let directory = TestDirectory::new();
    fs::write(directory.path().join("thesis.tex"), "x").unwrap();
    let error = DataDirectory::open(directory.path(), String::new).unwrap_err();
    assert!(matches!(error, DataDirectoryError::NotEmpty { .. }), "{error}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    let error = DataDirectory::open_existing(&directory.path().join("nowhere")).unwrap_err();
    assert!(matches!(error, DataDirectoryError::NotFound { .. }), "{error}");
    assert!(!directory.path().join("nowhere").exists());
}

#[test]
fn a_directory_whose_making_was_cut_short_is_taken_again() {
    let directory = TestDirectory::new();
    fs::write(directory.path().join("LOCK"), "1\n").unwrap();
    fs::write(directory.path().join("FREEZEFRAME.new"), "for").unwrap();
    assert_eq!(
        DataDirectory::open(directory.path(), || "c1".to_owned()).unwrap().cluster_id(),
        "c1"
    );
}

/// Large groups go around the page cache, and end within a block.
#[test]
fn payloads_of_any_length_read_back_from_a_real_disk_through_the_cache_and_around_it() {
    let directory = TestDirectory::new();
    let options = Options { tail_bytes_max: 0, ..Options::default() };
    let open = || {
        let disk = Arc::new(RealDisk::open(directory.path()).unwrap());
        StoreFixture::open_on(disk, options, Arc::new(hlc::OsClock)).unwrap()
    };
    let mut random = SeededRng::new(1);
    let payloads: Vec<Vec<u8>> =
        [1, 4016, 300_001, 262_144, 70_000, 3_000_017, 8, 2_097_152 - 80, 5, 400_003]
            .into_iter()
            .map(|length| random.bytes(length))
            .collect();
    let examine = |fixture: &StoreFixture, count: usize| {
        let mut buffer = storage::LoadBuffer::default();
        let pieces = fixture
            .store
            .log(LogId(1))
            .unwrap()
            .read(Offset(0), Offset(u64::MAX), usize::MAX)
            .unwrap();
        assert_eq!(pieces.len(), count);
        for (piece, payload) in pieces.iter().zip(&payloads) {
            assert!(piece.read().unwrap() == payload[..]);
            let storage::PayloadLocation::File { file, at } = &piece.location else {
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
    let mut fixture = open();
    for (index, payload) in payloads.iter().enumerate() {
        let durability = [Durability::Synced, Durability::Written][index % 2];
        one(&fixture, 1, payload, durability).unwrap();
        examine(&fixture, index + 1);
        if index % 4 == 3 {
            drop(fixture);
            fixture = open();
            examine(&fixture, index + 1);
        }
    }
    drop(fixture);
    examine(&open(), payloads.len());
}

#[test]
fn a_store_on_a_real_directory_reads_back_what_was_written() {
    let directory = TestDirectory::new();
    let home = DataDirectory::open(directory.path(), || "c1".to_owned()).unwrap();
    let open = || {
        let disk = Arc::new(RealDisk::open(&home.journal()).unwrap());
        StoreFixture::open_on(disk, options(), Arc::new(hlc::OsClock)).unwrap()
    };
    let fixture = open();
    for index in 0..20u8 {
        durably(&fixture, u64::from(index % 3), &vec![index; 100 * usize::from(index)]);
    }
    let before = fixture.all((0..3).map(LogId));
    drop(fixture);
    let fixture = open();
    assert_eq!(fixture.replayed, before);
    assert_eq!(fixture.all((0..3).map(LogId)), before);
    let disk = RealDisk::open(&home.journal()).unwrap();
    let report = storage::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!((report.frames, report.problems), (20, vec![]));
}
