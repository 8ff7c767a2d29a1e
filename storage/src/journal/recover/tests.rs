use std::io;

use proptest::prelude::*;

use super::super::fixture::{CorruptionTarget, FixtureFrame, JournalFixture, SALT};
use super::super::segment::{SegmentHeader, segment_name};
use super::*;
use crate::disk::{DiskFault, MemoryDisk};

#[derive(Default)]
struct VisitedFrames(Vec<(String, u64, FrameHeader, Vec<u8>)>);

impl FrameVisitor for VisitedFrames {
    fn frame(
        &mut self,
        segment: &Arc<Segment>,
        position: u64,
        frame: &FrameHeader,
        start: &[u8],
    ) -> Result<(), RecoverError> {
        self.0.push((segment.name().to_owned(), position, *frame, start.to_vec()));
        Ok(())
    }
}

impl VisitedFrames {
    fn assert_is(&self, frames: &[FixtureFrame]) {
        let expected = frames.iter().map(|placed| {
            let start = &placed.payload[..placed.payload.len().min(PAYLOAD_HEADER_BYTES_MAX)];
            (placed.file(), placed.position, placed.frame, start.to_vec())
        });
        assert!(self.0.iter().cloned().eq(expected), "{} frames: {:?}", self.0.len(), self.0);
    }
}

fn walk_from(
    disk: &MemoryDisk,
    from: u64,
    last: Hlc,
    trusted_to: u64,
) -> Result<(JournalWalk, VisitedFrames), RecoverError> {
    let mut shown = VisitedFrames::default();
    walk(disk, from, last, trusted_to, &mut shown).map(|walked| (walked, shown))
}

fn walk_all(disk: &MemoryDisk, trusted_to: u64) -> (JournalWalk, VisitedFrames) {
    walk_from(disk, 0, Hlc::ZERO, trusted_to).unwrap()
}

fn finish_recovery_of(disk: &MemoryDisk, synced_to: u64) -> Result<RecoveredJournal, RecoverError> {
    finish_recovery(disk, walk_all(disk, 0).0, KnownSynced::AlsoByFrames(synced_to))
}

/// Truncates a frame's file after `length` bytes of the frame.
fn break_off(disk: &MemoryDisk, placed: &FixtureFrame, length: usize) {
    disk.truncate_file(&placed.file(), placed.at() + length);
}

/// Flips bits of the byte `at` of a frame.
fn corrupt_byte(disk: &MemoryDisk, placed: &FixtureFrame, at: usize) {
    disk.corrupt(&placed.file(), placed.at() + at, 0x40);
}

/// Lengths at which behaviour changes.
const LENGTHS: [usize; 12] = [
    0,
    1,
    7,
    8,
    9,
    PAYLOAD_HEADER_BYTES_MAX - 1,
    PAYLOAD_HEADER_BYTES_MAX,
    PAYLOAD_HEADER_BYTES_MAX + 1,
    WINDOW_BYTES / 4,
    WINDOW_BYTES / 4 + 1,
    PEEK_BYTES,
    WINDOW_BYTES + 100,
];

#[test]
fn a_walk_shows_each_frame_with_how_its_payload_begins() {
    let small = [100; 4000];
    let journal = JournalFixture::of(&[&LENGTHS, &small, &[5]]);
    for trusted_to in [0, journal.end] {
        let (walked, shown) = walk_all(&journal.disk, trusted_to);
        shown.assert_is(&journal.frames);
        assert_eq!((walked.end, walked.limit), (journal.end, journal.end));
        assert_eq!(walked.last, journal.last().frame.stamp);
        assert!(walked.bad_frame.is_none() && walked.headerless.is_empty() && !walked.is_empty());
        let starts: Vec<u64> = walked.segments.iter().map(|segment| segment.start).collect();
        assert_eq!(starts, journal.starts);
        assert_eq!(walked.torn_bytes().unwrap(), 0);
    }
}

