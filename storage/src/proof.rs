//! Proofs, which make the history of a store verifiable, frame by frame.
//!
//! Each sealed segment of the journal has a proof. It holds a *leaf* for every frame, a hash over
//! its position, header and payload; the *root* of a tree of hashes over the leaves; and a *chain*
//! through the roots of all segments from the beginning of the journal on, so that one hash stands
//! for everything before it. A proof may be signed.
//!
//! Invariants:
//! - A frame can be verified by itself, in whatever file it is and whatever happened to its
//!   neighbours: its leaf is computed again and compared. The root is verified over the leaves
//!   alone. So history stays verifiable while retention and compaction remove frames.
//! - The leaves of removed frames are pruned: one hash stands for as many of them as are adjacent
//!   in the tree, and the root stays the same. So the size of proofs follows what is kept.
//! - Checksums detect accidents, but an attacker who changes a file can make them right again.
//!   Leaves detect that too, unless the proofs are forged with them. Then the signature detects it,
//!   or, without one, a chain head (the newest chain value) that was recorded elsewhere.
//! - A proof none of whose frames is kept is reduced to its header. The chain continues through it.
//! - If the newest proofs are removed together with their segments, the rest is a shorter history
//!   that is consistent. Only a chain head known from elsewhere reveals that.

mod builder;
mod frame_leaves;
mod key;
mod layout;
mod reader;
mod rewrite;
mod tree;
mod write;

use std::fmt;

pub use builder::{EncodedProof, ProofBuilder};
pub use ed25519_dalek::{SigningKey, VerifyingKey};
pub(crate) use frame_leaves::{FrameLeaf, FrameLeaves};
pub use key::{KeyError, read_public_key, read_signing_key};
pub use layout::{
    PROOF_BLOCK_BYTES, PROOF_ENTRIES_PER_BLOCK, PROOF_HEADER_BYTES, ProofHeader, ProofSignature,
};
pub use reader::{Proof, ProofError, ProofLeaf, ProofLocation, ProofMismatch};
pub(crate) use rewrite::{LeafRetention, is_superseded, remove_superseded, rewrite_proofs};
pub(crate) use write::write_proof_from_leaves;
pub use write::{WriteProofError, chain_before, write_proof};

use crate::journal::FRAME_BYTES;
use crate::payload::{PAYLOAD_HEADER_BYTES_MAX, Payload};

/// Keeps leaves apart from all other hashes, of ours and of others.
const LEAF_CONTEXT: &str = "freezeframe journal frame leaf, format 2";
const SUFFIX: &str = ".proof";

/// The name of a file of proofs, the first of which is of the segment that begins at `start`.
pub fn proof_name(start: u64) -> String {
    format!("{start:020}{SUFFIX}")
}

/// The start position that a file's name claims, if it is a proof's.
pub fn proof_start(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_number = digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// A BLAKE3 hash: a leaf, or a value of the chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The chain before the journal's first frame.
    pub const BIRTH: Digest = Digest([0; 32]);

    /// The chain's value after a segment whose root is `next`, if `self` is the chain's value
    /// before that segment; or the hash over two adjacent subtrees.
    #[must_use]
    pub fn follow(self, next: Digest) -> Digest {
        let mut both = [0; 64];
        both[..32].copy_from_slice(&self.0);
        both[32..].copy_from_slice(&next.0);
        Digest(*blake3::hash(&both).as_bytes())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of a payload's first bytes that a leaf covers as they are. The service fills some of
/// them in when an append gets its offset. The rest of a payload never changes, so it is hashed
/// before that.
const LEAF_HEADER_BYTES: usize = PAYLOAD_HEADER_BYTES_MAX;
/// The input of a leaf at most: body digest, position, header, and the payload's first bytes.
const LEAF_BYTES_MAX: usize = 32 + 8 + FRAME_BYTES + LEAF_HEADER_BYTES;

/// The digest of a payload after its first [`PAYLOAD_HEADER_BYTES_MAX`] bytes.
pub(crate) fn body_digest(payload: &Payload) -> Digest {
    let from = LEAF_HEADER_BYTES.saturating_sub(payload.header.as_slice().len());
    let body = payload.rest.get(from..).unwrap_or_default();
    Digest(*blake3::hash(body).as_bytes())
}

/// Computes leaves, one after the other.
#[derive(Clone)]
pub struct LeafHasher {
    leaf: blake3::Hasher,
    body: blake3::Hasher,
    /// The first bytes of the payload that is being hashed.
    header: [u8; LEAF_HEADER_BYTES],
    header_length: usize,
}

impl Default for LeafHasher {
    fn default() -> LeafHasher {
        LeafHasher {
            leaf: blake3::Hasher::new_derive_key(LEAF_CONTEXT),
            body: blake3::Hasher::new(),
            header: [0; LEAF_HEADER_BYTES],
            header_length: 0,
        }
    }
}

impl fmt::Debug for LeafHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeafHasher")
    }
}

impl LeafHasher {
    /// Hashes the next bytes of a frame's payload.
    pub fn payload(&mut self, bytes: &[u8]) {
        let (head, body) = bytes.split_at(bytes.len().min(LEAF_HEADER_BYTES - self.header_length));
        self.header[self.header_length..self.header_length + head.len()].copy_from_slice(head);
        self.header_length += head.len();
        if !body.is_empty() {
            self.body.update(body);
        }
    }

    /// The leaf of the frame whose payload was hashed; the next frame can begin.
    pub fn leaf(&mut self, position: u64, header: &[u8; FRAME_BYTES]) -> Digest {
        let body = Digest(*self.body.finalize().as_bytes());
        let (head, length) = (self.header, self.header_length);
        let leaf = self.join(position, header, &head[..length], body);
        self.clear();
        leaf
    }

    /// The leaf of a frame whose [`body_digest`] is known.
    pub(crate) fn leaf_over(
        &mut self,
        position: u64,
        header: &[u8; FRAME_BYTES],
        payload: &Payload,
        body: Digest,
    ) -> Digest {
        let (head, rest) = (payload.header.as_slice(), &payload.rest);
        let taken_bytes = rest.len().min(LEAF_HEADER_BYTES - head.len());
        let mut first = [0; LEAF_HEADER_BYTES];
        first[..head.len()].copy_from_slice(head);
        first[head.len()..head.len() + taken_bytes].copy_from_slice(&rest[..taken_bytes]);
        self.join(position, header, &first[..head.len() + taken_bytes], body)
    }

    fn join(
        &mut self,
        position: u64,
        header: &[u8; FRAME_BYTES],
        head: &[u8],
        body: Digest,
    ) -> Digest {
        let mut bytes = [0; LEAF_BYTES_MAX];
        bytes[..32].copy_from_slice(&body.0);
        bytes[32..40].copy_from_slice(&position.to_le_bytes());
        bytes[40..40 + FRAME_BYTES].copy_from_slice(header);
        bytes[40 + FRAME_BYTES..][..head.len()].copy_from_slice(head);
        self.leaf.reset();
        self.leaf.update(&bytes[..40 + FRAME_BYTES + head.len()]);
        Digest(*self.leaf.finalize().as_bytes())
    }

    /// Discards what was hashed.
    pub fn clear(&mut self) {
        self.body.reset();
        self.header_length = 0;
    }
}

#[cfg(test)]
mod tests;
