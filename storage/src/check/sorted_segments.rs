//! Checking sorted segments: frames sorted by log, some of which may have been removed since.
//!
//! Each frame there is self-describing, so it is compared with its checksums, its entry in the
//! index, and its leaf. Reclaimed space reads as zeros, in whole blocks, with remains of frames
//! around it. That is legal only where entries of some log were removed. All other bytes that are
//! not a frame are corruption: the index says whether anything is lost by it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use hlc::Hlc;

use super::index_comparison::{IndexComparison, end_offset_of};
use super::indexes::{IndexCheck, LogHorizons, header_of, is_released};
use super::{CheckReport, ExpectedFrames, FrameSource, ProofSet, read_frames};
use crate::disk::Disk;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::history::HistoryError;
use crate::journal::{FrameError, JournalScanItem, ScannedFrame, padded};
use crate::manifest::Manifest;
use crate::sealed_segment::SegmentLayout;
use crate::sorted_segment::{
    SORTED_HEADER_BYTES, SortedFrame, SortedFrameReader, SortedScanItem, SortedSegmentHeader,
    compacted_prefix_name,
};
use crate::storage_file::StorageFile;

/// A sorted segment or compacted prefix that should exist.
pub(super) struct ExpectedSortedFile {
    name: String,
    expected_frames: ExpectedFrames,
    /// The range of the journal from which its frames come; for a compacted prefix, up to where.
    span: Range<u64>,
    /// For a compacted prefix, its log, and where it ends: lookups in segments begin there.
    ends: Option<(LogId, Offset)>,
    /// Returns true if a header is the expected one, as far as that is known.
    is_own_header: Box<dyn Fn(&SortedSegmentHeader) -> bool>,
}

/// All sorted segments and compacted prefixes that the manifest names.
pub(super) fn expected_files(manifest: &Manifest) -> Vec<ExpectedSortedFile> {
    let segments = manifest.segments.iter().filter_map(|segment| match segment.layout {
        SegmentLayout::Journal => None,
        SegmentLayout::Sorted { generation } => {
            let (start, end, generation_64) = (segment.start, segment.end, u64::from(generation));
            let expected = SortedSegmentHeader { start, end, generation: generation_64, log: None };
            Some(ExpectedSortedFile {
                name: segment.data_name(),
                expected_frames: ExpectedFrames::Subset,
                span: segment.start..segment.end,
                ends: None,
                is_own_header: Box::new(move |header| *header == expected),
            })
        }
    });
    let bases = manifest.logs.iter().filter(|(_, horizon)| horizon.compacted_generation > 0);
    let bases = bases.map(|(log, horizon)| {
        let (log, base) = (*log, horizon.compacted_generation);
        ExpectedSortedFile {
            name: compacted_prefix_name(log, base),
            expected_frames: ExpectedFrames::Compacted,
            span: 0..manifest.indexed_to,
            ends: Some((log, horizon.released_tip.end)),
            is_own_header: Box::new(move |header| {
                header.log == Some(log) && header.generation == base
            }),
        }
    });
    segments.chain(bases).collect()
}

#[derive(Default)]
pub(super) struct SortedSegmentCheck {
    files: usize,
    frames: u64,
    payload_bytes: u64,
    logs: BTreeMap<LogId, u64>,
    stamps: Option<(Hlc, Hlc)>,
    problems: Vec<String>,
}

