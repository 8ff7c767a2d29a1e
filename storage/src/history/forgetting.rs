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

use super::History;
use crate::index::heads_stretch;
use crate::log::{Log, LogId};
use crate::manifest::{Horizon, Manifest, ManifestChange, ManifestEdit};

/// Parts are looked into for so many logs at the least,
const WORTH_LOGS: usize = 64;
/// and for this part of all that the manifest names.
const WORTH_PART: usize = 4;

/// When parts were last looked into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ForgettingLook {
    /// How many logs were left that could not be forgotten.
    left: usize,
    /// How often parts had changed.
    changes: u64,
}

impl History {
    /// Forgets the logs that are not known any more, as far as no file knows of them; how many. It is done
    /// once there are enough of them.
    ///
    /// # Errors
    /// The disk fails; then nothing has changed here.
    pub(crate) fn forget_logs(&self, is_known: &dyn Fn(LogId) -> bool) -> io::Result<usize> {
        // No part is filed, merged or removed meanwhile, and no index is made anew.
        let mut reclaiming = self.reclaiming.lock();
        self.settle_manifest()?;
        let mut gone = {
            let manifest = self.manifest.lock();
            let gone = reclaimed_logs(&manifest, is_known);
            let is_worth_it = gone.len() >= WORTH_LOGS.max(manifest.logs.len() / WORTH_PART);
            if !is_worth_it {
                return Ok(0);
            }
            gone
        };
        let look = ForgettingLook { left: gone.len(), changes: self.part_changes() };
        if reclaiming.forgetting == look {
            return Ok(0);
        }
        self.keep_those_in_parts(&mut gone)?;
        self.keep_those_in_tables(&mut gone)?;
        // One that is damaged is out of use, and may be read at the next start.
        if self.has_other_tables()? {
            gone.clear();
        }
        let forgotten = if gone.is_empty() { 0 } else { self.forget_unheld(&mut gone)? };
        // What is freed is looked for by these.
        reclaiming.settled.retain(|log, _| !gone.contains(log));
        reclaiming.forgetting = ForgettingLook { left: look.left - forgotten, ..look };
        Ok(forgotten)
    }

    /// How often parts were made, replaced or removed.
    fn part_changes(&self) -> u64 {
        let stats = &self.stats;
        let counts = [&stats.indexed, &stats.filed, &stats.removed, &stats.rebuilt];
        counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Takes the logs out of `gone` that a part has a run of, or may have frames of.
    fn keep_those_in_parts(&self, gone: &mut BTreeSet<LogId>) -> io::Result<()> {
        for part in self.parts.all().iter() {
            let index = part.index();
            if let Some(gone_to) = index.header.gone_to {
                *gone = gone.split_off(&LogId(gone_to.0.saturating_add(1)));
            }
            for number in 0..index.header.runs {
                if gone.is_empty() {
                    return Ok(());
                }
                gone.remove(&part.note(index.run_at(number))?.log);
            }
        }
        Ok(())
    }

    /// Takes the logs out of `gone` that a head table names.
    fn keep_those_in_tables(&self, gone: &mut BTreeSet<LogId>) -> io::Result<()> {
        for table in self.tables.read().clone().iter() {
            for number in 0..table.count {
                if gone.is_empty() {
                    return Ok(());
                }
                gone.remove(&table.head_at(number)?.log);
            }
        }
        Ok(())
    }

    /// Whether there are head tables that are not in use.
    fn has_other_tables(&self) -> io::Result<bool> {
        let tables = self.tables.read().clone();
        let names = self.disk.list()?;
        let mut others = names.iter().filter(|name| heads_stretch(name).is_some());
        Ok(others.any(|name| tables.iter().all(|table| table.name() != name)))
    }

    /// Forgets those of `gone` that nobody holds, and leaves them in it; how many.
    fn forget_unheld(&self, gone: &mut BTreeSet<LogId>) -> io::Result<usize> {
        // Whoever loads a log waits for it.
        let mut manifest = self.manifest.lock();
        let mut logs = self.logs.write();
        let is_unheld = |log: &Arc<Log>| Arc::strong_count(log) == 1 && log.is_idle();
        gone.retain(|id| logs.get(id).is_none_or(is_unheld));
        // Those who look for one now find what is there then.
        self.dropped.fetch_add(1, Ordering::AcqRel);
        gone.iter().for_each(|id| drop(logs.remove(id)));
        drop(logs);
        let changes = gone.iter().map(|id| ManifestChange::LogForgotten(*id));
        self.commit(&mut manifest, &ManifestEdit(changes.collect()))?;
        self.stats.forgotten.fetch_add(gone.len() as u64, Ordering::Relaxed);
        Ok(gone.len())
    }
}

/// The logs that are not known any more, and whose space was given back as far as they were given up.
fn reclaimed_logs(manifest: &Manifest, is_known: &dyn Fn(LogId) -> bool) -> BTreeSet<LogId> {
    let is_reclaimed = |horizon: &Horizon| {
        horizon.base == 0
            && horizon.freed.end >= horizon.start
            && horizon.punched_to >= horizon.freed.end
    };
    let gone = manifest.logs.iter().filter(|(id, held)| is_reclaimed(held) && !is_known(**id));
    gone.map(|(id, _)| *id).collect()
}
