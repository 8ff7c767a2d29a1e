//! The bytes on disk, against files that only change with the format (F12, `docs/FORMAT.md`).
//!
//! `UPDATE_GOLDEN=1 cargo test -p storage --test integration golden::` writes them again: that is a
//! new format version, unless nothing was released with the old one.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use hlc::{Cut, Hlc, SysTime, UserTime};
use storage::disk::{Disk, MemoryDisk};
use storage::journal::{FRAME_BYTES, FrameHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use storage::proof::{Digest, PROOF_BLOCK_BYTES, PROOF_HEADER_BYTES, SigningKey, write_proof};
use storage::timekeeper::{BoundSlot, read_slots};
use storage::{
    CompactedEntry, CompactionHorizon, DataDirectory, Durability, LogAppend, LogId, Offset,
    Options, StorageError, StorageFile,
};
use testkit::directory::TestDirectory;
use testkit::store::{StageVerdict, StoreFixture, append, append_with_header, manual_clock};

/// Two small segments, written by a store that was closed, and its bound file.
fn a_small_store() -> MemoryDisk {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options =
        Options { segment_bytes_max: 300, manual_maintenance: true, ..Options::default() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    let first: LogAppend<StageVerdict> = LogAppend {
        kind: 7,
        epoch: 3,
        count: 2,
        user: (UserTime(-1), UserTime(1_795_251_600_000)),
        ..append(0x0102, b"hello, journal")
    };
    fixture.append(vec![first, append_with_header(1, b"rest")], Durability::Synced);
    clock.advance(Duration::from_millis(5));
    fixture.append(vec![append(0x0102, b"")], Durability::Synced);
    fixture.append(vec![append(1, &[0xaa; 24])], Durability::Written);
    fixture.store.close();
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
    let encoded = hex(bytes);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &encoded).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert!(encoded == golden, "{name} has changed on disk:\n{encoded}\nwas\n{golden}");
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
    let directory = TestDirectory::new();
    drop(DataDirectory::open(directory.path(), || "Zm9v-cluster".to_owned()).unwrap());
    let lines = format!("format 7\ncluster Zm9v-cluster\nprogram {}\n", env!("CARGO_PKG_VERSION"));
    let expected = format!("{lines}checksum {:08x}\n", crc32c::crc32c(lines.as_bytes()));
    let identity = std::fs::read_to_string(directory.path().join("FREEZEFRAME")).unwrap();
    assert_eq!(identity, expected);
    let lock = std::fs::read_to_string(directory.path().join("LOCK")).unwrap();
    assert_eq!(lock, format!("{}\n", std::process::id()));
}

/// The proofs of the small store's first segment: one without a signature, and one with.
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
    assert_eq!((PROOF_HEADER_BYTES, PROOF_BLOCK_BYTES, proof.len()), (256, 4088, 256 + 128));
    assert_eq!((&proof[..8], u32_at(&proof, 8), u32_at(&proof, 12)), (&b"FFPROOF1"[..], 3, 1));
    assert_eq!([16, 24, 32].map(|at| u64_at(&proof, at)), [0, 280, 3]);
    let positions = [0, 96, 200];
    let frames = positions.map(|position| &segment[64 + position..]);
    assert_eq!(u64_at(&proof, 40), u64_at(frames[0], 16));
    assert_eq!(u64_at(&proof, 48), u64_at(frames[2], 16));
    // Leaves: the digest of the payload after its first 64 bytes, the position, the header, those
    // bytes.
    let leaf = |position: usize| -> [u8; 32] {
        let frame = &segment[64 + position..];
        let length = u32_at(frame, 8) as usize;
        let (head, body) = frame[80..80 + length].split_at(length.min(64));
        let (body, position) = (*blake3::hash(body).as_bytes(), (position as u64).to_le_bytes());
        let pieces = [&body[..], &position, &frame[..80], head];
        blake3::derive_key("freezeframe journal frame leaf, format 2", &pieces.concat())
    };
    let leaves = positions.map(leaf);
    for (entry, (position, leaf)) in proof[256..].chunks(40).zip(positions.iter().zip(&leaves)) {
        assert_eq!((u64_at(entry, 0), &entry[8..]), (*position as u64, &leaf[..]));
    }
    let block = &proof[256..];
    assert_eq!(u32_at(block, 120), 3);
    let seeded = [&[0; 16][..], &block[..124]].concat();
    assert_eq!(u32_at(block, 124), crc32c::crc32c(&seeded));
    // The root of the tree over three leaves, and the chain.
    let hash = |left: [u8; 32], right: [u8; 32]| *blake3::hash(&[left, right].concat()).as_bytes();
    let root = hash(hash(leaves[0], leaves[1]), leaves[2]);
    assert_eq!((&proof[216..248], u32_at(&proof, 248)), (&root[..], 3));
    assert_eq!(proof[56..88], [0; 32]);
    assert_eq!(proof[88..120], hash([0; 32], root));
    // The signature.
    let key = SigningKey::from_bytes(&[7; 32]).verifying_key();
    assert_eq!(proof[120..152], key.to_bytes());
    let signature = ed25519_dalek::Signature::from_slice(&proof[152..216]).unwrap();
    key.verify_strict(&proof[..120], &signature).unwrap();
    assert_eq!(u32_at(&proof, 252), crc32c::crc32c(&proof[..252]));
}

