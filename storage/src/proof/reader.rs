//! Reading a proof back: its structure first, then its claims.

use std::io;
use std::sync::Arc;

use ed25519_dalek::VerifyingKey;

use super::Digest;
use super::layout::{
    BLOCKS_AT, PROOF_BLOCK_BYTES, PROOF_ENTRIES_PER_BLOCK, PROOF_HEADER_BYTES, ProofHeader,
    decode_block,
};
use crate::disk::{DiskFile, read_exact_at};
use crate::journal::FRAME_BYTES;

/// How many blocks are read at once.
const BLOCKS_AT_ONCE: u64 = 64;

/// Why bytes are no proof.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// It was being written when the machine stopped: its header is the last of it that is written.
    #[error("the proof is not finished")]
    Unfinished,
    /// The header is not whole.
    #[error("the proof's header is not whole")]
    Header,
    /// The header's numbers cannot be those of a segment.
    #[error("the proof's header contradicts itself. start={start}, end={end}, frames={count}")]
    Impossible {
        /// Where it says that the segment begins.
        start: u64,
        /// Where it says that it ends.
        end: u64,
        /// How many frames it says there are.
        count: u64,
    },
    /// The file is too short, or too long.
    #[error(
        "the proof has another length than its header says. length={found}, expected={expected}"
    )]
    Length {
        /// By the header.
        expected: u64,
        /// Of the file.
        found: u64,
    },
    /// A block's checksum does not match.
    #[error("a block of the proof is not whole. block={index}")]
    Block {
        /// Which, from 0.
        index: u64,
    },
    /// Its entries do not stand by position, or lie outside of the segment.
    #[error("the proof's entries are out of order. position={position}")]
    Order {
        /// The position of the first that is.
        position: u64,
    },
    /// The disk failed.
    #[error("read proof: {0}")]
    Disk(#[from] io::Error),
}

/// What a proof claims and is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// It does not begin where the chain before it ended.
    #[error("the chain does not continue. expected={expected}, found={found}")]
    Before {
        /// Where it ended.
        expected: Digest,
        /// Where this proof begins.
        found: Digest,
    },
    /// Its leaves do not lead from where it begins to where it says that they end.
    #[error("the leaves do not lead to the end of the chain. expected={expected}, found={found}")]
    Leaves {
        /// By the header.
        expected: Digest,
        /// By the leaves.
        found: Digest,
    },
    /// Nobody signed it.
    #[error("the proof is not signed")]
    Unsigned,
    /// The wrong one signed it.
    #[error("the proof is signed by another key. key={found}")]
    Signer {
        /// The public key.
        found: Digest,
    },
    /// The signature is not that of the key that it names.
    #[error("the signature does not match. key={key}")]
    Signature {
        /// The public key.
        key: Digest,
    },
}

/// A leaf of a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Which of the proof's, from 0.
    pub index: u64,
    /// The position of its frame.
    pub position: u64,
    /// The hash.
    pub digest: Digest,
}

/// A proof whose structure is whole. Whether its claims hold is asked of it one by one. It keeps 8
/// bytes a block in memory, and one block.
pub struct Proof {
    header: ProofHeader,
    is_cut: bool,
    file: Arc<dyn DiskFile>,
    /// The position of each block's first entry.
    firsts: Vec<u64>,
    folded: Digest,
    held: Option<(u64, Vec<(u64, Digest)>)>,
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proof").field("header", &self.header).finish_non_exhaustive()
    }
}

impl ProofHeader {
    /// Reads the header of a proof, and sees that it is one of a file of this length, or of one whose
    /// leaves were cut off.
    ///
    /// # Errors
    /// [`ProofError`].
    pub fn read(file: &dyn DiskFile) -> Result<ProofHeader, ProofError> {
        let mut bytes = [0; PROOF_HEADER_BYTES];
        let read = file.read_at(&mut bytes, 0)?;
        if bytes == [0; PROOF_HEADER_BYTES] {
            return Err(ProofError::Unfinished);
        }
        let whole = if read < bytes.len() { None } else { ProofHeader::decode(&bytes) };
        let header = whole.ok_or(ProofError::Header)?;
        let ProofHeader { start, end, count, .. } = header;
        // A frame takes at least its header. So what follows is bounded by what a segment can be.
        if end < start || count > (end - start) / FRAME_BYTES as u64 {
            return Err(ProofError::Impossible { start, end, count });
        }
        let expected = header.blocks().saturating_mul(PROOF_BLOCK_BYTES as u64);
        let expected = expected.saturating_add(BLOCKS_AT);
        let found = file.length()?;
        if found != expected && found != BLOCKS_AT {
            return Err(ProofError::Length { expected, found });
        }
        Ok(header)
    }
}

impl Proof {
    /// Reads a proof from front to back, and sees that its structure is whole.
    ///
    /// # Errors
    /// [`ProofError`].
    pub fn open(file: Arc<dyn DiskFile>) -> Result<Proof, ProofError> {
        let header = ProofHeader::read(&*file)?;
        let is_cut = header.count > 0 && file.length()? == BLOCKS_AT;
        let (firsts, folded) = (Vec::new(), header.before);
        let mut proof = Proof { header, is_cut, file, firsts, folded, held: None };
        if !is_cut {
            // Bounded by the file's length, which was compared.
            proof.firsts.reserve(header.blocks() as usize);
            proof.walk()?;
        }
        Ok(proof)
    }

