//! The bytes on disk, against files that only change with the format (F12, `docs/FORMAT.md`).
//!
//! `UPDATE_GOLDEN=1 cargo test -p storage --test golden` writes them anew: that is a new format
//! version, unless nothing was released with the old one.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod harness;

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use harness::{Rig, TempDir, Verdict, append, append_with_head, manual_clock};
use hlc::{Hlc, SysTime, UserTime};
use storage::disk::{Disk, MemoryDisk};
use storage::journal::{FRAME_BYTES, Frame, SEGMENT_HEADER_BYTES, SegmentHeader};
use storage::proof::{Digest, PROOF_BLOCK_BYTES, PROOF_HEADER_BYTES, SigningKey, write_proof};
use storage::timekeeper::{Slot, read_slots};
use storage::{Append, Durability, Home, LogId, Offset, Options};

/// Two small segments, made by a store that was closed, and its bound file.
fn a_small_store() -> MemoryDisk {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { segment_bytes_max: 300, tended_by_hand: true, ..Options::default() };
    let rig = Rig::open(&disk, options, &clock).unwrap();
    let first: Append<Verdict> = Append {
        kind: 7,
        epoch: 3,
        count: 2,
        user: (UserTime(-1), UserTime(1_795_251_600_000)),
        ..append(0x0102, b"hello, journal")
    };
    rig.append(vec![first, append_with_head(1, b"rest")], Durability::Synced);
    clock.advance(Duration::from_millis(5));
    rig.append(vec![append(0x0102, b"")], Durability::Synced);
    rig.append(vec![append(1, &[0xaa; 24])], Durability::Written);
    rig.store.close();
    disk
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (row, line) in bytes.chunks(16).enumerate() {
        // Runs of zeros would hide what matters.
        if line.iter().all(|byte| *byte == 0) {
            continue;
        }
        let _ = write!(text, "{:06x} ", row * 16);
        for byte in line {
            let _ = write!(text, " {byte:02x}");
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{:06x}", bytes.len());
    text
}

#[track_caller]
fn compare(name: &str, bytes: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let found = hex(bytes);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &found).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert!(found == golden, "{name} has changed on disk:\n{found}\nwas\n{golden}");
}

#[test]
fn a_journal_segment_is_written_byte_for_byte_as_documented() {
    let disk = a_small_store();
    compare("segment-0.hex", &disk.bytes("00000000000000000000.journal"));
    compare("segment-280.hex", &disk.bytes("00000000000000000280.journal"));
}

#[test]
fn a_bound_file_is_written_byte_for_byte_as_documented() {
    compare("bound.hex", &a_small_store().bytes("bound"));
}

#[test]
fn an_identity_file_is_written_byte_for_byte_as_documented() {
    let directory = TempDir::new("golden");
    drop(Home::take(directory.path(), || "Zm9v-cluster".to_owned()).unwrap());
    compare("FREEZEFRAME.hex", &std::fs::read(directory.path().join("FREEZEFRAME")).unwrap());
    let lock = std::fs::read_to_string(directory.path().join("LOCK")).unwrap();
    assert_eq!(lock, format!("{}\n", std::process::id()));
}

/// The proofs of the small store's first segment: one that nobody signed, and one that is signed.
fn proofs_of_a_small_store() -> [Vec<u8>; 2] {
    let disk = a_small_store();
    let key = SigningKey::from_bytes(&[7; 32]);
    [None, Some(&key)].map(|key| {
        write_proof(&disk, 0..280, Digest::BIRTH, key, &mut |_| ControlFlow::Continue(())).unwrap();
        disk.bytes("00000000000000000000.proof")
    })
}

#[test]
fn a_proof_is_written_byte_for_byte_as_documented() {
    let [unsigned, signed] = proofs_of_a_small_store();
    compare("proof-0.hex", &unsigned);
    compare("proof-0-signed.hex", &signed);
}

#[test]
fn g15_every_field_of_a_proof_stands_where_the_document_says() {
    let segment = a_small_store().bytes("00000000000000000000.journal");
    let [_, proof] = proofs_of_a_small_store();
    assert_eq!((PROOF_HEADER_BYTES, PROOF_BLOCK_BYTES, proof.len()), (256, 4096, 256 + 4096));
    assert_eq!((&proof[..8], u32_at(&proof, 8), u32_at(&proof, 12)), (&b"FFPROOF1"[..], 1, 1));
    assert_eq!([16, 24, 32].map(|at| u64_at(&proof, at)), [0, 280, 3]);
    let positions = [0, 96, 200];
    let frames = positions.map(|position| &segment[64 + position..]);
    assert_eq!(u64_at(&proof, 40), u64_at(frames[0], 16));
    assert_eq!(u64_at(&proof, 48), u64_at(frames[2], 16));
    // Leaves: the payload, the position, the header.
    let leaf = |position: usize| -> [u8; 32] {
        let frame = &segment[64 + position..];
        let length = u32_at(frame, 8) as usize;
        let parts = [&frame[80..80 + length], &(position as u64).to_le_bytes(), &frame[..80]];
        blake3::derive_key("freezeframe journal frame leaf, format 1", &parts.concat())
    };
    let leaves = positions.map(leaf);
    for (entry, (position, leaf)) in proof[256..].chunks(40).zip(positions.iter().zip(&leaves)) {
        assert_eq!((u64_at(entry, 0), &entry[8..]), (*position as u64, &leaf[..]));
    }
    let block = &proof[256..];
    assert_eq!(block[120..4088], [0; 3968]);
    assert_eq!(u32_at(block, 4088), 3);
    let seeded = [&[0; 16][..], &block[..4092]].concat();
    assert_eq!(u32_at(block, 4092), crc32c::crc32c(&seeded));
    // The chain.
    let mut chain = [0; 32];
    assert_eq!(proof[56..88], chain);
    for leaf in leaves {
        chain = *blake3::hash(&[chain, leaf].concat()).as_bytes();
    }
    assert_eq!(proof[88..120], chain);
    // The signature.
    let key = SigningKey::from_bytes(&[7; 32]).verifying_key();
    assert_eq!(proof[120..152], key.to_bytes());
    let signature = ed25519_dalek::Signature::from_slice(&proof[152..216]).unwrap();
    key.verify_strict(&proof[..120], &signature).unwrap();
    assert_eq!(proof[216..252], [0; 36]);
    assert_eq!(u32_at(&proof, 252), crc32c::crc32c(&proof[..252]));
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Reads the tables of `docs/FORMAT.md` by hand, and not with the code that wrote the bytes.
#[test]
fn f12_every_field_stands_where_the_document_says() {
    let disk = a_small_store();
    let file = disk.bytes("00000000000000000000.journal");
    assert_eq!(&file[..8], b"FFSEGMNT");
    assert_eq!((u32_at(&file, 8), u32_at(&file, 12), u64_at(&file, 16)), (1, 0, 0));
    assert_eq!(u32_at(&file, 60), crc32c::crc32c(&file[..60]));

    let frame = &file[64..64 + 80];
    assert_eq!(&frame[..4], b"FFJ1");
    let mut seeded = 0u64.to_le_bytes().to_vec();
    seeded.extend_from_slice(&frame[8..]);
    assert_eq!(u32_at(frame, 4), crc32c::crc32c(&seeded));
    let payload = &file[144..158];
    assert_eq!(payload, b"hello, journal");
    assert_eq!((u32_at(frame, 8), u32_at(frame, 12)), (14, crc32c::crc32c(payload)));
    assert_eq!(u64_at(frame, 16) >> 16, harness::BEGIN.0);
    assert_eq!((u64_at(frame, 24), u64_at(frame, 32)), (0x0102, 0));
    assert_eq!((u32_at(frame, 40), u32_at(frame, 44)), (2, 3));
    assert_eq!((u64_at(frame, 48) as i64, u64_at(frame, 56)), (-1, 1_795_251_600_000));
    assert_eq!((u64_at(frame, 64), frame[72]), (0, 7));
    assert_eq!(frame[73..], [0; 7]);
    assert_eq!(file[158..160], [0; 2], "padding");
    assert_eq!(&file[160..164], b"FFJ1");
    let third = 64 + 96 + 104;
    assert_eq!((&file[third..third + 4], u64_at(&file, third + 64)), (&b"FFJ1"[..], 200));

    let bound = disk.bytes("bound");
    let newest = &bound[..48];
    assert_eq!((&newest[..8], u64_at(newest, 8)), (&b"FFBOUND1"[..], 2));
    assert_eq!((u64_at(newest, 24), newest[32]), (280 + 104, 1));
    assert_eq!(u32_at(newest, 44), crc32c::crc32c(&newest[..44]));
    assert_eq!((&bound[4096..4104], u64_at(&bound, 4104)), (&b"FFBOUND1"[..], 1));
}

/// What a later version must still read, from the files and not from this run.
#[test]
fn the_golden_files_open_and_read_back() {
    let from_hex = |name: &str| -> Vec<u8> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let text = std::fs::read_to_string(path).unwrap();
        let mut bytes = Vec::new();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let at = usize::from_str_radix(words.next().unwrap(), 16).unwrap();
            bytes.resize(at, 0);
            bytes.extend(words.map(|word| u8::from_str_radix(word, 16).unwrap()));
        }
        bytes
    };
    let disk = MemoryDisk::new();
    for (name, golden) in [
        ("00000000000000000000.journal", "segment-0.hex"),
        ("00000000000000000280.journal", "segment-280.hex"),
        ("00000000000000000000.proof", "proof-0-signed.hex"),
        ("bound", "bound.hex"),
    ] {
        let file = disk.create(name).unwrap();
        file.write_at(&mut [std::io::IoSlice::new(&from_hex(golden))], 0).unwrap();
    }
    let report = storage::check::check(&disk, &mut |_| {}).unwrap();
    assert_eq!((report.frames, report.segments, report.problems), (4, 2, vec![]));
    let keys = [SigningKey::from_bytes(&[7; 32]).verifying_key()];
    let report = storage::check::verify(&disk, &keys, &mut |_| {}).unwrap();
    assert_eq!(report.problems, [""; 0]);
    assert_eq!(report.verification.unwrap().verified(), 3);
    let slots = read_slots(&*disk.open("bound").unwrap()).unwrap();
    assert!(matches!(slots[0], Slot::Whole(bound) if bound.clean && bound.sequence == 2));
    let rig = Rig::open(&disk, Options::default(), &manual_clock()).unwrap();
    let seen: Vec<(u64, u64, Bytes)> =
        rig.replayed.iter().map(|seen| (seen.log.0, seen.base.0, seen.payload.clone())).collect();
    let stamp = rig.replayed[1].stamp.bits().to_le_bytes();
    let head = [&0u64.to_le_bytes()[..], &stamp, b"rest"].concat();
    assert_eq!(
        seen,
        [
            (0x0102, 0, Bytes::from_static(b"hello, journal")),
            (1, 0, head.into()),
            (0x0102, 2, Bytes::new()),
            (1, 1, vec![0xaa; 24].into()),
        ]
    );
}

#[test]
fn headers_have_the_documented_lengths() {
    assert_eq!((FRAME_BYTES, SEGMENT_HEADER_BYTES), (80, 64));
    assert_eq!(SegmentHeader { start: 5 }.encode().len(), 64);
    let frame = Frame {
        length: 0,
        payload_crc: 0,
        stamp: Hlc::at(SysTime(1)),
        log: LogId(0),
        base: Offset(0),
        count: 0,
        epoch: 0,
        user_min: UserTime(0),
        user_max: UserTime(0),
        synced_to: 0,
        kind: 0,
    };
    assert_eq!(frame.encode(0).len(), 80);
    assert_eq!((frame.end(8), Frame { length: 9, ..frame }.end(0)), (88, 96));
}
