//! Blocks of data files in memory, shared by all readers.
//!
//! One budget holds the newest payloads (the tail) and these blocks. The blocks may fill what the
//! tail does not use. The tail may reclaim all of that except a quarter of the budget. So a reader
//! of old data never evicts the tail, and readers of the same old data read the disk once, even
//! while many payloads arrive.
//!
//! Only one thread loads a block; others that want the same block wait for it. Eviction is CLOCK: a
//! block that was used again stays for another round; a block that a single reader used once does
//! not.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Condvar, Mutex};

use crate::data_file::{DataFile, LoadBuffer, LoadMemorySource};
use crate::disk::BLOCK_BYTES;
use crate::error::StorageError;

/// The length of a block, the unit of reading from the disk.
pub const DATA_BLOCK_BYTES: usize = 1 << 20;
/// The memory that a block takes besides its bytes: it is page-aligned, and remembers checksums.
const OVERHEAD_BYTES: usize = BLOCK_BYTES + (2 << 10);
/// The share of the budget that a block takes, in bytes.
const BLOCK_CHARGE_BYTES: usize = DATA_BLOCK_BYTES + OVERHEAD_BYTES;
/// The tail leaves this share of the budget to blocks.
const BLOCKS_SHARE_DIVISOR: usize = 4;
/// The largest number of buffers of evicted blocks that are kept for reuse.
const POOLED_BUFFERS_MAX: usize = 8;
/// The checksum of a shorter range is computed each time: that is as fast as a lookup.
const CHECKSUM_MEMO_BYTES_MIN: usize = 4 << 10;
/// A cache with less room than this does not read ahead.
const READ_AHEAD_BYTES_MIN: usize = 4 * BLOCK_CHARGE_BYTES;

/// The number of the block of its file that holds the byte at `at`, and where in the block that is.
pub fn block_of(at: u64) -> (u64, usize) {
    (at / DATA_BLOCK_BYTES as u64, (at % DATA_BLOCK_BYTES as u64) as usize)
}

/// Buffers of evicted blocks.
type BufferPool = Mutex<Vec<LoadBuffer>>;

/// A block of a data file, as it was read.
pub struct DataFileBlock {
    buffer: LoadBuffer,
    checksums: Mutex<Vec<RangeChecksum>>,
    pool: Weak<BufferPool>,
}

/// CRC-32C of the bytes before a range, and of them with the range.
#[derive(Clone, Copy)]
struct RangeChecksum {
    start: u32,
    end: u32,
    before: u32,
    after: u32,
}

impl DataFileBlock {
    /// Its bytes. The last block of a file is shorter than others.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.bytes()
    }

    /// `before`, a CRC-32C, continued over `range` of the block. The first reader computes it, and
    /// it is remembered for the others: these bytes do not change.
    ///
    /// # Panics
    /// If the block is shorter.
    pub fn crc_append(&self, before: u32, range: Range<usize>) -> u32 {
        let bytes = &self.bytes()[range.clone()];
        if bytes.len() < CHECKSUM_MEMO_BYTES_MIN {
            return crc32c::crc32c_append(before, bytes);
        }
        let (start, end) = (range.start as u32, range.end as u32);
        let place = |sums: &[RangeChecksum]| sums.binary_search_by_key(&start, |sum| sum.start);
        {
            let sums = self.checksums.lock();
            let sum = place(&sums).ok().map(|index| sums[index]);
            if let Some(sum) = sum.filter(|sum| sum.end == end && sum.before == before) {
                return sum.after;
            }
        }
        let after = crc32c::crc32c_append(before, bytes);
        let sum = RangeChecksum { start, end, before, after };
        let mut sums = self.checksums.lock();
        match place(&sums) {
            Ok(index) => sums[index] = sum,
            Err(index) => sums.insert(index, sum),
        }
        after
    }
}

impl Drop for DataFileBlock {
    fn drop(&mut self) {
        let Some(pool) = self.pool.upgrade() else { return };
        let mut buffers = pool.lock();
        if buffers.len() < POOLED_BUFFERS_MAX {
            buffers.push(std::mem::take(&mut self.buffer));
        }
    }
}

impl std::fmt::Debug for DataFileBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DataFileBlock({} bytes)", self.bytes().len())
    }
}

/// The number of a file in this process, and of a block in it.
type BlockKey = (u64, u64);

enum BlockEntry {
    /// A thread reads it from the disk.
    Loading(Arc<PendingBlock>),
    /// It is in memory; whether it was used since the clock's hand passed.
    Cached(Arc<DataFileBlock>, AtomicBool),
}

/// A block that is being loaded.
#[derive(Default)]
struct PendingBlock {
    is_done: Mutex<bool>,
    done: Condvar,
}

#[derive(Default)]
struct BlockSlots {
    by_key: HashMap<BlockKey, BlockEntry>,
    /// The blocks in memory, in the order in which the clock's hand reaches them.
    clock: VecDeque<BlockKey>,
    /// The share of the budget that blocks in memory and blocks being loaded take.
    charged: usize,
}

