//! G15, F41: a verification names history that was changed, frame by frame, even if the attacker
//! corrected all checksums. A check goes on after a corrupt place.

use std::io::IoSlice;
use std::ops::{ControlFlow, Range};

use storage::check::{ChangedFrame, CheckReport, FrameChange, VerificationReport};
use storage::disk::{Disk, DiskFault, MemoryDisk};
use storage::journal::{
    FRAME_BYTES, FrameHeader, FrameReader, JournalScanItem, SEGMENT_HEADER_BYTES, ScannedFrame,
    segment_name,
};
use storage::proof::{
    Digest, PROOF_HEADER_BYTES, ProofHeader, ProofLocation, SigningKey, chain_before, proof_name,
    write_proof,
};
use storage::{Durability, LogId, Offset, Options, StorageFile};
use testkit::store::{StoreFixture, append, append_with_header, manual_clock};

const HEADER: usize = SEGMENT_HEADER_BYTES as usize;
/// Payloads are a multiple of 8 long, so that no byte of a frame is padding.
const PAYLOAD: usize = 400;
const FRAME: usize = FRAME_BYTES + PAYLOAD;
const PER_SEGMENT: usize = 8;

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn spans(disk: &MemoryDisk) -> Vec<Range<u64>> {
    let names = disk.list().unwrap();
    let mut starts: Vec<u64> = names
        .iter()
        .filter_map(|name| name.strip_suffix(".journal"))
        .map(|digits| digits.parse().unwrap())
        .collect();
    starts.sort_unstable();
    starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

/// The header of the only proof in a file.
fn proof_header(disk: &MemoryDisk, name: &str) -> ProofHeader {
    let placed = ProofLocation::read_all(&StorageFile::open(disk, name).unwrap()).unwrap();
    assert_eq!(placed.len(), 1);
    placed[0].header
}

fn prove(disk: &MemoryDisk, key: Option<&SigningKey>) {
    for span in spans(disk) {
        let before = chain_before(disk, span.start).unwrap().unwrap();
        write_proof(disk, span, before, key, &mut |_| ControlFlow::Continue(())).unwrap();
    }
}

/// Nothing is indexed and sorted before a test requests it.
fn options() -> Options {
    let segment_bytes_max = (FRAME * PER_SEGMENT) as u64;
    Options { segment_bytes_max, manual_maintenance: true, ..Options::default() }
}

/// Three sealed segments of eight frames each and one that is open; the store is closed in order.
fn a_store() -> MemoryDisk {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for index in 0..PER_SEGMENT as u8 * 3 + 2 {
        let append = append(u64::from(index % 3), &[index; PAYLOAD]);
        fixture.append(vec![append], Durability::Synced).remove(0).unwrap();
    }
    fixture.store.close();
    assert_eq!(spans(&disk).len(), 3);
    disk
}

fn a_proved_store() -> MemoryDisk {
    let disk = a_store();
    prove(&disk, Some(&key()));
    let report = verified(&disk);
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(verification(&report).verified(), 24);
    disk
}

fn verified(disk: &MemoryDisk) -> CheckReport {
    storage::check::verify(disk, &[key().verifying_key()], &mut |_| {}).unwrap()
}

fn verification(report: &CheckReport) -> &VerificationReport {
    report.verification.as_ref().unwrap()
}

/// The position of frame `index` of segment `segment`.
fn position(segment: usize, index: usize) -> u64 {
    ((segment * PER_SEGMENT + index) * FRAME) as u64
}

fn replace(disk: &MemoryDisk, name: &str, bytes: &[u8]) {
    disk.remove(name).unwrap();
    disk.create(name).unwrap().write_at(&mut [IoSlice::new(bytes)], 0).unwrap();
}

/// Frame `index` of segment `segment`, and the rest of the file.
struct FrameForgery<'a> {
    disk: &'a MemoryDisk,
    name: String,
    bytes: Vec<u8>,
    at: usize,
    position: u64,
}

