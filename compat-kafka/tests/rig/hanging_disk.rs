//! A disk whose syncs of the journal wait until a gate opens.

use std::io;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use storage::disk::{Disk, DiskFile, MemoryDisk};

#[derive(Default)]
pub struct JournalSyncGate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl JournalSyncGate {
    /// Until the returned guard is dropped, also by a test that fails.
    pub fn close(self: &Arc<Self>) -> JournalSyncGateGuard {
        *self.closed.lock() = true;
        JournalSyncGateGuard(Arc::clone(self))
    }

    fn open(&self) {
        *self.closed.lock() = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        self.opened.wait_while(&mut self.closed.lock(), |closed| *closed);
    }
}

pub struct JournalSyncGateGuard(Arc<JournalSyncGate>);

impl Drop for JournalSyncGateGuard {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[derive(Clone, Default)]
pub struct HangingDisk {
    disk: MemoryDisk,
    pub gate: Arc<JournalSyncGate>,
}

struct HangingFile {
    file: Arc<dyn DiskFile>,
    gate: Arc<JournalSyncGate>,
}

impl HangingDisk {
    fn file(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        // The clock's bound is still written.
        if !name.ends_with(".journal") {
            return file;
        }
        Arc::new(HangingFile { file, gate: Arc::clone(&self.gate) })
    }
}

impl Disk for HangingDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(name, self.disk.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(name, self.disk.create(name)?))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.disk.sync_directory()
    }
}

impl DiskFile for HangingFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buffer, position)
    }

    fn write_at(&self, slices: &mut [io::IoSlice<'_>], position: u64) -> io::Result<()> {
        self.file.write_at(slices, position)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.truncate(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.file.allocate(length)
    }

    fn punch_hole(&self, range: std::ops::Range<u64>) -> io::Result<()> {
        self.file.punch_hole(range)
    }

    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        self.file.sync()
    }
}
