//! Removing logs of which nothing is left: the manifest names every log with a horizon, and would
//! do so for ever.
//!
//! Invariants:
//! - A log is removed only if nobody can ever use it again, according to the store's user, and
//!   nobody holds it.
//! - No file refers to it then: no index has a run of it, no data file has its frames, no
//!   latest-run table names it. Without its horizon, a rebuilt index would take a frame for one
//!   that is kept, and a hole for corruption. If a data file has frames of a log without a run, its
//!   index says so ([`IndexHeader::hidden_to`]).
//! - All of it is indexed: nothing of it is read back from the journal at the next start.
//!
//! [`IndexHeader::hidden_to`]: crate::index::IndexHeader::hidden_to

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SealedHistory;
use crate::entry::LogId;
use crate::error::StorageError;
use crate::index::latest_runs_range;
use crate::log::Log;
use crate::manifest::{LogHorizon, Manifest, ManifestChange, ManifestEdit};

/// Sealed segments are searched for at least this many logs,
const REMOVABLE_LOGS_MIN: usize = 64;
/// and for at least this share of all that the manifest names.
const REMOVABLE_SHARE_DIVISOR: usize = 4;

/// The state of things when sealed segments were last searched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogRemovalAttempt {
    /// The number of logs that were left, because they could not be removed.
    remaining: usize,
    /// The number of changes of sealed segments so far.
    segment_changes: u64,
}

impl SealedHistory {
    /// Removes unknown logs to which no file refers; returns how many. It waits until there are
    /// enough of them.
    ///
    /// # Errors
    /// The disk fails; then nothing has changed in memory.
    pub(crate) fn remove_logs(
        &self,
        is_known: &dyn Fn(LogId) -> bool,
    ) -> Result<usize, StorageError> {
        // No segment is sorted, merged or removed meanwhile, and no index is rebuilt.
        let mut reclaiming = self.reclaim_state.lock();
        self.ensure_manifest_committed()?;
        let mut removable = {
            let manifest = self.manifest.lock();
            let removable = reclaimed_logs(&manifest, is_known);
            let is_worth_it = removable.len()
                >= REMOVABLE_LOGS_MIN.max(manifest.logs.len() / REMOVABLE_SHARE_DIVISOR);
            if !is_worth_it {
                return Ok(0);
            }
            removable
        };
        let look = LogRemovalAttempt {
            remaining: removable.len(),
            segment_changes: self.segment_changes(),
        };
        if reclaiming.log_removal == look {
            return Ok(0);
        }
        self.exclude_logs_in_segments(&mut removable)?;
        self.exclude_logs_in_tables(&mut removable)?;
        // A corrupt table is not in use now, but the next start may read it.
        if self.has_unused_tables()? {
            removable.clear();
        }
        let forgotten = if removable.is_empty() { 0 } else { self.remove_unheld(&mut removable)? };
        // Reclaiming looks up logs by these entries.
        reclaiming.reclaimable.retain(|log, _| !removable.contains(log));
        reclaiming.log_removal =
            LogRemovalAttempt { remaining: look.remaining - forgotten, ..look };
        Ok(forgotten)
    }

    /// The number of times that sealed segments were made, replaced or removed.
    fn segment_changes(&self) -> u64 {
        let stats = &self.stats;
        let counts = [&stats.indexed, &stats.sorted, &stats.removed_files, &stats.rebuilt];
        counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Takes out of `removable` the logs of which a sealed segment has a run, or may have frames.
    fn exclude_logs_in_segments(
        &self,
        removable: &mut BTreeSet<LogId>,
    ) -> Result<(), StorageError> {
        for segment in self.sealed_segments.all().iter() {
            let index = segment.index();
            if let Some(gone_to) = index.header.hidden_to {
                *removable = removable.split_off(&LogId(gone_to.0.saturating_add(1)));
            }
            for number in 0..index.header.runs {
                if removable.is_empty() {
                    return Ok(());
                }
                removable.remove(&segment.note_corruption(index.run_at(number))?.log);
            }
        }
        Ok(())
    }

    /// Takes out of `removable` the logs that a latest-run table names.
    fn exclude_logs_in_tables(&self, removable: &mut BTreeSet<LogId>) -> Result<(), StorageError> {
        for table in self.latest_run_tables.read().clone().iter() {
            for number in 0..table.count {
                if removable.is_empty() {
                    return Ok(());
                }
                removable.remove(&table.latest_run_at(number)?.log);
            }
        }
        Ok(())
    }

    /// Returns true if there are latest-run tables that are not in use.
    fn has_unused_tables(&self) -> Result<bool, StorageError> {
        let tables = self.latest_run_tables.read().clone();
        let names = self.disk.list()?;
        let mut others = names.iter().filter(|name| latest_runs_range(name).is_some());
        Ok(others.any(|name| tables.iter().all(|table| table.name() != name)))
    }

    /// Removes the logs of `removable` that nobody holds, and retains only these in it. Returns
    /// their number.
    fn remove_unheld(&self, removable: &mut BTreeSet<LogId>) -> Result<usize, StorageError> {
        // Loading a log waits for the manifest.
        let mut manifest = self.manifest.lock();
        let mut logs = self.logs.write();
        let is_unheld = |log: &Arc<Log>| Arc::strong_count(log) == 1 && log.is_idle();
        removable.retain(|id| logs.get(id).is_none_or(is_unheld));
        // A lookup that is running repeats, and finds the new state.
        self.evictions.fetch_add(1, Ordering::AcqRel);
        removable.iter().for_each(|id| drop(logs.remove(id)));
        drop(logs);
        let changes = removable.iter().map(|id| ManifestChange::LogRemoved(*id));
        self.commit_manifest(&mut manifest, &ManifestEdit(changes.collect()))?;
        self.stats.removed_logs.fetch_add(removable.len() as u64, Ordering::Relaxed);
        Ok(removable.len())
    }
}

/// Unknown logs whose space was reclaimed as far as they were released.
fn reclaimed_logs(manifest: &Manifest, is_known: &dyn Fn(LogId) -> bool) -> BTreeSet<LogId> {
    let is_reclaimed = |horizon: &LogHorizon| {
        horizon.compacted_generation == 0
            && horizon.released_tip.end >= horizon.start
            && horizon.reclaimed_to >= horizon.released_tip.end
    };
    let removable =
        manifest.logs.iter().filter(|(id, horizon)| is_reclaimed(horizon) && !is_known(**id));
    removable.map(|(id, _)| *id).collect()
}
