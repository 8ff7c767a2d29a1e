//! The copy of a journal as of a moment.
//!
//! Stamps rise with positions over all logs, so a moment is a position: the first that has a later
//! stamp. The copy ends there. One sealed segment may have frames on both sides. In the order of
//! the journal, its beginning is copied. Sorted by log, it is written again without the later
//! frames. Either way it stays a sealed segment, whose entries a compacted prefix may replace; its
//! index is rebuilt.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use bytes::Bytes;
use hlc::{Hlc, UserTime};

use super::{CopiedContent, CopiedFile, CopyError, CopyPlan, LostLog, files_up_to, open_segments};
use crate::data_file::DataFile;
use crate::disk::Disk;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::index::{BlockCache, SegmentIndex, latest_runs_range};
use crate::journal::{
    FRAME_BYTES, FrameHeader, FrameReader, FrameVisitor, JournalScanItem, KnownSynced,
    RecoverError, SEGMENT_HEADER_BYTES, ScannedFrame, Segment, check_synced, padded, segment_name,
    walk,
};
use crate::manifest::{LogHorizon, Manifest, ManifestSegment};
use crate::proof::{
    Digest, FrameLeaf, FrameLeaves, ProofError, ProofLocation, WriteProofError, chain_before,
    proof_start, write_proof_from_leaves,
};
use crate::sealed_segment::SegmentLayout;
use crate::sorted_segment::{
    SORTED_FRAME_HEADER_BYTES, SortedFrame, SortedFrameReader, SortedScanItem, SortedSegmentHeader,
    SortedSegmentScanner, index_name,
};
use crate::storage_file::{StorageFile, list_files};
use crate::timekeeper::{BoundFile, BoundRecord};

/// The number of bytes that one write passes to the disk.
const WRITE_BYTES: usize = 4 << 20;

/// The reason there is no copy as of a moment.
#[derive(Debug, thiserror::Error)]
pub enum AsOfError {
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// The moment lies after everything that the directory knows.
    #[error("it knows nothing after {last}")]
    AfterEnd { last: Hlc },
    /// Something that was there then was removed or compacted since.
    #[error("part of what existed then was removed or compacted later; {from} may be complete")]
    Incomplete { from: Hlc },
    /// Nothing is as old as the moment.
    #[error("nothing in it is as old")]
    BeforeBeginning,
}

impl From<StorageError> for AsOfError {
    fn from(error: StorageError) -> AsOfError {
        CopyError::from(error).into()
    }
}

/// Plans the copy of a stopped store that has what was stamped up to `last`, and nothing later.
///
/// # Errors
/// [`AsOfError`].
pub fn plan_copy_as_of(disk: &dyn Disk, last: Hlc) -> Result<CopyPlan, AsOfError> {
    let manifest = Manifest::read(disk).map_err(CopyError::from)?;
    let known = BoundFile::read(disk).map_err(CopyError::from)?.ok_or(CopyError::NoBound)?;
    if last >= known.bound {
        return Err(AsOfError::AfterEnd { last: known.bound.previous() });
    }
    let lost_logs = lost_logs(&manifest, last);
    let released = released_offsets(&manifest);
    let mut search = FrameSearch::new(last, &lost_logs);
    let cut = match search.search_sealed(disk, &manifest, &released)? {
        Some(cut) => cut,
        None => {
            let end = search.search_open(disk, manifest.indexed_to, known.synced_to)?;
            CopyEnd::Open { end }
        }
    };
    if cut.end() == 0 {
        return Err(AsOfError::BeforeBeginning);
    }
    // A log that has entries was in use.
    let in_use = lost_logs.iter().filter(|lost| search.found_logs.contains(&lost.log));
    if let Some(from) = in_use.map(|lost| lost.complete_from).max() {
        return Err(AsOfError::Incomplete { from });
    }
    let manifest = manifest_as_of(&manifest, &cut, &lost_logs);
    // The proof of a segment that is cut is of more than what is left.
    let proved_to = match cut {
        CopyEnd::Sealed { segment, .. } => segment.start,
        CopyEnd::Open { .. } => manifest.indexed_to,
    };
    let mut files = files_up_to(disk, &manifest, cut.end(), proved_to)?;
    // They are soft, and may know of runs that the copy has not.
    files.retain(|file| latest_runs_range(&file.name).is_none());
    if let CopyEnd::Sealed { segment, end } = cut
        && end > segment.start
    {
        let name = segment.data_name();
        let content = match segment.layout {
            SegmentLayout::Journal => {
                CopiedContent::Beginning(SEGMENT_HEADER_BYTES + end - segment.start)
            }
            SegmentLayout::Sorted { generation } => CopiedContent::SortedAsOf {
                header: SortedSegmentHeader {
                    start: segment.start,
                    end,
                    generation: u64::from(generation),
                    log: None,
                },
                last,
                released,
                is_proved: is_proved(disk, segment.start)?,
            },
        };
        files.retain(|file| file.name != name && file.name != index_name(&name));
        files.insert(0, CopiedFile { name, content, is_soft: false });
    }
    // The bound of the source: reclaimed space may hold remains of later entries.
    let bound = BoundRecord {
        synced_to: cut.end(),
        manifest_sequence: manifest.sequence,
        clean: false,
        ..known
    };
    Ok(CopyPlan { files, manifest, bound, last, lost_logs })
}

