//! Verifies a data directory: every frame of the journal, its indexes, the bound file, and, on
//! request, that history is what the proofs say.
//!
//! A check goes on after a corrupt place: it finds the next frame, so that one run names every
//! corrupt place. It tells corruption from the legal result of a crash as a start does: by what the
//! rest of the directory says was on stable storage.

mod index_comparison;
mod indexes;
mod proofs;
mod sorted_segments;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use hlc::Hlc;

use crate::disk::Disk;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::history::{HistoryError, open_latest_run_tables};
use crate::index::{BlockCache, latest_runs_range};
use crate::journal::{
    FRAME_BYTES, FrameError, FrameReader, JournalCorruption, JournalScanItem, RecoverError,
    SEGMENT_HEADER_BYTES, ScannedFrame, SegmentHeader, segment_start,
};
use crate::manifest::{MANIFEST_FILE, Manifest, ManifestError};
use crate::proof::{VerifyingKey, proof_start};
use crate::sealed_segment::SegmentLayout;
use crate::sorted_segment::{index_name, is_index_name, is_sorted_segment_name};
use crate::space_reserve::RESERVE_FILE;
use crate::storage_file::{StorageFile, list_files};
use crate::timekeeper::{BOUND_FILE, BoundError, BoundFile, BoundRecord};

use index_comparison::IndexComparison;
use indexes::IndexCheck;
pub use proofs::{
    ChangedFrame, FrameChange, ProofSet, ProofVerdict, ProvableFile, VerificationReport,
};
use sorted_segments::SortedSegmentCheck;

/// The largest number of problems that are reported in full; the rest are counted.
pub const PROBLEMS_MAX: usize = 1000;
/// The number of bytes that the search for the last byte written reads at once.
const WINDOW_BYTES: u64 = 256 << 10;

#[derive(Debug, Default)]
pub struct CheckReport {
    /// Frames whose header and payload are intact.
    pub frames: u64,
    /// Bytes of payload in them.
    pub payload_bytes: u64,
    /// Logs seen, and how many frames each has.
    pub logs: BTreeMap<LogId, u64>,
    /// Segment files of the journal.
    pub segments: usize,
    /// Sorted segment files and compacted prefixes.
    pub sorted_segments: usize,
    /// Index files.
    pub indexes: usize,
    /// Files that nothing names: a crash may leave some, and the next start removes them.
    pub leftovers: Vec<String>,
    /// The first and the last stamp.
    pub stamps: Option<(Hlc, Hlc)>,
    /// The content of the bound file.
    pub bound: Option<BoundRecord>,
    /// Bytes after the last good frame that a crash left: legal, and truncated at the next start.
    pub torn_bytes: u64,
    /// Problems, up to [`PROBLEMS_MAX`]. Empty for a healthy directory.
    pub problems: Vec<String>,
    /// The number of further problems.
    pub problems_omitted: u64,
    /// The result of verifying the proofs, if that was requested.
    pub verification: Option<VerificationReport>,
}

impl CheckReport {
    fn problem(&mut self, problem: impl Into<String>) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem.into());
        } else {
            self.problems_omitted += 1;
        }
    }
}

/// Checks the directory; changes nothing. `progress` is called with how many bytes of data files
/// and indexes have been read.
///
/// # Errors
/// The disk fails.
pub fn check(disk: &dyn Disk, progress: &mut dyn FnMut(u64)) -> Result<CheckReport, StorageError> {
    run(disk, None, progress)
}

/// The same, and compares every frame with its proof. All proofs have to be signed by one of
/// `keys`. Without keys, any signatures have to be valid.
///
/// # Errors
/// The disk fails.
pub fn verify(
    disk: &dyn Disk,
    keys: &[VerifyingKey],
    progress: &mut dyn FnMut(u64),
) -> Result<CheckReport, StorageError> {
    run(disk, Some(ProofSet::list(disk, keys)?), progress)
}

