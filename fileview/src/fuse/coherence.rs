//! Telling mounts what changed through others.
//!
//! Each mount has caches of its own in the kernel, and keeps them right for what comes through it. What
//! comes through another is told to it from a thread of its own: to tell it from the thread that serves
//! the change could wait for a page that only that thread can fill. So another mount sees a change
//! moments after it was answered, and the one that it came through at once.

use std::collections::HashSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fuser::{INodeNo, Notifier};
use parking_lot::{Condvar, Mutex, RwLock};

/// How many changes wait to be told at most: a mount whose kernel takes none must not cost memory
/// without bound.
const WAITING_MAX: usize = 1 << 20;

/// What changed.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Changed {
    /// What is known of a node, and what is in it.
    Node(u64),
    /// What a name in a directory means.
    Name(u64, OsString),
}

/// Names a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountId(u64);

#[derive(Default)]
struct Waiting {
    changes: HashSet<Changed>,
    ended: bool,
}

/// What a mount has not been told yet. What changes often meanwhile is told once.
#[derive(Default)]
struct Untold {
    waiting: Mutex<Waiting>,
    more: Condvar,
}

impl Untold {
    fn add(&self, change: &Changed) {
        let mut waiting = self.waiting.lock();
        if waiting.changes.len() >= WAITING_MAX {
            tracing::error!("a mount takes no news; what it shows of files may be old");
            return;
        }
        waiting.changes.insert(change.clone());
        self.more.notify_one();
    }

    /// Waits for changes; `None` once nobody will be told of any.
    fn take(&self) -> Option<HashSet<Changed>> {
        let mut waiting = self.waiting.lock();
        while waiting.changes.is_empty() && !waiting.ended {
            self.more.wait(&mut waiting);
        }
        if waiting.ended { None } else { Some(std::mem::take(&mut waiting.changes)) }
    }

    fn end(&self) {
        self.waiting.lock().ended = true;
        self.more.notify_one();
    }
}

/// A mount among the [`Audience`]; it leaves when this is dropped, however it ends.
pub(super) struct Membership {
    audience: Arc<Audience>,
    id: MountId,
}

impl Membership {
    pub(super) fn id(&self) -> MountId {
        self.id
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.audience.leave(self.id);
    }
}

/// All mounts that want to be told.
#[derive(Default)]
pub(super) struct Audience {
    next: AtomicU64,
    listeners: RwLock<Vec<(MountId, Arc<Untold>)>>,
}

impl Audience {
    /// A mount, that is told nothing yet.
    pub(super) fn enter(self: &Arc<Audience>) -> Membership {
        let id = MountId(self.next.fetch_add(1, Ordering::Relaxed));
        Membership { audience: Arc::clone(self), id }
    }

    /// Tells a mount from now on.
    pub(super) fn listen(&self, mount: MountId, notifier: Notifier) -> std::io::Result<()> {
        let untold = self.add(mount);
        let thread = std::thread::Builder::new().name("mount-tell".to_owned());
        thread.spawn(move || {
            while let Some(changes) = untold.take() {
                changes.iter().for_each(|change| tell(&notifier, change));
            }
        })?;
        Ok(())
    }

    fn add(&self, mount: MountId) -> Arc<Untold> {
        let untold = Arc::new(Untold::default());
        self.listeners.write().push((mount, Arc::clone(&untold)));
        untold
    }

    /// A mount has ended.
    fn leave(&self, mount: MountId) {
        self.listeners.write().retain(|(listener, untold)| {
            let stays = *listener != mount;
            if !stays {
                untold.end();
            }
            stays
        });
    }

    /// Whether there is more than one mount.
    pub(super) fn is_shared(&self) -> bool {
        self.listeners.read().len() > 1
    }

    /// Tells all mounts but `by` of changes that came through `by`.
    pub(super) fn tell_others(&self, by: MountId, changes: &[Changed]) {
        for (listener, untold) in self.listeners.read().iter() {
            if *listener != by {
                changes.iter().for_each(|change| untold.add(change));
            }
        }
    }

    /// Tells `mount` of a change that did not come about as it thinks.
    pub(super) fn tell(&self, mount: MountId, change: &Changed) {
        let listeners = self.listeners.read();
        if let Some((_, untold)) = listeners.iter().find(|(listener, _)| *listener == mount) {
            untold.add(change);
        }
    }
}

fn tell(notifier: &Notifier, change: &Changed) {
    let told = match change {
        Changed::Node(node) => notifier.inval_inode(INodeNo(*node), 0, 0),
        Changed::Name(parent, name) => notifier.inval_entry(INodeNo(*parent), name),
    };
    // The kernel does not know it, or the mount is ending.
    if let Err(error) = told {
        tracing::debug!(%error, ?change, "a mount was not told of a change");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_one_it_came_through_are_told_once_until_they_leave() {
        let audience = Arc::new(Audience::default());
        let [member, leaving] = [audience.enter(), audience.enter()];
        let [first, second] = [member.id(), leaving.id()];
        let [of_first, of_second] = [audience.add(first), audience.add(second)];
        for _ in 0..3 {
            audience.tell_others(first, &[Changed::Node(7), Changed::Name(1, "a".into())]);
        }
        assert!(of_first.waiting.lock().changes.is_empty());
        assert_eq!(of_second.take().unwrap().len(), 2);
        audience.tell(first, &Changed::Node(8));
        assert_eq!(of_first.take().unwrap(), HashSet::from([Changed::Node(8)]));
        drop(leaving);
        assert_eq!(of_second.take(), None);
        assert!(!audience.is_shared(), "the other is there");
    }
}
