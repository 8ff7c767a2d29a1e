//! Forged files: every file of a store with any bytes in it, and with numbers at their limits under
//! valid checksums. The result is an error that is reported, or right answers, or what a proof
//! would name. It is never a panic, or memory in proportion to a length in a file (F16, M3).
//!
//! `HOSTILE_CASES` sets how many cases run, and `HOSTILE_SEED` which.

use std::io::IoSlice;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hlc::{Cut, Hlc, UserTime};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use storage::disk::{Disk, MemoryDisk};
use storage::journal::{FRAME_BYTES, FrameHeader, SEGMENT_HEADER_BYTES};
use storage::{
    CompactedEntry, CompactionHorizon, Durability, LogId, Offset, Options, StorageError,
};
use testkit::rng::SeededRng;
use testkit::store::{StoreFixture, append, manual_clock};

const LOGS: u64 = 4;

fn options() -> Options {
    Options {
        segment_bytes_max: 24 << 10,
        index_bytes_max: 0,
        uncovered_segments_max: 0,
        ..testkit::store::in_files_stepped()
    }
}

/// A store with a file of each kind, stopped by a loss of power.
fn a_store() -> MemoryDisk {
    let (disk, clock, mut random) = (MemoryDisk::new(), manual_clock(), SeededRng::new(3));
    let fixture = StoreFixture::open(&disk, options(), &clock).unwrap();
    let mut write = |count: u64| {
        for nth in 0..count {
            let bytes = random.bytes(300 + nth as usize * 131 % 4000);
            fixture.append(vec![append(nth % LOGS, &bytes)], Durability::Synced);
        }
        fixture.store.roll_segment();
        fixture.append(Vec::new(), Durability::Written);
    };
    write(24);
    fixture.store.run_maintenance().unwrap();
    let (until, stamp) = fixture.store.replaceable_prefix(LogId(1), Cut::ALL).unwrap();
    let pieces = fixture.store.log(LogId(1)).unwrap().read(Offset(0), until, usize::MAX).unwrap();
    let compacted = CompactionHorizon { compacted_to: stamp.next(), clean_to: until };
    let mut fill = |emit: storage::EntrySink<'_>| {
        for piece in pieces.iter().skip(1) {
            emit(CompactedEntry { entry: piece.entry, payload: piece.read()?.slice(..200) })?;
        }
        Ok(compacted)
    };
    assert!(
        fixture
            .store
            .replace_prefix::<StorageError>(LogId(1), until, &mut fill, &mut |_| true)
            .unwrap()
    );
    fixture.store.advance_log_start(&[(LogId(0), Offset(4))]).unwrap();
    for _ in 0..3 {
        fixture.store.reclaim().unwrap();
    }
    write(12);
    fixture.store.run_maintenance().unwrap();
    write(3);
    for _ in 0..3 {
        fixture.append(vec![append(2, &[7; 500])], Durability::Synced);
    }
    clock.advance(Duration::from_secs(2));
    fixture.frontier();
    let crashed = disk.after_crash(|_| 0);
    drop(fixture);
    let kinds = [".journal", ".index", ".latest", ".sorted", ".proof"];
    for kind in kinds {
        assert!(crashed.names().iter().any(|name| name.ends_with(kind)), "no {kind}");
    }
    crashed
}

#[derive(Clone, Debug)]
enum FileForgery {
    /// Any bytes at all.
    Any(Vec<u8>),
    /// Some bytes overwritten, at any place.
    Bytes(prop::sample::Index, Vec<u8>),
    CutTo(prop::sample::Index),
    Longer(Vec<u8>),
    /// A number at its limits, with a valid checksum over it.
    Number(prop::sample::Index, u64),
    /// The content of another file.
    Other(prop::sample::Index),
}

fn forgery() -> impl Strategy<Value = FileForgery> {
    let bytes = |length_max| prop::collection::vec(any::<u8>(), 0..length_max);
    let number = prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(u64::MAX - 7),
        Just(i64::MAX as u64),
        Just(1 << 62),
        Just(1 << 40),
        Just(u64::from(u32::MAX)),
        Just((1 << 30) + 1),
        0..100_000_u64,
        any::<u64>(),
    ];
    prop_oneof![
        1 => bytes(9000).prop_map(FileForgery::Any),
        2 => (any::<prop::sample::Index>(), bytes(40)).prop_map(|(at, bytes)| FileForgery::Bytes(at, bytes)),
        1 => any::<prop::sample::Index>().prop_map(FileForgery::CutTo),
        1 => bytes(9000).prop_map(FileForgery::Longer),
        8 => (any::<prop::sample::Index>(), number).prop_map(|(at, to)| FileForgery::Number(at, to)),
        1 => any::<prop::sample::Index>().prop_map(FileForgery::Other),
    ]
}

