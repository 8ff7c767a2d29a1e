//! A group of frames as a value: laid out for a place of the journal, and not necessarily written.

use std::sync::Arc;

use bytes::Bytes;
use hlc::Hlc;

use super::frame::{FRAME_BYTES, FrameHeader, padded};
use super::segment::Segment;
use crate::payload::Payload;
use crate::proof::FrameLeaves;
use crate::store::WrittenGroup;

/// Rests shorter than this are copied next to their header; a slice of their own would cost more.
const COPY_BYTES_MAX: usize = 2 << 10;
/// Memory that is kept for the next group.
const KEPT_BYTES_MAX: usize = 4 << 20;

#[derive(Clone, Debug)]
enum GroupSlice {
    Scratch { from: usize, to: usize },
    Rest(bytes::Bytes),
}

/// Frames that follow one another in a segment, with the bytes that it has or gets for them.
#[derive(Debug, Default)]
pub(crate) struct FrameGroup {
    /// `None` for a group without frames.
    pub(super) segment: Option<Arc<Segment>>,
    /// The position of its first frame.
    pub(super) start: u64,
    /// The position after its last frame.
    pub(super) end: u64,
    pub(super) frames: u64,
    /// The stamp of its first frame; zero without one.
    pub(super) first: Hlc,
    /// A leaf for each frame; `None` if not all are known.
    pub(super) leaves: Option<FrameLeaves>,
    /// The headers, payload headers, short rests and paddings.
    scratch: Vec<u8>,
    slices: Vec<GroupSlice>,
}

impl FrameGroup {
    /// An empty group at `start`, in the memory of this one. With `proves` its leaves are kept.
    pub(super) fn begin(
        mut self,
        segment: Option<Arc<Segment>>,
        start: u64,
        proves: bool,
    ) -> FrameGroup {
        self.slices.clear();
        self.scratch.clear();
        if self.scratch.capacity() > KEPT_BYTES_MAX {
            self.scratch = Vec::new();
        }
        let mut kept = self.leaves.take();
        kept.iter_mut().for_each(FrameLeaves::clear);
        let leaves = proves.then(|| kept.unwrap_or_default());
        FrameGroup { segment, start, end: start, frames: 0, first: Hlc::ZERO, leaves, ..self }
    }

    /// A group of one frame that the journal has.
    pub(crate) fn of_frame(segment: Arc<Segment>, start: u64, frame: &FrameHeader) -> FrameGroup {
        let (segment, first, end) = (Some(segment), frame.stamp, frame.end(start));
        FrameGroup { segment, start, end, frames: 1, first, ..FrameGroup::default() }
    }

    /// The segment that has it, or will have it.
    pub(crate) fn segment(&self) -> Option<&Arc<Segment>> {
        self.segment.as_ref()
    }

    /// The stamp of its first frame; zero without one.
    pub(crate) fn first_stamp(&self) -> Hlc {
        self.first
    }

    /// The position of its first frame.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// The position after its last frame.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Adds a frame, whose header is encoded for the group's end; returns the position of its
    /// payload.
    pub(super) fn push(
        &mut self,
        frame: &FrameHeader,
        header: &[u8; FRAME_BYTES],
        payload: &Payload,
    ) -> u64 {
        let (position, rest) = (self.end, &payload.rest);
        let padding = (padded(payload.len() as u64) - payload.len() as u64) as usize;
        self.scratch(|scratch| {
            scratch.extend_from_slice(header);
            scratch.extend_from_slice(payload.header.as_slice());
            if rest.len() <= COPY_BYTES_MAX {
                scratch.extend_from_slice(rest);
            }
        });
        if rest.len() > COPY_BYTES_MAX {
            self.slices.push(GroupSlice::Rest(rest.clone()));
        }
        self.scratch(|scratch| scratch.extend_from_slice(&[0; 8][..padding]));
        self.end = frame.end(position);
        self.count(frame.stamp);
        position + FRAME_BYTES as u64
    }

    /// The entries are visible: readers may rely on the bytes.
    pub(crate) fn set_final(&self) {
        if let Some(segment) = &self.segment {
            segment.data.set_final(segment.at(self.end));
        }
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

    /// It as the commit authority sees it.
    pub(crate) fn written(&self, synced_to: u64) -> WrittenGroup<'_> {
        let FrameGroup { start, end, segment, .. } = self;
        let segment = segment.as_ref().filter(|segment| segment.start == *start);
        let segment = segment.map(|segment| segment.header());
        let slices = self.slices().collect();
        WrittenGroup { start: *start, end: *end, synced_to, segment, slices }
    }

    /// An empty group becomes one that has these bytes, frames of another journal.
    pub(super) fn fill(&mut self, bytes: Bytes) {
        self.end = self.start + bytes.len() as u64;
        self.slices.push(GroupSlice::Rest(bytes));
    }

    /// Counts a frame of [`FrameGroup::fill`].
    pub(super) fn count(&mut self, stamp: Hlc) {
        if self.frames == 0 {
            self.first = stamp;
        }
        self.frames += 1;
    }

    /// Its bytes, in order.
    pub(crate) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.slices.iter().map(|slice| match slice {
            GroupSlice::Scratch { from, to } => &self.scratch[*from..*to],
            GroupSlice::Rest(rest) => &rest[..],
        })
    }
}
