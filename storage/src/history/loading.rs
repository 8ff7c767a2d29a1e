//! Logs come into memory when somebody asks for them, and leave it when nobody uses them: what they take
//! there does not grow with how many there ever were.
//!
//! What holds true of it: a log that is not in memory has all its entries in parts. So whoever looks into
//! the parts, newest first, finds how far it had come; head tables save looking into each.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::History;
use crate::disk::Disk;
use crate::index::{
    BlockCache, Head, HeadSource, HeadTable, RunPlace, heads_name, heads_stretch, write_heads,
};
use crate::log::{Beginning, Log, LogId, Reached};
use crate::manifest::{Horizon, Manifest};
use crate::part::{Part, part_at};

/// A table is merged with those behind it once it has less than so many times as many heads as they.
const MERGE_RATIO: u64 = 4;

/// What is known of a log before the manifest is asked.
enum Sought {
    Nothing,
    Found(Reached),
    /// It has a head, whose run is not there: it must have been given up.
    Gone(Head),
}

impl History {
    /// The log `id`; empty if nothing was ever appended to it. An index that is found damaged on the way
    /// is made anew, if nobody gives back space just now.
    ///
    /// # Errors
    /// An index cannot be read.
    pub(crate) fn log(&self, id: LogId) -> io::Result<Arc<Log>> {
        match self.load(id) {
            Err(error) if is_rotten(&error) => {
                // Others that cannot be made anew are no matter of this log.
                let _ = self.rebuild_suspects();
                self.load(id)
            }
            loaded => loaded,
        }
    }

    fn load(&self, id: LogId) -> io::Result<Arc<Log>> {
        loop {
            if let Some(log) = self.logs.read().get(&id) {
                return Ok(Arc::clone(log));
            }
            let dropped = self.dropped.load(Ordering::Acquire);
            let sought = self.seek_log(id)?;
            // Whoever gives up holds the manifest until each log that is in memory knows of it.
            let manifest = self.manifest.lock();
            let mut logs = self.logs.write();
            // What was found is old if the log was here meanwhile, and went.
            if logs.contains_key(&id) || self.dropped.load(Ordering::Acquire) != dropped {
                continue;
            }
            let horizon = manifest.horizon(id);
            let reached = settle(id, sought, &horizon)?;
            // One with a base stays in memory.
            let base = self.unloaded_bases.lock().remove(&id);
            assert!(base.is_some() == (horizon.base > 0), "a log has its base: {id:?}");
            let log = self.new_log(id, reached, Beginning { horizon, base });
            logs.insert(id, Arc::clone(&log));
            return Ok(log);
        }
    }

    fn seek_log(&self, id: LogId) -> io::Result<Sought> {
        // Tables first: all that they cover is in the list of parts that is read behind them.
        let tables = self.tables.read().clone();
        let covered = tables.last().map_or(0, |table| table.stretch.end);
        let parts = self.parts.all();
        for part in parts.iter().rev().take_while(|part| part.end > covered) {
            if let Some((number, run)) = part.find_run(id)? {
                let head = Some(RunPlace { part: part.start, number });
                return Ok(Sought::Found(Reached { tip: run.tip, head }));
            }
        }
        for table in tables.iter().rev() {
            match table.head(id) {
                // The indexes say the same, wherever the disk fails.
                Err(error) => {
                    self.drop_table(table, &error);
                    return self.seek_log(id);
                }
                Ok(Some(head)) => return run_of(&parts, head),
                Ok(None) => {}
            }
        }
        Ok(Sought::Nothing)
    }

    /// Goes on without a damaged table, and those behind it: a later one is made of what they covered.
    fn drop_table(&self, damaged: &Arc<HeadTable>, error: &io::Error) {
        tracing::warn!(%error, "a head table cannot be read, and is made anew");
        let mut tables = self.tables.write();
        let place = tables.iter().position(|table| Arc::ptr_eq(table, damaged));
        if let Some(place) = place {
            *tables = tables[..place].into();
        }
    }

