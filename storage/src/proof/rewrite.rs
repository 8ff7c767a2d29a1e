//! Rewriting proofs without the leaves of frames that are gone. The proofs of one segment, or of a
//! range of which nothing is left, become one file.

use super::builder::BlockFiller;
use super::layout::{BLOCKS_AT, ProofEntry, ProofHeader};
use super::reader::{Proof, ProofError, ProofLocation};
use super::tree::SubtreePruner;
use super::write::{WRITE_BYTES, put};
use super::{proof_name, proof_start};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::storage_file::{StorageFile, remove_file, rename_file};

/// The leaves that a rewrite keeps.
pub(crate) enum LeafRetention<'a> {
    /// The leaves of the frames at these positions, in ascending order.
    At(&'a [u64]),
    None,
}

/// Merges the proofs in the files that begin at `starts` into one file, in order, with the leaves
/// that stay. Returns whether it did: if one of them is unusable, or does not follow the one
/// before, all stay as they are. `pace` is called every MiB, and may end it.
///
/// # Errors
/// The disk fails, or `pace` does; then nothing has changed.
pub(crate) fn rewrite_proofs(
    disk: &dyn Disk,
    starts: &[u64],
    keep: &LeafRetention<'_>,
    pace: &mut dyn FnMut() -> Result<(), StorageError>,
) -> Result<bool, StorageError> {
    let [first, others @ ..] = starts else { return Ok(false) };
    let name = proof_name(*first);
    let new_name = format!("{name}.new");
    let file = StorageFile::create_or_replace(disk, &new_name)?;
    let mut rewriting = ProofRewriter { disk, file: &file, at: 0, next: *first, throttle: pace };
    let written = starts.iter().try_for_each(|start| rewriting.rewrite_file(*start, keep));
    let written = match written {
        Ok(()) => file.sync(),
        Err(error) => {
            remove_file(disk, &new_name)?;
            let ProofError::Storage(error) = error else {
                tracing::warn!(start = first, %error, "a proof cannot be used, and stays as it is");
                return Ok(false);
            };
            Err(error)
        }
    };
    written.and_then(|()| rename_file(disk, &new_name, &name))?;
    disk.sync_directory()?;
    // The next start removes those that are left if this fails.
    for start in others {
        remove_file(disk, &proof_name(*start))?;
    }
    Ok(true)
}

struct ProofRewriter<'a> {
    disk: &'a dyn Disk,
    file: &'a StorageFile,
    /// The position at which the next proof is written.
    at: u64,
    /// The position at which it has to begin.
    next: u64,
    throttle: &'a mut dyn FnMut() -> Result<(), StorageError>,
}

impl ProofRewriter<'_> {
    fn rewrite_file(&mut self, start: u64, keep: &LeafRetention<'_>) -> Result<(), ProofError> {
        let file = StorageFile::open(self.disk, &proof_name(start))?;
        for placed in ProofLocation::read_all(&file)? {
            let ProofHeader { start: found, end, .. } = placed.header;
            if found != self.next {
                return Err(ProofError::NotContiguous { expected: self.next, found });
            }
            let positions = match keep {
                LeafRetention::At(positions) => {
                    let place = |bound| positions.partition_point(|position| *position < bound);
                    &positions[place(found)..place(end)]
                }
                LeafRetention::None => &[],
            };
            self.rewrite_proof(Proof::open_at(file.clone(), placed)?, positions)?;
            self.next = end;
        }
        Ok(())
    }

    fn rewrite_proof(&mut self, mut proof: Proof, positions: &[u64]) -> Result<(), ProofError> {
        let header = *proof.header();
        // A proof whose leaves do not lead to its root must not be rewritten to look as if they
        // did.
        if let Err(fault) = proof.verify_chain(None) {
            tracing::warn!(start = header.start, %fault, "a proof is not pruned");
            return Err(ProofError::Header);
        }
        let mut blocks = BlockFiller::new(header.start);
        let mut at = self.at + BLOCKS_AT;
        if !positions.is_empty() {
            let mut thinning = SubtreePruner::default();
            proof.for_each_entry(&mut |entry| {
                match entry {
                    ProofEntry::Leaf(position, _) if positions.binary_search(&position).is_ok() => {
                        thinning
                            .take()
                            .into_iter()
                            .for_each(|pruned| blocks.add(ProofEntry::Pruned(pruned)));
                        thinning.keep();
                        blocks.add(entry);
                    }
                    entry => thinning.remove(entry.subtree()),
                }
                if blocks.filled_bytes() >= WRITE_BYTES {
                    (self.throttle)()?;
                    at = put(self.file, &blocks.take(), at)?;
                }
                Ok(())
            })?;
            thinning.take().into_iter().for_each(|pruned| blocks.add(ProofEntry::Pruned(pruned)));
        }
        let entries = blocks.finish();
        at = put(self.file, &blocks.take(), at)?;
        put(self.file, &ProofHeader { entries, ..header }.encode(), self.at)?;
        self.at = at;
        Ok(())
    }
}

/// Removes files of proofs that are in an earlier file too, after a crash in between.
///
/// # Errors
/// The disk fails.
pub(crate) fn remove_superseded(disk: &dyn Disk) -> Result<(), StorageError> {
    let mut starts: Vec<u64> = disk.list()?.iter().filter_map(|name| proof_start(name)).collect();
    starts.sort_unstable();
    let mut before: Vec<ProofLocation> = Vec::new();
    for start in starts {
        let name = proof_name(start);
        let proofs = match ProofLocation::read_all(&StorageFile::open(disk, &name)?) {
            Ok(proofs) => proofs,
            Err(ProofError::Storage(error)) => return Err(error),
            Err(_) => continue,
        };
        if is_superseded(&proofs, &before) {
            remove_file(disk, &name)?;
        } else {
            before = proofs;
        }
    }
    Ok(())
}

/// Returns true if all proofs of a file are in the one before it, where they may have fewer leaves.
pub(crate) fn is_superseded(proofs: &[ProofLocation], before: &[ProofLocation]) -> bool {
    let same = |proof: &ProofLocation| {
        let identity =
            |proof: &ProofLocation| (proof.header.start, proof.header.end, proof.header.after);
        before.iter().any(|before| identity(before) == identity(proof))
    };
    !proofs.is_empty() && proofs.iter().all(same)
}