impl<'a> FrameForgery<'a> {
    fn of(disk: &'a MemoryDisk, segment: usize, index: usize) -> FrameForgery<'a> {
        let name = segment_name(position(segment, 0));
        let bytes = disk.bytes(&name);
        let position = position(segment, index);
        FrameForgery { disk, name, bytes, at: HEADER + index * FRAME, position }
    }

    fn frame(&self) -> &[u8] {
        &self.bytes[self.at..self.at + FRAME]
    }

    fn frame_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..self.at + FRAME]
    }

    /// Corrects both checksums.
    fn make_whole(&mut self) {
        let position = self.position;
        let frame = self.frame_mut();
        let length = u32::from_le_bytes(frame[8..12].try_into().unwrap()) as usize;
        let payload = &frame[FRAME_BYTES..(FRAME_BYTES + length).min(FRAME)];
        let crc = crc32c::crc32c(payload);
        frame[12..16].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c::crc32c(&position.to_le_bytes());
        let crc = crc32c::crc32c_append(crc, &frame[8..FRAME_BYTES]);
        frame[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    fn put(&self) {
        replace(self.disk, &self.name, &self.bytes);
    }
}

#[test]
fn g15_one_flipped_byte_of_any_part_of_a_frame_is_named_although_the_checksums_match() {
    let good = a_proved_store();
    for at in (0..FRAME_BYTES).chain([FRAME_BYTES, FRAME_BYTES + 177, FRAME - 1]) {
        // The last frame but one, so that a longer payload still fits before the segment's end.
        let (segment, index) = (1, PER_SEGMENT - 2);
        let disk = good.after_kill();
        let mut forgery = FrameForgery::of(&disk, segment, index);
        forgery.frame_mut()[at] ^= 0x08;
        // A checksum that is itself changed is not corrected.
        if at != 4 && at != 5 && at != 6 && at != 7 && !(12..16).contains(&at) {
            forgery.make_whole();
        }
        let reads =
            FrameHeader::decode(forgery.frame().first_chunk().unwrap(), forgery.position).is_ok();
        forgery.put();
        let report = verified(&disk);
        let verification = verification(&report);
        let changed = verification.first_changed().unwrap_or_else(|| panic!("byte {at}"));
        assert_eq!(changed.position, position(segment, index), "byte {at}");
        assert_eq!(changed.file, segment_name(position(segment, 0)), "byte {at}");
        // A length that leads out of the segment leaves nothing to read there.
        let is_seen = reads && changed.change == FrameChange::Altered;
        assert_eq!(changed.current_header.is_some(), is_seen, "byte {at}: {changed}");
        let is_named = report.problems.iter().any(|problem| {
            problem.contains("history was changed")
                && problem.contains(&format!("at position {}", changed.position))
        });
        assert!(is_named, "byte {at}: {:?}", report.problems);
        // The other segments are verified nevertheless.
        let counts: Vec<u64> = verification.proofs.iter().map(|proof| proof.verified).collect();
        assert_eq!((counts[0], counts[2]), (8, 8), "byte {at}");
        assert!(counts[1] >= 6, "byte {at}: {counts:?}");
    }
}

#[test]
fn g15_the_first_of_several_changed_frames_is_named_with_log_offset_and_stamp() {
    let disk = a_proved_store();
    for index in [5, 2, 6] {
        let mut forgery = FrameForgery::of(&disk, 2, index);
        forgery.frame_mut()[FRAME_BYTES + 9] ^= 1;
        forgery.make_whole();
        forgery.put();
    }
    let report = verified(&disk);
    let verdict = &verification(&report).proofs[2];
    assert_eq!((verdict.verified, verdict.changed), (5, 3));
    // Frame 18 of all: the seventh of log 0.
    let ChangedFrame { position: at, change, current_header: named_header, .. } =
        verdict.first_changed.as_ref().unwrap();
    assert_eq!((*at, *change), (position(2, 2), FrameChange::Altered));
    let (log, offset, stamp) = named_header.unwrap();
    assert_eq!((log.0, offset.0), (0, 6));
    let problem = report.problems.iter().find(|problem| problem.contains("changed")).unwrap();
    assert!(problem.contains("log 0, offset 6, accepted at "), "{problem}");
    assert!(problem.contains(&stamp.to_string()) && problem.contains("2 more"), "{problem}");
}

#[test]
fn f41_two_frames_that_change_places_are_both_noticed() {
    let disk = a_proved_store();
    let (mut first, second) = (FrameForgery::of(&disk, 0, 3), FrameForgery::of(&disk, 0, 4));
    let (first_frame, second_frame) = (first.frame().to_vec(), second.frame().to_vec());
    first.frame_mut().copy_from_slice(&second_frame);
    first.make_whole();
    first.put();
    let mut second = FrameForgery::of(&disk, 0, 4);
    second.frame_mut().copy_from_slice(&first_frame);
    second.make_whole();
    second.put();
    let report = verified(&disk);
    let verdict = &verification(&report).proofs[0];
    assert_eq!((verdict.verified, verdict.changed), (6, 2));
    assert_eq!(verdict.first_changed.as_ref().unwrap().position, position(0, 3));
}

#[test]
fn f41_frames_that_were_taken_out_or_put_in_are_noticed() {
    let good = a_proved_store();
    // Removed: the bytes of two frames become one frame's payload.
    let disk = good.after_kill();
    let mut forgery = FrameForgery::of(&disk, 0, 6);
    let length = (FRAME + PAYLOAD) as u32;
    let (position_6, at) = (forgery.position, forgery.at);
    let bytes = &mut forgery.bytes;
    bytes[at + 8..at + 12].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[at + FRAME_BYTES..at + 2 * FRAME]);
    bytes[at + 12..at + 16].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&position_6.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &bytes[at + 8..at + FRAME_BYTES]);
    bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
    forgery.put();
    let verdict = verification(&verified(&disk)).proofs[0].clone();
    assert_eq!((verdict.verified, verdict.changed), (6, 2), "one altered, one missing");
    assert_eq!(verdict.first_changed.unwrap().position, position(0, 6));
    // Inserted: a frame inside of what was another's payload.
    let disk = good.after_kill();
    let mut forgery = FrameForgery::of(&disk, 0, 6);
    let inner = forgery.position + 240;
    let mut frame =
        FrameHeader::decode(forgery.frame().first_chunk().unwrap(), forgery.position).unwrap();
    frame.length = 160;
    let short = frame.encode(forgery.position);
    forgery.frame_mut()[..FRAME_BYTES].copy_from_slice(&short);
    let second = frame.encode(inner);
    forgery.frame_mut()[240..240 + FRAME_BYTES].copy_from_slice(&second);
    forgery.put();
    let verdict = verification(&verified(&disk)).proofs[0].clone();
    assert_eq!((verdict.verified, verdict.changed), (7, 2), "one altered, one added");
    assert_eq!(verdict.first_changed.unwrap().position, position(0, 6));
}