/// The approximate number of bytes that a check reports as read in the end: those of data files and
/// indexes, without files that nothing names.
///
/// # Errors
/// The disk fails.
pub fn bytes_to_read(disk: &dyn Disk) -> Result<u64, StorageError> {
    let is_read = |name: &String| {
        segment_start(name).is_some() || is_sorted_segment_name(name) || is_soft(name)
    };
    let mut names: BTreeSet<String> = list_files(disk)?.into_iter().filter(is_read).collect();
    // Without a manifest everything is read.
    if let Ok(manifest) = Manifest::read(disk) {
        for name in leftovers(disk, &manifest)? {
            names.remove(&name);
        }
    }
    names.iter().map(|name| StorageFile::open(disk, name)?.length()).sum()
}

fn is_soft(name: &str) -> bool {
    is_index_name(name) || latest_runs_range(name).is_some()
}

/// The frames that a file should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedFrames {
    /// Every frame of these positions, by position.
    All(Range<u64>),
    /// Some of them, in another order: a frame that is absent was removed, which is no problem.
    Subset,
    /// The same, and compaction may have put other frames in place of the original ones.
    Compacted,
}

/// Frames of one of the store's files. An implementation knows their order in it.
pub trait FrameSource {
    fn name(&self) -> &str;

    /// The frames that should be in it.
    fn expected_frames(&self) -> ExpectedFrames;

    /// The position in the file up to which it has been read, in bytes.
    fn read_to(&self) -> u64;

    /// The next frame, with its leaf if there are proofs, or the next corrupt place. Its position
    /// is one of the journal, or of the file if the file is not in journal order.
    ///
    /// # Errors
    /// The disk fails.
    fn next_item(&mut self) -> Result<Option<JournalScanItem>, StorageError>;
}

/// Compares all frames of a file with their proofs, and calls `visit` with each. `progress` is
/// called with how far the file has been read.
///
/// # Errors
/// The disk fails.
pub fn read_frames(
    part: &mut dyn FrameSource,
    mut proofs: Option<&mut ProofSet<'_>>,
    progress: &mut dyn FnMut(u64),
    visit: &mut dyn FnMut(&JournalScanItem),
) -> Result<(), StorageError> {
    let holding = part.expected_frames();
    while let Some(item) = part.next_item()? {
        if let (Some(proofs), JournalScanItem::Frame(scanned)) = (&mut proofs, &item) {
            proofs.compare(part.name(), scanned, &holding)?;
        }
        visit(&item);
        progress(part.read_to());
    }
    if let (Some(proofs), ExpectedFrames::All(span)) = (proofs, holding) {
        proofs.finish_segment(part.name(), span)?;
    }
    Ok(())
}

struct SegmentFile {
    start: u64,
    name: String,
    file: StorageFile,
    /// The position after its last byte.
    limit: u64,
    /// The position at which the next one begins, if there is a next one.
    next: Option<u64>,
    header_is_whole: bool,
}

/// A segment of the journal, read from beginning to end.
struct SegmentFrameSource<'a> {
    segment: &'a SegmentFile,
    frames: FrameReader,
    /// The position after the last item.
    position: u64,
    comparison: Option<IndexComparison<'a>>,
}

impl SegmentFrameSource<'_> {
    /// The byte in the file at which a position lies.
    fn place(&self, position: u64) -> u64 {
        position - self.segment.start + SEGMENT_HEADER_BYTES
    }
}

