//! Rebuilding an index that is lost or corrupt: from its data file, the runs before it, and the log
//! horizons.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SealedHistory;
use super::indexing::links_after;
use super::opening::read_header;
use super::prefix_replacement::rebuild_compacted_prefix_index;
use crate::data_file::DataFile;
use crate::disk::Disk;
use crate::entry::{Entry, LogId, Offset};
use crate::error::StorageError;
use crate::index::{
    BlockCache, IndexBuilder, IndexEntry, IndexRun, LogTip, RunLinks, RunLocation, SegmentIndex,
};
use crate::journal::{
    FRAME_BYTES, FrameHeader, FrameVisitor, JournalCorruption, RecoverError, Segment, scan_sealed,
};
use crate::log::{CompactedPrefix, Log, LogPrefix};
use crate::manifest::{Manifest, ManifestSegment};
use crate::sealed_segment::{SealedSegment, SegmentLayout};
use crate::sorted_segment::{SortedSegmentScanner, index_name};
use crate::storage_file::rename_file;

impl SealedHistory {
    /// Rebuilds the indexes that were found corrupt; returns how many.
    ///
    /// # Errors
    /// The disk fails, or the data itself is corrupt. The others were rebuilt all the same.
    pub(crate) fn rebuild_suspects(&self) -> Result<usize, StorageError> {
        // Reclaiming space may hold the lock for long, and indexing must not wait for that.
        let Some(_reclaiming) = self.reclaim_state.try_lock() else { return Ok(0) };
        let segments = self.sealed_segments.all();
        let suspects: Vec<usize> =
            (0..segments.len()).filter(|place| segments[*place].is_suspect()).collect();
        let (manifest, with_base) = {
            let manifest = self.manifest.lock();
            let with_base =
                manifest.logs.iter().filter(|(_, horizon)| horizon.compacted_generation > 0);
            let with_base: Vec<LogId> = with_base.map(|(log, _)| *log).collect();
            let needed = (!suspects.is_empty()).then(|| manifest.clone());
            (needed.unwrap_or_default(), with_base)
        };
        let rebuilding =
            IndexRebuilder { disk: &*self.disk, cache: &self.cache, manifest: &manifest };
        let (mut rebuilt, mut failed) = (0, Ok(0));
        let mended =
            suspects.into_iter().map(|place| rebuilding.rebuild_in_place(&segments, place));
        let bases = with_base.into_iter().map(|log| self.rebuild_prefix_index(&*self.log(log)?));
        for result in mended.chain(bases) {
            match result {
                Ok(count) => rebuilt += count,
                Err(error) => failed = Err(error),
            }
        }
        self.stats.rebuilt.fetch_add(rebuilt as u64, Ordering::Relaxed);
        failed.map(|_| rebuilt)
    }

    /// Rebuilds the index of a log's compacted prefix, if it is corrupt.
    fn rebuild_prefix_index(&self, log: &Log) -> Result<usize, StorageError> {
        // Both are of one moment.
        let LogPrefix { horizon, compacted_prefix: base } = log.prefix();
        let Some(base) = base.filter(|base| base.is_suspect()) else { return Ok(0) };
        let data = &base.files.data;
        let header =
            read_header(data.file())?.ok_or_else(|| data.corruption_error(0, "a header"))?;
        rebuild_compacted_prefix_index(
            &*self.disk,
            log.id,
            &header,
            data,
            horizon.released_tip.end,
        )?;
        let mended = self.open_compacted_prefix_file(log.id, data.name())?;
        let _manifest = self.manifest.lock();
        let is_its = |prefix: &Arc<CompactedPrefix>| Arc::ptr_eq(prefix, &base);
        if log.compacted_prefix().as_ref().is_some_and(is_its) {
            log.set_prefix(LogPrefix { horizon: log.horizon(), compacted_prefix: Some(mended) });
        }
        Ok(1)
    }
}

