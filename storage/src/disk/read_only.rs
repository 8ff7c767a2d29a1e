//! One file of the machine's file system, for looking at it only: also while a server uses it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::DiskFile;
use super::real::read_at;

/// Opens a file to be read. What would change it fails.
///
/// # Errors
/// It cannot be opened.
pub fn open_read_only(path: &Path) -> io::Result<Arc<dyn DiskFile>> {
    Ok(Arc::new(ReadOnlyFile(File::open(path)?)))
}

struct ReadOnlyFile(File);

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl DiskFile for ReadOnlyFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        read_at(&self.0, buffer, position)
    }

    fn write_at(&self, _: &mut [io::IoSlice<'_>], _: u64) -> io::Result<()> {
        refused()
    }

    fn truncate(&self, _: u64) -> io::Result<()> {
        refused()
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        refused()
    }

    fn punch(&self, _: Range<u64>) -> io::Result<()> {
        refused()
    }

    fn sync(&self) -> io::Result<()> {
        refused()
    }
}
