//! Writes to the log: snapshots, and the deletion of a group.
//!
//! Each runs in a task of its own, so that a write goes on when its client disconnects. The slot's
//! `writing` lock is fair: writes run in the order in which they were queued.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::effects::{WriteId, WriteResult};
use super::super::error::GroupError;
use super::super::snapshot::GroupSnapshot;
use super::CoordinatorState;
use super::slot::{GroupSlot, GroupSlotState};

/// A snapshot that waits for its turn. It replaces any that waited before it: the log keeps only
/// the last anyway, and a slow log cannot pile them up.
pub(super) struct QueuedSnapshot {
    writes: Vec<WriteId>,
    snapshot: GroupSnapshot,
}

impl CoordinatorState {
    pub(super) fn queue(
        self: &Arc<Self>,
        slot: &Arc<GroupSlot>,
        inner: &mut GroupSlotState,
        write: WriteId,
        snapshot: GroupSnapshot,
    ) {
        match &mut inner.queued {
            Some(queued) => {
                queued.writes.push(write);
                queued.snapshot = snapshot;
            }
            None => {
                inner.queued = Some(QueuedSnapshot { writes: vec![write], snapshot });
                tokio::spawn(self.clone().put(slot.clone()));
            }
        }
    }

    async fn put(self: Arc<Self>, slot: Arc<GroupSlot>) {
        let _turn = slot.writing.lock().await;
        let Some(QueuedSnapshot { writes, snapshot }) = slot.take_queued() else { return };
        let put = self.log.put(&slot.id, snapshot.encode());
        let result = match timeout(self.options.write_timeout, put).await {
            Ok(Ok(())) => WriteResult::Stored,
            Ok(Err(error)) => log_failure(&slot, "put", &error),
            Err(_) => log_failure(&slot, "put", "timeout"),
        };
        let mut inner = slot.inner.lock();
        for write in writes {
            let now = self.now();
            let effects = inner.group.persisted(now, write, result);
            self.apply_effects(&slot, &mut inner, now, effects);
        }
    }

    /// Deletes a group that has been idle, unless it has offsets, or was used since (then
    /// `idle_until` has moved): that may have been a commit.
    pub(super) async fn delete_if_idle(
        self: Arc<Self>,
        slot: Arc<GroupSlot>,
        idle_until: Option<Duration>,
    ) {
        if self.log.has_offsets(&slot.id).await {
            return;
        }
        let mut inner = slot.inner.lock();
        let is_untouched = inner.idle_until == idle_until;
        if is_untouched && inner.group.is_idle() && !inner.is_being_deleted {
            let _ = self.begin_delete(&slot, &mut inner);
        }
    }

    pub(super) fn begin_delete(
        self: &Arc<Self>,
        slot: &Arc<GroupSlot>,
        inner: &mut GroupSlotState,
    ) -> Result<oneshot::Receiver<Result<(), GroupError>>, GroupError> {
        if inner.is_being_deleted || inner.is_held {
            return Err(GroupError::CoordinatorNotAvailable);
        }
        inner.group.check_delete()?;
        inner.is_being_deleted = true;
        inner.drop_queued(self.now());
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(self.clone().delete_slot(slot.clone(), sender));
        Ok(receiver)
    }

    async fn delete_slot(
        self: Arc<Self>,
        slot: Arc<GroupSlot>,
        done: oneshot::Sender<Result<(), GroupError>>,
    ) {
        let _turn = slot.writing.lock().await;
        let is_stored = slot.inner.lock().is_stored || self.log.has_offsets(&slot.id).await;
        let deleted = !is_stored || self.delete_stored(&slot).await == WriteResult::Stored;
        let result = if deleted {
            self.remove_group(&slot);
            Ok(())
        } else {
            self.cancel_delete(&slot);
            Err(GroupError::CoordinatorNotAvailable)
        };
        let _ = done.send(result);
    }

    async fn delete_stored(&self, slot: &GroupSlot) -> WriteResult {
        match timeout(self.options.write_timeout, self.log.delete(&slot.id)).await {
            Ok(Ok(())) => WriteResult::Stored,
            Ok(Err(error)) => log_failure(slot, "delete", &error),
            Err(_) => log_failure(slot, "delete", "timeout"),
        }
    }

    fn remove_group(&self, slot: &Arc<GroupSlot>) {
        let mut groups = self.groups.lock();
        let mut inner = slot.inner.lock();
        inner.group.close();
        self.update_bytes(slot, &mut inner);
        self.timers.cancel(&mut inner);
        if groups.by_id.get(&slot.id).is_some_and(|there| Arc::ptr_eq(there, slot)) {
            groups.by_id.remove(&slot.id);
        }
    }

    fn cancel_delete(self: &Arc<Self>, slot: &Arc<GroupSlot>) {
        let mut inner = slot.inner.lock();
        inner.is_being_deleted = false;
        self.apply_effects(slot, &mut inner, self.now(), Vec::new());
    }
}

impl GroupSlotState {
    /// Drops the queued snapshot, because the group is about to be deleted. Nothing waits for it,
    /// because the group has no members.
    fn drop_queued(&mut self, now: Duration) {
        for write in self.queued.take().into_iter().flat_map(|queued| queued.writes) {
            let effects = self.group.persisted(now, write, WriteResult::Failed);
            assert!(effects.is_empty(), "nobody waits in an empty group");
        }
    }
}

impl GroupSlot {
    fn take_queued(&self) -> Option<QueuedSnapshot> {
        let mut inner = self.inner.lock();
        inner.is_stored |= inner.queued.is_some();
        inner.queued.take()
    }
}

fn log_failure(slot: &GroupSlot, verb: &'static str, error: &str) -> WriteResult {
    tracing::warn!(group = slot.id, verb, error, "group log failed");
    WriteResult::Failed
}
