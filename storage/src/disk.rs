//! The few operations that the store needs of a disk, behind a trait, so that tests can use one
//! that fails.

mod descriptor_cache;
mod memory;
mod read_only;
mod real;

use std::io;
use std::path::Path;
use std::sync::Arc;

pub use descriptor_cache::descriptors_max;
pub use memory::{DiskFault, MemoryDisk};
pub use read_only::{ReadOnlyDisk, open_read_only};
pub use real::RealDisk;

/// The bytes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeBytes {
    pub total: u64,
    /// The bytes that can still be written.
    pub usable: u64,
}

/// The size of the volume on which a directory is. It may wait for the disk.
///
/// # Errors
/// There is no such directory, or the disk fails.
pub fn volume_bytes(directory: &Path) -> io::Result<VolumeBytes> {
    let stats = rustix::fs::statvfs(directory)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stats.f_frsize);
    Ok(VolumeBytes { total: bytes(stats.f_blocks), usable: bytes(stats.f_bavail) })
}

/// The unit of writes around the page cache.
pub const BLOCK_BYTES: usize = 4096;

/// A directory of files.
pub trait Disk: Send + Sync + 'static {
    /// Opens a file that exists.
    ///
    /// # Errors
    /// It does not exist, or the disk fails.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a file, empty. Its name is durable only after [`Disk::sync_directory`].
    ///
    /// # Errors
    /// It exists, or the disk fails.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// The names of all files, in no particular order.
    ///
    /// # Errors
    /// The disk fails.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Removes a file. Durable only after [`Disk::sync_directory`].
    ///
    /// # Errors
    /// It does not exist, or the disk fails.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames a file, and replaces the file that had the new name. After a crash the name belongs
    /// to either file; only [`Disk::sync_directory`] makes it certain which.
    ///
    /// # Errors
    /// It does not exist, or the disk fails.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Puts creations, renamings and removals on stable storage.
    ///
    /// # Errors
    /// The disk fails.
    fn sync_directory(&self) -> io::Result<()>;
}

/// One file, read and written by position.
pub trait DiskFile: Send + Sync + 'static {
    /// Its length in bytes.
    ///
    /// # Errors
    /// The disk fails.
    fn length(&self) -> io::Result<u64>;

    /// Reads up to `buffer.len()` bytes at `position`; fewer only at the end of the file.
    ///
    /// # Errors
    /// The disk fails.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Writes all of `slices` at `position`.
    ///
    /// # Errors
    /// The disk fails or is full; any part may have been written.
    fn write_at(&self, slices: &mut [io::IoSlice<'_>], position: u64) -> io::Result<()>;

    /// Returns true if [`DiskFile::write_direct_at`] goes around the page cache.
    fn supports_direct_write(&self) -> bool {
        false
    }

    /// Writes whole blocks around the page cache: `bytes` begins at a multiple of [`BLOCK_BYTES`]
    /// in memory, and it, its length and `position` are multiples of it too.
    ///
    /// # Errors
    /// As [`DiskFile::write_at`].
    fn write_direct_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.write_at(&mut [io::IoSlice::new(bytes)], position)
    }

    /// Truncates the file to `length`, or extends it with zeros.
    ///
    /// # Errors
    /// The disk fails.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Reserves disk space for `length` bytes of the file, which is that long afterwards.
    ///
    /// # Errors
    /// The disk fails or is full, or (`Unsupported`) cannot reserve space.
    fn allocate(&self, length: u64) -> io::Result<()> {
        let _ = length;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Reclaims the space of a range. It reads as zeros afterwards, or as before if the disk cannot
    /// punch holes. The file's length stays.
    ///
    /// # Errors
    /// The disk fails.
    fn punch_hole(&self, range: std::ops::Range<u64>) -> io::Result<()>;

    /// Opens the file and keeps it open, or stops doing so. A file that is not held may be closed
    /// while it is unused; opening it again fails if the process is out of descriptors.
    ///
    /// # Errors
    /// The file is to be held, and cannot be opened; then it is not held.
    fn hold_open(&self, is_held: bool) -> io::Result<()> {
        let _ = is_held;
        Ok(())
    }

    /// Puts the file's bytes on stable storage.
    ///
    /// # Errors
    /// The disk fails. Bytes written since the last sync may be lost, whatever a later sync says.
    fn sync(&self) -> io::Result<()>;

    /// Reads into `buffer` the part of it that is in the page cache, without waiting for the disk;
    /// `None` if that cannot be known, or is nothing.
    ///
    /// # Errors
    /// The disk fails.
    fn read_cached_at(&self, buffer: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        let _ = (buffer, position);
        Ok(None)
    }

    /// Reads whole blocks around the page cache: alignment as for [`DiskFile::write_direct_at`].
    /// Fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// The disk fails.
    fn read_direct_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.read_at(buffer, position)
    }
}

/// Returns true if an error means that the disk is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns true if an error means that no file can be opened now: nothing was done, and it can be
/// retried.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// Creates a file, and replaces one of that name that a crash left.
pub(crate) fn create_or_replace(disk: &dyn Disk, name: &str) -> io::Result<Arc<dyn DiskFile>> {
    match disk.create(name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.remove(name)?;
            disk.create(name)
        }
        created => created,
    }
}
