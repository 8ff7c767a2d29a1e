//! Replacing the beginning of a log: what is called off, fails, or comes too late leaves everything as
//! it was, now and after the rounds in which files are removed.

mod harness;

use std::io;

use harness::{Rig, append, manual_clock};
use hlc::Cut;
use storage::disk::MemoryDisk;
use storage::{Compacted, Durability, Emit, Kept, LogId, Offset, Options};

const LOG: LogId = LogId(5);
const ENTRIES: u64 = 6;

fn options() -> Options {
    Options { tended_by_hand: true, tail_bytes_max: 1, ..Options::default() }
}

/// Ten entries of which six are sealed.
fn rig(disk: &MemoryDisk) -> Rig {
    let rig = Rig::open(disk, options(), &manual_clock()).expect("it opens");
    for nth in 0..ENTRIES + 4 {
        if nth == ENTRIES {
            rig.store.seal();
            rig.store.sync().expect("it syncs");
            rig.store.tend().expect("it is indexed");
        }
        let payload = format!("{nth:>100}");
        let results = rig.append(vec![append(LOG.0, payload.as_bytes())], Durability::Synced);
        results[0].as_ref().expect("it is appended");
    }
    rig
}

/// Keeps every second entry, and the last.
fn every_second(rig: &Rig, emit: Emit<'_>) -> io::Result<Compacted> {
    let log = rig.store.log(LOG).expect("an index");
    let pieces = log.read(log.start(), Offset(ENTRIES), usize::MAX)?;
    let stamp = pieces.last().expect("an entry").entry.stamp;
    for piece in pieces {
        if piece.entry.base.0 % 2 == 1 {
            emit(Kept { entry: piece.entry, payload: piece.read()? })?;
        }
    }
    Ok(Compacted { compacted_to: stamp.next(), clean_to: Offset(ENTRIES) })
}

fn until(rig: &Rig) -> Offset {
    let (until, _) = rig.store.replaceable(LOG, Cut::ALL).expect("an index can be read");
    assert_eq!(until, Offset(ENTRIES));
    until
}

fn offsets(rig: &Rig) -> Vec<u64> {
    rig.read(LOG).iter().map(|seen| seen.base.0).collect()
}

fn free(rig: &Rig) {
    for _ in 0..3 {
        rig.store.free().expect("space is given back");
    }
}

#[test]
fn a_run_that_was_called_off_takes_nothing_from_the_one_after_it() {
    let disk = MemoryDisk::new();
    let rig = rig(&disk);
    let names = disk.names();
    for _ in 0..3 {
        let mut fill = |emit: Emit<'_>| every_second(&rig, emit);
        let replaced = rig.store.replace(LOG, until(&rig), &mut fill, &mut |_| false);
        assert!(!replaced.expect("it is called off"));
        assert_eq!((offsets(&rig).len(), disk.names()), (10, names.clone()));
    }
    let mut fail = |emit: Emit<'_>| {
        every_second(&rig, emit)?;
        Err(io::Error::other("there was no more to read"))
    };
    assert!(rig.store.replace(LOG, until(&rig), &mut fail, &mut |_| true).is_err());
    assert_eq!((offsets(&rig).len(), disk.names()), (10, names));

    let mut fill = |emit: Emit<'_>| every_second(&rig, emit);
    let replaced = rig.store.replace(LOG, until(&rig), &mut fill, &mut |_| true);
    assert!(replaced.expect("it is replaced"));
    let left = [1, 3, 5, 6, 7, 8, 9];
    assert_eq!(offsets(&rig), left);
    free(&rig);
    assert_eq!(offsets(&rig), left);
    drop(rig);
    let rig = Rig::open(&disk, options(), &manual_clock()).expect("it opens again");
    assert_eq!(offsets(&rig), left);
}

#[test]
fn what_is_given_up_while_its_log_is_replaced_stays_given_up() {
    for start in [1, 2, ENTRIES - 1, ENTRIES, ENTRIES + 2] {
        let disk = MemoryDisk::new();
        let rig = rig(&disk);
        let mut fill = |emit: Emit<'_>| {
            let compacted = every_second(&rig, emit)?;
            rig.store.give_up(&[(LOG, Offset(start))])?;
            Ok(compacted)
        };
        let replaced = rig.store.replace(LOG, until(&rig), &mut fill, &mut |_| true);
        assert_eq!(replaced.expect("the disk is whole"), start < ENTRIES, "{start}");
        let left: Vec<u64> =
            (start..ENTRIES + 4).filter(|base| *base >= ENTRIES || base % 2 == 1).collect();
        let check = |rig: &Rig| {
            assert_eq!(rig.store.log(LOG).unwrap().start(), Offset(start));
            let found: Vec<u64> = offsets(rig).into_iter().filter(|base| *base >= start).collect();
            assert_eq!(found, left, "{start}");
        };
        check(&rig);
        free(&rig);
        check(&rig);
        drop(rig);
        check(&Rig::open(&disk, options(), &manual_clock()).expect("it opens again"));
    }
}

/// What stands in front of a base for all that was given up has a stamp and an end, and no record.
#[test]
fn the_mark_in_front_of_a_base_is_found_by_nobody_who_looks_for_records() {
    let disk = MemoryDisk::new();
    let rig = rig(&disk);
    let start = Offset(3);
    rig.store.give_up(&[(LOG, start)]).expect("the disk is whole");
    let mut fill = |emit: Emit<'_>| every_second(&rig, emit);
    let replaced = rig.store.replace(LOG, until(&rig), &mut fill, &mut |_| true);
    assert!(replaced.expect("it is replaced"));
    let log = rig.store.log(LOG).unwrap();
    let latest = |until: Offset| {
        let found = log.latest_by_user_time(start, until).expect("the disk is whole");
        found.map(|piece| (piece.entry.base, piece.entry.count))
    };
    assert_eq!(latest(start), None);
    assert_eq!(latest(Offset(4)), Some((start, 1)));
}
