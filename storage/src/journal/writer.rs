//! Appending to the journal: lay out a group, write it, sync it.

use std::cell::Cell;
use std::io;
use std::sync::Arc;

use super::direct_writer::DirectWriter;
use super::frame::{FRAME_BYTES, FrameHeader, padded};
use super::segment::{JournalSegments, Segment, SegmentHeader};
use crate::disk::Disk;
use crate::error::StorageError;
use crate::payload::Payload;
use crate::proof::{Digest, FrameLeaf, FrameLeaves, LeafHasher};
use crate::space_reserve::{SpaceReserve, no_space_error};

/// Rests shorter than this are copied next to their header; a slice of their own would cost more.
const COPY_BYTES_MAX: usize = 2 << 10;
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
    current: Option<Arc<Segment>>,
    end: u64,
    synced_to: u64,
    zeroed_to: u64,
    segment_bytes_max: u64,
    /// Rolled segments that may still be only in the page cache.
    unsynced: Vec<Arc<Segment>>,
    /// The headers, payload headers, short rests and paddings of the group being laid out.
    scratch: Vec<u8>,
    slices: Vec<GroupSlice>,
    buffered_to: u64,
    direct_writer: DirectWriter,
    /// The number of frames that the current segment holds, and the number that it may hold.
    frames: u64,
    frames_max: u64,
    salt: u64,
    proofs: bool,
    hasher: LeafHasher,
    /// A leaf for each frame of the current segment; `None` if not all are known.
    leaves: Option<FrameLeaves>,
}

pub(crate) struct RolledSegment {
    pub(crate) segment: Arc<Segment>,
    /// The position after its last frame.
    pub(crate) end: u64,
    /// The leaves of its frames, if all are known.
    pub(crate) leaves: Option<FrameLeaves>,
}

enum GroupSlice {
    Scratch { from: usize, to: usize },
    Rest(bytes::Bytes),
}

