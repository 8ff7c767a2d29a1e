//! Reading one file of the journal from beginning to end, past corrupt places.
//!
//! It serves full scans: the check, the inspection, and the writer of proofs. Large aligned reads
//! go around the page cache, so that foreground work keeps its pages there. Memory is bounded by
//! the chunk, however long a payload claims to be.

use std::ops::{ControlFlow, Range};

use super::frame::{FRAME_BYTES, FrameError, FrameHeader, PAYLOAD_ALIGN};
use crate::disk::BLOCK_BYTES;
use crate::error::StorageError;
use crate::proof::{Digest, LeafHasher};
use crate::storage_file::StorageFile;

/// The number of bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// The number of a payload's first bytes that are kept for display.
pub const PAYLOAD_PREVIEW_BYTES_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalScanItem {
    /// A frame whose header is intact.
    Frame(ScannedFrame),
    /// Bytes that are not a frame, up to the next frame or the end of the file.
    Corrupt {
        /// The position at which they begin.
        position: u64,
        /// The position at which they end.
        until: u64,
        /// The fault of the frame that should begin there.
        reason: FrameError,
    },
}

/// A frame as it is stored in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedFrame {
    /// Its position in the journal.
    pub position: u64,
    pub header: [u8; FRAME_BYTES],
    /// The decoded header.
    pub frame: FrameHeader,
    /// True if the payload matches its checksum.
    pub payload_is_whole: bool,
    /// Its leaf in a proof, if leaves were requested.
    pub leaf: Option<Digest>,
}

/// Called with the number of bytes that were read, for every chunk; it returns whether to go on.
pub type ScanProgress<'a> = dyn FnMut(u64) -> ControlFlow<()> + 'a;

/// Reads the frames of one file that is in journal order, without gaps.
pub struct FrameReader {
    chunks: FrameChunkReader,
    /// A position lies at `position + (at - start)` in the file.
    start: u64,
    at: u64,
    position: u64,
    limit: u64,
}

impl std::fmt::Debug for FrameReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameReader").field("position", &self.position).finish_non_exhaustive()
    }
}

impl FrameReader {
    /// Reads the positions of `span`, the first of which lies at `at` of `file`.
    pub fn new(file: StorageFile, span: Range<u64>, at: u64) -> FrameReader {
        FrameReader {
            chunks: FrameChunkReader::new(file, false),
            start: span.start,
            at,
            position: span.start,
            limit: span.end,
        }
    }

    /// Also computes the leaf of each frame.
    #[must_use]
    pub fn with_leaves(mut self) -> FrameReader {
        self.chunks.leaves = Some(LeafHasher::default());
        self
    }

    /// The first bytes of the payload of the last frame, up to [`PAYLOAD_PREVIEW_BYTES_MAX`].
    pub fn payload_preview(&self) -> &[u8] {
        &self.chunks.payload_preview
    }

    /// The next frame or corrupt place; `None` at the end.
    ///
    /// # Errors
    /// The disk fails.
    pub fn next_item(&mut self) -> Result<Option<JournalScanItem>, StorageError> {
        self.next_item_with(&mut |_| ControlFlow::Continue(()))
    }

    /// The same, and calls `progress` for each chunk.
    ///
    /// # Errors
    /// The disk fails; [`StorageError::Interrupted`] if `progress` ends the scan.
    pub fn next_item_with(
        &mut self,
        progress: &mut ScanProgress<'_>,
    ) -> Result<Option<JournalScanItem>, StorageError> {
        if self.position >= self.limit {
            return Ok(None);
        }
        let position = self.position;
        let read = match self.header(position, progress)? {
            Ok((header, frame)) => {
                let at = self.place(position) + FRAME_BYTES as u64;
                self.chunks.payload(at, position, header, frame, progress)?
            }
            Err(reason) => Err(reason),
        };
        match read {
            Ok(scanned) => {
                self.position = scanned.frame.end(position);
                Ok(Some(JournalScanItem::Frame(scanned)))
            }
            Err(reason) => {
                self.position = self.next_header(position + PAYLOAD_ALIGN, progress)?;
                Ok(Some(JournalScanItem::Corrupt { position, until: self.position, reason }))
            }
        }
    }

    fn place(&self, position: u64) -> u64 {
        position - self.start + self.at
    }

    /// The header at `position`, if a frame that begins there can end within the limit.
    fn header(
        &mut self,
        position: u64,
        progress: &mut ScanProgress<'_>,
    ) -> Result<Result<([u8; FRAME_BYTES], FrameHeader), FrameError>, StorageError> {
        if self.limit - position < FRAME_BYTES as u64 {
            return Ok(Err(FrameError::Short));
        }
        let bytes = self.chunks.get(self.place(position), FRAME_BYTES, progress)?;
        let Some(header) = bytes.first_chunk::<FRAME_BYTES>().copied() else {
            return Ok(Err(FrameError::Short));
        };
        Ok(match FrameHeader::decode(&header, position) {
            Ok(frame) if frame.payload_end(position) > self.limit => Err(FrameError::Short),
            Ok(frame) => Ok((header, frame)),
            Err(reason) => Err(reason),
        })
    }

