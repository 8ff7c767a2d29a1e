//! Open files, and recently closed ones in a second-chance list. A file that is reopened soon keeps
//! its index in memory, and nothing is read.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::contents::FileContents;
use super::event::Inode;

struct OpenFileSlot {
    contents: Arc<FileContents>,
    open_count: usize,
}

#[derive(Default)]
struct OpenFileState {
    slots: HashMap<Inode, OpenFileSlot>,
    /// The closed files in memory, longest closed first.
    closed: VecDeque<Inode>,
}

impl OpenFileState {
    fn acquire(&mut self, inode: Inode) -> Option<Arc<FileContents>> {
        let slot = self.slots.get_mut(&inode)?;
        if slot.open_count == 0 {
            self.closed.retain(|other| *other != inode);
        }
        slot.open_count += 1;
        Some(Arc::clone(&slot.contents))
    }
}

/// The files whose index is in memory.
pub(crate) struct OpenFileTable {
    state: Mutex<OpenFileState>,
    closed_max: usize,
}

impl OpenFileTable {
    pub(crate) fn new(closed_max: usize) -> OpenFileTable {
        OpenFileTable { state: Mutex::default(), closed_max }
    }

    /// The file, if it is in memory, and acquires it until [`OpenFileTable::close`].
    pub(crate) fn reopen(&self, inode: Inode) -> Option<Arc<FileContents>> {
        self.state.lock().acquire(inode)
    }

    /// Inserts a file that was not in memory, and acquires it. If another thread inserted it first,
    /// returns that one.
    pub(crate) fn insert(&self, contents: FileContents) -> Arc<FileContents> {
        let inode = contents.inode;
        let mut state = self.state.lock();
        if let Some(file) = state.acquire(inode) {
            return file;
        }
        let contents = Arc::new(contents);
        state.slots.insert(inode, OpenFileSlot { contents: Arc::clone(&contents), open_count: 1 });
        contents
    }

    /// Releases a file. Returns the files that leave memory now: the caller saves a checkpoint of
    /// each.
    pub(crate) fn close(&self, inode: Inode) -> Vec<Arc<FileContents>> {
        let mut state = self.state.lock();
        let slot = state.slots.get_mut(&inode).expect("what is held has a slot");
        slot.open_count -= 1;
        if slot.open_count == 0 {
            state.closed.push_back(inode);
        }
        let mut leaving = Vec::new();
        while state.closed.len() > self.closed_max {
            let oldest = state.closed.pop_front();
            leaving.extend(oldest.and_then(|oldest| state.slots.remove(&oldest)));
        }
        leaving.into_iter().map(|slot| slot.contents).collect()
    }

    /// All files in memory.
    pub(crate) fn all(&self) -> Vec<Arc<FileContents>> {
        self.state.lock().slots.values().map(|slot| Arc::clone(&slot.contents)).collect()
    }
}
