//! A file that payloads lie in: a segment of the journal, or what was filed from one.
//!
//! Reading for someone far behind goes in whole blocks, around the page cache, into memory that is
//! used again and again: to let the kernel fill its page cache first costs more processor time than
//! the reading. What this life of the store wrote in small groups is in the page cache already, and
//! is taken from there; and so are short reads, for which the kernel reads ahead.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::disk::{BLOCK_BYTES, DiskFile, read_exact_at};

/// Reads shorter than this go through the page cache.
const AROUND_BYTES_MIN: usize = 128 << 10;

/// Memory to read into.
#[derive(Debug, Default)]
pub struct LoadBuffer {
    memory: Vec<u8>,
    from: usize,
    /// Where in the memory the bytes asked for are.
    held: Range<usize>,
}

impl LoadBuffer {
    /// The bytes that were asked for.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.held.clone()]
    }

    /// Makes room for `length` bytes behind `lead`, and the rest of the block.
    fn prepare(&mut self, lead: usize, length: usize) -> &mut [u8] {
        let room = (lead + length).next_multiple_of(BLOCK_BYTES);
        if self.memory.len() < room + BLOCK_BYTES {
            self.memory = vec![0; room + BLOCK_BYTES];
        }
        self.from = self.memory.as_ptr().align_offset(BLOCK_BYTES);
        self.held = self.from + lead..self.from + lead + length;
        &mut self.memory[self.from..self.from + room]
    }
}

/// A file that payloads lie in.
pub struct DataFile {
    /// Its name in the journal's directory.
    pub name: String,
    file: Arc<dyn DiskFile>,
    /// The ranges that the page cache is likely to hold: what this life wrote through it. They rise;
    /// the gaps between them were written around it.
    cached: Mutex<Vec<Range<u64>>>,
}

impl std::fmt::Debug for DataFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl DataFile {
    pub(crate) fn new(name: String, file: Arc<dyn DiskFile>) -> DataFile {
        DataFile { name, file, cached: Mutex::default() }
    }

    pub(crate) fn file(&self) -> &dyn DiskFile {
        &*self.file
    }

    /// Says that `range`, which lies behind all earlier ones, was written through the page cache.
    pub(crate) fn note_cached(&self, range: Range<u64>) {
        let mut cached = self.cached.lock();
        match cached.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => cached.push(range),
        }
    }

    /// Whether the page cache is likely to hold what lies at `at`.
    fn is_cached(&self, at: u64) -> bool {
        let cached = self.cached.lock();
        let after = cached.partition_point(|range| range.end <= at);
        cached.get(after).is_some_and(|range| range.start <= at)
    }

    /// Reads `length` bytes at `at` if that needs no waiting for a disk; whether it was done.
    ///
    /// # Errors
    /// The disk fails.
    pub fn load_cached(&self, buffer: &mut LoadBuffer, at: u64, length: usize) -> io::Result<bool> {
        let likely = self.is_cached(at) && self.is_cached(at + length as u64 - 1);
        if !likely && length >= AROUND_BYTES_MIN {
            return Ok(false);
        }
        let room = buffer.prepare(0, length);
        Ok(self.file.read_cached_at(&mut room[..length], at)? == Some(length))
    }

    /// Reads `length` bytes at `at`. Blocks.
    ///
    /// # Errors
    /// The disk fails, or the file ends before.
    pub fn load(&self, buffer: &mut LoadBuffer, at: u64, length: usize) -> io::Result<()> {
        if length < AROUND_BYTES_MIN || self.is_cached(at) {
            let room = buffer.prepare(0, length);
            return read_exact_at(&*self.file, &mut room[..length], at);
        }
        self.load_around(buffer, at, length)
    }

    /// Reads `length` bytes at `at` in whole blocks, around the page cache where that can be done.
    pub(crate) fn load_around(
        &self,
        buffer: &mut LoadBuffer,
        at: u64,
        length: usize,
    ) -> io::Result<()> {
        let lead = (at % BLOCK_BYTES as u64) as usize;
        let room = buffer.prepare(lead, length);
        let read = self.file.read_blocks_at(room, at - lead as u64)?;
        if read < lead + length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Reads of `length` bytes at `at` the parts `ranges` alone, each by itself: for what cannot be read in
    /// one go. Blocks.
    ///
    /// # Errors
    /// The first part that cannot be read, and why.
    pub fn load_ranges(
        &self,
        buffer: &mut LoadBuffer,
        (at, length): (u64, usize),
        ranges: impl Iterator<Item = Range<usize>>,
    ) -> Result<(), (usize, io::Error)> {
        let room = buffer.prepare(0, length);
        for (nth, range) in ranges.enumerate() {
            let from = at + range.start as u64;
            read_exact_at(&*self.file, &mut room[range], from).map_err(|error| (nth, error))?;
        }
        Ok(())
    }

    pub(crate) fn read_exact(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        read_exact_at(&*self.file, buffer, at)
    }

    /// An error that says that what was read is not what was written.
    pub(crate) fn damaged(&self, at: u64, what: &str) -> io::Error {
        let name = &self.name;
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{what} is damaged. file={name}, at={at}; `freezeframe check` says more"),
        )
    }
}
