//! Disks that interfere: a [`MemoryDisk`] that calls a hook at its operations.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use storage::disk::{Disk, DiskFile, MemoryDisk};

/// The actions of a test at the operations of a [`HookedDisk`]. By default there are none.
pub trait DiskHook: Send + Sync + 'static {
    /// Before the file `name` is created.
    fn before_create(&self, name: &str) {
        let _ = name;
    }

    /// Before the file `name` is read at `position`.
    ///
    /// # Errors
    /// The read fails with this error.
    fn before_read(&self, name: &str, position: u64) -> io::Result<()> {
        let _ = (name, position);
        Ok(())
    }

    /// After that many bytes of the file `name` were read.
    fn after_read(&self, name: &str, bytes: usize) {
        let _ = (name, bytes);
    }

    /// Before the file `name` is synced.
    fn before_sync(&self, name: &str) {
        let _ = name;
    }
}

/// A memory disk that calls its hook. It has no page cache.
pub struct HookedDisk<H> {
    /// The disk beneath it.
    pub memory: MemoryDisk,
    pub hook: Arc<H>,
}

impl<H> Clone for HookedDisk<H> {
    fn clone(&self) -> HookedDisk<H> {
        HookedDisk { memory: self.memory.clone(), hook: Arc::clone(&self.hook) }
    }
}

struct HookedFile<H> {
    name: String,
    file: Arc<dyn DiskFile>,
    hook: Arc<H>,
}

impl<H: DiskHook> HookedDisk<H> {
    /// `memory`, whose operations call `hook`.
    pub fn new(memory: MemoryDisk, hook: Arc<H>) -> HookedDisk<H> {
        HookedDisk { memory, hook }
    }

    fn wrap(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(HookedFile { name: name.to_owned(), file, hook: Arc::clone(&self.hook) })
    }
}

impl<H: DiskHook> Disk for HookedDisk<H> {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(name, self.memory.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.hook.before_create(name);
        Ok(self.wrap(name, self.memory.create(name)?))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.memory.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.memory.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.memory.rename(from, to)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.memory.sync_directory()
    }
}

impl<H: DiskHook> DiskFile for HookedFile<H> {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.hook.before_read(&self.name, position)?;
        let read = self.file.read_at(buffer, position)?;
        self.hook.after_read(&self.name, read);
        Ok(read)
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

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.file.punch_hole(range)
    }

    fn sync(&self) -> io::Result<()> {
        self.hook.before_sync(&self.name);
        self.file.sync()
    }
}

/// A disk on which one operation on one kind of file hangs while a test keeps its gate closed.
pub type HangingDisk = HookedDisk<DiskGate>;

/// The operation that hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateOperation {
    Create,
    Sync,
}

#[derive(Debug, Default)]
struct GateState {
    is_closed: bool,
    is_reached: bool,
}

/// A gate at which operations on files of one suffix wait while it is closed.
pub struct DiskGate {
    operation: GateOperation,
    suffix: &'static str,
    state: Mutex<GateState>,
    changed: Condvar,
}

/// Opens the gate when it is dropped, also by a test that fails.
pub struct DiskGateGuard(Arc<DiskGate>);

impl HangingDisk {
    /// Syncs of files with this suffix can hang.
    pub fn at_syncs(suffix: &'static str) -> HangingDisk {
        HangingDisk::at(GateOperation::Sync, suffix)
    }

    /// Creations of files with this suffix can hang.
    pub fn at_creations(suffix: &'static str) -> HangingDisk {
        HangingDisk::at(GateOperation::Create, suffix)
    }

    fn at(operation: GateOperation, suffix: &'static str) -> HangingDisk {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let gate = DiskGate { operation, suffix, state, changed };
        HookedDisk::new(MemoryDisk::new(), Arc::new(gate))
    }
}

impl DiskGate {
    /// Lets operations wait until the returned guard is dropped.
    pub fn close(self: &Arc<Self>) -> DiskGateGuard {
        self.state.lock().is_closed = true;
        DiskGateGuard(Arc::clone(self))
    }

    /// Waits until an operation has come to the gate.
    pub fn wait_until_reached(&self) {
        self.changed.wait_while(&mut self.state.lock(), |state| !state.is_reached);
    }

    fn pass(&self, operation: GateOperation, name: &str) {
        if operation != self.operation || !name.ends_with(self.suffix) {
            return;
        }
        let mut state = self.state.lock();
        state.is_reached = true;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| state.is_closed);
    }
}

impl DiskHook for DiskGate {
    fn before_create(&self, name: &str) {
        self.pass(GateOperation::Create, name);
    }

    fn before_sync(&self, name: &str) {
        self.pass(GateOperation::Sync, name);
    }
}

impl Drop for DiskGateGuard {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = false;
        self.0.changed.notify_all();
    }
}
