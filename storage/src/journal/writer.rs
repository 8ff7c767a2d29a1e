//! Appending to the journal: lay out a group, write it, sync it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use hlc::Hlc;

use super::direct_writer::DirectWriter;
use super::frame::FrameHeader;
use super::group::FrameGroup;
use super::segment::{JournalSegments, Segment, SegmentHeader};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::payload::Payload;
use crate::proof::{Digest, FrameLeaf, FrameLeaves, LeafHasher, body_digest};
use crate::space_reserve::{SpaceReserve, no_space_error};
use crate::storage_file::{remove_file, sync_directory};

/// The number of zeros that are written ahead of small durable groups. A sync after an overwrite
/// commits no metadata of the file, which makes it several times quicker.
const ZERO_AHEAD_BYTES: u64 = 1 << 20;
/// Groups larger than this are bound by bandwidth, not by the latency of a sync: no zeros for them.
const ZERO_AHEAD_GROUP_BYTES_MAX: u64 = 64 << 10;

/// Groups from this size on are written around the page cache: filling it costs more processor time
/// than all the rest, and readers of recent entries find them in memory.
const DIRECT_WRITE_BYTES_MIN: u64 = 256 << 10;

/// A group could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JournalWriteError {
    /// Nothing of it remains, and the journal goes on: usually the disk is full, or no file can be
    /// opened.
    #[error("{0}")]
    Refused(StorageError),
    /// The content of the disk is unknown: no write may follow.
    #[error("{doing}: {source}")]
    Broken { doing: &'static str, source: StorageError },
}

/// The options of the writer, such as the limits at which a segment is rolled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalWriterOptions {
    pub(crate) segment_bytes_max: u64,
    pub(crate) segment_frames_max: u64,
    /// The secret from which the salts of segments are derived.
    pub(crate) salt: u64,
    /// True if the leaves of frames are kept for a proof.
    pub(crate) proofs: bool,
}

/// The end of the journal, where its one writer writes.
pub(crate) struct JournalWriter {
    disk: Arc<dyn Disk>,
    reserve: Arc<SpaceReserve>,
    segments: Arc<JournalSegments>,
    current: Option<OpenSegment>,
    end: u64,
    synced_to: u64,
    zeroed_to: u64,
    segment_bytes_max: u64,
    /// The segments that were rolled and not taken yet, oldest first.
    rolled: VecDeque<RolledSegment>,
    /// Rolled segments that may still be only in the page cache.
    unsynced: Vec<Arc<Segment>>,
    /// The memory of an earlier group, for the next one.
    spare: FrameGroup,
    direct_writer: DirectWriter,
    /// The most frames of a segment.
    frames_max: u64,
    salt: u64,
    proofs: bool,
    hasher: LeafHasher,
    /// True if the next group begins a segment.
    ends_segment: bool,
}

/// A segment, and what was written to it.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) segment: Arc<Segment>,
    /// The number of its frames.
    pub(crate) frames: u64,
    /// The stamp of the first of them; zero without one.
    pub(crate) since: Hlc,
    /// A leaf for each frame; `None` if not all are known.
    pub(crate) leaves: Option<FrameLeaves>,
}

impl OpenSegment {
    fn add(&mut self, group: &mut FrameGroup) {
        self.frames += group.frames;
        if self.since == Hlc::ZERO {
            self.since = group.first;
        }
        match (&mut self.leaves, &mut group.leaves) {
            (Some(leaves), Some(of_group)) => leaves.append(of_group),
            _ => self.leaves = None,
        }
    }

    /// Takes back what `group` added last.
    fn remove(&mut self, group: &FrameGroup) {
        self.frames -= group.frames;
        if self.frames == 0 {
            self.since = Hlc::ZERO;
        }
        if let Some(leaves) = &mut self.leaves {
            leaves.truncate(group.start);
        }
    }
}

/// The end of a journal that was read back.
pub(crate) struct JournalTail {
    /// The position after its last frame.
    pub(crate) end: u64,
    /// Everything below this position is visible.
    pub(crate) published_to: u64,
    /// The rolled segments that do not end with a visible entry, oldest first.
    pub(crate) rolled: VecDeque<RolledSegment>,
    /// The number of frames of the last segment.
    pub(crate) frames: u64,
    /// The first stamp in it; zero without one.
    pub(crate) since: Hlc,
}

