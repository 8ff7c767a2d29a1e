//! Giving up the beginning of logs, and giving back its space.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::History;
use super::thinning::fold_gone;
use crate::disk::Disk;
use crate::filed::{FILED_PREFIX_BYTES, index_name};
use crate::journal::FRAME_BYTES;
use crate::log::{Beginning, FoundRun, Log, LogId, Offset};
use crate::manifest::{Horizon, ManifestChange, ManifestEdit};
use crate::part::{Layout, Part};

/// What a round of freeing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Data files removed.
    pub files: u64,
    /// Bytes given back inside of files that stay.
    pub punched_bytes: u64,
}

/// What is kept of logs once everything in front of `starts` was given up, where that is another than
/// `before`.
fn horizons_after(
    starts: &[(LogId, Offset)],
    logs: &HashMap<LogId, Arc<Log>>,
    before: &HashMap<LogId, Horizon>,
) -> io::Result<BTreeMap<LogId, Horizon>> {
    let mut changed: BTreeMap<LogId, Horizon> = BTreeMap::new();
    for (id, start) in starts {
        let log = &logs[id];
        let mut horizon = *changed.get(id).unwrap_or(&before[id]);
        let start = (*start).min(log.end());
        if start <= horizon.start {
            continue;
        }
        let lost_to = match log.entry_at(Offset(start.0 - 1))? {
            Some(last_lost) if last_lost.base < start => last_lost.stamp,
            // What held it was compacted away.
            _ => log.sealed_now().tip_before_offset(start)?.stamp,
        };
        horizon.start = start;
        horizon.lost_to = horizon.lost_to.max(lost_to);
        let freed = log.sealed_now().tip_of_whole(|run| run.tip.end <= start)?;
        if freed.end > horizon.freed.end {
            horizon.freed = freed;
        }
        // A base has nothing behind what is freed.
        if horizon.base > 0 && start >= log.base().map_or(Offset(0), |base| base.run.tip.end) {
            horizon.base = 0;
        }
        changed.insert(*id, horizon);
    }
    Ok(changed)
}

impl History {
    /// Gives up everything in front of the offsets named. Its space is given back two rounds of
    /// [`History::free`] later.
    ///
    /// # Errors
    /// The disk fails; then nothing has changed.
    pub(crate) fn give_up(&self, starts: &[(LogId, Offset)]) -> io::Result<()> {
        let logs = self.logs_of(starts.iter().map(|(id, _)| *id))?;
        let (mut manifest, changed) = loop {
            // Indexes are read before: whoever loads a log waits for the manifest.
            let before: HashMap<LogId, Horizon> =
                logs.iter().map(|(id, log)| (*id, log.horizon())).collect();
            let changed = horizons_after(starts, &logs, &before)?;
            if changed.is_empty() {
                return Ok(());
            }
            let manifest = self.manifest.lock();
            // Compaction may have been here meanwhile.
            if logs.iter().all(|(id, log)| log.horizon() == before[id]) {
                break (manifest, changed);
            }
        };
        self.commit(&mut manifest, &ManifestEdit::of_logs(&changed))?;
        let mut unnamed = Vec::new();
        for (id, horizon) in changed {
            let log = &logs[&id];
            let base = log.base().filter(|_| horizon.base > 0);
            if let (Some(gone), None) = (log.base(), &base) {
                unnamed.push(gone.files.data.name.clone());
            }
            log.set_beginning(Beginning { horizon, base });
        }
        drop(manifest);
        self.forget(unnamed);
        Ok(())
    }

    /// Some logs, in memory for as long as this is held: who changes what the manifest says of a log tells
    /// it, and does not look for it while the manifest is held.
    fn logs_of(&self, ids: impl Iterator<Item = LogId>) -> io::Result<HashMap<LogId, Arc<Log>>> {
        ids.map(|id| Ok((id, self.log(id)?))).collect()
    }

    /// A log, for work that is done again later.
    fn readable(&self, id: LogId) -> Option<Arc<Log>> {
        let log = self.log(id);
        log.inspect_err(|error| tracing::error!(log = id.0, %error, "a log is not freed")).ok()
    }

