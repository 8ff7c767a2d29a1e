//! Rebuilds of the catalog while the service runs, after it failed.
//!
//! Invariants:
//! - The new catalog is filled from the journal while events are still applied. The applier pauses
//!   only while the last few events are read and the catalog is put into use. So the catalog misses
//!   no event, and no reader sees it half built.
//! - It is built on disk. If that fails, usually because the disk is full, it is built in memory,
//!   and on disk later.
//! - A process that dies meanwhile leaves a catalog that records how much of the journal it has
//!   applied.

use std::sync::Arc;
use std::time::Duration;

use storage::catalog::{Catalog, CatalogError};
use storage::{AbortOnPanic, LogThrottle};

use crate::catalog_fill::CatalogFill;
use crate::engine_core::{EngineCore, EngineState, EngineStore};
use crate::projection::{CatalogFillError, EngineWings};

/// The delay after a failed rebuild: the first one, and the longest.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);
/// The most events that may remain to be read while the applier and readers are paused.
const REMAINING_EVENTS_MAX: u64 = 64;
/// The most attempts to come that close.
const CATCH_UPS_MAX: u32 = 100;

#[derive(Clone)]
pub(crate) struct CatalogRebuild {
    store: Arc<EngineStore>,
    shared: Arc<EngineState>,
    wings: Arc<EngineWings>,
}

impl EngineCore {
    /// Starts the thread that rebuilds catalogs. It ends when the slot is closed.
    pub(crate) fn start_rebuild(&self) -> std::io::Result<()> {
        if self.options.storage.manual_stepping {
            return Ok(());
        }
        let rebuild = self.catalog_rebuild();
        let thread = std::thread::Builder::new().name("catalog".to_owned()).spawn(move || {
            let abort = AbortOnPanic;
            rebuild.run();
            std::mem::forget(abort);
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// The number of times that the catalog was rebuilt while the service ran, and true if it is in
    /// memory because it could not be placed on disk.
    pub fn catalog_rebuilds(&self) -> (u64, bool) {
        (self.shared.catalog.rebuilds(), self.shared.catalog.is_fallback())
    }

    fn catalog_rebuild(&self) -> CatalogRebuild {
        CatalogRebuild {
            store: Arc::clone(&self.store),
            shared: Arc::clone(&self.shared),
            wings: Arc::clone(self.wings()),
        }
    }

    /// Rebuilds the catalog if that is wanted, under manual stepping; returns true if it did.
    pub fn step_catalog_rebuild(&self) -> bool {
        let slot = &self.shared.catalog;
        if !slot.wants_rebuild() && !slot.is_fallback() {
            return false;
        }
        match self.catalog_rebuild().rebuild() {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "the catalog is not rebuilt");
                false
            }
        }
    }
}

impl CatalogRebuild {
    fn run(&self) {
        let slot = &self.shared.catalog;
        let (mut pause, mut failures) = (RETRY_DELAY_MIN, LogThrottle::default());
        let now = || self.store.timekeeper().steady_now();
        while slot.wait_until_wanted(RETRY_DELAY_MAX) {
            match self.rebuild() {
                Ok(()) => {
                    pause = RETRY_DELAY_MIN;
                    failures.record_success(now);
                }
                Err(_) if slot.is_closing() => return,
                // The disk is still full. The catalog in memory stays in use.
                Err(_) if slot.is_filled() => slot.wait_unless_closing(RETRY_DELAY_MAX),
                Err(error) => {
                    if let Some(failed) = failures.record_failure(now()) {
                        tracing::error!(
                            %error,
                            failed,
                            "the catalog cannot be rebuilt yet; it is retried"
                        );
                    }
                    slot.wait_unless_closing(pause);
                    pause = (pause * 2).min(RETRY_DELAY_MAX);
                }
            }
        }
    }

    /// Builds a catalog on disk. If that fails and none is in use, builds it in memory.
    fn rebuild(&self) -> Result<(), CatalogFillError> {
        let slot = &self.shared.catalog;
        slot.drop_failed();
        let on_disk = self.rebuild_in(slot.directory.open_new());
        match on_disk {
            Err(CatalogFillError::Catalog(error))
                if !slot.is_filled() && slot.directory.is_on_disk() =>
            {
                tracing::warn!(%error, "the catalog is rebuilt in memory, because the disk has no room");
                self.rebuild_in(slot.directory.open_in_memory())
            }
            Err(error) => {
                slot.cancel_rebuild();
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    fn rebuild_in(&self, made: Result<Catalog, CatalogError>) -> Result<(), CatalogFillError> {
        let slot = &self.shared.catalog;
        let catalog = slot.watch_for_failure(made?);
        let mut fill = CatalogFill::begin(&self.store, &self.shared, &self.wings, &catalog)?;
        for _ in 0..CATCH_UPS_MAX {
            if fill.advance(self.shared.applied_stamp())? <= REMAINING_EVENTS_MAX {
                break;
            }
        }
        // A lack of space shows now, and not while the catalog is in use.
        catalog.sync()?;
        let applying = self.shared.apply_lock.lock();
        fill.pause_readers();
        fill.advance(self.shared.applied_stamp())?;
        fill.finish()?;
        slot.install(Arc::clone(&catalog));
        slot.count_rebuild();
        drop(fill);
        drop(applying);
        let in_memory = catalog.is_in_memory();
        tracing::info!(in_memory, "the catalog was rebuilt from the journal");
        Ok(())
    }
}
