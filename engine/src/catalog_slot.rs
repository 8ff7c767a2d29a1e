//! The catalog that is in use, and the place where another one is put when it fails.
//!
//! The catalog is soft: what it holds is in the journal. So one that fails is no end of service. Whoever
//! needs it is told to ask again, events go on into the journal, and a rebuild makes another one
//! ([`crate::engine`], `rebuilding.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use storage::catalog::{Catalog, CatalogDirectory, CatalogError};

/// The catalog that is in use, if one is.
pub(crate) struct CatalogSlot {
    pub(crate) directory: CatalogDirectory,
    current: RwLock<Option<Arc<Catalog>>>,
    rebuild_request: Arc<RebuildRequest>,
    /// How often another catalog was put in the place of one.
    rebuilds: AtomicU64,
}

/// Whether a rebuild is wanted, and whether there is to be none any more.
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
    /// An empty one.
    pub(crate) fn new(directory: CatalogDirectory) -> CatalogSlot {
        let (current, wish, rebuilds) = Default::default();
        CatalogSlot { directory, current, rebuild_request: wish, rebuilds }
    }

    /// The catalog in use.
    ///
    /// # Errors
    /// It is being rebuilt.
    pub(crate) fn get(&self) -> Result<Arc<Catalog>, CatalogError> {
        let current = self.current.read();
        current.as_ref().map(Arc::clone).ok_or_else(CatalogError::being_rebuilt)
    }

    /// A catalog that is to be filled; a rebuild is wanted when it fails in use.
    pub(crate) fn watch_for_failure(&self, catalog: Catalog) -> Arc<Catalog> {
        let wish = Arc::clone(&self.rebuild_request);
        Arc::new(
            catalog.with_failure_callback(Arc::new(move || {
                wish.update(|state| state.is_wanted = true)
            })),
        )
    }

    /// Puts a catalog to use that knows all that was made true.
    pub(crate) fn install(&self, catalog: Arc<Catalog>) {
        let last = self.current.write().replace(catalog);
        self.rebuild_request.update(|state| state.is_wanted = false);
        // Its end may take a while, and nobody needs to wait for that under the lock.
        drop(last);
        // It may have failed between its filling and here.
        if self.current.read().as_ref().is_some_and(|current| current.has_failed()) {
            self.rebuild_request.update(|state| state.is_wanted = true);
        }
    }

    /// Lets go of a catalog that failed, so that its files are gone with the last of those who read it.
    pub(crate) fn drop_failed(&self) {
        let mut current = self.current.write();
        let failed = current.take_if(|current| current.has_failed());
        drop(current);
        drop(failed);
    }

    /// How often a catalog was rebuilt in the place of another one.
    pub(crate) fn rebuilds(&self) -> u64 {
        self.rebuilds.load(Ordering::Relaxed)
    }

    /// Says that one was rebuilt.
    pub(crate) fn count_rebuild(&self) {
        self.rebuilds.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether one is in use.
    pub(crate) fn is_filled(&self) -> bool {
        self.current.read().is_some()
    }

    /// Whether the catalog lies in memory for want of a better place.
    pub(crate) fn is_fallback(&self) -> bool {
        let current = self.current.read();
        self.directory.is_on_disk() && current.as_ref().is_some_and(|held| held.is_in_memory())
    }

    /// Whether there is to be another catalog.
    pub(crate) fn wants_rebuild(&self) -> bool {
        self.rebuild_request.state.lock().is_wanted || !self.is_filled()
    }

    /// A catalog that was to take the place of the one in use has failed: that is no wish for another one.
    pub(crate) fn cancel_rebuild(&self) {
        let is_fine = self.current.read().as_ref().is_some_and(|current| !current.has_failed());
        if is_fine {
            self.rebuild_request.update(|state| state.is_wanted = false);
        }
    }

    /// Whether there is to be no rebuild any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.rebuild_request.state.lock().is_closing
    }

    /// Ends every wait for a rebuild, and rebuilds.
    pub(crate) fn close(&self) {
        self.rebuild_request.update(|state| state.is_closing = true);
    }

    /// Waits until a rebuild is wanted; `false` if there is to be none any more. A catalog in memory is
    /// looked at again after `every`.
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

    /// Waits for `pause`, or until there is to be no rebuild any more.
    pub(crate) fn wait_unless_closing(&self, pause: Duration) {
        let mut state = self.rebuild_request.state.lock();
        while !state.is_closing {
            if self.rebuild_request.changed.wait_for(&mut state, pause).timed_out() {
                return;
            }
        }
    }
}