    /// Has files removed in the round after the next.
    pub(super) fn forget(&self, data_files: impl IntoIterator<Item = String>) {
        self.unnamed.lock().extend(data_files);
    }

    /// Removes a data file that was not finished, with its index: it takes room that may be what is
    /// missing. What is left is removed at the next start.
    pub(super) fn discard(&self, data_file: &str) {
        for name in [&index_name(data_file), data_file] {
            let _ = remove_if_there(&*self.disk, name);
        }
    }

    /// Gives back the space of what was given up before the last call: so that whoever began to read
    /// it before, has read it.
    ///
    /// # Errors
    /// The disk fails; what was not freed is tried again in the next round.
    pub(crate) fn free(&self) -> io::Result<Freed> {
        let mut reclaiming = self.reclaiming.lock();
        let mut freed = Freed::default();
        self.settle_manifest()?;
        self.remove_files(&mut reclaiming.unnamed, &mut freed)?;
        let mut due = self.due(&reclaiming.settled);
        if !due.is_empty() {
            let mut gone = self.free_runs(&mut due, &mut freed)?;
            let removed = self.remove_files(&mut gone, &mut freed);
            reclaiming.unnamed.append(&mut gone);
            removed?;
        }
        // For the next round.
        self.advance_freed()?;
        let manifest = self.manifest.lock();
        reclaiming.settled = manifest.logs.iter().map(|(id, h)| (*id, h.freed.end)).collect();
        drop(manifest);
        reclaiming.unnamed.extend(std::mem::take(&mut *self.unnamed.lock()));
        Ok(freed)
    }