#[test]
fn f41_a_segment_forged_with_its_proof_is_told_by_the_signature_and_by_the_next_proof() {
    let good = a_proved_store();
    for forger in [None, Some(SigningKey::from_bytes(&[8; 32]))] {
        let disk = good.after_kill();
        let mut forgery = FrameForgery::of(&disk, 1, 0);
        forgery.frame_mut()[FRAME_BYTES] ^= 1;
        forgery.make_whole();
        forgery.put();
        let span = spans(&disk)[1].clone();
        let before = chain_before(&disk, span.start).unwrap().unwrap();
        let go_on = &mut |_| ControlFlow::Continue(());
        write_proof(&disk, span.clone(), before, forger.as_ref(), go_on).unwrap();
        let report = verified(&disk);
        assert_eq!(verification(&report).first_changed(), None, "leaves alone do not tell");
        let faults = &verification(&report).proofs[1].faults;
        let word = if forger.is_some() { "another key" } else { "not signed" };
        assert!(faults.iter().any(|fault| fault.contains(word)), "{faults:?}");
        let next = &verification(&report).proofs[2].faults;
        assert!(next.iter().any(|fault| fault.contains("does not continue")), "{next:?}");
        let is_named = |file: &str| report.problems.iter().any(|problem| problem.starts_with(file));
        assert!(is_named(&proof_name(span.start)) && is_named(&proof_name(span.end)));
        // Without a key, the chain still shows it, until all later proofs are forged too.
        let without = storage::check::verify(&disk, &[], &mut |_| {}).unwrap();
        assert_eq!(without.problems.len(), 1, "{:?}", without.problems);
    }
}

#[test]
fn f41_the_whole_history_forged_with_the_right_fields_and_a_copied_signature_is_noticed() {
    let disk = a_proved_store();
    let signed: Vec<ProofHeader> =
        spans(&disk).iter().map(|span| proof_header(&disk, &proof_name(span.start))).collect();
    let mut forgery = FrameForgery::of(&disk, 0, 0);
    forgery.frame_mut()[FRAME_BYTES] ^= 1;
    forgery.make_whole();
    forgery.put();
    prove(&disk, None);
    for (span, signed) in spans(&disk).iter().zip(signed) {
        let name = proof_name(span.start);
        let mut header = proof_header(&disk, &name);
        header.signature = signed.signature;
        let mut bytes = disk.bytes(&name);
        bytes[..PROOF_HEADER_BYTES].copy_from_slice(&header.encode());
        replace(&disk, &name, &bytes);
    }
    for keys in [&[][..], &[key().verifying_key()]] {
        let report = storage::check::verify(&disk, keys, &mut |_| {}).unwrap();
        assert_eq!(report.problems.len(), 3, "{:?}", report.problems);
        for problem in report.problems {
            assert!(problem.contains("signature does not match"), "{problem}");
        }
    }
}

