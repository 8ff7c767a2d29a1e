//! Proofs: what makes the history of a store verifiable, frame by frame.
//!
//! Beside each sealed segment of the journal stands a proof file. It holds a *leaf* for every frame,
//! a hash over its position, header and payload; and a *chain* through all leaves from the journal's
//! birth on, so that one hash stands for everything before it. A proof may be signed.
//!
//! What holds true of it:
//! - A frame can be verified by itself, wherever it is filed and whatever became of its neighbours:
//!   its leaf is made again and compared. The chain is verified over the leaves alone. So history
//!   stays verifiable while retention and compaction take frames away.
//! - Checksums notice accidents, and whoever changes a file can make them right again. Leaves notice
//!   that too, unless the proofs are forged with them; then the signature does, or, without one, a
//!   head (the newest chain value) that somebody wrote down elsewhere.
//! - A proof of whose frames none is kept is cut down to its header. The chain goes on through it, and
//!   its leaves are gone with what they spoke of.
//! - The newest proofs, taken away together with their segments, leave a shorter history that is whole.
//!   Only a head known from elsewhere tells.

mod builder;
mod key;
mod layout;
mod reader;
mod write;

use std::fmt;

pub use builder::{Finished, ProofBuilder};
pub use ed25519_dalek::{SigningKey, VerifyingKey};
pub use key::{KeyError, read_public_key, read_signing_key};
pub use layout::{
    PROOF_BLOCK_BYTES, PROOF_ENTRIES_PER_BLOCK, PROOF_HEADER_BYTES, ProofHeader, Signature,
};
pub use reader::{Leaf, Mismatch, Proof, ProofError};
pub(crate) use write::cut_proof;
pub use write::{WriteProofError, chain_before, write_proof};

use crate::journal::FRAME_BYTES;

/// What keeps leaves apart from all other hashes, of ours and of others.
const LEAF_CONTEXT: &str = "freezeframe journal frame leaf, format 1";
const SUFFIX: &str = ".proof";

/// The name of the proof of the segment that begins at `start`.
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

    /// The chain's value after `leaf`, if this was the one before.
    #[must_use]
    pub fn follow(self, leaf: Digest) -> Digest {
        let mut both = [0; 64];
        both[..32].copy_from_slice(&self.0);
        both[32..].copy_from_slice(&leaf.0);
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

/// Makes leaves, one after the other.
///
/// The payload comes first: its whole chunks are hashed side by side then, and the 88 bytes of
/// position and header do not put them out of step.
#[derive(Clone)]
pub struct LeafHasher(blake3::Hasher);

impl Default for LeafHasher {
    fn default() -> LeafHasher {
        LeafHasher(blake3::Hasher::new_derive_key(LEAF_CONTEXT))
    }
}

impl fmt::Debug for LeafHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeafHasher")
    }
}

impl LeafHasher {
    /// Takes the next bytes of a frame's payload.
    pub fn payload(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The leaf of the frame whose payload was taken; the next one can begin.
    pub fn leaf(&mut self, position: u64, header: &[u8; FRAME_BYTES]) -> Digest {
        let mut place = [0; 8 + FRAME_BYTES];
        place[..8].copy_from_slice(&position.to_le_bytes());
        place[8..].copy_from_slice(header);
        self.0.update(&place);
        let leaf = Digest(*self.0.finalize().as_bytes());
        self.0.reset();
        leaf
    }

    /// Forgets what was taken.
    pub fn clear(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests;
