//! Checking indexes: each is compared with the manifest, with itself, and with those before it.
//!
//! An index is soft, so a corrupt one loses nothing. It is a problem all the same: a disk that
//! returns other bytes than were written does not do so to indexes only.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use hlc::{Hlc, UserTime};

use crate::disk::Disk;
use crate::entry::{Entry, LogId, Offset};
use crate::error::StorageError;
use crate::history::open_latest_run_tables;
use crate::index::{
    BlockCache, IndexEntry, IndexRun, LatestRun, LatestRunTable, LogTip, RunLinks, RunLocation,
    SegmentIndex,
};
use crate::journal::{SEGMENT_HEADER_BYTES, padded};
use crate::manifest::{LogHorizon, Manifest};
use crate::sealed_segment::SegmentLayout;
use crate::sorted_segment::{
    SORTED_FRAME_HEADER_BYTES, SORTED_HEADER_BYTES, SortedSegmentHeader, compacted_prefix_name,
    index_name,
};
use crate::storage_file::StorageFile;

/// The bytes of indexes that are cached: more than one of them takes.
const CACHE_BYTES: usize = 32 << 20;
/// The largest number of corrupt blocks that a report names.
const BLOCKS_LISTED_MAX: usize = 8;

/// The horizon of each log.
pub(super) type LogHorizons = BTreeMap<LogId, LogHorizon>;

/// Returns true if entries of `log` that end at `end` were removed, or are in a compacted prefix:
/// their space may have been reclaimed.
pub(super) fn is_released(logs: &LogHorizons, log: LogId, end: Offset) -> bool {
    logs.get(&log).is_some_and(|horizon| end <= horizon.released_tip.end)
}

/// All indexes that should exist.
pub(super) struct IndexCheck<'a> {
    disk: &'a dyn Disk,
    cache: Arc<BlockCache>,
    /// The names of the indexes that can be compared with their frames.
    usable: BTreeSet<String>,
    pub(super) count: usize,
    pub(super) problems: Vec<String>,
}

/// An index that should exist.
struct ExpectedIndex {
    name: String,
    start: u64,
    end: u64,
    kind: IndexKind,
}

/// The kind of data file that an index belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum IndexKind {
    /// A journal segment that begins at this position: frames by position.
    Segment(u64),
    Sorted,
    /// Sorted too, and entries were left out.
    CompactedPrefix,
}

