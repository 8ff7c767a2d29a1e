//! Sorted segment files: the frames of a range of the journal, sorted by log.
//!
//! A frame in such a file states its position in the journal and its log's chain, so that the index
//! can be rebuilt from the file alone. `docs/FORMAT.md` has the layout.

mod frames;

use std::ops::Range;

use crate::data_file::DataFile;
use crate::disk::{BLOCK_BYTES, Disk};
use crate::entry::{Entry, LogId};
use crate::error::StorageError;
use crate::index::IndexEntry;
use crate::journal::{FRAME_BYTES, FrameHeader, PAYLOAD_ALIGN, StagedBlocks, padded};
use crate::storage_file::StorageFile;
pub use frames::{SortedFrameReader, SortedScanItem};

/// The length of the file's header.
pub const SORTED_HEADER_BYTES: u64 = 64;
/// The length of the prefix before the header of each frame.
pub const SORTED_PREFIX_BYTES: usize = 32;
const MAGIC: &[u8; 8] = b"FFSORTED";
const VERSION: u32 = 1;
/// The number of bytes that one write passes to the disk.
const WRITE_BYTES: usize = 4 << 20;

/// The name of the sorted segment that begins at `start`.
pub fn sorted_segment_name(start: u64, generation: u32) -> String {
    format!("{start:020}.{generation}.sorted")
}

/// The name of the compacted prefix of `log`.
pub fn compacted_prefix_name(log: LogId, generation: u64) -> String {
    format!("log-{:020}.{generation}.sorted", log.0)
}

/// The name of the index that belongs to a data file.
pub fn index_name(data: &str) -> String {
    let stem = data.rsplit_once('.').map_or(data, |(stem, _)| stem);
    format!("{stem}.index")
}

/// Returns true if this is the name of a sorted segment or of a compacted prefix.
pub fn is_sorted_segment_name(name: &str) -> bool {
    name.strip_suffix(".sorted").is_some_and(|stem| {
        let numbers = stem.strip_prefix("log-").unwrap_or(stem).split_once('.');
        numbers.is_some_and(|(start, generation)| {
            start.len() == 20 && is_number(start) && is_number(generation)
        })
    })
}

/// Returns true if this is the name of an index.
pub fn is_index_name(name: &str) -> bool {
    name.strip_suffix(".index").is_some_and(|stem| {
        (stem.len() == 20 && is_number(stem)) || is_sorted_segment_name(&format!("{stem}.sorted"))
    })
}

fn is_number(digits: &str) -> bool {
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortedSegmentHeader {
    /// The position at which the range begins.
    pub start: u64,
    /// The position after it.
    pub end: u64,
    /// The generation, as in the file's name.
    pub generation: u64,
    /// The log, if the file is a log's compacted prefix.
    pub log: Option<LogId>,
}

impl SortedSegmentHeader {
    pub fn encode(&self) -> [u8; SORTED_HEADER_BYTES as usize] {
        let mut bytes = [0; SORTED_HEADER_BYTES as usize];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::from(self.log.is_some()).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.start.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.end.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.generation.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.log.map_or(0, |log| log.0).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8; SORTED_HEADER_BYTES as usize]) -> Option<SortedSegmentHeader> {
        let u64_at = |at: usize| {
            u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|nth: usize| bytes[at + nth]))
        };
        let crc = u32::from_le_bytes(bytes[60..].try_into().ok()?);
        let whole = crc == crc32c::crc32c(&bytes[..60]);
        if !whole || &bytes[..8] != MAGIC || bytes[8..12] != VERSION.to_le_bytes() {
            return None;
        }
        let log = (bytes[12] == 1).then(|| LogId(u64_at(40)));
        Some(SortedSegmentHeader {
            start: u64_at(16),
            end: u64_at(24),
            generation: u64_at(32),
            log,
        })
    }
}