fn put_crc(bytes: &mut [u8], at: usize, pieces: &[&[u8]]) {
    let crc = pieces.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece));
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Corrects the checksum that covers the byte at `at`.
fn make_whole(name: &str, bytes: &mut [u8], at: usize) {
    let slice = |bytes: &[u8], from: usize, to: usize| {
        bytes.get(from..to).map(<[u8]>::to_vec).unwrap_or_default()
    };
    let start =
        name.split(['.', '-']).next().unwrap_or("").parse::<u64>().unwrap_or(0).to_le_bytes();
    match name.rsplit_once('.').map_or(name, |(_, kind)| kind) {
        "manifest" => {
            let count = |at: usize| {
                bytes
                    .get(at..at + 4)
                    .map_or(0, |field| u32::from_le_bytes(field.try_into().unwrap()) as usize)
            };
            let end = 64 + count(32).saturating_mul(32) + count(40).saturating_mul(112);
            let pages = (end + 8).next_multiple_of(512);
            if at < pages {
                let body = slice(bytes, 0, end);
                return put_crc(bytes, end, &[&body]);
            }
            let number = (at - pages) / 512;
            let page = pages + number * 512;
            let (snapshot, body) = (slice(bytes, 16, 24), slice(bytes, page + 4, page + 512));
            put_crc(bytes, page, &[&snapshot, &(number as u64).to_le_bytes(), &body]);
        }
        "bound" => {
            let slot = at / 4096 * 4096;
            let body = slice(bytes, slot, slot + 60);
            put_crc(bytes, slot + 60, &[&body]);
        }
        "journal" | "sorted" if at < SEGMENT_HEADER_BYTES as usize => {
            let body = slice(bytes, 0, 60);
            put_crc(bytes, 60, &[&body]);
        }
        kind @ ("journal" | "sorted") => {
            let Some(back) = bytes[..at + 1].windows(4).rposition(|word| word == b"FFJ1") else {
                return;
            };
            let position = match kind {
                "sorted" => slice(bytes, back.saturating_sub(32), back.saturating_sub(24)),
                _ => {
                    let within = back as u64 - SEGMENT_HEADER_BYTES;
                    (u64::from_le_bytes(start) + within).to_le_bytes().to_vec()
                }
            };
            let header = slice(bytes, back + 8, back + FRAME_BYTES);
            put_crc(bytes, back + 4, &[&position, &header]);
            if kind == "sorted" && back >= 32 {
                let (prefix, head) =
                    (slice(bytes, back - 32, back - 8), slice(bytes, back, back + 8));
                put_crc(bytes, back - 8, &[&prefix, &head]);
            }
        }
        "index" | "latest" => {
            let block = at / 4096;
            // The range of a compacted prefix begins at 0.
            let start = if name.starts_with("log-") { [0; 8] } else { start };
            let body = slice(bytes, block * 4096 + 4, block * 4096 + 4096);
            put_crc(bytes, block * 4096, &[&start, &(block as u64).to_le_bytes(), &body]);
        }
        "proof" if at < 256 => {
            let body = slice(bytes, 0, 252);
            put_crc(bytes, 252, &[&body]);
        }
        "proof" => {
            let block = (at - 256) / 4096;
            let from = 256 + block * 4096;
            let body = slice(bytes, from, from + 4092);
            put_crc(bytes, from + 4092, &[&start, &(block as u64).to_le_bytes(), &body]);
        }
        _ => {}
    }
}

fn forge(disk: &MemoryDisk, name: &str, forgery: &FileForgery) {
    let mut bytes = disk.bytes(name);
    match forgery {
        FileForgery::Any(any) => bytes.clone_from(any),
        FileForgery::Bytes(at, some) if !bytes.is_empty() => {
            let at = at.index(bytes.len());
            bytes.iter_mut().skip(at).zip(some).for_each(|(byte, new)| *byte = *new);
        }
        FileForgery::CutTo(at) => bytes.truncate(at.index(bytes.len() + 1)),
        FileForgery::Longer(suffix) => bytes.extend(suffix),
        FileForgery::Number(at, to) if bytes.len() >= 8 => {
            // Most numbers that matter come first. The stage's state, at the end, is opaque.
            let state = if name.ends_with(".index") { bytes.len().min(4096) } else { 0 };
            let words = ((bytes.len() - state) / 4).max(2) - 1;
            let is_index = name.ends_with(".index") || name.ends_with(".latest");
            let reach = if is_index || to % 3 == 0 { words } else { words.min(80) };
            let at = at.index(reach) * 4;
            bytes[at..at + 8].copy_from_slice(&to.to_le_bytes());
            make_whole(name, &mut bytes, at);
        }
        FileForgery::Other(index) => {
            let names = disk.names();
            bytes = disk.bytes(&names[index.index(names.len())]);
        }
        _ => {}
    }
    disk.remove(name).unwrap();
    disk.create(name).unwrap().write_at(&mut [IoSlice::new(&bytes)], 0).unwrap();
}

