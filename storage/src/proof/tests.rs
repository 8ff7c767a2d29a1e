use std::io::IoSlice;
use std::ops::ControlFlow;

use hlc::{Hlc, SysTime, UserTime};
use proptest::prelude::*;
use testkit::rng::SeededRng;

use super::*;
use crate::disk::{Disk, DiskFault, MemoryDisk};
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::journal::{FrameHeader, SEGMENT_HEADER_BYTES, SegmentHeader, padded, segment_name};
use crate::storage_file::StorageFile;

/// The key of RFC 8410, section 10.3, as OpenSSL writes one.
const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
-----END PRIVATE KEY-----
";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
";

fn key() -> SigningKey {
    SigningKey::from_bytes(&[7; 32])
}

fn header(position: u64, payload: &[u8]) -> [u8; FRAME_BYTES] {
    let frame = FrameHeader {
        length: payload.len() as u32,
        payload_crc: crc32c::crc32c(payload),
        stamp: Hlc::new(SysTime(1000 + position), 1),
        log: LogId(2),
        base: Offset(position),
        count: 1,
        epoch: 0,
        user_min: UserTime(1),
        user_max: UserTime(2),
        synced_to: 0,
        kind: 16,
    };
    frame.encode(position)
}

/// A segment at 800 with a frame for each length, its end, and a proof of it.
fn segment(lengths: &[usize], key: Option<&SigningKey>) -> (Vec<u8>, u64, Vec<u8>) {
    let mut bytes = SegmentHeader { start: 800, salt: 0 }.encode().to_vec();
    let mut proof = ProofBuilder::new(800, Digest([9; 32]));
    let mut position = 800;
    for (index, length) in lengths.iter().enumerate() {
        let payload = vec![index as u8; *length];
        let header = header(position, &payload);
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&payload);
        let (head, rest) = payload.split_at(length / 3);
        proof.frame(position, &header, &[head, rest]);
        position += FRAME_BYTES as u64 + padded(*length as u64);
        bytes.resize((position - 800 + SEGMENT_HEADER_BYTES) as usize, 0);
    }
    (bytes, position, proof.finish(position, key).bytes())
}

fn put(disk: &MemoryDisk, name: &str, bytes: &[u8]) {
    let _ = disk.remove(name);
    disk.create(name).unwrap().write_at(&mut [IoSlice::new(bytes)], 0).unwrap();
}

fn open(bytes: &[u8]) -> Result<Proof, ProofError> {
    let disk = MemoryDisk::new();
    put(&disk, "p", bytes);
    Proof::open(StorageFile::open(&disk, "p").unwrap())
}

fn go_on(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn a_key_that_openssl_wrote_is_read_and_an_open_file_is_told_apart() {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("freezeframe-key-{}", std::process::id()));
    std::fs::write(&path, format!("\n{PRIVATE}")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let (signing, is_open) = read_signing_key(&path).unwrap();
    assert!(is_open);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!read_signing_key(&path).unwrap().1);
    let error = read_public_key(&path).unwrap_err().to_string();
    assert!(error.contains("openssl pkey"), "{error}");
    std::fs::write(&path, PUBLIC).unwrap();
    assert_eq!(read_public_key(&path).unwrap(), signing.verifying_key());
    let error = read_signing_key(&path).unwrap_err().to_string();
    assert!(error.contains("openssl genpkey"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(read_signing_key(&path), Err(KeyError::Disk { .. })));
}

#[test]
fn g15_a_proof_reads_back_and_has_the_leaf_of_every_frame_and_no_other() {
    let lengths: Vec<usize> = (0..250).collect();
    let (_, end, bytes) = segment(&lengths, Some(&key()));
    let mut proof = open(&bytes).unwrap();
    assert_eq!((proof.header().count, proof.header().end), (250, end));
    assert_eq!(proof.verify_chain(Some(Digest([9; 32]))), Ok(()));
    assert_eq!(proof.verify_signature(&[]), Ok(()));
    assert_eq!(proof.verify_signature(&[key().verifying_key()]), Ok(()));
    let mut hasher = LeafHasher::default();
    let mut position = 800;
    for (index, length) in lengths.iter().enumerate() {
        let payload = vec![index as u8; *length];
        hasher.payload(&payload);
        let digest = hasher.leaf(position, &header(position, &payload));
        let leaf = ProofLeaf { index: index as u64, position, digest };
        assert_eq!(proof.leaf(position).unwrap(), Some(leaf));
        assert_eq!(proof.leaf_at(index as u64).unwrap(), Some(leaf));
        assert_eq!(proof.leaf(position + 8).unwrap(), None);
        position += FRAME_BYTES as u64 + padded(*length as u64);
    }
    assert_eq!(proof.leaf(0).unwrap(), None);
    assert_eq!(proof.leaf_at(250).unwrap(), None);
}

#[test]
fn every_flipped_bit_of_a_proof_is_noticed() {
    let (_, _, good) = segment(&[5; 110], Some(&key()));
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        assert!(open(&bad).is_err(), "byte {at}");
    }
    for length in [0, 8, 255, 257, good.len() - 1, good.len() + 1] {
        let mut bad = good.clone();
        bad.resize(length, 0);
        assert!(open(&bad).is_err(), "length {length}");
    }
    // Blocks that swap places are not where their checksums say.
    let mut bad = good.clone();
    bad[256..].rotate_left(PROOF_BLOCK_BYTES);
    assert!(matches!(open(&bad), Err(ProofError::Block { index: 0 })));
}