/// The place at which a copy ends.
#[derive(Clone, Copy, Debug)]
enum CopyEnd {
    /// In a segment that the manifest lists.
    Sealed { segment: ManifestSegment, end: u64 },
    /// Behind those.
    Open { end: u64 },
}

impl CopyEnd {
    /// The position at which the copy ends.
    fn end(&self) -> u64 {
        match self {
            CopyEnd::Sealed { end, .. } | CopyEnd::Open { end } => *end,
        }
    }
}

/// The manifest of the copy.
fn manifest_as_of(manifest: &Manifest, cut: &CopyEnd, lost_logs: &[LostLog]) -> Manifest {
    let mut copied = Manifest { sequence: manifest.sequence + 1, ..manifest.clone() };
    if let CopyEnd::Sealed { segment, end } = *cut {
        copied.segments.retain(|listed| listed.start < segment.start);
        if end > segment.start {
            copied.segments.push(ManifestSegment { end, ..segment });
        }
        copied.indexed_to = end;
    }
    for lost in lost_logs {
        copied.logs.remove(&lost.log);
    }
    copied
}

/// The offsets below which the frames of logs in sorted segments are not read any more.
fn released_offsets(manifest: &Manifest) -> BTreeMap<LogId, Offset> {
    let logs = manifest.logs.iter();
    logs.map(|(log, horizon)| (*log, horizon.released_tip.end)).collect()
}

/// The logs that lost something that they had as of `last`.
fn lost_logs(manifest: &Manifest, last: Hlc) -> Vec<LostLog> {
    let logs = manifest.logs.iter();
    let logs =
        logs.map(|(log, horizon)| LostLog { log: *log, complete_from: complete_from(horizon) });
    logs.filter(|lost| lost.complete_from > last).collect()
}

/// From this stamp on, a log lacks only what its log start had removed before.
fn complete_from(horizon: &LogHorizon) -> Hlc {
    // A cut below the bound `compacted_to` is not complete.
    let compacted = horizon.compacted_to.previous();
    horizon.lost_to.max(compacted).max(horizon.released_tip.stamp)
}

/// The search for the first frame after a stamp, and, on the way, for frames of some logs.
struct FrameSearch {
    last: Hlc,
    /// The logs to find.
    logs: BTreeSet<LogId>,
    /// The logs among them with a frame up to `last`.
    found_logs: BTreeSet<LogId>,
    /// The position of the first frame after it, among those seen.
    first_later: Option<u64>,
}

impl FrameSearch {
    fn new(last: Hlc, lost_logs: &[LostLog]) -> FrameSearch {
        let logs = lost_logs.iter().map(|lost| lost.log).collect();
        FrameSearch { last, logs, found_logs: BTreeSet::new(), first_later: None }
    }

    fn visit(&mut self, position: u64, frame: &FrameHeader) {
        if frame.stamp > self.last {
            self.first_later = Some(self.first_later.map_or(position, |at| at.min(position)));
        } else if self.logs.contains(&frame.log) {
            self.found_logs.insert(frame.log);
        }
    }

