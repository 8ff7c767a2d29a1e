//! The node's disk: [`MemoryDisk`], with everything in the page cache, and somebody who looks at the node
//! whenever it syncs its journal.
//!
//! A group is written on one thread that nothing interrupts. Readers of a real node come in between:
//! here they come from the disk, when the group is written and not yet known to be on stable storage.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use storage::disk::{Disk, DiskFile, MemoryDisk};

/// Called in the middle of a group.
pub(crate) type Peek = Box<dyn FnMut() + Send>;

/// A disk of one life of a node.
#[derive(Clone)]
pub(crate) struct SimDisk {
    pub(crate) memory: MemoryDisk,
    peek: Arc<Mutex<Option<Peek>>>,
}

impl SimDisk {
    pub(crate) fn new(memory: MemoryDisk) -> SimDisk {
        SimDisk { memory, peek: Arc::default() }
    }

    /// Calls `peek` at each sync of the journal.
    pub(crate) fn set_peek(&self, peek: Option<Peek>) {
        *self.peek.lock() = peek;
    }

    fn file(&self, name: &str, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let peek = name.ends_with(".journal").then(|| Arc::clone(&self.peek));
        Arc::new(SimFile { file, peek })
    }
}

struct SimFile {
    file: Arc<dyn DiskFile>,
    peek: Option<Arc<Mutex<Option<Peek>>>>,
}

impl SimFile {
    fn peek(&self) {
        let Some(held) = &self.peek else { return };
        // Taken out meanwhile: what it does may sync.
        let peek = held.lock().take();
        if let Some(mut peek) = peek {
            peek();
            held.lock().get_or_insert(peek);
        }
    }
}

impl Disk for SimDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(name, self.memory.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.file(name, self.memory.create(name)?))
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

    fn sync_names(&self) -> io::Result<()> {
        self.memory.sync_names()
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
        self.file.write_at(slices, position)
    }

    fn takes_blocks(&self) -> bool {
        self.file.takes_blocks()
    }

    fn write_blocks_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.file.write_blocks_at(bytes, position)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.truncate(length)
    }

    fn allocate(&self, length: u64) -> io::Result<()> {
        self.file.allocate(length)
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        self.file.punch(range)
    }

    fn sync(&self) -> io::Result<()> {
        self.peek();
        self.file.sync()
    }

    /// All of it is in the page cache, so that no thread is asked to wait for the disk.
    fn read_cached_at(&self, buffer: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        self.file.read_at(buffer, position).map(Some)
    }
}
