//! Indexing what was sealed, and making an index anew.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hlc::Hlc;

use super::History;
use super::opening::read_header;
use super::replacing::rebuild_base;
use crate::data_file::DataFile;
use crate::disk::Disk;
use crate::filed::{FiledWalk, index_name};
use crate::index::{Index, IndexBuilder, Placed, Run, Tip};
use crate::journal::{FRAME_BYTES, Frame, RecoverError, Segment, Visit, scan_sealed};
use crate::log::{Base, Beginning, Entry, Log, LogId, Offset, entry_of};
use crate::manifest::{Listed, Manifest};
use crate::part::{Indexed, Layout, Part};

/// How far each log has come in a segment, and the segment's index.
type Written = (Vec<(Arc<Log>, Tip)>, Arc<Index>);

impl History {
    /// Indexes the segment that was sealed first; whether there was one.
    ///
    /// # Errors
    /// The disk fails. The segment stays first, and nothing else has changed.
    pub(crate) fn index_next(&self) -> io::Result<bool> {
        let (segment, end) = match self.waiting.lock().sealed.front() {
            Some(sealed) => (Arc::clone(&sealed.segment), sealed.end),
            None => return Ok(false),
        };
        let indexed = self.index_segment(&segment, end);
        let mut waiting = self.waiting.lock();
        waiting.failed = indexed.as_ref().err().map(|error| error.to_string().into());
        if indexed.is_ok() {
            waiting.sealed.pop_front();
        }
        drop(waiting);
        self.changed.notify_all();
        indexed.map(|()| true)
    }