/// Counters of a [`DataCache`].
#[derive(Debug, Default)]
pub struct DataCacheStats {
    /// Blocks that readers found in memory.
    pub hits: AtomicU64,
    /// Blocks that were read from files.
    pub loads: AtomicU64,
    /// The share of the budget that blocks take, in bytes.
    pub bytes: AtomicUsize,
}

/// Blocks of data files in memory.
pub struct DataCache {
    bytes_max: usize,
    tail_bytes: AtomicUsize,
    slots: Mutex<BlockSlots>,
    pool: Arc<BufferPool>,
    memory_source: OnceLock<Arc<dyn LoadMemorySource>>,
    stats: DataCacheStats,
}

impl std::fmt::Debug for DataCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataCache").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl DataCache {
    /// A cache of at most `bytes_max`, together with the tail.
    pub fn new(bytes_max: usize) -> DataCache {
        DataCache {
            bytes_max,
            tail_bytes: AtomicUsize::new(0),
            slots: Mutex::default(),
            pool: Arc::default(),
            memory_source: OnceLock::new(),
            stats: DataCacheStats::default(),
        }
    }

    /// From now on, files are read into memory of `source`. It can be set once.
    pub fn set_memory_source(&self, source: Arc<dyn LoadMemorySource>) {
        let _ = self.memory_source.set(source);
    }

    /// Memory to read into.
    pub fn new_buffer(&self) -> LoadBuffer {
        LoadBuffer::of(self.memory_source.get().cloned())
    }

    pub fn stats(&self) -> &DataCacheStats {
        &self.stats
    }

    /// The number of bytes that the tail may hold now.
    pub(crate) fn tail_bytes_max(&self) -> usize {
        let blocks =
            self.stats.bytes.load(Ordering::Relaxed).min(self.bytes_max / BLOCKS_SHARE_DIVISOR);
        self.bytes_max - blocks
    }

    /// Sets how many bytes the tail holds. Blocks in the space that it reclaimed are evicted.
    pub(crate) fn set_tail_bytes(&self, bytes: usize) {
        self.tail_bytes.store(bytes, Ordering::Relaxed);
        if self.stats.bytes.load(Ordering::Relaxed) > self.blocks_bytes_max() {
            self.evict(&mut self.slots.lock(), 0);
        }
    }

    fn blocks_bytes_max(&self) -> usize {
        let room = self.bytes_max.saturating_sub(self.tail_bytes.load(Ordering::Relaxed));
        room.max(self.bytes_max / BLOCKS_SHARE_DIVISOR)
    }

    /// Block `number` of `file` if it is in memory, and holds the first `length` of its bytes.
    pub fn get(&self, file: &DataFile, number: u64, length: usize) -> Option<Arc<DataFileBlock>> {
        let slots = self.slots.lock();
        match slots.by_key.get(&(file.id, number))? {
            BlockEntry::Cached(block, used) if block.bytes().len() >= length => {
                used.store(true, Ordering::Relaxed);
                self.stats.hits.fetch_add(1, Ordering::Relaxed);
                Some(Arc::clone(block))
            }
            _ => None,
        }
    }

    /// Returns true if there is room for blocks at all, and for some read-ahead.
    pub fn can_read_ahead(&self) -> bool {
        self.blocks_bytes_max() >= READ_AHEAD_BYTES_MIN
    }

    /// Returns true if block `number` of `file` is in memory, or being loaded.
    pub fn has(&self, file: &DataFile, number: u64) -> bool {
        self.slots.lock().by_key.contains_key(&(file.id, number))
    }

    /// Returns true if block `number` of `file` is to be read ahead: it is not in memory, it has
    /// bytes, and there is room for it.
    pub fn should_read_ahead(&self, file: &DataFile, number: u64) -> bool {
        self.can_read_ahead() && file.has_block(number) && !self.has(file, number)
    }

    /// Block `number` of `file`, with at least the first `length` of its bytes: from memory, or
    /// from the disk. Blocks.
    ///
    /// # Errors
    /// The disk fails, or the file ends before.
    pub fn load(
        &self,
        file: &DataFile,
        number: u64,
        length: usize,
    ) -> Result<Arc<DataFileBlock>, StorageError> {
        loop {
            if let Some(block) = self.get(file, number, length) {
                return Ok(block);
            }
            match self.lookup_or_begin(file, number, length) {
                BlockLookup::Cached => {}
                BlockLookup::Pending(pending) => pending.wait(),
                BlockLookup::Assigned(loading) => {
                    let block = loading.finish(file.read_block(number, self.buffer())?);
                    return require_length(block, file, number, length);
                }
            }
        }
    }

    /// [`DataCache::load`], if that does not wait for a disk or for another thread.
    ///
    /// # Errors
    /// As for [`DataCache::load`].
    pub fn try_load(
        &self,
        file: &DataFile,
        number: u64,
        length: usize,
    ) -> Result<Option<Arc<DataFileBlock>>, StorageError> {
        if let Some(block) = self.get(file, number, length) {
            return Ok(Some(block));
        }
        if !file.is_block_cached(number) {
            return Ok(None);
        }
        let BlockLookup::Assigned(loading) = self.lookup_or_begin(file, number, length) else {
            return Ok(None);
        };
        match file.read_cached_block(number, self.buffer())? {
            Some(buffer) => require_length(loading.finish(buffer), file, number, length).map(Some),
            None => Ok(None),
        }
    }

    /// Evicts block `number` of `file`, because the bytes read are not the ones written; reading it
    /// again may help.
    pub fn evict_block(&self, file: &DataFile, number: u64) {
        let (key, mut slots) = ((file.id, number), self.slots.lock());
        if matches!(slots.by_key.get(&key), Some(BlockEntry::Cached(..))) {
            self.remove(&mut slots, key);
            slots.clock.retain(|slot| *slot != key);
        }
    }

    fn buffer(&self) -> LoadBuffer {
        self.pool.lock().pop().unwrap_or_else(|| self.new_buffer())
    }

    fn lookup_or_begin(&self, file: &DataFile, number: u64, length: usize) -> BlockLookup<'_> {
        let (key, mut slots) = ((file.id, number), self.slots.lock());
        match slots.by_key.get(&key) {
            Some(BlockEntry::Loading(pending)) => return BlockLookup::Pending(Arc::clone(pending)),
            Some(BlockEntry::Cached(block, _)) if block.bytes().len() >= length => {
                return BlockLookup::Cached;
            }
            // The file has grown since.
            Some(BlockEntry::Cached(..)) => {
                self.remove(&mut slots, key);
                slots.clock.retain(|slot| *slot != key);
            }
            None => {}
        }
        self.evict(&mut slots, BLOCK_CHARGE_BYTES);
        let pending = Arc::new(PendingBlock::default());
        slots.by_key.insert(key, BlockEntry::Loading(Arc::clone(&pending)));
        slots.charged += BLOCK_CHARGE_BYTES;
        self.stats.bytes.store(slots.charged, Ordering::Relaxed);
        BlockLookup::Assigned(BlockLoad { cache: self, key, pending })
    }

    fn remove(&self, slots: &mut BlockSlots, key: BlockKey) {
        if slots.by_key.remove(&key).is_some() {
            slots.charged -= BLOCK_CHARGE_BYTES;
            self.stats.bytes.store(slots.charged, Ordering::Relaxed);
        }
    }

    /// Evicts blocks until there is room for `added_bytes`, or none is in memory.
    fn evict(&self, slots: &mut BlockSlots, added_bytes: usize) {
        let limit = self.blocks_bytes_max();
        while slots.charged + added_bytes > limit {
            let Some(key) = slots.clock.pop_front() else { break };
            match slots.by_key.get(&key) {
                Some(BlockEntry::Cached(_, used)) if used.swap(false, Ordering::Relaxed) => {
                    slots.clock.push_back(key);
                }
                _ => self.remove(slots, key),
            }
        }
    }
}

