//! Blocks: the unit in which index files are read, verified and cached.
//!
//! They are read, and not mapped: configuration bounds their memory, a disk failure is an error and
//! not a signal, and the faulty disk of the tests sees every read (ADR 0007).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;

use crate::disk::Disk;
use crate::error::StorageError;
use crate::storage_file::StorageFile;

pub(crate) const INDEX_BLOCK_BYTES: usize = 4096;
pub(crate) const BLOCK_HEADER_BYTES: usize = 8;
/// The length of a block's content.
pub(crate) const CONTENT_BYTES: usize = INDEX_BLOCK_BYTES - BLOCK_HEADER_BYTES;

/// The bytes of a block, verified.
pub(crate) type IndexBlock = Arc<[u8; INDEX_BLOCK_BYTES]>;

/// The checksum of a block: over its place, and its content.
fn block_crc(start: u64, number: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&start.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
    crc32c::crc32c_append(crc, &bytes[4..])
}

/// Writes the header of a block whose content is in place; `count` says how much of it is valid.
pub(crate) fn write_block_checksum(bytes: &mut [u8], start: u64, number: u64, count: u32) {
    bytes[4..8].copy_from_slice(&count.to_le_bytes());
    let crc = block_crc(start, number, bytes);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

/// Returns the count in a block's header, if its checksum matches.
pub(crate) fn verify_block_checksum(bytes: &[u8], start: u64, number: u64) -> Option<u32> {
    let field = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|nth| bytes[at + nth]));
    (field(0) == block_crc(start, number, bytes)).then(|| field(4))
}

/// The most recently used blocks of all index files, under one budget.
pub struct BlockCache {
    blocks: Cache<(u64, u64), IndexBlock>,
    next_file: AtomicU64,
}

impl std::fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockCache").field("held_bytes", &self.held_bytes()).finish()
    }
}

impl BlockCache {
    /// A cache of at most `bytes_max`.
    pub fn new(bytes_max: usize) -> BlockCache {
        let blocks = Cache::new((bytes_max / INDEX_BLOCK_BYTES).max(16));
        BlockCache { blocks, next_file: AtomicU64::new(0) }
    }

    /// The number of bytes that it holds.
    pub fn held_bytes(&self) -> usize {
        self.blocks.len() * INDEX_BLOCK_BYTES
    }

    /// Cache hits, and misses.
    pub fn counts(&self) -> (u64, u64) {
        (self.blocks.hits(), self.blocks.misses())
    }
}

/// The blocks of one file.
pub(crate) struct IndexBlockReader {
    file: StorageFile,
    cache: Arc<BlockCache>,
    id: u64,
    /// The position at which the indexed segment begins: no block passes for another file's.
    start: u64,
}

impl IndexBlockReader {
    pub(crate) fn new(file: StorageFile, cache: Arc<BlockCache>, start: u64) -> IndexBlockReader {
        let id = cache.next_file.fetch_add(1, Ordering::Relaxed);
        IndexBlockReader { file, cache, id, start }
    }

    /// The name of the file.
    pub(crate) fn name(&self) -> &str {
        self.file.name()
    }

    /// Block `number`, from the cache or the disk.
    pub(crate) fn get(&self, number: u64) -> Result<IndexBlock, StorageError> {
        self.cache.blocks.get_or_insert_with(&(self.id, number), || self.load(number))
    }

    fn load(&self, number: u64) -> Result<IndexBlock, StorageError> {
        let mut bytes = [0; INDEX_BLOCK_BYTES];
        self.file.read_exact_at(&mut bytes, number * INDEX_BLOCK_BYTES as u64)?;
        match verify_block_checksum(&bytes, self.start, number) {
            Some(_) => Ok(Arc::new(bytes)),
            None => Err(self.corruption_error(number)),
        }
    }