    fn index_segment(&self, segment: &Arc<Segment>, end: u64) -> io::Result<()> {
        // It may have been written without a sync.
        segment.sync().inspect_err(|error| self.lose(segment, error))?;
        let name = index_name(segment.name());
        let (tips, index) = self.write_index(segment, end, &name).inspect_err(|_| {
            // What of it was written takes room that may be what is missing.
            let _ = self.disk.remove(&name);
        })?;
        let files = Indexed { data: Arc::clone(&segment.data), index };
        let part = Arc::new(Part::new(Layout::Journal, files));
        {
            let mut manifest = self.manifest.lock();
            let mut next = manifest.clone();
            next.parts.push(Listed { start: segment.start, end, layout: Layout::Journal });
            next.indexed_to = end;
            self.commit(&mut manifest, next)?;
            self.parts.change(|parts| parts.push(part));
        }
        for (log, tip) in tips {
            log.set_indexed(end, tip);
        }
        self.segments.release(end);
        self.stats.indexed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Says that what is in a segment of the journal may be lost: no write may follow.
    fn lose(&self, segment: &Segment, error: &io::Error) {
        let why = format!("sync {}: {error}", segment.name());
        let _ = self.lost.set(why.into());
    }

    fn write_index(&self, segment: &Arc<Segment>, end: u64, name: &str) -> io::Result<Written> {
        let mut builder = IndexBuilder::create(&*self.disk, name, segment.start, end)?;
        let mut tips = Vec::new();
        for log in self.logs() {
            let (before, entries) = log.unindexed(segment.start, end);
            let tip = entries.last().map_or(before, |last| Tip::of(last, last.user_peak));
            if tip == Tip::NONE {
                continue;
            }
            builder.begin(log.id, before);
            for entry in entries {
                builder.entry(Placed { at: segment.at(entry.position), entry })?;
            }
            tips.push((log, tip));
        }
        let state = self.waiting.lock().sealed.front().map(|sealed| sealed.state.clone());
        builder.finish(state.as_deref())?;
        // An older file of that name must not come back from under the manifest.
        self.disk.sync_names()?;
        let index = self.open_index(name, segment.start)?;
        Ok((tips, index))
    }

    pub(super) fn open_index(&self, name: &str, start: u64) -> io::Result<Arc<Index>> {
        let opened = Index::open(&*self.disk, name, start, &self.cache)?;
        let lost =
            || io::Error::other(format!("an index cannot be read that was just written: {name}"));
        Ok(Arc::new(opened.ok_or_else(lost)?))
    }

    /// Makes the indexes anew that were found damaged; how many.
    ///
    /// # Errors
    /// The disk fails, or the data itself is damaged. The others were made anew all the same.
    pub(crate) fn rebuild_suspects(&self) -> io::Result<usize> {
        // Whoever gives back space may hold it for long, and indexing must not wait for that.
        let Some(_reclaiming) = self.reclaiming.try_lock() else { return Ok(0) };
        let parts = self.parts.all();
        let (mut rebuilt, mut failed) = (0, Ok(0));
        let suspects = (0..parts.len()).filter(|place| parts[*place].is_suspect());
        let mended = suspects.map(|place| self.mend(&parts, place));
        let with_base: Vec<LogId> = {
            let manifest = self.manifest.lock();
            manifest.logs.iter().filter(|(_, held)| held.base > 0).map(|(log, _)| *log).collect()
        };
        let bases = with_base.into_iter().map(|log| self.mend_base(&self.log(log)));
        for result in mended.chain(bases) {
            match result {
                Ok(count) => rebuilt += count,
                Err(error) => failed = Err(error),
            }
        }
        self.stats.rebuilt.fetch_add(rebuilt as u64, Ordering::Relaxed);
        failed.map(|_| rebuilt)
    }

    /// Makes the index of a part anew, and those before it that are damaged too: it is made from the
    /// one before.
    fn mend(&self, parts: &[Arc<Part>], place: usize) -> io::Result<usize> {
        let part = &parts[place];
        let before = place.checked_sub(1).map(|before| &parts[before]);
        let mut rebuilt = 1;
        if let Some(damaged) = before
            && !damaged.index().check(&*self.disk)?.is_empty()
        {
            rebuilt += self.mend(parts, place - 1)?;
        }
        let listed = Listed { start: part.start, end: part.end, layout: part.layout };
        let manifest = self.manifest.lock().clone();
        let name = index_name(&part.data().name);
        let state = part.index().state().unwrap_or(None);
        let before = before.map(|before| before.index());
        rebuild(&*self.disk, &manifest, listed, part.data(), before.as_deref(), state.as_deref())?;
        let index = self.open_index(&anew(&name), part.start)?;
        // A damaged one is no witness, and is compared with this one when it is made anew.
        if let Some(next) = parts.get(place + 1)
            && next.index().check(&*self.disk)?.is_empty()
        {
            follows(&index, &next.index(), &manifest, part.data())?;
        }
        promote(&*self.disk, &name)?;
        part.set_index(self.open_index(&name, part.start)?);
        Ok(rebuilt)
    }

    /// Makes the index of a log's base anew, if it is damaged.
    fn mend_base(&self, log: &Log) -> io::Result<usize> {
        let Some(base) = log.base().filter(|base| base.is_suspect()) else { return Ok(0) };
        let data = &base.files.data;
        let header = read_header(data.file())?.ok_or_else(|| data.damaged(0, "a header"))?;
        rebuild_base(&*self.disk, log.id, &header, data, log.horizon().freed.end)?;
        let mended = self.open_new_base(log.id, &data.name)?;
        let _manifest = self.manifest.lock();
        let is_its = |held: &Arc<Base>| Arc::ptr_eq(held, &base);
        if log.base().as_ref().is_some_and(is_its) {
            log.set_beginning(Beginning { horizon: log.horizon(), base: Some(mended) });
        }
        Ok(1)
    }
}

/// Whether the runs of an index go on where those of an index that was made anew end, or behind what was
/// given up. What a rotten data file lost of the end of a run, nothing else would tell.
pub(super) fn follows(
    rebuilt: &Index,
    next: &Index,
    manifest: &Manifest,
    data: &DataFile,
) -> io::Result<()> {
    for number in 0..next.header.runs {
        let run = next.run_at(number)?;
        let end = rebuilt.run(run.log)?.map_or(Offset(0), |before| before.tip.end);
        let freed = manifest.horizon(run.log).freed.end;
        // What was freed is not looked for, and not in an index that was made anew.
        if run.base >= freed && run.base != end.max(freed) {
            return Err(data.damaged(data.file().length()?, "the last frame of a log"));
        }
    }
    Ok(())
}

/// The name of an index that is made anew, until it was compared with what must follow it: a start
/// must not find one that was refused.
pub(super) fn anew(index: &str) -> String {
    format!("{index}.new")
}

/// Puts an index that was made anew in place of the one before.
pub(super) fn promote(disk: &dyn Disk, index: &str) -> io::Result<()> {
    disk.rename(&anew(index), index)?;
    disk.sync_names()
}

/// Makes the index of a part anew, from its data file, the index of the part before, and the manifest;
/// under the name [`anew`], for it has to be compared with the part behind it ([`follows`]).
pub(super) fn rebuild(
    disk: &dyn Disk,
    manifest: &Manifest,
    listed: Listed,
    data: &Arc<DataFile>,
    before: Option<&Index>,
    state: Option<&[u8]>,
) -> io::Result<()> {
    tracing::warn!(file = data.name, "an index is lost or damaged, and is made anew");
    let mut found: BTreeMap<LogId, Vec<Placed>> = BTreeMap::new();
    match listed.layout {
        Layout::Journal => entries_of_journal(listed, data, &mut found)?,
        Layout::Filed { .. } => entries_of_filed(data, manifest, &mut found)?,
    }
    let mut tips: BTreeMap<LogId, Tip> = BTreeMap::new();
    if let Some(before) = before {
        for number in 0..before.header.runs {
            let Run { log, tip, .. } = before.run_at(number)?;
            tips.insert(log, tip);
        }
    }
    let listed_before: BTreeSet<LogId> = tips.keys().copied().collect();
    // A log may have gone on in a stretch of which nothing is kept: before this one, or in it.
    let last = found.values().flatten().map(|placed| placed.entry.stamp).max().unwrap_or(Hlc::ZERO);
    for (log, horizon) in &manifest.logs {
        let tip = tips.entry(*log).or_insert(Tip::NONE);
        let first = found.get(log).and_then(|entries| entries.first());
        let is_before = match first {
            Some(first) => first.entry.base >= horizon.freed.end,
            // Stamps rise over all logs.
            None => horizon.freed.stamp <= last,
        };
        if horizon.freed.end > tip.end && is_before {
            *tip = horizon.freed;
        }
    }
    let name = anew(&index_name(&data.name));
    let mut builder = IndexBuilder::create(disk, &name, listed.start, listed.end)?;
    for log in tips.keys().chain(found.keys()).copied().collect::<BTreeSet<_>>() {
        let horizon = manifest.horizon(log);
        let mut tip = tips.get(&log).copied().unwrap_or(Tip::NONE);
        let is_here = found.contains_key(&log);
        let mut entries = found.remove(&log).unwrap_or_default();
        // It was made later.
        if tip == Tip::NONE && !is_here && !listed_before.contains(&log) {
            continue;
        }
        // What is left of a run whose space was given back, or that something stands in for.
        entries.retain(|placed| placed.entry.end() > horizon.freed.end);
        builder.begin(log, tip);
        for mut placed in entries {
            let entry = &mut placed.entry;
            if entry.base != tip.end {
                return Err(data.damaged(placed.at, "a frame in front of this one"));
            }
            entry.bytes = tip.bytes + u64::from(entry.length);
            let chain = Entry::link(tip.chain, entry);
            // Bytes of a payload beside a hole may look like a frame, and were made to: what they
            // cannot know is the chain of a log.
            if listed.layout != Layout::Journal && entry.chain != chain {
                return Err(data.damaged(placed.at, "the chain of a frame"));
            }
            entry.chain = chain;
            tip = Tip::of(entry, tip.user_peak.max(entry.user_max));
            builder.entry(placed)?;
        }
    }
    // Parts are told apart by their stamps, also when nothing is left in one.
    if let (Some(before), true) = (before, builder.is_empty()) {
        builder.widen(before.header.last_stamp, before.header.last_stamp);
    }
    builder.finish(state)
}

fn entries_of_filed(
    data: &DataFile,
    manifest: &Manifest,
    found: &mut BTreeMap<LogId, Vec<Placed>>,
) -> io::Result<()> {
    let damaged = |at: Option<u64>| at.map_or(Ok(()), |at| Err(data.damaged(at, "a frame")));
    let mut walk = FiledWalk::new(data)?;
    let mut before_is_freed = false;
    while let Some(filed) = walk.next()? {
        let mut entry = entry_of(&filed.frame, filed.position + FRAME_BYTES as u64);
        entry.chain = filed.chain;
        // Of a frame that was given up the header may be left over: what follows it is what is left of a
        // hole, which may be too short to be told for one.
        damaged(walk.damaged.take().filter(|_| !before_is_freed))?;
        before_is_freed = entry.end() <= manifest.horizon(filed.frame.log).freed.end;
        found.entry(filed.frame.log).or_default().push(Placed { entry, at: filed.at });
    }
    // It may have been the last of a run: nothing behind it would tell.
    damaged(walk.damaged.take().filter(|_| !before_is_freed))
}

fn entries_of_journal(
    listed: Listed,
    data: &Arc<DataFile>,
    found: &mut BTreeMap<LogId, Vec<Placed>>,
) -> io::Result<()> {
    struct Collect<'a>(&'a mut BTreeMap<LogId, Vec<Placed>>);
    impl Visit for Collect<'_> {
        fn frame(
            &mut self,
            segment: &Arc<Segment>,
            position: u64,
            frame: &Frame,
            _start: &[u8],
        ) -> Result<(), RecoverError> {
            let entry = entry_of(frame, position + FRAME_BYTES as u64);
            let at = segment.at(entry.position);
            self.0.entry(frame.log).or_default().push(Placed { entry, at });
            Ok(())
        }
    }
    let segment = Arc::new(Segment::new(listed.start, Arc::clone(data)));
    scan_sealed(&segment, listed.end, &mut Collect(found)).map_err(io::Error::other)
}
