//! The file interval tree (FIG): which entry of a file's log holds each byte of the file.
//!
//! It maps ranges of bytes, not blocks: a write of any length at any place is one extent, and a
//! write of 100 bytes costs no page. Extents are in *all* nodes of a tree that is otherwise a
//! B-tree, and an extent in a higher node eclipses whatever lies below it. An overwrite replaces
//! the extents that it meets in one node and leaves the stale ones under it alone. Each descent
//! carries the span that is still valid, and prunes a node to it before it changes the node, so
//! that no stale extent ever moves up. The *continuations*, the parts that an overwrite leaves of
//! the first and the last extent that it met, are inserted below it: the left one if the first
//! begins before it, the right one if the last ends after it.
//!
//! Invariants:
//! - Nodes never change. A change copies the nodes on its path, so a clone of a
//!   [`FileIntervalTree`] is an immutable version, and a change that fails leaves everything as it
//!   was.
//! - A saved node holds only links to saved nodes. So all ancestors of a changed node are
//!   fresh, and a checkpoint, which holds every fresh node, holds every changed ancestor. There is
//!   no dirty mark that could be forgotten.
//! - Only what changed since the last checkpoint is held in memory. Everything else is loaded from
//!   a [`NodeSource`], when a descent needs it.
//!
//! The layout of a checkpoint is in `docs/FORMAT.md`.

mod cache;
mod checkpoint;
mod insert;
mod node;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use cache::NodeCache;
pub use checkpoint::{CheckpointRoot, ROOT_BYTES, TreeCheckpoint};
pub use node::{NodeId, TreeNode};

use insert::{ExtentInsertion, InsertResult};
use node::NodeLink;
use storage::{Offset, StorageError};

/// No file is longer.
pub const FILE_BYTES_MAX: u64 = 1 << 62;
/// No descent goes deeper: a deeper tree is corrupt.
const DEPTH_MAX: usize = 64;
/// The most extents of a node.
///
/// Measured with 10^5 random writes of 100 bytes to 64 MiB, a checkpoint every 256, then 10^4 reads
/// of one byte with nothing cached (`fanout` in the tests prints it):
///
/// | extents | µs a write | checkpoint bytes a write | nodes a cold read | bytes of them |
/// | --- | --- | --- | --- | --- |
/// | 4 (the paper's) | 5.2 | 163 | 8.9 | 398 |
/// | 8 | 3.1 | 175 | 7.0 | 473 |
/// | 16 | 2.5 | 206 | 5.0 | 677 |
/// | 32 | 2.3 | 258 | 4.0 | 949 |
/// | 64 | 2.5 | 320 | 3.0 | 1753 |
/// | 128 | 2.9 | 465 | 3.0 | 1907 |
///
/// Each node of a cold read may lie in another checkpoint, which is a read of the disk. Wide nodes
/// are expensive because a checkpoint rewrites a whole leaf for one changed extent.
pub const FANOUT: usize = 32;

/// The reason that a tree cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum IntervalTreeError {
    /// The disk failed, or returned other bytes than were written.
    #[error("read a file's interval tree: {0}")]
    Read(#[from] StorageError),
    /// The bytes are not part of a tree.
    #[error(
        "a file's interval tree is corrupt at byte {at} of the checkpoint at offset {}: {why}",
        .entry.0
    )]
    Corrupt {
        /// The problem, in words.
        why: &'static str,
        /// The checkpoint's offset in the file's log.
        entry: Offset,
        /// The position in its payload.
        at: u32,
    },
}

/// Loads saved nodes.
pub trait NodeSource {
    /// The node `id`.
    ///
    /// # Errors
    /// It cannot be read, or is corrupt.
    fn load(&self, id: NodeId) -> Result<Arc<TreeNode>, IntervalTreeError>;
}

/// The source of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentSource {
    /// Nowhere: they are zero.
    Hole,
    /// An entry of the file's log.
    Entry {
        offset: Offset,
        /// The number of bytes of its data that precede them.
        skip: u32,
    },
}

