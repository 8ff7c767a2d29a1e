//! Nodes that were read, under one budget for all files.

use std::sync::Arc;

use engine_core::weighted_cache;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use storage::LogId;

use super::node::{NodeId, TreeNode};

type NodeKey = (LogId, NodeId);

/// The bytes of a node that is about half full.
const NODE_BYTES: u64 = 1 << 10;
/// The memory that a node takes besides itself: its slot, and its share of the table.
const SLOT_BYTES: usize = size_of::<NodeKey>() + size_of::<Arc<TreeNode>>() + 64;

#[derive(Clone)]
struct NodeWeighter;

impl Weighter<NodeKey, Arc<TreeNode>> for NodeWeighter {
    fn weight(&self, _: &NodeKey, node: &Arc<TreeNode>) -> u64 {
        (node.memory_bytes() + SLOT_BYTES) as u64
    }
}

/// Nodes of saved trees, which never change.
pub struct NodeCache(Cache<NodeKey, Arc<TreeNode>, NodeWeighter>);

impl NodeCache {
    /// A cache of at most `bytes_max`.
    pub fn new(bytes_max: usize) -> NodeCache {
        NodeCache(weighted_cache(bytes_max as u64, NODE_BYTES, NodeWeighter))
    }

    /// Node `id` of `log`.
    pub fn get(&self, log: LogId, id: NodeId) -> Option<Arc<TreeNode>> {
        self.0.get(&(log, id))
    }

    pub fn put(&self, log: LogId, id: NodeId, node: Arc<TreeNode>) {
        self.0.insert((log, id), node);
    }

    pub fn bytes(&self) -> usize {
        self.0.weight() as usize
    }
}

impl std::fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeCache").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}