impl SortedSegmentCheck {
    /// Reads a file from beginning to end; returns its length.
    pub(super) fn read(
        &mut self,
        filed: &ExpectedSortedFile,
        disk: &dyn Disk,
        logs: &LogHorizons,
        indexes: &mut IndexCheck<'_>,
        proofs: Option<&mut ProofSet<'_>>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, StorageError> {
        let ExpectedSortedFile {
            name,
            expected_frames: holding,
            span,
            ends,
            is_own_header: is_its_own,
        } = filed;
        self.files += 1;
        let lost = HistoryError::MissingFile { file: name.clone() }.to_string();
        let Some(file) = StorageFile::open_if_exists(disk, name)? else {
            self.problems.push(lost);
            return Ok(0);
        };
        let header = header_of(disk, name)?;
        if !header.is_some_and(|header| is_its_own(&header)) {
            self.problems.push(lost);
        }
        let none = LogHorizons::new();
        // Nothing inside a compacted prefix is reclaimed: it is removed as a whole.
        let logs = if *holding == ExpectedFrames::Compacted { &none } else { logs };
        let index =
            header.map(|header| indexes.open_for(name, header.start)).transpose()?.flatten();
        if let (Some((log, end)), Some(index)) = (ends, &index)
            && index.run(*log)?.is_none_or(|run| run.count == 0 || run.tip.end != *end)
        {
            let (log, end) = (log.0, end.0);
            self.problems.push(format!(
                "the compacted prefix {name} does not end at offset {end} of log {log}, as the manifest says"
            ));
        }
        let comparison = index.map(|index| IndexComparison::new(index, logs)).transpose()?;
        let frames = SortedFrameReader::with_leaves(file, proofs.is_some())?;
        let length = frames.length();
        let mut reader = SortedFrameSource {
            name,
            expected_frames: holding,
            frames,
            logs,
            comparison,
            gap: None,
            last_end: SORTED_HEADER_BYTES,
            last_log: LogId(0),
            last_is_released: false,
            has_ended: false,
            ready_items: VecDeque::new(),
        };
        read_frames(&mut reader, proofs, progress, &mut |item| self.record_item(name, span, item))?;
        let disagrees = reader.comparison.map(IndexComparison::finish).transpose()?;
        if let Some((index, problem)) = disagrees.flatten() {
            indexes.report_disagreement(&index, &problem);
        }
        Ok(length)
    }

    fn record_item(&mut self, file: &str, span: &Range<u64>, item: &JournalScanItem) {
        let damage = |place: &str, at: u64, reason: FrameError| {
            format!("the sorted segment {file} is corrupt at {place} {at}: {reason}")
        };
        match item {
            JournalScanItem::Corrupt { position, reason, .. } => {
                self.problems.push(damage("byte", *position, *reason));
            }
            JournalScanItem::Frame(frame) if !frame.payload_is_whole => {
                self.problems.push(damage("position", frame.position, FrameError::Payload));
            }
            JournalScanItem::Frame(scanned) => {
                let frame = &scanned.frame;
                // No proof covers it there.
                if !span.contains(&scanned.position) {
                    let position = scanned.position;
                    self.problems.push(format!(
                        "{file} has a frame of another range of the journal, at position {position}: the file has {}..{}",
                        span.start, span.end
                    ));
                }
                self.frames += 1;
                self.payload_bytes += u64::from(frame.length);
                *self.logs.entry(frame.log).or_default() += 1;
                self.stamps = widest(self.stamps, Some((frame.stamp, frame.stamp)));
            }
        }
    }

    /// The largest stamp that was found.
    pub(super) fn last_stamp(&self) -> Option<Hlc> {
        self.stamps.map(|(_, last)| last)
    }

    /// Adds the results to the report on the journal.
    pub(super) fn add_to(self, report: &mut CheckReport) {
        report.sorted_segments = self.files;
        report.frames += self.frames;
        report.payload_bytes += self.payload_bytes;
        for (log, count) in self.logs {
            *report.logs.entry(log).or_default() += count;
        }
        report.stamps = widest(report.stamps, self.stamps);
        for problem in self.problems {
            report.problem(problem);
        }
    }
}

fn widest(first: Option<(Hlc, Hlc)>, second: Option<(Hlc, Hlc)>) -> Option<(Hlc, Hlc)> {
    match (first, second) {
        (Some((first, last)), Some((other_first, other_last))) => {
            Some((first.min(other_first), last.max(other_last)))
        }
        (first, second) => first.or(second),
    }
}

/// Reads a sorted segment from beginning to end.
struct SortedFrameSource<'a> {
    name: &'a str,
    expected_frames: &'a ExpectedFrames,
    frames: SortedFrameReader,
    logs: &'a LogHorizons,
    /// The file's index, if it is usable.
    comparison: Option<IndexComparison<'a>>,
    /// The bytes skipped in front of the next frame.
    gap: Option<UnreadableRange>,
    /// The position at which the previous frame ends, its log, and whether it was removed.
    last_end: u64,
    last_log: LogId,
    last_is_released: bool,
    has_ended: bool,
    ready_items: VecDeque<JournalScanItem>,
}

/// Bytes that are not a frame.
struct UnreadableRange {
    range: Range<u64>,
    is_hole: bool,
}

