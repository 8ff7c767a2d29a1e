//! Writes to the log: snapshots, and the deletion of a group.
//!
//! Each runs in a task of its own, so that a write goes on when its client disconnects. The slot's
//! `writing` lock is fair: writes run in the order in which they were queued.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::super::effects::{GroupChange, WriteId, WriteResult};
use super::super::error::GroupError;
use super::super::group::Group;
use super::super::snapshot::GroupSnapshot;
use super::CoordinatorState;
use super::slot::{GroupSlot, GroupSlotState};

/// A write that waits for its turn. It writes the newest state by then: a slow log cannot pile
/// writes up.
pub(super) enum QueuedWrite {
    /// The newest snapshot of a classic group.
    Snapshot { writes: Vec<WriteId>, snapshot: GroupSnapshot },
    /// The changes of a group whose members are stored one by one.
    Changes,
}

/// A write that has its turn.
enum TakenWrite {
    Snapshot {
        writes: Vec<WriteId>,
        change: GroupChange,
        incarnation: u64,
    },
    /// All changes up to a number.
    Changes {
        count: u64,
        change: GroupChange,
        incarnation: u64,
    },
}

impl TakenWrite {
    fn incarnation(&self) -> u64 {
        let (TakenWrite::Snapshot { incarnation, .. } | TakenWrite::Changes { incarnation, .. }) =
            self;
        *incarnation
    }
}

impl CoordinatorState {
    pub(super) fn queue_snapshot(
        self: &Arc<Self>,
        slot: &Arc<GroupSlot>,
        inner: &mut GroupSlotState,
        write: WriteId,
        snapshot: GroupSnapshot,
    ) {
        let is_queued = inner.queued.is_some();
        let mut writes = match inner.queued.take() {
            Some(QueuedWrite::Snapshot { writes, .. }) => writes,
            // The group has become a classic one since.
            Some(QueuedWrite::Changes) | None => Vec::new(),
        };
        writes.push(write);
        inner.queued = Some(QueuedWrite::Snapshot { writes, snapshot });
        if !is_queued {
            tokio::spawn(self.clone().put(slot.clone()));
        }
    }

    /// Queues the changes of a group whose members are stored one by one, if there are any.
    pub(super) fn queue_changes(
        self: &Arc<Self>,
        slot: &Arc<GroupSlot>,
        inner: &mut GroupSlotState,
    ) {
        if !inner.group.has_unsaved() {
            return;
        }
        // A snapshot that waits is of the classic group that it was.
        if inner.queued.replace(QueuedWrite::Changes).is_none() {
            tokio::spawn(self.clone().put(slot.clone()));
        }
    }

    async fn put(self: Arc<Self>, slot: Arc<GroupSlot>) {
        let _turn = slot.writing.lock().await;
        let Some(write) = slot.take_queued() else { return };
        let change = match &write {
            TakenWrite::Snapshot { change, .. } | TakenWrite::Changes { change, .. } => change,
        };
        let put = self.log.put(&slot.id, change.clone());
        let result = match timeout(self.options.write_timeout, put).await {
            Ok(Ok(())) => WriteResult::Stored,
            Ok(Err(error)) => log_failure(&slot, "put", &error),
            Err(_) => log_failure(&slot, "put", "timeout"),
        };
        self.end_write(&slot, write, result);
    }

    /// A group that is of another kind by now has nothing to do: its own write follows.
    fn end_write(self: &Arc<Self>, slot: &Arc<GroupSlot>, write: TakenWrite, result: WriteResult) {
        let mut inner = slot.inner.lock();
        let now = self.now();
        if write.incarnation() != inner.incarnation {
            return;
        }
        match write {
            TakenWrite::Snapshot { writes, .. } => {
                for write in writes {
                    let Group::Classic(group) = &mut inner.group else { return };
                    let effects = group.persisted(now, write, result);
                    self.apply_effects(slot, &mut inner, now, effects);
                }
                inner.end_save_waits(u64::MAX, result);
            }
            TakenWrite::Changes { count, change, .. } => {
                match result {
                    WriteResult::Stored => inner.group.saved(count),
                    WriteResult::Failed => inner.group.save_failed(&change),
                }
                inner.end_save_waits(count, result);
                match result {
                    WriteResult::Stored => self.apply_effects(slot, &mut inner, now, Vec::new()),
                    WriteResult::Failed => self.retry_later(slot),
                }
            }
        }
    }

    /// Writes again after a failed write, unless a request has done so before: nobody may ever name
    /// the group again.
    fn retry_later(self: &Arc<Self>, slot: &Arc<GroupSlot>) {
        let (shared, slot) = (Arc::downgrade(self), Arc::downgrade(slot));
        let pause = self.options.write_timeout;
        tokio::spawn(async move {
            sleep(pause).await;
            if let (Some(shared), Some(slot)) = (shared.upgrade(), slot.upgrade()) {
                let mut inner = slot.inner.lock();
                if !inner.is_being_deleted {
                    shared.queue_changes(&slot, &mut inner);
                }
            }
        });
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
        inner.end_lease();
        inner.drop_queued(self.now());
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(self.clone().delete_slot(slot.clone(), sender));
        Ok(receiver)
    }

    async fn delete_slot(
        self: Arc<Self>,
        slot: Arc<GroupSlot>,
        reply: oneshot::Sender<Result<(), GroupError>>,
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
        let _ = reply.send(result);
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
        inner.end_save_waits(u64::MAX, WriteResult::Failed);
        self.update_bytes(slot, &mut inner);
        self.timers.cancel(&mut inner);
        if groups.by_id.get(&slot.id).is_some_and(|current| Arc::ptr_eq(current, slot)) {
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
    /// Drops the queued write, because the group is about to be deleted. Nothing waits for a
    /// snapshot, because the group has no members.
    fn drop_queued(&mut self, now: Duration) {
        let (Some(QueuedWrite::Snapshot { writes, .. }), Group::Classic(group)) =
            (self.queued.take(), &mut self.group)
        else {
            return;
        };
        for write in writes {
            let effects = group.persisted(now, write, WriteResult::Failed);
            assert!(effects.is_empty(), "nobody waits in an empty group");
        }
    }
}

impl GroupSlot {
    fn take_queued(&self) -> Option<TakenWrite> {
        let mut inner = self.inner.lock();
        inner.is_stored |= inner.queued.is_some();
        let incarnation = inner.incarnation;
        match (inner.queued.take()?, &mut inner.group) {
            (QueuedWrite::Snapshot { writes, snapshot }, Group::Classic(_)) => {
                let change = GroupChange::whole(snapshot.encode());
                Some(TakenWrite::Snapshot { writes, change, incarnation })
            }
            (QueuedWrite::Changes, group) => {
                let (count, change) = group.take_unsaved()?;
                Some(TakenWrite::Changes { count, change, incarnation })
            }
            _ => None,
        }
    }
}

fn log_failure(slot: &GroupSlot, verb: &'static str, error: &str) -> WriteResult {
    tracing::warn!(group = slot.id, verb, error, "group log failed");
    WriteResult::Failed
}