impl<'a> IndexCheck<'a> {
    /// Reads the indexes of all files that the manifest names. `progress` is called with how much
    /// was read.
    pub(super) fn read(
        disk: &'a dyn Disk,
        manifest: &Manifest,
        progress: &mut dyn FnMut(u64),
    ) -> Result<IndexCheck<'a>, StorageError> {
        let cache = Arc::new(BlockCache::new(CACHE_BYTES));
        let (usable, problems) = (BTreeSet::new(), Vec::new());
        let mut indexes = IndexCheck { disk, cache, usable, count: 0, problems };
        let mut trail = LogProgress::new(manifest);
        for segment in &manifest.segments {
            let kind = match segment.layout {
                SegmentLayout::Journal => IndexKind::Segment(segment.start),
                SegmentLayout::Sorted { .. } => IndexKind::Sorted,
            };
            let (start, end) = (segment.start, segment.end);
            let name = index_name(&segment.data_name());
            let expected = ExpectedIndex { name, start, end, kind };
            match indexes.take(&expected, &manifest.logs, progress)? {
                None => trail.add_unread(segment.start..segment.end),
                Some(index) => {
                    if let Some(problem) = trail.follow(&index)? {
                        indexes.report_disagreement(&expected.name, &problem);
                    }
                }
            }
        }
        let tables = open_latest_run_tables(disk, manifest, &indexes.cache)?;
        for table in tables {
            indexes.count += 1;
            progress(table.length());
            let damaged = table.corrupt_blocks()?;
            if !damaged.is_empty() {
                indexes.report_corruption(table.name(), &damaged);
            } else if let Some(problem) = trail.compare(&table)? {
                indexes.report_disagreement(table.name(), &problem);
            }
            indexes.problems.extend(trail.lost_runs(&table)?);
        }
        let none = LogHorizons::new();
        for (log, horizon) in
            manifest.logs.iter().filter(|(_, horizon)| horizon.compacted_generation > 0)
        {
            let data = compacted_prefix_name(*log, horizon.compacted_generation);
            // Only the data file says where the range ends. If the file is missing, that is
            // reported elsewhere.
            let Some(SortedSegmentHeader { start, end, .. }) = header_of(disk, &data)? else {
                continue;
            };
            let expected = ExpectedIndex {
                name: index_name(&data),
                start,
                end,
                kind: IndexKind::CompactedPrefix,
            };
            indexes.take(&expected, &none, progress)?;
        }
        Ok(indexes)
    }

    /// The index of a data file, if it can be compared with the file's content.
    pub(super) fn open_for(
        &self,
        data: &str,
        start: u64,
    ) -> Result<Option<SegmentIndex>, StorageError> {
        let name = index_name(data);
        if !self.usable.contains(&name) {
            return Ok(None);
        }
        SegmentIndex::open(self.disk, &name, start, &self.cache)
    }

    /// The index of the newest sealed segment.
    pub(super) fn open_newest(
        &self,
        manifest: &Manifest,
    ) -> Result<Option<SegmentIndex>, StorageError> {
        let Some(segment) = manifest.segments.last() else { return Ok(None) };
        self.open_for(&segment.data_name(), segment.start)
    }

    /// Reports that blocks of an index are corrupt.
    fn report_corruption(&mut self, name: &str, blocks: &[u64]) {
        let listed: Vec<String> =
            blocks.iter().take(BLOCKS_LISTED_MAX).map(u64::to_string).collect();
        let ellipsis = if blocks.len() > BLOCKS_LISTED_MAX { ", …" } else { "" };
        self.problems.push(format!(
            "the index {name} is corrupt in blocks {}{ellipsis}; it is soft, and is rebuilt once that is noticed, or removed",
            listed.join(", ")
        ));
    }

    /// Reports that an index is intact and wrong.
    pub(super) fn report_disagreement(&mut self, name: &str, problem: &str) {
        self.problems.push(format!(
            "the index {name} disagrees: {problem}; it is soft: remove it, and the next start rebuilds it"
        ));
    }

    fn take(
        &mut self,
        expected: &ExpectedIndex,
        logs: &LogHorizons,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<SegmentIndex>, StorageError> {
        let ExpectedIndex { name, start, end, .. } = expected;
        let soft = "it is soft, and the next start rebuilds it";
        let Some(file) = StorageFile::open_if_exists(self.disk, name)? else {
            self.problems.push(format!("the index {name} is missing; {soft}"));
            return Ok(None);
        };
        self.count += 1;
        progress(file.length()?);
        let index = SegmentIndex::open(self.disk, name, *start, &self.cache)?;
        let Some(index) = index.filter(|index| index.header.end == *end) else {
            self.problems.push(format!(
                "the header of the index {name} is corrupt, or belongs to another file; {soft}"
            ));
            return Ok(None);
        };
        let damaged = index.check(self.disk)?;
        if !damaged.is_empty() {
            self.report_corruption(name, &damaged);
            return Ok(None);
        }
        let contradiction = match contradiction(&index, logs, expected.kind) {
            Err(error) if error.is_corruption() => {
                Some("a run has entries that are not there".to_owned())
            }
            contradiction => contradiction?,
        };
        if let Some(problem) = contradiction {
            self.report_disagreement(name, &problem);
            return Ok(None);
        }
        self.usable.insert(name.clone());
        Ok(Some(index))
    }
}

/// The header of a sorted segment; `None` if it is not one, or there is no file.
pub(super) fn header_of(
    disk: &dyn Disk,
    name: &str,
) -> Result<Option<SortedSegmentHeader>, StorageError> {
    let Some(file) = StorageFile::open_if_exists(disk, name)? else { return Ok(None) };
    let mut bytes = [0; SORTED_HEADER_BYTES as usize];
    let read = file.read_at(&mut bytes, 0)?;
    Ok(if read < bytes.len() { None } else { SortedSegmentHeader::decode(&bytes) })
}

