//! A file of payloads: a segment of the journal, a sorted segment, or a compacted prefix.
//!
//! Reads for a consumer far behind go in whole blocks, around the page cache, into memory that is
//! reused: filling the kernel's page cache first costs more processor time than the reading. Data
//! that this incarnation of the store wrote in small groups is in the page cache already, and is
//! read from there. So are short reads, for which the kernel reads ahead.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::data_cache::DATA_BLOCK_BYTES;
use crate::disk::BLOCK_BYTES;
use crate::error::StorageError;
use crate::storage_file::StorageFile;

/// Reads shorter than this go through the page cache.
pub const DIRECT_READ_BYTES_MIN: usize = 128 << 10;

/// Memory of a source that is not shorter than this is asked for without room to align it.
const ALIGNED_BYTES_MIN: usize = 64 << 10;

/// The next file number of this process.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

/// Memory from elsewhere to read into.
pub trait LoadMemory: AsRef<[u8]> + AsMut<[u8]> + std::fmt::Debug + Send + Sync {}

impl<T: AsRef<[u8]> + AsMut<[u8]> + std::fmt::Debug + Send + Sync> LoadMemory for T {}

/// A source of memory to read into: such that a device may send from it, for example.
pub trait LoadMemorySource: Send + Sync {
    /// At least `length` bytes, with any content; `None` for memory of the heap.
    fn take(&self, length: usize) -> Option<Box<dyn LoadMemory>>;
}

/// Memory to read into.
#[derive(Default)]
pub struct LoadBuffer {
    memory: Option<Box<dyn LoadMemory>>,
    source: Option<Arc<dyn LoadMemorySource>>,
    /// The range of the memory that holds the requested bytes.
    held: Range<usize>,
}

impl std::fmt::Debug for LoadBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadBuffer({} bytes)", self.held.len())
    }
}

impl LoadBuffer {
    /// Memory of `source`, or of the heap if that has none.
    pub(crate) fn of(source: Option<Arc<dyn LoadMemorySource>>) -> LoadBuffer {
        LoadBuffer { source, ..LoadBuffer::default() }
    }

    /// The requested bytes.
    pub fn bytes(&self) -> &[u8] {
        let memory = self.memory.as_ref().map_or(&[][..], |memory| (**memory).as_ref());
        &memory[self.held.clone()]
    }

    /// Makes room for `length` bytes after `lead`, and the rest of the block.
    fn prepare(&mut self, lead: usize, length: usize) -> &mut [u8] {
        let room = (lead + length).next_multiple_of(BLOCK_BYTES);
        if !self.memory.as_ref().is_some_and(|memory| has_room((**memory).as_ref(), room)) {
            self.memory = None;
        }
        let memory = self.memory.get_or_insert_with(|| {
            // Long memory of a source begins at a block, as a rule.
            let length = if room < ALIGNED_BYTES_MIN { room + BLOCK_BYTES } else { room };
            let block = self.source.as_ref().and_then(|source| source.take(length));
            block
                .filter(|memory| has_room((**memory).as_ref(), room))
                .unwrap_or_else(|| Box::new(vec![0; room + BLOCK_BYTES]))
        });
        let memory = (**memory).as_mut();
        let from = memory.as_ptr().align_offset(BLOCK_BYTES);
        self.held = from + lead..from + lead + length;
        &mut memory[from..from + room]
    }

    /// Reduces the number of valid bytes to fewer than were prepared for.
    fn truncate(&mut self, length: usize) {
        self.held.end = self.held.end.min(self.held.start + length);
    }
}

/// Returns true if there are `room` bytes from the first block boundary on.
fn has_room(memory: &[u8], room: usize) -> bool {
    memory.len() >= room.saturating_add(memory.as_ptr().align_offset(BLOCK_BYTES))
}

/// A file of payloads.
pub struct DataFile {
    /// Its number among the files of this process, because names are reused.
    pub(crate) id: u64,
    file: StorageFile,
    /// The bytes in front of this are final. Later bytes may still be written, or do not exist.
    final_to: AtomicU64,
    /// The position at which a read of a block met the end of the file.
    ends_at: AtomicU64,
    /// The ranges that the page cache probably holds: what this incarnation wrote through it, in
    /// ascending order. The gaps between them were written around it.
    cached: Mutex<Vec<Range<u64>>>,
    /// The ranges that nobody needs any more and whose space this incarnation has given back, in
    /// ascending order and apart from each other.
    punched: Mutex<Vec<Range<u64>>>,
}