/// A contiguous range of a file, `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte.
    pub start: u64,
    /// The end, exclusive.
    pub end: u64,
    /// The source of its bytes.
    pub source: ExtentSource,
}

impl Extent {
    /// The part from `start` on.
    #[must_use]
    pub fn from(self, start: u64) -> Extent {
        let cut = start.saturating_sub(self.start);
        let source = match self.source {
            ExtentSource::Hole => ExtentSource::Hole,
            ExtentSource::Entry { offset, skip } => {
                ExtentSource::Entry { offset, skip: skip + cut as u32 }
            }
        };
        Extent { start: self.start + cut, end: self.end, source }
    }

    /// The part before `end`.
    #[must_use]
    pub fn until(self, end: u64) -> Extent {
        Extent { end: self.end.min(end), ..self }
    }
}

/// `[from, to)`: where the extents of a node are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NodeSpan {
    from: u64,
    to: u64,
}

impl NodeSpan {
    const ALL: NodeSpan = NodeSpan { from: 0, to: u64::MAX };

    fn is_empty(self) -> bool {
        self.from >= self.to
    }
}

/// One version of a file: its length, and where its bytes are. A clone copies two words.
#[derive(Clone, Debug)]
pub struct FileIntervalTree {
    root: NodeLink,
    length: u64,
    fanout: usize,
}

impl FileIntervalTree {
    pub fn new() -> FileIntervalTree {
        FileIntervalTree::with_fanout(FANOUT)
    }

    /// An empty file whose nodes have at most `fanout` extents.
    ///
    /// # Panics
    /// If that is less than 2.
    pub fn with_fanout(fanout: usize) -> FileIntervalTree {
        assert!(fanout >= 2, "a node that is split has a middle: {fanout}");
        FileIntervalTree { root: NodeLink::Empty, length: 0, fanout }
    }

    /// The version that a checkpoint holds.
    pub fn from_checkpoint(root: &CheckpointRoot) -> FileIntervalTree {
        let link = root.node.map_or(NodeLink::Empty, NodeLink::Saved);
        FileIntervalTree { root: link, length: root.length, fanout: FANOUT }
    }

    /// The length of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Maps the `length` bytes from `start` on to the entry `offset`.
    ///
    /// # Errors
    /// A node cannot be read; nothing has changed then.
    ///
    /// # Panics
    /// If there are no bytes, or they reach beyond [`FILE_BYTES_MAX`].
    pub fn write(
        &mut self,
        nodes: &dyn NodeSource,
        start: u64,
        length: u32,
        offset: Offset,
    ) -> Result<(), IntervalTreeError> {
        let end = start + u64::from(length);
        assert!(length > 0 && end <= FILE_BYTES_MAX, "a write has a place: {start}..{end}");
        self.insert(nodes, Extent { start, end, source: ExtentSource::Entry { offset, skip: 0 } })?;
        self.length = self.length.max(end);
        Ok(())
    }

    /// Makes the existing bytes of `[start, end)` zero.
    ///
    /// # Errors
    /// A node cannot be read; nothing has changed then.
    pub fn punch_hole(
        &mut self,
        nodes: &dyn NodeSource,
        start: u64,
        end: u64,
    ) -> Result<(), IntervalTreeError> {
        let end = end.min(self.length);
        if start >= end {
            return Ok(());
        }
        self.insert(nodes, Extent { start, end, source: ExtentSource::Hole })
    }

    fn insert(&mut self, nodes: &dyn NodeSource, extent: Extent) -> Result<(), IntervalTreeError> {
        let insertion = ExtentInsertion { nodes, fanout: self.fanout };
        self.root = match insertion.insert(&self.root, NodeSpan::ALL, extent, 0)? {
            InsertResult::One(link) => link,
            InsertResult::Two(left, middle, right) => {
                TreeNode::fresh(vec![middle], vec![left, right])
            }
        };
        Ok(())
    }