    /// Searches the segments that the manifest lists.
    fn search_sealed(
        &mut self,
        disk: &dyn Disk,
        manifest: &Manifest,
        released: &BTreeMap<LogId, Offset>,
    ) -> Result<Option<CopyEnd>, StorageError> {
        let cache = Arc::new(BlockCache::new(0));
        for segment in &manifest.segments {
            let data = segment.data_name();
            let index = SegmentIndex::open(disk, &index_name(&data), segment.start, &cache)?;
            if let Some(index) = index.filter(|index| index.header.last_stamp <= self.last) {
                match self.find_logs(&index) {
                    Ok(()) => continue,
                    // The data file says it too.
                    Err(error) if error.is_data_loss() => {}
                    Err(error) => return Err(error),
                }
            }
            let file = StorageFile::open(disk, &data)?;
            match segment.layout {
                SegmentLayout::Journal => {
                    let span = segment.start..segment.end;
                    for_each_journal_frame(file, span, &mut |scanned| {
                        self.visit(scanned.position, &scanned.frame);
                        match self.first_later {
                            Some(_) => ControlFlow::Break(()),
                            None => ControlFlow::Continue(()),
                        }
                    })?;
                }
                SegmentLayout::Sorted { .. } => {
                    for_each_sorted_frame(&DataFile::new(file), released, &mut |frame| {
                        self.visit(frame.position, &frame.frame);
                        Ok(())
                    })?;
                }
            }
            if let Some(end) = self.first_later {
                return Ok(Some(CopyEnd::Sealed { segment: *segment, end }));
            }
        }
        Ok(None)
    }

    /// Searches for logs.
    fn find_logs(&mut self, index: &SegmentIndex) -> Result<(), StorageError> {
        for log in &self.logs {
            if index.find_run(*log)?.is_some() {
                self.found_logs.insert(*log);
            }
        }
        Ok(())
    }

    /// Searches the segments from `from` on, which are not listed; returns where the copy ends.
    /// Everything below `synced_to` has to be there.
    fn search_open(
        &mut self,
        disk: &dyn Disk,
        from: u64,
        synced_to: u64,
    ) -> Result<u64, AsOfError> {
        let walked = walk(disk, from, Hlc::ZERO, synced_to, self)?;
        match self.first_later {
            Some(position) => Ok(position),
            None => {
                check_synced(&walked, KnownSynced::AlsoByFrames(synced_to))?;
                Ok(walked.end)
            }
        }
    }
}

impl FrameVisitor for FrameSearch {
    fn frame(
        &mut self,
        _: &Arc<Segment>,
        position: u64,
        frame: &FrameHeader,
        _: &[u8],
    ) -> Result<(), RecoverError> {
        self.visit(position, frame);
        Ok(())
    }
}

/// An entry of a log, as it is stored.
#[derive(Clone, Debug)]
pub struct StoredLogEntry {
    pub log: LogId,
    pub kind: u8,
    pub epoch: u32,
    /// The number of offsets that it takes.
    pub count: u32,
    pub user: (UserTime, UserTime),
    pub payload: Bytes,
}

/// Visits the entries of some logs that are stamped after `last`, in order.
///
/// # Errors
/// The journal is corrupt, or the disk fails.
pub fn entries_after(
    disk: &dyn Disk,
    last: Hlc,
    logs: &[LogId],
    visit: &mut dyn FnMut(StoredLogEntry),
) -> Result<(), AsOfError> {
    let manifest = Manifest::read(disk).map_err(CopyError::from)?;
    let known = BoundFile::read(disk).map_err(CopyError::from)?.ok_or(CopyError::NoBound)?;
    let released = released_offsets(&manifest);
    let mut read = |file: &DataFile, frame: &FrameHeader, at: u64| {
        if frame.stamp > last && logs.contains(&frame.log) {
            visit(read_entry(file, frame, at)?);
        }
        Ok(())
    };
    let cache = Arc::new(BlockCache::new(0));
    for segment in &manifest.segments {
        let name = segment.data_name();
        let index = SegmentIndex::open(disk, &index_name(&name), segment.start, &cache)?;
        if index.is_some_and(|index| index.header.last_stamp <= last) {
            continue;
        }
        let data = DataFile::new(StorageFile::open(disk, &name)?);
        match segment.layout {
            SegmentLayout::Journal => {
                let file = StorageFile::open(disk, &name)?;
                let mut failed = Ok(());
                for_each_journal_frame(file, segment.start..segment.end, &mut |scanned| {
                    let at = SEGMENT_HEADER_BYTES + scanned.position - segment.start;
                    failed = read(&data, &scanned.frame, at + FRAME_BYTES as u64);
                    if failed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                })?;
                failed?;
            }
            SegmentLayout::Sorted { .. } => {
                for_each_sorted_frame(&data, &released, &mut |frame| {
                    read(&data, &frame.frame, frame.at)
                })?;
            }
        }
    }
    let mut reader = OpenEntries { read: &mut read };
    let walked = walk(disk, manifest.indexed_to, Hlc::ZERO, known.synced_to, &mut reader)?;
    check_synced(&walked, KnownSynced::AlsoByFrames(known.synced_to))?;
    Ok(())
}