/// A contradiction in an index whose blocks are intact.
fn contradiction(
    index: &SegmentIndex,
    logs: &LogHorizons,
    kind: IndexKind,
) -> Result<Option<String>, StorageError> {
    let header = index.header;
    let (mut entries, mut last_log) = (0, None);
    let mut walked =
        IndexWalk { kind, logs, stamps: None, log: LogId(0), end: SORTED_HEADER_BYTES };
    for number in 0..header.runs {
        let run = index.run_at(number)?;
        if last_log >= Some(run.log) {
            return Ok(Some(format!("its runs do not stand by log, at log {}", run.log.0)));
        }
        if run.first != entries {
            return Ok(Some(format!("entries lie between its runs, at log {}", run.log.0)));
        }
        if let Some(problem) = walked.run(index, &run)? {
            return Ok(Some(format!("{problem}, of log {}", run.log.0)));
        }
        (entries, last_log) = (run.entries().end, Some(run.log));
    }
    if entries != header.entries {
        return Ok(Some("it has entries of no log".to_owned()));
    }
    // The first and the last stamp stay, whatever is removed.
    let are_in = |(first, last)| header.first_stamp <= first && last <= header.last_stamp;
    Ok((!walked.stamps.is_none_or(are_in))
        .then(|| "its stamps are not those of its entries".to_owned()))
}

/// Verifies an index, entry by entry.
struct IndexWalk<'a> {
    kind: IndexKind,
    logs: &'a LogHorizons,
    stamps: Option<(Hlc, Hlc)>,
    /// The log of the previous entry, and where its payload ends in a sorted segment.
    log: LogId,
    end: u64,
}

impl IndexWalk<'_> {
    fn run(
        &mut self,
        index: &SegmentIndex,
        run: &IndexRun,
    ) -> Result<Option<String>, StorageError> {
        let mut before: Option<Entry> = None;
        let mut peak = UserTime(i64::MIN);
        for number in run.entries() {
            let placed = index.entry(number)?;
            let entry = placed.entry;
            peak = peak.max(entry.user_max);
            let wrong = match before {
                _ if entry.user_time_max != peak => Some("the largest user time is wrong"),
                _ if !self.is_valid_position(run.log, &placed) => Some("the payload is elsewhere"),
                Some(before) => self.order_violation(&before, &entry),
                None if entry.base != run.base && self.kind != IndexKind::CompactedPrefix => {
                    Some("a run begins late")
                }
                None => None,
            };
            if let Some(problem) = wrong {
                return Ok(Some(format!("{problem} at offset {}", entry.base.0)));
            }
            let (first, last) = self.stamps.unwrap_or((entry.stamp, entry.stamp));
            self.stamps = Some((first.min(entry.stamp), last.max(entry.stamp)));
            before = Some(entry);
        }
        let Some(last) = before else {
            // Sorting leaves out what was removed.
            let is_lawful = run.tip.end > run.base && is_released(self.logs, run.log, run.tip.end);
            return Ok(
                (!is_lawful).then(|| format!("entries are left out at offset {}", run.base.0))
            );
        };
        let is_last =
            run.tip == LogTip::of(&last, run.tip.user_time_max.max(peak)) && run.user_max == peak;
        Ok((!is_last).then(|| "a run does not end with its last entry".to_owned()))
    }

    /// Returns true if the payload may be where the entry says.
    fn is_valid_position(&mut self, log: LogId, placed: &IndexEntry) -> bool {
        let IndexEntry { entry, at } = placed;
        if let IndexKind::Segment(start) = self.kind {
            return entry.position.checked_sub(start) == at.checked_sub(SEGMENT_HEADER_BYTES);
        }
        // Frames follow one another, except where space was reclaimed.
        let next = self.end.saturating_add(SORTED_FRAME_HEADER_BYTES as u64);
        let has_freed =
            || self.logs.range(self.log..=log).any(|(_, h)| h.released_tip.end > Offset(0));
        let may_stand = *at == next || (*at > next && has_freed());
        self.log = log;
        self.end = at.saturating_add(padded(u64::from(entry.length)));
        may_stand
    }

    /// The way in which an entry fails to follow the previous one.
    fn order_violation(&self, before: &Entry, entry: &Entry) -> Option<&'static str> {
        let is_base = self.kind == IndexKind::CompactedPrefix;
        if entry.base < before.end() || (entry.base > before.end() && !is_base) {
            return Some("entries do not follow one another");
        }
        if entry.stamp <= before.stamp {
            return Some("stamps do not rise");
        }
        if entry.bytes != before.bytes + u64::from(entry.length) {
            return Some("the count of bytes is wrong");
        }
        let is_linked = is_base || entry.chain == Entry::link(before.chain, entry);
        (!is_linked).then_some("the chain is broken")
    }
}

