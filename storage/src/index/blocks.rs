//! Blocks: the unit in which index files are read, checked and kept in memory.
//!
//! They are read, and not mapped: what they take is bounded by configuration, a disk that fails is an
//! error and no signal, and the faulty disk of the tests sees every read (ADR 0007).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::Cache;

use crate::disk::{DiskFile, read_exact_at};

/// The length of a block.
pub(crate) const INDEX_BLOCK_BYTES: usize = 4096;
/// What stands before the content of a block.
pub(crate) const LEAD_BYTES: usize = 8;
/// How much a block holds.
pub(crate) const CONTENT_BYTES: usize = INDEX_BLOCK_BYTES - LEAD_BYTES;

/// The bytes of a block, checked.
pub(crate) type Block = Arc<[u8; INDEX_BLOCK_BYTES]>;

/// The checksum of a block: over where it belongs, and what is in it.
fn block_crc(start: u64, number: u64, bytes: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&start.to_le_bytes());
    let crc = crc32c::crc32c_append(crc, &number.to_le_bytes());
    crc32c::crc32c_append(crc, &bytes[4..])
}

/// Writes the lead of a block whose content is in place; `count` says how much of it counts.
pub(crate) fn seal_block(bytes: &mut [u8], start: u64, number: u64, count: u32) {
    bytes[4..8].copy_from_slice(&count.to_le_bytes());
    let crc = block_crc(start, number, bytes);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

/// What the lead of a block says how much of it counts, if its checksum matches.
pub(crate) fn open_block(bytes: &[u8], start: u64, number: u64) -> Option<u32> {
    let field = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|nth| bytes[at + nth]));
    (field(0) == block_crc(start, number, bytes)).then(|| field(4))
}

/// The blocks of all index files that were used last, under one budget.
pub struct BlockCache {
    blocks: Cache<(u64, u64), Block>,
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

    /// How much it holds.
    pub fn held_bytes(&self) -> usize {
        self.blocks.len() * INDEX_BLOCK_BYTES
    }

    /// Looks answered without the disk, and those that were not.
    pub fn counts(&self) -> (u64, u64) {
        (self.blocks.hits(), self.blocks.misses())
    }
}

/// The blocks of one file.
pub(crate) struct Blocks {
    pub(crate) name: String,
    file: Arc<dyn DiskFile>,
    cache: Arc<BlockCache>,
    id: u64,
    /// The position at which the indexed stretch begins: no block passes for another file's.
    start: u64,
}

impl Blocks {
    pub(crate) fn new(
        name: String,
        file: Arc<dyn DiskFile>,
        cache: Arc<BlockCache>,
        start: u64,
    ) -> Blocks {
        let id = cache.next_file.fetch_add(1, Ordering::Relaxed);
        Blocks { name, file, cache, id, start }
    }

    /// Block `number`, from the cache or the disk.
    pub(crate) fn get(&self, number: u64) -> io::Result<Block> {
        self.cache.blocks.get_or_insert_with(&(self.id, number), || self.load(number))
    }

    fn load(&self, number: u64) -> io::Result<Block> {
        let mut bytes = [0; INDEX_BLOCK_BYTES];
        read_exact_at(&*self.file, &mut bytes, number * INDEX_BLOCK_BYTES as u64)?;
        match open_block(&bytes, self.start, number) {
            Some(_) => Ok(Arc::new(bytes)),
            None => Err(self.damaged(number)),
        }
    }

    pub(crate) fn damaged(&self, number: u64) -> io::Error {
        let name = &self.name;
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("an index is damaged: block {number} of {name}; it is rebuilt"),
        )
    }
}
