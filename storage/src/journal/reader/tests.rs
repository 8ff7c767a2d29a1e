use proptest::prelude::*;

use super::super::fixture::{CorruptionTarget, FixtureFrame, JournalFixture, SALT};
use super::super::frame::padded;
use super::super::segment::{SEGMENT_HEADER_BYTES, segment_name};
use super::*;

/// The position at which the first segment of the journals here begins.
const START: u64 = 4096;

fn journal(lengths: &[usize]) -> JournalFixture {
    let mut journal = JournalFixture::new(START);
    journal.roll();
    lengths.iter().for_each(|length| journal.write(*length, 0));
    journal
}

fn reader(journal: &JournalFixture, span: Range<u64>) -> FrameReader {
    let file = StorageFile::open(&journal.disk, &segment_name(START)).unwrap();
    let at = span.start - START + SEGMENT_HEADER_BYTES;
    FrameReader::new(file, span, at)
}

/// All items, with the beginning of each payload.
fn read(mut reader: FrameReader) -> Vec<(JournalScanItem, Vec<u8>)> {
    let mut items = Vec::new();
    while let Some(next) = reader.next_item().unwrap() {
        let shown = if matches!(next, JournalScanItem::Frame(_)) {
            reader.payload_preview().to_vec()
        } else {
            Vec::new()
        };
        items.push((next, shown));
    }
    assert!(reader.next_item().unwrap().is_none(), "the end stays the end");
    items
}

fn whole(placed: &FixtureFrame) -> (JournalScanItem, Vec<u8>) {
    let header = placed.frame.encode_salted(placed.position, SALT);
    let (position, frame) = (placed.position, placed.frame);
    let shown = placed.payload[..placed.payload.len().min(PAYLOAD_PREVIEW_BYTES_MAX)].to_vec();
    let payload_is_whole = true;
    (
        JournalScanItem::Frame(ScannedFrame {
            position,
            header,
            frame,
            payload_is_whole,
            leaf: None,
        }),
        shown,
    )
}

fn corrupt(position: u64, until: u64, reason: FrameError) -> (JournalScanItem, Vec<u8>) {
    (JournalScanItem::Corrupt { position, until, reason }, Vec::new())
}

/// Long enough that chunks end within headers and payloads.
const LENGTHS: [usize; 9] =
    [0, 1, 255, 256, 257, CHUNK_BYTES - 100, 10, CHUNK_BYTES + 1, 3 * CHUNK_BYTES];

#[test]
fn all_frames_are_found_and_how_their_payloads_begin() {
    let journal = journal(&LENGTHS);
    let expected: Vec<_> = journal.frames.iter().map(whole).collect();
    assert_eq!(read(reader(&journal, START..journal.end)), expected);
    // From any frame, up to any other.
    let span = journal.frames[3].position..journal.frames[6].end();
    assert_eq!(read(reader(&journal, span)), expected[3..=6]);
    assert!(read(reader(&journal, START..START)).is_empty());
}

#[test]
fn leaves_are_those_of_the_headers_and_payloads() {
    let journal = journal(&[0, 10, CHUNK_BYTES + 1]);
    let items = read(reader(&journal, START..journal.end).with_leaves());
    for ((item, _), placed) in items.iter().zip(&journal.frames) {
        let JournalScanItem::Frame(frame) = item else { panic!("{item:?}") };
        let mut hasher = LeafHasher::default();
        hasher.payload(&placed.payload);
        assert_eq!(frame.leaf, Some(hasher.leaf(placed.position, &frame.header)));
    }
    assert_eq!(items.len(), 3);
}

/// An incomplete payload leaves nothing behind in the leaf of another frame.
#[test]
fn a_payload_that_breaks_off_is_in_no_leaf() {
    let journal = journal(&[10, 20]);
    let (first, second) = (&journal.frames[0], &journal.frames[1]);
    let name = second.file();
    journal.disk.truncate_file(&name, second.at() + FRAME_BYTES + 5);
    let mut chunks = FrameChunkReader::new(StorageFile::open(&journal.disk, &name).unwrap(), true);
    let mut payload = |placed: &FixtureFrame| {
        let header = placed.frame.encode(placed.position);
        let at = (placed.at() + FRAME_BYTES) as u64;
        let go_on = &mut |_| ControlFlow::Continue(());
        chunks.payload(at, placed.position, header, placed.frame, go_on).unwrap()
    };
    assert_eq!(payload(second), Err(FrameError::Short));
    let mut hasher = LeafHasher::default();
    hasher.payload(&first.payload);
    let leaf = hasher.leaf(first.position, &first.frame.encode(first.position));
    assert_eq!(payload(first).unwrap().leaf, Some(leaf));
}

#[test]
fn a_frame_that_goes_beyond_the_span_or_the_file_is_short() {
    let journal = journal(&[10, 21]);
    let (first, last) = (whole(&journal.frames[0]), journal.last());
    for missing in 1..FRAME_BYTES as u64 + padded(21) {
        let end = journal.end - missing;
        let items = read(reader(&journal, START..end));
        // Its padding may be missing.
        let is_whole = end >= last.frame.payload_end(last.position);
        let rest =
            if is_whole { whole(last) } else { corrupt(last.position, end, FrameError::Short) };
        assert_eq!(items, [first.clone(), rest], "{missing}");
    }
    for missing in 4..FRAME_BYTES + 24 {
        let file_end = last.at() + FRAME_BYTES + 24 - missing;
        journal.disk.truncate_file(&last.file(), file_end);
        let items = read(reader(&journal, START..journal.end));
        let rest = corrupt(last.position, journal.end, FrameError::Short);
        assert_eq!(items, [first.clone(), rest], "{missing}");
    }
}

