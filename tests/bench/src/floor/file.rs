//! The file that bytes are written to, bypassing the page cache, in whole blocks.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use anyhow::{Context, Result};

pub(super) const BLOCK_BYTES: usize = 4096;
/// At this length a new file begins, as a server rolls segments; the previous one is removed.
const FILE_BYTES_MAX: u64 = 256 << 20;

pub(super) struct FloorFile {
    path: PathBuf,
    file: File,
    end: u64,
}

impl FloorFile {
    pub(super) fn create(path: PathBuf) -> Result<FloorFile> {
        let file = open(&path)?;
        Ok(FloorFile { path, file, end: 0 })
    }

    /// Writes whole blocks. The next call writes the last `again` bytes again.
    pub(super) fn write(&mut self, blocks: &[u8], again: usize, sync: bool) -> Result<()> {
        self.file.write_all_at(blocks, self.end).context("write what was received")?;
        if sync {
            self.file.sync_data().context("sync what was received")?;
        }
        self.end += (blocks.len() - again) as u64;
        if self.end >= FILE_BYTES_MAX {
            std::fs::remove_file(&self.path)?;
            self.file = open(&self.path)?;
            self.end = 0;
        }
        Ok(())
    }
}

fn open(path: &PathBuf) -> Result<File> {
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).custom_flags(direct);
    options.open(path).with_context(|| format!("open {}", path.display()))
}

impl Drop for FloorFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
