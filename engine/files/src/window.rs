//! Looks up and reads nearby entries of a file's log together.
//!
//! A file of very many small writes has very many extents. One lookup and one disk read for each
//! would make a read from disk cost many times a read from memory.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use storage::{
    DIRECT_READ_BYTES_MIN, DataFile, EntryPayload, LoadBuffer, Offset, Payload, PayloadLocation,
};

use super::contents::FileContents;
use super::entry::SHORT_BYTES_MAX;
use super::error::FileError;

/// The most entries that are looked up together.
const ENTRIES_MAX: u64 = 1024;
/// A single lookup costs as much as skipping this number of entries.
const ENTRIES_PASSED: u64 = 16;
/// The most bytes that are read together: the limit of reads through the page cache.
const BYTES_MAX: u64 = DIRECT_READ_BYTES_MIN as u64 / 2;
/// A single read costs as much as this number of further bytes in a larger read.
const BYTES_PASSED: u64 = 4 << 10;

/// The entries around those that a reader needs next.
pub(super) struct EntryWindow<'a> {
    contents: &'a FileContents,
    /// By offset, without gaps.
    payloads: Vec<EntryPayload>,
    loaded: Option<LoadedRange>,
    buffer: LoadBuffer,
}

/// The file and the byte range in the buffer.
struct LoadedRange {
    file: Arc<DataFile>,
    range: Range<u64>,
}

impl<'a> EntryWindow<'a> {
    pub(super) fn new(contents: &'a FileContents) -> EntryWindow<'a> {
        let (pieces, buffer) = (Vec::new(), LoadBuffer::default());
        EntryWindow { contents, payloads: pieces, loaded: None, buffer }
    }

    /// The entry at the first of `offsets`, which are in ascending order. A short entry comes with
    /// its payload loaded, if other wanted entries are near it.
    pub(super) fn next_payload(&mut self, offsets: &[Offset]) -> Result<EntryPayload, FileError> {
        let Some(index) = self.find(offsets)? else {
            return self.contents.entry_payload(offsets[0]);
        };
        let piece = self.payloads[index].clone();
        let PayloadLocation::File { file, at } = &piece.location else { return Ok(piece) };
        if piece.entry.length as usize > SHORT_BYTES_MAX {
            return Ok(piece);
        }
        let range = *at..at + u64::from(piece.entry.length);
        match self.bytes(file, range, offsets) {
            // A corrupt payload is read again by itself, and reported there.
            Some(bytes) if crc32c::crc32c(bytes) == piece.entry.payload_crc => {
                let data =
                    PayloadLocation::Memory(Payload::without_header(Bytes::copy_from_slice(bytes)));
                Ok(EntryPayload { location: data, ..piece })
            }
            _ => Ok(piece),
        }
    }

    fn index_of(&self, offset: Offset) -> Option<usize> {
        self.payloads.binary_search_by_key(&offset, |piece| piece.entry.base).ok()
    }

    /// The index of the first of `offsets` in the window; `None` if a single lookup is cheaper.
    fn find(&mut self, offsets: &[Offset]) -> Result<Option<usize>, FileError> {
        let first = offsets[0];
        if let Some(index) = self.index_of(first) {
            return Ok(Some(index));
        }
        let near = offsets.partition_point(|offset| offset.0 < first.0 + ENTRIES_MAX);
        let end = Offset(offsets[near - 1].0 + 1);
        if near < 2 || end.0 - first.0 > near as u64 * ENTRIES_PASSED {
            return Ok(None);
        }
        self.payloads = self.contents.entry_payloads(first, end)?;
        Ok(self.index_of(first))
    }

    /// The bytes `range` of `file`, if they are loaded, or enough of `offsets` follows them.
    fn bytes(
        &mut self,
        file: &Arc<DataFile>,
        range: Range<u64>,
        offsets: &[Offset],
    ) -> Option<&[u8]> {
        let holds = |loaded: &LoadedRange| {
            Arc::ptr_eq(&loaded.file, file)
                && loaded.range.start <= range.start
                && range.end <= loaded.range.end
        };
        if !self.loaded.as_ref().is_some_and(holds) {
            self.load(file, range.start, offsets)?;
        }
        let start = (range.start - self.loaded.as_ref()?.range.start) as usize;
        self.buffer.bytes().get(start..start + (range.end - range.start) as usize)
    }

    /// Loads the bytes from `at` up to the last of `offsets` that is near. `None` if these are too
    /// few, or cannot be read.
    fn load(&mut self, file: &Arc<DataFile>, at: u64, offsets: &[Offset]) -> Option<()> {
        let (mut count, mut end, mut last) = (0, at, None);
        for offset in offsets {
            // Several extents of one entry.
            if last.replace(*offset) == Some(*offset) {
                continue;
            }
            let Some(index) = self.index_of(*offset) else { break };
            let EntryPayload {
                entry,
                location: PayloadLocation::File { file: next_file, at: next },
            } = &self.payloads[index]
            else {
                break;
            };
            let behind = next + u64::from(entry.length);
            if !Arc::ptr_eq(next_file, file) || *next < end || behind > at + BYTES_MAX {
                break;
            }
            (count, end) = (count + 1, behind);
        }
        if count < 2 || end - at > count * BYTES_PASSED {
            return None;
        }
        self.loaded = None;
        let length = (end - at) as usize;
        if !file.load_cached(&mut self.buffer, at, length).ok()? {
            file.load(&mut self.buffer, at, length).ok()?;
        }
        self.contents.count_read(length);
        self.loaded = Some(LoadedRange { file: Arc::clone(file), range: at..end });
        Some(())
    }
}
