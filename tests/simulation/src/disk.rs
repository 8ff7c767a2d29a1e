//! The node's disk: [`MemoryDisk`], with everything in the page cache, and a hook that runs
//! whenever the node syncs its journal.
//!
//! It can run out of descriptors: then no file is opened, and one that is neither held open nor has
//! anything to be synced may have been closed, so that it cannot be written. (It can still be read,
//! because readers do not matter for crashes.)
//!
//! A group is written on one thread that nothing interrupts. Readers of a real node come in
//! between. Here the disk's hook reads, when the group is written and not yet known to be on stable
//! storage.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use storage::disk::{Disk, DiskFile, MemoryDisk};

/// Called in the middle of a group.
pub(crate) type SyncHook = Box<dyn FnMut() + Send>;

/// The disk of one incarnation of a node.
#[derive(Clone)]
pub(crate) struct SimDisk {
    pub(crate) memory: MemoryDisk,
    sync_hook: Arc<Mutex<Option<SyncHook>>>,
    descriptors: Arc<DescriptorLimit>,
}

#[derive(Default)]
struct DescriptorLimit {
    is_exhausted: AtomicBool,
    refused: AtomicU64,
}

impl DescriptorLimit {
    /// Opens a file.
    fn acquire(&self) -> io::Result<()> {
        if self.is_exhausted.load(Ordering::Relaxed) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(rustix::io::Errno::MFILE.into());
        }
        Ok(())
    }
}

impl SimDisk {
    pub(crate) fn new(memory: MemoryDisk) -> SimDisk {
        SimDisk { memory, sync_hook: Arc::default(), descriptors: Arc::default() }
    }

    /// Sets whether descriptors are exhausted.
    pub(crate) fn exhaust_descriptors(&self, are_used_up: bool) {
        self.descriptors.is_exhausted.store(are_used_up, Ordering::Relaxed);
    }

    /// The number of times that there was no descriptor.
    pub(crate) fn descriptors_refused(&self) -> u64 {
        self.descriptors.refused.load(Ordering::Relaxed)
    }

    /// Calls `peek` at each sync of the journal.
    pub(crate) fn set_sync_hook(&self, peek: Option<SyncHook>) {
        *self.sync_hook.lock() = peek;
    }

    fn wrap_file(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let peek = name.ends_with(".journal").then(|| Arc::clone(&self.sync_hook));
        Arc::new(SimFile {
            file,
            sync_hook: peek,
            descriptors: Arc::clone(&self.descriptors),
            is_held_open: AtomicBool::new(false),
            is_dirty: AtomicBool::new(false),
        })
    }
}

struct SimFile {
    file: Arc<dyn DiskFile>,
    sync_hook: Option<Arc<Mutex<Option<SyncHook>>>>,
    descriptors: Arc<DescriptorLimit>,
    is_held_open: AtomicBool,
    /// True if anything is to be synced.
    is_dirty: AtomicBool,
}

impl SimFile {
    /// Opens the file again, if it may have been closed.
    fn acquire_descriptor(&self) -> io::Result<()> {
        let stays =
            self.is_held_open.load(Ordering::Relaxed) || self.is_dirty.load(Ordering::Relaxed);
        if stays { Ok(()) } else { self.descriptors.acquire() }
    }

    /// The same, for a change.
    fn mark_dirty(&self) -> io::Result<()> {
        self.acquire_descriptor()?;
        self.is_dirty.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn run_sync_hook(&self) {
        let Some(held) = &self.sync_hook else { return };
        // Taken out during the call, because the hook may sync.
        let peek = held.lock().take();
        if let Some(mut peek) = peek {
            peek();
            held.lock().get_or_insert(peek);
        }
    }
}

impl Disk for SimDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.descriptors.acquire()?;
        Ok(self.wrap_file(name, self.memory.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.descriptors.acquire()?;
        Ok(self.wrap_file(name, self.memory.create(name)?))
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

impl DiskFile for SimFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buffer, position)
    }

    fn write_at(&self, slices: &mut [io::IoSlice<'_>], position: u64) -> io::Result<()> {
        self.mark_dirty()?;
        self.file.write_at(slices, position)
    }

    fn supports_direct_write(&self) -> bool {
        self.file.supports_direct_write()
    }

    fn write_direct_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.mark_dirty()?;
        self.file.write_direct_at(bytes, position)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.mark_dirty()?;
        self.file.truncate(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.mark_dirty()?;
        self.file.allocate(length)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.file.punch_hole(range)
    }

    fn hold_open(&self, is_held: bool) -> io::Result<()> {
        if is_held {
            self.acquire_descriptor()?;
        }
        self.is_held_open.store(is_held, Ordering::Relaxed);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.acquire_descriptor()?;
        self.run_sync_hook();
        self.file.sync()?;
        self.is_dirty.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// All of it is in the page cache, so that no thread has to wait for the disk.
    fn read_cached_at(&self, buffer: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        self.file.read_at(buffer, position).map(Some)
    }
}