impl std::fmt::Debug for DataFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataFile").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl DataFile {
    /// A file that is final as a whole, until [`DataFile::set_final`] limits that.
    pub(crate) fn new(file: StorageFile) -> DataFile {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let [final_to, ends_at] = [(); 2].map(|()| AtomicU64::new(u64::MAX));
        let [cached, punched] = [(); 2].map(|()| Mutex::default());
        DataFile { id, file, final_to, ends_at, cached, punched }
    }

    /// Declares that only the bytes in front of `end` are final yet.
    pub(crate) fn set_final(&self, end: u64) {
        self.final_to.store(end, Ordering::Release);
    }

    /// Its name in the journal's directory.
    pub fn name(&self) -> &str {
        self.file.name()
    }

    pub(crate) fn file(&self) -> &StorageFile {
        &self.file
    }

    /// Gives the space of a range back that nobody needs any more: its whole blocks read as zeros
    /// then. Returns how many bytes they have.
    ///
    /// # Errors
    /// The disk fails.
    pub(crate) fn punch_hole(&self, range: Range<u64>) -> Result<u64, StorageError> {
        let block = BLOCK_BYTES as u64;
        let blocks = range.start.next_multiple_of(block)..range.end / block * block;
        if blocks.is_empty() {
            return Ok(0);
        }
        let mut punched = self.punched.lock();
        let from = punched.partition_point(|before| before.end < range.start);
        let to = punched.partition_point(|before| before.start <= range.end);
        let start =
            punched[from..to].first().map_or(range.start, |first| first.start.min(range.start));
        let end = punched[from..to].last().map_or(range.end, |last| last.end.max(range.end));
        // Before the bytes are gone: a reader that finds zeros asks.
        punched.splice(from..to, std::iter::once(start..end));
        drop(punched);
        self.file.punch_hole(blocks.clone())?;
        Ok(blocks.end - blocks.start)
    }

    /// Returns true if space of the range was given back while this file was open: a reader may
    /// find zeros there.
    pub fn is_punched(&self, range: &Range<u64>) -> bool {
        let punched = self.punched.lock();
        let after = punched.partition_point(|hole| hole.end <= range.start);
        punched.get(after).is_some_and(|hole| hole.start < range.end)
    }

    /// Records that `range`, which lies after all earlier ones, was written through the page cache.
    pub(crate) fn mark_cached(&self, range: Range<u64>) {
        let mut cached = self.cached.lock();
        match cached.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => cached.push(range),
        }
    }

    /// Forgets what was recorded from `at` on: it was cut off.
    pub(crate) fn forget_cached(&self, at: u64) {
        let mut cached = self.cached.lock();
        cached.retain(|range| range.start < at);
        if let Some(last) = cached.last_mut() {
            last.end = last.end.min(at);
        }
    }

    /// Returns true if the page cache probably holds the byte at `at`.
    fn is_cached(&self, at: u64) -> bool {
        let cached = self.cached.lock();
        let after = cached.partition_point(|range| range.end <= at);
        cached.get(after).is_some_and(|range| range.start <= at)
    }

    /// Reads `length` bytes at `at` if that does not wait for a disk; returns whether it did.
    ///
    /// # Errors
    /// The disk fails.
    pub fn load_cached(
        &self,
        buffer: &mut LoadBuffer,
        at: u64,
        length: usize,
    ) -> Result<bool, StorageError> {
        let likely = self.is_cached(at) && self.is_cached(at + length as u64 - 1);
        if !likely && length >= DIRECT_READ_BYTES_MIN {
            return Ok(false);
        }
        let room = buffer.prepare(0, length);
        Ok(self.file.read_cached_at(&mut room[..length], at)? == Some(length))
    }

    /// Reads `length` bytes at `at`. Blocks.
    ///
    /// # Errors
    /// The disk fails, or the file ends before.
    pub fn load(
        &self,
        buffer: &mut LoadBuffer,
        at: u64,
        length: usize,
    ) -> Result<(), StorageError> {
        if length < DIRECT_READ_BYTES_MIN || self.is_cached(at) {
            let room = buffer.prepare(0, length);
            return self.file.read_exact_at(&mut room[..length], at);
        }
        self.load_direct(buffer, at, length)
    }

    /// Reads `length` bytes at `at` in whole blocks, around the page cache if possible.
    pub(crate) fn load_direct(
        &self,
        buffer: &mut LoadBuffer,
        at: u64,
        length: usize,
    ) -> Result<(), StorageError> {
        let lead = (at % BLOCK_BYTES as u64) as usize;
        let room = buffer.prepare(lead, length);
        let read = self.file.read_direct_at(room, at - lead as u64)?;
        if read < lead + length {
            return Err(self.file.end_error(at - lead as u64 + read as u64));
        }
        Ok(())
    }

    /// Reads only the parts `ranges` of the `length` bytes at `at`, one by one, if they cannot be
    /// read in one go. Blocks.
    ///
    /// # Errors
    /// The first part that cannot be read, and why.
    pub fn load_ranges(
        &self,
        buffer: &mut LoadBuffer,
        (at, length): (u64, usize),
        ranges: impl Iterator<Item = Range<usize>>,
    ) -> Result<(), (usize, StorageError)> {
        let room = buffer.prepare(0, length);
        for (nth, range) in ranges.enumerate() {
            let from = at + range.start as u64;
            self.file.read_exact_at(&mut room[range], from).map_err(|error| (nth, error))?;
        }
        Ok(())
    }

    /// The range of block `number`, as far as its bytes are final.
    fn block_range(&self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(DATA_BLOCK_BYTES as u64);
        let end = start.saturating_add(DATA_BLOCK_BYTES as u64);
        start..end.min(self.final_to.load(Ordering::Acquire)).max(start)
    }

    /// Returns true if block `number` may have any bytes.
    pub(crate) fn has_block(&self, number: u64) -> bool {
        let range = self.block_range(number);
        !range.is_empty() && range.start < self.ends_at.load(Ordering::Relaxed)
    }

    /// Returns true if the page cache probably holds all of block `number`.
    pub(crate) fn is_block_cached(&self, number: u64) -> bool {
        let range = self.block_range(number);
        !range.is_empty() && self.is_cached(range.start) && self.is_cached(range.end - 1)
    }

    /// Reads the final bytes of block `number`; fewer at the end of the file. Blocks.
    pub(crate) fn read_block(
        &self,
        number: u64,
        mut buffer: LoadBuffer,
    ) -> Result<LoadBuffer, StorageError> {
        let range = self.block_range(number);
        let length = (range.end - range.start) as usize;
        let room = buffer.prepare(0, length);
        // Dirty pages in the page cache would have to be written to the disk first.
        let read = if self.overlaps_cached(&range) {
            self.file.read_at(&mut room[..length], range.start)?
        } else {
            self.file.read_direct_at(room, range.start)?
        };
        if read < length {
            self.ends_at.store(range.start + read as u64, Ordering::Relaxed);
        }
        buffer.truncate(read);
        Ok(buffer)
    }

    /// [`DataFile::read_block`] for a whole block that is in the page cache.
    pub(crate) fn read_cached_block(
        &self,
        number: u64,
        mut buffer: LoadBuffer,
    ) -> Result<Option<LoadBuffer>, StorageError> {
        let range = self.block_range(number);
        let length = (range.end - range.start) as usize;
        let room = buffer.prepare(0, length);
        let read = self.file.read_cached_at(&mut room[..length], range.start)?;
        Ok((read == Some(length)).then_some(buffer))
    }

    fn overlaps_cached(&self, range: &Range<u64>) -> bool {
        let cached = self.cached.lock();
        let after = cached.partition_point(|cached| cached.end <= range.start);
        cached.get(after).is_some_and(|cached| cached.start < range.end)
    }

    pub(crate) fn read_exact(&self, buffer: &mut [u8], at: u64) -> Result<(), StorageError> {
        self.file.read_exact_at(buffer, at)
    }

    /// An error that says that the bytes read are not the ones written.
    pub(crate) fn corruption_error(&self, at: u64, subject: &str) -> StorageError {
        StorageError::corrupt(self.name(), at, format!("{subject} is corrupt"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::disk::{Disk, MemoryDisk};

    proptest! {
        #[test]
        fn what_was_punched_is_known(
            holes in prop::collection::vec((0_u64..40, 2_u64..6), 0..12),
            asked in (0_u64..40, 1_u64..6),
        ) {
            // Each has a whole block, and some of others.
            let bytes = |place: u64| place * BLOCK_BYTES as u64 * 2 / 3;
            let disk = MemoryDisk::new();
            let file = StorageFile::new("a", disk.create("a").unwrap());
            let file = DataFile::new(file);
            let mut is_punched = [false; 50];
            for (start, length) in holes {
                let punched = file.punch_hole(bytes(start)..bytes(start + length)).unwrap();
                prop_assert!(punched % BLOCK_BYTES as u64 == 0);
                if punched == 0 {
                    continue;
                }
                is_punched[start as usize..(start + length) as usize].fill(true);
            }
            let ranges = file.punched.lock().clone();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{ranges:?}");
            let range = asked.0..asked.0 + asked.1;
            let expected = is_punched[range.start as usize..range.end as usize].contains(&true);
            prop_assert_eq!(file.is_punched(&(bytes(range.start)..bytes(range.end))), expected);
        }
    }
}
