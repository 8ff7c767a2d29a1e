//! Replacing the beginning of a log. A replacement that is cancelled, fails, or comes too late
//! leaves everything as it was, now and after the rounds in which files are removed.

use std::io;

use hlc::Cut;
use storage::disk::MemoryDisk;
use storage::{
    CompactedEntry, CompactionHorizon, Durability, EntrySink, LogId, Offset, Options, StorageError,
};
use testkit::store::{StoreFixture, append, manual_clock};

const LOG: LogId = LogId(5);
const ENTRIES: u64 = 6;

fn options() -> Options {
    Options { manual_maintenance: true, tail_bytes_max: 1, ..Options::default() }
}

/// Ten entries of which six are sealed.
fn fixture(disk: &MemoryDisk) -> StoreFixture {
    let fixture = StoreFixture::open(disk, options(), &manual_clock()).expect("it opens");
    for nth in 0..ENTRIES + 4 {
        if nth == ENTRIES {
            fixture.store.roll_segment();
            fixture.store.sync().expect("it syncs");
            fixture.store.run_maintenance().expect("it is indexed");
        }
        let payload = format!("{nth:>100}");
        let results = fixture.append(vec![append(LOG.0, payload.as_bytes())], Durability::Synced);
        results[0].as_ref().expect("it is appended");
    }
    fixture
}

/// Keeps every second entry, and the last.
fn keep_every_second(
    fixture: &StoreFixture,
    emit: EntrySink<'_>,
) -> Result<CompactionHorizon, StorageError> {
    let log = fixture.store.log(LOG).expect("an index");
    let pieces = log.read(log.start(), Offset(ENTRIES), usize::MAX)?;
    let stamp = pieces.last().expect("an entry").entry.stamp;
    for piece in pieces {
        if piece.entry.base.0 % 2 == 1 {
            emit(CompactedEntry { entry: piece.entry, payload: piece.read()? })?;
        }
    }
    Ok(CompactionHorizon { compacted_to: stamp.next(), clean_to: Offset(ENTRIES) })
}

fn until(fixture: &StoreFixture) -> Offset {
    let (until, _) = fixture.store.replaceable_prefix(LOG, Cut::ALL).expect("an index can be read");
    assert_eq!(until, Offset(ENTRIES));
    until
}

fn offsets(fixture: &StoreFixture) -> Vec<u64> {
    fixture.read(LOG).iter().map(|entry| entry.base.0).collect()
}

fn reclaim(fixture: &StoreFixture) {
    for _ in 0..3 {
        fixture.store.reclaim().expect("space is reclaimed");
    }
}

#[test]
fn a_run_that_was_called_off_takes_nothing_from_the_one_after_it() {
    let disk = MemoryDisk::new();
    let fixture = fixture(&disk);
    let names = disk.names();
    for _ in 0..3 {
        let mut fill = |emit: EntrySink<'_>| keep_every_second(&fixture, emit);
        let replaced = fixture.store.replace_prefix::<StorageError>(
            LOG,
            until(&fixture),
            &mut fill,
            &mut |_| false,
        );
        assert!(!replaced.expect("it is called off"));
        assert_eq!((offsets(&fixture).len(), disk.names()), (10, names.clone()));
    }
    let mut fail = |emit: EntrySink<'_>| {
        keep_every_second(&fixture, emit)?;
        Err(StorageError::from(io::Error::other("there was no more to read")))
    };
    assert!(
        fixture
            .store
            .replace_prefix::<StorageError>(LOG, until(&fixture), &mut fail, &mut |_| true)
            .is_err()
    );
    assert_eq!((offsets(&fixture).len(), disk.names()), (10, names));

    let mut fill = |emit: EntrySink<'_>| keep_every_second(&fixture, emit);
    let replaced =
        fixture
            .store
            .replace_prefix::<StorageError>(LOG, until(&fixture), &mut fill, &mut |_| true);
    assert!(replaced.expect("it is replaced"));
    let expected = [1, 3, 5, 6, 7, 8, 9];
    assert_eq!(offsets(&fixture), expected);
    reclaim(&fixture);
    assert_eq!(offsets(&fixture), expected);
    drop(fixture);
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).expect("it opens again");
    assert_eq!(offsets(&fixture), expected);
}

#[test]
fn a_log_start_that_advances_while_the_prefix_is_replaced_stays() {
    for start in [1, 2, ENTRIES - 1, ENTRIES, ENTRIES + 2] {
        let disk = MemoryDisk::new();
        let fixture = fixture(&disk);
        let mut fill = |emit: EntrySink<'_>| {
            let compacted = keep_every_second(&fixture, emit)?;
            fixture.store.advance_log_start(&[(LOG, Offset(start))])?;
            Ok(compacted)
        };
        let replaced = fixture.store.replace_prefix::<StorageError>(
            LOG,
            until(&fixture),
            &mut fill,
            &mut |_| true,
        );
        assert_eq!(replaced.expect("the disk is whole"), start < ENTRIES, "{start}");
        let expected: Vec<u64> =
            (start..ENTRIES + 4).filter(|base| *base >= ENTRIES || base % 2 == 1).collect();
        let check = |fixture: &StoreFixture| {
            assert_eq!(fixture.store.log(LOG).unwrap().start(), Offset(start));
            let offsets_found: Vec<u64> =
                offsets(fixture).into_iter().filter(|base| *base >= start).collect();
            assert_eq!(offsets_found, expected, "{start}");
        };
        check(&fixture);
        reclaim(&fixture);
        check(&fixture);
        drop(fixture);
        check(&StoreFixture::open(&disk, options(), &manual_clock()).expect("it opens again"));
    }
}

/// The marker in front of a compacted prefix, for all that was removed, has a stamp and an end, and
/// no record.
#[test]
fn the_marker_in_front_of_a_compacted_prefix_is_found_by_nobody_who_looks_for_records() {
    let disk = MemoryDisk::new();
    let fixture = fixture(&disk);
    let start = Offset(3);
    fixture.store.advance_log_start(&[(LOG, start)]).expect("the disk is whole");
    let mut fill = |emit: EntrySink<'_>| keep_every_second(&fixture, emit);
    let replaced =
        fixture
            .store
            .replace_prefix::<StorageError>(LOG, until(&fixture), &mut fill, &mut |_| true);
    assert!(replaced.expect("it is replaced"));
    let log = fixture.store.log(LOG).unwrap();
    let latest = |until: Offset| {
        let latest = log.latest_by_user_time(start, until).expect("the disk is whole");
        latest.map(|piece| (piece.entry.base, piece.entry.count))
    };
    assert_eq!(latest(start), None);
    assert_eq!(latest(Offset(4)), Some((start, 1)));
}
