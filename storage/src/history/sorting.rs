//! Sorting: a sealed segment is rewritten in the order of logs, so that the entries of each log are
//! contiguous. It can also merge several segments into one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::SealedHistory;
use super::merging::journal_range_of;
use crate::data_file::{DataFile, LoadBuffer};
use crate::entry::LogId;
use crate::error::StorageError;
use crate::index::{IndexBuilder, IndexEntry, IndexRun, RunLinks, SegmentIndex};
use crate::journal::{FRAME_BYTES, FrameHeader};
use crate::manifest::{ManifestChange, ManifestEdit, ManifestSegment};
use crate::sealed_segment::{SealedSegment, SegmentFiles, SegmentLayout};
use crate::sorted_segment::{
    SortedSegmentHeader, SortedSegmentWriter, index_name, sorted_segment_name,
};
use crate::storage_file::StorageFile;

/// If the extents of a segment are longer than this on average, sorting gains nothing.
const EXTENT_BYTES_MAX: u64 = 1 << 20;
/// The number of bytes of a segment that are gathered at once.
const BATCH_BYTES: usize = 64 << 20;
const BATCH_STEPS: usize = 64 << 10;
/// The number of bytes that are read at once.
const READ_BYTES: usize = 1 << 20;
/// The pause of sorting after each read while there is other work: it reads 64 MiB/s then.
const PAUSE: Duration = Duration::from_millis(16);

/// The next item to write, in the order of logs.
enum SortStep {
    Begin(IndexRun),
    /// An entry, and the source that holds it.
    Entry(usize, IndexEntry),
}

/// The items to write after one pass over the segment.
#[derive(Default)]
struct SortBatch {
    steps: Vec<SortStep>,
    bytes: usize,
}

impl SortBatch {
    fn is_full(&self) -> bool {
        self.bytes >= BATCH_BYTES || self.steps.len() >= BATCH_STEPS
    }
}

/// The input of sorting: segments that follow one another, with their indexes as they were at
/// first.
struct SortSources<'a> {
    segments: &'a [Arc<SealedSegment>],
    indexes: Vec<Arc<SegmentIndex>>,
    /// The next run of each source, by log; of one log the oldest first.
    next: BinaryHeap<Reverse<(LogId, usize, u64)>>,
}

impl<'a> SortSources<'a> {
    fn new(segments: &'a [Arc<SealedSegment>]) -> Result<SortSources<'a>, StorageError> {
        let indexes = segments.iter().map(|segment| segment.index()).collect();
        let mut sources = SortSources { segments, indexes, next: BinaryHeap::new() };
        for source in 0..segments.len() {
            sources.push(source, 0)?;
        }
        Ok(sources)
    }

    fn run(&self, source: usize, number: u64) -> Result<IndexRun, StorageError> {
        self.segments[source].note_corruption(self.indexes[source].run_at(number))
    }

    fn push(&mut self, source: usize, number: u64) -> Result<(), StorageError> {
        if number < self.indexes[source].header.runs {
            let log = self.run(source, number)?.log;
            self.next.push(Reverse((log, source, number)));
        }
        Ok(())
    }

    /// All runs of the next log, oldest first, each with its source; empty at the end.
    fn next_log(&mut self) -> Result<Vec<(usize, IndexRun)>, StorageError> {
        let mut runs: Vec<(usize, IndexRun)> = Vec::new();
        while let Some(Reverse((log, source, number))) = self.next.peek().copied() {
            if runs.last().is_some_and(|(_, run)| run.log != log) {
                break;
            }
            self.next.pop();
            runs.push((source, self.run(source, number)?));
            self.push(source, number + 1)?;
        }
        Ok(runs)
    }

    /// The stage's state at the end of the last segment. A lost state is `None` too: it can be
    /// rebuilt.
    fn stage_state(&self) -> Result<Option<Vec<u8>>, StorageError> {
        let (Some(segment), Some(index)) = (self.segments.last(), self.indexes.last()) else {
            return Ok(None);
        };
        match segment.note_corruption(index.state()) {
            Err(error) if error.is_data_loss() => Ok(None),
            state => state,
        }
    }

    fn entry(&self, source: usize, number: u64) -> Result<IndexEntry, StorageError> {
        self.segments[source].note_corruption(self.indexes[source].entry(number))
    }
}

/// The files that a segment is sorted into.
struct SortOutput {
    writer: SortedSegmentWriter,
    builder: IndexBuilder,
    /// The frames of one pass, in memory that is reused: new pages cost more than what is read into
    /// them.
    frames: Vec<u8>,
    window: LoadBuffer,
}

impl SealedHistory {
    /// Sorts the first segment that is worth it, and is not in `given_up`; returns whether there
    /// was one.
    ///
    /// # Errors
    /// The disk fails; then nothing has changed, and the segment is added to `given_up`.
    pub(crate) fn sort_next(&self, given_up: &mut HashSet<u64>) -> Result<bool, StorageError> {
        // Reclaiming space may hold the lock for long, and indexing must not wait for that.
        let Some(_reclaiming) = self.reclaim_state.try_lock() else { return Ok(false) };
        for segment in self.sealed_segments.all().iter() {
            if segment.needs_no_sorting()
                || !self.is_proved(segment)
                || given_up.contains(&segment.start)
            {
                continue;
            }
            match self.sort_if_worthwhile(segment) {
                Ok(true) => return Ok(true),
                Ok(false) => segment.set_needs_no_sorting(true),
                // Its index is rebuilt first.
                Err(_) if segment.is_suspect() => {}
                // A corrupt segment stays where it is: it may still be repaired from a copy.
                Err(error) if error.is_corruption() => {
                    tracing::error!(%error, "a segment stays unsorted");
                    segment.set_needs_no_sorting(true);
                }
                Err(error) => {
                    given_up.insert(segment.start);
                    return Err(error);
                }
            }
        }
        Ok(false)
    }

