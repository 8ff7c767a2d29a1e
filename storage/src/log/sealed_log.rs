//! The sealed part of a log: found by following links over indexes, none of which is held in
//! memory.
//!
//! First comes the compacted prefix, if the log was compacted: one file with what is left of its
//! beginning. Then come the runs of the log in sealed segments, each with links to earlier ones;
//! the newest is the *latest run*. Entries below `released_tip` are not looked up in sealed
//! segments: the compacted prefix has them, or they were removed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hlc::Cut;

use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::index::{IndexEntry, IndexRun, LogTip, RunLinks, RunLocation, SegmentIndex};
use crate::journal::segment_name;
use crate::sealed_segment::{IndexedRun, SealedSegment, SegmentFiles, segment_at};
use crate::sorted_segment::index_name;

/// The rest of the beginning of a log that was compacted.
#[derive(Debug)]
pub(crate) struct CompactedPrefix {
    pub(crate) files: SegmentFiles,
    pub(crate) run: IndexRun,
    /// True if a block of its index was found corrupt.
    is_suspect: AtomicBool,
}

impl CompactedPrefix {
    pub(crate) fn new(files: SegmentFiles, run: IndexRun) -> CompactedPrefix {
        CompactedPrefix { files, run, is_suspect: AtomicBool::new(false) }
    }

    /// Returns true if its index has to be rebuilt.
    pub(crate) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Acquire)
    }

    /// Remembers it if `result` says that the index is lost, as a whole or in part.
    fn note_corruption<T>(&self, result: Result<T, StorageError>) -> Result<T, StorageError> {
        if let Err(error) = &result
            && error.is_data_loss()
            && !self.is_suspect.swap(true, Ordering::AcqRel)
        {
            tracing::error!(%error, "found corruption");
        }
        result
    }
}

/// The sealed part of a log, at one moment.
pub(crate) struct SealedLog {
    pub(crate) log: LogId,
    pub(super) compacted_prefix: Option<Arc<CompactedPrefix>>,
    pub(crate) segments: Arc<Vec<Arc<SealedSegment>>>,
    pub(super) released_tip: LogTip,
    /// The tip of the log where its sealed part ends.
    pub(super) tip: LogTip,
    pub(super) latest_run: Option<RunLocation>,
}

/// The file that holds a run.
#[derive(Clone)]
enum RunSource {
    CompactedPrefix(Arc<CompactedPrefix>),
    Segment(Arc<SealedSegment>),
}

/// A run that was found, its segment, and the index that it was read from.
pub(crate) struct SegmentRun {
    pub(crate) segment: Arc<SealedSegment>,
    pub(crate) index: Arc<SegmentIndex>,
    pub(crate) run: IndexRun,
}

impl SegmentRun {
    fn new(segment: &Arc<SealedSegment>, IndexedRun { run, index }: IndexedRun) -> SegmentRun {
        SegmentRun { segment: Arc::clone(segment), index, run }
    }

    fn first_entry(self) -> EntryLocation {
        let first = self.run.first;
        self.entry_at(first)
    }

    /// The location of one of its entries.
    fn entry_at(self, number: u64) -> EntryLocation {
        let files = SegmentFiles { data: Arc::clone(self.segment.data()), index: self.index };
        EntryLocation { source: RunSource::Segment(self.segment), files, run: self.run, number }
    }
}

/// An entry that was found.
pub(crate) struct EntryLocation {
    source: RunSource,
    files: SegmentFiles,
    pub(super) run: IndexRun,
    /// The number of the entry in its index.
    pub(super) number: u64,
}

impl EntryLocation {
    pub(super) fn entry(&self, number: u64) -> Result<IndexEntry, StorageError> {
        let entry = self.files.index.entry(number);
        match &self.source {
            RunSource::Segment(segment) => segment.note_corruption(entry),
            RunSource::CompactedPrefix(base) => base.note_corruption(entry),
        }
    }

    pub(super) fn index_entry(&self) -> Result<IndexEntry, StorageError> {
        self.entry(self.number)
    }

    pub(super) fn files(&self) -> &SegmentFiles {
        &self.files
    }
}

impl SealedLog {
    /// The run at a location; `None` if it was removed since the location was recorded.
    fn run(&self, place: RunLocation) -> Result<Option<SegmentRun>, StorageError> {
        let Some(segment) = segment_at(&self.segments, place.segment) else { return Ok(None) };
        let indexed = segment.run_near(self.log, place.number)?;
        let indexed = indexed.filter(|indexed| indexed.run.tip.end > self.released_tip.end);
        Ok(indexed.map(|indexed| SegmentRun::new(segment, indexed)))
    }