/// The segment of a run, and where the run ends.
#[derive(Clone, Debug)]
struct RunSpan {
    segment: Range<u64>,
    end: Offset,
}

/// The tips of logs, from index to index.
struct LogProgress<'a> {
    logs: &'a LogHorizons,
    /// The segments in which runs of each log were found, oldest first, and where the runs end; and
    /// the tip of the log after the last of them.
    runs: BTreeMap<LogId, (Vec<RunSpan>, LogTip)>,
    /// Segments whose indexes cannot be read.
    unread: Vec<Range<u64>>,
    last_stamp: Hlc,
}

impl<'a> LogProgress<'a> {
    fn new(manifest: &'a Manifest) -> LogProgress<'a> {
        let (runs, unread) = (BTreeMap::new(), Vec::new());
        LogProgress { logs: &manifest.logs, runs, unread, last_stamp: Hlc::ZERO }
    }

    fn add_unread(&mut self, range: Range<u64>) {
        self.unread.push(range);
    }

    /// Returns true if a position lies in a segment whose index cannot be read.
    fn is_unread(&self, position: u64) -> bool {
        let after = self.unread.partition_point(|range| range.start <= position);
        after.checked_sub(1).is_some_and(|place| self.unread[place].contains(&position))
    }

    /// Checks that an index follows from those before it; returns what does not.
    fn follow(&mut self, index: &SegmentIndex) -> Result<Option<String>, StorageError> {
        let header = index.header;
        if self.last_stamp > header.last_stamp {
            let problem = "its stamps end before those of the index before it";
            return Ok(Some(problem.to_owned()));
        }
        if header.entries > 0 && self.last_stamp > header.first_stamp {
            let problem = "its stamps begin before those of the index before it end";
            return Ok(Some(problem.to_owned()));
        }
        self.last_stamp = header.last_stamp;
        let mut wrong = None;
        for number in 0..header.runs {
            let run = index.run_at(number)?;
            if wrong.is_none() {
                let problem = self.run(index, &run)?;
                wrong = problem.map(|problem| format!("{problem}, of log {}", run.log.0));
            }
            let (runs, tip) = self.runs.entry(run.log).or_insert((Vec::new(), LogTip::NONE));
            runs.push(RunSpan { segment: header.start..header.end, end: run.tip.end });
            *tip = run.tip;
        }
        Ok(wrong)
    }

    fn run(&self, index: &SegmentIndex, run: &IndexRun) -> Result<Option<String>, StorageError> {
        let (runs, before) = self.runs.get(&run.log).map_or((&[][..], None), |(runs, tip)| {
            (&runs[..], runs.last().map(|run| (run.segment.clone(), *tip)))
        });
        let has_freed = is_released(self.logs, run.log, Offset(1));
        let RunLinks { previous, jump, .. } = run.links;
        let may_lead = |place: RunLocation| {
            place.segment < index.header.start
                && (has_freed
                    || self.is_unread(place.segment)
                    || run_at(runs, place.segment).is_some())
        };
        if !previous.is_none_or(may_lead) || !jump.is_none_or(may_lead) {
            return Ok(Some("it leads to a run that is not there".to_owned()));
        }
        match (previous, before) {
            (Some(previous), _) if self.is_unread(previous.segment) => Ok(None),
            (Some(previous), Some((span, tip))) if span.contains(&previous.segment) => {
                continuation_error(index, run, tip, self.logs)
            }
            _ if is_released(self.logs, run.log, run.base) => Ok(None),
            (None, None) => continuation_error(index, run, LogTip::NONE, self.logs),
            // A rebuilt index may lack what could not be read.
            _ => Ok(Some("it leads past the run before".to_owned())),
        }
    }

    /// Compares a latest-run table with the indexes; returns what disagrees.
    fn compare(&self, table: &LatestRunTable) -> Result<Option<String>, StorageError> {
        let (mut heads, mut last) = (0, None);
        for number in 0..table.count {
            let head = table.latest_run_at(number)?;
            if last.replace(head.log) >= Some(head.log) {
                return Ok(Some(format!("its logs do not rise, at log {}", head.log.0)));
            }
            let newest = self.newest_in(head.log, &table.range);
            heads += u64::from(newest.is_some_and(|run| self.must_be_listed(head.log, run, table)));
            let leads = |run: &RunSpan| run.segment.contains(&head.segment) && run.end == head.end;
            let is_lawful = newest.is_some_and(|run| leads(run) || !is_within(run, table))
                || self.is_lost(&head, newest)
                || self.is_unread(head.segment)
                || is_released(self.logs, head.log, head.end);
            if !is_lawful {
                return Ok(Some(format!("it leads elsewhere, at log {}", head.log.0)));
            }
        }
        let known = self.runs.keys().filter(|log| {
            let newest = self.newest_in(**log, &table.range);
            newest.is_some_and(|run| self.must_be_listed(**log, run, table))
        });
        let known = known.count() as u64;
        Ok((known > heads).then(|| format!("it lacks {} logs", known - heads)))
    }

    /// Returns true if only a latest-run table has the end of a log: then its runs are lost, and
    /// the table is not wrong.
    fn is_lost(&self, head: &LatestRun, newest: Option<&RunSpan>) -> bool {
        newest.is_none_or(|run| run.end < head.end)
            && !self.is_unread(head.segment)
            && !is_released(self.logs, head.log, head.end)
    }

    /// The runs that a latest-run table names and no index has any more.
    fn lost_runs(&self, table: &LatestRunTable) -> Result<Vec<String>, StorageError> {
        let mut lost = Vec::new();
        for number in 0..table.count {
            let Ok(head) = table.latest_run_at(number) else { break };
            if self.is_lost(&head, self.newest_in(head.log, &table.range)) {
                let LatestRun { log, segment, end, .. } = head;
                lost.push(format!(
                    "the end of log {}, offset {}, is lost: the latest-run table {} has it, and no index does; restore the data file of segment {segment} from a backup",
                    log.0, end.0, table.name()
                ));
            }
        }
        lost.truncate(BLOCKS_LISTED_MAX);
        Ok(lost)
    }

    /// Returns true if a table must have the log of the newest run in its range.
    fn must_be_listed(&self, log: LogId, run: &RunSpan, table: &LatestRunTable) -> bool {
        is_within(run, table) && !is_released(self.logs, log, run.end)
    }

    /// The newest run of a log in the segments that lie in a range, or reach into it.
    fn newest_in(&self, log: LogId, stretch: &Range<u64>) -> Option<&RunSpan> {
        let (runs, _) = self.runs.get(&log)?;
        let is_in =
            |run: &&RunSpan| run.segment.start < stretch.end && run.segment.end > stretch.start;
        runs.iter().rev().find(is_in)
    }
}

/// Returns true if the whole segment of a run lies in the range of a table. If a segment was merged
/// across the range's end, it is unknown what the table must have of it.
fn is_within(run: &RunSpan, table: &LatestRunTable) -> bool {
    table.range.start <= run.segment.start && run.segment.end <= table.range.end
}

/// The run that is in the segment in which a position lies.
fn run_at(runs: &[RunSpan], position: u64) -> Option<&RunSpan> {
    let after = runs.partition_point(|run| run.segment.start <= position);
    after.checked_sub(1).map(|place| &runs[place]).filter(|run| run.segment.contains(&position))
}

/// The way in which a run fails to continue where its log ended.
fn continuation_error(
    index: &SegmentIndex,
    run: &IndexRun,
    before: LogTip,
    logs: &LogHorizons,
) -> Result<Option<String>, StorageError> {
    if run.base != before.end {
        // The gap was in a segment of which nothing is kept, or its entries were left out.
        let is_lawful = run.base > before.end && is_released(logs, run.log, run.base);
        let problem = || format!("it begins at offset {}, and not at {}", run.base.0, before.end.0);
        return Ok((!is_lawful).then(problem));
    }
    if run.count == 0 {
        return Ok(None);
    }
    let first = index.entry(run.first)?.entry;
    let goes_on = first.stamp > before.stamp
        && first.bytes == before.bytes + u64::from(first.length)
        && first.chain == Entry::link(before.chain, &first)
        && run.tip.user_time_max == before.user_time_max.max(run.user_max);
    Ok((!goes_on).then(|| "its first entry does not follow the last one before".to_owned()))
}
