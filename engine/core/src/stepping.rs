//! The work that an engine does on its own threads, and how a simulation does it without threads.
//!
//! An engine with [manual stepping](storage::Options::manual_stepping) starts no threads.
//! Background work waits for [`EngineCore::step`], and work for threads that may wait for disks is
//! done on the calling thread. So the caller decides the order of everything, and a run replays
//! from its seed.

use std::sync::Arc;

use crate::engine_core::{ChangesGuard, EngineCore};
use crate::error::EngineError;

impl EngineCore {
    pub(crate) fn is_manually_stepped(&self) -> bool {
        self.options.storage.manual_stepping
    }

    /// Does the pending work of an engine with [manual
    /// stepping](storage::Options::manual_stepping): writes one group, renews the clock's bound,
    /// applies events, rebuilds the catalog. Returns true if there was any.
    pub fn step(&self) -> bool {
        let wrote = self.store.step();
        let applied = self.step_applier();
        self.step_catalog_rebuild() || applied || wrote
    }

    /// Runs something that may wait for disks.
    ///
    /// # Errors
    /// The errors of `act`.
    pub async fn spawn_blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        if self.is_manually_stepped() {
            return act();
        }
        let done = tokio::task::spawn_blocking(act).await;
        done.map_err(|error| EngineError::Internal(error.to_string().into()))?
    }

    /// [`EngineCore::lock_changes`], on a thread that may block; `None` where it may not and the
    /// lock is taken.
    pub fn lock_changes_blocking(&self) -> Option<ChangesGuard> {
        let changing = Arc::clone(&self.change_lock);
        if self.is_manually_stepped() {
            changing.try_lock_owned().ok().map(ChangesGuard)
        } else {
            Some(ChangesGuard(changing.blocking_lock_owned()))
        }
    }
}
