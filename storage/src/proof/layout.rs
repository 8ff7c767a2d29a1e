//! The layout of a proof: a header, then blocks of hashes. `docs/FORMAT.md` has the details.

use ed25519_dalek::{Signer, SigningKey};
use hlc::Hlc;

use super::Digest;
use super::tree::Subtree;

pub const PROOF_HEADER_BYTES: usize = 256;
/// The position at which the first block begins.
pub(super) const BLOCKS_AT: u64 = PROOF_HEADER_BYTES as u64;
/// The length of a block of hashes, except the last.
pub const PROOF_BLOCK_BYTES: usize = block_bytes(PROOF_ENTRIES_PER_BLOCK);
/// The number of hashes that a block has, except the last.
pub const PROOF_ENTRIES_PER_BLOCK: usize = 102;
const MAGIC: &[u8; 8] = b"FFPROOF1";
const VERSION: u32 = 3;
const ENTRY_BYTES: usize = 40;
/// The bytes that a signature covers: everything before itself and its key.
const SIGNED_BYTES: usize = 120;
const KEY_AT: usize = SIGNED_BYTES;
const SIGNATURE_AT: usize = KEY_AT + 32;
const ROOT_AT: usize = SIGNATURE_AT + 64;
const ENTRIES_AT: usize = ROOT_AT + 32;
const CRC_AT: usize = PROOF_HEADER_BYTES - 4;
/// The length of the trailer after the hashes of a block: their number, and a checksum.
const TRAILER_BYTES: usize = 8;
/// In place of a position: what follows is not a leaf, and the other bits say how many leaves it
/// stands for.
const IS_SUBTREE: u64 = 1 << 63;

/// One of the hashes in a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProofEntry {
    /// The leaf of the frame at a position.
    Leaf(u64, Digest),
    /// A hash that stands for leaves that were pruned.
    Pruned(Subtree),
}

impl ProofEntry {
    /// The subtree of the hash.
    pub(super) fn subtree(&self) -> Subtree {
        match *self {
            ProofEntry::Leaf(_, digest) => Subtree { leaves: 1, digest },
            ProofEntry::Pruned(subtree) => subtree,
        }
    }

    fn encode(&self, bytes: &mut [u8]) {
        let (place, digest) = match *self {
            ProofEntry::Leaf(position, digest) => (position, digest),
            ProofEntry::Pruned(Subtree { leaves, digest }) => (leaves | IS_SUBTREE, digest),
        };
        bytes[..8].copy_from_slice(&place.to_le_bytes());
        bytes[8..].copy_from_slice(&digest.0);
    }

    fn decode(bytes: &[u8]) -> ProofEntry {
        let (place, digest) = bytes.split_at(8);
        let place = u64::from_le_bytes(place.try_into().expect("eight bytes"));
        let digest = Digest(digest.try_into().expect("thirty-two bytes"));
        if place & IS_SUBTREE == 0 {
            return ProofEntry::Leaf(place, digest);
        }
        ProofEntry::Pruned(Subtree { leaves: place & !IS_SUBTREE, digest })
    }
}

/// A signature, and the key that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofSignature {
    /// The public key, Ed25519.
    pub key: Digest,
    /// The signature of the header's first 120 bytes.
    pub bytes: [u8; 64],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofHeader {
    /// The position at which the segment begins.
    pub start: u64,
    pub end: u64,
    /// The number of frames that it has.
    pub count: u64,
    /// The stamp of the first frame.
    pub first: Hlc,
    /// The stamp of the last frame.
    pub last: Hlc,
    /// The chain before the first frame.
    pub before: Digest,
    /// The chain after the last frame: `before`, followed by the root.
    pub after: Digest,
    /// The root of the tree over its leaves.
    pub root: Digest,
    /// The number of hashes that follow: one for each frame, until some were pruned.
    pub entries: u32,
    /// Its signature, if it is signed.
    pub signature: Option<ProofSignature>,
}

impl ProofHeader {
    pub fn sign(&mut self, key: &SigningKey) {
        // The signed bytes say whether there is a signature.
        let placeholder = ProofSignature { key: Digest::default(), bytes: [0; 64] };
        self.signature = Some(placeholder);
        let bytes = key.sign(&self.signed_bytes()).to_bytes();
        self.signature =
            Some(ProofSignature { key: Digest(key.verifying_key().to_bytes()), bytes });
    }