    fn sort_if_worthwhile(&self, segment: &Arc<SealedSegment>) -> Result<bool, StorageError> {
        let gains = self.is_worth_sorting(segment)?;
        if gains {
            self.sort_segments(std::slice::from_ref(segment))?;
        }
        Ok(gains)
    }

    /// Returns true if sorting a segment brings scattered entries together, or reclaims much space.
    fn is_worth_sorting(&self, segment: &SealedSegment) -> Result<bool, StorageError> {
        let index = segment.index();
        if segment.layout != SegmentLayout::Journal {
            return self.is_mostly_dead(segment, &index);
        }
        let header = &index.header;
        let (mut runs, mut live, mut dead) = (0, 0, 0);
        for number in 0..header.runs {
            let run = segment.note_corruption(index.run_at(number))?;
            if run.count == 0 {
                continue;
            }
            runs += 1;
            let bytes = segment.note_corruption(run_bytes(&index, &run))?;
            *(if self.is_released(&run) { &mut dead } else { &mut live }) += bytes;
        }
        let is_scattered = header.extents > runs
            && (header.end - header.start) / header.extents.max(1) < EXTENT_BYTES_MAX;
        Ok((is_scattered && runs > 1) || (dead > 0 && dead >= live))
    }

    /// Returns true if at least half of the entries of a sorted segment were removed: the space of
    /// their payloads was reclaimed, but that of their index entries was not.
    fn is_mostly_dead(
        &self,
        segment: &SealedSegment,
        index: &SegmentIndex,
    ) -> Result<bool, StorageError> {
        let mut dead = 0_u64;
        for number in 0..index.header.runs {
            let run = segment.note_corruption(index.run_at(number))?;
            dead = dead.saturating_add(if self.is_released(&run) { run.count } else { 0 });
        }
        Ok(dead > 0 && dead >= index.header.entries.saturating_sub(dead))
    }

    fn is_released(&self, run: &IndexRun) -> bool {
        run.tip.end <= self.manifest.lock().horizon(run.log).released_tip.end
    }

    /// Sorts adjacent segments into one.
    pub(super) fn sort_segments(
        &self,
        segments: &[Arc<SealedSegment>],
    ) -> Result<(), StorageError> {
        // No name is used twice: if the manifest could not be written, the one on the disk may name
        // a file of an earlier attempt.
        let generation = segments[0].next_generation();
        let name = sorted_segment_name(segments[0].start, generation);
        let written = self.write_sorted(segments, &name, generation);
        let written = written.inspect_err(|_| self.remove_partial_file(&name))?;
        self.replace_segments(segments, &name, SegmentLayout::Sorted { generation })
            .inspect_err(|_| self.remove_files_later([name.clone()]))?;
        self.stats.sorted.fetch_add(1, Ordering::Relaxed);
        self.stats.sorted_bytes.fetch_add(written, Ordering::Relaxed);
        Ok(())
    }

