//! Making the catalog anew beside service, after it failed.
//!
//! What holds true of it:
//! - The new one is filled from the journal while events go on being applied; the last few are read, and it
//!   is put to use, while none is. So it misses nothing, and nobody sees it half made.
//! - It is made on disk; where that cannot be, for the disk is full as a rule, in memory, and on disk later.
//! - A process that dies meanwhile leaves a catalog that knows how much of the journal it has seen.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hlc::Hlc;
use storage::catalog::{Catalog, CatalogError};
use storage::{AbortOnPanic, Store};

use super::EngineState;
use super::replay::{CatalogFill, CatalogFillError};
use crate::append::EngineAppendStage;
use crate::engine::Engine;
use crate::files::FileSystem;

/// How long after a rebuild that failed the next one begins, first and at most.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);
/// So few events are left to read when those who apply and look are held up.
const REMAINING_EVENTS_MAX: u64 = 64;
/// And so often it is tried to come that close.
const CATCH_UPS_MAX: u32 = 100;

/// Makes catalogs anew.
#[derive(Clone)]
pub(super) struct CatalogRebuild {
    pub(super) store: Arc<Store<EngineAppendStage>>,
    pub(super) shared: Arc<EngineState>,
    pub(super) files: FileSystem,
}

impl Engine {
    /// What makes catalogs anew. The thread ends when the slot is closed.
    pub(super) fn start_rebuild(&self) -> std::io::Result<()> {
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

    /// How often the catalog was rebuilt beside service, and whether it lies in memory for want of a place on
    /// disk.
    pub fn catalog_rebuilds(&self) -> (u64, bool) {
        (self.shared.catalog.rebuilds(), self.shared.catalog.is_fallback())
    }

    fn catalog_rebuild(&self) -> CatalogRebuild {
        CatalogRebuild {
            store: Arc::clone(&self.store),
            shared: Arc::clone(&self.shared),
            files: self.files.clone(),
        }
    }

    /// Makes the catalog anew if that is wanted, where no thread does it; whether it was.
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
        let mut pause = RETRY_DELAY_MIN;
        while slot.wait_until_wanted(RETRY_DELAY_MAX) {
            match self.rebuild() {
                Ok(()) => pause = RETRY_DELAY_MIN,
                Err(_) if slot.is_closing() => return,
                // The disk is as full as before; what is in memory goes on.
                Err(_) if slot.is_filled() => slot.wait_unless_closing(RETRY_DELAY_MAX),
                Err(error) => {
                    // At first, and then once a minute.
                    if pause == RETRY_DELAY_MIN || pause == RETRY_DELAY_MAX {
                        tracing::error!(%error, "the catalog cannot be rebuilt yet; it is tried again");
                    }
                    slot.wait_unless_closing(pause);
                    pause = (pause * 2).min(RETRY_DELAY_MAX);
                }
            }
        }
    }

    /// Makes one on disk; where that cannot be and there is none, in memory.
    fn rebuild(&self) -> Result<(), CatalogFillError> {
        let slot = &self.shared.catalog;
        slot.drop_failed();
        let on_disk = self.rebuild_in(slot.directory.open_new());
        match on_disk {
            Err(CatalogFillError::Catalog(error))
                if !slot.is_filled() && slot.directory.is_on_disk() =>
            {
                tracing::warn!(%error, "the catalog is rebuilt in memory, for there is no place on disk");
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
        let mut fill = CatalogFill::begin(&self.store, &self.shared, &catalog)?;
        for _ in 0..CATCH_UPS_MAX {
            if fill.advance(self.applied_stamp())? <= REMAINING_EVENTS_MAX {
                break;
            }
        }
        // What has no room is found out now, and not when it is in use.
        catalog.sync()?;
        let applying = self.shared.apply_lock.lock();
        let mut files_next = self.files.lock_names();
        fill.advance(self.applied_stamp())?;
        *files_next = fill.finish()?;
        slot.install(Arc::clone(&catalog));
        slot.count_rebuild();
        drop(files_next);
        drop(applying);
        let in_memory = catalog.is_in_memory();
        tracing::info!(in_memory, "the catalog was rebuilt from the journal");
        Ok(())
    }

    fn applied_stamp(&self) -> Hlc {
        Hlc::from_bits(self.shared.applied_stamp.load(Ordering::Acquire))
    }
}