#[test]
fn f41_a_proof_that_is_cut_off_unfinished_damaged_or_gone_is_named() {
    let good = a_proved_store();
    let name = proof_name(position(1, 0));
    let bytes = good.bytes(&name);
    let unfinished = [&[0; PROOF_HEADER_BYTES][..], &bytes[PROOF_HEADER_BYTES..]].concat();
    let mut corrupt = bytes.clone();
    corrupt[500] ^= 4;
    let short = bytes[..bytes.len() - 1].to_vec();
    for bad in [short, bytes[..100].to_vec(), vec![], unfinished, corrupt] {
        let disk = good.after_kill();
        replace(&disk, &name, &bad);
        let report = verified(&disk);
        let problems = &report.problems;
        assert!(problems.iter().any(|problem| problem.contains(&name)), "{problems:?}");
        assert_eq!(verification(&report).verified(), 16);
    }
    let disk = good.after_kill();
    disk.remove(&name).unwrap();
    let problems = verified(&disk).problems;
    let segment = segment_name(position(1, 0));
    assert!(problems.iter().any(|problem| problem.contains(&segment)), "{problems:?}");
    // The newest may be missing, because proofs are written after segments are rolled; that is
    // reported.
    let disk = good.after_kill();
    let newest = proof_name(position(2, 0));
    for unfinished in [true, false] {
        if unfinished {
            replace(&disk, &newest, &[0; 5000]);
        } else {
            disk.remove(&newest).unwrap();
        }
        let report = verified(&disk);
        assert_eq!(report.problems, [""; 0]);
        assert_eq!(verification(&report).unproved, [segment_name(position(2, 0))]);
    }
    // But with a key, signatures are expected.
    for start in [0, position(1, 0)] {
        disk.remove(&proof_name(start)).unwrap();
    }
    assert_eq!(verified(&disk).problems.len(), 1);
    assert_eq!(storage::check::verify(&disk, &[], &mut |_| {}).unwrap().problems, [""; 0]);
}

#[test]
fn f41_a_proof_of_another_segment_does_not_do() {
    let disk = a_proved_store();
    let other = disk.bytes(&proof_name(position(2, 0)));
    replace(&disk, &proof_name(position(1, 0)), &other);
    let problems = verified(&disk).problems;
    assert!(problems.iter().any(|problem| problem.contains("another segment")), "{problems:?}");
}

#[test]
fn the_wrong_key_is_named_for_every_proof_and_no_key_accepts_what_is_whole() {
    let disk = a_proved_store();
    let stranger = SigningKey::from_bytes(&[8; 32]).verifying_key();
    let report = storage::check::verify(&disk, &[stranger], &mut |_| {}).unwrap();
    assert_eq!(report.problems.len(), 3, "{:?}", report.problems);
    let public = Digest(key().verifying_key().to_bytes()).to_string();
    assert!(report.problems.iter().all(|problem| problem.contains(&public)));
    // Keys may be replaced: any of the given keys is accepted.
    let both = [stranger, key().verifying_key()];
    assert_eq!(storage::check::verify(&disk, &both, &mut |_| {}).unwrap().problems, [""; 0]);
    let disk = a_store();
    prove(&disk, None);
    let report = storage::check::verify(&disk, &[], &mut |_| {}).unwrap();
    assert_eq!(report.problems, [""; 0]);
    let head = verification(&report).chain_head().unwrap();
    assert_eq!(head.0, position(3, 0));
    assert_ne!(head.1, Digest::BIRTH);
    let unsigned = verified(&disk).problems;
    assert_eq!(unsigned.len(), 3, "{unsigned:?}");
}

#[test]
fn a_check_goes_on_behind_corruption_and_names_every_place() {
    let disk = a_store();
    // A header, a payload, a magic number, in three segments; and a whole range.
    let header = position(0, 2);
    let payload = position(1, 5);
    let magic = position(2, 7);
    let stretch = position(1, 1)..position(1, 3);
    for (segment, at, bytes) in [(0, header + 20, 1), (1, payload + 100, 1), (2, magic, 1)] {
        let at = (at - position(segment, 0)) as usize + HEADER;
        for index in 0..bytes {
            disk.corrupt(&segment_name(position(segment, 0)), at + index, 0x10);
        }
    }
    let at = (stretch.start - position(1, 0)) as usize + HEADER;
    for index in 0..2 * FRAME {
        disk.corrupt(&segment_name(position(1, 0)), at + index, 0xff);
    }
    let report = storage::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!((report.frames, report.segments), (26 - 5, 4));
    assert_eq!(report.torn_bytes, 0);
    let places = [header, stretch.start, payload, magic];
    assert_eq!(report.problems.len(), places.len(), "{:?}", report.problems);
    for (problem, place) in report.problems.iter().zip(places) {
        let expected = format!("at position {place}:");
        assert!(problem.contains(&expected) && problem.contains(".journal"), "{problem}");
    }
}

#[test]
fn a_segment_that_is_gone_is_a_problem_and_the_others_are_read() {
    let disk = a_store();
    disk.remove(&segment_name(position(1, 0))).unwrap();
    let report = storage::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!((report.frames, report.problems.len()), (18, 1));
    assert!(report.problems[0].contains(&segment_name(0)), "{:?}", report.problems);
    let disk = a_store();
    disk.remove(&segment_name(0)).unwrap();
    let report = storage::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!((report.frames, report.problems.len()), (18, 1));
    assert!(report.problems[0].contains("follow one another"), "{:?}", report.problems);
}