impl FrameSource for SegmentFrameSource<'_> {
    fn name(&self) -> &str {
        &self.segment.name
    }

    fn expected_frames(&self) -> ExpectedFrames {
        match self.segment.next {
            Some(next) => ExpectedFrames::All(self.segment.start..next),
            None => ExpectedFrames::Subset,
        }
    }

    fn read_to(&self) -> u64 {
        self.place(self.position)
    }

    fn next_item(&mut self) -> Result<Option<JournalScanItem>, StorageError> {
        let item = self.frames.next_item()?;
        let from = self.place(self.position);
        self.position = match &item {
            Some(JournalScanItem::Frame(scanned)) => scanned.frame.end(scanned.position),
            Some(JournalScanItem::Corrupt { until, .. }) => *until,
            None => self.position,
        };
        let to = self.place(self.position);
        match (&mut self.comparison, &item) {
            (Some(comparison), Some(JournalScanItem::Frame(scanned))) => {
                comparison.journal_frame(scanned, from + FRAME_BYTES as u64)?;
            }
            (Some(comparison), Some(JournalScanItem::Corrupt { .. })) => {
                comparison.exclude_corrupt(from..to)
            }
            // A file that is too short is reported elsewhere.
            (Some(comparison), None) => comparison.exclude_corrupt(to..u64::MAX),
            (None, _) => {}
        }
        Ok(item)
    }
}

fn run(
    disk: &dyn Disk,
    mut proofs: Option<ProofSet<'_>>,
    progress: &mut dyn FnMut(u64),
) -> Result<CheckReport, StorageError> {
    let mut journal = JournalCheck::default();
    journal.check_bound(disk)?;
    let manifest = journal.check_manifest(disk)?;
    // Without the manifest it is unknown which files nothing names: a user might remove the wrong
    // ones.
    if journal.report.problems.is_empty() {
        journal.report.leftovers = leftovers(disk, &manifest)?;
    }
    let mut bytes_read = 0;
    let mut indexes = IndexCheck::read(disk, &manifest, &mut |bytes| {
        bytes_read += bytes;
        progress(bytes_read);
    })?;
    let segments = segment_files(disk)?;
    let has_files = !segments.is_empty();
    let segments = journal.expected_segments(segments, &manifest);
    journal.report.segments = segments.len();
    for segment in &segments {
        let progress = &mut |bytes| progress(bytes_read + bytes);
        journal.check_segment(segment, &manifest, &mut indexes, proofs.as_mut(), progress)?;
        bytes_read += segment.limit - segment.start + SEGMENT_HEADER_BYTES;
    }
    let mut sorted = SortedSegmentCheck::default();
    for file in sorted_segments::expected_files(&manifest) {
        let progress = &mut |bytes| progress(bytes_read + bytes);
        let proofs = proofs.as_mut();
        bytes_read += sorted.read(&file, disk, &manifest.logs, &mut indexes, proofs, progress)?;
    }
    let newest_index = indexes.open_newest(&manifest)?;
    let indexed_stamp = newest_index.map(|index| index.header.last_stamp);
    journal.check_stamp_order(sorted.last_stamp().max(indexed_stamp));
    let mut report = journal.into_report(&segments, has_files, manifest.indexed_to)?;
    sorted.add_to(&mut report);
    report.indexes = indexes.count;
    for problem in indexes.problems {
        report.problem(problem);
    }
    match proofs {
        None => Ok(report),
        Some(proofs) => conclude(report, proofs, &segments, &manifest),
    }
}

fn conclude(
    mut report: CheckReport,
    proofs: ProofSet<'_>,
    segments: &[SegmentFile],
    manifest: &Manifest,
) -> Result<CheckReport, StorageError> {
    let segments = segments.iter().filter_map(|segment| {
        let span = segment.start..segment.next?;
        Some(ProvableFile { file: segment.name.clone(), span, is_sorted: false })
    });
    let filed = manifest.segments.iter().filter_map(|segment| match segment.layout {
        SegmentLayout::Journal => None,
        SegmentLayout::Sorted { .. } => {
            let file = segment.data_name();
            Some(ProvableFile { file, span: segment.start..segment.end, is_sorted: true })
        }
    });
    let mut sealed: Vec<ProvableFile> = segments.chain(filed).collect();
    sealed.sort_by_key(|sealed| sealed.span.start);
    let sealed_to = sealed.last().map_or(0, |sealed| sealed.span.end);
    let verification = proofs.finish(&sealed, sealed_to.max(manifest.indexed_to))?;
    for problem in verification.problems() {
        report.problem(problem);
    }
    report.verification = Some(verification);
    Ok(report)
}