/// A store whose one sealed segment is indexed and sorted. The beginning of one log is removed, and
/// that of another replaced.
fn a_sorted_store() -> MemoryDisk {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options {
        manual_maintenance: true,
        proofs: false,
        uncovered_segments_max: 0,
        ..Options::default()
    };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    for nth in 0..3u8 {
        let first: LogAppend<StageVerdict> = LogAppend {
            epoch: 3,
            kind: 16,
            user: (UserTime(-1), UserTime(7)),
            ..append(1, &[nth; 9])
        };
        fixture.append(vec![first, append(2, &[0xb0 + nth; 4])], Durability::Synced);
    }
    fixture.store.roll_segment();
    fixture.append(Vec::new(), Durability::Written);
    fixture.store.run_maintenance().unwrap();
    let (until, stamp) = fixture.store.replaceable_prefix(LogId(2), Cut::ALL).unwrap();
    let last = fixture.store.log(LogId(2)).unwrap().payload_at(Offset(2)).unwrap().unwrap();
    let compacted = CompactionHorizon { compacted_to: stamp.next(), clean_to: until };
    let replaced = fixture.store.replace_prefix::<StorageError>(
        LogId(2),
        until,
        &mut |emit| {
            emit(CompactedEntry { entry: last.entry, payload: Bytes::from_static(b"kept") })?;
            Ok(compacted)
        },
        &mut |_| true,
    );
    assert!(replaced.unwrap());
    fixture.store.advance_log_start(&[(LogId(1), Offset(1))]).unwrap();
    fixture.store.close();
    disk
}

#[test]
fn sorted_segments_indexes_and_the_manifest_are_written_byte_for_byte_as_documented() {
    let disk = a_sorted_store();
    for (file, golden) in SORTED_STORE {
        compare(golden, &disk.bytes(file));
    }
}

const SORTED_STORE: [(&str, &str); 8] = [
    ("00000000000000000000.index", "index-0.hex"),
    ("00000000000000000000-00000000000000000552.latest", "latest-runs-0.hex"),
    ("00000000000000000000.1.sorted", "sorted-0.hex"),
    ("00000000000000000000.1.index", "sorted-0-index.hex"),
    ("log-00000000000000000002.3.sorted", "compacted-2.hex"),
    ("log-00000000000000000002.3.index", "compacted-2-index.hex"),
    ("manifest", "manifest.hex"),
    ("bound", "sorted-bound.hex"),
];

