//! Sequential reads of a file: the first, and a second one.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::fs::Advice;

use super::{FileMeasurement, timed};

/// The bytes that one call reads.
const READ_BYTES: usize = 1 << 20;

/// A copy on the ordinary file system.
pub(super) fn copy(file: &Path, beside: &Path) -> Result<PathBuf> {
    let copy = beside.join(format!("freezeframe-bench-copy-{}", std::process::id()));
    std::fs::copy(file, &copy).with_context(|| format!("copy {}", file.display()))?;
    File::open(&copy)?.sync_all()?;
    Ok(copy)
}

/// Megabytes per second of a first and of a second read. Before the first read, the kernel drops
/// the file from its page cache. It does not drop what it caches for the server, nor the blocks of
/// the copy: the two reads differ only in the page cache.
pub(super) fn read(file: &Path, path: &Path) -> Result<Vec<FileMeasurement>> {
    let (name, shown) = (file.display(), path.display());
    let open = File::open(path).with_context(|| format!("open {shown}"))?;
    rustix::fs::fadvise(&open, 0, None, Advice::DontNeed)
        .context("drop the file from the page cache")?;
    drop(open);
    let mut found = Vec::new();
    for which in ["first", "again"] {
        let (bytes, time) = timed(|| read_all(path))?;
        let rate = bytes as f64 / 1e6 / time.as_secs_f64();
        found.push(FileMeasurement::rate(format!("read {name}, {which}"), "MB/s", rate));
    }
    Ok(found)
}

fn read_all(path: &Path) -> Result<u64> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; READ_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(bytes),
            count => bytes += count as u64,
        }
    }
}