    /// The position at which the first frame at or after `position` begins; the limit if there is
    /// none. A frame's checksum covers its position, so bytes that merely look like a frame are not
    /// taken for one.
    fn next_header(
        &mut self,
        mut position: u64,
        progress: &mut ScanProgress<'_>,
    ) -> Result<u64, StorageError> {
        while position + FRAME_BYTES as u64 <= self.limit {
            let bytes = self.chunks.get(self.place(position), FRAME_BYTES, progress)?;
            let mut words = bytes.chunks_exact(PAYLOAD_ALIGN as usize);
            let count = words.len() as u64;
            match words.position(|word| word.starts_with(&FrameHeader::MAGIC)) {
                Some(index) => {
                    position += index as u64 * PAYLOAD_ALIGN;
                    if position + FRAME_BYTES as u64 <= self.limit
                        && self.header(position, progress)?.is_ok()
                    {
                        return Ok(position);
                    }
                    position += PAYLOAD_ALIGN;
                }
                None if count == 0 => break,
                None => position += count * PAYLOAD_ALIGN,
            }
        }
        Ok(self.limit)
    }
}

/// Reads a file in chunks and decodes frames: payloads are never held whole.
pub(crate) struct FrameChunkReader {
    chunk: FileWindow,
    leaves: Option<LeafHasher>,
    payload_preview: Vec<u8>,
}

impl FrameChunkReader {
    pub(crate) fn new(file: StorageFile, with_leaves: bool) -> FrameChunkReader {
        let leaves = with_leaves.then(LeafHasher::default);
        FrameChunkReader { chunk: FileWindow::new(file), leaves, payload_preview: Vec::new() }
    }

    /// The first bytes of the last payload, up to [`PAYLOAD_PREVIEW_BYTES_MAX`].
    pub(crate) fn payload_preview(&self) -> &[u8] {
        &self.payload_preview
    }

    /// The buffered bytes of the file from `at` on: at least `count` bytes, unless the file ends
    /// before.
    pub(crate) fn get(
        &mut self,
        at: u64,
        count: usize,
        progress: &mut ScanProgress<'_>,
    ) -> Result<&[u8], StorageError> {
        self.chunk.get(at, count, progress)
    }

    /// Reads the payload at `at` of the file, of the frame that begins at `position` of the
    /// journal.
    pub(crate) fn payload(
        &mut self,
        mut at: u64,
        position: u64,
        header: [u8; FRAME_BYTES],
        frame: FrameHeader,
        progress: &mut ScanProgress<'_>,
    ) -> Result<Result<ScannedFrame, FrameError>, StorageError> {
        self.payload_preview.clear();
        let (mut remaining, mut crc) = (frame.length as usize, 0);
        while remaining > 0 {
            let bytes = self.chunk.get(at, 1, progress)?;
            if bytes.is_empty() {
                // The hash of an incomplete payload belongs to no leaf.
                self.leaves.iter_mut().for_each(LeafHasher::clear);
                return Ok(Err(FrameError::Short));
            }
            let bytes = &bytes[..bytes.len().min(remaining)];
            crc = crc32c::crc32c_append(crc, bytes);
            if let Some(leaves) = &mut self.leaves {
                leaves.payload(bytes);
            }
            let room = PAYLOAD_PREVIEW_BYTES_MAX - self.payload_preview.len();
            self.payload_preview.extend_from_slice(&bytes[..bytes.len().min(room)]);
            at += bytes.len() as u64;
            remaining -= bytes.len();
        }
        let leaf = self.leaves.as_mut().map(|leaves| leaves.leaf(position, &header));
        let payload_is_whole = crc == frame.payload_crc;
        Ok(Ok(ScannedFrame { position, header, frame, payload_is_whole, leaf }))
    }
}

/// A moving window over a file.
struct FileWindow {
    file: StorageFile,
    memory: Vec<u8>,
    /// The index at which the memory's first whole block begins.
    lead: usize,
    /// The range of the file that is buffered.
    held: Range<u64>,
}

impl FileWindow {
    fn new(file: StorageFile) -> FileWindow {
        let memory = vec![0; CHUNK_BYTES + BLOCK_BYTES];
        let lead = memory.as_ptr().align_offset(BLOCK_BYTES);
        FileWindow { file, memory, lead, held: 0..0 }
    }

    /// The buffered bytes from `at` on: at least `count` bytes, unless the file ends before.
    fn get(
        &mut self,
        at: u64,
        count: usize,
        progress: &mut ScanProgress<'_>,
    ) -> Result<&[u8], StorageError> {
        let is_held = self.held.start <= at && at + count as u64 <= self.held.end;
        if !is_held {
            self.load(at - at % BLOCK_BYTES as u64, progress)?;
        }
        let from = self.lead + at.min(self.held.end).saturating_sub(self.held.start) as usize;
        let to = self.lead + (self.held.end - self.held.start) as usize;
        Ok(&self.memory[from..to])
    }

    fn load(&mut self, from: u64, progress: &mut ScanProgress<'_>) -> Result<(), StorageError> {
        let room = &mut self.memory[self.lead..self.lead + CHUNK_BYTES];
        let read = self.file.read_direct_at(room, from)?;
        self.held = from..from + read as u64;
        match progress(read as u64) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(StorageError::Interrupted),
        }
    }
}

#[cfg(test)]
mod tests;
