//! Copies of a journal: of a running store, of a stopped one, and as of a moment.
//!
//! A copy consists of files that never change, of the beginning of a file that was still written
//! to, and of a manifest and a bound that are made for it. A store that opens it finds what a loss
//! of power at the copy's moment would have left. So a copy needs no rules of its own: recovery is
//! the one thing that reads it.
//!
//! Invariants:
//! - While a [`BackupPoint`] exists, no file that its manifest names is removed, and no space in
//!   one is reclaimed.
//! - A copy has every entry up to its moment, and its bound lies above all of its stamps.

mod as_of;

use std::collections::BTreeMap;

use hlc::{Hlc, WallMark};

use crate::disk::Disk;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::history::FilesHold;
use crate::index::latest_runs_range;
use crate::journal::{SEGMENT_HEADER_BYTES, segment_name, segment_start};
use crate::manifest::{Manifest, ManifestError};
use crate::proof::{ProofError, ProofLocation, proof_start};
use crate::sorted_segment::{SortedSegmentHeader, index_name};
use crate::storage_file::{StorageFile, list_files};
use crate::timekeeper::{BoundError, BoundFile, BoundRecord};
use as_of::copy_sorted_as_of;
pub use as_of::{AsOfError, StoredLogEntry, entries_after, plan_copy_as_of};

/// The number of bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;

/// A state of a store that can be copied while the store goes on, as long as its files are kept.
#[derive(Clone, Debug)]
pub struct JournalPoint {
    /// The manifest at that point.
    pub manifest: Manifest,
    /// The journal's end: everything below it is on stable storage.
    pub end: u64,
    /// Every entry that will ever have a stamp up to it is below the end.
    pub frontier: Hlc,
    /// The last confirmed reading of the wall clock.
    pub mark: WallMark,
}

/// A point of a running store, which keeps its files while this exists.
#[derive(Debug)]
pub struct BackupPoint {
    pub point: JournalPoint,
    #[expect(dead_code, reason = "its drop ends it")]
    pub(crate) hold: FilesHold,
}

/// A copy of a journal that is to be made.
#[derive(Clone, Debug)]
pub struct CopyPlan {
    /// All files but the manifest and the bound file.
    pub files: Vec<CopiedFile>,
    /// The manifest.
    pub manifest: Manifest,
    /// The newest record of the bound file.
    pub bound: BoundRecord,
    /// The last stamp that may be in it: it has everything up to there.
    pub last: Hlc,
    /// Logs that lost history since the copy's moment. The copy has none of their entries. If one
    /// was in use at that moment, the copy is incomplete.
    pub lost_logs: Vec<LostLog>,
}

/// A log whose state at the copy's moment is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostLog {
    pub log: LogId,
    /// The first stamp as of which the log is complete.
    pub complete_from: Hlc,
}

/// A file of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopiedFile {
    pub name: String,
    pub content: CopiedContent,
    /// True if a store can rebuild it. The source may have lost it by now.
    pub is_soft: bool,
}

/// The content of a file of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopiedContent {
    /// All of the file of that name, which never changes.
    Whole,
    /// The first bytes of the file of that name.
    Beginning(u64),
    /// The frames up to the stamp `last` of the sorted segment of that name, under another header,
    /// without those below the offsets in `released`, whose space may be reclaimed.
    SortedAsOf {
        header: SortedSegmentHeader,
        last: Hlc,
        released: BTreeMap<LogId, Offset>,
        /// True if a proof of these frames has to be written.
        is_proved: bool,
    },
}

/// The reason there is nothing to copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Bound(#[from] BoundError),
    /// The directory has no bound file.
    #[error("journal/bound is missing or empty: the directory is not a whole data directory")]
    NoBound,
    #[error("read the journal: {0}")]
    Storage(#[from] StorageError),
}

/// Plans the copy of a running store that ends at a point.
///
/// # Errors
/// The disk fails, or the journal is corrupt behind what is indexed.
pub fn plan_copy(disk: &dyn Disk, point: &JournalPoint) -> Result<CopyPlan, StorageError> {
    let JournalPoint { manifest, end, frontier, mark } = point.clone();
    let files = files_up_to(disk, &manifest, end, manifest.indexed_to)?;
    let last = as_of::last_stamp_of_newest_segment(disk, manifest.indexed_to, end)?;
    let last = frontier.max(last);
    let bound = BoundRecord {
        bound: last.next(),
        synced_to: end,
        manifest_sequence: manifest.sequence,
        mark,
        ..BoundRecord::default()
    };
    Ok(CopyPlan { files, manifest, bound, last, lost_logs: Vec::new() })
}

/// Plans the copy of a store that is stopped, and stays so while the copy is made.
///
/// # Errors
/// [`CopyError`].
pub fn plan_copy_of_stopped(disk: &dyn Disk) -> Result<CopyPlan, CopyError> {
    let manifest = Manifest::read(disk)?;
    let bound = BoundFile::read(disk)?.ok_or(CopyError::NoBound)?;
    let files = files_up_to(disk, &manifest, u64::MAX, manifest.indexed_to)?;
    let last = bound.bound.previous();
    Ok(CopyPlan { files, manifest, bound, last, lost_logs: Vec::new() })
}