    /// Sets the length to `length`. Bytes after it are gone, and are zero if the file grows again.
    ///
    /// # Errors
    /// A node cannot be read; nothing has changed then.
    pub fn truncate(
        &mut self,
        nodes: &dyn NodeSource,
        length: u64,
    ) -> Result<(), IntervalTreeError> {
        if length < self.length {
            let insertion = ExtentInsertion { nodes, fanout: self.fanout };
            self.root = insertion.prune(&self.root, NodeSpan { from: 0, to: length }, 0)?;
        }
        self.length = length;
        Ok(())
    }

    /// The places of the bytes of `[start, end)`, in order and without gaps, from `start` up to the
    /// end of the file at most. It returns up to about `pieces_max` pieces, so that a file of many
    /// small ones takes bounded memory; a caller that gets less continues from there.
    ///
    /// # Errors
    /// A node cannot be read.
    pub fn read(
        &self,
        nodes: &dyn NodeSource,
        start: u64,
        end: u64,
        pieces_max: usize,
    ) -> Result<Vec<Extent>, IntervalTreeError> {
        let mut collector =
            ExtentCollector { nodes, extents: Vec::new(), extents_max: pieces_max.max(1) };
        let span = NodeSpan { from: start, to: end.min(self.length) };
        if !span.is_empty() {
            collector.collect_span(&self.root, span, 0)?;
        }
        Ok(collector.extents)
    }

    /// Drops the nodes that a checkpoint has saved; they are loaded from the source from now on.
    pub fn release_saved(&mut self) {
        if let Some(link) = self.root.released() {
            self.root = link;
        }
    }

    /// Bytes of memory that this version holds: what changed since the last checkpoint.
    pub fn memory_bytes(&self) -> usize {
        size_of::<FileIntervalTree>() + self.root.memory_bytes()
    }

    /// The number of nodes on the path from the root to the deepest leaf, both included.
    ///
    /// # Errors
    /// A node cannot be read.
    pub fn depth(&self, nodes: &dyn NodeSource) -> Result<usize, IntervalTreeError> {
        self.root.depth(nodes, 0)
    }
}

impl Default for FileIntervalTree {
    fn default() -> FileIntervalTree {
        FileIntervalTree::new()
    }
}

/// The result of a query so far.
struct ExtentCollector<'a> {
    nodes: &'a dyn NodeSource,
    extents: Vec<Extent>,
    extents_max: usize,
}

impl ExtentCollector<'_> {
    fn is_full(&self) -> bool {
        self.extents.len() >= self.extents_max
    }

    /// Adds the pieces of `span`, all of which is valid under `link`.
    fn collect_span(
        &mut self,
        link: &NodeLink,
        span: NodeSpan,
        depth: usize,
    ) -> Result<(), IntervalTreeError> {
        let Some(node) = link.load(self.nodes, depth)? else {
            self.add(Extent { start: span.from, end: span.to, source: ExtentSource::Hole });
            return Ok(());
        };
        let mut at = node.extents.partition_point(|extent| extent.end <= span.from);
        let mut from = span.from;
        while from < span.to && !self.is_full() {
            let extent = node.extents.get(at);
            let to = extent.map_or(span.to, |extent| extent.start.min(span.to));
            if from < to {
                let below = node.children.get(at).unwrap_or(&NodeLink::Empty);
                self.collect_span(below, NodeSpan { from, to }, depth + 1)?;
            }
            let Some(extent) = extent.filter(|extent| extent.start < span.to) else { break };
            if self.is_full() {
                break;
            }
            let piece = extent.from(span.from).until(span.to);
            self.add(piece);
            from = piece.end;
            at += 1;
        }
        Ok(())
    }

    /// Adjacent holes become one.
    fn add(&mut self, piece: Extent) {
        match self.extents.last_mut() {
            Some(last)
                if last.source == ExtentSource::Hole && piece.source == ExtentSource::Hole =>
            {
                last.end = piece.end;
            }
            _ => self.extents.push(piece),
        }
    }
}
