//! Proving sealed segments: proofs are written in the order of the journal, before a segment is
//! sorted. Segments that this incarnation of the store wrote are proved from leaves in memory. Only
//! those that an earlier one left are read for it.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{SealedHistory, UNPROVED_SEGMENTS_MAX, UnprovedSegment};
use crate::error::StorageError;
use crate::proof::{
    Digest, FrameLeaves, ProofError, ProofHeader, ProofLocation, WriteProofError, chain_before,
    proof_name, write_proof, write_proof_from_leaves,
};
use crate::sealed_segment::{SealedSegment, SegmentLayout};
use crate::storage_file::StorageFile;

impl SealedHistory {
    /// Returns true if a segment has its proof, or needs none.
    pub(super) fn is_proved(&self, segment: &SealedSegment) -> bool {
        !self.proves || segment.start < self.proved_to.load(Ordering::Acquire)
    }

    /// Writes the proof of the first segment that has none; returns whether there was one.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) fn prove_next(&self) -> Result<bool, StorageError> {
        let next = self
            .sealed_segments
            .all()
            .iter()
            .find(|segment| !self.is_proved(segment))
            .map(Arc::clone);
        let Some(segment) = next else { return Ok(false) };
        if segment.layout == SegmentLayout::Journal && self.proof_of(&segment)?.is_none() {
            self.prove(&segment)?;
        }
        self.proved_to.store(segment.end, Ordering::Release);
        self.unproved.lock().remove(&segment.start);
        Ok(true)
    }

    /// Caches the leaves of a segment that was rolled, for its proof.
    pub(crate) fn cache_leaves(&self, span: Range<u64>, leaves: FrameLeaves) {
        let mut unproved = self.unproved.lock();
        let (end, leaves) = (span.end, Arc::new(leaves));
        unproved.insert(span.start, UnprovedSegment { end, leaves });
        if unproved.len() > UNPROVED_SEGMENTS_MAX {
            unproved.pop_first();
        }
    }

    /// The leaves of a segment's frames, if this incarnation of the store wrote all of them.
    fn cached_leaves(&self, segment: &SealedSegment) -> Option<Arc<FrameLeaves>> {
        let unproved = self.unproved.lock();
        let cached = unproved.get(&segment.start).filter(|cached| cached.end == segment.end)?;
        Some(Arc::clone(&cached.leaves))
    }

    fn prove(&self, segment: &SealedSegment) -> Result<(), StorageError> {
        let key = self.signing_key.get().map(|key| &**key);
        let mut progress = |_: u64| match self.throttle() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let before = self.chain_before(segment)?;
        let (disk, span) = (&*self.disk, segment.start..segment.end);
        let written = match self.cached_leaves(segment) {
            // Another incarnation of the store may have begun.
            Some(_) if self.is_closing() => return Err(StorageError::Interrupted),
            Some(leaves) => write_proof_from_leaves(disk, span, &leaves, before, key),
            None => write_proof(disk, span, before, key, &mut progress),
        };
        match written {
            Ok(_) => {
                self.stats.proved.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(WriteProofError::Storage(error)) => Err(error),
            // This segment cannot be vouched for; later ones can.
            Err(error @ WriteProofError::Corrupt { .. }) => {
                tracing::error!(%error, "a segment of the journal stays without a proof");
                Ok(())
            }
        }
    }

    /// The chain value in front of a segment. It comes from the proof before it, and not from the
    /// segment before, which may have been removed. If nothing was proved, a chain begins.
    fn chain_before(&self, segment: &SealedSegment) -> Result<Digest, StorageError> {
        match chain_before(&*self.disk, segment.start) {
            Ok(chain) => Ok(chain.unwrap_or(Digest::BIRTH)),
            Err(ProofError::Storage(error)) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "the previous proof cannot be used");
                Ok(Digest::BIRTH)
            }
        }
    }

    /// The header of a segment's proof, if it has an intact one.
    fn proof_of(&self, segment: &SealedSegment) -> Result<Option<ProofHeader>, StorageError> {
        let name = proof_name(segment.start);
        let Some(file) = StorageFile::open_if_exists(&*self.disk, &name)? else { return Ok(None) };
        match ProofLocation::read_all(&file) {
            Ok(proofs) => Ok(proofs
                .first()
                .map(|proof| proof.header)
                .filter(|header| header.end == segment.end)),
            Err(ProofError::Storage(error)) => Err(error),
            Err(error) => {
                tracing::warn!(%error, "a proof cannot be used");
                Ok(None)
            }
        }
    }
}