/// Files of the directory that nothing names.
fn leftovers(disk: &dyn Disk, manifest: &Manifest) -> Result<Vec<String>, StorageError> {
    let mut referenced: BTreeSet<String> = BTreeSet::new();
    for data in manifest.data_files() {
        referenced.insert(index_name(&data));
        referenced.insert(data);
    }
    let cache = Arc::new(BlockCache::new(0));
    referenced.extend(
        open_latest_run_tables(disk, manifest, &cache)?.iter().map(|table| table.name().to_owned()),
    );
    let is_known = |name: &str| {
        referenced.contains(name)
            || segment_start(name).is_some_and(|start| start >= manifest.indexed_to)
            || proof_start(name).is_some()
            || [BOUND_FILE, MANIFEST_FILE, RESERVE_FILE].contains(&name)
    };
    let mut leftovers: Vec<String> =
        disk.list()?.into_iter().filter(|name| !is_known(name)).collect();
    leftovers.sort();
    Ok(leftovers)
}

/// All files that are segments by name, by position.
fn segment_files(disk: &dyn Disk) -> Result<Vec<SegmentFile>, StorageError> {
    let mut segments = Vec::new();
    for name in disk.list()? {
        let Some(start) = segment_start(&name) else { continue };
        let file = StorageFile::open(disk, &name)?;
        let mut header = [0; SEGMENT_HEADER_BYTES as usize];
        let read = file.read_at(&mut header, 0)?;
        let header_is_whole = read == header.len()
            && SegmentHeader::decode(&header).is_some_and(|header| header.start == start);
        let limit = start.saturating_add(file.length()?.saturating_sub(SEGMENT_HEADER_BYTES));
        segments.push(SegmentFile { start, name, file, limit, next: None, header_is_whole });
    }
    segments.sort_by_key(|segment| segment.start);
    Ok(segments)
}

/// A problem at a position of the journal, unless a crash may have left it.
struct CheckFinding {
    position: u64,
    what: JournalProblem,
}

enum JournalProblem {
    Corruption { file: String, reason: FrameError },
    Order { stamp: Hlc, last: Hlc },
    Offsets { log: LogId, expected: Offset, found: Offset },
}

/// The state of checking the journal, frame by frame.
#[derive(Default)]
struct JournalCheck {
    report: CheckReport,
    /// The report when the first corrupt place was found: what a start would keep.
    before_corruption: Option<CheckReport>,
    findings: Vec<CheckFinding>,
    findings_omitted: u64,
    /// The position after the last frame.
    end: u64,
    /// The stamp of the last frame, and the largest.
    last: Hlc,
    largest: Hlc,
    /// The position at which the indexed part ends; after it, the first frame, and the end of each
    /// log.
    indexed_to: u64,
    first_unindexed: Option<(u64, Hlc)>,
    unindexed_to: Option<u64>,
    has_offset_gaps: bool,
    ends: BTreeMap<LogId, Offset>,
    /// Everything below this position is known to have been synced.
    known_synced_to: u64,
    /// The position of the first corrupt place.
    corrupt_from: Option<u64>,
}

impl JournalCheck {
    /// Reads the bound file, and reports what is wrong with it.
    fn check_bound(&mut self, disk: &dyn Disk) -> Result<(), StorageError> {
        match BoundFile::read(disk) {
            Ok(bound) => {
                self.report.bound = bound;
                if let Some(position) = BoundFile::corrupt_slot(disk)? {
                    self.report.problem(format!(
                        "journal/bound lacks what was written to it: the slot at position {position} is empty and was not, so the bound may be older than what was promised on; if the wall clock was never set back, a start makes it whole; else restore the whole data directory from a backup"
                    ));
                }
                Ok(())
            }
            Err(BoundError::Storage(error)) => Err(error),
            Err(error) => {
                self.report.problem(error.to_string());
                Ok(())
            }
        }
    }