fn proofs_in(disk: &MemoryDisk, name: &str) -> Vec<Proof> {
    let file = StorageFile::open(disk, name).unwrap();
    let placed = ProofLocation::read_all(&file).unwrap();
    placed.into_iter().map(|location| Proof::open_at(file.clone(), location).unwrap()).collect()
}

fn rewrite(disk: &MemoryDisk, starts: &[u64], keep: &LeafRetention<'_>) -> bool {
    rewrite_proofs(disk, starts, keep, &mut || Ok(())).unwrap()
}

#[test]
fn g15_a_proof_that_was_cut_keeps_chain_and_signature_and_has_no_leaves() {
    let (_, end, good) = segment(&[5; 110], Some(&key()));
    let disk = MemoryDisk::new();
    put(&disk, &proof_name(800), &good);
    assert!(rewrite(&disk, &[800], &LeafRetention::None));
    assert_eq!(disk.bytes(&proof_name(800)).len(), 256);
    let mut proof = proofs_in(&disk, &proof_name(800)).remove(0);
    assert!(proof.is_pruned() && !open(&good).unwrap().is_pruned());
    assert_eq!(*proof.header(), ProofHeader { entries: 0, ..*open(&good).unwrap().header() });
    assert_eq!(proof.verify_signature(&[key().verifying_key()]), Ok(()));
    assert_eq!(proof.verify_chain(Some(Digest([9; 32]))), Ok(()));
    assert!(proof.verify_chain(Some(Digest([1; 32]))).is_err());
    assert_eq!((proof.leaf(800).unwrap(), proof.leaf_at(0).unwrap()), (None, None));
    assert_eq!(chain_before(&disk, end).unwrap(), Some(proof.header().after));
    // A proof that is not intact is not pruned.
    let mut bad = good.clone();
    bad[9] ^= 1;
    put(&disk, &proof_name(800), &bad);
    assert!(!rewrite(&disk, &[800], &LeafRetention::None));
    assert_eq!(disk.bytes(&proof_name(800)), bad);
    assert_eq!(disk.list().unwrap(), [proof_name(800)]);
}