/// As above: by the tables, and not by the code that wrote the bytes.
#[test]
fn f12_every_field_of_sorted_segments_stands_where_the_document_says() {
    let disk = a_sorted_store();
    let segment = disk.bytes("00000000000000000000.journal");
    let end = segment.len() as u64;
    let end = (64..end).rev().find(|at| segment[*at as usize] != 0).unwrap();
    let end = (end - 64 + 1).next_multiple_of(8);

    let index = disk.bytes("00000000000000000000.1.index");
    for (number, block) in index.chunks(4096).enumerate() {
        let seeded = [&[0; 8], &(number as u64).to_le_bytes()[..], &block[4..]].concat();
        assert_eq!(u32_at(block, 0), crc32c::crc32c(&seeded), "block {number}");
    }
    assert_eq!((u32_at(&index, 4), &index[8..16], u32_at(&index, 16)), (80, &b"FFINDEX1"[..], 2));
    assert_eq!([24, 32, 40, 48].map(|at| u64_at(&index, at)), [0, end, 6, 2]);
    assert_eq!((u64_at(&index, 56), u64_at(&index, 80)), (25, 1), "the state, and extents");
    assert_eq!((index.len(), u32_at(&index, 4096 + 4)), (4 * 4096, 6));
    let second = &index[4096 + 8 + 104..];
    assert_eq!((u64_at(second, 8), u32_at(second, 16), u32_at(second, 20)), (1, 1, 9));
    assert_eq!((u64_at(second, 40) as i64, u64_at(second, 48), u64_at(second, 56)), (-1, 7, 7));
    assert_eq!((u64_at(second, 64), u32_at(second, 92), second[96]), (18, 3, 16));
    let run = &index[2 * 4096 + 8 + 136..];
    assert_eq!([0, 8, 16, 24, 32, 40].map(|at| u64_at(run, at)), [2, 3, 3, 0, 3, 12]);
    assert_eq!([96, 104, 112, 120, 128].map(|at| u64_at(run, at)), [u64::MAX, 0, u64::MAX, 0, 0]);
    assert_eq!(&index[3 * 4096 + 8..3 * 4096 + 33], b"what the stage remembered");

    let heads = disk.bytes(&format!("{:020}-{end:020}.latest", 0));
    assert_eq!((&heads[8..16], u32_at(&heads, 16)), (&b"FFLATEST"[..], 1));
    assert_eq!([24, 32, 40].map(|at| u64_at(&heads, at)), [0, end, 2]);
    assert_eq!((heads.len(), u32_at(&heads, 4), u32_at(&heads, 4096 + 4)), (2 * 4096, 40, 2));
    let head = &heads[4096 + 8 + 32..];
    assert_eq!([0, 8, 16, 24].map(|at| u64_at(head, at)), [2, 0, 1, 3]);

    let filed = disk.bytes("00000000000000000000.1.sorted");
    assert_eq!((&filed[..8], u32_at(&filed, 8), u32_at(&filed, 12)), (&b"FFSORTED"[..], 1, 0));
    assert_eq!([16, 24, 32, 40].map(|at| u64_at(&filed, at)), [0, end, 1, 0]);
    assert_eq!(u32_at(&filed, 60), crc32c::crc32c(&filed[..60]));
    let at = u64_at(second, 32) as usize;
    let (prefix, header) = (&filed[at - 112..at - 80], &filed[at - 80..at]);
    let position = u64_at(second, 24) as usize - 80;
    assert_eq!((u64_at(prefix, 0), &prefix[8..24]), (position as u64, &second[72..88]));
    assert_eq!(header, &segment[64 + position..64 + position + 80], "as it stood in the journal");
    let sealed = [&prefix[..24], &header[..8]].concat();
    assert_eq!((u32_at(prefix, 24), u32_at(prefix, 28)), (crc32c::crc32c(&sealed), 0));
    assert_eq!(filed[at..at + 9], [1; 9]);

    let base = disk.bytes("log-00000000000000000002.3.sorted");
    assert_eq!((u32_at(&base, 12), u64_at(&base, 32), u64_at(&base, 40)), (1, 3, 2));
    assert_eq!(&base[64 + 112..64 + 116], b"kept");

    let manifest = disk.bytes("manifest");
    assert_eq!((&manifest[..8], u32_at(&manifest, 8)), (&b"FFMANIF1"[..], 2));
    assert_eq!([16, 24, 32, 40].map(|at| u64_at(&manifest, at)), [1, end, 1, 0]);
    let segment = &manifest[64..96];
    assert_eq!((u64_at(segment, 0), u64_at(segment, 8)), (0, end));
    assert_eq!((u32_at(segment, 16), u32_at(segment, 20)), (0, 0));
    assert_eq!(u32_at(&manifest, 96), crc32c::crc32c(&manifest[..96]));
    assert_eq!(manifest[100..512], [0; 412]);
    let changes = edits_of(&manifest);
    let filed = [&segment[..16], &1_u32.to_le_bytes(), &1_u32.to_le_bytes(), &[0; 8]].concat();
    assert_eq!(changes[0], [&[2], &filed[..]].concat(), "filed");
    assert_eq!(
        changes.iter().map(|change| (change[0], change.len())).collect::<Vec<_>>(),
        [(2, 33), (4, 113), (4, 113)]
    );
    let (replaced, given_up) = (&changes[1][1..], &changes[2][1..]);
    assert_eq!([0, 8, 16].map(|at| u64_at(given_up, at)), [1, 1, u64_at(&index[4096 + 8..], 0)]);
    assert_eq!([0, 8, 40, 48, 104].map(|at| u64_at(replaced, at)), [2, 0, 3, 3, 3]);
    assert_eq!(u64_at(replaced, 24), u64_at(run, 48) + 1);
    assert_eq!(replaced[64..80], run[56..72], "the chain");

    // The bound file knows the manifest.
    let slots = [0, 4096].map(|slot| disk.bytes("bound")[slot..slot + 48].to_vec());
    let newest = slots.iter().max_by_key(|slot| u64_at(slot, 8)).unwrap();
    assert_eq!(u64_at(newest, 33), 4);
}

