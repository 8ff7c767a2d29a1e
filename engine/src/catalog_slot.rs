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
    wish: Arc<RebuildWish>,
    /// How often another catalog was put in the place of one.
    rebuilds: AtomicU64,
}

/// Whether a rebuild is wanted, and whether there is to be none any more.
#[derive(Default)]
struct RebuildWish {
    state: Mutex<WishState>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct WishState {
    is_wanted: bool,
    is_closing: bool,
}

impl RebuildWish {
    fn set(&self, set: impl FnOnce(&mut WishState)) {
        set(&mut self.state.lock());
        self.changed.notify_all();
    }
}

impl CatalogSlot {
    /// An empty one.
    pub(crate) fn new(directory: CatalogDirectory) -> CatalogSlot {
        let (current, wish, rebuilds) = Default::default();
        CatalogSlot { directory, current, wish, rebuilds }
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
    pub(crate) fn watched(&self, catalog: Catalog) -> Arc<Catalog> {
        let wish = Arc::clone(&self.wish);
        Arc::new(catalog.telling(Arc::new(move || wish.set(|state| state.is_wanted = true))))
    }

    /// Puts a catalog to use that knows all that was made true.
    pub(crate) fn put(&self, catalog: Arc<Catalog>) {
        let last = self.current.write().replace(catalog);
        self.wish.set(|state| state.is_wanted = false);
        // Its end may take a while, and nobody needs to wait for that under the lock.
        drop(last);
        // It may have failed between its filling and here.
        if self.current.read().as_ref().is_some_and(|current| current.has_failed()) {
            self.wish.set(|state| state.is_wanted = true);
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
    pub(crate) fn is_makeshift(&self) -> bool {
        let current = self.current.read();
        self.directory.is_on_disk() && current.as_ref().is_some_and(|held| held.is_in_memory())
    }

    /// Whether there is to be another catalog.
    pub(crate) fn wants_rebuild(&self) -> bool {
        self.wish.state.lock().is_wanted || !self.is_filled()
    }

    /// A catalog that was to take the place of the one in use has failed: that is no wish for another one.
    pub(crate) fn keep(&self) {
        let is_fine = self.current.read().as_ref().is_some_and(|current| !current.has_failed());
        if is_fine {
            self.wish.set(|state| state.is_wanted = false);
        }
    }

    /// Whether there is to be no rebuild any more.
    pub(crate) fn is_closing(&self) -> bool {
        self.wish.state.lock().is_closing
    }

    /// Ends every wait for a rebuild, and rebuilds.
    pub(crate) fn close(&self) {
        self.wish.set(|state| state.is_closing = true);
    }

    /// Waits until a rebuild is wanted; `false` if there is to be none any more. A catalog in memory is
    /// looked at again after `every`.
    pub(crate) fn wait_until_wanted(&self, every: Duration) -> bool {
        let mut state = self.wish.state.lock();
        while !state.is_closing && !state.is_wanted && self.is_filled() {
            if !self.is_makeshift() {
                self.wish.changed.wait(&mut state);
            } else if self.wish.changed.wait_for(&mut state, every).timed_out() {
                break;
            }
        }
        !state.is_closing
    }

    /// Waits for `pause`, or until there is to be no rebuild any more.
    pub(crate) fn pause(&self, pause: Duration) {
        let mut state = self.wish.state.lock();
        while !state.is_closing {
            if self.wish.changed.wait_for(&mut state, pause).timed_out() {
                return;
            }
        }
    }
}