/// Proofs of two adjacent segments on a disk, and where the second begins and ends.
fn two_proofs() -> (MemoryDisk, u64, u64) {
    let (_, middle, first) = segment(&[5; 250], Some(&key()));
    let before = open(&first).unwrap().header().after;
    let (mut second, mut end) = (ProofBuilder::new(middle, before), middle);
    for nth in 0..120_u8 {
        second.frame(end, &header(end, &[nth; 40]), &[&[nth; 40]]);
        end += FRAME_BYTES as u64 + 40;
    }
    let disk = MemoryDisk::new();
    put(&disk, &proof_name(800), &first);
    put(&disk, &proof_name(middle), &second.finish(end, Some(&key())).bytes());
    (disk, middle, end)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn g15_leaves_that_stay_are_verified_when_others_were_taken_out(
        kept in prop::collection::vec(0_usize..370, 0..400),
        again in prop::collection::vec(any::<bool>(), 400),
    ) {
        let (disk, middle, end) = two_proofs();
        let mut whole: Vec<ProofLeaf> = Vec::new();
        for name in [proof_name(800), proof_name(middle)] {
            let mut proof = proofs_in(&disk, &name).remove(0);
            whole.extend((0..).map_while(|nth| proof.leaf_at(nth).unwrap()));
        }
        let mut kept: Vec<u64> = kept.iter().map(|nth| whole[*nth].position).collect();
        kept.sort_unstable();
        kept.dedup();
        let mut starts = vec![800, middle];
        for _ in 0..2 {
            prop_assert!(rewrite(&disk, &starts, &LeafRetention::At(&kept)));
            prop_assert_eq!(disk.list().unwrap(), [proof_name(800)]);
            let mut proofs = proofs_in(&disk, &proof_name(800));
            prop_assert_eq!(proofs.len(), 2);
            let mut before = Digest([9; 32]);
            for proof in &mut proofs {
                prop_assert_eq!(proof.verify_chain(Some(before)), Ok(()));
                prop_assert_eq!(proof.verify_signature(&[key().verifying_key()]), Ok(()));
                before = proof.header().after;
                let header = *proof.header();
                for leaf in whole.iter().filter(|leaf| (header.start..header.end).contains(&leaf.position)) {
                    let is_kept = kept.contains(&leaf.position);
                    let found = proof.leaf(leaf.position).unwrap().map(|found| found.digest);
                    prop_assert_eq!(found, is_kept.then_some(leaf.digest));
                }
            }
            prop_assert_eq!(chain_before(&disk, end).unwrap(), Some(before));
            let entries: u32 = proofs.iter().map(|proof| proof.header().entries).sum();
            // For each leaf that stays, a hash for each level of its tree; and the peaks of both
            // trees.
            let most = kept.len() * 9 + 2 * 8;
            prop_assert!(entries as usize <= most, "{entries} hashes for {}", kept.len());
            // Some of the remaining leaves go later.
            let mut nth = 0;
            kept.retain(|_| { nth += 1; again[nth - 1] });
            starts = vec![800];
        }
    }
}

#[test]
fn proofs_that_do_not_follow_one_another_or_do_not_lead_to_their_root_stay_as_they_are() {
    let (disk, middle, _) = two_proofs();
    let before = disk.bytes(&proof_name(800));
    assert!(!rewrite(&disk, &[middle, 800], &LeafRetention::None));
    let bytes = disk.bytes(&proof_name(middle));
    let mut header = *open(&bytes).unwrap().header();
    header.root.0[3] ^= 1;
    put(&disk, &proof_name(middle), &[&header.encode()[..], &bytes[256..]].concat());
    assert!(!rewrite(&disk, &[800, middle], &LeafRetention::None));
    assert_eq!(disk.bytes(&proof_name(800)), before);
    assert_eq!(disk.list().unwrap(), [proof_name(800), proof_name(middle)]);
}

#[test]
fn a_crash_while_proofs_are_rewritten_leaves_all_of_them_once_or_twice() {
    let (mut anew, mut as_before, mut both) = (0, 0, 0);
    for seed in 0..200_u64 {
        let (disk, middle, end) = two_proofs();
        for name in disk.list().unwrap() {
            disk.open(&name).unwrap().sync().unwrap();
        }
        disk.sync_directory().unwrap();
        let after = chain_before(&disk, end).unwrap();
        disk.arm(DiskFault::CrashAt(disk.operations() + seed % 10));
        let _ =
            rewrite_proofs(&disk, &[800, middle], &LeafRetention::At(&[middle]), &mut || Ok(()));
        let mut random = SeededRng::new(seed);
        let crashed = disk.after_crash(|choices| random.below(choices as u64) as usize);
        let (first, second) =
            (proofs_in(&crashed, &proof_name(800)), crashed.open(&proof_name(middle)).is_ok());
        match (first.len(), second) {
            (2, true) => both += 1,
            (2, false) => anew += 1,
            (1, true) => as_before += 1,
            other => panic!("seed {seed}: {other:?}"),
        }
        remove_superseded(&crashed).unwrap();
        assert_eq!(crashed.open(&proof_name(middle)).is_ok(), first.len() == 1);
        assert_eq!(chain_before(&crashed, end).unwrap(), after, "seed {seed}");
    }
    assert!(anew > 0 && as_before > 0 && both > 0, "{anew} {as_before} {both}");
}