/// The thread that loads a block, unless it is cached.
enum BlockLookup<'a> {
    Cached,
    /// Another thread.
    Pending(Arc<PendingBlock>),
    Assigned(BlockLoad<'a>),
}

/// A load in progress. The threads that wait for it continue after success and after failure.
struct BlockLoad<'a> {
    cache: &'a DataCache,
    key: BlockKey,
    pending: Arc<PendingBlock>,
}

impl BlockLoad<'_> {
    /// The block that was read. It stays in the cache if there is room for it.
    fn finish(self, buffer: LoadBuffer) -> Arc<DataFileBlock> {
        let cache = self.cache;
        cache.stats.loads.fetch_add(1, Ordering::Relaxed);
        let pool = Arc::downgrade(&cache.pool);
        let block = Arc::new(DataFileBlock { buffer, checksums: Mutex::default(), pool });
        let mut slots = cache.slots.lock();
        if slots.charged <= cache.blocks_bytes_max() && !block.bytes().is_empty() {
            let entry = BlockEntry::Cached(Arc::clone(&block), AtomicBool::new(false));
            slots.by_key.insert(self.key, entry);
            slots.clock.push_back(self.key);
        }
        block
    }
}

impl Drop for BlockLoad<'_> {
    fn drop(&mut self) {
        let mut slots = self.cache.slots.lock();
        if matches!(slots.by_key.get(&self.key), Some(BlockEntry::Loading(_))) {
            self.cache.remove(&mut slots, self.key);
        }
        drop(slots);
        *self.pending.is_done.lock() = true;
        self.pending.done.notify_all();
    }
}

impl PendingBlock {
    fn wait(&self) {
        let mut is_done = self.is_done.lock();
        while !*is_done {
            self.done.wait(&mut is_done);
        }
    }
}

fn require_length(
    block: Arc<DataFileBlock>,
    file: &DataFile,
    number: u64,
    length: usize,
) -> Result<Arc<DataFileBlock>, StorageError> {
    let length_read = block.bytes().len();
    if length_read < length {
        return Err(file.file().end_error(number * DATA_BLOCK_BYTES as u64 + length_read as u64));
    }
    Ok(block)
}

#[cfg(test)]
mod tests;
