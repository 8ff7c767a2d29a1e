use std::io;
use std::sync::Barrier;
use std::sync::atomic::AtomicI64;

use super::*;
use crate::disk::{Disk, DiskFile, MemoryDisk};
use crate::storage_file::StorageFile;

/// A file that counts how often its bytes are read, and fails on request.
struct LoadCountingFile {
    inner: Arc<dyn DiskFile>,
    reads: AtomicU64,
    /// The number of reads that fail.
    failures: AtomicI64,
}

impl DiskFile for LoadCountingFile {
    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.failures.fetch_sub(1, Ordering::Relaxed) > 0 {
            return Err(io::Error::other("a bad sector"));
        }
        self.inner.read_at(buffer, position)
    }

    fn write_at(&self, slices: &mut [io::IoSlice<'_>], position: u64) -> io::Result<()> {
        self.inner.write_at(slices, position)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.inner.truncate(length)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.punch_hole(range)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// A file of `blocks` blocks and a half; each byte says in which block it is.
fn file_of(blocks: usize) -> (Arc<LoadCountingFile>, DataFile) {
    let inner = MemoryDisk::new().create("data").unwrap();
    let bytes: Vec<u8> = (0..blocks * DATA_BLOCK_BYTES + DATA_BLOCK_BYTES / 2)
        .map(|at| (at / DATA_BLOCK_BYTES) as u8)
        .collect();
    inner.write_at(&mut [io::IoSlice::new(&bytes)], 0).unwrap();
    let counting =
        Arc::new(LoadCountingFile { inner, reads: AtomicU64::new(0), failures: AtomicI64::new(0) });
    let file = DataFile::new(StorageFile::new("data", counting.clone()));
    (counting, file)
}

#[test]
fn readers_of_one_block_at_the_same_time_read_the_disk_once() {
    let (disk, file) = file_of(3);
    let cache = DataCache::new(8 * BLOCK_CHARGE_BYTES);
    let start = Barrier::new(10);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                start.wait();
                for number in 0..4 {
                    let block = cache.load(&file, number, 1000).unwrap();
                    assert!(block.bytes().iter().all(|byte| u64::from(*byte) == number));
                }
            });
        }
    });
    assert_eq!(disk.reads.load(Ordering::Relaxed), 4);
    assert_eq!(cache.stats.loads.load(Ordering::Relaxed), 4);
    assert_eq!(cache.get(&file, 3, 0).unwrap().bytes().len(), DATA_BLOCK_BYTES / 2);
    assert!(!cache.should_read_ahead(&file, 4), "a read came to the end of the file");
}

#[test]
fn a_block_that_was_not_final_yet_is_read_again_and_never_beyond_what_is() {
    let (disk, file) = file_of(1);
    let cache = DataCache::new(8 * BLOCK_CHARGE_BYTES);
    file.set_final(5000);
    assert!(!cache.should_read_ahead(&file, 1));
    assert_eq!(cache.load(&file, 0, 5000).unwrap().bytes().len(), 5000);
    assert!(cache.get(&file, 0, 5001).is_none());
    assert!(cache.load(&file, 0, 5001).unwrap_err().is_corruption());
    file.set_final(9000);
    assert_eq!(cache.load(&file, 0, 5001).unwrap().bytes().len(), 9000);
    assert_eq!(cache.load(&file, 0, 9000).unwrap().bytes().len(), 9000);
    assert_eq!(disk.reads.load(Ordering::Relaxed), 3);
    assert_eq!(cache.slots.lock().clock.len(), 1);
}

#[test]
fn blocks_fill_what_the_tail_leaves_and_yield_it_but_for_a_quarter() {
    let (_, file) = file_of(20);
    let cache = DataCache::new(8 * BLOCK_CHARGE_BYTES);
    let load_all = || (0..20).for_each(|number| drop(cache.load(&file, number, 1).unwrap()));
    let block_count = || cache.stats.bytes.load(Ordering::Relaxed) / BLOCK_CHARGE_BYTES;
    load_all();
    assert_eq!(block_count(), 8);
    assert_eq!(cache.tail_bytes_max(), 6 * BLOCK_CHARGE_BYTES);
    cache.set_tail_bytes(3 * BLOCK_CHARGE_BYTES);
    assert_eq!(block_count(), 5);
    cache.set_tail_bytes(8 * BLOCK_CHARGE_BYTES);
    assert_eq!(block_count(), 2);
    load_all();
    assert_eq!(block_count(), 2);
}

#[test]
fn without_room_a_block_is_read_and_not_kept() {
    let (disk, file) = file_of(2);
    let cache = DataCache::new(1);
    for _ in 0..2 {
        assert_eq!(cache.load(&file, 1, DATA_BLOCK_BYTES).unwrap().bytes()[7], 1);
        assert!(!cache.has(&file, 1) && !cache.should_read_ahead(&file, 0));
    }
    assert_eq!(disk.reads.load(Ordering::Relaxed), 2);
    assert_eq!(cache.stats.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn a_block_that_is_used_again_outlives_one_that_a_scan_passed_by() {
    let (_, file) = file_of(30);
    let cache = DataCache::new(8 * BLOCK_CHARGE_BYTES);
    cache.load(&file, 0, 1).unwrap();
    for number in 1..30 {
        assert!(cache.get(&file, 0, 1).is_some(), "before block {number}");
        cache.load(&file, number, 1).unwrap();
    }
    assert!(!cache.has(&file, 1));
}

#[test]
fn a_load_that_fails_is_tried_again_by_each_who_waits() {
    let (disk, file) = file_of(1);
    let cache = DataCache::new(8 * BLOCK_CHARGE_BYTES);
    disk.failures.store(3, Ordering::Relaxed);
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| match cache.load(&file, 0, 1) {
                Ok(block) => assert_eq!(block.bytes()[0], 0),
                Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
            });
        }
    });
    assert_eq!(failed.load(Ordering::Relaxed), 3);
    assert_eq!(disk.reads.load(Ordering::Relaxed), 4);
    assert_eq!(cache.stats.bytes.load(Ordering::Relaxed), BLOCK_CHARGE_BYTES);
}

#[test]
fn a_checksum_is_remembered_for_its_range_and_what_came_before_it() {
    let (_, file) = file_of(1);
    let cache = DataCache::new(8 * BLOCK_CHARGE_BYTES);
    let block = cache.load(&file, 0, 1).unwrap();
    let ranges = [0..DATA_BLOCK_BYTES, 100..90_000, 100..5000, 7..9, 20_000..20_000];
    for before in [0, 77] {
        for range in ranges.iter().cycle().take(2 * ranges.len()) {
            let expected = crc32c::crc32c_append(before, &block.bytes()[range.clone()]);
            assert_eq!(block.crc_append(before, range.clone()), expected, "{before} {range:?}");
        }
    }
    assert_eq!(block.checksums.lock().len(), 2, "one for each place, and none for a few bytes");
}

#[test]
fn what_was_evicted_is_read_again() {
    let (disk, file) = file_of(1);
    let cache = DataCache::new(8 * BLOCK_CHARGE_BYTES);
    for _ in 0..2 {
        cache.load(&file, 0, 1).unwrap();
        cache.evict_block(&file, 0);
    }
    assert_eq!(disk.reads.load(Ordering::Relaxed), 2);
    assert!(cache.slots.lock().clock.is_empty());
}