#[test]
fn a_header_that_claims_more_than_a_segment_can_hold_allocates_nothing() {
    let (_, _, good) = segment(&[5], None);
    let mut header = *open(&good).unwrap().header();
    header.count = u64::MAX;
    let forged = [&header.encode()[..], &good[256..]].concat();
    assert!(matches!(open(&forged), Err(ProofError::Impossible { .. })));
    header.end = u64::MAX;
    header.count = u64::MAX / 100;
    header.entries = u32::MAX;
    let forged = [&header.encode()[..], &good[256..]].concat();
    assert!(matches!(open(&forged), Err(ProofError::Length { .. })));
}

#[test]
fn f41_what_a_forger_makes_whole_again_is_told_by_chain_and_signature() {
    let (_, _, good) = segment(&[5, 6, 7], Some(&key()));
    let proof = open(&good).unwrap();
    let other = Digest([1; 32]);
    let expected = ProofMismatch::Before { expected: other, found: Digest([9; 32]) };
    assert_eq!(proof.verify_chain(Some(other)), Err(expected));
    let stranger = SigningKey::from_bytes(&[8; 32]);
    let found = Digest(key().verifying_key().to_bytes());
    assert_eq!(
        proof.verify_signature(&[stranger.verifying_key()]),
        Err(ProofMismatch::Signer { found })
    );
    // A header that was changed after it was signed.
    let mut header = *proof.header();
    header.last = header.last.next();
    let forged = open(&[&header.encode()[..], &good[256..]].concat()).unwrap();
    let wrong = Err(ProofMismatch::Signature { key: found });
    assert_eq!(forged.verify_signature(&[]), wrong);
    assert_eq!(forged.verify_signature(&[key().verifying_key()]), wrong);
    // The signature is removed.
    header.signature = None;
    let bare = open(&[&header.encode()[..], &good[256..]].concat()).unwrap();
    assert_eq!(bare.verify_signature(&[]), Ok(()));
    assert_eq!(bare.verify_signature(&[key().verifying_key()]), Err(ProofMismatch::Unsigned));
    // A leaf that was changed, with its block's checksum.
    let (_, _, other_bytes) = segment(&[5, 6, 8], None);
    let forged = open(&[&proof.header().encode()[..], &other_bytes[256..]].concat());
    // Positions of the two agree, because 7 and 8 have the same padding.
    let forged = forged.unwrap();
    assert!(matches!(forged.verify_chain(None), Err(ProofMismatch::Leaves { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_proof_written_from_a_file_is_the_one_built_in_memory(
        lengths in prop::collection::vec(0_usize..1000, 1..300),
        large in prop::option::of(1_000_000_usize..1_200_000),
    ) {
        let lengths: Vec<usize> = lengths.into_iter().chain(large).collect();
        let (bytes, end, proof) = segment(&lengths, Some(&key()));
        let disk = MemoryDisk::new();
        put(&disk, &segment_name(800), &bytes);
        // The remains of an earlier attempt do no harm.
        put(&disk, &proof_name(800), &[1; 100_000]);
        let mut read = 0;
        let header = write_proof(&disk, 800..end, Digest([9; 32]), Some(&key()), &mut |count| {
            read += count;
            ControlFlow::Continue(())
        });
        let header = header.unwrap();
        prop_assert_eq!(disk.bytes(&proof_name(800)), proof);
        prop_assert!(read >= end - 800);
        prop_assert_eq!(chain_before(&disk, end).unwrap(), Some(header.after));
    }
}

#[test]
fn a_segment_that_is_not_whole_gets_no_proof() {
    let (good, end, _) = segment(&[50, 60, 70], None);
    let disk = MemoryDisk::new();
    // A header, a payload, and the end.
    for at in [64 + 20, 64 + 80 + 3, good.len() - 80] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        put(&disk, &segment_name(800), &bad);
        let written = write_proof(&disk, 800..end, Digest::BIRTH, None, &mut go_on);
        assert!(matches!(written, Err(WriteProofError::Corrupt { .. })), "{written:?}");
        assert!(!disk.list().unwrap().contains(&proof_name(800)));
    }
    put(&disk, &segment_name(800), &good[..good.len() - 152]);
    let written = write_proof(&disk, 800..end, Digest::BIRTH, None, &mut go_on);
    assert!(matches!(written, Err(WriteProofError::Corrupt { .. })), "{written:?}");
}

#[test]
fn the_progress_callback_may_end_it_and_nothing_remains() {
    let (bytes, end, _) = segment(&[1_500_000, 1_500_000], None);
    let disk = MemoryDisk::new();
    put(&disk, &segment_name(800), &bytes);
    let mut chunks = 0;
    let written = write_proof(&disk, 800..end, Digest::BIRTH, None, &mut |_| {
        chunks += 1;
        if chunks == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let is_interrupted =
        matches!(written, Err(WriteProofError::Storage(StorageError::Interrupted)));
    assert!(is_interrupted, "{written:?}");
    assert_eq!((chunks, disk.list().unwrap()), (2, vec![segment_name(800)]));
}

#[test]
fn a_crash_while_a_proof_is_written_leaves_one_that_is_whole_or_unfinished() {
    let (bytes, end, proof) = segment(&[10; 300], Some(&key()));
    let (mut whole, mut unfinished, mut none) = (0, 0, 0);
    for seed in 0..200_u64 {
        let disk = MemoryDisk::new();
        put(&disk, &segment_name(800), &bytes);
        disk.open(&segment_name(800)).unwrap().sync().unwrap();
        disk.sync_directory().unwrap();
        disk.arm(DiskFault::CrashAt(disk.operations() + seed % 8));
        let written = write_proof(&disk, 800..end, Digest([9; 32]), Some(&key()), &mut go_on);
        let mut random = SeededRng::new(seed);
        let crashed = disk.after_crash(|choices| random.below(choices as u64) as usize);
        let Ok(file) = StorageFile::open(&crashed, &proof_name(800)) else {
            assert!(written.is_err(), "seed {seed}: it was said to be written");
            none += 1;
            continue;
        };
        let opened = Proof::open(file);
        let is_whole = opened.is_ok();
        match opened {
            Ok(_) => {
                assert_eq!(crashed.bytes(&proof_name(800)), proof, "seed {seed}");
                whole += 1;
            }
            Err(ProofError::Unfinished) if written.is_err() => unfinished += 1,
            Err(error) => panic!("seed {seed}: {error}"),
        }
        let chain = chain_before(&crashed, end).unwrap();
        assert_eq!(chain.is_some(), is_whole);
    }
    assert!(whole > 0 && unfinished > 0 && none > 0, "{whole} {unfinished} {none}");
}

proptest! {
    #[test]
    fn bytes_from_anywhere_are_read_as_a_proof_or_refused_and_never_more(
        edits in prop::collection::vec((0_usize..4672, any::<u8>()), 0..20),
        length in 0_usize..9000,
        right in any::<bool>(),
    ) {
        let (_, _, mut bytes) = segment(&[5; 110], Some(&key()));
        for (at, byte) in edits {
            bytes[at] = byte;
        }
        bytes.resize(length, 0x5a);
        if right && bytes.len() >= 256 {
            // Past the first checksum, to the bytes that it protects.
            let crc = crc32c::crc32c(&bytes[..252]).to_le_bytes();
            bytes[252..256].copy_from_slice(&crc);
        }
        if let Ok(mut proof) = open(&bytes) {
            let _ = proof.verify_chain(None);
            let _ = proof.verify_signature(&[]);
            for index in 0..u64::from(proof.header().entries) {
                let _ = proof.leaf_at(index).unwrap();
            }
        }
    }
}