    /// Reads the manifest. If it cannot be read, an empty one takes its place, so that the existing
    /// files are checked all the same.
    fn check_manifest(&mut self, disk: &dyn Disk) -> Result<Manifest, StorageError> {
        let known = self.report.bound.map_or(0, |bound| bound.manifest_sequence);
        match Manifest::read(disk) {
            Ok(manifest) => {
                let found = manifest.sequence;
                if found < known {
                    self.report.problem(ManifestError::Stale { found, known }.to_string());
                }
                Ok(manifest)
            }
            Err(ManifestError::Storage(error)) => Err(error),
            Err(error) => {
                self.report.problem(error.to_string());
                Ok(Manifest::default())
            }
        }
    }

    /// Reads one segment, and compares it with its index and its proof.
    fn check_segment(
        &mut self,
        segment: &SegmentFile,
        manifest: &Manifest,
        indexes: &mut IndexCheck<'_>,
        proofs: Option<&mut ProofSet<'_>>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), StorageError> {
        if !segment.header_is_whole {
            // The header is on stable storage before the first frame is written, so no crash leaves
            // it like this.
            let (file, position) = (segment.name.clone(), segment.start);
            let reason = FrameError::Segment;
            let corruption = JournalCorruption { file, position, synced_to: position, reason };
            self.report.problem(corruption.to_string());
        }
        self.end = self.end.max(segment.start);
        let to = segment.next.unwrap_or(u64::MAX).min(segment.limit).max(segment.start);
        let file = segment.file.clone();
        let mut frames = FrameReader::new(file, segment.start..to, SEGMENT_HEADER_BYTES);
        if proofs.is_some() {
            frames = frames.with_leaves();
        }
        let is_indexed = segment.start < manifest.indexed_to;
        let index = if is_indexed { indexes.open_for(&segment.name, segment.start)? } else { None };
        let comparison =
            index.map(|index| IndexComparison::new(index, &manifest.logs)).transpose()?;
        let position = segment.start;
        let mut source = SegmentFrameSource { segment, frames, position, comparison };
        read_frames(&mut source, proofs, progress, &mut |item| {
            self.record_item(&segment.name, item);
        })?;
        let disagrees = source.comparison.map(IndexComparison::finish).transpose()?;
        if let Some((index, problem)) = disagrees.flatten() {
            indexes.report_disagreement(&index, &problem);
        }
        self.check_segment_end(segment);
        Ok(())
    }

    /// The segments to check, each with its end. The manifest lists those below `indexed_to` that
    /// are not sorted yet; after that, they follow one another.
    fn expected_segments(
        &mut self,
        files: Vec<SegmentFile>,
        manifest: &Manifest,
    ) -> Vec<SegmentFile> {
        let from = manifest.indexed_to;
        self.indexed_to = from;
        // Every file that the manifest names was synced before the manifest.
        self.known_synced_to = from;
        let (below, mut open): (Vec<_>, Vec<_>) =
            files.into_iter().partition(|file| file.start < from);
        let mut below: BTreeMap<u64, SegmentFile> =
            below.into_iter().map(|file| (file.start, file)).collect();
        let mut expected = Vec::new();
        let listed =
            manifest.segments.iter().filter(|segment| segment.layout == SegmentLayout::Journal);
        for segment in listed {
            match below.remove(&segment.start) {
                Some(file) => expected.push(SegmentFile { next: Some(segment.end), ..file }),
                None => {
                    let file = segment.data_name();
                    self.report.problem(HistoryError::MissingFile { file }.to_string());
                }
            }
        }
        // A segment with no more than a header was being created when the machine stopped.
        open.retain(|file| file.header_is_whole || file.limit > file.start);
        let starts: Vec<u64> = open.iter().map(|file| file.start).collect();
        for (file, next) in open.iter_mut().zip(starts.iter().skip(1)) {
            file.next = Some(*next);
        }
        if let Some(found) = starts.first().copied().filter(|start| *start != from) {
            self.report.problem(RecoverError::Gap { expected: from, found }.to_string());
        }
        expected.append(&mut open);
        expected
    }

