//! Proofs of what is sealed: written in the order of the journal, before a stretch is filed. What this life of
//! the store wrote is proved from leaves in memory; only what an earlier one left is read for it.

use std::io;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{History, UNPROVED_MAX, UnprovedSegment};
use crate::part::{Layout, Part};
use crate::proof::{
    Digest, FrameLeaves, PlacedProof, ProofError, ProofHeader, WriteProofError, chain_before,
    proof_name, write_known_proof, write_proof,
};

impl History {
    /// Whether a part has its proof, or none is to be had.
    pub(super) fn is_proved(&self, part: &Part) -> bool {
        !self.proves || part.start < self.proved_to.load(Ordering::Acquire)
    }

    /// Writes the proof of the first part that has none; whether there was one.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) fn prove_next(&self) -> io::Result<bool> {
        let next = self.parts.all().iter().find(|part| !self.is_proved(part)).map(Arc::clone);
        let Some(part) = next else { return Ok(false) };
        if part.layout == Layout::Journal && self.proof_of(&part)?.is_none() {
            self.prove(&part)?;
        }
        self.proved_to.store(part.end, Ordering::Release);
        self.unproved.lock().remove(&part.start);
        Ok(true)
    }

    /// Keeps the leaves of a segment that was sealed, for its proof.
    pub(crate) fn keep_leaves(&self, span: Range<u64>, leaves: FrameLeaves) {
        let mut unproved = self.unproved.lock();
        let (end, leaves) = (span.end, Arc::new(leaves));
        unproved.insert(span.start, UnprovedSegment { end, leaves });
        if unproved.len() > UNPROVED_MAX {
            unproved.pop_first();
        }
    }

    /// The leaves of a part's frames, if this life of the store wrote all of them.
    fn known_leaves(&self, part: &Part) -> Option<Arc<FrameLeaves>> {
        let unproved = self.unproved.lock();
        let known = unproved.get(&part.start).filter(|known| known.end == part.end)?;
        Some(Arc::clone(&known.leaves))
    }

    fn prove(&self, part: &Part) -> io::Result<()> {
        let key = self.signing_key.get().map(|key| &**key);
        let mut progress = |_: u64| match self.give_way() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let before = self.chain_before(part)?;
        let (disk, span) = (&*self.disk, part.start..part.end);
        let written = match self.known_leaves(part) {
            // Another life of the store may have begun.
            Some(_) if self.is_closing() => return Err(io::ErrorKind::Interrupted.into()),
            Some(leaves) => write_known_proof(disk, span, &leaves, before, key),
            None => write_proof(disk, span, before, key, &mut progress),
        };
        match written {
            Ok(_) => {
                self.stats.proved.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(WriteProofError::BrokenOff) => Err(io::ErrorKind::Interrupted.into()),
            Err(WriteProofError::Disk(error)) => Err(error),
            // Nothing can be vouched for here; what follows can.
            Err(error @ WriteProofError::Damaged { .. }) => {
                tracing::error!(%error, "a stretch of the journal stays without a proof");
                Ok(())
            }
        }
    }

    /// Where the chain stands in front of a part. The proof before it is asked, and not the part
    /// before: that may have been given up. Where nothing was proved, a chain begins.
    fn chain_before(&self, part: &Part) -> io::Result<Digest> {
        match chain_before(&*self.disk, part.start) {
            Ok(chain) => Ok(chain.unwrap_or(Digest::BIRTH)),
            Err(ProofError::Disk(error)) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the proof before cannot be used");
                Ok(Digest::BIRTH)
            }
        }
    }

    /// What the proof of a part says, if it has a whole one.
    fn proof_of(&self, part: &Part) -> io::Result<Option<ProofHeader>> {
        let file = match self.disk.open(&proof_name(part.start)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match PlacedProof::read_all(&*file) {
            Ok(proofs) => Ok(proofs.first().map(|it| it.header).filter(|it| it.end == part.end)),
            Err(ProofError::Disk(error)) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a proof cannot be used");
                Ok(None)
            }
        }
    }
}
