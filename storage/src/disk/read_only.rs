//! A directory of the machine's file system, for inspection only, even where it cannot be changed.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::real::read_at;
use super::{Disk, DiskFile};

/// A directory of the machine's file system, for reading. Operations that would change it fail.
#[derive(Debug)]
pub struct ReadOnlyDisk(PathBuf);

impl ReadOnlyDisk {
    /// Reads the files of `directory`, and changes none.
    pub fn new(directory: &Path) -> ReadOnlyDisk {
        ReadOnlyDisk(directory.to_owned())
    }
}

impl Disk for ReadOnlyDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        open_read_only(&self.0.join(name))
    }

    fn create(&self, _: &str) -> io::Result<Arc<dyn DiskFile>> {
        read_only_error()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        read_only_error()
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        read_only_error()
    }

    fn sync_directory(&self) -> io::Result<()> {
        read_only_error()
    }
}

/// Opens a file for reading. Operations that would change it fail.
///
/// # Errors
/// It cannot be opened.
pub fn open_read_only(path: &Path) -> io::Result<Arc<dyn DiskFile>> {
    Ok(Arc::new(ReadOnlyFile(File::open(path)?)))
}

struct ReadOnlyFile(File);

fn read_only_error<T>() -> io::Result<T> {
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
        read_only_error()
    }

    fn truncate(&self, _: u64) -> io::Result<()> {
        read_only_error()
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        read_only_error()
    }

    fn punch_hole(&self, _: Range<u64>) -> io::Result<()> {
        read_only_error()
    }

    fn sync(&self) -> io::Result<()> {
        read_only_error()
    }
}