/// Its header may look like none, or like another frame's: that does not matter.
#[test]
fn of_a_frame_that_ends_within_its_header_nothing_is_said_but_that() {
    let journal = journal(&[10, 21]);
    let (first, last) = (whole(&journal.frames[0]), journal.last());
    journal.disk.corrupt(&last.file(), last.at(), 1);
    for length in 1..FRAME_BYTES as u64 {
        let end = last.position + length;
        let expected = [first.clone(), corrupt(last.position, end, FrameError::Short)];
        assert_eq!(read(reader(&journal, START..end)), expected, "{length}");
    }
}

#[test]
fn the_frame_behind_a_damaged_one_is_found_however_long_that_was() {
    for length in [CHUNK_BYTES - 200, CHUNK_BYTES, 3 * CHUNK_BYTES + 77] {
        let journal = journal(&[10, length, 20]);
        let [first, second, third] = &journal.frames[..] else { panic!("three frames") };
        journal.disk.corrupt(&second.file(), second.at() + 30, 1);
        let lost = corrupt(second.position, third.position, FrameError::Header);
        assert_eq!(read(reader(&journal, START..journal.end)), [whole(first), lost, whole(third)]);
    }
}

#[test]
fn progress_is_told_of_all_bytes_and_can_end_it() {
    let journal = journal(&[CHUNK_BYTES, CHUNK_BYTES, 10]);
    let length = journal.disk.bytes(&segment_name(START)).len() as u64;
    let (mut reported, mut chunks) = (0, 0);
    let mut all = reader(&journal, START..journal.end);
    let mut progress = |bytes| {
        (reported, chunks) = (reported + bytes, chunks + 1);
        ControlFlow::Continue(())
    };
    while all.next_item_with(&mut progress).unwrap().is_some() {}
    assert!(
        (length..length + 3 * BLOCK_BYTES as u64).contains(&reported),
        "{reported} of {length}"
    );
    assert_eq!(chunks, 3, "each byte is read once, but for blocks at the seams");
    let mut ended = reader(&journal, START..journal.end);
    let error = ended.next_item_with(&mut |_| ControlFlow::Break(())).unwrap_err();
    assert!(matches!(error, StorageError::Interrupted), "{error}");
}

/// Bytes in a payload that merely look like a frame do not end corruption: their position differs.
#[test]
fn a_copy_of_a_frame_in_a_payload_is_none() {
    let mut journal = journal(&[10]);
    let first = journal.frames[0].clone();
    let copy = first.frame.encode(first.position);
    let payload = [&copy[..], &[1; 40]].concat();
    let frame = FrameHeader {
        length: payload.len() as u32,
        payload_crc: crc32c::crc32c(&payload),
        ..first.frame
    };
    journal.put(frame, payload);
    journal.write(5, 0);
    let [_, second, third] = &journal.frames[..] else { panic!("three frames") };
    journal.disk.corrupt(&second.file(), second.at() + 20, 1);
    let expected =
        [whole(&first), corrupt(second.position, third.position, FrameError::Header), whole(third)];
    assert_eq!(read(reader(&journal, START..journal.end)), expected);
}

fn length() -> impl Strategy<Value = usize> {
    prop_oneof![12 => 0_usize..20, 12 => 0_usize..600, 1 => 1_000_000_usize..1_100_000]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn every_frame_is_found_whose_header_is_whole_whatever_else_is_damaged(
        lengths in prop::collection::vec(length(), 1..9),
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
    ) {
        let journal = journal(&lengths);
        let mut headers = vec![None; lengths.len()];
        let mut payloads = vec![false; lengths.len()];
        let mut bytes = std::collections::BTreeSet::new();
        for (nth, byte) in hits {
            let nth = nth.index(lengths.len());
            let placed = &journal.frames[nth];
            let at = byte.index((placed.end() - placed.position) as usize);
            if !bytes.insert((nth, at)) {
                continue;
            }
            journal.disk.corrupt(&placed.file(), placed.at() + at, 0x20);
            match CorruptionTarget::of(&placed.frame, at) {
                CorruptionTarget::Magic => headers[nth] = Some(FrameError::Magic),
                CorruptionTarget::Header => _ = headers[nth].get_or_insert(FrameError::Header),
                CorruptionTarget::Payload => payloads[nth] = true,
                CorruptionTarget::Padding => {}
            }
        }
        let mut expected: Vec<(JournalScanItem, Vec<u8>)> = Vec::new();
        for (nth, placed) in journal.frames.iter().enumerate() {
            match (headers[nth], expected.last_mut()) {
                (None, _) => {
                    let (mut found, mut shown) = whole(placed);
                    if let JournalScanItem::Frame(found) = &mut found {
                        found.payload_is_whole = !payloads[nth];
                    }
                    for (_, at) in bytes.range((nth, FRAME_BYTES)..(nth, FRAME_BYTES + shown.len())) {
                        shown[at - FRAME_BYTES] ^= 0x20;
                    }
                    expected.push((found, shown));
                }
                (Some(_), Some((JournalScanItem::Corrupt { until, .. }, _))) => *until = placed.end(),
                (Some(reason), _) => expected.push(corrupt(placed.position, placed.end(), reason)),
            }
        }
        prop_assert!(read(reader(&journal, START..journal.end)) == expected);
    }
}