impl FrameSource for SortedFrameSource<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn expected_frames(&self) -> ExpectedFrames {
        self.expected_frames.clone()
    }

    fn read_to(&self) -> u64 {
        self.frames.read_to()
    }

    fn next_item(&mut self) -> Result<Option<JournalScanItem>, StorageError> {
        loop {
            if let Some(item) = self.ready_items.pop_front() {
                return Ok(Some(item));
            }
            if self.has_ended {
                return Ok(None);
            }
            let (comparison, last_log) = (&self.comparison, self.last_log);
            let last_is_freed = self.last_is_released;
            let mut is_one = |filed: &SortedFrame| match comparison {
                Some(comparison) => is_expected_frame(filed, comparison, last_log, last_is_freed),
                None => Ok(true),
            };
            match self.frames.next_item_where(&mut is_one)? {
                Some(SortedScanItem::Gap { range, is_hole }) => {
                    self.gap = Some(UnreadableRange { range, is_hole })
                }
                Some(SortedScanItem::Frame { found, at, chain }) => {
                    self.push_frame(found, at, chain)?
                }
                None => self.end()?,
            }
        }
    }
}

/// Returns true if bytes that look like a frame are one. Payload bytes next to a hole may look like
/// a frame, but they cannot have an entry.
fn is_expected_frame(
    filed: &SortedFrame,
    comparison: &IndexComparison<'_>,
    last_log: LogId,
    last_is_freed: bool,
) -> Result<bool, StorageError> {
    let log = filed.frame.log;
    if comparison.entry_at(filed.at)?.is_some() {
        return Ok(true);
    }
    Ok(!last_is_freed && !comparison.has_released(last_log.min(log)..=log, false)?)
}

impl SortedFrameSource<'_> {
    fn push_frame(
        &mut self,
        scanned: ScannedFrame,
        at: u64,
        chain: u128,
    ) -> Result<(), StorageError> {
        let log = scanned.frame.log;
        if let Some(gap) = self.gap.take() {
            let expected_to = gap.range.end;
            self.check_gap(&gap, expected_to, log)?;
        }
        if let Some(comparison) = &mut self.comparison {
            match comparison.entry_at(at)? {
                Some(number) => comparison.sorted_frame(number, &scanned, at, chain)?,
                None if is_released(self.logs, log, end_offset_of(&scanned)) => {}
                None => comparison.report_unindexed(&scanned),
            }
        }
        self.last_end = at + padded(u64::from(scanned.frame.length));
        (self.last_log, self.last_is_released) =
            (log, is_released(self.logs, log, end_offset_of(&scanned)));
        // The header of a removed frame may be left over, without its payload.
        if scanned.payload_is_whole || !self.last_is_released {
            self.ready_items.push_back(JournalScanItem::Frame(scanned));
        }
        Ok(())
    }

    /// Ends the file: nothing follows, though entries may expect more.
    fn end(&mut self) -> Result<(), StorageError> {
        self.has_ended = true;
        let nothing = UnreadableRange { range: self.last_end..self.last_end, is_hole: false };
        let gap = self.gap.take().unwrap_or(nothing);
        self.check_gap(&gap, u64::MAX, LogId(u64::MAX))
    }

    /// Tells corruption from the gaps that removal leaves. Frames may be missing up to
    /// `expected_to`; the next frame is one of `next_log`.
    fn check_gap(
        &mut self,
        gap: &UnreadableRange,
        expected_to: u64,
        next_log: LogId,
    ) -> Result<(), StorageError> {
        // Logs are in order, unless the content is corrupt.
        let logs = self.last_log..=next_log.max(self.last_log);
        let range = gap.range.clone();
        let lost = match &mut self.comparison {
            None => {
                let mut freed = self.logs.range(logs).map(|(_, horizon)| horizon.released_tip.end);
                let is_lawful =
                    self.last_is_released || (gap.is_hole && freed.any(|end| end > Offset(0)));
                (!is_lawful && !range.is_empty()).then_some(range)
            }
            Some(comparison) => {
                let lost = comparison.lost_in(&(range.start..expected_to))?;
                if lost.is_some() {
                    comparison.exclude_corrupt(range.start..expected_to);
                }
                match lost {
                    None if !range.is_empty()
                        && !self.last_is_released
                        && !comparison.has_released(logs, gap.is_hole)? =>
                    {
                        Some(range)
                    }
                    lost => lost,
                }
            }
        };
        self.ready_items.extend(lost.map(|Range { start, end }| JournalScanItem::Corrupt {
            position: start,
            until: end,
            reason: FrameError::Magic,
        }));
        Ok(())
    }
}