/// The sources from which indexes are rebuilt, besides their data.
pub(super) struct IndexRebuilder<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) cache: &'a Arc<BlockCache>,
    pub(super) manifest: &'a Manifest,
}

/// The newest run of each log before a segment, and how many indexes were rebuilt to find them.
type PreviousRuns = (BTreeMap<LogId, (RunLocation, IndexRun)>, usize);

impl IndexRebuilder<'_> {
    /// Rebuilds the index of a segment, and corrupt ones before it that it needs; returns how many.
    pub(super) fn rebuild_in_place(
        &self,
        segments: &[Arc<SealedSegment>],
        place: usize,
    ) -> Result<usize, StorageError> {
        let segment = &segments[place];
        let listed =
            ManifestSegment { start: segment.start, end: segment.end, layout: segment.layout };
        let state = segment.index().readable_state()?;
        let (before, behind) = (&segments[..place], &segments[place + 1..]);
        let mended = self.rebuild(listed, segment.data(), before, state.as_deref())?;
        segment.set_index(Arc::new(self.confirm(listed, segment.data(), behind.iter())?));
        Ok(mended)
    }

    /// Rebuilds the index of a segment, under the name [`rebuilt_name`]. Returns how many were
    /// rebuilt, with corrupt ones before it. It counts once it is
    /// [confirmed](IndexRebuilder::confirm).
    pub(super) fn rebuild(
        &self,
        listed: ManifestSegment,
        data: &Arc<DataFile>,
        before: &[Arc<SealedSegment>],
        state: Option<&[u8]>,
    ) -> Result<usize, StorageError> {
        tracing::warn!(file = data.name(), "an index is lost or corrupt, and is rebuilt");
        let mut entries_by_log: BTreeMap<LogId, Vec<IndexEntry>> = BTreeMap::new();
        match listed.layout {
            SegmentLayout::Journal => journal_entries(listed, data, &mut entries_by_log)?,
            SegmentLayout::Sorted { .. } => {
                sorted_entries(data, self.manifest, &mut entries_by_log)?
            }
        }
        // Remains may be left of a run whose space was reclaimed, or that a compacted prefix
        // replaces.
        let mut gone_to = self.last_hidden_log(listed.layout);
        entries_by_log.retain(|log, entries| {
            let freed = self.manifest.horizon(*log).released_tip.end;
            entries.retain(|placed| placed.entry.end() > freed);
            if entries.is_empty() {
                gone_to = gone_to.max(Some(*log));
            }
            !entries.is_empty()
        });
        let (runs, mended) = self.runs_before(before, &entries_by_log)?;
        let name = rebuilt_name(&index_name(data.name()));
        let mut builder = IndexBuilder::create(self.disk, &name, listed.start, listed.end)?;
        builder.set_hidden_to(gone_to);
        for (log, entries) in entries_by_log {
            let (links, tip) = match runs.get(&log) {
                Some((place, run)) => (links_after(before, log, *place), run.tip),
                None => (RunLinks::FIRST, self.manifest.horizon(log).released_tip),
            };
            add_run(&mut builder, listed.layout, data, log, links, tip, entries)?;
        }
        // The next segment begins after the stamps of this one, even if nothing is left in it.
        if let Some(before) = before.last()
            && builder.is_empty()
        {
            builder.widen_stamps(before.last_stamp, before.last_stamp);
        }
        builder.finish(state)?;
        Ok(1 + mended)
    }

    /// The last log of which a data file may have had frames that are not visible any more. In a
    /// journal segment all are visible; elsewhere space was reclaimed.
    fn last_hidden_log(&self, layout: SegmentLayout) -> Option<LogId> {
        let of_logs =
            self.manifest.logs.iter().filter(|(_, horizon)| horizon.reclaimed_to > Offset(0));
        (layout != SegmentLayout::Journal).then(|| of_logs.map(|(log, _)| *log).max())?
    }

    /// Puts a rebuilt index in its place, if the runs after it continue where its runs end. Nothing
    /// else would tell that a corrupt data file lost the end of a run.
    pub(super) fn confirm<'p>(
        &self,
        listed: ManifestSegment,
        data: &DataFile,
        behind: impl Iterator<Item = &'p Arc<SealedSegment>>,
    ) -> Result<SegmentIndex, StorageError> {
        let name = index_name(data.name());
        let index = self.open(&rebuilt_name(&name), listed)?;
        if listed.layout != SegmentLayout::Journal {
            for segment in behind {
                match self.check_follows(&index, segment, data) {
                    // A corrupt index is no witness. It is compared with this one when it is
                    // rebuilt.
                    Err(error) if segment.is_suspect() => tracing::debug!(%error, "no witness"),
                    checked => checked?,
                }
            }
        }
        promote(self.disk, &name)?;
        self.open(&name, listed)
    }

    fn open(&self, name: &str, listed: ManifestSegment) -> Result<SegmentIndex, StorageError> {
        let index = SegmentIndex::open(self.disk, name, listed.start, self.cache)?;
        let index = index.filter(|index| index.header.end == listed.end);
        index.ok_or_else(|| StorageError::unreadable_output(name))
    }

    fn check_follows(
        &self,
        index: &SegmentIndex,
        behind: &SealedSegment,
        data: &DataFile,
    ) -> Result<(), StorageError> {
        let next = behind.index();
        for number in 0..next.header.runs {
            let run = behind.note_corruption(next.run_at(number))?;
            let stretch = index.header.start..index.header.end;
            let follows = |place: RunLocation| stretch.contains(&place.segment);
            let is_kept = run.base > self.manifest.horizon(run.log).released_tip.end;
            if is_kept && run.links.previous.is_some_and(follows) {
                let end = index.run(run.log)?.map(|before| before.tip.end);
                if end != Some(run.base) {
                    let length = data.file().length()?;
                    return Err(data.corruption_error(length, "the last frame of a log"));
                }
            }
        }
        Ok(())
    }

    /// The newest runs before a segment, for the logs in it that have an earlier run which was not
    /// removed.
    fn runs_before(
        &self,
        before: &[Arc<SealedSegment>],
        entries_by_log: &BTreeMap<LogId, Vec<IndexEntry>>,
    ) -> Result<PreviousRuns, StorageError> {
        let goes_on = |log: &LogId, entries: &[IndexEntry]| {
            let base = entries.first().map_or(Offset(0), |first| first.entry.base);
            base > self.manifest.horizon(*log).released_tip.end
        };
        let going_on = entries_by_log.iter().filter(|(log, entries)| goes_on(log, entries));
        let mut unresolved: BTreeSet<LogId> = going_on.map(|(log, _)| *log).collect();
        let (mut runs, mut mended) = (BTreeMap::new(), 0);
        for (place, segment) in before.iter().enumerate().rev() {
            if unresolved.is_empty() {
                break;
            }
            for log in std::mem::take(&mut unresolved) {
                let run = match segment.find_run(log) {
                    Err(error) if error.is_data_loss() => {
                        mended += self.rebuild_in_place(before, place)?;
                        segment.find_run(log)?
                    }
                    run => run?,
                };
                match run {
                    Some((number, run)) => {
                        runs.insert(log, (RunLocation { segment: segment.start, number }, run));
                    }
                    None => {
                        unresolved.insert(log);
                    }
                }
            }
        }
        Ok((runs, mended))
    }
}