/// Reads the entries that are in no listed segment.
struct OpenEntries<'a> {
    read: &'a mut dyn FnMut(&DataFile, &FrameHeader, u64) -> Result<(), StorageError>,
}

impl FrameVisitor for OpenEntries<'_> {
    fn frame(
        &mut self,
        segment: &Arc<Segment>,
        position: u64,
        frame: &FrameHeader,
        _: &[u8],
    ) -> Result<(), RecoverError> {
        let at = segment.at(position) + FRAME_BYTES as u64;
        Ok((self.read)(&segment.data, frame, at)?)
    }
}

fn read_entry(
    file: &DataFile,
    frame: &FrameHeader,
    at: u64,
) -> Result<StoredLogEntry, StorageError> {
    let mut payload = vec![0; frame.length as usize];
    file.read_exact(&mut payload, at)?;
    if crc32c::crc32c(&payload) != frame.payload_crc {
        return Err(file.corruption_error(at, "a payload"));
    }
    Ok(StoredLogEntry {
        log: frame.log,
        kind: frame.kind,
        epoch: frame.epoch,
        count: frame.count,
        user: (frame.user_min, frame.user_max),
        payload: payload.into(),
    })
}

/// Visits the frames of a sorted segment that are not `released`. Of the others there may be only
/// remains, beside holes.
fn for_each_sorted_frame(
    data: &DataFile,
    released: &BTreeMap<LogId, Offset>,
    visit: &mut dyn FnMut(&SortedFrame) -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let mut frames = SortedSegmentScanner::new(data)?;
    let mut is_after_released = false;
    loop {
        let frame = frames.next()?;
        // The rest of a hole may be too short to be recognized as one.
        if let Some(at) = frames.corrupt_at.take()
            && !is_after_released
        {
            return Err(data.corruption_error(at, "a frame"));
        }
        let Some(frame) = frame else { return Ok(()) };
        let entry = frame.frame.entry_at(frame.position + FRAME_BYTES as u64);
        let released_to = released.get(&frame.frame.log).copied().unwrap_or(Offset(0));
        is_after_released = entry.end() <= released_to;
        if !is_after_released {
            visit(&frame)?;
        }
    }
}

/// Copies the frames of a sorted segment that are stamped up to `last` and not `released`, under
/// another header, and syncs the copy.
///
/// # Errors
/// The source is corrupt, or a disk fails or is full.
pub(super) fn copy_sorted_as_of(
    source: StorageFile,
    target: &StorageFile,
    header: SortedSegmentHeader,
    last: Hlc,
    released: &BTreeMap<LogId, Offset>,
) -> Result<(), StorageError> {
    let data = DataFile::new(source);
    let (mut pending, mut written) = (header.encode().to_vec(), 0);
    for_each_sorted_frame(&data, released, &mut |frame| {
        if frame.frame.stamp > last {
            return Ok(());
        }
        let payload_bytes = u64::from(frame.frame.length);
        let length = SORTED_FRAME_HEADER_BYTES + padded(payload_bytes) as usize;
        let from = pending.len();
        pending.resize(from + length, 0);
        // The padding of the last frame may not be in the file.
        let unpadded = from + SORTED_FRAME_HEADER_BYTES + payload_bytes as usize;
        let at = frame.at - SORTED_FRAME_HEADER_BYTES as u64;
        data.read_exact(&mut pending[from..unpadded], at)?;
        let payload = &pending[from + SORTED_FRAME_HEADER_BYTES..unpadded];
        if crc32c::crc32c(payload) != frame.frame.payload_crc {
            return Err(data.corruption_error(frame.at, "a payload"));
        }
        if pending.len() >= WRITE_BYTES {
            target.write_at(&pending, written)?;
            written += pending.len() as u64;
            pending.clear();
        }
        Ok(())
    })?;
    target.write_at(&pending, written)?;
    target.sync()
}