    /// The run at a location; it has to exist if the log ended at `end` after it.
    fn run_that_ends(
        &self,
        place: RunLocation,
        end: Offset,
    ) -> Result<Option<SegmentRun>, StorageError> {
        if end <= self.released_tip.end {
            return Ok(None);
        }
        if let Some(segment_run) =
            self.run(place)?.filter(|segment_run| segment_run.run.tip.end == end)
        {
            return Ok(Some(segment_run));
        }
        // Taking it for removed would be an answer as if nothing had been there.
        let error = |index: &str| {
            let reason = format!(
                "it does not have the run of log {} that ends at offset {} in segment {}, to which another index leads, and is rebuilt; if that does not help, restore the corrupt file from a backup",
                self.log.0, end.0, place.segment
            );
            StorageError::corrupt(index, None, reason)
        };
        match segment_at(&self.segments, place.segment) {
            Some(segment) => segment.note_corruption(Err(error(segment.index().name()))),
            None => Err(error(&index_name(&segment_name(place.segment)))),
        }
    }

    pub(crate) fn latest_run(&self) -> Result<Option<SegmentRun>, StorageError> {
        match self.latest_run {
            Some(head) => self.run_that_ends(head, self.tip.end),
            None => Ok(None),
        }
    }

    /// The run before one.
    fn previous(&self, run: &IndexRun) -> Result<Option<SegmentRun>, StorageError> {
        match run.links.previous {
            Some(place) => self.run_that_ends(place, run.base),
            None => Ok(None),
        }
    }

    /// The oldest run for which `whole` is false. `whole` is true for all older runs, and false for
    /// all later ones.
    fn oldest_not(
        &self,
        whole: impl Fn(&IndexRun) -> bool,
    ) -> Result<Option<SegmentRun>, StorageError> {
        self.oldest_not_before(0, whole)
    }

    /// [`SealedLog::oldest_not`] without a look at segments before `position`, whose runs are known
    /// to be `whole`.
    fn oldest_not_before(
        &self,
        position: u64,
        whole: impl Fn(&IndexRun) -> bool,
    ) -> Result<Option<SegmentRun>, StorageError> {
        let is_wanted = |segment_run: &SegmentRun| !whole(&segment_run.run);
        let may_be = |place: &RunLocation| place.segment >= position;
        if !self.latest_run.as_ref().is_some_and(may_be) {
            return Ok(None);
        }
        let Some(mut segment_run) = self.latest_run()?.filter(is_wanted) else { return Ok(None) };
        loop {
            let RunLinks { previous, jump, .. } = segment_run.run.links;
            if let Some(jump) = jump.filter(|jump| Some(*jump) != previous && may_be(jump))
                && let Some(earlier) = self.run(jump)?.filter(is_wanted)
            {
                segment_run = earlier;
                continue;
            }
            if !previous.as_ref().is_some_and(may_be) {
                return Ok(Some(segment_run));
            }
            match self.previous(&segment_run.run)?.filter(is_wanted) {
                Some(earlier) => segment_run = earlier,
                None => return Ok(Some(segment_run)),
            }
        }
    }

    /// The tip of the log before the oldest run that is not `whole`.
    pub(crate) fn tip_of_whole(
        &self,
        whole: impl Fn(&IndexRun) -> bool,
    ) -> Result<LogTip, StorageError> {
        self.oldest_not(whole)?
            .map_or(Ok(self.tip), |segment_run| self.tip_before_run(&segment_run.run))
    }

    /// The tip of the log before a run.
    fn tip_before_run(&self, run: &IndexRun) -> Result<LogTip, StorageError> {
        Ok(self.previous(run)?.map_or(self.released_tip, |previous| previous.run.tip))
    }

