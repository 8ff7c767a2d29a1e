//! Advancing the log start, and reclaiming the space in front of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SealedHistory;
use super::proof_pruning::merge_pruned_proofs;
use crate::entry::{LogId, Offset};
use crate::error::StorageError;
use crate::journal::FRAME_BYTES;
use crate::log::{Log, LogPrefix, SegmentRun};
use crate::manifest::{LogHorizon, ManifestChange, ManifestEdit};
use crate::sealed_segment::{SealedSegment, SegmentLayout};
use crate::sorted_segment::{SORTED_PREFIX_BYTES, index_name};
use crate::storage_file::remove_if_exists;

/// The result of a round of reclaiming.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimStats {
    pub removed_files: u64,
    /// Bytes reclaimed inside files that stay.
    pub reclaimed_bytes: u64,
}

/// The horizons of logs once everything in front of `starts` is removed, for those that differ from
/// `before`.
fn horizons_after(
    starts: &[(LogId, Offset)],
    logs: &HashMap<LogId, Arc<Log>>,
    before: &HashMap<LogId, LogHorizon>,
) -> Result<BTreeMap<LogId, LogHorizon>, StorageError> {
    let mut changed: BTreeMap<LogId, LogHorizon> = BTreeMap::new();
    for (id, start) in starts {
        let log = &logs[id];
        let mut horizon = *changed.get(id).unwrap_or(&before[id]);
        let start = (*start).min(log.end());
        if start <= horizon.start {
            continue;
        }
        let lost_to = match log.entry_at(Offset(start.0 - 1))? {
            Some(last_lost) if last_lost.base < start => last_lost.stamp,
            // Compaction removed the entry that held it.
            _ => log.current_sealed_log().tip_before_offset(start)?.stamp,
        };
        horizon.start = start;
        horizon.lost_to = horizon.lost_to.max(lost_to);
        let freed = log.current_sealed_log().tip_of_whole(|run| run.tip.end <= start)?;
        if freed.end > horizon.released_tip.end {
            horizon.released_tip = freed;
        }
        // A compacted prefix has nothing after the released tip.
        if horizon.compacted_generation > 0
            && start >= log.compacted_prefix().map_or(Offset(0), |base| base.run.tip.end)
        {
            horizon.compacted_generation = 0;
        }
        changed.insert(*id, horizon);
    }
    Ok(changed)
}

impl SealedHistory {
    /// Advances the log start of each named log. The space is reclaimed two rounds of
    /// [`SealedHistory::reclaim`] later.
    ///
    /// # Errors
    /// The disk fails; then nothing has changed.
    pub(crate) fn advance_log_start(&self, starts: &[(LogId, Offset)]) -> Result<(), StorageError> {
        let logs = self.logs_of(starts.iter().map(|(id, _)| *id))?;
        let (mut manifest, changed) = loop {
            // Indexes are read before the manifest is locked: loading a log waits for the manifest.
            let before: HashMap<LogId, LogHorizon> =
                logs.iter().map(|(id, log)| (*id, log.horizon())).collect();
            let changed = horizons_after(starts, &logs, &before)?;
            if changed.is_empty() {
                return Ok(());
            }
            let manifest = self.manifest.lock();
            // A compaction may have changed a horizon meanwhile.
            if logs.iter().all(|(id, log)| log.horizon() == before[id]) {
                break (manifest, changed);
            }
        };
        self.commit_manifest(&mut manifest, &ManifestEdit::of_logs(&changed))?;
        let mut unnamed = Vec::new();
        for (id, horizon) in changed {
            let log = &logs[&id];
            let base = if horizon.compacted_generation > 0 { log.compacted_prefix() } else { None };
            if let (Some(prefix), None) = (log.compacted_prefix(), &base) {
                unnamed.push(prefix.files.data.name().to_owned());
            }
            log.set_prefix(LogPrefix { horizon, compacted_prefix: base });
        }
        drop(manifest);
        self.remove_files_later(unnamed);
        Ok(())
    }

    /// Loads some logs, which stay in memory as long as the result is held. A change of a log's
    /// horizon in the manifest updates the log too, and must not load it while the manifest is
    /// locked.
    fn logs_of(
        &self,
        ids: impl Iterator<Item = LogId>,
    ) -> Result<HashMap<LogId, Arc<Log>>, StorageError> {
        ids.map(|id| Ok((id, self.log(id)?))).collect()
    }

    /// A log, for work that is retried later.
    fn readable_log(&self, id: LogId) -> Option<Arc<Log>> {
        let log = self.log(id);
        log.inspect_err(
            |error| tracing::error!(log = id.0, %error, "the space of a log is not reclaimed"),
        )
        .ok()
    }

    /// Queues files for removal in the round after the next.
    pub(super) fn remove_files_later(&self, data_files: impl IntoIterator<Item = String>) {
        self.unreferenced_files.lock().extend(data_files);
    }

