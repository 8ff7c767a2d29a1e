//! Guards that notice changes in a subtree.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use crate::meta::ZnodeOwner;
use crate::path::{OWN, key_of};

/// Knows whether a transaction that was decided since has changed a znode of a subtree that is not
/// ephemeral.
#[derive(Clone, Debug)]
pub struct SubtreeGuard(Arc<GuardedSubtree>);

#[derive(Debug)]
struct GuardedSubtree {
    /// The key of its first znode.
    path: String,
    has_changed: AtomicBool,
}

impl GuardedSubtree {
    fn contains(&self, path: &str) -> bool {
        let is_in = |root: &str| match path.strip_prefix(root) {
            Some(rest) => rest.is_empty() || rest.starts_with('/'),
            None => false,
        };
        is_in(&self.path) && (!self.path.is_empty() || !is_in(OWN))
    }
}

impl SubtreeGuard {
    pub(crate) fn has_changed(&self) -> bool {
        self.0.has_changed.load(Ordering::Relaxed)
    }
}

/// The guards that there are, and what the transaction that is being decided has changed.
#[derive(Debug, Default)]
pub(crate) struct SubtreeGuards {
    guards: Vec<Weak<GuardedSubtree>>,
    changed: Vec<String>,
}

impl SubtreeGuards {
    /// Guards a subtree until the guard is dropped.
    pub(crate) fn add(&mut self, path: &str) -> SubtreeGuard {
        let path = key_of(path).to_owned();
        let guarded = Arc::new(GuardedSubtree { path, has_changed: AtomicBool::new(false) });
        self.guards.push(Arc::downgrade(&guarded));
        SubtreeGuard(guarded)
    }

    /// The transaction that is being decided changes a znode.
    pub(crate) fn touch(&mut self, path: &str, owner: ZnodeOwner) {
        if !self.guards.is_empty() && !matches!(owner, ZnodeOwner::Session(_)) {
            self.changed.push(key_of(path).to_owned());
        }
    }

    /// The transaction is decided.
    pub(crate) fn decided(&mut self, is_refused: bool) {
        if self.guards.is_empty() {
            return;
        }
        let changed = std::mem::take(&mut self.changed);
        self.guards.retain(|guard| {
            let Some(guard) = guard.upgrade() else { return false };
            if !is_refused && changed.iter().any(|path| guard.contains(path)) {
                guard.has_changed.store(true, Ordering::Relaxed);
            }
            true
        });
    }
}
