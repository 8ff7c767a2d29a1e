//! Writing a large group around the page cache.
//!
//! The disk takes whole blocks, but a group begins and ends anywhere. So its first and last bytes,
//! less than a block each, go through the page cache. The bytes between go to the disk from a
//! buffer that is reused. No block is written that holds bytes of an earlier group.

use crate::disk::BLOCK_BYTES;
use crate::error::StorageError;
use crate::storage_file::StorageFile;

/// The number of bytes that one write passes to the disk.
const BUFFER_BYTES: usize = 2 << 20;

/// The buffer; allocated at its first use.
#[derive(Default)]
pub(crate) struct DirectWriter {
    memory: Vec<u8>,
}

impl DirectWriter {
    /// Writes `slices`, one after the other, at `position` of the file.
    pub(crate) fn write<'a>(
        &mut self,
        file: &StorageFile,
        slices: impl Iterator<Item = &'a [u8]>,
        position: u64,
    ) -> Result<(), StorageError> {
        if self.memory.is_empty() {
            self.memory = vec![0; BUFFER_BYTES + BLOCK_BYTES];
        }
        let from = self.memory.as_ptr().align_offset(BLOCK_BYTES);
        let stage = &mut self.memory[from..from + BUFFER_BYTES];
        let into_block = (position % BLOCK_BYTES as u64) as usize;
        // Up to the first whole block, then one buffer at a time.
        let mut filling = if into_block == 0 { BUFFER_BYTES } else { BLOCK_BYTES - into_block };
        let (mut filled, mut position) = (0, position);
        for mut slice in slices {
            while !slice.is_empty() {
                let count = slice.len().min(filling - filled);
                stage[filled..filled + count].copy_from_slice(&slice[..count]);
                filled += count;
                slice = &slice[count..];
                if filled == filling {
                    put(file, &stage[..filled], position)?;
                    position += filled as u64;
                    (filled, filling) = (0, BUFFER_BYTES);
                }
            }
        }
        let whole = filled - filled % BLOCK_BYTES;
        let is_aligned = position.is_multiple_of(BLOCK_BYTES as u64);
        let whole = if is_aligned { whole } else { 0 };
        put(file, &stage[..whole], position)?;
        put(file, &stage[whole..filled], position + whole as u64)
    }
}

fn put(file: &StorageFile, bytes: &[u8], position: u64) -> Result<(), StorageError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let block = BLOCK_BYTES as u64;
    if position.is_multiple_of(block) && bytes.len().is_multiple_of(BLOCK_BYTES) {
        file.write_direct_at(bytes, position)
    } else {
        file.write_at(bytes, position)
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::disk::{Disk, DiskFile, MemoryDisk};

    /// A file that counts what was written to it through the page cache.
    struct WriteCountingFile {
        file: Arc<dyn DiskFile>,
        cached: AtomicU64,
    }

    impl DiskFile for WriteCountingFile {
        fn length(&self) -> io::Result<u64> {
            self.file.length()
        }

        fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
            self.file.read_at(buffer, position)
        }

        fn write_at(&self, slices: &mut [io::IoSlice<'_>], position: u64) -> io::Result<()> {
            let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
            self.cached.fetch_add(bytes as u64, Ordering::Relaxed);
            self.file.write_at(slices, position)
        }

        fn write_direct_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
            self.file.write_direct_at(bytes, position)
        }

        fn truncate(&self, length: u64) -> io::Result<()> {
            self.file.truncate(length)
        }

        fn punch_hole(&self, range: std::ops::Range<u64>) -> io::Result<()> {
            self.file.punch_hole(range)
        }

        fn sync(&self) -> io::Result<()> {
            self.file.sync()
        }
    }

    #[test]
    fn only_what_is_less_than_a_block_at_both_ends_goes_through_the_page_cache() {
        let block = BLOCK_BYTES as u64;
        for position in [0, 1, block - 1, block, 3 * block + 100] {
            for length in
                [0, 1, block - 1, block, 2 * block, 5 * block + 7, 3 * BUFFER_BYTES as u64]
            {
                let disk = MemoryDisk::new();
                let counting = Arc::new(WriteCountingFile {
                    file: disk.create("f").unwrap(),
                    cached: AtomicU64::new(0),
                });
                let file = StorageFile::new("f", counting.clone());
                let bytes = vec![5; length as usize];
                let mut blocks = DirectWriter::default();
                blocks.write(&file, [&bytes[..]].into_iter(), position).unwrap();
                let (first, last) =
                    (position.next_multiple_of(block), (position + length) / block * block);
                let around = last.saturating_sub(first);
                let cached = counting.cached.load(Ordering::Relaxed);
                assert_eq!(cached, length - around, "{length} at {position}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_file_holds_the_slices_one_after_the_other_and_what_was_before_them(
            position in 0_usize..20_000,
            lengths in prop::collection::vec(0_usize..1_500_000, 0..6),
        ) {
            let disk = MemoryDisk::new();
            let file = StorageFile::create(&disk, "f").unwrap();
            let before = vec![7; position];
            file.write_at(&before, 0).unwrap();
            let slices: Vec<Vec<u8>> = lengths
                .iter()
                .enumerate()
                .map(|(nth, length)| (0..*length).map(|i| (i * 31 + nth) as u8).collect())
                .collect();
            let mut blocks = DirectWriter::default();
            blocks.write(&file, slices.iter().map(Vec::as_slice), position as u64).unwrap();
            let expected = [vec![before], slices].concat().concat();
            prop_assert_eq!(disk.bytes("f"), expected);
        }
    }
}
