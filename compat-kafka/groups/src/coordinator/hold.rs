//! Keeps clients away from a group for a moment, while its offsets are set.
//!
//! Requests for it are told to retry meanwhile, as while a coordinator moves.

use std::sync::Arc;

use engine::EngineError;

use super::super::error::GroupError;
use super::slot::GroupSlot;
use super::{CoordinatorState, GroupCoordinator, MissingGroupPolicy, check_group_id};

/// A group that nobody can join or commit for until this is dropped.
pub struct HeldGroup {
    shared: Arc<CoordinatorState>,
    slot: Arc<GroupSlot>,
}

impl GroupCoordinator {
    /// Holds a group without members, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// It has members, or is held or being deleted.
    pub fn hold(&self, group: &str) -> Result<HeldGroup, GroupError> {
        check_group_id(group)?;
        loop {
            let slot = self.find(group, MissingGroupPolicy::Create)?;
            let mut inner = slot.inner.lock();
            if inner.group.is_closed() {
                continue;
            }
            if inner.is_being_deleted || inner.is_held {
                return Err(GroupError::CoordinatorNotAvailable);
            }
            inner.group.check_delete()?;
            if let Some(holder) = &self.holder {
                inner.grants.claim(holder);
            }
            inner.is_held = true;
            inner.end_lease();
            // The holder sets its offsets.
            inner.is_stored = true;
            drop(inner);
            return Ok(HeldGroup { shared: Arc::clone(&self.shared), slot });
        }
    }
}

impl HeldGroup {
    /// Changes the group's offsets while it is held. The change runs to its end even if the caller
    /// goes away: until then no client reads the old offsets.
    ///
    /// # Errors
    ///
    /// The change fails.
    pub async fn while_held<T: Send + 'static>(
        self,
        change: impl Future<Output = Result<T, EngineError>> + Send + 'static,
    ) -> Result<T, EngineError> {
        let changing = tokio::spawn(async move {
            let _held = self;
            change.await
        });
        changing.await.map_err(|error| EngineError::Internal(error.to_string().into()))?
    }
}

impl Drop for HeldGroup {
    fn drop(&mut self) {
        let mut inner = self.slot.inner.lock();
        inner.is_held = false;
        // It counts as used: its time without members restarts.
        inner.idle_until = None;
        self.shared.apply_effects(&self.slot, &mut inner, self.shared.now(), Vec::new());
    }
}
