//! Logs are loaded into memory on first use, and evicted when they are unused. So their memory does
//! not grow with how many logs there ever were.
//!
//! Invariant: a log that is not in memory has all its entries in sealed segments. So a search
//! through the sealed segments, newest first, finds its tip. Latest-run tables save searching each
//! one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SealedHistory;
use crate::disk::Disk;
use crate::entry::LogId;
use crate::error::StorageError;
use crate::index::{
    BlockCache, LatestRun, LatestRunSource, LatestRunTable, RunLocation, latest_runs_name,
    latest_runs_range, write_latest_runs,
};
use crate::journal::segment_name;
use crate::log::{IndexedTip, Log, LogPrefix};
use crate::manifest::{LogHorizon, Manifest};
use crate::sealed_segment::{SealedSegment, segment_at};
use crate::sorted_segment::index_name;
use crate::storage_file::remove_file;

/// A table is merged with newer ones once it has less than this many times as many runs as they
/// have.
const MERGE_RATIO: u64 = 4;

/// The result of looking up a log, before the manifest is consulted.
enum LogLookup {
    NotFound,
    Found(IndexedTip),
    /// A table names its latest run, but the run is gone: it must have been removed.
    MissingRun {
        latest: LatestRun,
        /// The index that should have it.
        index: String,
    },
}

impl SealedHistory {
    /// The log `id`; empty if nothing was ever appended to it. An index that turns out to be
    /// corrupt is rebuilt, unless space is being reclaimed at the moment.
    ///
    /// # Errors
    /// An index cannot be read.
    pub(crate) fn log(&self, id: LogId) -> Result<Arc<Log>, StorageError> {
        match self.load_log(id) {
            Err(error) if error.is_data_loss() => {
                // A failure to rebuild other indexes does not concern this log.
                let _ = self.rebuild_suspects();
                self.load_log(id)
            }
            loaded => loaded,
        }
    }

    fn load_log(&self, id: LogId) -> Result<Arc<Log>, StorageError> {
        loop {
            if let Some(log) = self.logs.read().get(&id) {
                return Ok(Arc::clone(log));
            }
            let dropped = self.evictions.load(Ordering::Acquire);
            let sought = self.lookup_log(id)?;
            // A change of the log start holds the manifest until each loaded log has the change.
            let manifest = self.manifest.lock();
            let mut logs = self.logs.write();
            // The result is stale if the log was loaded and evicted meanwhile.
            if logs.contains_key(&id) || self.evictions.load(Ordering::Acquire) != dropped {
                continue;
            }
            let horizon = manifest.horizon(id);
            let reached = resolve_log_tip(id, sought, &horizon)?;
            // A log with a compacted prefix stays in memory.
            let base = self.unloaded_prefixes.lock().remove(&id);
            assert!(
                base.is_some() == (horizon.compacted_generation > 0),
                "a log has its compacted prefix: {id:?}"
            );
            let log = self.new_log(id, reached, LogPrefix { horizon, compacted_prefix: base });
            logs.insert(id, Arc::clone(&log));
            return Ok(log);
        }
    }

    fn lookup_log(&self, id: LogId) -> Result<LogLookup, StorageError> {
        // Tables first: the list of sealed segments, read after them, has all that they cover.
        let tables = self.latest_run_tables.read().clone();
        let covered = tables.last().map_or(0, |table| table.range.end);
        let segments = self.sealed_segments.all();
        for segment in segments.iter().rev().take_while(|segment| segment.end > covered) {
            if let Some((number, run)) = segment.find_run(id)? {
                let head = Some(RunLocation { segment: segment.start, number });
                return Ok(LogLookup::Found(IndexedTip { tip: run.tip, latest_run: head }));
            }
        }
        for table in tables.iter().rev() {
            match table.latest_run(id) {
                // The indexes have the same information.
                Err(error) if error.is_data_loss() => {
                    self.drop_table(table, &error);
                    return self.lookup_log(id);
                }
                Err(error) => return Err(error),
                Ok(Some(head)) => return lookup_latest_run(&segments, head),
                Ok(None) => {}
            }
        }
        Ok(LogLookup::NotFound)
    }

    /// Drops a corrupt table, and those after it: a later table replaces them.
    fn drop_table(&self, damaged: &Arc<LatestRunTable>, error: &StorageError) {
        tracing::warn!(%error, "a latest-run table cannot be read, and is rebuilt");
        let mut tables = self.latest_run_tables.write();
        let place = tables.iter().position(|table| Arc::ptr_eq(table, damaged));
        if let Some(place) = place {
            *tables = tables[..place].into();
        }
    }

