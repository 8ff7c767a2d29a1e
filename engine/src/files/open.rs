//! Open files, and those that were closed not long ago: the second-chance list. A file that is opened
//! again soon is found as it was left, and nothing is read.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::contents::Contents;
use super::event::Inode;

struct Slot {
    contents: Arc<Contents>,
    holders: usize,
}

#[derive(Default)]
struct State {
    slots: HashMap<Inode, Slot>,
    /// Those without holders, longest closed first.
    closed: VecDeque<Inode>,
}

/// The files whose index is in memory.
pub(crate) struct Opened {
    state: Mutex<State>,
    closed_max: usize,
}

impl Opened {
    pub(crate) fn new(closed_max: usize) -> Opened {
        Opened { state: Mutex::default(), closed_max }
    }

    /// The file, held until [`Opened::close`]; made by `make` if it is not here.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn open<E>(
        &self,
        inode: Inode,
        make: impl FnOnce() -> Result<Arc<Contents>, E>,
    ) -> Result<Arc<Contents>, E> {
        let mut state = self.state.lock();
        let State { slots, closed } = &mut *state;
        let slot = match slots.entry(inode) {
            Entry::Occupied(slot) => slot.into_mut(),
            Entry::Vacant(slot) => slot.insert(Slot { contents: make()?, holders: 0 }),
        };
        if slot.holders == 0 {
            closed.retain(|other| *other != inode);
        }
        slot.holders += 1;
        Ok(Arc::clone(&slot.contents))
    }

    /// A file that is held, held once more.
    pub(crate) fn again(&self, inode: Inode) -> Arc<Contents> {
        let mut state = self.state.lock();
        let slot = state.slots.get_mut(&inode).expect("what is held has a slot");
        slot.holders += 1;
        Arc::clone(&slot.contents)
    }

    /// Lets go of a file. Returns those that leave memory now: they want a checkpoint first.
    pub(crate) fn close(&self, inode: Inode) -> Vec<Arc<Contents>> {
        let mut state = self.state.lock();
        let slot = state.slots.get_mut(&inode).expect("what is held has a slot");
        slot.holders -= 1;
        if slot.holders == 0 {
            state.closed.push_back(inode);
        }
        let mut leaving = Vec::new();
        while state.closed.len() > self.closed_max {
            let oldest = state.closed.pop_front();
            leaving.extend(oldest.and_then(|oldest| state.slots.remove(&oldest)));
        }
        leaving.into_iter().map(|slot| slot.contents).collect()
    }

    /// All that are here.
    pub(crate) fn all(&self) -> Vec<Arc<Contents>> {
        self.state.lock().slots.values().map(|slot| Arc::clone(&slot.contents)).collect()
    }
}