/// The prefix of a frame: its position in the journal, and the chain up to and with it.
pub(crate) fn encode_prefix(
    position: u64,
    chain: u128,
    header: &[u8; FRAME_BYTES],
) -> [u8; SORTED_PREFIX_BYTES] {
    let mut bytes = [0; SORTED_PREFIX_BYTES];
    bytes[..8].copy_from_slice(&position.to_le_bytes());
    bytes[8..24].copy_from_slice(&chain.to_le_bytes());
    let crc = prefix_crc(&bytes, header);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn prefix_crc(prefix: &[u8; SORTED_PREFIX_BYTES], header: &[u8; FRAME_BYTES]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&prefix[..24]), &header[..8])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortedFrame {
    /// The position of the frame in the journal.
    pub position: u64,
    /// The chain of its log up to and with it.
    pub chain: u128,
    pub frame: FrameHeader,
    /// The position in the file at which its payload begins.
    pub at: u64,
}

/// The bytes in front of a payload in a sorted segment.
pub(crate) const SORTED_FRAME_HEADER_BYTES: usize = SORTED_PREFIX_BYTES + FRAME_BYTES;

pub(crate) fn decode_sorted_frame(
    bytes: &[u8; SORTED_FRAME_HEADER_BYTES],
    at: u64,
) -> Option<SortedFrame> {
    let (prefix, header) = bytes.split_first_chunk::<SORTED_PREFIX_BYTES>()?;
    let header: &[u8; FRAME_BYTES] = header.try_into().ok()?;
    let crc = u32::from_le_bytes(prefix[24..28].try_into().ok()?);
    let position = u64::from_le_bytes(prefix[..8].try_into().ok()?);
    if crc != prefix_crc(prefix, header) || prefix[28..] != [0; 4] {
        return None;
    }
    let frame = FrameHeader::decode(header, position).ok()?;
    let chain = u128::from_le_bytes(prefix[8..24].try_into().ok()?);
    Some(SortedFrame { position, chain, frame, at: at + SORTED_FRAME_HEADER_BYTES as u64 })
}

/// Writes a sorted segment file.
pub(crate) struct SortedSegmentWriter {
    file: StorageFile,
    blocks: StagedBlocks,
    pending: Vec<u8>,
    written: u64,
}

impl SortedSegmentWriter {
    /// Creates the file `name`. An existing file of that name was left by a crash.
    pub(crate) fn create(
        disk: &dyn Disk,
        name: &str,
        header: SortedSegmentHeader,
    ) -> Result<SortedSegmentWriter, StorageError> {
        Ok(SortedSegmentWriter {
            file: StorageFile::create_or_replace(disk, name)?,
            blocks: StagedBlocks::default(),
            pending: header.encode().to_vec(),
            written: 0,
        })
    }

    /// Adds a frame. Its header is as it is in the journal, or would be. Returns where its payload
    /// is in the file.
    pub(crate) fn add(
        &mut self,
        entry: &Entry,
        header: &[u8; FRAME_BYTES],
        payload: &[u8],
    ) -> Result<IndexEntry, StorageError> {
        assert!(entry.length as usize == payload.len(), "an entry knows its payload's length");
        let position = entry.frame();
        self.pending.extend_from_slice(&encode_prefix(position, entry.chain, header));
        self.pending.extend_from_slice(header);
        let at = self.written + self.pending.len() as u64;
        self.pending.extend_from_slice(payload);
        let padding = padded(payload.len() as u64) as usize - payload.len();
        self.pending.extend_from_slice(&[0; PAYLOAD_ALIGN as usize][..padding]);
        if self.pending.len() >= WRITE_BYTES {
            self.flush()?;
        }
        Ok(IndexEntry { entry: *entry, at })
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        self.blocks.write(&self.file, [&self.pending[..]].into_iter(), self.written)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Writes the rest, and puts the file on stable storage, but not its name.
    pub(crate) fn finish(mut self) -> Result<u64, StorageError> {
        self.flush()?;
        self.file.sync()?;
        Ok(self.written)
    }
}

/// Bytes that are not a frame. Reclaimed space reads as zeros, in whole blocks, with remains of
/// frames around it. Whatever is not next to such a hole is corruption.
pub(crate) struct GapTracker {
    pub(crate) from: u64,
    zeros_from: u64,
    pub(crate) is_hole: bool,
}

impl GapTracker {
    pub(crate) fn at(from: u64) -> GapTracker {
        GapTracker { from, zeros_from: from, is_hole: false }
    }

