//! Indexing what was sealed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::History;
use crate::disk::is_out_of_descriptors;
use crate::filed::index_name;
use crate::index::{Index, IndexBuilder, Links, Placed, RunPlace, Tip};
use crate::journal::Segment;
use crate::log::{Log, LogId, Reached};
use crate::manifest::{Listed, ManifestChange, ManifestEdit};
use crate::part::{Indexed, Layout, Part, part_at};

/// How far logs have come in a segment, and the segment's index.
type Written = (Vec<(Arc<Log>, Reached)>, Arc<Index>);

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
        // It may have been written without a sync. A file that cannot be opened now is not one that cannot be synced.
        segment.settle().inspect_err(|error| {
            if !is_out_of_descriptors(error) {
                self.lose(segment, error);
            }
        })?;
        let name = index_name(segment.name());
        let (reached, index) = self.write_index(segment, end, &name).inspect_err(|_| {
            // What of it was written takes room that may be what is missing.
            let _ = self.disk.remove(&name);
        })?;
        let files = Indexed { data: Arc::clone(&segment.data), index };
        let part = Arc::new(Part::new(Layout::Journal, files));
        {
            let mut manifest = self.manifest.lock();
            let listed = Listed { start: segment.start, end, layout: Layout::Journal };
            let changes = vec![ManifestChange::IndexedTo(end), ManifestChange::Part(listed)];
            self.commit(&mut manifest, &ManifestEdit(changes))?;
            self.parts.change(|parts| parts.push(part));
        }
        for (log, reached) in reached {
            log.set_indexed(end, reached);
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
        let mut reached = Vec::new();
        for log in self.loaded() {
            let (before, entries) = log.unindexed(segment.start, end);
            let Some(last) = entries.last() else { continue };
            let tip = Tip::of(last, last.user_peak);
            let number = builder.begin(log.id, before.tip, self.links_after(log.id, before.head));
            for entry in entries {
                builder.entry(Placed { at: segment.at(entry.position), entry })?;
            }
            let head = Some(RunPlace { part: segment.start, number });
            reached.push((log, Reached { tip, head }));
        }
        let state = self.waiting.lock().sealed.front().map(|sealed| sealed.state.clone());
        builder.finish(state.as_deref())?;
        // An older file of that name must not come back from under the manifest.
        self.disk.sync_names()?;
        let index = self.open_index(name, segment.start)?;
        Ok((reached, index))
    }

    /// The links of a run of `log` that follows the one at `head`. Where earlier ones cannot be read, or
    /// are not there any more, they are reached step by step.
    fn links_after(&self, log: LogId, head: Option<RunPlace>) -> Links {
        let Some(head) = head else { return Links::FIRST };
        let parts = self.parts.all();
        links_after(&parts, log, head)
    }

    pub(super) fn open_index(&self, name: &str, start: u64) -> io::Result<Arc<Index>> {
        let opened = Index::open(&*self.disk, name, start, &self.cache)?;
        let lost =
            || io::Error::other(format!("an index cannot be read that was just written: {name}"));
        Ok(Arc::new(opened.ok_or_else(lost)?))
    }
}

/// The links of a run of `log` that follows the one at `head`.
pub(super) fn links_after(parts: &[Arc<Part>], log: LogId, head: RunPlace) -> Links {
    let links_at = |place: RunPlace| {
        let found = part_at(parts, place.part)?.run_near(log, place.number).ok().flatten();
        found.map(|found| found.run.links)
    };
    let previous = links_at(head).unwrap_or(Links::FIRST);
    Links::after(head, &previous, previous.jump.and_then(links_at).as_ref())
}