    /// Records an item that was found.
    fn record_item(&mut self, file: &str, item: &JournalScanItem) {
        match item {
            JournalScanItem::Frame(scanned) => {
                if !scanned.payload_is_whole {
                    self.record_corruption(file, scanned.position, FrameError::Payload);
                }
                self.record_frame(scanned);
                self.end = scanned.frame.end(scanned.position);
            }
            JournalScanItem::Corrupt { position, until, reason } => {
                self.record_corruption(file, *position, *reason);
                self.end = *until;
            }
        }
    }

    fn record_frame(&mut self, scanned: &ScannedFrame) {
        let frame = &scanned.frame;
        self.known_synced_to = self.known_synced_to.max(frame.synced_to);
        if frame.stamp <= self.last {
            let problem = JournalProblem::Order { stamp: frame.stamp, last: self.last };
            self.record_problem(scanned.position, problem);
        }
        self.last = frame.stamp;
        self.largest = self.largest.max(frame.stamp);
        if scanned.position >= self.indexed_to {
            self.record_unindexed(scanned);
        }
        if scanned.payload_is_whole {
            let report = &mut self.report;
            report.frames += 1;
            report.payload_bytes += u64::from(frame.length);
            *report.logs.entry(frame.log).or_default() += 1;
            let first = report.stamps.map_or(frame.stamp, |(first, _)| first);
            report.stamps = Some((first, frame.stamp));
        }
    }

    /// Records a frame that is not indexed yet: nothing else says where its log ended.
    fn record_unindexed(&mut self, scanned: &ScannedFrame) {
        let (position, frame) = (scanned.position, &scanned.frame);
        self.first_unindexed.get_or_insert((position, frame.stamp));
        // After a gap in the journal, offsets have a gap too: that is reported already.
        let follows = self.unindexed_to.unwrap_or(self.indexed_to) == position;
        self.unindexed_to = Some(frame.end(position));
        if !follows || self.corrupt_from.is_some() || self.has_offset_gaps {
            self.has_offset_gaps = true;
            return;
        }
        // If nothing was indexed, logs begin at 0.
        let begins = (self.indexed_to == 0).then_some(Offset(0));
        if let Some(expected) = self.ends.get(&frame.log).copied().or(begins)
            && expected != frame.base
        {
            let (log, found) = (frame.log, frame.base);
            self.record_problem(position, JournalProblem::Offsets { log, expected, found });
        }
        self.ends.insert(frame.log, frame.end_offset());
    }

    fn record_corruption(&mut self, file: &str, position: u64, reason: FrameError) {
        if self.corrupt_from.is_none() {
            self.corrupt_from = Some(position);
            let CheckReport { frames, payload_bytes, stamps, .. } = self.report;
            let logs = self.report.logs.clone();
            self.before_corruption =
                Some(CheckReport { frames, payload_bytes, stamps, logs, ..CheckReport::default() });
        }
        self.record_problem(position, JournalProblem::Corruption { file: file.to_owned(), reason });
    }

    fn record_problem(&mut self, position: u64, problem: JournalProblem) {
        if self.findings.len() < PROBLEMS_MAX {
            self.findings.push(CheckFinding { position, what: problem });
        } else {
            self.findings_omitted += 1;
        }
    }

    /// Checks that a sealed segment reaches up to the next one.
    fn check_segment_end(&mut self, segment: &SegmentFile) {
        if let Some(next) = segment.next
            && self.end != next
        {
            self.record_corruption(&segment.name, self.end, FrameError::Short);
            self.end = next;
        }
    }