/// A segment to which nothing more is written.
#[derive(Debug)]
pub(crate) struct RolledSegment {
    pub(crate) open: OpenSegment,
    /// The position after its last frame.
    pub(crate) end: u64,
}

impl JournalWriter {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        reserve: Arc<SpaceReserve>,
        segments: Arc<JournalSegments>,
        recovered: JournalTail,
        limits: JournalWriterOptions,
    ) -> Result<JournalWriter, StorageError> {
        let JournalTail { end, published_to, rolled, frames, since } = recovered;
        // An earlier incarnation may have begun the segment: its leaves are not known here.
        let open = |segment| OpenSegment { segment, frames, since, leaves: None };
        let current = segments.last().map(open);
        let written = rolled.iter().map(|rolled| &rolled.open).chain(&current);
        for OpenSegment { segment, .. } in written {
            segment.data.set_final(segment.at(published_to.max(segment.start)));
        }
        if let Some(OpenSegment { segment, .. }) = &current {
            segment.file().hold_open(true)?;
        }
        Ok(JournalWriter {
            disk,
            reserve,
            segments,
            current,
            end,
            synced_to: end,
            zeroed_to: end,
            segment_bytes_max: limits.segment_bytes_max,
            rolled,
            unsynced: Vec::new(),
            spare: FrameGroup::default(),
            direct_writer: DirectWriter::default(),
            frames_max: limits.segment_frames_max,
            salt: limits.salt,
            proofs: limits.proofs,
            hasher: LeafHasher::default(),
            ends_segment: false,
        })
    }

    /// The position after the last frame written.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Everything below this position is on stable storage.
    pub(crate) fn synced_to(&self) -> u64 {
        self.synced_to
    }

    /// The first stamp in the segment that is written to; zero without one.
    pub(crate) fn open_since(&self) -> Hlc {
        self.current.as_ref().map_or(Hlc::ZERO, |open| open.since)
    }

    /// Begins a group at the journal's end, after [`JournalWriter::make_room`].
    pub(crate) fn begin_group(&mut self) -> FrameGroup {
        let proves = self.current.as_ref().is_some_and(|open| open.leaves.is_some());
        let segment = self.current.as_ref().map(|open| Arc::clone(&open.segment));
        std::mem::take(&mut self.spare).begin(segment, self.end, proves)
    }

    /// Lays out one more frame of a group, and returns the position of its payload. `frame` has the
    /// lengths and the checksum of `payload`, and `body` is its digest, if that is known.
    pub(crate) fn lay_out(
        &mut self,
        group: &mut FrameGroup,
        mut frame: FrameHeader,
        payload: &Payload,
        body: Option<Digest>,
    ) -> u64 {
        frame.synced_to = self.synced_to;
        let position = group.end;
        let salt = group.segment.as_ref().map_or(0, |segment| segment.salt());
        let header = frame.encode_salted(position, salt);
        if let (Some(leaves), Some(body)) = (&mut group.leaves, body) {
            let digest = self.hasher.leaf_over(position, &header, payload, body);
            leaves.push(FrameLeaf { position, stamp: frame.stamp, digest });
        } else {
            group.leaves = None;
        }
        group.push(&frame, &header, payload)
    }

    /// Begins a group of another journal at this one's end. `segment` is the header of the segment that
    /// begins with it, if one does.
    pub(crate) fn begin_foreign_group(
        &mut self,
        segment: Option<SegmentHeader>,
        bytes: &Bytes,
        wait: &dyn Fn() -> Result<(), StorageError>,
    ) -> Result<FrameGroup, JournalWriteError> {
        if self.reserve.is_spent() {
            return Err(JournalWriteError::Refused(no_space_error()));
        }
        if let Some(header) = segment {
            // An empty one of an attempt that failed may be there.
            if self.current.as_ref().is_some_and(|open| open.segment.start == self.end) {
                self.remove_current()?;
            }
            self.roll_segment(wait)?;
            self.create_segment(header)?;
        }
        let mut group = self.begin_group();
        group.fill(bytes.clone());
        Ok(group)
    }

    /// Counts a frame of a group of another journal, and its leaf.
    pub(crate) fn note_leaf(
        &mut self,
        group: &mut FrameGroup,
        position: u64,
        frame: &FrameHeader,
        payload: &Payload,
    ) {
        group.count(frame.stamp);
        if let (Some(leaves), Some(segment)) = (&mut group.leaves, &group.segment) {
            let header = frame.encode_salted(position, segment.salt());
            let body = body_digest(payload);
            let digest = self.hasher.leaf_over(position, &header, payload, body);
            leaves.push(FrameLeaf { position, stamp: frame.stamp, digest });
        }
    }

    /// The salt of the segment that is written to.
    pub(crate) fn current_salt(&self) -> Option<u64> {
        self.current.as_ref().map(|open| open.segment.salt())
    }

    /// Takes back the memory of a group that is published or dropped.
    pub(crate) fn recycle(&mut self, group: FrameGroup) {
        self.spare = group.begin(None, 0, false);
    }

    /// Makes room for a group of `bytes`. Called when all that is laid out is written. `wait` waits
    /// until a segment may be rolled. A group that leads to space being reclaimed may use the
    /// reserve.
    pub(crate) fn make_room(
        &mut self,
        bytes: u64,
        makes_space: bool,
        wait: &dyn Fn() -> Result<(), StorageError>,
    ) -> Result<(), JournalWriteError> {
        if !makes_space {
            if self.reserve.is_spent() {
                return Err(JournalWriteError::Refused(no_space_error()));
            }
            return self.begin_segment(bytes, wait);
        }
        // The reserve is for the journal: it is not used up for indexes that wait for space.
        let is_backlogged = Cell::new(false);
        let wait = &|| wait().inspect_err(|_| is_backlogged.set(true));
        let mut attempt = || {
            self.begin_segment(bytes, wait)?;
            self.preallocate_group(bytes)
        };
        match attempt() {
            Err(JournalWriteError::Refused(error))
                if error.is_full() && !is_backlogged.get() && self.reserve.spend() =>
            {
                self.begin_segment(bytes, wait)?;
                self.preallocate_group(bytes)
            }
            result => result,
        }
    }

    /// Writes zeros where the next group goes: overwriting them takes no more space.
    fn preallocate_group(&mut self, bytes: u64) -> Result<(), JournalWriteError> {
        let current = self.current_segment();
        let (from, to) = (self.zeroed_to.max(self.end), self.end + bytes);
        if to <= from {
            return Ok(());
        }
        let (zeros, at) = (vec![0; (to - from) as usize], current.at(from));
        current.file().write_at(&zeros, at).map_err(|error| {
            // Nothing relies on the part that was written.
            let _ = current.file().truncate(at);
            JournalWriteError::Refused(error)
        })?;
        self.zeroed_to = to;
        Ok(())
    }

    /// The next group begins a segment.
    pub(crate) fn end_segment(&mut self) {
        self.ends_segment = true;
    }

    /// Begins a new segment if `bytes` more do not fit into this one, or if it holds as many frames
    /// as it may.
    fn begin_segment(
        &mut self,
        bytes: u64,
        wait: &dyn Fn() -> Result<(), StorageError>,
    ) -> Result<(), JournalWriteError> {
        if let Some(OpenSegment { segment, frames, .. }) = &self.current {
            let bytes_used = self.end - segment.start;
            let fits = bytes_used + bytes <= self.segment_bytes_max && *frames < self.frames_max;
            if bytes_used == 0 || (fits && !self.ends_segment) {
                self.ends_segment = false;
                return Ok(());
            }
        }
        self.roll_segment(wait)?;
        self.create_segment(SegmentHeader::salted(self.end, self.salt))
    }

    fn create_segment(&mut self, header: SegmentHeader) -> Result<(), JournalWriteError> {
        // Withdrawing a write must not depend on a descriptor.
        let created = Segment::create(&*self.disk, header)
            .and_then(|segment| segment.file().hold_open(true).map(|()| segment));
        let segment = created.map_err(|error| {
            // A partial segment must not block the next attempt.
            let _ = self.disk.remove(&super::segment_name(self.end));
            JournalWriteError::Refused(error)
        })?;
        let segment = Arc::new(segment);
        self.segments.push(Arc::clone(&segment));
        self.ends_segment = false;
        let leaves = self.proofs.then(FrameLeaves::default);
        self.current = Some(OpenSegment { segment, frames: 0, since: Hlc::ZERO, leaves });
        self.zeroed_to = self.end;
        Ok(())
    }

    /// Rolls the current segment, if there is anything in it, once `wait` returns.
    pub(crate) fn roll_segment(
        &mut self,
        wait: &dyn Fn() -> Result<(), StorageError>,
    ) -> Result<(), JournalWriteError> {
        let current = match &self.current {
            Some(open) if open.segment.start < self.end => Arc::clone(&open.segment),
            _ => return Ok(()),
        };
        if self.zeroed_to > self.end {
            // Zeros that stay behind the frames do no harm: without room the segment goes on, and
            // is rolled later.
            current.file().truncate(current.at(self.end)).map_err(|source| {
                if source.is_full() || source.is_out_of_descriptors() {
                    JournalWriteError::Refused(source.during("roll segment"))
                } else {
                    JournalWriteError::Broken { doing: "roll segment", source }
                }
            })?;
            self.zeroed_to = self.end;
        }
        wait().map_err(JournalWriteError::Refused)?;
        let Some(open) = self.current.take() else { return Ok(()) };
        self.rolled.push_back(RolledSegment { open, end: self.end });
        // Indexing a segment syncs it.
        self.unsynced.retain(|segment| !segment.is_sealed_synced());
        if self.synced_to < self.end {
            self.unsynced.push(current);
        } else {
            current.file().hold_open(false).map_err(JournalWriteError::Refused)?;
        }
        Ok(())
    }

    /// Takes a segment that was rolled and ends at or below `position`, the oldest first.
    pub(crate) fn take_rolled(&mut self, position: u64) -> Option<RolledSegment> {
        self.rolled.pop_front_if(|rolled| rolled.end <= position)
    }

    fn current_segment(&self) -> Arc<Segment> {
        let open = self.current.as_ref().expect("a segment was begun");
        Arc::clone(&open.segment)
    }

    /// Writes a group that was laid out for the journal's end, and syncs it if `durable`.
    pub(crate) fn write(
        &mut self,
        group: &mut FrameGroup,
        durable: bool,
    ) -> Result<(), JournalWriteError> {
        assert!(group.start == self.end, "a group is written where it was laid out");
        let current = Arc::clone(group.segment.as_ref().expect("make_room came first"));
        let (file, at) = (current.file(), current.at(self.end));
        let around =
            group.end - group.start >= DIRECT_WRITE_BYTES_MIN && file.supports_direct_write();
        let written = if around {
            self.direct_writer.write(file, group.slices(), at)
        } else {
            file.write_slices_at(&mut group.slices().map(io::IoSlice::new).collect::<Vec<_>>(), at)
        };
        if let Err(error) = written {
            return Err(self.withdraw_write(error));
        }
        if !around {
            current.data.mark_cached(at..current.at(group.end));
        }
        if durable {
            self.write_zeros_ahead(&current, group);
            self.sync_files()?;
            self.synced_to = group.end;
        }
        self.end = group.end;
        self.zeroed_to = self.zeroed_to.max(self.end);
        self.current.as_mut().expect("a segment was begun").add(group);
        Ok(())
    }

    fn write_zeros_ahead(&mut self, current: &Segment, group: &FrameGroup) {
        let (bytes, from) = (group.end - group.start, group.end);
        if bytes > ZERO_AHEAD_GROUP_BYTES_MAX || from <= self.zeroed_to {
            return;
        }
        let limit = current.start + self.segment_bytes_max;
        let to = (from + ZERO_AHEAD_BYTES).min(limit);
        if to <= from {
            return;
        }
        let (zeros, at) = (vec![0; (to - from) as usize], current.at(from));
        // Only an optimization: without room for it the next writes append.
        match current.file().write_at(&zeros, at) {
            Ok(()) => self.zeroed_to = to,
            // A partial write would take the last space on the disk from what needs it.
            Err(_) => drop(current.file().truncate(at)),
        }
    }

    /// Withdraws a group that could not be written. None of its frames may be found later, because
    /// their stamps lie in cuts that are answered without them.
    fn withdraw_write(&mut self, error: StorageError) -> JournalWriteError {
        let current = self.current_segment();
        let at = current.at(self.end);
        self.zeroed_to = self.end;
        let broken =
            |source| JournalWriteError::Broken { doing: "withdraw a failed write", source };
        // On a file system that does not overwrite in place, truncating a file takes space too.
        let cut = self.reserve.retry_with_reserve(|| current.file().truncate(at)).map_err(broken);
        // Rolled segments with it: otherwise it would be false that everything below is synced.
        match cut.and_then(|()| self.sync_files()) {
            Ok(()) => {
                self.synced_to = self.end;
                JournalWriteError::Refused(error)
            }
            Err(broken) => broken,
        }
    }

    /// Cuts off groups that were written last, newest first, and syncs what is left. Nothing of a
    /// segment that was taken by [`JournalWriter::take_rolled`] may be among them.
    pub(crate) fn truncate<'a>(
        &mut self,
        groups: impl Iterator<Item = &'a FrameGroup>,
    ) -> Result<(), JournalWriteError> {
        for group in groups {
            let Some(segment) = &group.segment else { continue };
            assert!(group.end <= self.end, "groups are cut off newest first");
            self.end = group.start;
            if self.current.as_ref().is_none_or(|open| open.segment.start != segment.start) {
                self.remove_current()?;
                self.reopen_rolled()?;
            }
            if let Some(open) = &mut self.current {
                open.remove(group);
            }
        }
        let broken = |source| JournalWriteError::Broken { doing: "truncate the journal", source };
        // The next group may begin a segment of another name, or the same one with another salt.
        if self.current.as_ref().is_some_and(|open| open.segment.start == self.end) {
            self.remove_current()?;
        }
        self.synced_to = self.synced_to.min(self.end);
        self.zeroed_to = self.end;
        if let Some(OpenSegment { segment, .. }) = &self.current {
            let at = segment.at(self.end);
            let cut = self.reserve.retry_with_reserve(|| segment.file().truncate(at));
            cut.map_err(broken)?;
            segment.data.forget_cached(at);
        }
        self.sync_files()?;
        self.synced_to = self.end;
        Ok(())
    }

    /// Removes the segment that is written to, if there is one. It is gone before an earlier one is:
    /// a loss of power leaves no gap.
    fn remove_current(&mut self) -> Result<(), JournalWriteError> {
        let Some(OpenSegment { segment, .. }) = self.current.take() else { return Ok(()) };
        self.segments.remove_last(&segment);
        let removed = remove_file(&*self.disk, segment.name());
        let removed = removed.and_then(|()| sync_directory(&*self.disk));
        removed.map_err(|source| JournalWriteError::Broken { doing: "remove a segment", source })
    }

    /// Goes on in the segment that was rolled last.
    fn reopen_rolled(&mut self) -> Result<(), JournalWriteError> {
        let RolledSegment { open, .. } = self.rolled.pop_back().expect("its end is not published");
        self.unsynced.retain(|segment| segment.start != open.segment.start);
        let doing = "reopen a segment";
        open.segment.reopen().map_err(|source| JournalWriteError::Broken { doing, source })?;
        self.current = Some(open);
        Ok(())
    }

    /// Syncs what was written without a sync.
    pub(crate) fn sync(&mut self) -> Result<(), JournalWriteError> {
        if self.synced_to < self.end {
            self.sync_files()?;
            self.synced_to = self.end;
        }
        Ok(())
    }

    /// Never retried: the kernel forgets what it could not write, and says so only once.
    fn sync_files(&mut self) -> Result<(), JournalWriteError> {
        let broken = |source| JournalWriteError::Broken { doing: "sync journal", source };
        for segment in self.unsynced.drain(..) {
            segment.sync_sealed().map_err(broken)?;
        }
        self.current.as_ref().map_or(Ok(()), |open| open.segment.sync()).map_err(broken)
    }
}
