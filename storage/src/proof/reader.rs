//! Reading a proof back: its structure first, then its claims.

use ed25519_dalek::VerifyingKey;

use super::Digest;
use super::layout::{
    BLOCKS_AT, PROOF_BLOCK_BYTES, PROOF_ENTRIES_PER_BLOCK, PROOF_HEADER_BYTES, ProofEntry,
    ProofHeader, decode_block,
};
use super::tree::HashTree;
use crate::error::StorageError;
use crate::journal::FRAME_BYTES;
use crate::storage_file::StorageFile;

/// The number of blocks that are read at once.
const BLOCKS_AT_ONCE: u64 = 64;

/// The reason bytes are not a proof.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    /// It was being written when the machine stopped: its header is written last.
    #[error("the proof is not finished")]
    Unfinished,
    /// The header is not intact.
    #[error("the proof's header is not whole")]
    Header,
    /// The header's numbers cannot be those of a segment.
    #[error("the proof's header contradicts itself: {count} frames from {start} to {end}")]
    Impossible {
        /// The position at which the segment begins, by the header.
        start: u64,
        /// The position at which it ends, by the header.
        end: u64,
        /// The number of frames that it has, by the header.
        count: u64,
    },
    /// In a file of several proofs, it does not begin where the previous one ends.
    #[error("a proof of the file begins at {found}, and the one before ends at {expected}")]
    NotContiguous {
        /// The position at which the previous one ends.
        expected: u64,
        /// The position at which it begins.
        found: u64,
    },
    /// Its hashes do not stand for as many leaves as its header says.
    #[error("the proof's hashes are not those of a tree over its {count} frames")]
    Tree {
        /// The number of frames by the header.
        count: u64,
    },
    /// The file is too short, or too long.
    #[error("the proof is {found} bytes long, and its header says {expected}")]
    Length {
        /// The length by the header.
        expected: u64,
        /// The length of the file.
        found: u64,
    },
    /// A block's checksum does not match.
    #[error("block {index} of the proof is not whole")]
    Block {
        /// The number of the block, from 0.
        index: u64,
    },
    /// Its entries are not in order of position, or lie outside of the segment.
    #[error("the proof's entries are out of order at position {position}")]
    Order {
        /// The position of the first such entry.
        position: u64,
    },
    /// It cannot be read.
    #[error("read proof: {0}")]
    Storage(#[from] StorageError),
}

/// A claim of a proof that is false.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofMismatch {
    /// It does not begin where the chain before it ended.
    #[error("the chain does not continue: it was at {expected}, and goes on at {found}")]
    Before {
        /// The chain value at its end.
        expected: Digest,
        /// The chain value at the beginning of this proof.
        found: Digest,
    },
    /// Its leaves do not lead to the root in its header, or the root does not lead from the
    /// beginning of the chain to the end in its header.
    #[error("the leaves lead to {found}, and not to the end of the chain, {expected}")]
    Leaves {
        /// The chain value by the header.
        expected: Digest,
        /// The chain value by the leaves.
        found: Digest,
    },
    /// It is not signed.
    #[error("the proof is not signed")]
    Unsigned,
    /// Another key signed it.
    #[error("the proof is signed by another key, {found}")]
    Signer {
        /// The public key.
        found: Digest,
    },
    /// The signature is not that of the key that it names.
    #[error("the signature does not match key {key}")]
    Signature {
        /// The public key.
        key: Digest,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofLeaf {
    /// The number of the hash in the proof, from 0.
    pub index: u64,
    pub position: u64,
    pub digest: Digest,
}

/// A proof whose structure is intact. Its claims are verified one by one. It keeps 8 bytes a block
/// in memory, and one block.
pub struct Proof {
    header: ProofHeader,
    file: StorageFile,
    /// The position in the file at which it begins.
    at: u64,
    /// For each block a position: above all frames of earlier blocks, and not above any frame of
    /// this one.
    firsts: Vec<u64>,
    root: Digest,
    cached_block: Option<(u64, Vec<ProofEntry>)>,
}

impl std::fmt::Debug for Proof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proof").field("header", &self.header).finish_non_exhaustive()
    }
}

/// A proof in a file of several, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofLocation {
    /// The position in the file at which it begins.
    pub at: u64,
    pub header: ProofHeader,
}

