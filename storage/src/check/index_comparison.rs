//! Comparing the frames of a data file with its index, one by one.

use std::ops::Range;

use super::indexes::{LogHorizons, is_released};
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::index::{IndexEntry, IndexRun, SegmentIndex};
use crate::journal::{FRAME_BYTES, ScannedFrame};
use crate::sorted_segment::SORTED_FRAME_HEADER_BYTES;

/// The largest number of corrupt places that are remembered; beyond that, missing frames are not
/// reported.
const CORRUPT_RANGES_MAX: usize = 1000;

/// A run, and the number of its next entry.
struct RunCursor {
    run: IndexRun,
    next: u64,
    /// True if its space may have been reclaimed.
    is_released: bool,
}

/// An index that is compared with the frames that are found.
pub(super) struct IndexComparison<'a> {
    index: SegmentIndex,
    logs: &'a LogHorizons,
    /// The runs that have entries, by log, and so by the numbers of their entries.
    cursors: Vec<RunCursor>,
    /// Corrupt places of the file; they are reported elsewhere.
    corrupt_ranges: Vec<Range<u64>>,
    mismatches: u64,
    first_mismatch: Option<String>,
}

impl<'a> IndexComparison<'a> {
    pub(super) fn new(
        index: SegmentIndex,
        logs: &'a LogHorizons,
    ) -> Result<IndexComparison<'a>, StorageError> {
        let mut cursors = Vec::new();
        for number in 0..index.header.runs {
            let run = index.run_at(number)?;
            if run.count > 0 {
                let is_freed = is_released(logs, run.log, run.tip.end);
                cursors.push(RunCursor { next: run.first, run, is_released: is_freed });
            }
        }
        let (damaged, wrong, first_wrong) = (Vec::new(), 0, None);
        Ok(IndexComparison {
            index,
            logs,
            cursors,
            corrupt_ranges: damaged,
            mismatches: wrong,
            first_mismatch: first_wrong,
        })
    }

    /// Compares a frame of the journal, whose payload begins at `at` of the file, with the next
    /// entry of its log.
    pub(super) fn journal_frame(
        &mut self,
        scanned: &ScannedFrame,
        at: u64,
    ) -> Result<(), StorageError> {
        let (log, base) = (scanned.frame.log, scanned.frame.base);
        let next = match self.cursors.binary_search_by_key(&log, |cursor| cursor.run.log) {
            Ok(place) => self.next_from(place, base)?.map(|number| (place, number)),
            Err(_) => None,
        };
        match next {
            Some((place, number)) => self.compare(place, number, scanned, at, None),
            // A rebuilt index has no entries for what was removed.
            None if is_released(self.logs, log, end_offset_of(scanned)) => Ok(()),
            None => {
                self.report_unindexed(scanned);
                Ok(())
            }
        }
    }

    /// The next entry of a run, if it begins at `base`; the entries before it have no frames.
    fn next_from(&mut self, place: usize, base: Offset) -> Result<Option<u64>, StorageError> {
        loop {
            let RunCursor { run, next, .. } = &self.cursors[place];
            let number = *next;
            if number == run.entries().end {
                return Ok(None);
            }
            let placed = self.index.entry(number)?;
            if placed.entry.base >= base {
                return Ok((placed.entry.base == base).then_some(number));
            }
            self.cursors[place].next += 1;
            self.report_missing(place, &placed);
        }
    }

    /// The number of the entry whose payload begins at `at` of a sorted segment, if there is one.
    pub(super) fn entry_at(&self, at: u64) -> Result<Option<u64>, StorageError> {
        let all = 0..self.index.header.entries;
        let number = self.index.partition_point(all.clone(), |placed| placed.at < at)?;
        let is_there = number < all.end && self.index.entry(number)?.at == at;
        Ok(is_there.then_some(number))
    }

    /// Compares a frame of a sorted segment with the entry of its place.
    pub(super) fn sorted_frame(
        &mut self,
        number: u64,
        scanned: &ScannedFrame,
        at: u64,
        chain: u128,
    ) -> Result<(), StorageError> {
        // Every entry has its run: that was verified.
        let after = self.cursors.partition_point(|cursor| cursor.run.first <= number);
        let Some(place) = after.checked_sub(1) else { return Ok(()) };
        while self.cursors[place].next < number {
            let placed = self.index.entry(self.cursors[place].next)?;
            self.cursors[place].next += 1;
            self.report_missing(place, &placed);
        }
        self.compare(place, number, scanned, at, Some(chain))
    }

    fn compare(
        &mut self,
        place: usize,
        number: u64,
        scanned: &ScannedFrame,
        at: u64,
        chain: Option<u128>,
    ) -> Result<(), StorageError> {
        let placed = self.index.entry(number)?;
        let cursor = &mut self.cursors[place];
        cursor.next = number + 1;
        let (log, base) = (cursor.run.log, placed.entry.base.0);
        if log != scanned.frame.log || !is_same(&placed, scanned, at, chain) {
            self.report_mismatch(log, base, "says something else than the frame");
        }
        Ok(())
    }

    /// Reports that the index has no entry for a frame, and should.
    pub(super) fn report_unindexed(&mut self, scanned: &ScannedFrame) {
        self.report_mismatch(scanned.frame.log, scanned.frame.base.0, "does not know the frame");
    }

    /// Records that there are no frames at a place of the file, which is reported elsewhere.
    pub(super) fn exclude_corrupt(&mut self, range: Range<u64>) {
        if self.corrupt_ranges.len() < CORRUPT_RANGES_MAX {
            self.corrupt_ranges.push(range);
        } else {
            self.corrupt_ranges.push(0..u64::MAX);
        }
    }

    /// The part of `range` of a sorted segment where frames should be that were not removed, from
    /// the first to the last.
    pub(super) fn lost_in(&self, range: &Range<u64>) -> Result<Option<Range<u64>>, StorageError> {
        let front = SORTED_FRAME_HEADER_BYTES as u64;
        let all = 0..self.index.header.entries;
        let number_at = |at: u64| {
            self.index.partition_point(all.clone(), |placed| placed.at < at.saturating_add(front))
        };
        let numbers = number_at(range.start)?..number_at(range.end)?;
        let unreleased = self.cursors.iter().filter(|cursor| !cursor.is_released);
        let mut lost = unreleased.map(|cursor| {
            let entries = cursor.run.entries();
            entries.start.max(numbers.start)..entries.end.min(numbers.end)
        });
        let Some(first) = lost.find(|numbers| !numbers.is_empty()) else { return Ok(None) };
        let last = lost.rfind(|numbers| !numbers.is_empty()).unwrap_or(first.clone());
        let (first, last) = (self.index.entry(first.start)?, self.index.entry(last.end - 1)?);
        Ok(Some(first.at - front..last.at + u64::from(last.entry.length)))
    }

    /// Returns true if the space of some log of `logs` may have been reclaimed here, where there
    /// may be a hole.
    pub(super) fn has_released(
        &self,
        logs: std::ops::RangeInclusive<LogId>,
        is_hole: bool,
    ) -> Result<bool, StorageError> {
        for (log, horizon) in self.logs.range(logs) {
            let is_freed = match self.index.run(*log)? {
                Some(run) => run.tip.end <= horizon.released_tip.end,
                // A rebuilt index has no entries for what was removed.
                None => is_hole && horizon.released_tip.end > Offset(0),
            };
            if is_freed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The index's name and its disagreements (the first, and how many more), if any.
    pub(super) fn finish(mut self) -> Result<Option<(String, String)>, StorageError> {
        for place in 0..self.cursors.len() {
            while self.cursors[place].next < self.cursors[place].run.entries().end {
                let placed = self.index.entry(self.cursors[place].next)?;
                self.cursors[place].next += 1;
                self.report_missing(place, &placed);
            }
        }
        let suffix = match self.mismatches.saturating_sub(1) {
            0 => String::new(),
            count => format!(", and {count} more"),
        };
        Ok(self.first_mismatch.map(|first| (self.index.name().to_owned(), first + &suffix)))
    }

    /// Reports that an entry's frame was not found.
    fn report_missing(&mut self, place: usize, placed: &IndexEntry) {
        let RunCursor { run, is_released: is_freed, .. } = &self.cursors[place];
        let header = placed.at.saturating_sub(FRAME_BYTES as u64);
        if !is_freed && !self.corrupt_ranges.iter().any(|range| range.contains(&header)) {
            let (log, base) = (run.log, placed.entry.base.0);
            self.report_mismatch(log, base, "knows a frame that is not there");
        }
    }

    fn report_mismatch(&mut self, log: LogId, base: u64, problem: &str) {
        self.mismatches += 1;
        self.first_mismatch
            .get_or_insert_with(|| format!("it {problem} at offset {base} of log {}", log.0));
    }
}

/// The offset after a frame's last one.
pub(super) fn end_offset_of(scanned: &ScannedFrame) -> Offset {
    Offset(scanned.frame.base.0.saturating_add(u64::from(scanned.frame.count)))
}

fn is_same(placed: &IndexEntry, scanned: &ScannedFrame, at: u64, chain: Option<u128>) -> bool {
    let (entry, frame) = (&placed.entry, &scanned.frame);
    placed.at == at
        && entry.position == scanned.position + FRAME_BYTES as u64
        && entry.base == frame.base
        && chain.is_none_or(|chain| chain == entry.chain)
        && (entry.stamp, entry.count, entry.length) == (frame.stamp, frame.count, frame.length)
        && (entry.user_min, entry.user_max) == (frame.user_min, frame.user_max)
        && (entry.payload_crc, entry.epoch, entry.kind)
            == (frame.payload_crc, frame.epoch, frame.kind)
}
