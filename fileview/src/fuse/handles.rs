//! What is open. The kernel closes each once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::files::{DirectoryEntry, OpenFile};
use fuser::FileHandle;
use parking_lot::{Mutex, RwLock};

use super::errno::FuseErrno;
use super::inode_table::MountNode;
use crate::tree::OpenNode;

/// How many may be open at a time.
const OPEN_MAX: usize = 1 << 20;

/// Something open.
pub(super) enum FuseHandle {
    /// A file of the present.
    File(OpenFile),
    /// Anything else that has bytes.
    Node(OpenNode),
    /// A directory.
    Directory(DirectoryHandle),
}

/// A directory that is read.
pub(super) struct DirectoryHandle {
    pub(super) node: MountNode,
    /// Of a directory of files: as it was when the reader began.
    pub(super) names: Mutex<Option<Vec<DirectoryEntry>>>,
}

/// All that is open.
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

    /// Returns what was closed, so that the caller lets go of it where that may wait.
    pub(super) fn close(&self, number: u64) -> Option<Arc<FuseHandle>> {
        self.open.write().remove(&number)
    }
}