#[test]
fn a_reader_finds_every_frame_behind_any_corruption_and_says_what_lies_between() {
    let disk = a_store();
    let name = segment_name(0);
    let good = disk.bytes(&name);
    let span = spans(&disk)[0].clone();
    let read = |bytes: &[u8]| {
        replace(&disk, &name, bytes);
        let file = StorageFile::open(&disk, &name).unwrap();
        let mut frames = FrameReader::new(file, span.clone(), SEGMENT_HEADER_BYTES);
        let mut all = Vec::new();
        while let Some(item) = frames.next_item().unwrap() {
            all.push(item);
        }
        all
    };
    for at in (HEADER..good.len()).step_by(13) {
        let mut bad = good.clone();
        bad[at] ^= 0x20;
        let all = read(&bad);
        // The items cover the segment without a gap.
        let mut position = span.start;
        for item in &all {
            let (from, to) = match item {
                JournalScanItem::Frame(ScannedFrame { position, frame, .. }) => {
                    (*position, frame.end(*position))
                }
                JournalScanItem::Corrupt { position, until, .. } => (*position, *until),
            };
            assert_eq!(from, position, "byte {at}");
            position = to;
        }
        assert_eq!(position, span.end, "byte {at}");
        let whole = all
            .iter()
            .filter(|item| matches!(item, JournalScanItem::Frame(frame) if frame.payload_is_whole));
        assert_eq!(whole.count(), PER_SEGMENT - 1, "byte {at}");
    }
}

fn has(disk: &MemoryDisk, ending: &str) -> Vec<String> {
    let mut names = disk.list().unwrap();
    names.retain(|name| name.ends_with(ending));
    names.sort();
    names
}

/// A proved store whose sealed segments were sorted since.
fn a_sorted_store() -> MemoryDisk {
    let disk = a_proved_store();
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
    fixture.store.run_maintenance().unwrap();
    fixture.store.close();
    assert_eq!((has(&disk, ".sorted").len(), has(&disk, ".proof").len()), (3, 3));
    disk
}

/// The index of the header of the first frame of a sorted segment.
fn first_frame(filed: &[u8]) -> usize {
    filed.windows(4).position(|word| word == b"FFJ1").unwrap()
}

/// Corrects all checksums of a frame in a sorted segment; its position is the one in front of it.
fn make_sorted_whole(filed: &mut [u8], at: usize) {
    let crc = crc32c::crc32c(&filed[at + FRAME_BYTES..at + FRAME]);
    filed[at + 12..at + 16].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&filed[at - 32..at - 24]);
    let crc = crc32c::crc32c_append(crc, &filed[at + 8..at + FRAME_BYTES]);
    filed[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&filed[at - 32..at - 8]);
    let crc = crc32c::crc32c_append(crc, &filed[at..at + 8]);
    filed[at - 8..at - 4].copy_from_slice(&crc.to_le_bytes());
}

/// Changes the first frame of a sorted segment, with its checksums.
fn forge_sorted(disk: &MemoryDisk, nth: usize) -> String {
    let name = has(disk, ".sorted").remove(nth);
    let mut bytes = disk.bytes(&name);
    let at = first_frame(&bytes);
    bytes[at + FRAME_BYTES] ^= 1;
    make_sorted_whole(&mut bytes, at);
    replace(disk, &name, &bytes);
    name
}

/// The problems that a verification reports and a check does not.
fn said(disk: &MemoryDisk, keys: bool) -> Vec<String> {
    let checked = storage::check::check(disk, &mut |_| {}).unwrap().problems;
    let keys = if keys { vec![key().verifying_key()] } else { Vec::new() };
    let mut problems = storage::check::verify(disk, &keys, &mut |_| {}).unwrap().problems;
    problems.retain(|problem| !checked.contains(problem));
    problems
}

/// A segment is proved before it is sorted: removing the proof hides nothing.
#[test]
fn f41_a_sorted_segment_whose_proof_was_taken_away_is_named_whichever_it_is() {
    for keys in [false, true] {
        // The oldest, the newest, and all.
        for removed in [0..1, 2..3, 0..2, 1..3, 0..3] {
            let disk = a_sorted_store();
            let proofs = has(&disk, ".proof");
            let names: Vec<String> = removed.clone().map(|nth| forge_sorted(&disk, nth)).collect();
            proofs[removed.clone()].iter().for_each(|name| disk.remove(name).unwrap());
            let problems = said(&disk, keys);
            for name in names {
                let is_named = problems.iter().any(|problem| problem.contains(&name));
                assert!(is_named, "{removed:?}, {name}: {problems:?}");
            }
        }
        // A proof that looks unfinished.
        let disk = a_sorted_store();
        let name = forge_sorted(&disk, 2);
        let proof = has(&disk, ".proof").remove(2);
        let bytes = disk.bytes(&proof);
        replace(&disk, &proof, &vec![0; bytes.len()]);
        let problems = said(&disk, keys);
        assert!(problems.iter().any(|problem| problem.contains(&name)), "{problems:?}");
    }
}