    fn write_sorted(
        &self,
        segments: &[Arc<SealedSegment>],
        name: &str,
        generation: u32,
    ) -> Result<u64, StorageError> {
        let Range { start, end } = journal_range_of(segments);
        let header =
            SortedSegmentHeader { start, end, generation: u64::from(generation), log: None };
        let mut filing = SortOutput {
            writer: SortedSegmentWriter::create(&*self.disk, name, header)?,
            builder: IndexBuilder::create(&*self.disk, &index_name(name), start, end)?,
            frames: Vec::new(),
            window: LoadBuffer::default(),
        };
        let mut sources = SortSources::new(segments)?;
        let mut gathering = SortBatch::default();
        loop {
            let runs = sources.next_log()?;
            let Some((_, newest)) = runs.last() else { break };
            let horizon = self.manifest.lock().horizon(newest.log);
            // No links lead to it any more, nor through it to what is to be reclaimed.
            if newest.tip.end <= horizon.reclaimed_to {
                continue;
            }
            let dead = runs.partition_point(|(_, run)| run.tip.end <= horizon.released_tip.end);
            gathering.steps.push(SortStep::Begin(merged_run(&runs, dead, start)));
            for (source, run) in &runs[dead..] {
                for number in run.entries() {
                    let placed = sources.entry(*source, number)?;
                    gathering.bytes += FRAME_BYTES + placed.entry.length as usize;
                    gathering.steps.push(SortStep::Entry(*source, placed));
                    if gathering.is_full() {
                        self.write_batch(segments, &mut gathering, &mut filing)?;
                    }
                }
            }
        }
        self.write_batch(segments, &mut gathering, &mut filing)?;
        let written = filing.writer.finish()?;
        // Lookups tell segments apart by their stamps, even if nothing is left in one.
        let stamps = sources.indexes.iter().map(|index| index.header);
        let first = stamps.clone().map(|header| header.first_stamp).min();
        let last = stamps.map(|header| header.last_stamp).max();
        filing.builder.widen_stamps(first.unwrap_or_default(), last.unwrap_or_default());
        filing.builder.finish(sources.stage_state()?.as_deref())?;
        self.disk.sync_directory()?;
        Ok(written)
    }

    fn write_batch(
        &self,
        segments: &[Arc<SealedSegment>],
        gathering: &mut SortBatch,
        filing: &mut SortOutput,
    ) -> Result<(), StorageError> {
        // Segments sealed meanwhile are held in memory, and sorting many takes a while. If they
        // cannot be indexed, the next attempt reports it.
        while self.index_next().unwrap_or(false) {}
        let SortBatch { steps, .. } = std::mem::take(gathering);
        self.read_frames(segments, &steps, filing)?;
        let mut rest = &filing.frames[..];
        for step in steps {
            match step {
                SortStep::Begin(run) => {
                    filing.builder.begin_existing_run(&run);
                }
                SortStep::Entry(source, placed) => {
                    let length = FRAME_BYTES + placed.entry.length as usize;
                    let (frame, behind) = rest.split_at(length);
                    let (header, payload) = frame.split_first_chunk().expect("a frame's header");
                    check_frame(segments[source].data(), &placed, header, payload)?;
                    let placed = filing.writer.add(&placed.entry, header, payload)?;
                    filing.builder.add_entry(placed)?;
                    rest = behind;
                }
            }
        }
        Ok(())
    }

