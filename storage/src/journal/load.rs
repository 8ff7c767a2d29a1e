//! Reading a run of the journal for someone far behind: whole blocks, around the page cache, into
//! memory that is used again and again.
//!
//! To let the kernel fill its page cache first costs more processor time than the reading. What this
//! life of the store wrote in small groups is in the page cache already, and is taken from there.

use std::io;
use std::ops::Range;

use super::segment::Segment;
use crate::disk::{BLOCK_BYTES, read_exact_at};

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

impl Segment {
    /// Reads `length` bytes at `position` if that needs no waiting for a disk; whether it was done.
    ///
    /// # Errors
    /// The disk fails.
    pub fn load_cached(
        &self,
        buffer: &mut LoadBuffer,
        position: u64,
        length: usize,
    ) -> io::Result<bool> {
        if !self.is_cached(position) || !self.is_cached(position + length as u64 - 1) {
            return Ok(false);
        }
        let (file, at) = self.place(position);
        let room = buffer.prepare(0, length);
        Ok(file.read_cached_at(&mut room[..length], at)? == Some(length))
    }

    /// Reads `length` bytes at `position`. Blocks.
    ///
    /// # Errors
    /// The disk fails, or the segment ends before.
    pub fn load(&self, buffer: &mut LoadBuffer, position: u64, length: usize) -> io::Result<()> {
        let (file, at) = self.place(position);
        if self.is_cached(position) {
            let room = buffer.prepare(0, length);
            return read_exact_at(&**file, &mut room[..length], at);
        }
        let lead = (at % BLOCK_BYTES as u64) as usize;
        let room = buffer.prepare(lead, length);
        let read = file.read_blocks_at(room, at - lead as u64)?;
        if read < lead + length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}
