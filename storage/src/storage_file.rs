//! A file with its name: where errors of the disk become errors of the storage.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, create_or_replace};
use crate::error::{FileContext, StorageError, if_exists};

/// A file of the journal's directory, and its name. Its errors name it.
#[derive(Clone)]
pub struct StorageFile {
    name: Arc<str>,
    file: Arc<dyn DiskFile>,
}

impl std::fmt::Debug for StorageFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StorageFile").field("name", &self.name).finish_non_exhaustive()
    }
}

impl StorageFile {
    /// The open file `file`, which has the name `name`.
    pub fn new(name: &str, file: Arc<dyn DiskFile>) -> StorageFile {
        StorageFile { name: name.into(), file }
    }

    /// Opens a file that must exist.
    ///
    /// # Errors
    /// [`StorageError::Missing`] if it does not exist; or the disk fails.
    pub fn open(disk: &dyn Disk, name: &str) -> Result<StorageFile, StorageError> {
        Ok(StorageFile::new(name, disk.open(name).of_file(name)?))
    }

    /// Opens a file that need not exist; `None` if it does not.
    ///
    /// # Errors
    /// The disk fails.
    pub fn open_if_exists(
        disk: &dyn Disk,
        name: &str,
    ) -> Result<Option<StorageFile>, StorageError> {
        if_exists(StorageFile::open(disk, name))
    }

    /// Creates a file that must not exist.
    pub(crate) fn create(disk: &dyn Disk, name: &str) -> Result<StorageFile, StorageError> {
        let created = disk.create(name);
        let file = created.map_err(|error| StorageError::of_new_file(name, error))?;
        Ok(StorageFile::new(name, file))
    }

    /// Creates a file, and replaces one of that name that a crash left.
    pub(crate) fn create_or_replace(
        disk: &dyn Disk,
        name: &str,
    ) -> Result<StorageFile, StorageError> {
        let created = create_or_replace(disk, name);
        let file = created.map_err(|error| StorageError::of_new_file(name, error))?;
        Ok(StorageFile::new(name, file))
    }

    /// The same file, after it was renamed.
    pub(crate) fn with_name(self, name: &str) -> StorageFile {
        StorageFile { name: name.into(), ..self }
    }

    /// Its name in the journal's directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// The disk fails.
    pub fn length(&self) -> Result<u64, StorageError> {
        self.file.length().of_file(&self.name)
    }

    /// Reads up to `buffer.len()` bytes at `position`; fewer only at the end of the file.
    ///
    /// # Errors
    /// The disk fails.
    pub fn read_at(&self, buffer: &mut [u8], position: u64) -> Result<usize, StorageError> {
        self.file.read_at(buffer, position).of_file(&self.name)
    }

    /// Reads exactly `buffer.len()` bytes at `position`.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] if the file ends before; or the disk fails.
    pub fn read_exact_at(&self, buffer: &mut [u8], position: u64) -> Result<(), StorageError> {
        let read = self.read_at(buffer, position)?;
        if read < buffer.len() { Err(self.end_error(position + read as u64)) } else { Ok(()) }
    }

    /// [`DiskFile::read_direct_at`].
    pub(crate) fn read_direct_at(
        &self,
        buffer: &mut [u8],
        position: u64,
    ) -> Result<usize, StorageError> {
        self.file.read_direct_at(buffer, position).of_file(&self.name)
    }

    /// [`DiskFile::read_cached_at`].
    pub(crate) fn read_cached_at(
        &self,
        buffer: &mut [u8],
        position: u64,
    ) -> Result<Option<usize>, StorageError> {
        self.file.read_cached_at(buffer, position).of_file(&self.name)
    }

    /// Writes all of `bytes` at `position`.
    pub(crate) fn write_at(&self, bytes: &[u8], position: u64) -> Result<(), StorageError> {
        self.write_slices_at(&mut [IoSlice::new(bytes)], position)
    }

    /// Writes all of `slices` at `position`.
    pub(crate) fn write_slices_at(
        &self,
        slices: &mut [IoSlice<'_>],
        position: u64,
    ) -> Result<(), StorageError> {
        self.file.write_at(slices, position).of_file(&self.name)
    }

    /// [`DiskFile::supports_direct_write`].
    pub(crate) fn supports_direct_write(&self) -> bool {
        self.file.supports_direct_write()
    }

    /// [`DiskFile::write_direct_at`].
    pub(crate) fn write_direct_at(&self, bytes: &[u8], position: u64) -> Result<(), StorageError> {
        self.file.write_direct_at(bytes, position).of_file(&self.name)
    }

    /// Truncates the file to `length`, or extends it with zeros.
    pub(crate) fn truncate(&self, length: u64) -> Result<(), StorageError> {
        self.file.truncate(length).of_file(&self.name)
    }

    /// Reserves disk space for `length` bytes.
    pub(crate) fn allocate(&self, length: u64) -> Result<(), StorageError> {
        self.file.allocate(length).of_file(&self.name)
    }

    /// Reclaims the space of a range.
    pub(crate) fn punch_hole(&self, range: Range<u64>) -> Result<(), StorageError> {
        self.file.punch_hole(range).of_file(&self.name)
    }

    /// [`DiskFile::hold_open`].
    pub(crate) fn hold_open(&self, is_held: bool) -> Result<(), StorageError> {
        self.file.hold_open(is_held).of_file(&self.name)
    }

    /// Puts the file's bytes on stable storage.
    pub(crate) fn sync(&self) -> Result<(), StorageError> {
        self.file.sync().of_file(&self.name)
    }

    /// Says that the file ends at `at`, before what should be in it.
    pub(crate) fn end_error(&self, at: u64) -> StorageError {
        StorageError::corrupt(&self.name, at, "the file is cut short")
    }
}

/// The names of all files of a directory.
pub(crate) fn list_files(disk: &dyn Disk) -> Result<Vec<String>, StorageError> {
    Ok(disk.list()?)
}

/// Puts creations, renamings and removals on stable storage.
pub(crate) fn sync_directory(disk: &dyn Disk) -> Result<(), StorageError> {
    Ok(disk.sync_directory()?)
}

pub(crate) fn remove_file(disk: &dyn Disk, name: &str) -> Result<(), StorageError> {
    disk.remove(name).of_file(name)
}

/// Removes a file, if it exists.
pub(crate) fn remove_if_exists(disk: &dyn Disk, name: &str) -> Result<(), StorageError> {
    if_exists(remove_file(disk, name)).map(drop)
}

/// Renames a file, and replaces the file that had the new name.
pub(crate) fn rename_file(disk: &dyn Disk, from: &str, to: &str) -> Result<(), StorageError> {
    disk.rename(from, to).of_file(from)
}
