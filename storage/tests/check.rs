//! A check compares indexes with everything that they repeat, and distinguishes reclaimed space
//! from lost frames.

use std::collections::BTreeSet;
use std::io::IoSlice;

use storage::check::CheckReport;
use storage::disk::{Disk, MemoryDisk};
use storage::{Durability, LogId, Offset, Options};
use testkit::store::{StoreFixture, append, manual_clock};

const BLOCK: usize = 4096;
const PAYLOAD: usize = 9000;
/// The prefix and the header of a frame in a sorted segment, and its payload.
const SORTED_FRAME: usize = 112 + PAYLOAD;
const LOGS: u64 = 3;
const PER_SEGMENT: u64 = 12;

fn options() -> Options {
    let segment_bytes_max = (80 + PAYLOAD as u64) * PER_SEGMENT;
    Options { segment_bytes_max, manual_maintenance: true, proofs: false, ..Options::default() }
}

/// Three logs in turn, in three segments that are sealed and sorted and one that is open.
fn a_store() -> MemoryDisk {
    let disk = MemoryDisk::new();
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
    for index in 0..PER_SEGMENT * 3 + 2 {
        let append = append(index % LOGS, &[index as u8 + 1; PAYLOAD]);
        fixture.append(vec![append], Durability::Synced).remove(0).unwrap();
    }
    fixture.store.run_maintenance().unwrap();
    fixture.store.close();
    drop(fixture);
    // The next start removes what was replaced.
    StoreFixture::open(&disk, options(), &manual_clock()).unwrap().store.close();
    let report = checked(&disk);
    assert_eq!((report.problems, report.leftovers), (vec![], vec![]));
    assert_eq!((report.segments, report.sorted_segments, report.indexes), (1, 3, 3));
    disk
}

/// The same, unsorted: one log, so that sorting gains nothing.
fn an_unsorted_store() -> MemoryDisk {
    let disk = MemoryDisk::new();
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
    for index in 0..PER_SEGMENT * 3 + 2 {
        let append = append(7, &[index as u8 + 1; PAYLOAD]);
        fixture.append(vec![append], Durability::Synced).remove(0).unwrap();
    }
    fixture.store.run_maintenance().unwrap();
    fixture.store.close();
    let report = checked(&disk);
    assert_eq!(report.problems, [""; 0]);
    assert_eq!((report.segments, report.sorted_segments, report.indexes), (4, 0, 3));
    disk
}

fn checked(disk: &MemoryDisk) -> CheckReport {
    let mut reported = 0;
    let report = storage::check::check(disk, &mut |bytes| {
        assert!(bytes >= reported, "progress does not go back: {bytes} behind {reported}");
        reported = bytes;
    });
    let report = report.unwrap();
    let is_data = |name: &&String| {
        [".journal", ".sorted", ".index"].iter().any(|ending| name.ends_with(ending))
    };
    let all: usize =
        names(disk, "").iter().filter(is_data).map(|name| disk.bytes(name).len()).sum();
    assert!(reported <= all as u64, "{reported} of {all}");
    report
}

fn names(disk: &MemoryDisk, ending: &str) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.retain(|name| name.ends_with(ending));
    names.sort();
    names
}