    /// Writes a head table if many parts have none.
    pub(super) fn gather_heads(&self) -> io::Result<()> {
        let tables = self.tables.read().clone();
        let covered = tables.last().map_or(0, |table| table.stretch.end);
        // One that was merged over the end of the tables is among those without.
        let first_of = |parts: &[Arc<Part>]| parts.partition_point(|part| part.end <= covered);
        let parts = self.parts.all();
        if parts.len() - first_of(&parts) <= self.uncovered_parts_max {
            return Ok(());
        }
        // Of a log that is forgotten from here on, the parts that there are then have nothing.
        let manifest = self.manifest.lock().clone();
        let parts = self.parts.all();
        let uncovered = &parts[first_of(&parts)..];
        let Some(last) = uncovered.last() else { return Ok(()) };
        let mut heads: u64 = uncovered.iter().map(|part| part.index().header.runs).sum();
        let mut kept = tables.len();
        while kept > 0 && tables[kept - 1].count < heads.saturating_mul(MERGE_RATIO) {
            kept -= 1;
            heads += tables[kept].count;
        }
        let (kept, merged) = tables.split_at(kept);
        let stretch = kept.last().map_or(0, |table| table.stretch.end)..last.end;
        let sources: Vec<HeadSource> = merged
            .iter()
            .map(|table| HeadSource::Table(Arc::clone(table)))
            .chain(uncovered.iter().map(HeadSource::of))
            .collect();
        let is_kept = |head: &Head| head.end > manifest.horizon(head.log).freed.end;
        let written = write_heads(&*self.disk, stretch.clone(), &sources, is_kept);
        if let Err(error) = written {
            // It takes room that may be what is missing.
            let _ = self.disk.remove(&heads_name(&stretch));
            let is_whole =
                |table: &HeadTable| table.damaged_blocks().is_ok_and(|bad| bad.is_empty());
            return match merged.iter().find(|table| !is_whole(table)) {
                Some(damaged) => {
                    self.drop_table(damaged, &error);
                    self.gather_heads()
                }
                None => Err(error),
            };
        }
        self.disk.sync_names()?;
        let table = HeadTable::open(&*self.disk, stretch, &self.cache)?
            .ok_or_else(|| io::Error::other("a head table cannot be read that was just written"))?;
        *self.tables.write() = kept.iter().cloned().chain([Arc::new(table)]).collect();
        for table in merged {
            // Whoever reads it has it open. One that stays is removed at the next start.
            let _ = self.disk.remove(table.name());
        }
        Ok(())
    }

    /// Drops logs that nobody uses, down to half of how many may be in memory, if there are more.
    pub(super) fn drop_idle(&self) {
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
        self.dropped.fetch_add(1, Ordering::AcqRel);
        // Nobody can take one from the map meanwhile.
        logs.retain(|_, log| {
            let goes = surplus > 0 && is_idle(log);
            surplus -= usize::from(goes);
            !goes
        });
        let count = logs.len();
        if logs.capacity() > 4 * count.max(self.idle_logs_max) {
            logs.shrink_to(2 * count);
        }
    }
}

/// Whether something may be made anew that is damaged.
fn is_rotten(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// The run of a head.
fn run_of(parts: &[Arc<Part>], head: Head) -> io::Result<Sought> {
    let run = match part_at(parts, head.part) {
        Some(part) => part.run_near(head.log, head.number)?,
        None => None,
    };
    let tip = run.map(|found| found.run.tip).filter(|tip| tip.end == head.end);
    Ok(tip
        .map_or(Sought::Gone(head), |tip| Sought::Found(Reached { tip, head: Some(head.place()) })))
}

/// How far a log had come, by what was found and what was given up.
fn settle(id: LogId, sought: Sought, horizon: &Horizon) -> io::Result<Reached> {
    match sought {
        Sought::Found(reached) if reached.tip.end > horizon.freed.end => Ok(reached),
        Sought::Found(reached) => Ok(Reached { tip: horizon.freed, ..reached }),
        Sought::Gone(head) if head.end > horizon.freed.end => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the end of a log is lost: a head table knows of it, and the index of its part does not. `freezeframe check` names the file that is damaged: restore it from a backup. log={}, part={}, end={}",
                id.0, head.part, head.end.0
            ),
        )),
        Sought::Nothing | Sought::Gone(_) => Ok(Reached { tip: horizon.freed, head: None }),
    }
}

/// The head tables that are there, as far as they follow one another from the beginning.
pub(crate) fn head_tables(
    disk: &dyn Disk,
    manifest: &Manifest,
    cache: &Arc<BlockCache>,
) -> io::Result<Vec<Arc<HeadTable>>> {
    let names = disk.list()?;
    let mut stretches: Vec<_> = names.iter().filter_map(|name| heads_stretch(name)).collect();
    // Of those that begin at one place, the longest was made of the others.
    stretches.sort_by_key(|stretch| (stretch.start, std::cmp::Reverse(stretch.end)));
    let (mut tables, mut covered) = (Vec::new(), 0);
    for stretch in stretches {
        if stretch.start == covered
            && stretch.end <= manifest.indexed_to
            && let Some(table) = HeadTable::open(disk, stretch, cache)?
        {
            covered = table.stretch.end;
            tables.push(Arc::new(table));
        }
    }
    Ok(tables)
}
