//! Writing the journal: segments that end where they should, groups of any length, and what a sync
//! covers.

use bytes::Bytes;
use storage::disk::MemoryDisk;
use storage::{Durability, LogId, Options};
use testkit::store::{StoreFixture, append, append_with_header, in_files_stepped, manual_clock};

fn segments(disk: &MemoryDisk) -> Vec<String> {
    disk.names().into_iter().filter(|name| name.ends_with(".journal")).collect()
}

/// Some segments are rolled before anything is synced: a durable append covers them all.
#[test]
fn a_durable_append_makes_all_before_it_durable_in_however_many_segments_it_lies() {
    for count in 1..6 {
        let (disk, clock) = (MemoryDisk::new(), manual_clock());
        let options = Options { segment_frames_max: 1, ..in_files_stepped() };
        let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
        for _ in 0..count {
            fixture.append(vec![append(1, b"written")], Durability::Written).remove(0).unwrap();
        }
        let replayed_after_crash = |disk: &MemoryDisk| {
            StoreFixture::open(&disk.after_crash(|_| 0), options, &clock).unwrap().replayed.len()
        };
        assert_eq!(replayed_after_crash(&disk), 0, "{count}");
        fixture.append(vec![append(2, b"synced")], Durability::Synced).remove(0).unwrap();
        assert_eq!(replayed_after_crash(&disk), count + 1);
    }
}

#[test]
fn a_segment_holds_as_many_frames_and_bytes_as_it_may() {
    let written = |options: Options| {
        let (disk, clock) = (MemoryDisk::new(), manual_clock());
        let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
        let mut counts = Vec::new();
        for _ in 0..7 {
            fixture.append(vec![append(1, &[7; 20])], Durability::Synced).remove(0).unwrap();
            counts.push(segments(&disk).len());
        }
        counts
    };
    let frames = |segment_frames_max| Options { segment_frames_max, ..in_files_stepped() };
    assert_eq!(written(frames(1)), [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(written(frames(3)), [1, 1, 1, 2, 2, 2, 3]);
    // A frame of 20 bytes takes 104.
    let bytes = |segment_bytes_max| Options { segment_bytes_max, ..in_files_stepped() };
    assert_eq!(written(bytes(208)), [1, 1, 2, 2, 3, 3, 4]);
    assert_eq!(written(bytes(207)), [1, 2, 3, 4, 5, 6, 7]);
    // A frame longer than a segment has a segment of its own.
    assert_eq!(written(bytes(50)), [1, 2, 3, 4, 5, 6, 7]);
}

/// An incarnation continues the segment of the previous one, and counts the frames in it.
#[test]
fn frames_of_the_previous_incarnation_are_counted() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { segment_frames_max: 3, ..in_files_stepped() };
    let mut counts = Vec::new();
    for _ in 0..7 {
        let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
        fixture.append(vec![append(1, b"a")], Durability::Synced).remove(0).unwrap();
        counts.push(segments(&disk).len());
    }
    assert_eq!(counts, [1, 1, 1, 2, 2, 2, 3]);
}

/// Short payloads are copied next to their headers, long ones are not, and very long groups go
/// around the page cache.
#[test]
fn payloads_of_any_length_read_as_they_were_written() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, in_files_stepped(), &clock).unwrap();
    let lengths = (0..70).chain(500..530).chain(1000..1050).chain(2030..2060).chain(4080..4110);
    let lengths = lengths.chain(8180..8200).chain([65_535, 65_536, 65_537, 262_144, 1 << 20]);
    let payload = |length: usize| (0..length).map(|i| (i % 251) as u8).collect::<Vec<u8>>();
    let mut expected: Vec<Vec<u8>> = Vec::new();
    for length in lengths {
        let body = payload(length);
        let appends = vec![append(1, &body), append_with_header(1, &body), append(1, b"x")];
        let results = fixture.append(appends, Durability::Synced);
        assert!(results.iter().all(Result::is_ok), "{length}");
        expected.extend([body.clone(), body, b"x".to_vec()]);
    }
    let check = |read: Vec<Bytes>| {
        assert_eq!(read.len(), expected.len());
        for (nth, (read, expected)) in read.iter().zip(&expected).enumerate() {
            // If there is a header, the stage wrote its 16 bytes.
            let head = if nth % 3 == 1 { 16 } else { 0 };
            assert!(read[head..] == expected[..], "{nth}: {} bytes", expected.len());
        }
    };
    check(fixture.read(LogId(1)).into_iter().map(|entry| entry.payload).collect());
    drop(fixture);
    let fixture = StoreFixture::open(&disk.after_crash(|_| 0), in_files_stepped(), &clock).unwrap();
    check(fixture.replayed.iter().map(|entry| entry.payload.clone()).collect());
}

/// Overwriting zeros does not change the file's length, which would be a second write to the disk.
#[test]
fn zeros_stand_ahead_of_small_groups_up_to_the_end_of_the_segment() {
    const AHEAD: usize = 1 << 20;
    const HEADER: usize = 64;
    let frame = |length: usize| 80 + length.next_multiple_of(8);
    let opened = |segment_bytes_max| {
        let (disk, clock) = (MemoryDisk::new(), manual_clock());
        let options = Options { segment_bytes_max, ..in_files_stepped() };
        let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
        (disk, fixture)
    };
    let write = |fixture: &StoreFixture, length: usize| {
        fixture.append(vec![append(1, &vec![7; length])], Durability::Synced).remove(0).unwrap();
    };
    let length = |disk: &MemoryDisk| disk.bytes(&segments(disk)[0]).len();
    let (disk, fixture) = opened(16 << 20);
    for _ in 0..5 {
        write(&fixture, 20);
        assert_eq!(length(&disk), HEADER + frame(20) + AHEAD, "the others find them there");
    }
    // A large group is followed by no zeros; a small one is again.
    write(&fixture, 2_000_000);
    let end = HEADER + 5 * frame(20) + frame(2_000_000);
    assert_eq!(length(&disk), end);
    write(&fixture, 20);
    assert_eq!(length(&disk), end + frame(20) + AHEAD);
    // A rolled segment has nothing beyond its end.
    fixture.store.roll_segment();
    fixture.step_until_idle();
    assert_eq!(length(&disk), end + frame(20));
    let (disk, fixture) = opened(AHEAD as u64 / 2);
    write(&fixture, 20);
    assert_eq!(length(&disk), HEADER + AHEAD / 2);
}