    /// The bytes that a signature covers.
    pub fn signed_bytes(&self) -> [u8; SIGNED_BYTES] {
        let mut bytes = [0; SIGNED_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = u8::from(self.signature.is_some());
        bytes[16..24].copy_from_slice(&self.start.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.end.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.count.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.first.bits().to_le_bytes());
        bytes[48..56].copy_from_slice(&self.last.bits().to_le_bytes());
        bytes[56..88].copy_from_slice(&self.before.0);
        bytes[88..].copy_from_slice(&self.after.0);
        bytes
    }

    pub fn encode(&self) -> [u8; PROOF_HEADER_BYTES] {
        let mut bytes = [0; PROOF_HEADER_BYTES];
        bytes[..SIGNED_BYTES].copy_from_slice(&self.signed_bytes());
        if let Some(signature) = &self.signature {
            bytes[KEY_AT..SIGNATURE_AT].copy_from_slice(&signature.key.0);
            bytes[SIGNATURE_AT..ROOT_AT].copy_from_slice(&signature.bytes);
        }
        bytes[ROOT_AT..ENTRIES_AT].copy_from_slice(&self.root.0);
        bytes[ENTRIES_AT..CRC_AT].copy_from_slice(&self.entries.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8; PROOF_HEADER_BYTES]) -> Option<ProofHeader> {
        let crc = u32::from_le_bytes(bytes[CRC_AT..].try_into().ok()?);
        let version = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        if &bytes[..8] != MAGIC || version != VERSION || crc != crc32c::crc32c(&bytes[..CRC_AT]) {
            return None;
        }
        let u64_at = |at: usize| {
            u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes of a header"))
        };
        let digest_at = |at: usize| {
            Digest(bytes[at..at + 32].try_into().expect("thirty-two bytes of a header"))
        };
        let signature = ProofSignature {
            key: digest_at(KEY_AT),
            bytes: bytes[SIGNATURE_AT..ROOT_AT].try_into().ok()?,
        };
        Some(ProofHeader {
            start: u64_at(16),
            end: u64_at(24),
            count: u64_at(32),
            first: Hlc::from_bits(u64_at(40)),
            last: Hlc::from_bits(u64_at(48)),
            before: digest_at(56),
            after: digest_at(88),
            root: digest_at(ROOT_AT),
            entries: u32::from_le_bytes(bytes[ENTRIES_AT..CRC_AT].try_into().ok()?),
            signature: (bytes[12] == 1).then_some(signature),
        })
    }

    /// The number of blocks that follow the header.
    pub fn blocks(&self) -> u64 {
        u64::from(self.entries).div_ceil(PROOF_ENTRIES_PER_BLOCK as u64)
    }

    /// Its length with its blocks.
    pub fn length(&self) -> u64 {
        let hashes = u64::from(self.entries) * ENTRY_BYTES as u64;
        BLOCKS_AT + hashes + self.blocks() * TRAILER_BYTES as u64
    }

    /// Returns true if all its leaves were pruned.
    pub fn is_pruned(&self) -> bool {
        self.count > 0 && self.entries == 0
    }
}

/// The length of a block of this many hashes.
pub(super) const fn block_bytes(entries: usize) -> usize {
    entries * ENTRY_BYTES + TRAILER_BYTES
}

/// The bytes of block `index` of the proof that begins at `start`.
pub(super) fn encode_block(start: u64, index: u64, entries: &[ProofEntry]) -> Vec<u8> {
    debug_assert!(entries.len() <= PROOF_ENTRIES_PER_BLOCK);
    let mut bytes = vec![0; block_bytes(entries.len())];
    for (bytes, entry) in bytes.chunks_exact_mut(ENTRY_BYTES).zip(entries) {
        entry.encode(bytes);
    }
    let count_at = bytes.len() - TRAILER_BYTES;
    bytes[count_at..count_at + 4].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    let crc = block_crc(start, index, &bytes[..count_at + 4]);
    bytes[count_at + 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The hashes of a block; `None` if the bytes are not a block, or are another block.
pub(super) fn decode_block(start: u64, index: u64, bytes: &[u8]) -> Option<Vec<ProofEntry>> {
    let (bytes, crc) = bytes.split_last_chunk::<4>()?;
    let (hashes, count) = bytes.split_last_chunk::<4>()?;
    let count = u32::from_le_bytes(*count) as usize;
    let is_whole = u32::from_le_bytes(*crc) == block_crc(start, index, bytes);
    if !is_whole || count > PROOF_ENTRIES_PER_BLOCK || hashes.len() != count * ENTRY_BYTES {
        return None;
    }
    Some(hashes.chunks_exact(ENTRY_BYTES).map(ProofEntry::decode).collect())
}

/// The checksum of a block. It covers the block's place, so a block at another place is not valid.
fn block_crc(start: u64, index: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&start.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &index.to_le_bytes());
    crc32c::crc32c_append(crc, bytes)
}
