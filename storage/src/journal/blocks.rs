//! Writing a large group around the page cache.
//!
//! The disk takes whole blocks, and a group begins and ends anywhere. So its first and last bytes,
//! less than a block each, go through the page cache, and what lies between goes to the disk from a
//! buffer that is used again and again. No block is written that holds bytes of an earlier group.

use std::io;

use crate::disk::{BLOCK_BYTES, DiskFile};

/// How much is handed to the disk at once.
const STAGE_BYTES: usize = 2 << 20;

/// The buffer; made at its first use.
#[derive(Default)]
pub(crate) struct Blocks {
    memory: Vec<u8>,
}

impl Blocks {
    /// Writes `slices`, one after the other, at `position` of the file.
    pub(crate) fn write<'a>(
        &mut self,
        file: &dyn DiskFile,
        slices: impl Iterator<Item = &'a [u8]>,
        position: u64,
    ) -> io::Result<()> {
        if self.memory.is_empty() {
            self.memory = vec![0; STAGE_BYTES + BLOCK_BYTES];
        }
        let from = self.memory.as_ptr().align_offset(BLOCK_BYTES);
        let stage = &mut self.memory[from..from + STAGE_BYTES];
        let into_block = (position % BLOCK_BYTES as u64) as usize;
        // Up to the first whole block, then by the stage.
        let mut filling = if into_block == 0 { STAGE_BYTES } else { BLOCK_BYTES - into_block };
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
                    (filled, filling) = (0, STAGE_BYTES);
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

fn put(file: &dyn DiskFile, bytes: &[u8], position: u64) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let block = BLOCK_BYTES as u64;
    if position.is_multiple_of(block) && bytes.len().is_multiple_of(BLOCK_BYTES) {
        file.write_blocks_at(bytes, position)
    } else {
        file.write_at(&mut [io::IoSlice::new(bytes)], position)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::disk::{Disk, MemoryDisk};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_file_holds_the_slices_one_after_the_other_and_what_was_before_them(
            position in 0_usize..20_000,
            lengths in prop::collection::vec(0_usize..1_500_000, 0..6),
        ) {
            let disk = MemoryDisk::new();
            let file = disk.create("f").unwrap();
            let before = vec![7; position];
            file.write_at(&mut [io::IoSlice::new(&before)], 0).unwrap();
            let slices: Vec<Vec<u8>> = lengths
                .iter()
                .enumerate()
                .map(|(nth, length)| (0..*length).map(|i| (i * 31 + nth) as u8).collect())
                .collect();
            let mut blocks = Blocks::default();
            blocks.write(&*file, slices.iter().map(Vec::as_slice), position as u64).unwrap();
            let expected = [vec![before], slices].concat().concat();
            prop_assert_eq!(disk.bytes("f"), expected);
        }
    }
}
