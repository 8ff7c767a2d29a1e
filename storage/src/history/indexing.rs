//! Indexing rolled segments.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SealedHistory;
use crate::entry::LogId;
use crate::error::StorageError;
use crate::index::{IndexBuilder, IndexEntry, LogTip, RunLinks, RunLocation, SegmentIndex};
use crate::journal::Segment;
use crate::log::{IndexedTip, Log};
use crate::manifest::{ManifestChange, ManifestEdit, ManifestSegment};
use crate::sealed_segment::{SealedSegment, SegmentFiles, SegmentLayout, segment_at};
use crate::sorted_segment::index_name;
use crate::storage_file::remove_file;

/// The tips of logs at the end of a segment, and the segment's index.
type WrittenIndex = (Vec<(Arc<Log>, IndexedTip)>, Arc<SegmentIndex>);

impl SealedHistory {
    /// Indexes the oldest segment that is not indexed yet; returns whether there was one.
    ///
    /// # Errors
    /// The disk fails. The segment stays in the queue, and nothing else has changed.
    pub(crate) fn index_next(&self) -> Result<bool, StorageError> {
        let (segment, end) = match self.indexing_queue.lock().segments.front() {
            Some(sealed) => (Arc::clone(&sealed.segment), sealed.end),
            None => return Ok(false),
        };
        let indexed = self.index_segment(&segment, end);
        let mut waiting = self.indexing_queue.lock();
        waiting.last_failure = indexed.as_ref().err().cloned();
        if indexed.is_ok() {
            waiting.segments.pop_front();
        }
        drop(waiting);
        self.changed.notify_all();
        indexed.map(|()| true)
    }

    fn index_segment(&self, segment: &Arc<Segment>, end: u64) -> Result<(), StorageError> {
        // Its writes may not be synced yet. Running out of descriptors is no failure of the sync.
        segment.sync_sealed().inspect_err(|error| {
            if !error.is_out_of_descriptors() {
                self.record_journal_loss(error);
            }
        })?;
        let name = index_name(segment.name());
        let (reached, index) = self.write_index(segment, end, &name).inspect_err(|_| {
            // A partial file takes space that may be what is missing.
            let _ = remove_file(&*self.disk, &name);
        })?;
        let files = SegmentFiles { data: Arc::clone(&segment.data), index };
        let sealed = Arc::new(SealedSegment::new(SegmentLayout::Journal, files));
        {
            let mut manifest = self.manifest.lock();
            let listed =
                ManifestSegment { start: segment.start, end, layout: SegmentLayout::Journal };
            let changes = vec![ManifestChange::IndexedTo(end), ManifestChange::Segment(listed)];
            self.commit_manifest(&mut manifest, &ManifestEdit(changes))?;
            self.sealed_segments.change(|segments| segments.push(sealed));
        }
        for (log, reached) in reached {
            log.set_indexed(end, reached);
        }
        self.segments.remove_below(end);
        self.stats.indexed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Records that entries of the journal may be lost: no write may follow.
    fn record_journal_loss(&self, error: &StorageError) {
        let reason = error.clone().during("sync journal").to_string();
        let _ = self.journal_loss.set(reason.into());
        self.report_stop();
    }

    /// Reports that the store has stopped.
    pub(crate) fn report_stop(&self) {
        if let Some(on_stop) = self.on_stop.get() {
            on_stop();
        }
    }

    fn write_index(
        &self,
        segment: &Arc<Segment>,
        end: u64,
        name: &str,
    ) -> Result<WrittenIndex, StorageError> {
        let mut builder = IndexBuilder::create(&*self.disk, name, segment.start, end)?;
        let mut reached = Vec::new();
        for log in self.loaded_logs() {
            let (before, entries) = log.unindexed_entries(segment.start, end);
            let Some(last) = entries.last() else { continue };
            let tip = LogTip::of(last, last.user_time_max);
            let number =
                builder.begin_run(log.id, before.tip, self.links_after(log.id, before.latest_run));
            for entry in entries {
                builder.add_entry(IndexEntry { at: segment.at(entry.position), entry })?;
            }
            let head = Some(RunLocation { segment: segment.start, number });
            reached.push((log, IndexedTip { tip, latest_run: head }));
        }
        let state =
            self.indexing_queue.lock().segments.front().map(|sealed| sealed.stage_state.clone());
        builder.finish(state.as_deref())?;
        // An older file of that name must not reappear under the manifest.
        self.disk.sync_directory()?;
        let index = self.open_index(name, segment.start)?;
        Ok((reached, index))
    }

    /// The links of a run of `log` that follows the one at `head`. If earlier runs cannot be read,
    /// or are gone, lookups reach them step by step.
    fn links_after(&self, log: LogId, head: Option<RunLocation>) -> RunLinks {
        let Some(head) = head else { return RunLinks::FIRST };
        let segments = self.sealed_segments.all();
        links_after(&segments, log, head)
    }

    pub(super) fn open_index(
        &self,
        name: &str,
        start: u64,
    ) -> Result<Arc<SegmentIndex>, StorageError> {
        let opened = SegmentIndex::open(&*self.disk, name, start, &self.cache)?;
        Ok(Arc::new(opened.ok_or_else(|| StorageError::unreadable_output(name))?))
    }
}

/// The links of a run of `log` that follows the one at `head`.
pub(super) fn links_after(
    segments: &[Arc<SealedSegment>],
    log: LogId,
    head: RunLocation,
) -> RunLinks {
    let links_at = |place: RunLocation| {
        let indexed =
            segment_at(segments, place.segment)?.run_near(log, place.number).ok().flatten();
        indexed.map(|indexed| indexed.run.links)
    };
    let previous = links_at(head).unwrap_or(RunLinks::FIRST);
    RunLinks::after(head, &previous, previous.jump.and_then(links_at).as_ref())
}