    /// The runs that end in `offsets`, the first not counted and the last counted, oldest first. It
    /// includes released runs, as far as they still exist.
    pub(crate) fn runs_in(&self, offsets: Range<Offset>) -> Result<Vec<SegmentRun>, StorageError> {
        let (from, to) = (offsets.start, offsets.end);
        let freed = LogTip { end: from, ..self.released_tip };
        let sealed = SealedLog {
            log: self.log,
            compacted_prefix: None,
            segments: Arc::clone(&self.segments),
            released_tip: freed,
            tip: self.tip,
            latest_run: self.latest_run,
        };
        let is_in = |segment_run: &SegmentRun| segment_run.run.tip.end <= to;
        let mut next = match self.oldest_not(|run| run.tip.end <= to)? {
            Some(segment_run) => segment_run.run.links.previous,
            None => self.latest_run,
        };
        let (mut runs, mut reached) = (Vec::new(), u64::MAX);
        while let Some(place) = next {
            let segment_run = sealed.run(place)?;
            reached =
                segment_run.as_ref().map_or(place.segment, |segment_run| segment_run.segment.start);
            next = segment_run.as_ref().and_then(|segment_run| segment_run.run.links.previous);
            runs.extend(segment_run.filter(is_in));
        }
        // A rebuilt index may lack a run that links of others lead through.
        if runs.last().is_none_or(|oldest| oldest.run.base > from) {
            let older = self.segments.iter().filter(|segment| segment.start < reached);
            for segment in older.rev() {
                let indexed = segment.run_near(self.log, u64::MAX)?;
                let indexed = indexed.filter(|indexed| indexed.run.tip.end > from);
                let segment_run = indexed.map(|indexed| SegmentRun::new(segment, indexed));
                runs.extend(segment_run.filter(is_in));
            }
        }
        runs.reverse();
        Ok(runs)
    }

    /// The first entry for which `before` is false. `before` is true for all earlier entries;
    /// `whole` says whether it is true for all entries of a run.
    pub(super) fn find(
        &self,
        whole: impl Fn(&IndexRun) -> bool,
        before: impl Fn(&IndexEntry) -> bool,
    ) -> Result<Option<EntryLocation>, StorageError> {
        if let Some(base) = &self.compacted_prefix
            && !whole(&base.run)
        {
            let entries = base.run.entries();
            let number =
                base.note_corruption(base.files.index.partition_point(entries.clone(), &before))?;
            if number < entries.end {
                let (source, files) =
                    (RunSource::CompactedPrefix(Arc::clone(base)), base.files.clone());
                return Ok(Some(EntryLocation { source, files, run: base.run, number }));
            }
        }
        let mut next = self.oldest_not(whole)?;
        while let Some(segment_run) = next {
            let (entries, end) = (segment_run.run.entries(), segment_run.run.tip.end);
            let number = segment_run.index.partition_point(entries.clone(), &before);
            let number = segment_run.segment.note_corruption(number)?;
            if number < entries.end {
                return Ok(Some(segment_run.entry_at(number)));
            }
            next = self.oldest_not(|later| later.tip.end <= end)?;
        }
        Ok(None)
    }

    /// The first entry of the oldest run that is not `whole`, as for [`SealedLog::find`]. The run
    /// may have none.
    fn first_run(
        &self,
        whole: impl Fn(&IndexRun) -> bool,
    ) -> Result<Option<EntryLocation>, StorageError> {
        if let Some(base) = &self.compacted_prefix
            && !whole(&base.run)
        {
            let (source, files) =
                (RunSource::CompactedPrefix(Arc::clone(base)), base.files.clone());
            return Ok(Some(EntryLocation {
                source,
                files,
                run: base.run,
                number: base.run.first,
            }));
        }
        Ok(self.oldest_not(whole)?.map(SegmentRun::first_entry))
    }

    /// The entry that holds `offset`, or the first after it.
    pub(super) fn at_offset(&self, offset: Offset) -> Result<Option<EntryLocation>, StorageError> {
        self.find(|run| run.tip.end <= offset, |placed| placed.entry.end() <= offset)
    }

    /// The tip of the log before the entry that holds `offset`, or the first after it.
    pub(crate) fn tip_before_offset(&self, offset: Offset) -> Result<LogTip, StorageError> {
        self.at_offset(offset)?.map_or(Ok(self.tip), |spot| self.tip_before(&spot))
    }

    /// The tip of the log before a location.
    fn tip_before(&self, spot: &EntryLocation) -> Result<LogTip, StorageError> {
        if spot.number > spot.run.first {
            let entry = spot.entry(spot.number - 1)?.entry;
            return Ok(LogTip::of(&entry, entry.user_time_max));
        }
        match &spot.source {
            RunSource::CompactedPrefix(_) => Ok(LogTip::NONE),
            RunSource::Segment(_) => self.tip_before_run(&spot.run),
        }
    }