    /// Writes a latest-run table if many sealed segments have none.
    pub(super) fn merge_latest_run_tables(&self) -> Result<(), StorageError> {
        let tables = self.latest_run_tables.read().clone();
        let covered = tables.last().map_or(0, |table| table.range.end);
        // A segment that was merged across the end of the tables counts as uncovered.
        let first_of = |segments: &[Arc<SealedSegment>]| {
            segments.partition_point(|segment| segment.end <= covered)
        };
        let segments = self.sealed_segments.all();
        if segments.len() - first_of(&segments) <= self.uncovered_segments_max {
            return Ok(());
        }
        // The segments that exist now have nothing of a log that is removed from here on.
        let manifest = self.manifest.lock().clone();
        let segments = self.sealed_segments.all();
        let uncovered = &segments[first_of(&segments)..];
        let Some(last) = uncovered.last() else { return Ok(()) };
        let mut heads: u64 = uncovered.iter().map(|segment| segment.index().header.runs).sum();
        let mut kept_count = tables.len();
        while kept_count > 0 && tables[kept_count - 1].count < heads.saturating_mul(MERGE_RATIO) {
            kept_count -= 1;
            heads += tables[kept_count].count;
        }
        let (kept_tables, merged) = tables.split_at(kept_count);
        let stretch = kept_tables.last().map_or(0, |table| table.range.end)..last.end;
        let sources: Vec<LatestRunSource> = merged
            .iter()
            .map(|table| LatestRunSource::Table(Arc::clone(table)))
            .chain(uncovered.iter().map(LatestRunSource::of))
            .collect();
        let is_kept = |head: &LatestRun| head.end > manifest.horizon(head.log).released_tip.end;
        let written = write_latest_runs(&*self.disk, stretch.clone(), &sources, is_kept);
        if let Err(error) = written {
            // A partial file takes space that may be what is missing.
            let _ = remove_file(&*self.disk, &latest_runs_name(&stretch));
            // A table that cannot be read now may be whole.
            let is_whole = |table: &LatestRunTable| {
                table.corrupt_blocks().map_or(true, |corrupt| corrupt.is_empty())
            };
            return match merged.iter().find(|table| !is_whole(table)) {
                Some(damaged) => {
                    self.drop_table(damaged, &error);
                    self.merge_latest_run_tables()
                }
                None => Err(error),
            };
        }
        self.disk.sync_directory()?;
        let name = latest_runs_name(&stretch);
        let table = LatestRunTable::open(&*self.disk, stretch, &self.cache)?
            .ok_or_else(|| StorageError::unreadable_output(&name))?;
        *self.latest_run_tables.write() =
            kept_tables.iter().cloned().chain([Arc::new(table)]).collect();
        for table in merged {
            // Readers have it open. If it is not removed now, the next start removes it.
            let _ = remove_file(&*self.disk, table.name());
        }
        Ok(())
    }

    /// Evicts unused logs if too many are in memory, down to half of the limit.
    pub(super) fn evict_idle_logs(&self) {
        let is_idle = |log: &Arc<Log>| Arc::strong_count(log) == 1 && log.is_idle();
        let idle = {
            let logs = self.logs.read();
            if logs.len() <= self.idle_logs_max {
                return;
            }
            logs.values().filter(|log| is_idle(log)).count()
        };
        if idle <= self.idle_logs_max {
            return;
        }
        let mut surplus = idle - self.idle_logs_max / 2;
        let mut logs = self.logs.write();
        self.evictions.fetch_add(1, Ordering::AcqRel);
        // Nobody can take a log from the map meanwhile.
        logs.retain(|_, log| {
            let is_evicted = surplus > 0 && is_idle(log);
            surplus -= usize::from(is_evicted);
            !is_evicted
        });
        let count = logs.len();
        if logs.capacity() > 4 * count.max(self.idle_logs_max) {
            logs.shrink_to(2 * count);
        }
    }
}

/// The run that an entry of a latest-run table names.
fn lookup_latest_run(
    segments: &[Arc<SealedSegment>],
    head: LatestRun,
) -> Result<LogLookup, StorageError> {
    let indexed = match segment_at(segments, head.segment) {
        Some(segment) => segment.run_near(head.log, head.number)?,
        None => None,
    };
    let tip = indexed.map(|indexed| indexed.run.tip).filter(|tip| tip.end == head.end);
    let index = || match segment_at(segments, head.segment) {
        Some(segment) => segment.index().name().to_owned(),
        None => index_name(&segment_name(head.segment)),
    };
    Ok(match tip {
        Some(tip) => LogLookup::Found(IndexedTip { tip, latest_run: Some(head.location()) }),
        None => LogLookup::MissingRun { latest: head, index: index() },
    })
}

/// The tip of a log, from what the lookup found and its horizon.
fn resolve_log_tip(
    id: LogId,
    sought: LogLookup,
    horizon: &LogHorizon,
) -> Result<IndexedTip, StorageError> {
    match sought {
        LogLookup::Found(reached) if reached.tip.end > horizon.released_tip.end => Ok(reached),
        LogLookup::Found(reached) => Ok(IndexedTip { tip: horizon.released_tip, ..reached }),
        LogLookup::MissingRun { latest, index } if latest.end > horizon.released_tip.end => {
            let reason = format!(
                "the end of log {}, offset {}, is lost: a latest-run table has it, and the index of segment {} does not: restore the corrupt file from a backup",
                id.0, latest.end.0, latest.segment
            );
            Err(StorageError::corrupt(&index, None, reason))
        }
        LogLookup::NotFound | LogLookup::MissingRun { .. } => {
            Ok(IndexedTip { tip: horizon.released_tip, latest_run: None })
        }
    }
}

/// The latest-run tables on disk, as far as they follow one another from the beginning.
pub(crate) fn open_latest_run_tables(
    disk: &dyn Disk,
    manifest: &Manifest,
    cache: &Arc<BlockCache>,
) -> Result<Vec<Arc<LatestRunTable>>, StorageError> {
    let names = disk.list()?;
    let mut stretches: Vec<_> = names.iter().filter_map(|name| latest_runs_range(name)).collect();
    // Of tables that begin at the same position, the longest was made from the others.
    stretches.sort_by_key(|stretch| (stretch.start, std::cmp::Reverse(stretch.end)));
    let (mut tables, mut covered) = (Vec::new(), 0);
    for stretch in stretches {
        if stretch.start == covered
            && stretch.end <= manifest.indexed_to
            && let Some(table) = LatestRunTable::open(disk, stretch, cache)?
        {
            covered = table.range.end;
            tables.push(Arc::new(table));
        }
    }
    Ok(tables)
}
