//! Checkpoints: the nodes that are new since the last one, as the payload of an entry.

use std::sync::Arc;

use hlc::Hlc;
use storage::Offset;

use super::node::{NodeId, NodeLink, SavedLink, TreeNode, encode};
use super::{FILE_BYTES_MAX, FileIntervalTree, IntervalTreeError};

/// The length of a checkpoint's root, after its nodes.
pub const ROOT_BYTES: usize = 56;
const VERSION: u8 = 1;

/// The root at the end of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointRoot {
    /// The tree's first node; `None` if the file has no bytes but zeros.
    pub node: Option<NodeId>,
    /// The length of the file.
    pub length: u64,
    /// The entries before this offset are in the tree. Other entries may lie between them and the
    /// checkpoint, written while it was made.
    pub covers: Offset,
    /// The stamp of the last of them that changed the file.
    pub modified: Hlc,
}

/// A checkpoint that will be appended.
#[derive(Debug)]
pub struct TreeCheckpoint {
    /// Its payload.
    pub bytes: Vec<u8>,
    nodes: Vec<(Arc<TreeNode>, u32, u32)>,
}

impl TreeCheckpoint {
    /// Records that it was appended, at `entry`. Versions that share its nodes can drop them now
    /// ([`FileIntervalTree::release_saved`]).
    pub fn mark_saved(self, entry: Offset) {
        for (node, at, length) in self.nodes {
            node.set_saved(NodeId { entry, at, length });
        }
    }

    /// The number of nodes that it holds.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Saves the unsaved nodes under `link`, children first.
    fn save(&mut self, link: &NodeLink) -> SavedLink {
        let node = match link {
            NodeLink::Empty => return SavedLink::Empty,
            NodeLink::Saved(id) => return SavedLink::EarlierCheckpoint(*id),
            NodeLink::InMemory(node) => node,
        };
        if let Some(id) = node.saved() {
            return SavedLink::EarlierCheckpoint(id);
        }
        let links: Vec<SavedLink> = node.children.iter().map(|child| self.save(child)).collect();
        let saved = encode(&mut self.bytes, &node.extents, &links);
        if let SavedLink::SameCheckpoint { at, length } = saved {
            self.nodes.push((Arc::clone(node), at, length));
        }
        saved
    }
}

impl FileIntervalTree {
    /// A checkpoint of this version: every node that no checkpoint holds yet, which is every
    /// changed node and all its ancestors, the root last.
    pub fn checkpoint(&self, covers: Offset, modified: Hlc) -> TreeCheckpoint {
        let mut checkpoint = TreeCheckpoint { bytes: Vec::new(), nodes: Vec::new() };
        let (entry, at, length) = match checkpoint.save(&self.root) {
            SavedLink::Empty => (0, 0, 0),
            SavedLink::SameCheckpoint { at, length } => (1, at, length),
            SavedLink::EarlierCheckpoint(id) => (id.entry.0 + 2, id.at, id.length),
        };
        let mut root = [0; ROOT_BYTES];
        root[..8].copy_from_slice(&covers.0.to_le_bytes());
        root[8..16].copy_from_slice(&self.length.to_le_bytes());
        root[16..24].copy_from_slice(&modified.bits().to_le_bytes());
        root[24..32].copy_from_slice(&entry.to_le_bytes());
        root[32..36].copy_from_slice(&at.to_le_bytes());
        root[36..40].copy_from_slice(&length.to_le_bytes());
        root[40..44].copy_from_slice(&(checkpoint.nodes.len() as u32).to_le_bytes());
        root[44] = VERSION;
        let crc = CheckpointRoot::crc(&root, checkpoint.bytes.len());
        root[52..].copy_from_slice(&crc.to_le_bytes());
        checkpoint.bytes.extend_from_slice(&root);
        checkpoint
    }
}

impl CheckpointRoot {
    fn crc(root: &[u8; ROOT_BYTES], before: usize) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&(before as u64).to_le_bytes()), &root[..52])
    }

    /// Decodes the last [`ROOT_BYTES`] of a checkpoint, which is the entry `entry` and has `length`
    /// bytes of payload.
    ///
    /// # Errors
    /// They are not a root.
    pub fn decode(
        bytes: &[u8],
        entry: Offset,
        length: usize,
    ) -> Result<CheckpointRoot, IntervalTreeError> {
        let before = length.saturating_sub(ROOT_BYTES);
        let damaged = |why| IntervalTreeError::Corrupt { why, entry, at: before as u32 };
        let bytes: &[u8; ROOT_BYTES] =
            bytes.try_into().map_err(|_| damaged("it is too short for a root"))?;
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|nth| bytes[at + nth]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|nth| bytes[at + nth]));
        if short(52) != CheckpointRoot::crc(bytes, before) {
            return Err(damaged("its root's checksum does not match"));
        }
        if bytes[44] != VERSION {
            return Err(damaged("this version does not know its format"));
        }
        let (at, node_length) = (short(32), short(36));
        let node = match long(24) {
            0 => None,
            1 => Some(NodeId { entry, at, length: node_length }),
            other => Some(NodeId { entry: Offset(other - 2), at, length: node_length }),
        };
        let root = CheckpointRoot {
            node,
            length: long(8),
            covers: Offset(long(0)),
            modified: Hlc::from_bits(long(16)),
        };
        let is_later = node.is_some_and(|node| node.entry > entry);
        if root.length > FILE_BYTES_MAX || root.covers > entry || is_later {
            return Err(damaged("its root cannot be"));
        }
        Ok(root)
    }
}