#[test]
fn a_disk_without_segments_holds_no_journal() {
    let disk = MemoryDisk::new();
    disk.create("12.journal").unwrap();
    let (walked, shown) = walk_from(&disk, 5, Hlc::ZERO, 0).unwrap();
    assert!(walked.is_empty() && shown.0.is_empty());
    assert_eq!((walked.end, walked.limit, walked.last), (5, 5, Hlc::ZERO));
}

#[test]
fn a_walk_begins_with_the_given_segment() {
    let journal = JournalFixture::of(&[&[10, 20], &[30, 40], &[50]]);
    let last = journal.frames[1].frame.stamp;
    let (_, shown) = walk_from(&journal.disk, journal.starts[1], last, 0).unwrap();
    shown.assert_is(&journal.frames[2..]);
    // The first is missing. The absence of one in the middle could also be the end of the one
    // before it.
    let disk = journal.disk.after_kill();
    disk.remove(&segment_name(0)).unwrap();
    match walk_from(&disk, 0, Hlc::ZERO, 0) {
        Err(RecoverError::Gap { expected, found }) => {
            assert_eq!((expected, found), (0, journal.starts[1]));
        }
        other => panic!("{:?}", other.map(|(walked, _)| walked)),
    }
    let disk = journal.disk.after_kill();
    disk.remove(&segment_name(journal.starts[1])).unwrap();
    let (walked, _) = walk_all(&disk, 0);
    assert_eq!((walked.end, walked.bad_frame.unwrap().1), (journal.starts[1], FrameError::Short));
    // Stamps do not rise.
    let last = journal.frames[2].frame.stamp;
    match walk_from(&journal.disk, journal.starts[1], last, 0) {
        Err(RecoverError::Order { position, stamp, last: before }) => {
            assert_eq!((position, stamp, before), (journal.starts[1], last, last));
        }
        other => panic!("{:?}", other.map(|(walked, _)| walked)),
    }
}

/// Of a rolled segment only the headers are read: its payloads were checked before.
#[test]
fn payloads_are_checked_from_the_position_on_that_is_not_trusted() {
    let journal = JournalFixture::of(&[&[10, 20, 30]]);
    corrupt_byte(&journal.disk, &journal.frames[1], FRAME_BYTES);
    let at = journal.frames[1].position;
    let (walked, shown) = walk_all(&journal.disk, at);
    shown.assert_is(&journal.frames[..1]);
    assert_eq!((walked.end, walked.bad_frame.unwrap().1), (at, FrameError::Payload));
    let (walked, shown) = walk_all(&journal.disk, at + 1);
    assert_eq!((walked.end, shown.0.len()), (journal.end, 3));
}

#[test]
fn what_a_crash_left_of_the_last_frame_is_cut_off() {
    let journal = JournalFixture::of(&[&[10, 20], &[30, 21]]);
    let last = journal.last();
    let whole = FRAME_BYTES + 21;
    for length in 1..whole {
        let disk = journal.disk.after_kill();
        break_off(&disk, last, length);
        let (walked, shown) = walk_all(&disk, 0);
        shown.assert_is(&journal.frames[..3]);
        assert_eq!(
            (walked.end, walked.bad_frame.as_ref().unwrap().1),
            (last.position, FrameError::Short)
        );
        let bytes = disk.bytes(&last.file());
        let torn = bytes[last.at()..].iter().rposition(|byte| *byte != 0).unwrap() as u64 + 1;
        assert_eq!(walked.torn_bytes().unwrap(), torn, "{length}");
        // If the bound file says that it was synced, this is corruption; otherwise it is a torn
        // tail.
        let again = disk.after_kill();
        let damage = match finish_recovery_of(&again, last.position + 1) {
            Err(RecoverError::Corrupt(damage)) => damage,
            other => panic!("{other:?}"),
        };
        assert_eq!((damage.file, damage.position), (last.file(), last.position));
        assert_eq!((damage.synced_to, damage.reason), (last.position + 1, FrameError::Short));
        assert_eq!(again.bytes(&last.file()), bytes, "nothing was changed");
        let recovered = finish_recovery_of(&disk, last.position).unwrap();
        assert_eq!((recovered.end, recovered.torn_bytes), (last.position, torn));
        assert_eq!(recovered.last, journal.frames[2].frame.stamp);
        assert_eq!(disk.bytes(&last.file()).len(), last.at());
    }
    // The padding may be missing.
    for length in whole..=(last.end() - last.position) as usize {
        let disk = journal.disk.after_kill();
        break_off(&disk, last, length);
        let (walked, shown) = walk_all(&disk, 0);
        shown.assert_is(&journal.frames);
        assert!(walked.bad_frame.is_none() && walked.end == journal.end, "{length}");
    }
}