/// The files of a journal that ends at `end` and is proved up to `proved_to`, but for the manifest
/// and the bound file. Hard files come first.
fn files_up_to(
    disk: &dyn Disk,
    manifest: &Manifest,
    end: u64,
    proved_to: u64,
) -> Result<Vec<CopiedFile>, StorageError> {
    let names = list_files(disk)?;
    let whole = |name: String, is_soft| CopiedFile { name, content: CopiedContent::Whole, is_soft };
    let mut files = Vec::new();
    for name in manifest.data_files() {
        let index = index_name(&name);
        files.push(whole(name, false));
        files.push(whole(index, true));
    }
    // Recovery truncates the last of these, and appends to it: none is `Whole`, which may be a link.
    for (start, next) in open_segments(&names, manifest.indexed_to, end) {
        let name = segment_name(start);
        let until = next.unwrap_or(u64::MAX).min(end);
        let bytes = match until {
            u64::MAX => StorageFile::open(disk, &name)?.length()?,
            until => SEGMENT_HEADER_BYTES + until - start,
        };
        files.push(CopiedFile { name, content: CopiedContent::Beginning(bytes), is_soft: false });
    }
    for name in names {
        if latest_runs_range(&name).is_some_and(|range| range.end <= manifest.indexed_to) {
            files.push(whole(name, true));
        } else if let Some(content) = proofs_up_to(disk, &name, proved_to)? {
            files.push(CopiedFile { name, content, is_soft: true });
        }
    }
    files.sort_by_key(|file| file.is_soft);
    Ok(files)
}

/// The segments that begin from `indexed_to` on and below `end`, each with the start of the one
/// after it.
fn open_segments(names: &[String], indexed_to: u64, end: u64) -> Vec<(u64, Option<u64>)> {
    let starts = names.iter().filter_map(|name| segment_start(name));
    let mut starts: Vec<u64> = starts.filter(|start| *start >= indexed_to).collect();
    starts.sort_unstable();
    let nexts = starts.iter().skip(1).copied().map(Some).chain([None]);
    starts.iter().copied().zip(nexts).filter(|(start, _)| *start < end).collect()
}

/// The part of a proof file that covers segments up to `end`; `None` for other files, or if it
/// covers none.
fn proofs_up_to(
    disk: &dyn Disk,
    name: &str,
    end: u64,
) -> Result<Option<CopiedContent>, StorageError> {
    if proof_start(name).is_none_or(|start| start >= end) {
        return Ok(None);
    }
    let Some(file) = StorageFile::open_if_exists(disk, name)? else { return Ok(None) };
    let proofs = match ProofLocation::read_all(&file) {
        Ok(proofs) => proofs,
        Err(ProofError::Storage(error)) => return Err(error),
        // It is being written, or corrupt: the store does without it.
        Err(_) => return Ok(None),
    };
    let kept = proofs.partition_point(|proof| proof.header.end <= end);
    Ok(match (kept, proofs.get(kept)) {
        (0, _) => None,
        (_, None) => Some(CopiedContent::Whole),
        (_, Some(next)) => Some(CopiedContent::Beginning(next.at)),
    })
}

/// Copies a file, or the part of it that the plan names, and syncs the copy. Skips a soft file that
/// is missing.
///
/// # Errors
/// The source is corrupt, or a disk fails or is full.
pub fn copy_file(
    source: &dyn Disk,
    target: &dyn Disk,
    file: &CopiedFile,
) -> Result<(), StorageError> {
    let from = match StorageFile::open(source, &file.name) {
        Err(StorageError::Missing { .. }) if file.is_soft => return Ok(()),
        opened => opened?,
    };
    let to = StorageFile::create_or_replace(target, &file.name)?;
    let limit = match &file.content {
        CopiedContent::Whole => u64::MAX,
        CopiedContent::Beginning(bytes) => *bytes,
        CopiedContent::SortedAsOf { header, last, released, .. } => {
            return copy_sorted_as_of(from, &to, *header, *last, released);
        }
    };
    let (mut buffer, mut at) = (vec![0; COPY_BYTES], 0);
    while at < limit {
        let length = (limit - at).min(COPY_BYTES as u64) as usize;
        let read = from.read_at(&mut buffer[..length], at)?;
        if read == 0 {
            break;
        }
        to.write_at(&buffer[..read], at)?;
        at += read as u64;
    }
    if limit < u64::MAX && at < limit {
        return Err(StorageError::corrupt(&file.name, at, "the file is cut short"));
    }
    to.sync()
}

/// Completes a copy in the directory of its files: writes the manifest, the bound file and the proof
/// that is missing, and syncs the directory.
///
/// # Errors
/// The disk fails or is full.
pub fn finish_copy(disk: &dyn Disk, plan: &CopyPlan) -> Result<(), StorageError> {
    for (name, bytes) in plan.own_files() {
        let file = StorageFile::create_or_replace(disk, name)?;
        file.write_at(&bytes, 0)?;
        file.sync()?;
    }
    disk.sync_directory()?;
    for file in &plan.files {
        if let CopiedContent::SortedAsOf { header, is_proved: true, .. } = &file.content {
            as_of::prove_sorted(disk, &file.name, header.start..header.end)?;
        }
    }
    Ok(())
}

impl CopyPlan {
    /// The manifest and the bound file, with their contents.
    pub fn own_files(&self) -> [(&'static str, Vec<u8>); 2] {
        let bound = BoundRecord { sequence: 1, ..self.bound };
        [
            (crate::manifest::MANIFEST_FILE, self.manifest.encode()),
            (crate::timekeeper::BOUND_FILE, bound.encode_file()),
        ]
    }
}
