//! Making a proof, frame by frame. Complete blocks can be taken before the end, so that memory
//! does not grow with the segment.

use ed25519_dalek::SigningKey;
use hlc::Hlc;

use super::layout::{PROOF_ENTRIES_PER_BLOCK, ProofEntry, ProofHeader, encode_block};
use super::tree::HashTree;
use super::{Digest, LeafHasher};
use crate::journal::FRAME_BYTES;

/// Puts hashes into blocks.
#[derive(Debug)]
pub(super) struct BlockFiller {
    start: u64,
    /// The hashes of the block that is being filled.
    entries: Vec<ProofEntry>,
    /// The number of blocks that were filled.
    blocks: u64,
    filled: Vec<u8>,
}

impl BlockFiller {
    pub(super) fn new(start: u64) -> BlockFiller {
        let entries = Vec::with_capacity(PROOF_ENTRIES_PER_BLOCK);
        BlockFiller { start, entries, blocks: 0, filled: Vec::new() }
    }

    pub(super) fn add(&mut self, entry: ProofEntry) {
        self.entries.push(entry);
        if self.entries.len() == PROOF_ENTRIES_PER_BLOCK {
            self.fill();
        }
    }

    fn fill(&mut self) {
        let block = encode_block(self.start, self.blocks, &self.entries);
        self.filled.extend_from_slice(&block);
        self.blocks += 1;
        self.entries.clear();
    }

    /// Ends the last block. Returns how many hashes there are.
    pub(super) fn finish(&mut self) -> u32 {
        let rest = self.entries.len();
        let whole = self.blocks * PROOF_ENTRIES_PER_BLOCK as u64;
        if rest > 0 {
            self.fill();
        }
        u32::try_from(whole + rest as u64).expect("a segment holds fewer than 2^32 frames")
    }

    /// The number of bytes in complete blocks that wait to be taken.
    pub(super) fn filled_bytes(&self) -> u64 {
        self.filled.len() as u64
    }

    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.filled)
    }
}

/// Collects the leaves of one segment.
#[derive(Debug)]
pub struct ProofBuilder {
    header: ProofHeader,
    hasher: LeafHasher,
    next_position: u64,
    tree: HashTree,
    blocks: BlockFiller,
}

/// The rest of a proof.
#[derive(Clone, Debug)]
pub struct EncodedProof {
    pub header: ProofHeader,
    /// Blocks that were not taken yet.
    pub blocks: Vec<u8>,
}

impl EncodedProof {
    /// The bytes of a proof of which no blocks were taken before.
    pub fn bytes(&self) -> Vec<u8> {
        [&self.header.encode()[..], &self.blocks].concat()
    }
}

impl ProofBuilder {
    /// Begins the proof of the segment at `start`. `before` is the chain at the end of its
    /// predecessor, and [`Digest::BIRTH`] at position 0.
    pub fn new(start: u64, before: Digest) -> ProofBuilder {
        let header = ProofHeader {
            start,
            end: start,
            count: 0,
            first: Hlc::ZERO,
            last: Hlc::ZERO,
            before,
            after: before,
            root: Digest::default(),
            entries: 0,
            signature: None,
        };
        let (hasher, tree) = (LeafHasher::default(), HashTree::default());
        ProofBuilder { header, hasher, next_position: start, tree, blocks: BlockFiller::new(start) }
    }

    /// Adds a frame, whose payload is the concatenation of `parts`.
    pub fn frame(&mut self, position: u64, header: &[u8; FRAME_BYTES], parts: &[&[u8]]) {
        for bytes in parts {
            self.hasher.payload(bytes);
        }
        let leaf = self.hasher.leaf(position, header);
        self.leaf(position, leaf, stamp_of(header));
    }

    /// Adds a frame whose leaf is known.
    ///
    /// # Panics
    /// If frames do not come in the order of their positions.
    pub fn leaf(&mut self, position: u64, leaf: Digest, stamp: Hlc) {
        assert!(position >= self.next_position, "leaves stand by position: {position}");
        self.next_position = position + FRAME_BYTES as u64;
        let header = &mut self.header;
        if header.count == 0 {
            header.first = stamp;
        }
        header.last = stamp;
        header.count += 1;
        let entry = ProofEntry::Leaf(position, leaf);
        self.tree.add(entry.subtree()).expect("a leaf fits anywhere");
        self.blocks.add(entry);
    }

    /// The number of bytes in complete blocks that wait to be taken.
    pub fn filled_bytes(&self) -> u64 {
        self.blocks.filled_bytes()
    }

    /// Takes the complete blocks: they follow the header's place, in this order.
    pub fn take_blocks(&mut self) -> Vec<u8> {
        self.blocks.take()
    }

    /// Ends the proof of a segment that ends at `end`, signed if there is a key.
    pub fn finish(mut self, end: u64, key: Option<&SigningKey>) -> EncodedProof {
        self.header.entries = self.blocks.finish();
        self.header.end = end;
        self.header.root = self.tree.root();
        self.header.after = self.header.before.follow(self.header.root);
        if let Some(key) = key {
            self.header.sign(key);
        }
        EncodedProof { header: self.header, blocks: self.blocks.take() }
    }
}

fn stamp_of(header: &[u8; FRAME_BYTES]) -> Hlc {
    Hlc::from_bits(u64::from_le_bytes(header[16..24].try_into().expect("eight bytes of eighty")))
}
