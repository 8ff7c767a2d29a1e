//! The work that an engine does on its own threads, and how a simulation does it without threads.
//!
//! An engine with [manual stepping](storage::Options::manual_stepping) starts no threads.
//! Background work waits for [`Engine::step`], and work for threads that may wait for disks is done
//! on the calling thread. So the caller decides the order of everything, and a run replays from its
//! seed.

use std::sync::Arc;

use hlc::Hlc;
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::namespace::Topic;
use crate::namespace::event::MetadataEvent;

impl Engine {
    fn is_manually_stepped(&self) -> bool {
        self.options.storage.manual_stepping
    }

    /// Does the pending work of an engine with [manual
    /// stepping](storage::Options::manual_stepping): writes one group, renews the clock's bound,
    /// applies events, rebuilds the catalog. Whether there was any.
    pub fn step(&self) -> bool {
        let wrote = self.store.step();
        let applied = self.step_applier();
        self.step_catalog_rebuild() || applied || wrote
    }

    /// Every topic that exists or existed, in order of creation, in its last state, with its
    /// deletion time if it was deleted. It may have no records left. Removed topics are not listed.
    pub fn topics_including_deleted(&self) -> Vec<(Arc<Topic>, Option<Hlc>)> {
        let namespace = self.shared.namespace.read();
        let mut topics: Vec<_> =
            namespace.topics_including_deleted().map(|(t, d)| (Arc::clone(t), d)).collect();
        topics.sort_by_key(|(topic, _)| topic.created);
        topics
    }

    /// Runs something that may wait for disks.
    pub(crate) async fn spawn_blocking<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        if self.is_manually_stepped() {
            return act();
        }
        let done = tokio::task::spawn_blocking(act).await;
        done.map_err(|error| EngineError::Internal(error.to_string().into()))?
    }

    /// [`Engine::submit_event`], on a thread that may block.
    pub(crate) fn submit_event_blocking(&self, event: MetadataEvent) -> Result<Hlc, EngineError> {
        let applied = self.begin_submit_event(event, None)?;
        while self.is_manually_stepped() && self.step() {}
        receive_blocking(applied, self.is_manually_stepped())
            .unwrap_or(Err(EngineError::Stopping("it is being closed".into())))
    }

    /// [`Engine::lock_changes`], on a thread that may block; `None` where it may not and the lock
    /// is taken.
    pub(crate) fn lock_changes_blocking(&self) -> Option<OwnedMutexGuard<()>> {
        let changing = Arc::clone(&self.change_lock);
        match self.is_manually_stepped() {
            true => changing.try_lock_owned().ok(),
            false => Some(changing.blocking_lock_owned()),
        }
    }
}

fn receive_blocking<T>(mut receiver: oneshot::Receiver<T>, is_here: bool) -> Option<T> {
    if is_here { receiver.try_recv().ok() } else { receiver.blocking_recv().ok() }
}