    /// The numbers of those of the first `count` blocks that are corrupt, or cannot be read; of
    /// those behind the end of the file only the first.
    pub(crate) fn corrupt_among(&self, count: u64) -> Result<Vec<u64>, StorageError> {
        let whole = self.file.length()? / INDEX_BLOCK_BYTES as u64;
        let mut damaged = Vec::new();
        for number in 0..count.min(whole.saturating_add(1)) {
            match self.get(number) {
                Ok(_) => {}
                Err(error) if error.is_data_loss() => damaged.push(number),
                Err(error) => return Err(error),
            }
        }
        Ok(damaged)
    }

    pub(crate) fn corruption_error(&self, number: u64) -> StorageError {
        let reason = format!("block {number} is corrupt, and the index is rebuilt");
        StorageError::corrupt(self.name(), number * INDEX_BLOCK_BYTES as u64, reason)
    }
}

/// The number of bytes that one write passes to the disk.
const WRITE_BYTES: usize = 1 << 20;

/// Writes a file of blocks: records, or bytes, one after the other. Block 0 is written last.
pub(crate) struct BlockWriter {
    file: StorageFile,
    start: u64,
    pending: Vec<u8>,
    /// The number of blocks that were written.
    written: u64,
    /// The block being filled, and how many records are in it.
    block: Box<[u8; INDEX_BLOCK_BYTES]>,
    filled: u64,
}

impl BlockWriter {
    /// Creates the file `name`, of a segment that begins at `start`. An existing file of that name
    /// was left by a crash.
    pub(crate) fn create(
        disk: &dyn Disk,
        name: &str,
        start: u64,
    ) -> Result<BlockWriter, StorageError> {
        Ok(BlockWriter {
            file: StorageFile::create_or_replace(disk, name)?,
            start,
            pending: Vec::new(),
            written: 1,
            block: Box::new([0; INDEX_BLOCK_BYTES]),
            filled: 0,
        })
    }

    /// Adds a record to the block, or to the next one.
    pub(crate) fn record<const BYTES: usize>(
        &mut self,
        record: &[u8; BYTES],
    ) -> Result<(), StorageError> {
        let at = BLOCK_HEADER_BYTES + self.filled as usize * BYTES;
        self.block[at..at + BYTES].copy_from_slice(record);
        self.filled += 1;
        let is_full = at + 2 * BYTES > INDEX_BLOCK_BYTES;
        if is_full { self.end_block() } else { Ok(()) }
    }

    /// Ends the block, if there is anything in it: the next record begins a new one.
    pub(crate) fn end_block(&mut self) -> Result<(), StorageError> {
        match std::mem::take(&mut self.filled) as u32 {
            0 => Ok(()),
            count => self.finish_block(count),
        }
    }

    /// Adds bytes in blocks of their own.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        for chunk in bytes.chunks(CONTENT_BYTES) {
            self.block[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + chunk.len()].copy_from_slice(chunk);
            self.finish_block(chunk.len() as u32)?;
        }
        Ok(())
    }

    fn finish_block(&mut self, count: u32) -> Result<(), StorageError> {
        let number = self.written + (self.pending.len() / INDEX_BLOCK_BYTES) as u64;
        write_block_checksum(&mut self.block[..], self.start, number, count);
        self.pending.extend_from_slice(&self.block[..]);
        self.block.fill(0);
        if self.pending.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StorageError> {
        let at = self.written * INDEX_BLOCK_BYTES as u64;
        self.file.write_at(&self.pending, at)?;
        self.written += (self.pending.len() / INDEX_BLOCK_BYTES) as u64;
        self.pending.clear();
        Ok(())
    }

    /// Writes the rest, then block 0, and puts the file on stable storage, but not its name.
    pub(crate) fn finish(mut self, header: &[u8; INDEX_BLOCK_BYTES]) -> Result<(), StorageError> {
        self.end_block()?;
        self.flush()?;
        self.file.write_at(header, 0)?;
        self.file.sync()
    }
}