#[test]
fn f41_a_sorted_frame_that_claims_to_come_from_where_no_proof_reaches_is_named() {
    let disk = a_sorted_store();
    let name = &has(&disk, ".sorted")[1];
    let good = disk.bytes(name);
    let at = first_frame(&good);
    for position in [1_u64 << 40, position(3, 0), position(0, 1)] {
        let mut bad = good.clone();
        bad[at - 32..at - 24].copy_from_slice(&position.to_le_bytes());
        bad[at + FRAME_BYTES] ^= 1;
        make_sorted_whole(&mut bad, at);
        replace(&disk, name, &bad);
        let problems = verified(&disk).problems;
        let expected =
            format!("{name} has a frame of another range of the journal, at position {position}:");
        assert!(problems.iter().any(|problem| problem.contains(&expected)), "{problems:?}");
    }
}

/// Proofs of something that is gone show that it existed.
#[test]
fn f41_a_history_that_was_cut_short_is_named_if_its_proofs_were_left() {
    let disk = a_sorted_store();
    let manifest = storage::manifest::Manifest::read(&disk).unwrap();
    let mut short = manifest.clone();
    let last = short.segments.pop().unwrap();
    short.indexed_to = last.start;
    replace(&disk, "manifest", &short.encode());
    for name in has(&disk, ".journal") {
        disk.remove(&name).unwrap();
    }
    let (problems, proof) = (said(&disk, true), proof_name(last.start));
    let gap = "what lies between is not here";
    let names = |problem: &String| problem.starts_with(&proof) && problem.contains(gap);
    assert!(problems.iter().any(names), "{problems:?}");
    // So does a chain without its beginning.
    let disk = a_sorted_store();
    disk.remove(&proof_name(0)).unwrap();
    let problems = verified(&disk).problems;
    assert!(
        problems.iter().any(|problem| problem.contains("proofs before it are missing")),
        "{problems:?}"
    );
}

#[test]
fn g15_history_stays_verifiable_when_it_is_sorted() {
    let disk = a_sorted_store();
    let report = verified(&disk);
    assert_eq!(report.problems, [""; 0]);
    assert_eq!((report.frames, report.sorted_segments, report.segments), (26, 3, 1));
    assert_eq!(verification(&report).verified(), 24);
    // A payload of the second file, forged with its checksums.
    let name = &has(&disk, ".sorted")[1];
    let good = disk.bytes(name);
    let at = first_frame(&good);
    let position = u64::from_le_bytes(good[at - 32..at - 24].try_into().unwrap());
    let mut bad = good.clone();
    bad[at + FRAME_BYTES + 3] ^= 1;
    replace(&disk, name, &bad);
    let report = verified(&disk);
    assert!(report.problems.iter().any(|problem| problem.contains("is corrupt")));
    make_sorted_whole(&mut bad, at);
    replace(&disk, name, &bad);
    let report = storage::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!(report.problems.len(), 1, "checksums do not tell: {:?}", report.problems);
    assert!(
        report.problems[0].contains("the index ") && report.problems[0].contains(" disagrees: "),
        "{:?}",
        report.problems
    );
    let report = verified(&disk);
    let changed = verification(&report).first_changed().unwrap();
    assert_eq!((&changed.file, changed.position), (name, position));
    assert_eq!(verification(&report).verified(), 23);
    // A header that is not a header any more.
    let mut bad = good.clone();
    bad[at + 30] ^= 1;
    replace(&disk, name, &bad);
    let report = verified(&disk);
    assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
    assert!(report.problems[0].contains(&format!("{name} is corrupt at byte {}:", at - 32)));
    disk.remove(name).unwrap();
    let report = verified(&disk);
    assert!(report.problems[0].contains(name.as_str()), "{:?}", report.problems);
}

#[test]
fn f41_history_stays_verifiable_when_the_log_start_advances() {
    let disk = a_sorted_store();
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
    // All of log 0, and the entries of log 1 in the first segment and a half.
    let starts = [(LogId(0), fixture.store.log(LogId(0)).unwrap().end()), (LogId(1), Offset(4))];
    fixture.store.advance_log_start(&starts).unwrap();
    for _ in 0..3 {
        fixture.store.reclaim().unwrap();
        fixture.store.run_maintenance().unwrap();
    }
    fixture.store.close();
    let report = verified(&disk);
    assert_eq!(report.problems, [""; 0]);
    let count = verification(&report).verified();
    assert!((8..=24).contains(&count), "{count}");
    // All of it, so that whole files are removed: the chain is still complete.
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
    let starts = [0, 1, 2].map(|log| (LogId(log), fixture.store.log(LogId(log)).unwrap().end()));
    fixture.store.advance_log_start(&starts).unwrap();
    for _ in 0..3 {
        fixture.store.reclaim().unwrap();
        fixture.store.run_maintenance().unwrap();
    }
    fixture.store.close();
    assert!(has(&disk, ".sorted").len() < 3);
    let report = verified(&disk);
    assert_eq!(report.problems, [""; 0]);
    let verification = verification(&report);
    assert_eq!(verification.proofs.len(), 3);
    assert!(verification.chain_head().is_some());
    // Proofs of what is gone are pruned, and only those.
    let filed = has(&disk, ".sorted");
    for proof in &verification.proofs {
        let is_gone = !filed.iter().any(|name| name.starts_with(&format!("{:020}.", proof.start)));
        let is_short = disk.bytes(&proof.file).len() == PROOF_HEADER_BYTES;
        assert_eq!((proof.is_pruned, is_short), (is_gone, is_gone), "{}", proof.file);
    }
}

