//! Telling mounts what changed through others.
//!
//! Each mount has caches of its own in the kernel, and keeps them right for what comes through it. What
//! comes through another is told to it from a thread of its own: to tell it from the thread that serves
//! the change could wait for a page that only that thread can fill. So another mount sees a change
//! moments after it was answered, and the one that it came through at once.

use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use fuser::{INodeNo, Notifier};
use parking_lot::RwLock;

/// How many changes wait to be told at most.
const WAITING_MAX: usize = 1 << 16;

/// What changed.
#[derive(Clone, Debug)]
pub(super) enum Changed {
    /// What is known of a node, and what is in it.
    Node(u64),
    /// What a name in a directory means.
    Name(u64, OsString),
}

/// Names a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MountId(u64);

/// All mounts that want to be told.
#[derive(Default)]
pub(super) struct Audience {
    next: AtomicU64,
    listeners: RwLock<Vec<(MountId, SyncSender<Changed>)>>,
}

impl Audience {
    /// A mount, that is told nothing yet.
    pub(super) fn enter(&self) -> MountId {
        MountId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Tells a mount from now on.
    pub(super) fn listen(&self, mount: MountId, notifier: Notifier) -> std::io::Result<()> {
        let (sender, receiver) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("mount-tell".to_owned());
        thread.spawn(move || tell(&receiver, &notifier))?;
        self.listeners.write().push((mount, sender));
        Ok(())
    }

    /// A mount has ended.
    pub(super) fn leave(&self, mount: MountId) {
        self.listeners.write().retain(|(listener, _)| *listener != mount);
    }

    /// Tells all mounts but `by` of changes that came through `by`.
    pub(super) fn tell_others(&self, by: MountId, changes: &[Changed]) {
        for (listener, sender) in self.listeners.read().iter() {
            if *listener != by {
                changes.iter().for_each(|change| send(sender, change));
            }
        }
    }

    /// Tells `mount` of a change that did not come about as it thinks.
    pub(super) fn tell(&self, mount: MountId, change: &Changed) {
        let listeners = self.listeners.read();
        let found = listeners.iter().find(|(listener, _)| *listener == mount);
        if let Some((_, sender)) = found {
            send(sender, change);
        }
    }
}

/// A mount that does not listen any more, or does not get on with it, costs nobody else anything: what
/// it believes is forgotten by time.
fn send(sender: &SyncSender<Changed>, change: &Changed) {
    match sender.try_send(change.clone()) {
        Ok(()) | Err(TrySendError::Disconnected(_)) => {}
        Err(TrySendError::Full(_)) => tracing::warn!("a mount is told of changes too slowly"),
    }
}

fn tell(changes: &Receiver<Changed>, notifier: &Notifier) {
    for change in changes {
        let told = match &change {
            Changed::Node(node) => notifier.inval_inode(INodeNo(*node), 0, 0),
            Changed::Name(parent, name) => notifier.inval_entry(INodeNo(*parent), name),
        };
        // The kernel does not know it, or the mount is ending.
        if let Err(error) = told {
            tracing::debug!(%error, ?change, "a mount was not told of a change");
        }
    }
}
