//! Writing the proof of a sealed segment.

use std::ops::Range;

use ed25519_dalek::SigningKey;
use hlc::Hlc;

use super::builder::ProofBuilder;
use super::layout::{BLOCKS_AT, ProofHeader};
use super::reader::{ProofError, ProofLocation};
use super::{Digest, FrameLeaves, proof_name, proof_start};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::journal::{
    FrameError, FrameReader, JournalScanItem, SEGMENT_HEADER_BYTES, ScanProgress, segment_name,
};
use crate::storage_file::{StorageFile, list_files, remove_file, remove_if_exists, sync_directory};

/// Blocks are written when there are this many bytes of them.
pub(super) const WRITE_BYTES: u64 = 1 << 20;

/// The reason a proof cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteProofError {
    /// The segment holds something that is not an intact frame: there is nothing to vouch for.
    #[error("the segment {file} is corrupt at position {position}: {reason}")]
    Corrupt {
        file: String,
        position: u64,
        /// The fault at that position.
        reason: FrameError,
    },
    /// The segment cannot be read, the proof cannot be written, or the progress callback ended it
    /// ([`StorageError::Interrupted`]). Nothing of it remains.
    #[error("write proof: {0}")]
    Storage(#[from] StorageError),
}

/// Writes the proof of the sealed segment that holds `span`, durably. It first removes the remains
/// of a half-written one. `before` is the chain at the end of the segment before
/// ([`chain_before`]). `progress` is called with how much was read, for every MiB: it may block,
/// and may end the writing.
///
/// # Errors
/// [`WriteProofError`].
pub fn write_proof(
    disk: &dyn Disk,
    span: Range<u64>,
    before: Digest,
    key: Option<&SigningKey>,
    progress: &mut ScanProgress<'_>,
) -> Result<ProofHeader, WriteProofError> {
    write_with(disk, span.clone(), before, key, &mut |proof| {
        add_leaves_of_file(disk, &span, proof, progress)
    })
}

/// The same from known leaves: there is one for each frame of the segment, and nothing is read.
pub(crate) fn write_proof_from_leaves(
    disk: &dyn Disk,
    span: Range<u64>,
    leaves: &FrameLeaves,
    before: Digest,
    key: Option<&SigningKey>,
) -> Result<ProofHeader, WriteProofError> {
    write_with(disk, span, before, key, &mut |proof| {
        for leaf in leaves.iter() {
            proof.add(leaf.position, leaf.digest, leaf.stamp)?;
        }
        Ok(())
    })
}

/// Adds every leaf of a proof, in order.
type LeafSource<'a> = dyn FnMut(&mut ProofFile<'_>) -> Result<(), WriteProofError> + 'a;

fn write_with(
    disk: &dyn Disk,
    span: Range<u64>,
    before: Digest,
    key: Option<&SigningKey>,
    add: &mut LeafSource<'_>,
) -> Result<ProofHeader, WriteProofError> {
    let name = proof_name(span.start);
    remove_if_exists(disk, &name)?;
    let file = StorageFile::create(disk, &name)?;
    let mut write = || -> Result<ProofHeader, WriteProofError> {
        let builder = ProofBuilder::new(span.start, before);
        let mut proof = ProofFile { file: &file, builder, at: BLOCKS_AT };
        add(&mut proof)?;
        let header = proof.finish(span.end, key)?;
        sync_directory(disk)?;
        Ok(header)
    };
    let written = write();
    if written.is_err() {
        // A reader would find it unfinished, so this may fail.
        let _ = remove_file(disk, &name);
    }
    written
}

/// A proof that is being written to its file.
struct ProofFile<'a> {
    file: &'a StorageFile,
    builder: ProofBuilder,
    at: u64,
}

impl ProofFile<'_> {
    fn add(&mut self, position: u64, leaf: Digest, stamp: Hlc) -> Result<(), StorageError> {
        self.builder.leaf(position, leaf, stamp);
        if self.builder.filled_bytes() >= WRITE_BYTES {
            self.at = put(self.file, &self.builder.take_blocks(), self.at)?;
        }
        Ok(())
    }

    fn finish(self, end: u64, key: Option<&SigningKey>) -> Result<ProofHeader, StorageError> {
        let finished = self.builder.finish(end, key);
        put(self.file, &finished.blocks, self.at)?;
        // A header vouches for what follows it, so it is written last.
        self.file.sync()?;
        put(self.file, &finished.header.encode(), 0)?;
        self.file.sync()?;
        Ok(finished.header)
    }
}

/// Adds the leaves of the frames in a segment's file.
fn add_leaves_of_file(
    disk: &dyn Disk,
    span: &Range<u64>,
    proof: &mut ProofFile<'_>,
    progress: &mut ScanProgress<'_>,
) -> Result<(), WriteProofError> {
    let segment = segment_name(span.start);
    let frames = StorageFile::open(disk, &segment)?;
    let mut frames = FrameReader::new(frames, span.clone(), SEGMENT_HEADER_BYTES).with_leaves();
    let mut position = span.start;
    loop {
        let item = frames.next_item_with(progress)?;
        let damaged = |position, reason| {
            Err(WriteProofError::Corrupt { file: segment.clone(), position, reason })
        };
        match item {
            None if position != span.end => return damaged(position, FrameError::Short),
            None => return Ok(()),
            Some(JournalScanItem::Corrupt { position, reason, .. }) => {
                return damaged(position, reason);
            }
            Some(JournalScanItem::Frame(scanned)) if !scanned.payload_is_whole => {
                return damaged(scanned.position, FrameError::Payload);
            }
            Some(JournalScanItem::Frame(scanned)) => {
                let leaf = scanned.leaf.expect("leaves were asked for");
                proof.add(scanned.position, leaf, scanned.frame.stamp)?;
                position = scanned.frame.end(scanned.position);
            }
        }
    }
}

pub(super) fn put(file: &StorageFile, bytes: &[u8], at: u64) -> Result<u64, StorageError> {
    if !bytes.is_empty() {
        file.write_at(bytes, at)?;
    }
    Ok(at + bytes.len() as u64)
}

/// The chain where the segment at `start` begins: where the proof before it ends. `None` if that
/// proof is missing or not finished; it has to be written first.
///
/// # Errors
/// The disk fails, or the proof is corrupt.
pub fn chain_before(disk: &dyn Disk, start: u64) -> Result<Option<Digest>, ProofError> {
    if start == 0 {
        return Ok(Some(Digest::BIRTH));
    }
    let starts = list_files(disk)?.into_iter().filter_map(|name| proof_start(&name));
    let Some(before) = starts.filter(|other| *other < start).max() else { return Ok(None) };
    match ProofLocation::read_all(&StorageFile::open(disk, &proof_name(before))?) {
        Ok(proofs) => {
            let last = proofs.last().map(|proof| proof.header).filter(|last| last.end == start);
            Ok(last.map(|last| last.after))
        }
        Err(ProofError::Unfinished) => Ok(None),
        Err(error) => Err(error),
    }
}