impl JournalWriter {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        reserve: Arc<SpaceReserve>,
        segments: Arc<JournalSegments>,
        end: u64,
        limits: JournalWriterOptions,
        frames: u64,
    ) -> Result<JournalWriter, StorageError> {
        let current = segments.last();
        if let Some(current) = &current {
            current.data.set_final(current.at(end));
            current.file().hold_open(true)?;
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
            unsynced: Vec::new(),
            scratch: Vec::new(),
            slices: Vec::new(),
            buffered_to: end,
            direct_writer: DirectWriter::default(),
            frames,
            frames_max: limits.segment_frames_max,
            salt: limits.salt,
            proofs: limits.proofs,
            hasher: LeafHasher::default(),
            // An earlier incarnation may have begun the segment: its leaves are not known here.
            leaves: None,
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

    /// The position after what has been laid out.
    pub(crate) fn buffered_to(&self) -> u64 {
        self.buffered_to
    }

    /// Lays out one more frame of the group, and returns the position of its payload. `frame` has
    /// the lengths and the checksum of `payload`, and `body` is its digest, if that is known.
    pub(crate) fn buffer_frame(
        &mut self,
        mut frame: FrameHeader,
        payload: &Payload,
        body: Option<Digest>,
    ) -> u64 {
        frame.synced_to = self.synced_to;
        let position = self.buffered_to;
        let salt = self.current.as_ref().map_or(0, |segment| segment.salt());
        let header = frame.encode_salted(position, salt);
        if let (Some(leaves), Some(body)) = (&mut self.leaves, body) {
            let digest = self.hasher.leaf_over(position, &header, payload, body);
            leaves.push(FrameLeaf { position, stamp: frame.stamp, digest });
        } else {
            self.leaves = None;
        }
        let rest = &payload.rest;
        let padding = (padded(payload.len() as u64) - payload.len() as u64) as usize;
        self.scratch(|scratch| {
            scratch.extend_from_slice(&header);
            scratch.extend_from_slice(payload.header.as_slice());
            if rest.len() <= COPY_BYTES_MAX {
                scratch.extend_from_slice(rest);
            }
        });
        if rest.len() > COPY_BYTES_MAX {
            self.slices.push(GroupSlice::Rest(rest.clone()));
        }
        self.scratch(|scratch| scratch.extend_from_slice(&[0; 8][..padding]));
        self.buffered_to = frame.end(position);
        self.frames += 1;
        position + FRAME_BYTES as u64
    }

    fn scratch(&mut self, add: impl FnOnce(&mut Vec<u8>)) {
        let from = self.scratch.len();
        add(&mut self.scratch);
        let to = self.scratch.len();
        match self.slices.last_mut() {
            Some(GroupSlice::Scratch { to: last, .. }) => *last = to,
            _ if from == to => {}
            _ => self.slices.push(GroupSlice::Scratch { from, to }),
        }
    }

    /// Makes room for a group of `bytes`. Called with nothing laid out. `sealed` receives a segment
    /// that was rolled. A group that leads to space being reclaimed may use the reserve.
    pub(crate) fn make_room(
        &mut self,
        bytes: u64,
        makes_space: bool,
        sealed: &mut dyn FnMut(RolledSegment) -> Result<(), StorageError>,
    ) -> Result<(), JournalWriteError> {
        if !makes_space {
            if self.reserve.is_spent() {
                return Err(JournalWriteError::Refused(no_space_error()));
            }
            return self.begin_segment(bytes, sealed);
        }
        // The reserve is for the journal: it is not used up for indexes that wait for space.
        let is_backlogged = Cell::new(false);
        let sealed =
            &mut |rolled: RolledSegment| sealed(rolled).inspect_err(|_| is_backlogged.set(true));
        let mut attempt = || {
            self.begin_segment(bytes, sealed)?;
            self.preallocate_group(bytes)
        };
        match attempt() {
            Err(JournalWriteError::Refused(error))
                if error.is_full() && !is_backlogged.get() && self.reserve.spend() =>
            {
                self.begin_segment(bytes, sealed)?;
                self.preallocate_group(bytes)
            }
            result => result,
        }
    }

    /// Writes zeros where the next group goes: overwriting them takes no more space.
    fn preallocate_group(&mut self, bytes: u64) -> Result<(), JournalWriteError> {
        let current = Arc::clone(self.current.as_ref().expect("a segment was begun"));
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

    /// Begins a new segment if `bytes` more do not fit into this one, or if it holds as many frames
    /// as it may.
    fn begin_segment(
        &mut self,
        bytes: u64,
        sealed: &mut dyn FnMut(RolledSegment) -> Result<(), StorageError>,
    ) -> Result<(), JournalWriteError> {
        if let Some(current) = &self.current {
            let bytes_used = self.end - current.start;
            let fits =
                bytes_used + bytes <= self.segment_bytes_max && self.frames < self.frames_max;
            if bytes_used == 0 || fits {
                return Ok(());
            }
        }
        self.roll_segment(sealed)?;
        let header = SegmentHeader::salted(self.end, self.salt);
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
        self.current = Some(segment);
        self.zeroed_to = self.end;
        self.frames = 0;
        self.leaves = self.proofs.then(FrameLeaves::default);
        Ok(())
    }

    /// Rolls the current segment, if there is anything in it. Called with nothing laid out.
    pub(crate) fn roll_segment(
        &mut self,
        sealed: &mut dyn FnMut(RolledSegment) -> Result<(), StorageError>,
    ) -> Result<(), JournalWriteError> {
        assert!(self.slices.is_empty(), "a segment is not rolled under a group");
        let Some(current) = self.current.clone() else { return Ok(()) };
        if self.end == current.start {
            return Ok(());
        }
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
        let (segment, end, leaves) = (Arc::clone(&current), self.end, self.leaves.take());
        sealed(RolledSegment { segment, end, leaves }).map_err(JournalWriteError::Refused)?;
        self.current = None;
        // Indexing a segment syncs it.
        self.unsynced.retain(|segment| !segment.is_sealed_synced());
        if self.synced_to < self.end {
            self.unsynced.push(current);
        } else {
            current.file().hold_open(false).map_err(JournalWriteError::Refused)?;
        }
        Ok(())
    }

    /// Writes what was laid out, and syncs it if `durable`.
    pub(crate) fn write(&mut self, durable: bool) -> Result<(), JournalWriteError> {
        let current = Arc::clone(self.current.as_ref().expect("make_room came first"));
        let (file, at) = (current.file(), current.at(self.end));
        let slices = self.slices.iter().map(|slice| match slice {
            GroupSlice::Scratch { from, to } => &self.scratch[*from..*to],
            GroupSlice::Rest(rest) => &rest[..],
        });
        let around =
            self.buffered_to - self.end >= DIRECT_WRITE_BYTES_MIN && file.supports_direct_write();
        let written = if around {
            self.direct_writer.write(file, slices, at)
        } else {
            file.write_slices_at(&mut slices.map(io::IoSlice::new).collect::<Vec<_>>(), at)
        };
        if let Err(error) = written {
            return Err(self.roll_back_group(error));
        }
        if !around {
            current.data.mark_cached(at..current.at(self.buffered_to));
        }
        if durable {
            self.write_zeros_ahead(&current);
            self.sync_files()?;
            self.synced_to = self.buffered_to;
        }
        self.end = self.buffered_to;
        current.data.set_final(current.at(self.end));
        self.zeroed_to = self.zeroed_to.max(self.end);
        self.clear();
        Ok(())
    }

    fn write_zeros_ahead(&mut self, current: &Segment) {
        let group = self.buffered_to - self.end;
        if group > ZERO_AHEAD_GROUP_BYTES_MAX || self.buffered_to <= self.zeroed_to {
            return;
        }
        let limit = current.start + self.segment_bytes_max;
        let to = (self.buffered_to + ZERO_AHEAD_BYTES).min(limit);
        if to <= self.buffered_to {
            return;
        }
        let zeros = vec![0; (to - self.buffered_to) as usize];
        let at = current.at(self.buffered_to);
        // Only an optimization: without room for it the next writes append.
        match current.file().write_at(&zeros, at) {
            Ok(()) => self.zeroed_to = to,
            // A partial write would take the last space on the disk from what needs it.
            Err(_) => drop(current.file().truncate(at)),
        }
    }

    /// Withdraws a group that could not be written. None of its frames may be found later, because
    /// their stamps lie in cuts that are answered without them.
    fn roll_back_group(&mut self, error: StorageError) -> JournalWriteError {
        let current = Arc::clone(self.current.as_ref().expect("a write had a segment"));
        self.discard_group();
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

    /// Discards what was laid out.
    pub(crate) fn discard_group(&mut self) {
        self.buffered_to = self.end;
        if let Some(leaves) = &mut self.leaves {
            leaves.truncate(self.end);
        }
        self.clear();
    }

    fn clear(&mut self) {
        self.slices.clear();
        self.scratch.clear();
        if self.scratch.capacity() > 4 << 20 {
            self.scratch = Vec::new();
        }
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
        self.current.as_ref().map_or(Ok(()), |current| current.sync()).map_err(broken)
    }
}