    /// Reads the frames of the entries among some steps, to place them one after the other. It
    /// reads them in the order of the files.
    fn read_frames(
        &self,
        segments: &[Arc<SealedSegment>],
        steps: &[SortStep],
        SortOutput { frames, window, .. }: &mut SortOutput,
    ) -> Result<(), StorageError> {
        let mut places = Vec::with_capacity(steps.len());
        let mut length = 0;
        for step in steps {
            let SortStep::Entry(source, placed) = step else { continue };
            let bytes = FRAME_BYTES + placed.entry.length as usize;
            places.push((*source, placed.at - FRAME_BYTES as u64, bytes, length));
            length += bytes;
        }
        places.sort_unstable();
        frames.resize(length.max(frames.len()), 0);
        let (mut window_source, mut window_range, mut limit) = (usize::MAX, 0..0, 0);
        for (source, at, bytes, to) in places {
            let data = segments[source].data();
            if source != window_source {
                (window_source, window_range, limit) = (source, 0..0, data.file().length()?);
            }
            if at < window_range.start || at + bytes as u64 > window_range.end {
                self.throttle()?;
                let count = bytes.max(READ_BYTES).min((limit - at.min(limit)) as usize).max(bytes);
                data.load_direct(window, at, count)?;
                window_range = at..at + count as u64;
            }
            let from = (at - window_range.start) as usize;
            frames[to..to + bytes].copy_from_slice(&window.bytes()[from..from + bytes]);
        }
        Ok(())
    }

    /// Leaves the disk and the processor to other work, if there is any.
    pub(crate) fn throttle(&self) -> Result<(), StorageError> {
        let written = self.foreground_bytes.load(Ordering::Relaxed);
        if self.throttled_to.swap(written, Ordering::Relaxed) != written {
            let mut waiting = self.indexing_queue.lock();
            if waiting.segments.is_empty() && !self.is_closing() {
                self.changed.wait_for(&mut waiting, PAUSE);
            }
        }
        if self.is_closing() {
            return Err(StorageError::Interrupted);
        }
        Ok(())
    }

    /// Puts a sorted segment in place of those that it was made from.
    fn replace_segments(
        &self,
        segments: &[Arc<SealedSegment>],
        name: &str,
        layout: SegmentLayout,
    ) -> Result<(), StorageError> {
        let Range { start, end } = journal_range_of(segments);
        let file = StorageFile::open(&*self.disk, name)?;
        let index = self.open_index(&index_name(name), start)?;
        let files = SegmentFiles { data: Arc::new(DataFile::new(file)), index };
        let filed = Arc::new(SealedSegment::new(layout, files));
        let mut manifest = self.manifest.lock();
        let merged =
            segments[1..].iter().map(|segment| ManifestChange::SegmentRemoved(segment.start));
        let listed = ManifestChange::Segment(ManifestSegment { start, end, layout });
        let edit = ManifestEdit(merged.chain([listed]).collect());
        self.commit_manifest(&mut manifest, &edit)?;
        self.sealed_segments.change(|segments| {
            let place = |position| segments.partition_point(|segment| segment.start < position);
            let stretch = place(start)..place(end);
            drop(segments.splice(stretch, [filed]));
        });
        drop(manifest);
        self.schedule_proof_pruning();
        self.remove_files_later(segments.iter().map(|segment| segment.data().name().to_owned()));
        Ok(())
    }
}

/// The runs of a log in segments that become one, which begins at `start`. The first `dead` runs
/// are left out.
fn merged_run(runs: &[(usize, IndexRun)], dead: usize, start: u64) -> IndexRun {
    let (oldest, newest) = (&runs[0].1, &runs[runs.len() - 1].1);
    let first = runs.get(dead).map_or(oldest, |(_, run)| run);
    // A link into a segment between them leads to something that is gone.
    let is_before = oldest.links.previous.is_none_or(|place| place.segment < start);
    let links = if is_before { oldest.links } else { RunLinks::FIRST };
    IndexRun { base: first.base, tip: newest.tip, links, ..*newest }
}

/// A corrupt frame must not be sorted, in place of one that may still be repaired.
fn check_frame(
    data: &DataFile,
    placed: &IndexEntry,
    header: &[u8; FRAME_BYTES],
    payload: &[u8],
) -> Result<(), StorageError> {
    let entry = &placed.entry;
    let is_its = |frame: FrameHeader| frame.stamp == entry.stamp && frame.base == entry.base;
    let whole = FrameHeader::decode(header, entry.frame()).is_ok_and(is_its);
    if !whole || crc32c::crc32c(payload) != entry.payload_crc {
        return Err(data.corruption_error(placed.at, "a frame"));
    }
    Ok(())
}

/// Bytes of payload in a run.
fn run_bytes(index: &SegmentIndex, run: &IndexRun) -> Result<u64, StorageError> {
    let first = index.entry(run.first)?.entry;
    Ok(run.tip.bytes - (first.bytes - u64::from(first.length)))
}
