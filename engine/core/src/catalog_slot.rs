//! The catalog in use, and its replacement when it fails.
//!
//! The catalog is soft: its content is in the journal. So a failed catalog does not stop the
//! service. Requests that need it are told to retry, events still go into the journal, and a
//! rebuild makes a new catalog ([`crate::engine`], `catalog_rebuild.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use storage::catalog::{Catalog, CatalogDirectory, CatalogError};

/// The catalog in use, if there is one.
pub struct CatalogSlot {
    pub(crate) directory: CatalogDirectory,
    current: RwLock<Option<Arc<Catalog>>>,
    rebuild_request: Arc<RebuildRequest>,
    /// The number of times that a rebuilt catalog replaced another one.
    rebuilds: AtomicU64,
}

/// A request to rebuild the catalog, or to close the slot.
#[derive(Default)]
struct RebuildRequest {
    state: Mutex<RebuildRequestState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct RebuildRequestState {
    is_wanted: bool,
    is_closing: bool,
}

impl RebuildRequest {
    fn update(&self, set: impl FnOnce(&mut RebuildRequestState)) {
        set(&mut self.state.lock());
        self.changed.notify_all();
    }
}

impl CatalogSlot {
    pub(crate) fn new(directory: CatalogDirectory) -> CatalogSlot {
        let (current, wish, rebuilds) = Default::default();
        CatalogSlot { directory, current, rebuild_request: wish, rebuilds }
    }

    /// The catalog in use.
    ///
    /// # Errors
    /// It is being rebuilt.
    pub fn get(&self) -> Result<Arc<Catalog>, CatalogError> {
        let current = self.current.read();
        current.as_ref().map(Arc::clone).ok_or_else(CatalogError::being_rebuilt)
    }

    /// Prepares a catalog that is to be filled: if it fails in use, it requests a rebuild.
    pub(crate) fn watch_for_failure(&self, catalog: Catalog) -> Arc<Catalog> {
        let wish = Arc::clone(&self.rebuild_request);
        Arc::new(
            catalog.with_failure_callback(Arc::new(move || {
                wish.update(|state| state.is_wanted = true)
            })),
        )
    }

    /// Puts a catalog into use that has every applied event.
    pub(crate) fn install(&self, catalog: Arc<Catalog>) {
        let last = self.current.write().replace(catalog);
        self.rebuild_request.update(|state| state.is_wanted = false);
        // Dropping it may take a while. Do it outside of the lock.
        drop(last);
        // It may have failed after it was filled and before it was installed.
        if self.current.read().as_ref().is_some_and(|current| current.has_failed()) {
            self.rebuild_request.update(|state| state.is_wanted = true);
        }
    }

    /// Releases a failed catalog. Its files are deleted when the last reader releases it.
    pub(crate) fn drop_failed(&self) {
        let mut current = self.current.write();
        let failed = current.take_if(|current| current.has_failed());
        drop(current);
        drop(failed);
    }

    /// The number of times that a rebuilt catalog replaced another one.
    pub(crate) fn rebuilds(&self) -> u64 {
        self.rebuilds.load(Ordering::Relaxed)
    }

    pub(crate) fn count_rebuild(&self) {
        self.rebuilds.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if a catalog is in use.
    pub(crate) fn is_filled(&self) -> bool {
        self.current.read().is_some()
    }

    fn is_healthy(&self) -> bool {
        self.current.read().as_ref().is_some_and(|current| !current.has_failed())
    }

    /// Returns true if the catalog is in memory because it could not be placed on disk.
    pub(crate) fn is_fallback(&self) -> bool {
        let current = self.current.read();
        self.directory.is_on_disk()
            && current.as_ref().is_some_and(|catalog| catalog.is_in_memory())
    }

    pub(crate) fn wants_rebuild(&self) -> bool {
        self.rebuild_request.state.lock().is_wanted || !self.is_filled()
    }

    /// Withdraws the request for a rebuild if the catalog in use is healthy: the one that failed
    /// was only its intended replacement.
    pub(crate) fn cancel_rebuild(&self) {
        if self.is_healthy() {
            self.rebuild_request.update(|state| state.is_wanted = false);
        }
    }

    /// Returns true if the slot is closing: there are no more rebuilds.
    pub(crate) fn is_closing(&self) -> bool {
        self.rebuild_request.state.lock().is_closing
    }

    /// Ends rebuilds, and every wait for one.
    pub(crate) fn close(&self) {
        self.rebuild_request.update(|state| state.is_closing = true);
    }

    /// Waits until a rebuild is wanted; `false` if the slot is closing. A catalog in memory is
    /// checked again after `every`.
    pub(crate) fn wait_until_wanted(&self, every: Duration) -> bool {
        let mut state = self.rebuild_request.state.lock();
        while !state.is_closing && !state.is_wanted && self.is_filled() {
            if !self.is_fallback() {
                self.rebuild_request.changed.wait(&mut state);
            } else if self.rebuild_request.changed.wait_for(&mut state, every).timed_out() {
                break;
            }
        }
        !state.is_closing
    }

    /// Waits until the catalog in use works, the slot is closing, or `max` is over.
    pub fn wait_until_healthy(&self, max: Duration) {
        let mut state = self.rebuild_request.state.lock();
        let waits = |state: &mut RebuildRequestState| !state.is_closing && !self.is_healthy();
        let _ = self.rebuild_request.changed.wait_while_for(&mut state, waits, max);
    }

    /// Waits for `pause`, or until the slot is closing.
    pub(crate) fn wait_unless_closing(&self, pause: Duration) {
        let mut state = self.rebuild_request.state.lock();
        while !state.is_closing {
            if self.rebuild_request.changed.wait_for(&mut state, pause).timed_out() {
                return;
            }
        }
    }
}
