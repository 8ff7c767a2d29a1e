//! A disk that accepts the journal and stores nothing of it. The difference between this and a real
//! disk is the cost of persistence. Small files beside the journal are kept in memory.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use storage::disk::{Disk, DiskFile, MemoryDisk};

#[derive(Default)]
pub(crate) struct NullDisk {
    memory: MemoryDisk,
    null_files: Mutex<HashMap<String, Arc<NullFile>>>,
}

impl NullDisk {
    fn with_null_files<T>(&self, act: impl FnOnce(&mut HashMap<String, Arc<NullFile>>) -> T) -> T {
        act(&mut self.null_files.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Disk for NullDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        match self.with_null_files(|files| files.get(name).cloned()) {
            Some(file) => Ok(file),
            None => self.memory.open(name),
        }
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        if !name.ends_with(".journal") {
            return self.memory.create(name);
        }
        let file = Arc::new(NullFile::default());
        self.with_null_files(|files| files.insert(name.to_owned(), Arc::clone(&file)));
        Ok(file)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = self.memory.list()?;
        self.with_null_files(|files| names.extend(files.keys().cloned()));
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self.with_null_files(|files| files.remove(name)) {
            Some(_) => Ok(()),
            None => self.memory.remove(name),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.memory.rename(from, to)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.memory.sync_directory()
    }
}

#[derive(Default)]
struct NullFile {
    length: AtomicU64,
}

impl DiskFile for NullFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.length.load(Ordering::Relaxed))
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a disk that keeps nothing has been read"))
    }

    fn write_at(&self, slices: &mut [io::IoSlice<'_>], position: u64) -> io::Result<()> {
        let bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
        self.length.fetch_max(position + bytes, Ordering::Relaxed);
        Ok(())
    }

    /// As a real one, so that the journal takes the same code path.
    fn supports_direct_write(&self) -> bool {
        true
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.length.store(length, Ordering::Relaxed);
        Ok(())
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn punch_hole(&self, _: std::ops::Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