#[test]
fn f41_a_start_cuts_the_proofs_that_a_crash_left_and_a_whole_chain_stays() {
    let disk = a_sorted_store();
    let before: Vec<Vec<u8>> = has(&disk, ".proof").iter().map(|name| disk.bytes(name)).collect();
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
    let starts = [0, 1, 2].map(|log| (LogId(log), fixture.store.log(LogId(log)).unwrap().end()));
    fixture.store.run_maintenance().unwrap();
    fixture.store.advance_log_start(&starts).unwrap();
    for _ in 0..3 {
        fixture.store.reclaim().unwrap();
    }
    fixture.store.close();
    let after: Vec<Vec<u8>> = has(&disk, ".proof").iter().map(|name| disk.bytes(name)).collect();
    // The last segment stays, whatever was removed.
    let cut = after.iter().map(|bytes| bytes.len() == PROOF_HEADER_BYTES);
    assert_eq!(cut.collect::<Vec<_>>(), [true, true, false]);
    // As if the machine had stopped before one of them was pruned.
    let names = has(&disk, ".proof");
    replace(&disk, &names[1], &before[1]);
    assert_eq!(verified(&disk).problems, [""; 0]);
    StoreFixture::open(&disk, options(), &manual_clock()).unwrap().store.close();
    let again: Vec<Vec<u8>> = has(&disk, ".proof").iter().map(|name| disk.bytes(name)).collect();
    assert_eq!(again, after);
    let report = verified(&disk);
    assert_eq!(report.problems, [""; 0]);
    let cut = verification(&report).proofs.iter().map(|proof| proof.is_pruned);
    assert_eq!(cut.collect::<Vec<_>>(), [true, true, false]);
    // One of them is gone, or replaced by another: the chain shows it.
    disk.remove(&names[1]).unwrap();
    assert_eq!(verified(&disk).problems.len(), 1);
}

#[test]
fn f41_leaves_that_were_pruned_although_their_frames_are_here_are_a_problem() {
    for disk in [a_proved_store(), a_sorted_store()] {
        let name = proof_name(position(1, 0));
        let header = ProofHeader { entries: 0, ..proof_header(&disk, &name) };
        replace(&disk, &name, &header.encode());
        let report = verified(&disk);
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        assert!(report.problems[0].contains("cut off"), "{:?}", report.problems);
        assert!(report.problems[0].starts_with(&name), "{:?}", report.problems);
        assert_eq!(verification(&report).verified(), 16);
        // A start does not prove them again: then a forgery would have its proof.
        let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
        fixture.store.run_maintenance().unwrap();
        fixture.store.close();
        assert_eq!(disk.bytes(&name).len(), PROOF_HEADER_BYTES);
    }
}

#[test]
fn f41_nothing_is_reclaimed_before_it_is_proved() {
    let disk = MemoryDisk::new();
    let unproved = Options { proofs: false, ..options() };
    let fixture = StoreFixture::open(&disk, unproved, &manual_clock()).unwrap();
    for index in 0..PER_SEGMENT as u8 * 3 + 2 {
        fixture.append(vec![append(0, &[index; PAYLOAD])], Durability::Synced).remove(0).unwrap();
    }
    fixture.store.run_maintenance().unwrap();
    fixture.store.close();
    assert_eq!((has(&disk, ".proof").len(), has(&disk, ".journal").len()), (0, 4));
    // Proofs are switched on, and two segments are removed before there are any.
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
    fixture.store.advance_log_start(&[(LogId(0), Offset(2 * PER_SEGMENT as u64))]).unwrap();
    for _ in 0..3 {
        assert_eq!(fixture.store.reclaim().unwrap(), storage::ReclaimStats::default());
    }
    assert_eq!(has(&disk, ".journal").len(), 4);
    fixture.store.run_maintenance().unwrap();
    assert_eq!(has(&disk, ".proof").len(), 3);
    for _ in 0..3 {
        fixture.store.reclaim().unwrap();
    }
    assert_eq!((has(&disk, ".journal").len(), has(&disk, ".sorted").len()), (2, 0));
    fixture.store.close();
    let report = storage::check::verify(&disk, &[], &mut |_| {}).unwrap();
    assert_eq!(report.problems, [""; 0]);
    let verification = verification(&report);
    assert_eq!(verification.verified(), PER_SEGMENT as u64);
    let cut: Vec<bool> = verification.proofs.iter().map(|proof| proof.is_pruned).collect();
    assert_eq!(cut, [true, true, false]);
}