/// Everything that a server does with the files that it finds.
fn live(disk: &MemoryDisk) -> Result<(), String> {
    let clock = manual_clock();
    clock.advance(Duration::from_secs(60));
    let fixture = StoreFixture::open(disk, options(), &clock).map_err(|error| error.to_string())?;
    for id in (0..LOGS).map(LogId) {
        let Ok(log) = fixture.store.log(id) else { continue };
        for piece in log.read(log.start(), Offset(u64::MAX), usize::MAX).unwrap_or_default() {
            let _ = piece.read();
        }
        let tip = log.tip();
        let _ = (log.tip_at(Cut::below(tip.stamp)), log.bytes(), log.horizon());
        let _ = fixture.append(vec![append(id.0, b"more")], Durability::Synced);
    }
    let _ = (
        fixture.store.run_maintenance(),
        fixture.store.advance_log_start(&[(LogId(2), Offset(3))]),
    );
    let _ = (fixture.store.reclaim(), fixture.store.reclaim(), fixture.store.run_maintenance());
    Ok(())
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|count| count.parse().ok()).unwrap_or(default)
}

fn config() -> ProptestConfig {
    let cases = number("HOSTILE_CASES", 60) as u32;
    let rng_seed = RngSeed::Fixed(number("HOSTILE_SEED", 1));
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

fn store() -> &'static MemoryDisk {
    static STORE: OnceLock<MemoryDisk> = OnceLock::new();
    STORE.get_or_init(a_store)
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn f16_any_file_with_any_bytes_is_reported_and_ends_no_process(
        which in any::<prop::sample::Index>(),
        forgeries in prop::collection::vec(forgery(), 1..3),
    ) {
        let disk = store().after_kill();
        let mut names = disk.names();
        names.retain(|name| name != storage::RESERVE_FILE);
        let name = &names[which.index(names.len())];
        for forgery in &forgeries {
            forge(&disk, name, forgery);
        }
        let forged = disk.after_kill();
        let lived = live(&disk);
        let checked = storage::check::verify(&forged, &[], &mut |_| {});
        let problems = checked.map(|report| report.problems).map_err(|error| error.to_string());
        if let Err(why) = lived {
            prop_assert!(!why.is_empty());
            // A check does not verify the tip of a log in whose range nothing is indexed any more.
            let is_told = problems.as_ref().is_ok_and(|problems| !problems.is_empty())
                || ["offsets of a log do not follow one another", "so many bytes", "stamps do not"]
                    .iter()
                    .any(|told| why.contains(told));
            prop_assert!(is_told, "{name} is refused, and a check says: {problems:?}. {why}");
        }
        prop_assert!(problems.is_ok(), "{name}: {problems:?}");
    }
}

/// The assumptions of the forgeries above: without a forgery, there is no problem; and a corrected
/// checksum is valid.
#[test]
fn a_forgery_that_changes_nothing_changes_nothing() {
    let disk = store().after_kill();
    for name in disk.names() {
        let mut bytes = disk.bytes(&name);
        let good = bytes.clone();
        for at in [0, 20, 70, 200, 300, 4200] {
            if at < bytes.len() && (at < 64 || name != "bound") {
                make_whole(&name, &mut bytes, at);
                assert!(bytes == good, "{name}, {at}");
            }
        }
    }
    assert_eq!(storage::check::verify(&disk, &[], &mut |_| {}).unwrap().problems, [""; 0]);
    live(&disk).unwrap();
}

/// Writers of payloads know where in the journal they will be. The machine stops while such a
/// payload is written, and loses the header before it. Then forged frames in the payload must not
/// say what was synced.
#[test]
fn a_payload_cannot_pose_as_frames() {
    let frame = |position: u64| FrameHeader {
        length: 0,
        payload_crc: 0,
        stamp: Hlc::MAX,
        log: LogId(1),
        base: Offset(0),
        count: 1,
        epoch: 0,
        user_min: UserTime(0),
        user_max: UserTime(0),
        synced_to: position,
        kind: 0,
    };
    // Without the salt, and as a store without a salt would write it.
    for sealed in [false, true] {
        let (disk, clock) = (MemoryDisk::new(), manual_clock());
        let fixture =
            StoreFixture::open(&disk, Options { salt: 0x5eed, ..options() }, &clock).unwrap();
        fixture.append(vec![append(1, &[1; 40])], Durability::Synced).remove(0).unwrap();
        let torn = fixture.store.stats().journal_end.load(Ordering::Relaxed);
        let position = torn + FRAME_BYTES as u64;
        let posing = if sealed {
            frame(position).encode_salted(position, 0)
        } else {
            frame(position).encode(position)
        };
        fixture.append(vec![append(1, &posing)], Durability::Written).remove(0).unwrap();
        let killed = disk.after_kill();
        drop(fixture);
        let (name, at) = ("00000000000000000000.journal", (torn + SEGMENT_HEADER_BYTES) as usize);
        let header_is_lost = IoSlice::new(&[0; FRAME_BYTES]);
        killed.open(name).unwrap().write_at(&mut [header_is_lost], at as u64).unwrap();
        let fixture = StoreFixture::open(&killed, options(), &clock).unwrap();
        assert_eq!(fixture.all([LogId(1)]).len(), 1, "the torn one is gone, and nothing else");
    }
}