impl ProofLocation {
    /// Reads the headers of all proofs in a file, in order; there is at least one.
    ///
    /// # Errors
    /// [`ProofError`]: one of them is not a proof, or the file does not end with the last of them.
    pub fn read_all(file: &StorageFile) -> Result<Vec<ProofLocation>, ProofError> {
        let (mut placed, mut at): (Vec<ProofLocation>, u64) = (Vec::new(), 0);
        let found = file.length()?;
        while at < found || placed.is_empty() {
            let header = read_header(file, at)?;
            if let Some(before) = placed.last()
                && before.header.end != header.start
            {
                let expected = before.header.end;
                return Err(ProofError::NotContiguous { expected, found: header.start });
            }
            placed.push(ProofLocation { at, header });
            at = at.saturating_add(header.length());
            if at > found {
                return Err(ProofError::Length { expected: at, found });
            }
        }
        Ok(placed)
    }
}

fn read_header(file: &StorageFile, at: u64) -> Result<ProofHeader, ProofError> {
    let mut bytes = [0; PROOF_HEADER_BYTES];
    let read = file.read_at(&mut bytes, at)?;
    if at == 0 && bytes == [0; PROOF_HEADER_BYTES] {
        return Err(ProofError::Unfinished);
    }
    let whole = if read < bytes.len() { None } else { ProofHeader::decode(&bytes) };
    let header = whole.ok_or(ProofError::Header)?;
    let ProofHeader { start, end, count, entries, .. } = header;
    // A frame takes at least its header. So the number of hashes is bounded by the size of a
    // segment.
    if end < start || count > (end - start) / FRAME_BYTES as u64 || u64::from(entries) > count {
        return Err(ProofError::Impossible { start, end, count });
    }
    Ok(header)
}

impl Proof {
    /// Reads the first proof of a file, and verifies its structure.
    ///
    /// # Errors
    /// [`ProofError`].
    pub fn open(file: StorageFile) -> Result<Proof, ProofError> {
        let first = ProofLocation::read_all(&file)?[0];
        Proof::open_at(file, first)
    }

    /// Reads one of the proofs of a file from beginning to end, and verifies its structure.
    ///
    /// # Errors
    /// [`ProofError`].
    pub fn open_at(
        file: StorageFile,
        ProofLocation { at, header }: ProofLocation,
    ) -> Result<Proof, ProofError> {
        // Bounded by the file's length, which was compared.
        let firsts = Vec::with_capacity(header.blocks() as usize);
        let mut proof = Proof { header, file, at, firsts, root: header.root, cached_block: None };
        if !header.is_pruned() {
            let mut tree = HashTree::default();
            proof.walk(&mut |_, entry| Ok(tree.add(entry.subtree()).is_some()))?;
            if tree.leaves() != header.count {
                return Err(ProofError::Tree { count: header.count });
            }
            proof.root = tree.root();
        }
        Ok(proof)
    }

    /// Calls `visit` with every hash and the number of its block. If `visit` returns false, it is
    /// not a tree.
    fn walk(
        &mut self,
        visit: &mut dyn FnMut(u64, ProofEntry) -> Result<bool, ProofError>,
    ) -> Result<(), ProofError> {
        let blocks = self.header.blocks();
        let last = self.header.end.saturating_sub(FRAME_BYTES as u64);
        let mut next_position = self.header.start;
        let mut index = 0;
        self.firsts.clear();
        while index < blocks {
            let behind = (index + BLOCKS_AT_ONCE).min(blocks);
            let length = self.block_at(behind) - self.block_at(index);
            let mut bytes = vec![0; length as usize];
            self.file.read_exact_at(&mut bytes, self.block_at(index))?;
            for bytes in bytes.chunks(PROOF_BLOCK_BYTES) {
                self.firsts.push(next_position);
                for entry in self.entries(index, bytes)? {
                    if let ProofEntry::Leaf(position, _) = entry {
                        if position < next_position || position > last {
                            return Err(ProofError::Order { position });
                        }
                        next_position = position + FRAME_BYTES as u64;
                    }
                    if !visit(index, entry)? {
                        return Err(ProofError::Tree { count: self.header.count });
                    }
                }
                index += 1;
            }
        }
        Ok(())
    }

    /// Calls `visit` with every hash, in order.
    pub(super) fn for_each_entry(
        &mut self,
        visit: &mut dyn FnMut(ProofEntry) -> Result<(), StorageError>,
    ) -> Result<(), ProofError> {
        self.walk(&mut |_, entry| Ok(visit(entry).map(|()| true)?))
    }

    fn entries(&self, index: u64, bytes: &[u8]) -> Result<Vec<ProofEntry>, ProofError> {
        let before = index * PROOF_ENTRIES_PER_BLOCK as u64;
        let remaining = u64::from(self.header.entries) - before;
        decode_block(self.header.start, index, bytes)
            .filter(|entries| entries.len() as u64 == remaining.min(PROOF_ENTRIES_PER_BLOCK as u64))
            .ok_or(ProofError::Block { index })
    }

