//! What is open. The kernel closes each once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::files::{DirectoryEntry, File};
use fuser::FileHandle;
use parking_lot::{Mutex, RwLock};

use super::nodes::Place;
use super::refused::Refused;
use crate::tree::Open;

/// How many may be open at a time.
const OPEN_MAX: usize = 1 << 20;

/// Something open.
pub(super) enum Handle {
    /// A file of the present.
    File(File),
    /// Anything else that has bytes.
    Open(Open),
    /// A directory.
    Listing(Listing),
}

/// A directory that is read.
pub(super) struct Listing {
    pub(super) place: Place,
    /// Of a directory of files: as it was when the reader began.
    pub(super) names: Mutex<Option<Vec<DirectoryEntry>>>,
}

/// All that is open.
#[derive(Default)]
pub(super) struct Handles {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<Handle>>>,
}

impl Handles {
    pub(super) fn add(&self, handle: Handle) -> Result<FileHandle, Refused> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.write();
        if open.len() >= OPEN_MAX {
            return Err(Refused::TOO_MANY_OPEN);
        }
        open.insert(number, Arc::new(handle));
        Ok(FileHandle(number))
    }

    pub(super) fn find(&self, number: u64) -> Result<Arc<Handle>, Refused> {
        self.open.read().get(&number).cloned().ok_or(Refused::BAD_HANDLE)
    }

    /// Returns what was closed, so that the caller lets go of it where that may wait.
    pub(super) fn close(&self, number: u64) -> Option<Arc<Handle>> {
        self.open.write().remove(&number)
    }
}