    /// What was given up while it was in the open segment may have been sealed since: then parts need
    /// not be looked into for it any more.
    fn advance_freed(&self) -> io::Result<()> {
        let behind: Vec<LogId> = {
            let manifest = self.manifest.lock();
            let is_behind = |horizon: &Horizon| horizon.start > horizon.freed.end;
            manifest.logs.iter().filter(|(_, held)| is_behind(held)).map(|(id, _)| *id).collect()
        };
        let readable = behind.into_iter().filter_map(|id| Some((id, self.readable(id)?)));
        let logs: HashMap<LogId, Arc<Log>> = readable.collect();
        let mut manifest = self.manifest.lock();
        let mut changed: BTreeMap<LogId, Horizon> = BTreeMap::new();
        for (id, log) in &logs {
            let horizon = manifest.horizon(*id);
            let start = horizon.start;
            let freed = log.sealed_now().tip_of_whole(|run| run.tip.end <= start)?;
            if freed.end > horizon.freed.end {
                changed.insert(*id, Horizon { freed, ..horizon });
            }
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.commit(&mut manifest, &ManifestEdit::of_logs(&changed))?;
        for (id, horizon) in changed {
            let log = &logs[&id];
            log.set_beginning(Beginning { horizon, base: log.base() });
        }
        Ok(())
    }

    /// Up to where each log can be freed that has something to free.
    fn due(&self, settled: &BTreeMap<LogId, Offset>) -> BTreeMap<LogId, Offset> {
        let manifest = self.manifest.lock();
        settled
            .iter()
            .filter(|(id, to)| manifest.horizon(**id).punched_to < **to)
            .map(|(id, to)| (*id, *to))
            .collect()
    }

    /// Frees what is due, as far as it is proved; the data files that are not named any more.
    fn free_runs(
        &self,
        due: &mut BTreeMap<LogId, Offset>,
        freed: &mut Freed,
    ) -> io::Result<Vec<String>> {
        let mut touched: HashSet<u64> = HashSet::new();
        let parts = self.parts.all();
        for (id, to) in due.iter_mut() {
            // One that cannot be read keeps no other from being freed.
            let Some(log) = self.readable(*id) else {
                *to = Offset(0);
                continue;
            };
            for found in log.sealed_now().runs_in(log.horizon().punched_to..*to)? {
                let FoundRun { part, run, .. } = &found;
                if !self.is_proved(part) {
                    // Without its frames there would be no proof of it, and the chain would end here.
                    *to = run.base;
                    break;
                }
                touched.insert(part.start);
                part.set_settled(false);
                freed.punched_bytes += punch(&found)?;
            }
        }
        let readable = due.keys().filter_map(|id| Some((*id, self.readable(*id)?)));
        let logs: HashMap<LogId, Arc<Log>> = readable.collect();
        due.retain(|id, to| logs.get(id).is_some_and(|log| *to > log.horizon().punched_to));
        if due.is_empty() {
            return Ok(Vec::new());
        }
        // The last part has what the stage remembers, and stays. Once it was filed it is empty, and goes
        // when there is another behind it.
        let mut gone = Vec::new();
        for part in parts.iter().rev().skip(1) {
            let may_go = touched.contains(&part.start) || part.index().header.entries == 0;
            if may_go && self.is_proved(part) && !self.is_alive(part, due)? {
                gone.push(Arc::clone(part));
            }
        }
        self.stats.punched_bytes.fetch_add(freed.punched_bytes, Ordering::Relaxed);
        {
            let mut manifest = self.manifest.lock();
            let punched = |(id, to): (&LogId, &Offset)| {
                let horizon = manifest.horizon(*id);
                let punched_to = horizon.punched_to.max(*to);
                ManifestChange::Log(*id, Horizon { punched_to, ..horizon })
            };
            let removed = gone.iter().map(|part| ManifestChange::PartRemoved(part.start));
            let edit = ManifestEdit(due.iter().map(punched).chain(removed).collect());
            self.commit(&mut manifest, &edit)?;
            self.parts.change(|parts| {
                parts.retain(|part| !gone.iter().any(|gone| gone.start == part.start))
            });
            for (id, to) in due.iter() {
                let log = &logs[id];
                let horizon = log.horizon();
                let punched_to = horizon.punched_to.max(*to);
                let horizon = Horizon { punched_to, ..horizon };
                log.set_beginning(Beginning { horizon, base: log.base() });
            }
        }
        // Their proofs stay, for the chain runs through them, but not their leaves.
        if !gone.is_empty() {
            let (parts, proved_to) = (self.parts.all(), self.proved_to.load(Ordering::Acquire));
            if let Err(error) = fold_gone(&*self.disk, &parts, proved_to, &mut || Ok(())) {
                self.proofs_are_due();
                tracing::warn!(%error, "proofs of what is gone are not cut; it is tried again");
            }
        }
        Ok(gone.iter().map(|part| part.data().name.clone()).collect())
    }

    /// Whether anything of a part is still looked for.
    fn is_alive(&self, part: &Part, due: &BTreeMap<LogId, Offset>) -> io::Result<bool> {
        let index = part.index();
        for number in 0..index.header.runs {
            let run = part.note(index.run_at(number))?;
            let freed_to = due.get(&run.log).copied().unwrap_or(Offset(0));
            let punched_to = self.manifest.lock().horizon(run.log).punched_to;
            if run.count > 0 && run.tip.end > freed_to.max(punched_to) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Removes data files with their indexes; takes those from the list that are gone.
    fn remove_files(&self, names: &mut Vec<String>, freed: &mut Freed) -> io::Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        while let Some(name) = names.last() {
            for name in [&index_name(name), name] {
                remove_if_there(&*self.disk, name)?;
            }
            names.pop();
            freed.files += 1;
            self.stats.removed.fetch_add(1, Ordering::Relaxed);
        }
        self.disk.sync_names()
    }
}

fn remove_if_there(disk: &dyn Disk, name: &str) -> io::Result<()> {
    match disk.remove(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Gives back the space of a run, where it stands in one piece.
fn punch(FoundRun { part, index, run }: &FoundRun) -> io::Result<u64> {
    const BLOCK: u64 = crate::disk::BLOCK_BYTES as u64;
    if part.layout == Layout::Journal || run.count == 0 {
        return Ok(0);
    }
    let entries = run.entries();
    let first = part.note(index.entry(entries.start))?;
    let last = part.note(index.entry(entries.end - 1))?;
    let from = first.at - (FILED_PREFIX_BYTES + FRAME_BYTES) as u64;
    let to = last.at + u64::from(last.entry.length);
    let range = from.next_multiple_of(BLOCK)..to / BLOCK * BLOCK;
    if range.is_empty() {
        return Ok(0);
    }
    part.data().file().punch(range.clone())?;
    Ok(range.end - range.start)
}