    /// Checks that stamps rise over all files: entries without an index are newer than sorted ones.
    fn check_stamp_order(&mut self, last: Option<Hlc>) {
        if let (Some((position, stamp)), Some(last)) = (self.first_unindexed, last)
            && stamp <= last
        {
            self.record_problem(position, JournalProblem::Order { stamp, last });
        }
    }

    /// Builds the report. It tells corruption from what a crash left: corruption lies below a
    /// synced position.
    fn into_report(
        mut self,
        segments: &[SegmentFile],
        has_files: bool,
        indexed_to: u64,
    ) -> Result<CheckReport, StorageError> {
        self.end = self.end.max(indexed_to);
        let known = self.known_synced_to.max(self.report.bound.map_or(0, |bound| bound.synced_to));
        let end = self.corrupt_from.unwrap_or(self.end);
        if end < known {
            if self.corrupt_from.is_none() {
                let file = "(the last segment)".to_owned();
                self.record_problem(
                    end,
                    JournalProblem::Corruption { file, reason: FrameError::Short },
                );
            }
        } else {
            if let Some(before) = self.before_corruption.take() {
                let CheckReport { frames, payload_bytes, stamps, logs, .. } = before;
                let torn = std::mem::take(&mut self.report);
                self.report = CheckReport { frames, payload_bytes, stamps, logs, ..torn };
            }
            self.report.torn_bytes = torn_bytes(segments, end)?;
        }
        for CheckFinding { position, what } in self.findings {
            if position < end.max(known) {
                self.report.problem(what.describe(position, known));
            }
        }
        if end < known {
            self.report.problems_omitted += self.findings_omitted;
        }
        let last = self.report.stamps.map_or(Hlc::ZERO, |(_, last)| last);
        let largest = if end < known { self.largest } else { last };
        match self.report.bound {
            None if has_files && self.report.problems.is_empty() => {
                self.report.problem("the bound file is missing or empty");
            }
            Some(bound) if largest >= bound.bound => {
                let bound = bound.bound;
                self.report.problem(format!(
                    "the stamp {largest} lies at or above the persisted bound {bound}"
                ));
            }
            _ => {}
        }
        Ok(self.report)
    }
}

impl JournalProblem {
    fn describe(self, position: u64, synced_to: u64) -> String {
        match self {
            JournalProblem::Corruption { file, reason } => {
                JournalCorruption { file, position, synced_to, reason }.to_string()
            }
            JournalProblem::Order { stamp, last } => {
                RecoverError::Order { position, stamp, last }.to_string()
            }
            JournalProblem::Offsets { log, expected, found } => {
                RecoverError::Offsets { position, log, expected, found }.to_string()
            }
        }
    }
}

/// The number of bytes that a crash left after `end`, up to the last that is not zero: zeros are
/// written ahead of frames.
fn torn_bytes(segments: &[SegmentFile], end: u64) -> Result<u64, StorageError> {
    for segment in segments.iter().rev() {
        let from = segment.start.max(end);
        if let Some(last) = last_written(segment, from)? {
            return Ok(last + 1 - end);
        }
    }
    Ok(0)
}

/// The position of the last byte of `segment` at or after `from` that is not zero.
fn last_written(segment: &SegmentFile, from: u64) -> Result<Option<u64>, StorageError> {
    let mut until = segment.limit;
    while from < until {
        let start = from.max(until.saturating_sub(WINDOW_BYTES));
        let mut bytes = vec![0; (until - start) as usize];
        segment.file.read_exact_at(&mut bytes, start - segment.start + SEGMENT_HEADER_BYTES)?;
        if let Some(index) = bytes.iter().rposition(|byte| *byte != 0) {
            return Ok(Some(start + index as u64));
        }
        until = start;
    }
    Ok(None)
}