/// Adds the entries of a log whose tip was `tip`.
fn add_run(
    builder: &mut IndexBuilder,
    layout: SegmentLayout,
    data: &DataFile,
    log: LogId,
    links: RunLinks,
    mut tip: LogTip,
    entries: Vec<IndexEntry>,
) -> Result<(), StorageError> {
    builder.begin_run(log, tip, links);
    for mut placed in entries {
        let entry = &mut placed.entry;
        if entry.base != tip.end {
            return Err(data.corruption_error(placed.at, "a frame in front of this one"));
        }
        entry.bytes = tip.bytes + u64::from(entry.length);
        let chain = Entry::link(tip.chain, entry);
        // Payload bytes next to a hole may look like a frame, and may be crafted to: but they
        // cannot contain the chain of a log.
        if layout != SegmentLayout::Journal && entry.chain != chain {
            return Err(data.corruption_error(placed.at, "the chain of a frame"));
        }
        entry.chain = chain;
        tip = LogTip::of(entry, tip.user_time_max.max(entry.user_max));
        builder.add_entry(placed)?;
    }
    Ok(())
}

/// The name of a rebuilt index, until it was compared with what must follow it: a start must not
/// find an index that was refused.
pub(super) fn rebuilt_name(index: &str) -> String {
    format!("{index}.new")
}

