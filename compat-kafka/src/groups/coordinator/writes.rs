//! What goes to the log: snapshots, and the end of a group.
//!
//! Each runs in a task of its own, so that a client which goes away takes no write with it. The
//! slot's `writing` lock is fair: writes run in the order in which they were queued.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::super::error::GroupError;
use super::super::machine::{WriteId, WriteResult};
use super::super::snapshot::GroupSnapshot;
use super::Shared;
use super::slot::{Inner, Slot};

/// A snapshot that waits for its turn, in the place of any that waited before it: the log keeps
/// only the last anyway, and a slow log cannot pile them up.
pub(super) struct QueuedPut {
    writes: Vec<WriteId>,
    snapshot: GroupSnapshot,
}

impl Shared {
    pub(super) fn queue(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        inner: &mut Inner,
        write: WriteId,
        snapshot: GroupSnapshot,
    ) {
        match &mut inner.queued {
            Some(queued) => {
                queued.writes.push(write);
                queued.snapshot = snapshot;
            }
            None => {
                inner.queued = Some(QueuedPut { writes: vec![write], snapshot });
                tokio::spawn(self.clone().put(slot.clone()));
            }
        }
    }

    async fn put(self: Arc<Self>, slot: Arc<Slot>) {
        let _turn = slot.writing.lock().await;
        let Some(QueuedPut { writes, snapshot }) = slot.take_queued() else { return };
        let put = self.log.put(&slot.id, snapshot.encode());
        let result = match timeout(self.options.write_timeout, put).await {
            Ok(Ok(())) => WriteResult::Stored,
            Ok(Err(error)) => failed(&slot, "put", &error),
            Err(_) => failed(&slot, "put", "timeout"),
        };
        let mut inner = slot.inner.lock();
        for write in writes {
            let now = self.now();
            let effects = inner.group.persisted(now, write, result);
            self.settle(&slot, &mut inner, now, effects);
        }
    }

    /// Forgets a group that has been idle, unless there are offsets, or anyone has acted on it since
    /// (then `idle_until` has moved): that may have been a commit.
    pub(super) async fn retire(self: Arc<Self>, slot: Arc<Slot>, idle_until: Option<Duration>) {
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
        slot: &Arc<Slot>,
        inner: &mut Inner,
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
        slot: Arc<Slot>,
        done: oneshot::Sender<Result<(), GroupError>>,
    ) {
        let _turn = slot.writing.lock().await;
        let is_stored = slot.inner.lock().is_stored || self.log.has_offsets(&slot.id).await;
        let deleted = !is_stored || self.delete_stored(&slot).await == WriteResult::Stored;
        let result = if deleted {
            self.bury(&slot);
            Ok(())
        } else {
            self.revive(&slot);
            Err(GroupError::CoordinatorNotAvailable)
        };
        let _ = done.send(result);
    }

    async fn delete_stored(&self, slot: &Slot) -> WriteResult {
        match timeout(self.options.write_timeout, self.log.delete(&slot.id)).await {
            Ok(Ok(())) => WriteResult::Stored,
            Ok(Err(error)) => failed(slot, "delete", &error),
            Err(_) => failed(slot, "delete", "timeout"),
        }
    }

    fn bury(&self, slot: &Arc<Slot>) {
        let mut groups = self.groups.lock();
        let mut inner = slot.inner.lock();
        inner.group.close();
        self.count(slot, &mut inner);
        self.alarms.disarm(&mut inner);
        if groups.by_id.get(&slot.id).is_some_and(|there| Arc::ptr_eq(there, slot)) {
            groups.by_id.remove(&slot.id);
        }
    }

    fn revive(self: &Arc<Self>, slot: &Arc<Slot>) {
        let mut inner = slot.inner.lock();
        inner.is_being_deleted = false;
        self.settle(slot, &mut inner, self.now(), Vec::new());
    }
}

impl Inner {
    /// A snapshot that has not been written must not be, once the group is to be forgotten. Nobody
    /// waits for it, as the group has no members.
    fn drop_queued(&mut self, now: Duration) {
        for write in self.queued.take().into_iter().flat_map(|queued| queued.writes) {
            let effects = self.group.persisted(now, write, WriteResult::Failed);
            assert!(effects.is_empty(), "nobody waits in an empty group");
        }
    }
}

impl Slot {
    fn take_queued(&self) -> Option<QueuedPut> {
        let mut inner = self.inner.lock();
        inner.is_stored |= inner.queued.is_some();
        inner.queued.take()
    }
}

fn failed(slot: &Slot, verb: &'static str, error: &str) -> WriteResult {
    tracing::warn!(group = slot.id, verb, error, "group log failed");
    WriteResult::Failed
}
