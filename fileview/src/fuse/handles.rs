//! The open files and directories. The kernel closes each one once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::files::{DirectoryEntry, OpenFile};
use fuser::FileHandle;
use parking_lot::{Mutex, RwLock};

use super::errno::FuseErrno;
use super::inode_table::MountNode;
use crate::tree::{OpenNode, ViewNode, ViewTree};

/// The number of handles that may be open at a time.
const OPEN_MAX: usize = 1 << 20;

/// An open file or directory.
pub(super) enum FuseHandle {
    /// A file of the present.
    File(OpenFile),
    /// Any other node that has bytes.
    Node(NodeHandle),
    Directory(DirectoryHandle),
}

pub(super) struct NodeHandle {
    pub(super) open: OpenNode,
    pub(super) node: ViewNode,
    /// The tree as the user who opened it sees it.
    pub(super) tree: Arc<ViewTree>,
}

pub(super) struct DirectoryHandle {
    pub(super) node: MountNode,
    /// Only for a directory of files: its names when the reader began.
    pub(super) names: Mutex<Option<Vec<DirectoryEntry>>>,
}

/// All open handles.
#[derive(Default)]
pub(super) struct FuseHandleTable {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<FuseHandle>>>,
}

impl FuseHandleTable {
    pub(super) fn add(&self, handle: FuseHandle) -> Result<FileHandle, FuseErrno> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.write();
        if open.len() >= OPEN_MAX {
            return Err(FuseErrno::TOO_MANY_OPEN);
        }
        open.insert(number, Arc::new(handle));
        Ok(FileHandle(number))
    }

    pub(super) fn find(&self, number: u64) -> Result<Arc<FuseHandle>, FuseErrno> {
        self.open.read().get(&number).cloned().ok_or(FuseErrno::BAD_HANDLE)
    }

    /// Closes a handle and returns it. The caller drops it where that may block.
    pub(super) fn close(&self, number: u64) -> Option<Arc<FuseHandle>> {
        self.open.write().remove(&number)
    }
}