/// Puts a rebuilt index in place of the previous one.
pub(super) fn promote(disk: &dyn Disk, index: &str) -> Result<(), StorageError> {
    rename_file(disk, &rebuilt_name(index), index)?;
    Ok(disk.sync_directory()?)
}

fn sorted_entries(
    data: &DataFile,
    manifest: &Manifest,
    entries_by_log: &mut BTreeMap<LogId, Vec<IndexEntry>>,
) -> Result<(), StorageError> {
    let damaged = |at| data.corruption_error(at, "a frame");
    let mut walk = SortedSegmentScanner::new(data)?;
    let mut before_is_freed = false;
    while let Some(filed) = walk.next()? {
        let mut entry = filed.frame.entry_at(filed.position + FRAME_BYTES as u64);
        entry.chain = filed.chain;
        // The header of a removed frame may be left over: what follows it is the rest of a hole,
        // which may be too short to be recognized as one.
        if let Some(at) = walk.corrupt_at.take()
            && !before_is_freed
        {
            return Err(damaged(at));
        }
        before_is_freed = entry.end() <= manifest.horizon(filed.frame.log).released_tip.end;
        entries_by_log.entry(filed.frame.log).or_default().push(IndexEntry { entry, at: filed.at });
    }
    // It may have been the last of a run: nothing after it would tell.
    match walk.corrupt_at {
        Some(at) if !before_is_freed => Err(damaged(at)),
        _ => Ok(()),
    }
}

fn journal_entries(
    listed: ManifestSegment,
    data: &Arc<DataFile>,
    entries: &mut BTreeMap<LogId, Vec<IndexEntry>>,
) -> Result<(), StorageError> {
    struct EntryCollector<'a>(&'a mut BTreeMap<LogId, Vec<IndexEntry>>);
    impl FrameVisitor for EntryCollector<'_> {
        fn frame(
            &mut self,
            segment: &Arc<Segment>,
            position: u64,
            frame: &FrameHeader,
            _start: &[u8],
        ) -> Result<(), RecoverError> {
            let entry = frame.entry_at(position + FRAME_BYTES as u64);
            let at = segment.at(entry.position);
            self.0.entry(frame.log).or_default().push(IndexEntry { entry, at });
            Ok(())
        }
    }
    let segment = Segment::read(Arc::clone(data), listed.start)?;
    let segment = segment.ok_or_else(|| data.corruption_error(0, "the segment's header"))?;
    let segment = Arc::new(segment);
    scan_sealed(&segment, listed.end, &mut EntryCollector(entries)).map_err(|error| match error {
        RecoverError::Storage(error) => error,
        RecoverError::Corrupt(corruption) => {
            let JournalCorruption { position, reason, .. } = corruption;
            let problem = format!("the frame at position {position}: {reason}");
            StorageError::corrupt(data.name(), None, problem)
        }
        error @ (RecoverError::Gap { .. }
        | RecoverError::Order { .. }
        | RecoverError::Offsets { .. }
        | RecoverError::Bytes { .. }
        | RecoverError::Unusable(_)) => StorageError::corrupt(data.name(), None, error.to_string()),
    })
}