    /// Removes an unfinished data file, with its index: it takes space that may be what is missing.
    /// The next start removes what is left.
    pub(super) fn remove_partial_file(&self, data_file: &str) {
        for name in [&index_name(data_file), data_file] {
            let _ = remove_if_exists(&*self.disk, name);
        }
    }

    /// Reclaims the space of entries that were removed before the last call, so that readers that
    /// began before have finished.
    ///
    /// # Errors
    /// The disk fails; the next round retries what was not reclaimed.
    pub(crate) fn reclaim(&self) -> Result<ReclaimStats, StorageError> {
        let mut reclaiming = self.reclaim_state.lock();
        let mut freed = ReclaimStats::default();
        // A backup reads the files: the next round does what was to be done now.
        if self.is_held() {
            return Ok(freed);
        }
        self.ensure_manifest_committed()?;
        self.remove_files(&mut reclaiming.unreferenced_files, &mut freed)?;
        let mut due = self.reclaim_targets(&reclaiming.reclaimable);
        if !due.is_empty() {
            let mut unused = self.reclaim_runs(&mut due, &mut freed)?;
            let removed = self.remove_files(&mut unused, &mut freed);
            reclaiming.unreferenced_files.append(&mut unused);
            removed?;
        }
        // For the next round.
        self.advance_released()?;
        let manifest = self.manifest.lock();
        reclaiming.reclaimable =
            manifest.logs.iter().map(|(id, h)| (*id, h.released_tip.end)).collect();
        drop(manifest);
        reclaiming.unreferenced_files.extend(std::mem::take(&mut *self.unreferenced_files.lock()));
        Ok(freed)
    }

