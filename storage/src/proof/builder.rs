//! Making a proof, frame by frame. What is whole can be taken away before the end, so that memory
//! does not grow with the segment.

use ed25519_dalek::SigningKey;
use hlc::Hlc;

use super::layout::{PROOF_ENTRIES_PER_BLOCK, ProofHeader, encode_block};
use super::{Digest, LeafHasher};
use crate::journal::FRAME_BYTES;

/// Collects the leaves of one segment.
#[derive(Debug)]
pub struct ProofBuilder {
    header: ProofHeader,
    hasher: LeafHasher,
    /// Entries of the block that is being filled, by position.
    entries: Vec<(u64, Digest)>,
    next_position: u64,
    /// How many blocks were filled.
    blocks: u64,
    filled: Vec<u8>,
}

/// The rest of a proof.
#[derive(Clone, Debug)]
pub struct Finished {
    /// What the header says.
    pub header: ProofHeader,
    /// Blocks that were not taken yet.
    pub blocks: Vec<u8>,
}

impl Finished {
    /// The bytes of a proof of which no blocks were taken before.
    pub fn bytes(&self) -> Vec<u8> {
        [&self.header.encode()[..], &self.blocks].concat()
    }
}

impl ProofBuilder {
    /// Begins the proof of the segment at `start`; `before` is the chain where its predecessor ends,
    /// and [`Digest::BIRTH`] at position 0.
    pub fn new(start: u64, before: Digest) -> ProofBuilder {
        let header = ProofHeader {
            start,
            end: start,
            count: 0,
            first: Hlc::ZERO,
            last: Hlc::ZERO,
            before,
            after: before,
            signature: None,
        };
        let entries = Vec::with_capacity(PROOF_ENTRIES_PER_BLOCK);
        let hasher = LeafHasher::default();
        ProofBuilder {
            header,
            hasher,
            entries,
            next_position: start,
            blocks: 0,
            filled: Vec::new(),
        }
    }

    /// Adds a frame, whose payload is `parts`, one after the other.
    pub fn frame(&mut self, position: u64, header: &[u8; FRAME_BYTES], parts: &[&[u8]]) {
        for part in parts {
            self.hasher.payload(part);
        }
        let leaf = self.hasher.leaf(position, header);
        self.leaf(position, leaf, stamp_of(header));
    }

    /// Adds a frame of which the leaf is known.
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
        header.after = header.after.follow(leaf);
        self.entries.push((position, leaf));
        if self.entries.len() == PROOF_ENTRIES_PER_BLOCK {
            self.fill();
        }
    }

    fn fill(&mut self) {
        let block = encode_block(self.header.start, self.blocks, &self.entries);
        self.filled.extend_from_slice(&block);
        self.blocks += 1;
        self.entries.clear();
    }

    /// How many bytes of whole blocks wait to be taken.
    pub fn filled_bytes(&self) -> u64 {
        self.filled.len() as u64
    }

    /// Takes the blocks that are whole: they follow, in this order, behind the header's place.
    pub fn take_blocks(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.filled)
    }

    /// Ends the proof of a segment that ends at `end`, signed if there is a key.
    pub fn finish(mut self, end: u64, key: Option<&SigningKey>) -> Finished {
        if !self.entries.is_empty() {
            self.fill();
        }
        self.header.end = end;
        if let Some(key) = key {
            self.header.sign(key);
        }
        Finished { header: self.header, blocks: self.filled }
    }
}

fn stamp_of(header: &[u8; FRAME_BYTES]) -> Hlc {
    Hlc::from_bits(u64::from_le_bytes(header[16..24].try_into().expect("eight bytes of eighty")))
}
