//! The baseline: incompressible bytes, and a plain file that they are written to.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result};
use bytes::Bytes;
use testkit::rng::SeededRng;

pub(crate) const BLOCK_BYTES: u64 = 4096;
const SOURCE_BYTES: usize = 64 << 20;

/// More bytes than a processor's caches hold, to be written piece by piece. They are aligned to a
/// block in memory, so that they can bypass the page cache.
#[derive(Clone)]
pub(crate) struct ByteSource(Bytes);

impl ByteSource {
    pub(crate) fn new() -> ByteSource {
        let block = BLOCK_BYTES as usize;
        let mut random = SeededRng::new(1);
        let mut bytes = vec![0; SOURCE_BYTES + block];
        bytes
            .chunks_exact_mut(8)
            .for_each(|it| it.copy_from_slice(&random.next_u64().to_le_bytes()));
        let from = bytes.as_ptr().align_offset(block);
        ByteSource(Bytes::from(bytes).slice(from..from + SOURCE_BYTES))
    }

    /// The `nth` piece of `size` bytes. It starts again at the front after the last piece.
    pub(crate) fn piece(&self, nth: u64, size: u64) -> Bytes {
        let pieces = SOURCE_BYTES as u64 / size;
        let from = (nth % pieces * size) as usize;
        self.0.slice(from..from + size as usize)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The path by which a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritePath {
    PageCache,
    /// Bypassing it, with O_DIRECT: whole blocks only.
    Direct,
}

/// A new file that is written from its start to its end.
pub(crate) struct PlainFile {
    file: File,
    at: u64,
}

impl PlainFile {
    pub(crate) fn create(directory: &Path, through: WritePath) -> Result<PlainFile> {
        let flags =
            if through == WritePath::Direct { rustix::fs::OFlags::DIRECT.bits() } else { 0 };
        let path = directory.join("plain");
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).custom_flags(flags as i32);
        let file = options.open(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(PlainFile { file, at: 0 })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<()> {
        Ok(self.file.sync_data()?)
    }
}

/// Drops the files of a directory from the page cache, after writing what is not on the disk yet.
pub(crate) fn drop_page_cache(directory: &Path) -> Result<()> {
    rustix::fs::sync();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_file() {
            rustix::fs::fadvise(File::open(path)?, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_whole_blocks_stand_at_blocks_and_come_round_again() {
        let source = ByteSource::new();
        for size in [1 << 10, 64 << 10, 4 << 20] {
            let pieces = SOURCE_BYTES as u64 / size;
            assert_eq!(source.piece(pieces + 1, size), source.piece(1, size));
            assert_ne!(source.piece(0, size), source.piece(1, size));
        }
        let piece = source.piece(3, BLOCK_BYTES);
        assert_eq!(piece.as_ptr().align_offset(BLOCK_BYTES as usize), 0);
    }
}
