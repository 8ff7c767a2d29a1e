//! The file interval tree (FIG): which entry of a file's log holds each byte of the file.
//!
//! It maps ranges of bytes, not blocks: a write of any length at any place is one extent, and a write
//! of 100 bytes costs no page. Extents stand in *all* nodes of a tree that is otherwise a B-tree, and
//! one that stands higher eclipses whatever lies below: an overwrite replaces the extents that it
//! meets in one node and leaves the stale ones under it alone. Each descent carries the span that is
//! still valid, and a node is pruned to it before it is changed, so that nothing stale is ever pushed
//! up. What an overwrite leaves of the first and the last extent that it met, its *continuations*, is
//! inserted below it: the left one where the first begins before it, the right one where it ends before
//! the last does.
//!
//! What holds true of it:
//! - Nodes never change. A change makes anew the nodes on its way, so a [`Fig`] that was cloned is a
//!   version that nobody disturbs, and a change that fails leaves everything as it was.
//! - A node that was saved holds only links to nodes that were saved. So whatever changed has all its
//!   ancestors fresh, and a checkpoint, which holds every fresh node, holds every changed ancestor:
//!   there is no mark that could be forgotten.
//! - Only what changed since the last checkpoint is held here. Everything else is asked of a
//!   [`NodeSource`], when a descent comes by.
//!
//! The layout of a checkpoint is in `docs/FORMAT.md`.

mod cache;
mod checkpoint;
mod insert;
mod node;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

pub use cache::NodeCache;
pub use checkpoint::{Checkpoint, ROOT_BYTES, Root};
pub use node::{Node, NodeId};

use crate::log::Offset;
use insert::{Grown, Insertion};
use node::Link;

/// No file is longer.
pub const FILE_BYTES_MAX: u64 = 1 << 62;
/// No descent goes deeper: what seems to is damage.
const DEPTH_MAX: usize = 64;
/// How many extents a node has at most.
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
/// Each node of a cold read may lie in another checkpoint, which is a read of the disk; what makes
/// wide nodes dear is that a checkpoint writes a leaf anew for one extent in it.
pub const FANOUT: usize = 32;

/// Why a tree cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FigError {
    /// The disk failed, or gave other bytes than were written.
    #[error("read a file's index: {0}")]
    Read(#[from] io::Error),
    /// What was read is no part of an index.
    #[error("a file's index is damaged: {why}. entry={}, at={at}", .entry.0)]
    Damaged {
        /// What is wrong.
        why: &'static str,
        /// The checkpoint's offset in the file's log.
        entry: Offset,
        /// Where in its payload.
        at: u32,
    },
}

/// Gives nodes that were saved.
pub trait NodeSource {
    /// The node `id`.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    fn load(&self, id: NodeId) -> Result<Arc<Node>, FigError>;
}

/// Where bytes of a file come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From nowhere: they are zero.
    Hole,
    /// From an entry of the file's log.
    Entry {
        /// The entry.
        offset: Offset,
        /// How many bytes of its data come before.
        skip: u32,
    },
}

/// Bytes of a file that stand together, `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte.
    pub start: u64,
    /// Behind the last.
    pub end: u64,
    /// Where they come from.
    pub source: Source,
}

impl Extent {
    /// The part from `start` on.
    #[must_use]
    pub fn from(self, start: u64) -> Extent {
        let cut = start.saturating_sub(self.start);
        let source = match self.source {
            Source::Hole => Source::Hole,
            Source::Entry { offset, skip } => Source::Entry { offset, skip: skip + cut as u32 },
        };
        Extent { start: self.start + cut, end: self.end, source }
    }

    /// The part before `end`.
    #[must_use]
    pub fn until(self, end: u64) -> Extent {
        Extent { end: self.end.min(end), ..self }
    }
}

/// `[from, to)`: where extents of a node count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    from: u64,
    to: u64,
}

impl Span {
    const ALL: Span = Span { from: 0, to: u64::MAX };

    fn is_empty(self) -> bool {
        self.from >= self.to
    }
}

/// One version of a file: its length, and where its bytes are. A clone costs two words.
#[derive(Clone, Debug)]
pub struct Fig {
    root: Link,
    length: u64,
    fanout: usize,
}

impl Fig {
    /// An empty file.
    pub fn new() -> Fig {
        Fig::with_fanout(FANOUT)
    }

    /// An empty file whose nodes have at most `fanout` extents.
    ///
    /// # Panics
    /// If that is less than 2.
    pub fn with_fanout(fanout: usize) -> Fig {
        assert!(fanout >= 2, "a node that is split has a middle: {fanout}");
        Fig { root: Link::Empty, length: 0, fanout }
    }