    /// Adds the eight bytes at `at`, which do not begin a frame.
    pub(crate) fn extend(&mut self, at: u64, is_zero: bool) {
        let end = at + PAYLOAD_ALIGN;
        if !is_zero {
            self.zeros_from = end;
        }
        let block = BLOCK_BYTES as u64;
        self.is_hole |= self.zeros_from.next_multiple_of(block) + block <= end;
    }

    /// The corrupt part of it.
    pub(crate) fn corrupt_range(&self, until: u64) -> Option<Range<u64>> {
        (!self.is_hole && until > self.from).then_some(self.from..until)
    }
}

/// Walks over the frames of a sorted segment, in file order. Bytes that are not a frame are
/// skipped.
pub(crate) struct SortedSegmentScanner<'a> {
    data: &'a DataFile,
    length: u64,
    at: u64,
    window: Vec<u8>,
    window_at: u64,
    /// The bytes skipped just now.
    gap: GapTracker,
    /// The position at which the first corrupt bytes were skipped.
    pub(crate) corrupt_at: Option<u64>,
    /// True if anything was skipped.
    pub(crate) has_gaps: bool,
}

const WINDOW_BYTES: usize = 256 << 10;

impl<'a> SortedSegmentScanner<'a> {
    pub(crate) fn new(data: &'a DataFile) -> Result<SortedSegmentScanner<'a>, StorageError> {
        let length = data.file().length()?;
        Ok(SortedSegmentScanner {
            data,
            length,
            at: SORTED_HEADER_BYTES,
            window: Vec::new(),
            window_at: 0,
            gap: GapTracker::at(SORTED_HEADER_BYTES),
            corrupt_at: None,
            has_gaps: false,
        })
    }

    pub(crate) fn next(&mut self) -> Result<Option<SortedFrame>, StorageError> {
        while self.at + SORTED_FRAME_HEADER_BYTES as u64 <= self.length {
            let at = self.at;
            let front = self.get(at, SORTED_FRAME_HEADER_BYTES)?;
            let front: [u8; SORTED_FRAME_HEADER_BYTES] =
                front.try_into().expect("a window gives what it was asked for");
            let is_zero = front[..PAYLOAD_ALIGN as usize] == [0; PAYLOAD_ALIGN as usize];
            let filed = decode_sorted_frame(&front, at)
                .filter(|filed| filed.at + u64::from(filed.frame.length) <= self.length);
            if let Some(filed) = filed {
                self.end_gap(at);
                self.at = filed.at + padded(u64::from(filed.frame.length));
                self.gap = GapTracker::at(self.at);
                return Ok(Some(filed));
            }
            self.gap.extend(at, is_zero);
            self.at += PAYLOAD_ALIGN;
        }
        self.end_gap(self.length.max(self.at));
        Ok(None)
    }

    fn end_gap(&mut self, until: u64) {
        self.has_gaps |= until > self.gap.from;
        self.corrupt_at =
            self.corrupt_at.or(self.gap.corrupt_range(until).map(|range| range.start));
    }

    fn get(&mut self, at: u64, count: usize) -> Result<&[u8], StorageError> {
        let window_end = self.window_at + self.window.len() as u64;
        if at < self.window_at || at + count as u64 > window_end {
            let ahead = (self.length - at).min(WINDOW_BYTES as u64) as usize;
            self.window.resize(ahead, 0);
            self.data.read_exact(&mut self.window, at)?;
            self.window_at = at;
        }
        let from = (at - self.window_at) as usize;
        Ok(&self.window[from..from + count])
    }
}