#[test]
fn f41_the_chain_goes_on_behind_segments_that_were_reclaimed_whole() {
    let disk = a_sorted_store();
    let fixture = StoreFixture::open(&disk, options(), &manual_clock()).unwrap();
    let starts = [0, 1, 2].map(|log| (LogId(log), fixture.store.log(LogId(log)).unwrap().end()));
    fixture.store.advance_log_start(&starts).unwrap();
    // In the last segment, the empty result of sorting again replaces the old file.
    for _ in 0..5 {
        fixture.store.reclaim().unwrap();
        fixture.store.run_maintenance().unwrap();
    }
    let filed = has(&disk, ".sorted");
    assert_eq!(filed.len(), 1, "the last segment stays, and is empty: {filed:?}");
    for index in 0..PER_SEGMENT as u8 {
        let append = append(u64::from(index % 3), &[index; PAYLOAD]);
        fixture.append(vec![append], Durability::Synced).remove(0).unwrap();
    }
    fixture.store.run_maintenance().unwrap();
    fixture.store.close();
    let report = storage::check::verify(&disk, &[], &mut |_| {}).unwrap();
    assert_eq!(report.problems, [""; 0]);
    let cut: Vec<bool> = verification(&report).proofs.iter().map(|proof| proof.is_pruned).collect();
    assert_eq!(cut, [true, true, false, false]);
}

/// The proof of the segment that begins at `span`, computed by a walk over its file.
fn proof_from_file(disk: &MemoryDisk, span: Range<u64>) -> Vec<u8> {
    let before = chain_before(disk, span.start).unwrap().unwrap();
    let name = proof_name(span.start);
    write_proof(disk, span, before, None, &mut |_| ControlFlow::Continue(())).unwrap();
    disk.bytes(&name)
}

#[test]
fn g15_a_proof_made_from_memory_is_the_one_that_its_file_gives() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    // Each segment stays where it is.
    let options = Options { segment_bytes_max: 16 << 10, merge_bytes_min: 0, ..options() };
    let lengths = (0..140).chain([300, 1024, 4096, 9000, 0, 3000]);
    // The second incarnation continues a segment of which the first has written a part.
    for _ in 0..2 {
        let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
        for length in lengths.clone() {
            let bytes = vec![length as u8; length];
            let both = vec![append(7, &bytes), append_with_header(7, &bytes)];
            assert!(fixture.append(both, Durability::Synced).iter().all(Result::is_ok));
        }
        fixture.store.run_maintenance().unwrap();
        fixture.store.close();
    }
    let spans = spans(&disk);
    assert!(spans.len() > 4, "{spans:?}");
    for span in spans {
        let proof = disk.bytes(&proof_name(span.start));
        assert!(proof == proof_from_file(&disk, span.clone()), "{span:?}");
    }
}

#[test]
fn g15_what_a_disk_changes_before_the_proof_is_written_differs_from_it() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    for index in 0..PER_SEGMENT as u8 + 2 {
        fixture.append(vec![append(1, &[index; PAYLOAD])], Durability::Synced).remove(0).unwrap();
    }
    let mut forgery = FrameForgery::of(&disk, 0, 3);
    forgery.frame_mut()[FRAME_BYTES + 5] ^= 1;
    forgery.make_whole();
    let file = disk.open(&forgery.name).unwrap();
    file.write_at(&mut [IoSlice::new(&forgery.bytes)], 0).unwrap();
    fixture.store.run_maintenance().unwrap();
    fixture.store.close();
    let report = storage::check::verify(&disk, &[], &mut |_| {}).unwrap();
    let changed = verification(&report).first_changed().unwrap();
    assert_eq!((changed.position, changed.change), (position(0, 3), FrameChange::Altered));
    assert_eq!(verification(&report).verified(), PER_SEGMENT as u64 - 1);
}

#[test]
fn g15_a_group_that_the_disk_refused_has_no_leaves() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    let appends = || vec![append(1, &[3; PAYLOAD])];
    fixture.append(appends(), Durability::Written).remove(0).unwrap();
    disk.arm(DiskFault::FullAt(disk.used_bytes()));
    let refused =
        fixture.append(vec![append(1, &[4; PAYLOAD]), append(1, &[5; 40])], Durability::Written);
    assert!(refused.iter().all(Result::is_err));
    disk.remove_capacity_limit();
    for _ in 0..PER_SEGMENT {
        fixture.append(appends(), Durability::Written).remove(0).unwrap();
    }
    fixture.store.run_maintenance().unwrap();
    fixture.store.close();
    let span = spans(&disk).remove(0);
    let proof = disk.bytes(&proof_name(span.start));
    assert_eq!(proof, proof_from_file(&disk, span));
}
