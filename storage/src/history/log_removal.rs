//! Forgetting logs of which nothing is left: the manifest names every log of which something was given up,
//! and would for ever.
//!
//! What holds true of it:
//! - A log is forgotten only if nobody can ever ask for it again, by what the store's user says, and nobody
//!   holds it.
//! - No file knows of it then: no index has a run of it, no data file has frames of it, no head table has its
//!   head. A frame without its horizon would be taken for one that is kept, and a hole for damage, when an
//!   index is made anew. What a data file has of it without a run, its index says ([`IndexHeader::gone_to`]).
//! - All of it is indexed: nothing of it is read back from the journal at the next start.
//!
//! [`IndexHeader::gone_to`]: crate::index::IndexHeader::gone_to

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SealedHistory;
use crate::index::latest_runs_range;
use crate::log::{Log, LogId};
use crate::manifest::{LogHorizon, Manifest, ManifestChange, ManifestEdit};

/// Parts are looked into for so many logs at the least,
const REMOVABLE_LOGS_MIN: usize = 64;
/// and for this part of all that the manifest names.
const REMOVABLE_SHARE_DIVISOR: usize = 4;

/// When parts were last looked into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogRemovalAttempt {
    /// How many logs were left that could not be forgotten.
    remaining: usize,
    /// How often parts had changed.
    segment_changes: u64,
}

impl SealedHistory {
    /// Forgets the logs that are not known any more, as far as no file knows of them; how many. It is done
    /// once there are enough of them.
    ///
    /// # Errors
    /// The disk fails; then nothing has changed here.
    pub(crate) fn remove_logs(&self, is_known: &dyn Fn(LogId) -> bool) -> io::Result<usize> {
        // No part is filed, merged or removed meanwhile, and no index is made anew.
        let mut reclaiming = self.reclaim_state.lock();
        self.ensure_manifest_committed()?;
        let mut gone = {
            let manifest = self.manifest.lock();
            let gone = reclaimed_logs(&manifest, is_known);
            let is_worth_it =
                gone.len() >= REMOVABLE_LOGS_MIN.max(manifest.logs.len() / REMOVABLE_SHARE_DIVISOR);
            if !is_worth_it {
                return Ok(0);
            }
            gone
        };
        let look =
            LogRemovalAttempt { remaining: gone.len(), segment_changes: self.segment_changes() };
        if reclaiming.log_removal == look {
            return Ok(0);
        }
        self.exclude_logs_in_segments(&mut gone)?;
        self.exclude_logs_in_tables(&mut gone)?;
        // One that is damaged is out of use, and may be read at the next start.
        if self.has_unused_tables()? {
            gone.clear();
        }
        let forgotten = if gone.is_empty() { 0 } else { self.remove_unheld(&mut gone)? };
        // What is freed is looked for by these.
        reclaiming.reclaimable.retain(|log, _| !gone.contains(log));
        reclaiming.log_removal =
            LogRemovalAttempt { remaining: look.remaining - forgotten, ..look };
        Ok(forgotten)
    }

    /// How often parts were made, replaced or removed.
    fn segment_changes(&self) -> u64 {
        let stats = &self.stats;
        let counts = [&stats.indexed, &stats.sorted, &stats.removed_files, &stats.rebuilt];
        counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Takes the logs out of `gone` that a part has a run of, or may have frames of.
    fn exclude_logs_in_segments(&self, gone: &mut BTreeSet<LogId>) -> io::Result<()> {
        for part in self.sealed_segments.all().iter() {
            let index = part.index();
            if let Some(gone_to) = index.header.hidden_to {
                *gone = gone.split_off(&LogId(gone_to.0.saturating_add(1)));
            }
            for number in 0..index.header.runs {
                if gone.is_empty() {
                    return Ok(());
                }
                gone.remove(&part.note_corruption(index.run_at(number))?.log);
            }
        }
        Ok(())
    }

    /// Takes the logs out of `gone` that a head table names.
    fn exclude_logs_in_tables(&self, gone: &mut BTreeSet<LogId>) -> io::Result<()> {
        for table in self.latest_run_tables.read().clone().iter() {
            for number in 0..table.count {
                if gone.is_empty() {
                    return Ok(());
                }
                gone.remove(&table.latest_run_at(number)?.log);
            }
        }
        Ok(())
    }

    /// Whether there are head tables that are not in use.
    fn has_unused_tables(&self) -> io::Result<bool> {
        let tables = self.latest_run_tables.read().clone();
        let names = self.disk.list()?;
        let mut others = names.iter().filter(|name| latest_runs_range(name).is_some());
        Ok(others.any(|name| tables.iter().all(|table| table.name() != name)))
    }

    /// Forgets those of `gone` that nobody holds, and leaves them in it; how many.
    fn remove_unheld(&self, gone: &mut BTreeSet<LogId>) -> io::Result<usize> {
        // Whoever loads a log waits for it.
        let mut manifest = self.manifest.lock();
        let mut logs = self.logs.write();
        let is_unheld = |log: &Arc<Log>| Arc::strong_count(log) == 1 && log.is_idle();
        gone.retain(|id| logs.get(id).is_none_or(is_unheld));
        // Those who look for one now find what is there then.
        self.evictions.fetch_add(1, Ordering::AcqRel);
        gone.iter().for_each(|id| drop(logs.remove(id)));
        drop(logs);
        let changes = gone.iter().map(|id| ManifestChange::LogRemoved(*id));
        self.commit_manifest(&mut manifest, &ManifestEdit(changes.collect()))?;
        self.stats.removed_logs.fetch_add(gone.len() as u64, Ordering::Relaxed);
        Ok(gone.len())
    }
}

/// The logs that are not known any more, and whose space was given back as far as they were given up.
fn reclaimed_logs(manifest: &Manifest, is_known: &dyn Fn(LogId) -> bool) -> BTreeSet<LogId> {
    let is_reclaimed = |horizon: &LogHorizon| {
        horizon.compacted_generation == 0
            && horizon.released_tip.end >= horizon.start
            && horizon.reclaimed_to >= horizon.released_tip.end
    };
    let gone = manifest.logs.iter().filter(|(id, held)| is_reclaimed(held) && !is_known(**id));
    gone.map(|(id, _)| *id).collect()
}
