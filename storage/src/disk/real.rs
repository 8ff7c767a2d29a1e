//! A directory of the machine's file system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
}

impl Disk for RealDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.directory.join(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let path = self.directory.join(name);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
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

    fn sync_names(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            match self.0.read_at(&mut buffer[read..], position + read as u64) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_at(&self, slices: &mut [io::IoSlice<'_>], mut position: u64) -> io::Result<()> {
        let mut left = slices;
        io::IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let batch = left.len().min(SLICES_MAX);
            match rustix::io::pwritev(&self.0, &left[..batch], position) {
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

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }
}