/// Returns true if there is a proof of the segment that begins at `start`.
fn is_proved(disk: &dyn Disk, start: u64) -> Result<bool, StorageError> {
    let names = list_files(disk)?;
    let files = names.iter().filter(|name| proof_start(name).is_some_and(|first| first <= start));
    for name in files {
        match ProofLocation::read_all(&StorageFile::open(disk, name)?) {
            Ok(proofs) if proofs.iter().any(|proof| proof.header.end > start) => return Ok(true),
            Ok(_) => {}
            Err(ProofError::Storage(error)) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(false)
}

/// Writes the proof of a sorted segment, from the frames that it has. Nobody signs it.
pub(super) fn prove_sorted(
    disk: &dyn Disk,
    name: &str,
    span: Range<u64>,
) -> Result<(), StorageError> {
    let mut frames = SortedFrameReader::with_leaves(StorageFile::open(disk, name)?, true)?;
    let mut leaves = Vec::new();
    while let Some(item) = frames.next_item()? {
        if let SortedScanItem::Frame { found, .. } = item
            && let Some(digest) = found.leaf
        {
            leaves.push(FrameLeaf { position: found.position, stamp: found.frame.stamp, digest });
        }
    }
    leaves.sort_unstable_by_key(|leaf| leaf.position);
    let mut in_order = FrameLeaves::default();
    leaves.into_iter().for_each(|leaf| in_order.push(leaf));
    let before = match chain_before(disk, span.start) {
        Err(ProofError::Storage(error)) => return Err(error),
        chain => chain.ok().flatten().unwrap_or(Digest::BIRTH),
    };
    match write_proof_from_leaves(disk, span, &in_order, before, None) {
        Ok(_) => Ok(()),
        Err(WriteProofError::Storage(error)) => Err(error),
        Err(error @ WriteProofError::Corrupt { .. }) => {
            Err(StorageError::corrupt(name, None, error.to_string()))
        }
    }
}

/// The last stamp below `end` in the newest segment that is not indexed; zero if all are.
pub(super) fn last_stamp_of_newest_segment(
    disk: &dyn Disk,
    indexed_to: u64,
    end: u64,
) -> Result<Hlc, StorageError> {
    let newest = open_segments(&list_files(disk)?, indexed_to, end).pop();
    let Some((start, _)) = newest else { return Ok(Hlc::ZERO) };
    // The file may be truncated meanwhile behind the end.
    let file = StorageFile::open(disk, &segment_name(start))?;
    let mut last = Hlc::ZERO;
    for_each_journal_frame(file, start..end, &mut |scanned| {
        last = scanned.frame.stamp;
        ControlFlow::Continue(())
    })?;
    Ok(last)
}

/// Visits the frames in `span` of a segment in the order of the journal.
fn for_each_journal_frame(
    file: StorageFile,
    span: Range<u64>,
    visit: &mut dyn FnMut(&ScannedFrame) -> ControlFlow<()>,
) -> Result<(), StorageError> {
    let name = file.name().to_owned();
    let mut frames = FrameReader::new(file, span, SEGMENT_HEADER_BYTES);
    while let Some(item) = frames.next_item()? {
        match item {
            JournalScanItem::Frame(scanned) if !scanned.payload_is_whole => {
                return Err(StorageError::corrupt(&name, scanned.position, "a payload"));
            }
            JournalScanItem::Frame(scanned) => {
                if visit(&scanned).is_break() {
                    break;
                }
            }
            JournalScanItem::Corrupt { position, reason, .. } => {
                return Err(StorageError::corrupt(&name, position, reason.to_string()));
            }
        }
    }
    Ok(())
}
