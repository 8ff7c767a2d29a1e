//! The few things that we ask of a disk, so that tests can own one that fails.

mod descriptor_cache;
mod memory;
mod read_only;
mod real;

use std::io;
use std::sync::Arc;

pub use descriptor_cache::descriptors_max;
pub use memory::{DiskFault, MemoryDisk};
pub use read_only::{ReadOnlyDisk, open_read_only};
pub use real::RealDisk;

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

    /// The names of all files, in no order.
    ///
    /// # Errors
    /// The disk fails.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Removes a file. Durable only after [`Disk::sync_directory`].
    ///
    /// # Errors
    /// It does not exist, or the disk fails.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Gives a file another name, in place of the file that had it. After a crash the name belongs to
    /// one or the other; which of them is known only after [`Disk::sync_directory`].
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

    /// Whether [`DiskFile::write_direct_at`] goes around the page cache.
    fn supports_direct_write(&self) -> bool {
        false
    }

    /// Writes whole blocks around the page cache: `bytes` begins at a multiple of [`BLOCK_BYTES`] in
    /// memory, and it, its length and `position` are multiples of it too.
    ///
    /// # Errors
    /// As [`DiskFile::write_at`].
    fn write_direct_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.write_at(&mut [io::IoSlice::new(bytes)], position)
    }

    /// Cuts the file off at `length`, or extends it with zeros.
    ///
    /// # Errors
    /// The disk fails.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Has the disk keep space for `length` bytes of the file, which is that long then.
    ///
    /// # Errors
    /// The disk fails or is full, or (`Unsupported`) cannot do that.
    fn allocate(&self, length: u64) -> io::Result<()> {
        let _ = length;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Gives back the space of a range, which reads as zeros from then on, or as before where the disk
    /// cannot do that. The file's length stays.
    ///
    /// # Errors
    /// The disk fails.
    fn punch_hole(&self, range: std::ops::Range<u64>) -> io::Result<()>;

    /// Keeps the file open from its next use on, or not any more. A file that is not held may be closed while nobody
    /// uses it, and opening it again fails where the process is out of descriptors.
    fn hold_open(&self, is_held: bool) {
        let _ = is_held;
    }

    /// Puts the file's bytes on stable storage.
    ///
    /// # Errors
    /// The disk fails. What was written since the last sync may be lost, whatever a later sync says.
    fn sync(&self) -> io::Result<()>;

    /// Reads into `buffer` what of it is in the page cache, without waiting for the disk; `None` if
    /// that cannot be told, or is nothing.
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

/// Whether an error says that there is no room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether an error of a read says that what was written is not there any more: the file is gone or
/// shorter than it was, its bytes are others, or the medium does not give them back. Any other error may be
/// gone at the next try.
pub fn is_data_loss(error: &io::Error) -> bool {
    use rustix::io::Errno;
    // The last five are what Linux makes of a medium's errors, and of a file system's own checksums.
    const LOSSES: [Errno; 6] =
        [Errno::IO, Errno::NODATA, Errno::REMOTEIO, Errno::ILSEQ, Errno::BADMSG, Errno::UCLEAN];
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    let kinds = [io::ErrorKind::InvalidData, io::ErrorKind::UnexpectedEof, io::ErrorKind::NotFound];
    kinds.contains(&error.kind()) || code.is_some_and(|code| LOSSES.contains(&code))
}

/// Whether an error says that no file can be opened now: nothing was done, and it can be tried again.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// Reads exactly `buffer.len()` bytes.
///
/// # Errors
/// `UnexpectedEof` when the file is shorter.
pub(crate) fn read_exact_at(
    file: &dyn DiskFile,
    buffer: &mut [u8],
    position: u64,
) -> io::Result<()> {
    let read = file.read_at(buffer, position)?;
    if read == buffer.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Creates a file, in place of one of that name that a crash left behind.
pub(crate) fn create_or_replace(disk: &dyn Disk, name: &str) -> io::Result<Arc<dyn DiskFile>> {
    match disk.create(name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.remove(name)?;
            disk.create(name)
        }
        created => created,
    }
}
