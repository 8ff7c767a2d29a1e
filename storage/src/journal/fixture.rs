//! Journals that a test writes frame by frame.

use hlc::{Hlc, SysTime, UserTime};

use super::frame::{FRAME_BYTES, FrameHeader, padded};
use super::segment::{SEGMENT_HEADER_BYTES, Segment, SegmentHeader, segment_name};
use crate::disk::MemoryDisk;
use crate::entry::{LogId, Offset};

pub(super) const SALT: u64 = 0x5a17;

/// A frame as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FixtureFrame {
    pub(super) position: u64,
    pub(super) frame: FrameHeader,
    pub(super) payload: Vec<u8>,
    /// The position at which its segment begins.
    pub(super) segment: u64,
}

impl FixtureFrame {
    pub(super) fn end(&self) -> u64 {
        self.frame.end(self.position)
    }

    /// The name of its file.
    pub(super) fn file(&self) -> String {
        segment_name(self.segment)
    }

    /// The position of its first byte in its file.
    pub(super) fn at(&self) -> usize {
        (self.position - self.segment + SEGMENT_HEADER_BYTES) as usize
    }
}

/// A journal in memory.
pub(super) struct JournalFixture {
    pub(super) disk: MemoryDisk,
    pub(super) frames: Vec<FixtureFrame>,
    pub(super) starts: Vec<u64>,
    /// The position after the last frame.
    pub(super) end: u64,
    segment: Option<Segment>,
}

impl JournalFixture {
    /// A journal that begins at `start`, without a segment.
    pub(super) fn new(start: u64) -> JournalFixture {
        let (frames, starts) = (Vec::new(), Vec::new());
        JournalFixture { disk: MemoryDisk::new(), frames, starts, end: start, segment: None }
    }

    /// A journal with one segment for each of these lists of payload lengths.
    pub(super) fn of(segments: &[&[usize]]) -> JournalFixture {
        let mut journal = JournalFixture::new(0);
        for lengths in segments {
            journal.roll();
            lengths.iter().for_each(|length| journal.write(*length, 0));
        }
        journal
    }

    /// Begins a segment.
    pub(super) fn roll(&mut self) {
        let header = SegmentHeader { start: self.end, salt: SALT };
        self.segment = Some(Segment::create(&self.disk, header).unwrap());
        self.starts.push(self.end);
    }

    /// Writes a frame that says that everything below `synced_to` was synced.
    pub(super) fn write(&mut self, length: usize, synced_to: u64) {
        let nth = self.frames.len() as u64;
        let payload: Vec<u8> =
            (0..length as u64).map(|i| ((i * 7 + nth) % 251 + 1) as u8).collect();
        let frame = FrameHeader {
            length: length as u32,
            payload_crc: crc32c::crc32c(&payload),
            stamp: Hlc::new(SysTime(1000), nth as u16),
            log: LogId(nth % 3),
            base: Offset(nth),
            count: 1,
            epoch: 0,
            user_min: UserTime(5),
            user_max: UserTime(6),
            synced_to,
            kind: 2,
        };
        self.put(frame, payload);
    }

    /// Writes the given frame.
    pub(super) fn put(&mut self, frame: FrameHeader, payload: Vec<u8>) {
        let segment = self.segment.as_ref().expect("a segment was begun");
        let header = frame.encode_salted(self.end, SALT);
        let padding = vec![0; (padded(payload.len() as u64) - payload.len() as u64) as usize];
        let bytes = [&header[..], &payload, &padding].concat();
        segment.file().write_at(&bytes, segment.at(self.end)).unwrap();
        let placed = FixtureFrame { position: self.end, frame, payload, segment: segment.start };
        self.end = placed.end();
        self.frames.push(placed);
    }

    pub(super) fn last(&self) -> &FixtureFrame {
        self.frames.last().expect("a frame was written")
    }
}

/// The part of a frame in which a test corrupts a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CorruptionTarget {
    Magic,
    Header,
    Payload,
    Padding,
}

impl CorruptionTarget {
    /// The part of this frame to which the byte `at` belongs.
    pub(super) fn of(frame: &FrameHeader, at: usize) -> CorruptionTarget {
        match at {
            0..4 => CorruptionTarget::Magic,
            4..FRAME_BYTES => CorruptionTarget::Header,
            _ if at < FRAME_BYTES + frame.length as usize => CorruptionTarget::Payload,
            _ => CorruptionTarget::Padding,
        }
    }
}
