//! Notification of mounts about changes that came through other mounts.
//!
//! Each mount has its own caches in the kernel, and keeps them correct for changes that come
//! through it. A separate thread notifies it of changes that come through other mounts. The thread
//! that serves the change cannot do that: the notification could wait for a page that only that
//! thread can fill. So another mount sees a change shortly after it was answered. The mount that it
//! came through sees it at once.

use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuser::{INodeNo, Notifier};
use parking_lot::{Condvar, Mutex, RwLock};

/// The number of changes that may wait in one queue. A mount whose kernel accepts none must not use
/// memory without bound.
const PENDING_MAX: usize = 1 << 20;

/// A node or name whose cached state in the kernel is stale.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum CacheInvalidation {
    /// The attributes of a node, and its contents.
    Inode(u64),
    /// The node that a name in a directory refers to.
    Entry(u64, OsString),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountId(u64);

#[derive(Default)]
struct PendingInvalidations {
    changes: HashSet<CacheInvalidation>,
    ended: bool,
}

/// The changes of which a mount is not notified yet. Repeated changes are merged.
#[derive(Default)]
struct InvalidationQueue {
    pending: Mutex<PendingInvalidations>,
    wakeup: Condvar,
}

impl InvalidationQueue {
    fn add(&self, change: &CacheInvalidation) {
        let mut waiting = self.pending.lock();
        if waiting.changes.len() >= PENDING_MAX {
            tracing::error!(
                "a mount does not take cache invalidations; what it shows of files may be stale"
            );
            return;
        }
        waiting.changes.insert(change.clone());
        self.wakeup.notify_one();
    }

    /// Waits for changes; `None` after the queue has ended.
    fn take(&self) -> Option<HashSet<CacheInvalidation>> {
        let mut waiting = self.pending.lock();
        while waiting.changes.is_empty() && !waiting.ended {
            self.wakeup.wait(&mut waiting);
        }
        if waiting.ended { None } else { Some(std::mem::take(&mut waiting.changes)) }
    }

    fn end(&self) {
        self.pending.lock().ended = true;
        self.wakeup.notify_one();
    }
}

/// The registration of a mount with the [`CacheInvalidator`]. Dropping it removes the mount,
/// however the mount ends.
pub(super) struct MountRegistration {
    invalidator: Arc<CacheInvalidator>,
    id: MountId,
}

impl MountRegistration {
    pub(super) fn id(&self) -> MountId {
        self.id
    }
}

impl Drop for MountRegistration {
    fn drop(&mut self) {
        self.invalidator.unregister(self.id);
    }
}

/// All mounts that receive notifications.
#[derive(Default)]
pub(super) struct CacheInvalidator {
    next: AtomicU64,
    mounts: RwLock<Vec<(MountId, Arc<InvalidationQueue>)>>,
}

impl CacheInvalidator {
    /// Registers a mount. It receives no notifications yet.
    pub(super) fn register(self: &Arc<CacheInvalidator>) -> MountRegistration {
        let id = MountId(self.next.fetch_add(1, Ordering::Relaxed));
        MountRegistration { invalidator: Arc::clone(self), id }
    }

    pub(super) fn start_notifying(
        &self,
        mount: MountId,
        notifier: Notifier,
    ) -> std::io::Result<()> {
        let queue = self.add(mount);
        let thread = std::thread::Builder::new().name("mount-notify".to_owned());
        thread.spawn(move || {
            while let Some(changes) = queue.take() {
                changes.iter().for_each(|change| notify_kernel(&notifier, change));
            }
        })?;
        Ok(())
    }

    fn add(&self, mount: MountId) -> Arc<InvalidationQueue> {
        let queue = Arc::new(InvalidationQueue::default());
        self.mounts.write().push((mount, Arc::clone(&queue)));
        queue
    }

    /// Removes a mount that has ended.
    fn unregister(&self, mount: MountId) {
        self.mounts.write().retain(|(listener, queue)| {
            let stays = *listener != mount;
            if !stays {
                queue.end();
            }
            stays
        });
    }

    /// True if there is more than one mount.
    pub(super) fn is_shared(&self) -> bool {
        self.mounts.read().len() > 1
    }

    /// Notifies all mounts but `changer` of changes that came through `changer`.
    pub(super) fn invalidate_others(&self, changer: MountId, changes: &[CacheInvalidation]) {
        for (listener, queue) in self.mounts.read().iter() {
            if *listener != changer {
                changes.iter().for_each(|change| queue.add(change));
            }
        }
    }

    /// Notifies `mount` of a change whose result differs from what its kernel assumed.
    pub(super) fn invalidate(&self, mount: MountId, change: &CacheInvalidation) {
        let listeners = self.mounts.read();
        if let Some((_, queue)) = listeners.iter().find(|(listener, _)| *listener == mount) {
            queue.add(change);
        }
    }
}

fn notify_kernel(notifier: &Notifier, change: &CacheInvalidation) {
    let result = match change {
        CacheInvalidation::Inode(node) => notifier.inval_inode(INodeNo(*node), 0, 0),
        CacheInvalidation::Entry(parent, name) => notifier.inval_entry(INodeNo(*parent), name),
    };
    // The kernel has not cached it, or the mount is ending.
    if let Err(error) = result {
        tracing::debug!(%error, ?change, "the cache of a mount was not invalidated");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mounts_but_the_changing_one_are_invalidated_once_until_they_unregister() {
        let audience = Arc::new(CacheInvalidator::default());
        let [member, leaving] = [audience.register(), audience.register()];
        let [first, second] = [member.id(), leaving.id()];
        let [of_first, of_second] = [audience.add(first), audience.add(second)];
        for _ in 0..3 {
            audience.invalidate_others(
                first,
                &[CacheInvalidation::Inode(7), CacheInvalidation::Entry(1, "a".into())],
            );
        }
        assert!(of_first.pending.lock().changes.is_empty());
        assert_eq!(of_second.take().unwrap().len(), 2);
        audience.invalidate(first, &CacheInvalidation::Inode(8));
        assert_eq!(of_first.take().unwrap(), HashSet::from([CacheInvalidation::Inode(8)]));
        drop(leaving);
        assert_eq!(of_second.take(), None);
        assert!(!audience.is_shared(), "the other is there");
    }
}
