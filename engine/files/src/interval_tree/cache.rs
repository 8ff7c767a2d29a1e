//! Nodes that were read, under one budget for all files.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use storage::LogId;

use super::node::{NodeId, TreeNode};

type NodeKey = (LogId, NodeId);

/// The memory that a node takes besides itself.
const SLOT_BYTES: usize = 2 * size_of::<NodeKey>() + size_of::<NodeSlot>() + 16;

struct NodeSlot {
    node: Arc<TreeNode>,
    bytes: usize,
    /// True if it was used since the eviction last passed it.
    used: bool,
}

#[derive(Default)]
struct NodeCacheState {
    slots: HashMap<NodeKey, NodeSlot>,
    order: VecDeque<NodeKey>,
    bytes: usize,
}

/// Nodes of saved trees, which never change. A node that is used again gets a second chance before
/// it is evicted, so a scan does not evict the upper nodes.
pub struct NodeCache {
    state: Mutex<NodeCacheState>,
    bytes_max: usize,
}

impl NodeCache {
    /// A cache of at most `bytes_max`.
    pub fn new(bytes_max: usize) -> NodeCache {
        NodeCache { state: Mutex::default(), bytes_max }
    }

    /// Node `id` of `log`.
    pub fn get(&self, log: LogId, id: NodeId) -> Option<Arc<TreeNode>> {
        let mut state = self.state.lock();
        let slot = state.slots.get_mut(&(log, id))?;
        slot.used = true;
        Some(Arc::clone(&slot.node))
    }

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

    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl std::fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
