//! Open files, and those that were closed not long ago: the second-chance list. A file that is opened
//! again soon is found as it was left, and nothing is read.

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

impl State {
    fn hold(&mut self, inode: Inode) -> Option<Arc<Contents>> {
        let slot = self.slots.get_mut(&inode)?;
        if slot.holders == 0 {
            self.closed.retain(|other| *other != inode);
        }
        slot.holders += 1;
        Some(Arc::clone(&slot.contents))
    }
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

    /// The file, held until [`Opened::close`], if it is here.
    pub(crate) fn again(&self, inode: Inode) -> Option<Arc<Contents>> {
        self.state.lock().hold(inode)
    }

    /// The same of a file that was not here; of two who come with it, the first is right.
    pub(crate) fn open(&self, contents: Contents) -> Arc<Contents> {
        let inode = contents.inode;
        let mut state = self.state.lock();
        if let Some(held) = state.hold(inode) {
            return held;
        }
        let contents = Arc::new(contents);
        state.slots.insert(inode, Slot { contents: Arc::clone(&contents), holders: 1 });
        contents
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