fn replace(disk: &MemoryDisk, name: &str, bytes: &[u8]) {
    let _ = disk.remove(name);
    disk.create(name).unwrap().write_at(&mut [IoSlice::new(bytes)], 0).unwrap();
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Corrects the checksum of each block of an index.
fn make_whole(bytes: &mut [u8], start: u64) {
    for (number, block) in bytes.chunks_mut(BLOCK).enumerate() {
        let crc = crc32c::crc32c(&start.to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &(number as u64).to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &block[4..]);
        block[..4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Asserts that there is one problem; it names `file`, and says that nothing is lost.
fn assert_soft(disk: &MemoryDisk, file: &str, case: &str) {
    let problems = checked(disk).problems;
    assert_eq!(problems.len(), 1, "{case}: {problems:?}");
    assert!(problems[0].contains(&format!("the index {file} ")), "{case}: {problems:?}");
    assert!(problems[0].contains("it is soft"), "{case}: {problems:?}");
}

#[test]
fn every_byte_of_every_index_is_compared_and_a_wrong_one_is_a_problem_that_is_soft() {
    for good in [a_store(), an_unsorted_store()] {
        for name in names(&good, ".index") {
            for at in (0..good.bytes(&name).len()).step_by(61) {
                let disk = good.after_kill();
                disk.corrupt(&name, at, 0x20);
                assert_soft(&disk, &name, &format!("byte {at}"));
            }
            let disk = good.after_kill();
            disk.remove(&name).unwrap();
            assert_soft(&disk, &name, "removed");
            let bytes = good.bytes(&name);
            let other = names(&good, ".index").into_iter().find(|other| *other != name).unwrap();
            for bad in [&bytes[..BLOCK], &[], &good.bytes(&other)[..]] {
                replace(&disk, &name, bad);
                assert_soft(&disk, &name, "another");
            }
            // A start rebuilds a lost one.
            disk.remove(&name).unwrap();
            StoreFixture::open(&disk, options(), &manual_clock()).unwrap().store.close();
            assert_eq!(checked(&disk).problems, [""; 0]);
        }
    }
}

#[test]
fn an_index_that_is_whole_and_wrong_in_any_field_is_noticed() {
    for good in [a_store(), an_unsorted_store()] {
        for (nth, name) in names(&good, ".index").into_iter().enumerate() {
            let bytes = good.bytes(&name);
            let start = u64_at(&bytes, 24);
            let (entries, runs) = (u64_at(&bytes, 40) as usize, u64_at(&bytes, 48) as usize);
            assert!(entries == PER_SEGMENT as usize && runs <= LOGS as usize);
            // Entries are in block 1, runs in block 2. The length of the stage's state is its own
            // affair, and the range of stamps may be wider than necessary.
            let header = (8..56).filter(|at| !(20..24).contains(at));
            let entries =
                (0..entries).flat_map(|nth| (0..97).map(move |at| BLOCK + 8 + nth * 104 + at));
            // Of links, the segment that they lead to; not the number there, nor the distance,
            // which only say where to look first.
            let fields = || (0..92).chain(99..104).chain(115..120);
            let runs =
                (0..runs).flat_map(|nth| fields().map(move |at| 2 * BLOCK + 8 + nth * 136 + at));
            // Every field of each, and not every byte of each field.
            let fields = header.chain(entries).chain(runs).filter(|at| at % 4 == nth);
            for at in fields {
                let disk = good.after_kill();
                let mut bad = bytes.clone();
                bad[at] ^= 1;
                make_whole(&mut bad, start);
                replace(&disk, &name, &bad);
                let problems = checked(&disk).problems;
                assert!(!problems.is_empty(), "byte {at} of {name}");
                // If the index after it continues from the wrong value, that one may be named.
                for problem in &problems {
                    assert!(problem.contains("it is soft"), "byte {at} of {name}: {problems:?}");
                }
            }
        }
    }
}

/// A store in which log 1 was removed, so that the middle third of each sorted segment is a hole.
fn a_store_with_holes() -> MemoryDisk {
    let disk = a_store();
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
    fixture.store.advance_log_start(&[(LogId(1), Offset(12))]).unwrap();
    let mut punched = 0;
    for _ in 0..3 {
        punched += fixture.store.reclaim().unwrap().reclaimed_bytes;
    }
    assert!(punched as usize > 3 * 3 * PAYLOAD, "{punched}");
    fixture.store.close();
    disk
}

#[test]
fn reclaimed_space_is_no_corruption_and_a_frame_lost_in_or_beside_it_is() {
    let good = a_store_with_holes();
    let report = checked(&good);
    assert_eq!(report.problems, [""; 0], "rests of frames around a hole are lawful");
    for name in names(&good, ".sorted") {
        for frame in 0..PER_SEGMENT as usize {
            let is_given_up = (4..8).contains(&frame);
            let disk = good.after_kill();
            let mut bytes = disk.bytes(&name);
            let at = 64 + frame * SORTED_FRAME;
            bytes[at..at + SORTED_FRAME].fill(0);
            replace(&disk, &name, &bytes);
            let problems = checked(&disk).problems;
            assert_eq!(problems.len(), usize::from(!is_given_up), "frame {frame}: {problems:?}");
            for problem in problems {
                assert!(problem.contains(&format!("{name} is corrupt at byte {at}:")), "{problem}");
                assert!(!problem.contains("soft"), "{problem}");
            }
        }
        // Truncated after a frame, so that every remaining frame is intact.
        let disk = good.after_kill();
        let bytes = disk.bytes(&name);
        replace(&disk, &name, &bytes[..64 + 10 * SORTED_FRAME]);
        let problems = checked(&disk).problems;
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].contains(&format!("at byte {}:", 64 + 10 * SORTED_FRAME)),
            "{problems:?}"
        );
        // Without the index, a hole is still recognized, and zeros elsewhere are not a hole.
        let index = name.replace(".sorted", ".index");
        let disk = good.after_kill();
        disk.corrupt(&index, BLOCK + 100, 1);
        assert_soft(&disk, &index, "a hole");
        let mut bytes = disk.bytes(&name);
        bytes[64 + SORTED_FRAME..64 + 2 * SORTED_FRAME].fill(0);
        replace(&disk, &name, &bytes);
        assert_eq!(checked(&disk).problems.len(), 2, "{:?}", checked(&disk).problems);
    }
    // A rebuilt index has nothing of what was removed.
    for index in names(&good, ".index") {
        good.remove(&index).unwrap();
    }
    StoreFixture::open(&good, options(), &manual_clock()).unwrap().store.close();
    assert_eq!(checked(&good).problems, [""; 0]);
}

#[test]
fn a_hole_behind_the_log_start_is_corruption() {
    let good = a_store();
    for name in names(&good, ".sorted") {
        let disk = good.after_kill();
        let file = disk.open(&name).unwrap();
        file.punch_hole(4 * BLOCK as u64..8 * BLOCK as u64).unwrap();
        let report = checked(&disk);
        assert!(!report.problems.is_empty());
        for problem in &report.problems {
            assert!(
                problem.contains(" is corrupt at ") && problem.starts_with("the sorted segment "),
                "{problem}"
            );
        }
    }
}

#[test]
fn files_that_nothing_names_are_mentioned_and_no_problem() {
    let disk = a_store();
    let leftovers =
        ["00000000000000000000.9.sorted", "00000000000000000000.9.index", "manifest.new", "x"];
    for name in leftovers {
        replace(&disk, name, b"left");
    }
    let report = checked(&disk);
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(
        report.leftovers.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        leftovers.into()
    );
    // The next start removes all but the files that are not ours.
    StoreFixture::open(&disk, options(), &manual_clock()).unwrap().store.close();
    assert_eq!(checked(&disk).leftovers, ["x"]);
}

#[test]
fn the_rest_of_a_frame_beside_a_short_hole_is_neither_corruption_nor_in_the_way_of_a_new_index() {
    // Runs that are a little longer than a block: one block of each is reclaimed.
    const SHORT: usize = 2600;
    let mut short_holes = 0;
    for lead in (0..4096).step_by(328) {
        let disk = MemoryDisk::new();
        let segment_bytes_max = 3 * (80 + 4096) + 6 * (80 + SHORT as u64);
        let options = Options { segment_bytes_max, ..options() };
        let fixture = StoreFixture::open(&disk, options, &manual_clock()).unwrap();
        let append = |log: u64, length: usize| {
            fixture
                .append(vec![append(log, &vec![7; length])], Durability::Synced)
                .remove(0)
                .unwrap();
        };
        append(0, lead);
        for _ in 0..3 {
            append(1, SHORT);
            append(2, SHORT);
        }
        for _ in 0..8 {
            append(3, 4096);
        }
        fixture.store.run_maintenance().unwrap();
        fixture.store.advance_log_start(&[(LogId(1), Offset(3))]).unwrap();
        let punched: u64 = (0..3).map(|_| fixture.store.reclaim().unwrap().reclaimed_bytes).sum();
        short_holes += u64::from(punched == 4096);
        let before = fixture.all((0..4).filter(|log| *log != 1).map(LogId));
        fixture.store.close();
        drop(fixture);
        StoreFixture::open(&disk, options, &manual_clock()).unwrap().store.close();
        assert_eq!(checked(&disk).problems, [""; 0], "{lead}");
        for index in names(&disk, ".index") {
            disk.remove(&index).unwrap();
        }
        let fixture = StoreFixture::open(&disk, options, &manual_clock()).unwrap();
        assert_eq!(fixture.all((0..4).filter(|log| *log != 1).map(LogId)), before, "{lead}");
        fixture.store.close();
        assert_eq!(checked(&disk).problems, [""; 0], "{lead}");
    }
    assert!(short_holes > 3, "{short_holes}");
}

/// A user who reads that nothing names a file may remove it.
#[test]
fn files_are_not_said_to_be_left_over_while_the_manifest_cannot_be_believed() {
    let disk = a_store();
    disk.corrupt("manifest", 30, 0x20);
    let damaged = checked(&disk);
    assert!(damaged.problems[0].contains("manifest"), "{:?}", damaged.problems);
    disk.remove("manifest").unwrap();
    let lost = checked(&disk);
    assert!(lost.problems[0].contains("manifest"), "{:?}", lost.problems);
    assert_eq!((damaged.leftovers, lost.leftovers), (vec![], vec![]));
}

#[test]
fn a_zeroed_slot_of_the_bound_is_named_until_a_start_made_it_whole() {
    for slot in 0..2_usize {
        let disk = an_unsorted_store();
        let mut bytes = disk.bytes("bound");
        bytes[slot * 4096..][..48].fill(0);
        replace(&disk, "bound", &bytes);
        let problems = checked(&disk).problems;
        let place = format!("position {}", slot * 4096);
        assert!(problems.iter().any(|problem| problem.contains(&place)), "{problems:?}");
    }
    let disk = MemoryDisk::new();
    StoreFixture::open(&disk, options(), &manual_clock()).unwrap().store.close();
    assert_eq!(checked(&disk).problems, [""; 0], "a store of one write or two");
}

#[test]
fn a_newest_segment_that_is_gone_is_named() {
    let disk = an_unsorted_store();
    let newest = names(&disk, ".journal").pop().unwrap();
    disk.remove(&newest).unwrap();
    let problems = checked(&disk).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("(the last segment)"), "{problems:?}");
}
