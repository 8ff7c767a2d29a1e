//! Entries of a file's log that lie near each other: found together, and read together.
//!
//! A file of very many small writes is read as very many pieces. To look each of them up, and to read each
//! from the disk, would make a read of what is in files cost many times one of what is in memory.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use storage::{
    DIRECT_READ_BYTES_MIN, DataFile, EntryPayload, LoadBuffer, Offset, Payload, PayloadLocation,
};

use super::contents::FileContents;
use super::entry::SHORT_BYTES_MAX;
use super::error::FileError;

/// How many entries are found together at most.
const ENTRIES_MAX: u64 = 1024;
/// To find an entry by itself costs as much as to pass by so many.
const ENTRIES_PASSED: u64 = 16;
/// How much is read together at most: what is read through the page cache.
const BYTES_MAX: u64 = DIRECT_READ_BYTES_MIN as u64 / 2;
/// To read an entry by itself costs as much as to read so many bytes more with others.
const BYTES_PASSED: u64 = 4 << 10;

/// The entries around those that a reader wants next.
pub(super) struct EntryWindow<'a> {
    contents: &'a FileContents,
    /// By offset, without gaps.
    payloads: Vec<EntryPayload>,
    loaded: Option<LoadedRange>,
    buffer: LoadBuffer,
}

/// What of which file is in the buffer.
struct LoadedRange {
    file: Arc<DataFile>,
    range: Range<u64>,
}

impl<'a> EntryWindow<'a> {
    pub(super) fn new(contents: &'a FileContents) -> EntryWindow<'a> {
        let (pieces, buffer) = (Vec::new(), LoadBuffer::default());
        EntryWindow { contents, payloads: pieces, loaded: None, buffer }
    }

    /// The first of the entries `wanted`, which rise. A short one has its payload at hand, if others that
    /// are wanted lie near it.
    pub(super) fn next_payload(&mut self, wanted: &[Offset]) -> Result<EntryPayload, FileError> {
        let Some(index) = self.find(wanted)? else { return self.contents.entry_payload(wanted[0]) };
        let piece = self.payloads[index].clone();
        let PayloadLocation::File { file, at } = &piece.location else { return Ok(piece) };
        if piece.entry.length as usize > SHORT_BYTES_MAX {
            return Ok(piece);
        }
        let range = *at..at + u64::from(piece.entry.length);
        match self.bytes(file, range, wanted) {
            // What is damaged is read once more by itself, and told of.
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

    /// Where in the window the first of `wanted` is; `None` if it is better looked for alone.
    fn find(&mut self, wanted: &[Offset]) -> Result<Option<usize>, FileError> {
        let first = wanted[0];
        if let Some(index) = self.index_of(first) {
            return Ok(Some(index));
        }
        let near = wanted.partition_point(|offset| offset.0 < first.0 + ENTRIES_MAX);
        let end = Offset(wanted[near - 1].0 + 1);
        if near < 2 || end.0 - first.0 > near as u64 * ENTRIES_PASSED {
            return Ok(None);
        }
        self.payloads = self.contents.entry_payloads(first, end)?;
        Ok(self.index_of(first))
    }

    /// The bytes `range` of `file`, if they are loaded, or enough of `wanted` lies behind them.
    fn bytes(
        &mut self,
        file: &Arc<DataFile>,
        range: Range<u64>,
        wanted: &[Offset],
    ) -> Option<&[u8]> {
        let holds = |loaded: &LoadedRange| {
            Arc::ptr_eq(&loaded.file, file)
                && loaded.range.start <= range.start
                && range.end <= loaded.range.end
        };
        if !self.loaded.as_ref().is_some_and(holds) {
            self.load(file, range.start, wanted)?;
        }
        let start = (range.start - self.loaded.as_ref()?.range.start) as usize;
        self.buffer.bytes().get(start..start + (range.end - range.start) as usize)
    }

    /// Loads what begins at `at`, up to the last of `wanted` that lies near. `None` if they are too few, or
    /// cannot be read.
    fn load(&mut self, file: &Arc<DataFile>, at: u64, wanted: &[Offset]) -> Option<()> {
        let (mut count, mut end, mut last) = (0, at, None);
        for offset in wanted {
            // Several pieces of one entry.
            if last.replace(*offset) == Some(*offset) {
                continue;
            }
            let Some(index) = self.index_of(*offset) else { break };
            let EntryPayload { entry, location: PayloadLocation::File { file: other, at: next } } =
                &self.payloads[index]
            else {
                break;
            };
            let behind = next + u64::from(entry.length);
            if !Arc::ptr_eq(other, file) || *next < end || behind > at + BYTES_MAX {
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