    pub(crate) fn file_name(&self) -> &str {
        self.file.name()
    }

    pub fn header(&self) -> &ProofHeader {
        &self.header
    }

    /// Returns true if all its leaves were pruned: none of its frames is kept. Its header stands
    /// for them in the chain.
    pub fn is_pruned(&self) -> bool {
        self.header.is_pruned()
    }

    /// Verifies that it continues the chain that ended with `before`, if that is known, and that
    /// its leaves lead to its end.
    ///
    /// # Errors
    /// [`ProofMismatch`].
    pub fn verify_chain(&self, before: Option<Digest>) -> Result<(), ProofMismatch> {
        let header = &self.header;
        let found = header.before;
        let expected = if header.start == 0 { Some(Digest::BIRTH) } else { before };
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(ProofMismatch::Before { expected, found });
        }
        let led_to = [(header.root, self.root), (header.after, found.follow(header.root))];
        match led_to.into_iter().find(|(expected, found)| expected != found) {
            Some((expected, found)) => Err(ProofMismatch::Leaves { expected, found }),
            None => Ok(()),
        }
    }

    /// Verifies that the signature is valid, and by one of `keys`. If `keys` is empty, any key is
    /// accepted, and so is no signature.
    ///
    /// # Errors
    /// [`ProofMismatch`].
    pub fn verify_signature(&self, keys: &[VerifyingKey]) -> Result<(), ProofMismatch> {
        let Some(signature) = &self.header.signature else {
            return if keys.is_empty() { Ok(()) } else { Err(ProofMismatch::Unsigned) };
        };
        let key = signature.key;
        if !keys.is_empty() && !keys.iter().any(|trusted| trusted.to_bytes() == key.0) {
            return Err(ProofMismatch::Signer { found: key });
        }
        let bytes = ed25519_dalek::Signature::from_bytes(&signature.bytes);
        VerifyingKey::from_bytes(&key.0)
            .and_then(|key| key.verify_strict(&self.header.signed_bytes(), &bytes))
            .map_err(|_| ProofMismatch::Signature { key })
    }

    /// The leaf of the frame at `position`, if it has one.
    ///
    /// # Errors
    /// [`ProofError`]: the file was intact when it was opened, and is not any more.
    pub fn leaf(&mut self, position: u64) -> Result<Option<ProofLeaf>, ProofError> {
        let after = self.firsts.partition_point(|first| *first <= position);
        let Some(block) = after.checked_sub(1) else { return Ok(None) };
        let is_it =
            |entry: &ProofEntry| matches!(entry, ProofEntry::Leaf(at, _) if *at == position);
        let Some(index) = self.block(block as u64)?.iter().position(is_it) else { return Ok(None) };
        self.leaf_at((block * PROOF_ENTRIES_PER_BLOCK + index) as u64)
    }

    /// The leaf that is hash number `index`, if that exists and is a leaf.
    ///
    /// # Errors
    /// As [`Proof::leaf`].
    pub fn leaf_at(&mut self, index: u64) -> Result<Option<ProofLeaf>, ProofError> {
        if index >= u64::from(self.header.entries) {
            return Ok(None);
        }
        let entries = self.block(index / PROOF_ENTRIES_PER_BLOCK as u64)?;
        Ok(match entries[(index % PROOF_ENTRIES_PER_BLOCK as u64) as usize] {
            ProofEntry::Leaf(position, digest) => Some(ProofLeaf { index, position, digest }),
            ProofEntry::Pruned(_) => None,
        })
    }

    fn block(&mut self, index: u64) -> Result<&[ProofEntry], ProofError> {
        if self.cached_block.as_ref().is_none_or(|(cached, _)| *cached != index) {
            let length = self.block_at(index + 1) - self.block_at(index);
            let mut bytes = vec![0; length as usize];
            self.file.read_exact_at(&mut bytes, self.block_at(index))?;
            self.cached_block = Some((index, self.entries(index, &bytes)?));
        }
        Ok(self.cached_block.as_ref().map(|(_, entries)| &entries[..]).unwrap_or_default())
    }

    /// The position at which a block begins; for the number after the last block, the position at
    /// which that block ends.
    fn block_at(&self, index: u64) -> u64 {
        let end = self.at + self.header.length();
        end.min(self.at + BLOCKS_AT + index * PROOF_BLOCK_BYTES as u64)
    }
}
