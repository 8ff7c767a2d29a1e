//! Reading a sorted segment from beginning to end, with every payload, past bytes that are not
//! frames.

use std::ops::{ControlFlow, Range};

use super::{
    GapTracker, SORTED_FRAME_HEADER_BYTES, SORTED_HEADER_BYTES, SORTED_PREFIX_BYTES, SortedFrame,
    decode_sorted_frame,
};
use crate::error::StorageError;
use crate::journal::{FRAME_BYTES, FrameChunkReader, PAYLOAD_ALIGN, ScannedFrame, padded};
use crate::storage_file::StorageFile;

/// An item at a place of a sorted segment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum SortedScanItem {
    /// A frame whose header is intact.
    Frame {
        found: ScannedFrame,
        /// The position in the file at which its payload begins.
        at: u64,
        /// The chain of its log up to and with it.
        chain: u128,
    },
    /// Bytes that are not a frame.
    Gap {
        /// Their range in the file.
        range: Range<u64>,
        /// True if they contain a whole block of zeros, as reclaimed space does.
        is_hole: bool,
    },
}

/// The frames of a sorted segment, in file order.
pub struct SortedFrameReader {
    chunks: FrameChunkReader,
    length: u64,
    at: u64,
    gap: Option<GapTracker>,
    /// A frame that was found after a gap.
    next: Option<SortedScanItem>,
}

impl std::fmt::Debug for SortedFrameReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FiledFrames").field("at", &self.at).finish_non_exhaustive()
    }
}

impl SortedFrameReader {
    /// Reads `file`, whatever its header says.
    ///
    /// # Errors
    /// The disk fails.
    pub fn new(file: StorageFile) -> Result<SortedFrameReader, StorageError> {
        SortedFrameReader::with_leaves(file, false)
    }

    pub(crate) fn with_leaves(
        file: StorageFile,
        with_leaves: bool,
    ) -> Result<SortedFrameReader, StorageError> {
        let length = file.length()?;
        let chunks = FrameChunkReader::new(file, with_leaves);
        Ok(SortedFrameReader { chunks, length, at: SORTED_HEADER_BYTES, gap: None, next: None })
    }

    /// The length of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The position in the file up to which it was read.
    pub fn read_to(&self) -> u64 {
        self.at.min(self.length)
    }

    /// The first bytes of the payload of the last frame.
    pub fn payload_preview(&self) -> &[u8] {
        self.chunks.payload_preview()
    }

    /// The next frame or gap; `None` at the end.
    ///
    /// # Errors
    /// The disk fails.
    pub fn next_item(&mut self) -> Result<Option<SortedScanItem>, StorageError> {
        self.next_item_where(&mut |_| Ok(true))
    }

    /// The same; a frame for which `is_one` returns false belongs to a gap.
    pub(crate) fn next_item_where(
        &mut self,
        is_one: &mut dyn FnMut(&SortedFrame) -> Result<bool, StorageError>,
    ) -> Result<Option<SortedScanItem>, StorageError> {
        if let Some(item) = self.next.take() {
            return Ok(Some(item));
        }
        while self.at + SORTED_FRAME_HEADER_BYTES as u64 <= self.length {
            let at = self.at;
            let bytes = self
                .chunks
                .get(at, SORTED_FRAME_HEADER_BYTES, &mut |_| ControlFlow::Continue(()))?;
            let Some(front) = bytes.first_chunk::<SORTED_FRAME_HEADER_BYTES>().copied() else {
                break;
            };
            let filed = decode_sorted_frame(&front, at)
                .filter(|filed| filed.at + u64::from(filed.frame.length) <= self.length);
            match filed {
                Some(filed) if is_one(&filed)? => {
                    let Some(item) = self.frame(&filed, &front)? else { break };
                    let gap = self.gap.take().map(|gap| gap_item(&gap, at));
                    let Some(gap) = gap else { return Ok(Some(item)) };
                    self.next = Some(item);
                    return Ok(Some(gap));
                }
                _ => {
                    let is_zero = front[..PAYLOAD_ALIGN as usize] == [0; PAYLOAD_ALIGN as usize];
                    self.gap.get_or_insert_with(|| GapTracker::at(at)).extend(at, is_zero);
                    self.at += PAYLOAD_ALIGN;
                }
            }
        }
        let rest = (self.at < self.length).then(|| GapTracker::at(self.at));
        self.at = self.at.max(self.length);
        Ok(self.gap.take().or(rest).map(|gap| gap_item(&gap, self.length)))
    }

    fn frame(
        &mut self,
        filed: &SortedFrame,
        front: &[u8; SORTED_FRAME_HEADER_BYTES],
    ) -> Result<Option<SortedScanItem>, StorageError> {
        let header: [u8; FRAME_BYTES] =
            front[SORTED_PREFIX_BYTES..].try_into().expect("a front ends with a header");
        let go_on = &mut |_| ControlFlow::Continue(());
        let SortedFrame { position, chain, frame, at } = *filed;
        let Ok(found) = self.chunks.payload(at, position, header, frame, go_on)? else {
            return Ok(None);
        };
        self.at = at + padded(u64::from(frame.length));
        Ok(Some(SortedScanItem::Frame { found, at, chain }))
    }
}

fn gap_item(gap: &GapTracker, until: u64) -> SortedScanItem {
    SortedScanItem::Gap { range: gap.from..until, is_hole: gap.is_hole }
}
