//! Nodes that were read, under one budget for all files.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use super::node::{NodeId, TreeNode};
use crate::log::LogId;

type NodeKey = (LogId, NodeId);

/// What a node takes besides itself.
const SLOT_BYTES: usize = 2 * size_of::<NodeKey>() + size_of::<NodeSlot>() + 16;

struct NodeSlot {
    node: Arc<TreeNode>,
    bytes: usize,
    /// Whether it was asked for since it was last passed over.
    used: bool,
}

#[derive(Default)]
struct NodeCacheState {
    slots: HashMap<NodeKey, NodeSlot>,
    order: VecDeque<NodeKey>,
    bytes: usize,
}

/// Nodes of saved trees, which never change. One that is asked for again gets a second chance before
/// it leaves: a scan does not drive out the upper nodes.
pub struct NodeCache {
    state: Mutex<NodeCacheState>,
    bytes_max: usize,
}

impl NodeCache {
    /// A cache of that many bytes.
    pub fn new(bytes_max: usize) -> NodeCache {
        NodeCache { state: Mutex::default(), bytes_max }
    }

    /// A node of that log.
    pub fn get(&self, log: LogId, id: NodeId) -> Option<Arc<TreeNode>> {
        let mut state = self.state.lock();
        let slot = state.slots.get_mut(&(log, id))?;
        slot.used = true;
        Some(Arc::clone(&slot.node))
    }

    /// Keeps a node for a while.
    pub fn put(&self, log: LogId, id: NodeId, node: Arc<TreeNode>) {
        let bytes = node.memory_bytes() + SLOT_BYTES;
        let mut state = self.state.lock();
        if state.slots.insert((log, id), NodeSlot { node, bytes, used: false }).is_some() {
            return;
        }
        state.order.push_back((log, id));
        state.bytes += bytes;
        while state.bytes > self.bytes_max {
            let Some(key) = state.order.pop_front() else { break };
            let slot = state.slots.get_mut(&key).expect("what is in order has a slot");
            if std::mem::take(&mut slot.used) {
                state.order.push_back(key);
            } else {
                state.bytes -= state.slots.remove(&key).map_or(0, |slot| slot.bytes);
            }
        }
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl std::fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