/// The content of the pages of edits, after a snapshot of one page that was write 1.
fn edits_of(manifest: &[u8]) -> Vec<Vec<u8>> {
    let edit = |(number, page): (usize, &[u8])| {
        let (write, number) = (number as u64 + 2, number as u64);
        let seeded = [&1_u64.to_le_bytes(), &number.to_le_bytes()[..], &page[4..]].concat();
        assert_eq!(u32_at(page, 0), crc32c::crc32c(&seeded), "page {number}");
        assert_eq!((&page[6..8], u64_at(page, 8)), (&[3, 0][..], write), "first and last");
        let length = usize::from(u16::from_le_bytes([page[4], page[5]]));
        assert!(page[16 + length..].iter().all(|byte| *byte == 0));
        page[16..16 + length].to_vec()
    };
    manifest[512..].chunks(512).enumerate().map(edit).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Decodes by the tables of `docs/FORMAT.md`, and not with the code that wrote the bytes.
#[test]
fn f12_every_field_stands_where_the_document_says() {
    let disk = a_small_store();
    let file = disk.bytes("00000000000000000000.journal");
    assert_eq!(&file[..8], b"FFSEGMNT");
    assert_eq!((u32_at(&file, 8), u32_at(&file, 12), u64_at(&file, 16)), (2, 0, 0));
    let salt = blake3::derive_key("freezeframe journal segment salt", &[0; 16]);
    assert_eq!(file[24..32], salt[..8], "of no secret, and position 0");
    assert_eq!(file[32..60], [0; 28]);
    assert_eq!(u32_at(&file, 60), crc32c::crc32c(&file[..60]));

    let frame = &file[64..64 + 80];
    assert_eq!(&frame[..4], b"FFJ1");
    let mut seeded = 0u64.to_le_bytes().to_vec();
    seeded.extend_from_slice(&frame[8..]);
    assert_eq!(u32_at(frame, 4), crc32c::crc32c(&seeded));
    let payload = &file[144..158];
    assert_eq!(payload, b"hello, journal");
    assert_eq!((u32_at(frame, 8), u32_at(frame, 12)), (14, crc32c::crc32c(payload)));
    assert_eq!(u64_at(frame, 16) >> 16, testkit::store::BEGIN.0);
    assert_eq!((u64_at(frame, 24), u64_at(frame, 32)), (0x0102, 0));
    assert_eq!((u32_at(frame, 40), u32_at(frame, 44)), (2, 3));
    assert_eq!((u64_at(frame, 48) as i64, u64_at(frame, 56)), (-1, 1_795_251_600_000));
    assert_eq!((u64_at(frame, 64), frame[72]), (0, 7));
    assert_eq!(frame[73..76], [0; 3]);
    let sealed = [&file[24..32], &[0; 8], &frame[8..76]].concat();
    assert_eq!(u32_at(frame, 76), crc32c::crc32c(&sealed));
    assert_eq!(file[158..160], [0; 2], "padding");
    assert_eq!(&file[160..164], b"FFJ1");
    let third = 64 + 96 + 104;
    assert_eq!((&file[third..third + 4], u64_at(&file, third + 64)), (&b"FFJ1"[..], 200));

    let bound = disk.bytes("bound");
    let newest = &bound[..64];
    assert_eq!((&newest[..8], u64_at(newest, 8)), (&b"FFBOUND2"[..], 2));
    assert_eq!((u64_at(newest, 24), newest[32]), (280 + 104, 1));
    assert_eq!((newest[41], u64_at(newest, 42)), (1, testkit::store::BEGIN.0 + 5));
    assert_eq!(newest[50..60], [0; 10]);
    assert_eq!(u32_at(newest, 60), crc32c::crc32c(&newest[..60]));
    assert_eq!((&bound[4096..4104], u64_at(&bound, 4104)), (&b"FFBOUND2"[..], 1));
}

fn from_hex(name: &str) -> Vec<u8> {
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
}

/// With the indexes of the files, and with indexes rebuilt from the other files.
#[test]
fn golden_files_of_a_sorted_store_open_and_read_back() {
    for with_indexes in [true, false] {
        let disk = MemoryDisk::new();
        for (name, golden) in SORTED_STORE {
            if with_indexes || !(name.ends_with(".index") || name.ends_with(".latest")) {
                let file = disk.create(name).unwrap();
                file.write_at(&mut [std::io::IoSlice::new(&from_hex(golden))], 0).unwrap();
            }
        }
        let report = storage::check::check(&disk, &mut |_| {}).unwrap();
        let missing = if with_indexes { 0 } else { 2 };
        assert_eq!(
            (report.sorted_segments, report.problems.len()),
            (2, missing),
            "{:?}",
            report.problems
        );
        let options = Options { manual_maintenance: true, ..Options::default() };
        let fixture = StoreFixture::open(&disk, options, &manual_clock()).unwrap();
        let entries = fixture.all([LogId(1), LogId(2)]);
        let contents: Vec<(u64, u64, &[u8])> =
            entries.iter().map(|entry| (entry.log.0, entry.base.0, &entry.payload[..])).collect();
        assert_eq!(contents, [(1, 1, &[1; 9][..]), (1, 2, &[2; 9]), (2, 2, b"kept")]);
        for name in disk.names().into_iter().filter(|name| name.ends_with(".index")) {
            let golden = SORTED_STORE.iter().find(|(file, _)| *file == name).unwrap().1;
            // Only the presence of the stage's state differs.
            assert!(!with_indexes || disk.bytes(&name) == from_hex(golden), "{name}");
        }
    }
}

/// A log that has a run in each of five segments, and one that has one in the first and the last.
#[test]
fn f14_links_lead_to_the_run_before_and_to_one_far_before() {
    let (disk, clock) = (MemoryDisk::new(), manual_clock());
    let options = Options { manual_maintenance: true, proofs: false, ..Options::default() };
    let fixture = StoreFixture::open(&disk, options, &clock).unwrap();
    let mut starts = Vec::new();
    for nth in 0..5 {
        let logs = if nth % 4 == 0 { &[1, 2][..] } else { &[2] };
        let appends = logs.iter().map(|log| append(*log, b"x")).collect();
        let appended = fixture.append(appends, Durability::Synced).pop().unwrap().unwrap();
        starts.push(appended.journal_end - 88 * logs.len() as u64);
        fixture.store.roll_segment();
        fixture.append(Vec::new(), Durability::Written);
        fixture.store.run_maintenance().unwrap();
    }
    let runs = |nth: usize| {
        let index = disk.bytes(&format!("{:020}.index", starts[nth]));
        let count = u64_at(&index, 48) as usize;
        let run = |number: usize| index[2 * 4096 + 8 + number * 136..][..136].to_vec();
        (0..count).map(run).collect::<Vec<_>>()
    };
    // Previous segment and number, the segment and number of the jump, and how many runs precede
    // those.
    let links = |run: &[u8]| {
        let [previous, number, jump, jump_number] = [96, 104, 112, 120].map(|at| u64_at(run, at));
        (previous, number, jump, jump_number, u32_at(run, 128), u32_at(run, 132))
    };
    let none = u64::MAX;
    let [s0, s1, s2, s3, s4] = starts[..] else { panic!("five segments") };
    assert!(s0 < s1 && s1 < s2 && s2 < s3 && s3 < s4);
    assert_eq!(
        runs(0).iter().map(|run| links(run)).collect::<Vec<_>>(),
        [(none, 0, none, 0, 0, 0), (none, 0, none, 0, 0, 0)]
    );
    assert_eq!(links(&runs(1)[0]), (s0, 1, s0, 1, 1, 0));
    assert_eq!(links(&runs(2)[0]), (s1, 0, s1, 0, 2, 1));
    assert_eq!(links(&runs(3)[0]), (s2, 0, s0, 1, 3, 0), "two jumps of one make one of three");
    let last = runs(4);
    assert_eq!((u64_at(&last[0], 0), links(&last[0])), (1, (s0, 0, s0, 0, 1, 0)));
    assert_eq!((u64_at(&last[1], 0), links(&last[1])), (2, (s3, 0, s3, 0, 4, 3)));
}

/// A later version must still read this data, from the files and not from this run.
#[test]
fn the_golden_files_open_and_read_back() {
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
    let slots = read_slots(&StorageFile::open(&disk, "bound").unwrap()).unwrap();
    assert!(matches!(slots[0], BoundSlot::Whole(bound) if bound.clean && bound.sequence == 2));
    let fixture = StoreFixture::open(&disk, Options::default(), &manual_clock()).unwrap();
    let contents: Vec<(u64, u64, Bytes)> = fixture
        .replayed
        .iter()
        .map(|entry| (entry.log.0, entry.base.0, entry.payload.clone()))
        .collect();
    let stamp = fixture.replayed[1].stamp.bits().to_le_bytes();
    let head = [&0u64.to_le_bytes()[..], &stamp, b"rest"].concat();
    assert_eq!(
        contents,
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
    assert_eq!(SegmentHeader { start: 5, salt: 0 }.encode().len(), 64);
    let frame = FrameHeader {
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
    assert_eq!((frame.end(8), FrameHeader { length: 9, ..frame }.end(0)), (88, 96));
}