    fn walk(&mut self) -> Result<(), ProofError> {
        let blocks = self.header.blocks();
        let mut next_position = self.header.start;
        let mut index = 0;
        while index < blocks {
            let count = (blocks - index).min(BLOCKS_AT_ONCE);
            let mut bytes = vec![0; count as usize * PROOF_BLOCK_BYTES];
            read_exact_at(&*self.file, &mut bytes, block_at(index))?;
            for bytes in bytes.chunks_exact(PROOF_BLOCK_BYTES) {
                let entries = self.entries(index, bytes)?;
                self.firsts.push(entries.first().map_or(0, |(position, _)| *position));
                for (position, leaf) in entries {
                    if position < next_position
                        || position > self.header.end.saturating_sub(FRAME_BYTES as u64)
                    {
                        return Err(ProofError::Order { position });
                    }
                    next_position = position + FRAME_BYTES as u64;
                    self.folded = self.folded.follow(leaf);
                }
                index += 1;
            }
        }
        Ok(())
    }

    fn entries(&self, index: u64, bytes: &[u8]) -> Result<Vec<(u64, Digest)>, ProofError> {
        let before = index * PROOF_ENTRIES_PER_BLOCK as u64;
        let expected = (self.header.count - before).min(PROOF_ENTRIES_PER_BLOCK as u64);
        decode_block(self.header.start, index, bytes)
            .filter(|entries| entries.len() as u64 == expected)
            .ok_or(ProofError::Block { index })
    }

    /// What the header says.
    pub fn header(&self) -> &ProofHeader {
        &self.header
    }

    /// Whether its leaves were cut off: nothing is kept any more of what they spoke of. It has none
    /// then, and its header stands for them in the chain.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether it continues the chain that ended with `before`, if that is known, and whether its
    /// leaves lead to its end.
    ///
    /// # Errors
    /// [`Mismatch`].
    pub fn verify_chain(&self, before: Option<Digest>) -> Result<(), Mismatch> {
        let found = self.header.before;
        let expected = if self.header.start == 0 { Some(Digest::BIRTH) } else { before };
        match expected {
            Some(expected) if expected != found => Err(Mismatch::Before { expected, found }),
            _ if !self.is_cut && self.folded != self.header.after => {
                Err(Mismatch::Leaves { expected: self.header.after, found: self.folded })
            }
            _ => Ok(()),
        }
    }

    /// Whether the signature is good, and by one of `keys`; where `keys` is empty, anybody's will do,
    /// and none.
    ///
    /// # Errors
    /// [`Mismatch`].
    pub fn verify_signature(&self, keys: &[VerifyingKey]) -> Result<(), Mismatch> {
        let Some(signature) = &self.header.signature else {
            return if keys.is_empty() { Ok(()) } else { Err(Mismatch::Unsigned) };
        };
        let key = signature.key;
        if !keys.is_empty() && !keys.iter().any(|known| known.to_bytes() == key.0) {
            return Err(Mismatch::Signer { found: key });
        }
        let bytes = ed25519_dalek::Signature::from_bytes(&signature.bytes);
        VerifyingKey::from_bytes(&key.0)
            .and_then(|key| key.verify_strict(&self.header.signed_bytes(), &bytes))
            .map_err(|_| Mismatch::Signature { key })
    }

    /// The leaf of the frame at `position`, if it has one.
    ///
    /// # Errors
    /// [`ProofError`]: the file was whole when it was opened, and is not any more.
    pub fn leaf(&mut self, position: u64) -> Result<Option<Leaf>, ProofError> {
        let after = self.firsts.partition_point(|first| *first <= position);
        let Some(block) = after.checked_sub(1) else { return Ok(None) };
        let entries = self.block(block as u64)?;
        let Ok(index) = entries.binary_search_by_key(&position, |(position, _)| *position) else {
            return Ok(None);
        };
        let digest = entries[index].1;
        let index = (block * PROOF_ENTRIES_PER_BLOCK + index) as u64;
        Ok(Some(Leaf { index, position, digest }))
    }

    /// Leaf number `index`, if there are so many.
    ///
    /// # Errors
    /// As [`Proof::leaf`].
    pub fn leaf_at(&mut self, index: u64) -> Result<Option<Leaf>, ProofError> {
        if index >= self.header.count || self.is_cut {
            return Ok(None);
        }
        let entries = self.block(index / PROOF_ENTRIES_PER_BLOCK as u64)?;
        let (position, digest) = entries[(index % PROOF_ENTRIES_PER_BLOCK as u64) as usize];
        Ok(Some(Leaf { index, position, digest }))
    }

    fn block(&mut self, index: u64) -> Result<&[(u64, Digest)], ProofError> {
        if self.held.as_ref().is_none_or(|(held, _)| *held != index) {
            let mut bytes = vec![0; PROOF_BLOCK_BYTES];
            read_exact_at(&*self.file, &mut bytes, block_at(index))?;
            self.held = Some((index, self.entries(index, &bytes)?));
        }
        Ok(self.held.as_ref().map(|(_, entries)| &entries[..]).unwrap_or_default())
    }
}

fn block_at(index: u64) -> u64 {
    BLOCKS_AT + index * PROOF_BLOCK_BYTES as u64
}