    /// The end of the log in `cut`.
    pub(super) fn tip_at(&self, cut: Cut) -> Result<LogTip, StorageError> {
        let is_in = |placed: &IndexEntry| cut.admits(placed.entry.stamp);
        if let Some(base) = &self.compacted_prefix
            && !cut.admits(base.run.tip.stamp)
        {
            let index = &base.files.index;
            let number = base.note_corruption(index.partition_point(base.run.entries(), is_in))?;
            if number == base.run.first {
                return Ok(LogTip::NONE);
            }
            let entry = base.note_corruption(index.entry(number - 1))?.entry;
            return Ok(LogTip::of(&entry, entry.user_time_max));
        }
        // Stamps rise over all logs: a segment that ends in the cut need not be read.
        let behind = self.segments.partition_point(|segment| cut.admits(segment.last_stamp));
        let position = self.segments.get(behind).map_or(u64::MAX, |segment| segment.start);
        let segment_run = self.oldest_not_before(position, |run| cut.admits(run.tip.stamp))?;
        let tip = match segment_run {
            Some(segment_run) => match last_in(&segment_run, is_in)? {
                Some(tip) => return Ok(tip),
                None => self.tip_before_run(&segment_run.run)?,
            },
            None => self.tip,
        };
        // If everything before a moment was removed, nothing is known of that moment.
        Ok(if cut.admits(tip.stamp) { tip } else { LogTip::NONE })
    }

    /// The tip of the log where the last epoch that is not above `epoch` ended.
    pub(super) fn tip_of_epoch(&self, epoch: u32) -> Result<LogTip, StorageError> {
        let spot = self.find(|run| run.tip.epoch <= epoch, |placed| placed.entry.epoch <= epoch)?;
        spot.map_or(Ok(self.tip), |spot| self.tip_before(&spot))
    }

    /// The first entry that holds a user time of `time` or later, among those that end after
    /// `from`.
    pub(super) fn first_reaching(
        &self,
        time: hlc::UserTime,
        from: Offset,
    ) -> Result<Option<EntryLocation>, StorageError> {
        let Some(reached) = self.first_run(|run| run.tip.user_time_max < time)? else {
            return Ok(None);
        };
        // In the run that first reaches `time`, or in the one that holds `from`, and then in any.
        let mut spot = if reached.run.base >= from {
            reached
        } else if let Some(spot) = self.at_offset(from)? {
            spot
        } else {
            return Ok(None);
        };
        loop {
            if spot.run.user_max >= time
                && let Some(number) = self.reaching_in(&spot, time)?
            {
                return Ok(Some(EntryLocation { number, ..spot }));
            }
            spot = match self.next_run(&spot)? {
                Some(spot) => spot,
                None => return Ok(None),
            };
        }
    }

    /// The first entry of a run, from a location on, that holds a user time of `time` or later.
    fn reaching_in(
        &self,
        spot: &EntryLocation,
        time: hlc::UserTime,
    ) -> Result<Option<u64>, StorageError> {
        let end = spot.run.entries().end;
        let peak = |placed: &IndexEntry| placed.entry.user_time_max < time;
        let mut number = spot.files.index.partition_point(spot.number..end, peak)?;
        // If the run reached `time` before the location, its maximum says nothing: examine each
        // entry.
        while number < end {
            if spot.entry(number)?.entry.user_max >= time {
                return Ok(Some(number));
            }
            number += 1;
        }
        Ok(None)
    }

    /// The first entry of the next run.
    pub(super) fn next_run(
        &self,
        spot: &EntryLocation,
    ) -> Result<Option<EntryLocation>, StorageError> {
        let end = spot.run.tip.end;
        let next = match &spot.source {
            RunSource::CompactedPrefix(_) => self.oldest_not(|_| false)?,
            RunSource::Segment(_) => self.oldest_not(|run| run.tip.end <= end)?,
        };
        Ok(next.map(SegmentRun::first_entry))
    }

    /// The entry with the largest user time among those that lie wholly in `[from, until)`; the
    /// first of equals.
    pub(super) fn latest_by_user_time(
        &self,
        from: Offset,
        until: Offset,
    ) -> Result<Option<(EntryLocation, IndexEntry)>, StorageError> {
        let mut best: Option<(EntryLocation, IndexEntry)> = None;
        // The marker in front of a compacted prefix holds nothing, so it lies wholly in any range
        // that it touches.
        let before = |placed: &IndexEntry| placed.entry.base < from || placed.entry.end() <= from;
        let mut next = self.find(|run| run.tip.end <= from, before)?;
        while let Some(spot) = next {
            next = self.next_run(&spot)?;
            let entries = spot.run.entries();
            let files = spot.files.index.clone();
            let behind = |placed: &IndexEntry| placed.entry.end() <= until;
            let end = files.partition_point(spot.number..entries.end, behind)?;
            let beats = |time| best.as_ref().is_none_or(|(_, placed)| time > placed.entry.user_max);
            if end > spot.number && beats(spot.run.user_max) {
                let latest = latest_in(&spot, spot.number..end)?;
                if beats(latest.1.entry.user_max) {
                    best = Some((EntryLocation { number: latest.0, ..spot }, latest.1));
                }
            }
            if end < entries.end {
                break;
            }
        }
        Ok(best)
    }
}

