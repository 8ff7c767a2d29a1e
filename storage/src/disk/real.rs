//! A directory of the machine's file system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::FallocateFlags;

use super::{Disk, DiskFile};

/// What the kernel takes in one vectored write.
const SLICES_MAX: usize = 1024;

/// A directory of the machine's file system.
#[derive(Debug)]
pub struct RealDisk {
    directory: PathBuf,
}

impl RealDisk {
    /// The directory `directory`, made if it is not there; its name is on stable storage then, for
    /// files whose directory a crash loses are lost with it.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(directory: &Path) -> io::Result<RealDisk> {
        fs::create_dir_all(directory)?;
        if let Some(parent) = fs::canonicalize(directory)?.parent() {
            File::open(parent)?.sync_all()?;
        }
        Ok(RealDisk { directory: directory.to_owned() })
    }

    fn file(&self, name: &str, file: File) -> RealFile {
        RealFile { file, path: self.directory.join(name), direct: OnceLock::new() }
    }
}

impl Disk for RealDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.directory.join(name))?;
        Ok(Arc::new(self.file(name, file)))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.directory.join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(self.file(name, file)))
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
        fs::remove_file(self.directory.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.directory.join(from), self.directory.join(to))
    }

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

struct RealFile {
    file: File,
    path: PathBuf,
    /// The same file, opened at first use to go around the page cache. Some file systems have no
    /// such thing; they get ordinary reads and writes.
    direct: OnceLock<Option<File>>,
}

impl RealFile {
    fn direct(&self) -> Option<&File> {
        let open = || {
            let direct = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
                .open(&self.path)
                .ok()?;
            // The name may belong to another file by now.
            let (here, there) = (self.file.metadata().ok()?, direct.metadata().ok()?);
            (here.ino() == there.ino() && here.dev() == there.dev()).then_some(direct)
        };
        self.direct.get_or_init(open).as_ref()
    }
}

impl DiskFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        read_at(&self.file, buffer, position)
    }

    fn write_at(&self, slices: &mut [io::IoSlice<'_>], mut position: u64) -> io::Result<()> {
        let mut left = slices;
        io::IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let batch = left.len().min(SLICES_MAX);
            match rustix::io::pwritev(&self.file, &left[..batch], position) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    position += count as u64;
                    io::IoSlice::advance_slices(&mut left, count);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn takes_blocks(&self) -> bool {
        self.direct().is_some()
    }

    fn write_blocks_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        match self.direct() {
            Some(direct) => direct.write_all_at(bytes, position),
            None => self.file.write_all_at(bytes, position),
        }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.set_len(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        loop {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, length) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP) => {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                done => return Ok(done?),
            }
        }
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match rustix::fs::fallocate(&self.file, flags, range.start, range.end - range.start) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP) | Ok(()) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn read_cached_at(&self, buffer: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        let mut slices = [io::IoSliceMut::new(buffer)];
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        match rustix::io::preadv2(&self.file, &mut slices, position, flags) {
            Ok(read) => Ok(Some(read)),
            // Not there, or not to be had in this way on this file system: the disk will do.
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn read_blocks_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let Some(direct) = self.direct() else { return read_at(&self.file, buffer, position) };
        // A count that is no whole number of blocks is the end of the file; to go on from there
        // would be out of step with the blocks.
        match direct.read_at(buffer, position) {
            Ok(read) if read == buffer.len() || !read.is_multiple_of(super::BLOCK_BYTES) => {
                Ok(read)
            }
            // Less than was asked for, or not to be had in this way: the page cache will do.
            _ => read_at(&self.file, buffer, position),
        }
    }
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
