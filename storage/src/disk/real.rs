//! A directory of the machine's file system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FallocateFlags;

use super::descriptor_cache::{CachedFile, DescriptorCache, OpenDescriptor};
use super::{Disk, DiskFile};

/// The largest number of slices that the kernel takes in one vectored write.
const SLICES_MAX: usize = 1024;

/// A directory of the machine's file system. Of the files that are held, only a limited number are
/// open at a time.
#[derive(Debug)]
pub struct RealDisk {
    directory: PathBuf,
    /// Open at all times: syncing names takes no descriptor.
    directory_file: File,
    descriptors: Arc<DescriptorCache>,
}

impl RealDisk {
    /// Opens the directory `directory`, and creates it if it does not exist. Its name is on stable
    /// storage then, because files are lost if a crash loses their directory.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn open(directory: &Path) -> io::Result<RealDisk> {
        fs::create_dir_all(directory)?;
        if let Some(parent) = fs::canonicalize(directory)?.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(RealDisk {
            directory: directory.to_owned(),
            directory_file: File::open(directory)?,
            descriptors: DescriptorCache::for_directory(directory),
        })
    }

    fn open_cached(&self, name: &str, options: &OpenOptions) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(self.descriptors.open(name, options)?)))
    }
}

impl Disk for RealDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.open_cached(name, OpenOptions::new().read(true).write(true))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.open_cached(name, OpenOptions::new().read(true).write(true).create_new(true))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.descriptors.remove(name, |path| fs::remove_file(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.descriptors.rename(from, to, |from, to| fs::rename(from, to))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.directory_file.sync_all()
    }
}

struct RealFile(CachedFile);

impl RealFile {
    fn preallocate(
        handle: &OpenDescriptor,
        flags: FallocateFlags,
        range: Range<u64>,
    ) -> io::Result<()> {
        loop {
            let length = range.end - range.start;
            match rustix::fs::fallocate(&handle.file, flags, range.start, length) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP) => {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                result => return Ok(result?),
            }
        }
    }
}

impl DiskFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.descriptor()?.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        read_at(&self.0.descriptor()?.file, buffer, position)
    }

    fn write_at(&self, slices: &mut [io::IoSlice<'_>], position: u64) -> io::Result<()> {
        self.0.write(|handle| write_at(&handle.file, slices, position))
    }

    fn supports_direct_write(&self) -> bool {
        self.0.descriptor().is_ok_and(|handle| self.0.direct(&handle).is_some())
    }

    fn write_direct_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.0.write(|handle| {
            let file = self.0.direct(handle).unwrap_or(&handle.file);
            file.write_all_at(bytes, position)
        })
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.write(|handle| handle.file.set_len(length))
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        let keep = |handle: &OpenDescriptor| {
            RealFile::preallocate(handle, FallocateFlags::empty(), 0..length)
        };
        self.0.write(keep)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        let descriptor = self.0.descriptor()?;
        // A backup may be a link to the file, and still need the range.
        if descriptor.file.metadata()?.nlink() > 1 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Nothing is written that has to be synced: the range consists of whole blocks.
        match RealFile::preallocate(&descriptor, flags, range) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(()),
            punched => punched,
        }
    }

    fn hold_open(&self, is_held: bool) -> io::Result<()> {
        self.0.hold_open(is_held)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync(File::sync_data)
    }

    fn read_cached_at(&self, buffer: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        let mut slices = [io::IoSliceMut::new(buffer)];
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        match rustix::io::preadv2(&self.0.descriptor()?.file, &mut slices, position, flags) {
            Ok(read) => Ok(Some(read)),
            // Not cached, or not supported by this file system: the disk serves.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read_direct_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let handle = self.0.descriptor()?;
        let Some(direct) = self.0.direct(&handle) else {
            return read_at(&handle.file, buffer, position);
        };
        // A count that is not a multiple of the block size is the end of the file; continuing from
        // there would not be aligned with the blocks.
        match direct.read_at(buffer, position) {
            Ok(read) if read == buffer.len() || !read.is_multiple_of(super::BLOCK_BYTES) => {
                Ok(read)
            }
            // Fewer bytes than requested, or not supported: the page cache serves.
            _ => read_at(&handle.file, buffer, position),
        }
    }
}

fn write_at(file: &File, slices: &mut [io::IoSlice<'_>], mut position: u64) -> io::Result<()> {
    let mut unwritten = slices;
    io::IoSlice::advance_slices(&mut unwritten, 0);
    while !unwritten.is_empty() {
        let batch = unwritten.len().min(SLICES_MAX);
        match rustix::io::pwritev(file, &unwritten[..batch], position) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                position += count as u64;
                io::IoSlice::advance_slices(&mut unwritten, count);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

pub(super) fn read_at(file: &File, buffer: &mut [u8], position: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], position + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests;
