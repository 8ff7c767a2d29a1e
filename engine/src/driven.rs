//! What an engine does on threads of its own; and how a simulation does without them.
//!
//! An engine that is [driven by hand](storage::Options::driven_by_hand) starts none. What would be done
//! by one waits for [`Engine::turn`], and what would be given to one that may wait for disks is done on
//! the spot: so whoever calls it decides what comes when, and a run replays from its seed.

use std::sync::Arc;

use hlc::Hlc;
use tokio::sync::{OwnedMutexGuard, oneshot};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::namespace::Topic;
use crate::namespace::event::Event;

impl Engine {
    fn is_driven_by_hand(&self) -> bool {
        self.options.storage.driven_by_hand
    }

    /// Does what an engine that is [driven by hand](storage::Options::driven_by_hand) has to do now:
    /// writes one group, renews the clock's bound, applies events, makes the catalog anew. Whether there was anything to do.
    pub fn turn(&self) -> bool {
        let wrote = self.store.turn();
        let applied = self.apply_by_hand();
        self.rebuild_by_hand() || applied || wrote
    }

    /// Every topic that is or was, by its creation, as it is or was last; and when it was deleted, if it
    /// was. What is kept of them may be nothing, and those that are forgotten are not among them.
    pub fn topics_ever(&self) -> Vec<(Arc<Topic>, Option<Hlc>)> {
        let namespace = self.shared.namespace.read();
        let mut topics: Vec<_> = namespace.topics_ever().map(|(t, d)| (Arc::clone(t), d)).collect();
        topics.sort_by_key(|(topic, _)| topic.created);
        topics
    }

    /// Does what may wait for disks.
    pub(crate) async fn on_a_thread<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        if self.is_driven_by_hand() {
            return act();
        }
        let done = tokio::task::spawn_blocking(act).await;
        done.map_err(|error| EngineError::Disk(error.to_string().into()))?
    }

    /// [`Engine::change`], on a thread that may wait.
    pub(crate) fn change_here(&self, event: Event) -> Result<Hlc, EngineError> {
        let applied = self.begin_change(event, None)?;
        while self.is_driven_by_hand() && self.turn() {}
        receive_here(applied, self.is_driven_by_hand())
            .unwrap_or(Err(EngineError::Stopping("it is being closed".into())))
    }

    /// [`Engine::hold_changes`], on a thread that may wait; `None` where it may not, and another holds
    /// them.
    pub(crate) fn hold_changes_here(&self) -> Option<OwnedMutexGuard<()>> {
        let changing = Arc::clone(&self.changing);
        match self.is_driven_by_hand() {
            true => changing.try_lock_owned().ok(),
            false => Some(changing.blocking_lock_owned()),
        }
    }
}

fn receive_here<T>(mut receiver: oneshot::Receiver<T>, is_here: bool) -> Option<T> {
    if is_here { receiver.try_recv().ok() } else { receiver.blocking_recv().ok() }
}