/// The tip of the log at the last entry of a run for which `before` is true.
fn last_in(
    segment_run: &SegmentRun,
    before: impl Fn(&IndexEntry) -> bool,
) -> Result<Option<LogTip>, StorageError> {
    let SegmentRun { segment, index, run } = segment_run;
    let number = segment.note_corruption(index.partition_point(run.entries(), before))?;
    if number == run.first {
        return Ok(None);
    }
    let entry = segment.note_corruption(index.entry(number - 1))?.entry;
    Ok(Some(LogTip::of(&entry, entry.user_time_max)))
}

/// The entry with the largest user time among some entries of a run; the first of equals.
fn latest_in(
    spot: &EntryLocation,
    entries: std::ops::Range<u64>,
) -> Result<(u64, IndexEntry), StorageError> {
    let last = spot.entry(entries.end - 1)?;
    if entries.start == spot.run.first {
        // The running maximum of the run says where it was reached.
        let peak = last.entry.user_time_max;
        let below = |placed: &IndexEntry| placed.entry.user_time_max < peak;
        let number = spot.files.index.partition_point(entries, below)?;
        return Ok((number, spot.entry(number)?));
    }
    let mut best = (entries.start, spot.entry(entries.start)?);
    for number in entries.start + 1..entries.end {
        let placed = spot.entry(number)?;
        if placed.entry.user_max > best.1.entry.user_max {
            best = (number, placed);
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use hlc::{Hlc, UserTime};

    use super::*;
    use crate::data_file::DataFile;
    use crate::disk::MemoryDisk;
    use crate::entry::Entry;
    use crate::index::{BlockCache, IndexBuilder};
    use crate::sealed_segment::SegmentLayout;
    use crate::storage_file::StorageFile;

    fn index(disk: &MemoryDisk, name: &str, logs: &[(u64, u64)]) -> Arc<SegmentIndex> {
        let mut builder = IndexBuilder::create(disk, name, 0, 4096).unwrap();
        for (log, count) in logs {
            builder.begin_run(LogId(*log), LogTip::NONE, RunLinks::FIRST);
            for nth in 0..*count {
                let entry = Entry {
                    stamp: Hlc::from_bits(1 + nth),
                    base: Offset(nth),
                    count: 1,
                    length: 0,
                    position: 100 * log + nth,
                    user_min: UserTime(0),
                    user_max: UserTime(0),
                    user_time_max: UserTime(0),
                    bytes: 0,
                    payload_crc: 0,
                    epoch: 0,
                    kind: 0,
                    chain: 0,
                };
                builder.add_entry(IndexEntry { entry, at: entry.position }).unwrap();
            }
        }
        builder.finish(None).unwrap();
        let cache = Arc::new(BlockCache::new(1 << 20));
        Arc::new(SegmentIndex::open(disk, name, 0, &cache).unwrap().unwrap())
    }

    /// A rebuilt index has nothing of what was removed, so its entries have other numbers. A reader
    /// that found a run in the previous index must not look up its entries in the new one.
    #[test]
    fn a_run_and_its_entries_are_of_one_index() {
        let disk = MemoryDisk::new();
        let data = Arc::new(DataFile::new(StorageFile::create(&disk, "data").unwrap()));
        let old = index(&disk, "old", &[(1, 2), (2, 3), (3, 2)]);
        let rebuilt = index(&disk, "new", &[(2, 3), (3, 2)]);
        let (number, run) = old.find_run(LogId(2)).unwrap().unwrap();
        let segment =
            Arc::new(SealedSegment::new(SegmentLayout::Journal, SegmentFiles { data, index: old }));
        let sealed = SealedLog {
            log: LogId(2),
            compacted_prefix: None,
            segments: Arc::new(vec![Arc::clone(&segment)]),
            released_tip: LogTip::NONE,
            tip: run.tip,
            latest_run: Some(RunLocation { segment: 0, number }),
        };
        let whole = |run: &IndexRun| {
            // Another reader has found corruption in the index, and it was rebuilt just now.
            segment.set_index(Arc::clone(&rebuilt));
            run.tip.end <= Offset(1)
        };
        let spot = sealed.find(whole, |placed| placed.entry.end() <= Offset(1)).unwrap().unwrap();
        assert_eq!(
            spot.index_entry().unwrap().at,
            201,
            "the second entry of log 2, and of no other log"
        );
    }
}