    /// Entries that were removed while they were in the open segment may have been sealed since:
    /// then lookups in sealed segments can skip them.
    fn advance_released(&self) -> Result<(), StorageError> {
        let behind: Vec<LogId> = {
            let manifest = self.manifest.lock();
            let is_behind = |horizon: &LogHorizon| horizon.start > horizon.released_tip.end;
            manifest
                .logs
                .iter()
                .filter(|(_, horizon)| is_behind(horizon))
                .map(|(id, _)| *id)
                .collect()
        };
        let readable = behind.into_iter().filter_map(|id| Some((id, self.readable_log(id)?)));
        let logs: HashMap<LogId, Arc<Log>> = readable.collect();
        let mut manifest = self.manifest.lock();
        let mut changed: BTreeMap<LogId, LogHorizon> = BTreeMap::new();
        for (id, log) in &logs {
            let horizon = manifest.horizon(*id);
            let start = horizon.start;
            let freed = log.current_sealed_log().tip_of_whole(|run| run.tip.end <= start)?;
            if freed.end > horizon.released_tip.end {
                changed.insert(*id, LogHorizon { released_tip: freed, ..horizon });
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.commit_manifest(&mut manifest, &ManifestEdit::of_logs(&changed))?;
        for (id, horizon) in changed {
            let log = &logs[&id];
            log.set_prefix(LogPrefix { horizon, compacted_prefix: log.compacted_prefix() });
        }
        Ok(())
    }

    /// The end of the reclaimable part of each log with something to reclaim.
    fn reclaim_targets(&self, settled: &BTreeMap<LogId, Offset>) -> BTreeMap<LogId, Offset> {
        let manifest = self.manifest.lock();
        settled
            .iter()
            .filter(|(id, to)| manifest.horizon(**id).reclaimed_to < **to)
            .map(|(id, to)| (*id, *to))
            .collect()
    }

    /// Reclaims the runs that are due, as far as they are proved. Returns the data files that
    /// nothing names any more.
    fn reclaim_runs(
        &self,
        due: &mut BTreeMap<LogId, Offset>,
        stats: &mut ReclaimStats,
    ) -> Result<Vec<String>, StorageError> {
        let touched = self.punch_runs(due, stats)?;
        self.stats.reclaimed_bytes.fetch_add(stats.reclaimed_bytes, Ordering::Relaxed);
        let readable = due.keys().filter_map(|id| Some((*id, self.readable_log(*id)?)));
        let logs: HashMap<LogId, Arc<Log>> = readable.collect();
        due.retain(|id, to| logs.get(id).is_some_and(|log| *to > log.horizon().reclaimed_to));
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let removed = self.unreferenced_segments(due, &touched)?;
        self.commit_reclaimed(due, &logs, &removed)?;
        // The proofs of removed segments stay, because the chain runs through them. Their leaves
        // go.
        if !removed.is_empty() {
            let segments = self.sealed_segments.all();
            let proved_to = self.proved_to.load(Ordering::Acquire);
            let pruned = merge_pruned_proofs(&*self.disk, &segments, proved_to, &mut || Ok(()));
            if let Err(error) = pruned {
                self.schedule_proof_pruning();
                tracing::warn!(%error, "proofs of removed segments are not pruned; it is retried");
            }
        }
        Ok(removed.iter().map(|segment| segment.data().name().to_owned()).collect())
    }

    /// Punches holes for the runs that are due, and lowers what is due to what is proved. Returns
    /// where the segments begin that had such runs.
    fn punch_runs(
        &self,
        due: &mut BTreeMap<LogId, Offset>,
        stats: &mut ReclaimStats,
    ) -> Result<HashSet<u64>, StorageError> {
        let mut touched = HashSet::new();
        for (id, to) in due.iter_mut() {
            // A log that cannot be read does not keep the others from being reclaimed.
            let Some(log) = self.readable_log(*id) else {
                *to = Offset(0);
                continue;
            };
            for segment_run in log.current_sealed_log().runs_in(log.horizon().reclaimed_to..*to)? {
                let SegmentRun { segment, run, .. } = &segment_run;
                if !self.is_proved(segment) {
                    // Without its frames there would be no proof of it, and the chain would end
                    // here.
                    *to = run.base;
                    break;
                }
                touched.insert(segment.start);
                segment.set_needs_no_sorting(false);
                stats.reclaimed_bytes += reclaim_run(&segment_run)?;
            }
        }
        Ok(touched)
    }

    /// The segments that no log needs once it is reclaimed as far as is due. The last segment has
    /// the snapshot of the stage, and stays. Once it is sorted it is empty, and it is removed when
    /// another follows it.
    fn unreferenced_segments(
        &self,
        due: &BTreeMap<LogId, Offset>,
        touched: &HashSet<u64>,
    ) -> Result<Vec<Arc<SealedSegment>>, StorageError> {
        let mut removed = Vec::new();
        for segment in self.sealed_segments.all().iter().rev().skip(1) {
            let may_go = touched.contains(&segment.start) || segment.index().header.entries == 0;
            if may_go && self.is_proved(segment) && !self.is_referenced(segment, due)? {
                removed.push(Arc::clone(segment));
            }
        }
        Ok(removed)
    }

    /// Records in the manifest, and then in memory, how far each log is reclaimed and which
    /// segments are gone.
    fn commit_reclaimed(
        &self,
        due: &BTreeMap<LogId, Offset>,
        logs: &HashMap<LogId, Arc<Log>>,
        removed: &[Arc<SealedSegment>],
    ) -> Result<(), StorageError> {
        let reclaimed = |horizon: LogHorizon, to: Offset| LogHorizon {
            reclaimed_to: horizon.reclaimed_to.max(to),
            ..horizon
        };
        let mut manifest = self.manifest.lock();
        let horizons = due
            .iter()
            .map(|(id, to)| ManifestChange::Log(*id, reclaimed(manifest.horizon(*id), *to)));
        let removals = removed.iter().map(|segment| ManifestChange::SegmentRemoved(segment.start));
        let edit = ManifestEdit(horizons.chain(removals).collect());
        self.commit_manifest(&mut manifest, &edit)?;
        self.sealed_segments.change(|segments| {
            segments.retain(|segment| !removed.iter().any(|unused| unused.start == segment.start));
        });
        for (id, to) in due {
            let log = &logs[id];
            let horizon = reclaimed(log.horizon(), *to);
            log.set_prefix(LogPrefix { horizon, compacted_prefix: log.compacted_prefix() });
        }
        Ok(())
    }

    /// Returns true if lookups still need anything of a sealed segment.
    fn is_referenced(
        &self,
        segment: &SealedSegment,
        due: &BTreeMap<LogId, Offset>,
    ) -> Result<bool, StorageError> {
        let index = segment.index();
        for number in 0..index.header.runs {
            let run = segment.note_corruption(index.run_at(number))?;
            let freed_to = due.get(&run.log).copied().unwrap_or(Offset(0));
            let punched_to = self.manifest.lock().horizon(run.log).reclaimed_to;
            if run.count > 0 && run.tip.end > freed_to.max(punched_to) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes data files with their indexes, and takes the removed ones from the list.
    fn remove_files(
        &self,
        names: &mut Vec<String>,
        freed: &mut ReclaimStats,
    ) -> Result<(), StorageError> {
        if names.is_empty() {
            return Ok(());
        }
        while let Some(name) = names.last() {
            for name in [&index_name(name), name] {
                remove_if_exists(&*self.disk, name)?;
            }
            names.pop();
            freed.removed_files += 1;
            self.stats.removed_files.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.disk.sync_directory()?)
    }
}

/// Reclaims the space of a run, if it is contiguous.
fn reclaim_run(SegmentRun { segment, index, run }: &SegmentRun) -> Result<u64, StorageError> {
    if segment.layout == SegmentLayout::Journal || run.count == 0 {
        return Ok(0);
    }
    let entries = run.entries();
    let first = segment.note_corruption(index.entry(entries.start))?;
    let last = segment.note_corruption(index.entry(entries.end - 1))?;
    let from = first.at - (SORTED_PREFIX_BYTES + FRAME_BYTES) as u64;
    let to = last.at + u64::from(last.entry.length);
    segment.data().punch_hole(from..to)
}
