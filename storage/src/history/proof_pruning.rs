//! Pruning proofs: the leaves of frames that are not kept are removed. The rest of the proofs of
//! one segment, or of a range without any segment, becomes one file. So the size of proofs follows
//! what is kept.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SealedHistory;
use crate::disk::Disk;
use crate::error::StorageError;
use crate::journal::FRAME_BYTES;
use crate::proof::{
    LeafRetention, PROOF_ENTRIES_PER_BLOCK, ProofError, ProofLocation, proof_name, proof_start,
    rewrite_proofs,
};
use crate::sealed_segment::{SealedSegment, SegmentLayout, segment_at};
use crate::storage_file::StorageFile;

/// The proofs of a range of which nothing is kept are in at most this many files.
const PRUNED_FILES_MAX: usize = 16;

impl SealedHistory {
    /// Marks that there may be something to prune from proofs.
    pub(super) fn schedule_proof_pruning(&self) {
        self.proof_pruning_due.store(true, Ordering::Release);
    }

    /// Removes the leaves of deleted frames from proofs. The caller holds `reclaim_state`: frames
    /// that are being sorted would look deleted.
    ///
    /// # Errors
    /// The disk fails, or the store is closing; unfinished work is retried.
    pub(super) fn prune_proofs(&self) -> Result<(), StorageError> {
        if !self.proof_pruning_due.swap(false, Ordering::AcqRel) {
            return Ok(());
        }
        let thinned = self.prune_all_proofs();
        thinned.inspect_err(|_| self.schedule_proof_pruning())
    }

    fn prune_all_proofs(&self) -> Result<(), StorageError> {
        let segments = self.sealed_segments.all();
        let proved_to = self.proved_to.load(Ordering::Acquire);
        let starts = starts_below(&*self.disk, proved_to)?;
        for segment in segments.iter().filter(|segment| segment.layout != SegmentLayout::Journal) {
            let place = |bound| starts.partition_point(|start| *start < bound);
            let proof_starts = &starts[place(segment.start)..place(segment.end)];
            if !segment.has_pruned_proofs() && segment.end <= proved_to {
                // Segments sealed meanwhile are held in memory. If they cannot be indexed, the next
                // attempt reports it.
                while self.index_next().unwrap_or(false) {}
                self.prune_segment_proofs(segment, proof_starts)?;
                segment.set_has_pruned_proofs();
            }
        }
        merge_pruned_proofs(&*self.disk, &segments, proved_to, &mut || self.throttle())
    }

    fn prune_segment_proofs(
        &self,
        segment: &SealedSegment,
        starts: &[u64],
    ) -> Result<(), StorageError> {
        let index = segment.index();
        let entries_kept = index.header.entries;
        let Some(entries) = entries_of(&*self.disk, starts)? else { return Ok(()) };
        if starts.len() <= 1 && entries <= 2 * entries_kept + PROOF_ENTRIES_PER_BLOCK as u64 {
            return Ok(());
        }
        let mut positions = Vec::with_capacity(entries_kept as usize);
        for number in 0..entries_kept {
            let placed = segment.note_corruption(index.entry(number))?;
            positions.push(placed.entry.position - FRAME_BYTES as u64);
        }
        positions.sort_unstable();
        let pace = &mut || self.throttle();
        rewrite_proofs(&*self.disk, starts, &LeafRetention::At(&positions), pace).map(drop)
    }
}

/// Shortens the proofs of ranges of which nothing is kept, before position `until`, and merges them
/// where they are many.
///
/// # Errors
/// The disk fails.
pub(super) fn merge_pruned_proofs(
    disk: &dyn Disk,
    segments: &[Arc<SealedSegment>],
    until: u64,
    pace: &mut dyn FnMut() -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let starts = starts_below(disk, until)?;
    // The proofs between the same segments.
    let before = |start: u64| segments.partition_point(|segment| segment.start <= start);
    for stretch in starts.chunk_by(|a, b| before(*a) == before(*b)) {
        let is_gone = |start: &&u64| segment_at(segments, **start).is_none();
        let orphans: Vec<u64> = stretch.iter().filter(is_gone).copied().collect();
        for start in &orphans {
            if entries_of(disk, &[*start])?.is_some_and(|entries| entries > 0) {
                rewrite_proofs(disk, &[*start], &LeafRetention::None, pace)?;
            }
        }
        if orphans.len() > PRUNED_FILES_MAX {
            rewrite_proofs(disk, &orphans, &LeafRetention::None, pace)?;
        }
    }
    Ok(())
}

fn starts_below(disk: &dyn Disk, until: u64) -> Result<Vec<u64>, StorageError> {
    let starts = disk.list()?.into_iter().filter_map(|name| proof_start(&name));
    let mut starts: Vec<u64> = starts.filter(|start| *start < until).collect();
    starts.sort_unstable();
    Ok(starts)
}

/// The number of hashes that the proofs in some files have; `None` if one is unusable.
fn entries_of(disk: &dyn Disk, starts: &[u64]) -> Result<Option<u64>, StorageError> {
    let mut entries = 0;
    for start in starts {
        match ProofLocation::read_all(&StorageFile::open(disk, &proof_name(*start))?) {
            Ok(proofs) => {
                entries += proofs.iter().map(|proof| u64::from(proof.header.entries)).sum::<u64>();
            }
            Err(ProofError::Storage(error)) => return Err(error),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(entries))
}