/// A journal that does not contradict the bound by itself is too short all the same.
#[test]
fn a_journal_that_ends_below_the_bound_s_word_is_damaged() {
    let journal = JournalFixture::of(&[&[10, 20]]);
    assert!(finish_recovery_of(&journal.disk, journal.end).is_ok());
    match finish_recovery_of(&journal.disk, journal.end + 8) {
        Err(RecoverError::Corrupt(damage)) => {
            assert_eq!((damage.file, damage.position), (segment_name(0), journal.end));
            assert_eq!((damage.synced_to, damage.reason), (journal.end + 8, FrameError::Short));
        }
        other => panic!("{other:?}"),
    }
    match finish_recovery_of(&MemoryDisk::new(), 8) {
        Err(RecoverError::Corrupt(damage)) => assert_eq!(damage.file, "(no segment)"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_segment_whose_header_is_torn_goes_unless_frames_were_written_behind_it() {
    let journal = JournalFixture::of(&[&[10, 20]]);
    let name = segment_name(journal.end);
    for length in [0, 1, SEGMENT_HEADER_BYTES as usize, SEGMENT_HEADER_BYTES as usize + 1] {
        let disk = journal.disk.after_kill();
        let file = disk.create(&name).unwrap();
        file.write_at(&mut [io::IoSlice::new(&vec![9; length])], 0).unwrap();
        disk.sync_directory().unwrap();
        let walked = walk_from(&disk, 0, Hlc::ZERO, 3);
        if length <= SEGMENT_HEADER_BYTES as usize {
            let (walked, shown) = walked.unwrap();
            shown.assert_is(&journal.frames);
            assert_eq!(walked.headerless, std::slice::from_ref(&name));
            assert!(!walked.is_empty());
            finish_recovery(&disk, walked, KnownSynced::AlsoByFrames(journal.end)).unwrap();
            assert_eq!(disk.after_crash(|_| 0).names(), [segment_name(0)]);
            continue;
        }
        for (trusted_to, synced_to) in [(3, journal.end), (journal.end + 3, journal.end + 3)] {
            match walk_from(&disk, 0, Hlc::ZERO, trusted_to) {
                Err(RecoverError::Corrupt(damage)) => {
                    let reason = FrameError::Segment;
                    let file = name.clone();
                    let expected =
                        JournalCorruption { file, position: journal.end, synced_to, reason };
                    assert_eq!(damage, expected);
                }
                other => panic!("{:?}", other.map(|(walked, _)| walked)),
            }
        }
    }
    // Alone, it is a journal that began, and not an absent one.
    let disk = MemoryDisk::new();
    disk.create(&segment_name(0)).unwrap();
    assert!(!walk_all(&disk, 0).0.is_empty());
}

#[test]
fn a_segment_that_ends_before_the_next_begins_is_short() {
    let journal = JournalFixture::of(&[&[10, 20], &[30]]);
    disk_without_last_of_first(&journal);
    let (walked, shown) = walk_all(&journal.disk, 0);
    shown.assert_is(&journal.frames[..1]);
    let (segment, reason) = walked.bad_frame.as_ref().unwrap();
    assert_eq!((segment.start, *reason), (0, FrameError::Short));
    // The next one was begun once this one was rolled, but nothing says that it was synced.
    let recovered = finish_recovery(&journal.disk, walked, KnownSynced::AlsoByFrames(0)).unwrap();
    assert_eq!(recovered.segments.len(), 1);
    assert_eq!(journal.disk.names(), [segment_name(0)]);
}

fn disk_without_last_of_first(journal: &JournalFixture) {
    break_off(&journal.disk, &journal.frames[1], 0);
}

#[test]
fn a_segment_that_goes_on_where_the_next_begins_ends_there() {
    let mut journal = JournalFixture::of(&[&[10, 20], &[30]]);
    let first = journal.frames[0].file();
    // Bytes after that in a longer file do not belong to the journal.
    let file = journal.disk.open(&first).unwrap();
    let length = file.length().unwrap();
    file.write_at(&mut [io::IoSlice::new(&[3; 500])], length).unwrap();
    let (walked, shown) = walk_all(&journal.disk, 0);
    shown.assert_is(&journal.frames);
    assert!(walked.bad_frame.is_none());
    assert_eq!(walked.limit, journal.end);
    // A segment that begins inside of a frame of the previous one truncates that.
    let inside = journal.frames[1].position + 8;
    journal.disk.remove(&journal.frames[2].file()).unwrap();
    journal.end = inside;
    journal.roll();
    let (walked, shown) = walk_all(&journal.disk, 0);
    shown.assert_is(&journal.frames[..1]);
    assert_eq!(walked.bad_frame.unwrap().1, FrameError::Short);
}

#[test]
fn zeros_behind_the_last_frame_are_not_torn_and_other_bytes_are_up_to_the_last() {
    for written in [1, 100, WINDOW_BYTES - 1, WINDOW_BYTES, WINDOW_BYTES + 1, 3 * WINDOW_BYTES] {
        let journal = JournalFixture::of(&[&[10, 20]]);
        let last = journal.last();
        let file = journal.disk.open(&last.file()).unwrap();
        let behind = (last.at() + (last.end() - last.position) as usize) as u64;
        let zeros = vec![0; 4 * WINDOW_BYTES + 17];
        file.write_at(&mut [io::IoSlice::new(&zeros)], behind).unwrap();
        assert_eq!(walk_all(&journal.disk, 0).0.torn_bytes().unwrap(), 0);
        file.write_at(&mut [io::IoSlice::new(&[1])], behind + written as u64 - 1).unwrap();
        assert_eq!(walk_all(&journal.disk, 0).0.torn_bytes().unwrap(), written as u64);
        let recovered = finish_recovery_of(&journal.disk, 0).unwrap();
        assert_eq!((recovered.end, recovered.torn_bytes), (journal.end, written as u64));
        assert_eq!(file.length().unwrap(), behind);
    }
}

/// The previous incarnation may have ended with a failed sync: what it wrote can be read, the
/// kernel takes it for clean, and it is on no disk.
#[test]
fn what_is_kept_is_on_stable_storage_whatever_became_of_the_syncs_before() {
    let lengths = [WINDOW_BYTES + 5, 10, 20];
    let journal = JournalFixture::of(&[&lengths, &lengths]);
    let disk = &journal.disk;
    for start in &journal.starts {
        disk.arm(DiskFault::SyncFails(0));
        disk.open(&segment_name(*start)).unwrap().sync().unwrap_err();
    }
    let lost = walk_all(&disk.after_crash(|_| 0), 0).1;
    assert!(lost.0.is_empty(), "nothing was on stable storage");
    let recovered = finish_recovery_of(disk, 0).unwrap();
    assert_eq!((recovered.end, recovered.torn_bytes), (journal.end, 0));
    walk_all(&disk.after_crash(|_| 0), 0).1.assert_is(&journal.frames);
    // Synced data is not written again: neither is a segment that ends where it was synced to.
    let operations = |synced_to| {
        let before = disk.operations();
        finish_recovery_of(disk, synced_to).unwrap();
        disk.operations() - before
    };
    assert!(operations(journal.starts[1]) + 2 <= operations(journal.starts[1] - 1));
    for (synced_to, segments) in
        [(journal.end, 0), (journal.end - 1, 1), (journal.starts[1] - 1, 2)]
    {
        let before = disk.operations();
        finish_recovery_of(disk, synced_to).unwrap();
        // Names and the truncation, and for each segment a write and a sync; for the last its end
        // too.
        let last_is_synced = u64::from(segments == 0);
        assert!(disk.operations() - before <= 2 + 4 * segments + last_is_synced, "{synced_to}");
    }
}

#[test]
fn on_a_full_disk_the_reserve_makes_room_to_finish_recovery() {
    for has_reserve in [true, false] {
        let journal = JournalFixture::of(&[&[10, 20]]);
        if has_reserve {
            let file = journal.disk.create(RESERVE_FILE).unwrap();
            file.write_at(&mut [io::IoSlice::new(&[0; 4096])], 0).unwrap();
        }
        journal.disk.arm(DiskFault::FullAt(journal.disk.used_bytes() - 1));
        match finish_recovery_of(&journal.disk, 0) {
            Ok(recovered) => {
                assert!(has_reserve && recovered.end == journal.end);
                assert_eq!(journal.disk.names(), [segment_name(0)]);
            }
            Err(error) => assert!(!has_reserve, "{error}"),
        }
    }
}

#[test]
fn of_a_sealed_segment_headers_are_read_up_to_its_end() {
    let journal = JournalFixture::of(&[&[10, 20, 30]]);
    corrupt_byte(&journal.disk, &journal.frames[0], FRAME_BYTES);
    let segment = Segment::open(&journal.disk, &segment_name(0), 0).unwrap().map(Arc::new).unwrap();
    let scan = |end| {
        let mut shown = VisitedFrames::default();
        scan_sealed(&segment, end, &mut shown).map(|()| shown)
    };
    let ends: Vec<u64> = journal.frames.iter().map(FixtureFrame::end).collect();
    for (nth, end) in ends.iter().enumerate() {
        assert_eq!(scan(*end).unwrap().0.len(), nth + 1);
    }
    let damage = |end| match scan(end) {
        Err(RecoverError::Corrupt(damage)) => damage,
        other => panic!("{:?}", other.map(|shown| shown.0)),
    };
    let short = |position, synced_to| {
        let reason = FrameError::Short;
        JournalCorruption { file: segment_name(0), position, synced_to, reason }
    };
    assert_eq!(damage(ends[1] + 8), short(ends[1], ends[1] + 8));
    corrupt_byte(&journal.disk, &journal.frames[1], 50);
    assert_eq!(
        damage(ends[2]),
        JournalCorruption { reason: FrameError::Header, ..short(ends[0], ends[2]) }
    );
}

/// No frame claims to be synced beyond its own position. One that claims it is forged, from payload
/// bytes.
#[test]
fn a_frame_that_knows_of_what_is_behind_it_is_not_believed() {
    let mut journal = JournalFixture::new(0);
    journal.roll();
    [10, 20].iter().for_each(|length| journal.write(*length, 0));
    journal.write(30, journal.end);
    let believed = journal.last().position;
    journal.write(30, journal.end + 8);
    corrupt_byte(&journal.disk, &journal.frames[1], 0);
    match finish_recovery_of(&journal.disk, 0) {
        Err(RecoverError::Corrupt(damage)) => {
            assert_eq!((damage.synced_to, damage.reason), (believed, FrameError::Magic));
            let message = damage.to_string();
            for place in [damage.file, format!("at position {}:", damage.position)] {
                assert!(message.contains(&place), "{message}");
            }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn another_segment_s_frames_are_none_here() {
    let journal = JournalFixture::of(&[&[10]]);
    let mut foreign = JournalFixture::new(0);
    foreign.roll();
    foreign.write(10, 0);
    let name = segment_name(0);
    let header = SegmentHeader { start: 0, salt: SALT + 1 }.encode();
    let file = foreign.disk.open(&name).unwrap();
    file.write_at(&mut [io::IoSlice::new(&header)], 0).unwrap();
    assert_eq!(journal.disk.bytes(&name)[64..], foreign.disk.bytes(&name)[64..]);
    let (walked, shown) = walk_all(&foreign.disk, 0);
    assert!(shown.0.is_empty());
    assert_eq!(walked.bad_frame.unwrap().1, FrameError::Header);
}

/// The corruption in a test.
#[derive(Clone, Debug)]
struct CorruptionCase {
    /// Lengths of payloads by segment, each with how many frames before it are not synced by its
    /// `synced_to`.
    segments: Vec<Vec<(usize, usize)>>,
    /// The corrupt frame, and the byte in it.
    frame: prop::sample::Index,
    byte: prop::sample::Index,
    /// The position below which the bound file says that everything was synced.
    bound: prop::sample::Index,
    trusted: prop::sample::Index,
}

fn corruption_case() -> impl Strategy<Value = CorruptionCase> {
    let length = prop_oneof![0_usize..40, 0_usize..400, (WINDOW_BYTES / 4)..(WINDOW_BYTES / 3)];
    let segment = prop::collection::vec((length, 0_usize..6), 1..6);
    let segments = prop::collection::vec(segment, 1..4);
    let index = any::<prop::sample::Index>;
    (segments, index(), index(), index(), index()).prop_map(
        |(segments, frame, byte, bound, trusted)| CorruptionCase {
            segments,
            frame,
            byte,
            bound,
            trusted,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// Compared with a model: a journal ends at its first bad frame, and is corrupt if anything
    /// says that this was on stable storage.
    #[test]
    fn a_journal_with_a_damaged_byte_ends_there_or_is_refused(how in corruption_case()) {
        let mut journal = JournalFixture::new(0);
        for lengths in &how.segments {
            journal.roll();
            for (length, behind) in lengths {
                let known = journal.frames.len().saturating_sub(*behind);
                let synced_to = journal.frames.get(known).map_or(journal.end, |known| known.position);
                journal.write(*length, synced_to);
            }
        }
        let nth = how.frame.index(journal.frames.len());
        let bad = journal.frames[nth].clone();
        let at = how.byte.index((bad.end() - bad.position) as usize);
        let bound = how.bound.index(nth + 1);
        let bound = journal.frames[bound].position;
        let trusted_to = how.trusted.index(journal.end as usize + 1) as u64;
        for start in &journal.starts {
            journal.disk.open(&segment_name(*start)).unwrap().sync().unwrap();
        }
        corrupt_byte(&journal.disk, &bad, at);

        let hit = CorruptionTarget::of(&bad.frame, at);
        let reason = match hit {
            CorruptionTarget::Magic => Some(FrameError::Magic),
            CorruptionTarget::Header => Some(FrameError::Header),
            CorruptionTarget::Payload if bad.position >= trusted_to => Some(FrameError::Payload),
            CorruptionTarget::Payload | CorruptionTarget::Padding => None,
        };
        let (walked, shown) = walk_all(&journal.disk, trusted_to);
        let Some(reason) = reason else {
            prop_assert_eq!(shown.0.len(), journal.frames.len());
            prop_assert!(walked.bad_frame.is_none());
            return Ok(());
        };
        let (whole, behind) = (&journal.frames[..nth], &journal.frames[nth + 1..]);
        shown.assert_is(whole);
        prop_assert_eq!((walked.end, walked.bad_frame.as_ref().unwrap().1), (bad.position, reason));
        let of_itself = if hit == CorruptionTarget::Payload { bad.frame.synced_to } else { 0 };
        let known = behind.iter().map(|placed| placed.frame.synced_to).max().unwrap_or(0);
        let known = known.max(of_itself).max(bound);
        match finish_recovery(&journal.disk, walked, KnownSynced::AlsoByFrames(bound)) {
            Ok(recovered) => {
                prop_assert!(known <= bad.position);
                prop_assert_eq!(recovered.end, bad.position);
                let left = journal.disk.after_crash(|_| 0);
                let (walked, shown) = walk_all(&left, 0);
                shown.assert_is(whole);
                prop_assert!(walked.bad_frame.is_none());
                let stay = journal.starts.iter().filter(|start| **start <= bad.position).count();
                prop_assert_eq!((left.names().len(), recovered.segments.len()), (stay, stay));
            }
            Err(RecoverError::Corrupt(damage)) => {
                prop_assert!(known > bad.position);
                let expected =
                    JournalCorruption { file: bad.file(), position: bad.position, synced_to: known, reason };
                prop_assert_eq!(damage, expected);
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}