    /// The version that a checkpoint holds.
    pub fn saved(root: &Root) -> Fig {
        let link = root.node.map_or(Link::Empty, Link::Saved);
        Fig { root: link, length: root.length, fanout: FANOUT }
    }

    /// How long the file is.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The `length` bytes from `start` on are those of the entry `offset`.
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
    ) -> Result<(), FigError> {
        let end = start + u64::from(length);
        assert!(length > 0 && end <= FILE_BYTES_MAX, "a write has a place: {start}..{end}");
        self.insert(nodes, Extent { start, end, source: Source::Entry { offset, skip: 0 } })?;
        self.length = self.length.max(end);
        Ok(())
    }

    /// The bytes of `[start, end)` that the file has are zero.
    ///
    /// # Errors
    /// A node cannot be read; nothing has changed then.
    pub fn punch(&mut self, nodes: &dyn NodeSource, start: u64, end: u64) -> Result<(), FigError> {
        let end = end.min(self.length);
        if start >= end {
            return Ok(());
        }
        self.insert(nodes, Extent { start, end, source: Source::Hole })
    }

    fn insert(&mut self, nodes: &dyn NodeSource, extent: Extent) -> Result<(), FigError> {
        let insertion = Insertion { nodes, fanout: self.fanout };
        self.root = match insertion.insert(&self.root, Span::ALL, extent, 0)? {
            Grown::One(link) => link,
            Grown::Two(left, middle, right) => Node::fresh(vec![middle], vec![left, right]),
        };
        Ok(())
    }

    /// The file is `length` bytes long. Those behind it are gone, and zero if it grows again.
    ///
    /// # Errors
    /// A node cannot be read; nothing has changed then.
    pub fn truncate(&mut self, nodes: &dyn NodeSource, length: u64) -> Result<(), FigError> {
        if length < self.length {
            let insertion = Insertion { nodes, fanout: self.fanout };
            self.root = insertion.prune(&self.root, Span { from: 0, to: length }, 0)?;
        }
        self.length = length;
        Ok(())
    }

    /// Where the bytes of `[start, end)` are, in order and without gaps, from `start` up to the end of
    /// the file at most; up to about `pieces_max` pieces, so that a file of many small ones takes no
    /// memory without bound: whoever gets less asks again from there.
    ///
    /// # Errors
    /// A node cannot be read.
    pub fn read(
        &self,
        nodes: &dyn NodeSource,
        start: u64,
        end: u64,
        pieces_max: usize,
    ) -> Result<Vec<Extent>, FigError> {
        let mut found = Found { nodes, pieces: Vec::new(), pieces_max: pieces_max.max(1) };
        let span = Span { from: start, to: end.min(self.length) };
        if !span.is_empty() {
            found.collect(&self.root, span, 0)?;
        }
        Ok(found.pieces)
    }

    /// Forgets the nodes that a checkpoint has saved; they are asked of the source from now on.
    pub fn release(&mut self) {
        if let Some(link) = self.root.released() {
            self.root = link;
        }
    }

    /// Bytes of memory that this version holds: what changed since the last checkpoint.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Fig>() + self.root.memory_bytes()
    }

    /// How many nodes lie between the root and the deepest leaf, with both.
    ///
    /// # Errors
    /// A node cannot be read.
    pub fn depth(&self, nodes: &dyn NodeSource) -> Result<usize, FigError> {
        self.root.depth(nodes, 0)
    }
}

impl Default for Fig {
    fn default() -> Fig {
        Fig::new()
    }
}

/// What a query has found.
struct Found<'a> {
    nodes: &'a dyn NodeSource,
    pieces: Vec<Extent>,
    pieces_max: usize,
}

impl Found<'_> {
    fn is_full(&self) -> bool {
        self.pieces.len() >= self.pieces_max
    }

    /// Adds the pieces of `span`, all of which counts under `link`.
    fn collect(&mut self, link: &Link, span: Span, depth: usize) -> Result<(), FigError> {
        let Some(node) = link.open(self.nodes, depth)? else {
            self.add(Extent { start: span.from, end: span.to, source: Source::Hole });
            return Ok(());
        };
        let mut at = node.extents.partition_point(|extent| extent.end <= span.from);
        let mut from = span.from;
        while from < span.to && !self.is_full() {
            let extent = node.extents.get(at);
            let to = extent.map_or(span.to, |extent| extent.start.min(span.to));
            if from < to {
                let below = node.children.get(at).unwrap_or(&Link::Empty);
                self.collect(below, Span { from, to }, depth + 1)?;
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

    /// Holes that stand together are one.
    fn add(&mut self, piece: Extent) {
        match self.pieces.last_mut() {
            Some(last) if last.source == Source::Hole && piece.source == Source::Hole => {
                last.end = piece.end;
            }
            _ => self.pieces.push(piece),
        }
    }
}
