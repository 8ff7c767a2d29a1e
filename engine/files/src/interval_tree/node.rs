//! Nodes: their content, their pruning, and their encoding.

use std::sync::{Arc, OnceLock};

use storage::Offset;

use super::{
    DEPTH_MAX, Extent, ExtentSource, FILE_BYTES_MAX, IntervalTreeError, NodeSource, NodeSpan,
};

/// No node on disk has more extents, whatever [`super::FANOUT`] was when it was written.
const EXTENTS_MAX: u64 = 4096;

/// The place of a saved node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// The checkpoint's offset in the file's log.
    pub entry: Offset,
    /// The position of the node in its payload.
    pub at: u32,
    /// The length in bytes.
    pub length: u32,
}

/// A node: extents in order, and links to subtrees for what they do not cover.
#[derive(Debug)]
pub struct TreeNode {
    pub(super) extents: Vec<Extent>,
    /// Empty in a leaf; otherwise one before each extent, and one after the last.
    pub(super) children: Vec<NodeLink>,
    saved: OnceLock<NodeId>,
}

/// A link to a subtree.
#[derive(Clone, Debug)]
pub(super) enum NodeLink {
    Empty,
    /// A node that a checkpoint holds.
    Saved(NodeId),
    /// A node in memory. It may have been saved meanwhile.
    InMemory(Arc<TreeNode>),
}

impl TreeNode {
    pub(super) fn new(extents: Vec<Extent>, children: Vec<NodeLink>) -> TreeNode {
        TreeNode { extents, children, saved: OnceLock::new() }
    }

    pub(super) fn fresh(extents: Vec<Extent>, children: Vec<NodeLink>) -> NodeLink {
        NodeLink::InMemory(Arc::new(TreeNode::new(extents, children)))
    }

    /// The place where it was saved, if it was.
    pub(super) fn saved(&self) -> Option<NodeId> {
        self.saved.get().copied()
    }

    pub(super) fn set_saved(&self, id: NodeId) {
        // A node that two checkpoints hold is the same in both.
        let _ = self.saved.set(id);
    }

    pub fn memory_bytes(&self) -> usize {
        size_of::<TreeNode>()
            + self.extents.capacity() * size_of::<Extent>()
            + self.children.capacity() * size_of::<NodeLink>()
    }
}

impl NodeLink {
    pub(super) fn load(
        &self,
        nodes: &dyn NodeSource,
        depth: usize,
    ) -> Result<Option<Arc<TreeNode>>, IntervalTreeError> {
        match self {
            NodeLink::Empty => Ok(None),
            NodeLink::InMemory(node) => Ok(Some(Arc::clone(node))),
            NodeLink::Saved(id) if depth > DEPTH_MAX => Err(id.corruption_error("it is too deep")),
            NodeLink::Saved(id) => nodes.load(*id).map(Some),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, NodeLink::Empty)
    }

    /// The same with links to saved nodes in place of the nodes; `None` if that changes nothing.
    pub(super) fn released(&self) -> Option<NodeLink> {
        let NodeLink::InMemory(node) = self else { return None };
        if let Some(id) = node.saved() {
            return Some(NodeLink::Saved(id));
        }
        let below: Vec<Option<NodeLink>> = node.children.iter().map(NodeLink::released).collect();
        if below.iter().all(Option::is_none) {
            return None;
        }
        let children =
            below.into_iter().zip(&node.children).map(|(new, old)| new.unwrap_or(old.clone()));
        Some(TreeNode::fresh(node.extents.clone(), children.collect()))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let NodeLink::InMemory(node) = self else { return 0 };
        node.memory_bytes() + node.children.iter().map(NodeLink::memory_bytes).sum::<usize>()
    }

    pub(super) fn depth(
        &self,
        nodes: &dyn NodeSource,
        above: usize,
    ) -> Result<usize, IntervalTreeError> {
        let Some(node) = self.load(nodes, above)? else { return Ok(0) };
        let mut below = 0;
        for child in &node.children {
            below = below.max(child.depth(nodes, above + 1)?);
        }
        Ok(below + 1)
    }
}

/// A node under construction.
pub(super) struct NodeDraft {
    pub(super) extents: Vec<Extent>,
    pub(super) children: Vec<NodeLink>,
}

impl NodeDraft {
    /// The part of `node` that is valid in `valid`. Subtrees that reach beyond it are left as they
    /// are: the next descent prunes those.
    pub(super) fn pruned(node: &TreeNode, valid: NodeSpan) -> NodeDraft {
        let first = node.extents.partition_point(|extent| extent.end <= valid.from);
        let behind = node.extents.partition_point(|extent| extent.start < valid.to).max(first);
        let mut extents = node.extents[first..behind].to_vec();
        let mut children = node.children.get(first..=behind).unwrap_or_default().to_vec();
        if let Some(extent) = extents.first_mut().filter(|extent| extent.start <= valid.from) {
            *extent = extent.from(valid.from);
            children.first_mut().into_iter().for_each(|child| *child = NodeLink::Empty);
        }
        if let Some(extent) = extents.last_mut().filter(|extent| extent.end >= valid.to) {
            *extent = extent.until(valid.to);
            children.last_mut().into_iter().for_each(|child| *child = NodeLink::Empty);
        }
        if children.iter().all(NodeLink::is_empty) {
            children.clear();
        }
        NodeDraft { extents, children }
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    /// The gap between the extents `at - 1` and `at`.
    pub(super) fn gap(&self, at: usize, valid: NodeSpan) -> NodeSpan {
        let before = at.checked_sub(1).map(|before| self.extents[before].end);
        let to = self.extents.get(at).map_or(valid.to, |extent| extent.start);
        NodeSpan { from: before.unwrap_or(valid.from), to }
    }

    pub(super) fn link(self) -> NodeLink {
        TreeNode::fresh(self.extents, self.children)
    }
}

// ---- Bytes ----

impl NodeId {
    pub(super) fn corruption_error(&self, why: &'static str) -> IntervalTreeError {
        IntervalTreeError::Corrupt { why, entry: self.entry, at: self.at }
    }

    /// The seed of a node's checksum, from its place: a node that was copied elsewhere is not
    /// valid.
    fn seed(at: u32) -> u32 {
        crc32c::crc32c(&at.to_le_bytes())
    }
}

/// The target of a link in a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) enum SavedLink {
    /// Nowhere.
    Empty,
    /// To a node of the same checkpoint.
    SameCheckpoint { at: u32, length: u32 },
    /// To a node of an earlier one.
    EarlierCheckpoint(NodeId),
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// Appends a node to a checkpoint's payload; `links` are those of its children. Returns its place.
pub(super) fn encode(bytes: &mut Vec<u8>, extents: &[Extent], links: &[SavedLink]) -> SavedLink {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    put(bytes, (extents.len() as u64) << 1 | u64::from(!links.is_empty()));
    let (mut end, mut last) = (0, 0);
    for extent in extents {
        put(bytes, extent.start - end);
        put(bytes, extent.end - extent.start);
        match extent.source {
            ExtentSource::Hole => put(bytes, 1),
            ExtentSource::Entry { offset, skip } => {
                put(bytes, u64::from(skip) << 1);
                put(bytes, zigzag(offset.0.wrapping_sub(last) as i64));
                last = offset.0;
            }
        }
        end = extent.end;
    }
    for link in links {
        match *link {
            SavedLink::Empty => put(bytes, 0),
            SavedLink::SameCheckpoint { at, length } => {
                put(bytes, 1);
                put(bytes, at.into());
                put(bytes, length.into());
            }
            SavedLink::EarlierCheckpoint(id) => {
                put(bytes, id.entry.0 + 2);
                put(bytes, id.at.into());
                put(bytes, id.length.into());
            }
        }
    }
    let at = u32::try_from(start).expect("a payload is shorter than 4 GiB");
    let crc = crc32c::crc32c_append(NodeId::seed(at), &bytes[start + 4..]);
    bytes[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    SavedLink::SameCheckpoint { at, length: (bytes.len() - start) as u32 }
}

struct VarintReader<'a> {
    bytes: &'a [u8],
    id: NodeId,
}

impl VarintReader<'_> {
    fn next(&mut self) -> Result<u64, IntervalTreeError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self
                .bytes
                .split_first()
                .ok_or_else(|| self.id.corruption_error("it ends too early"))?;
            self.bytes = rest;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(self.id.corruption_error("a number is too large"))
    }

    fn next_u32(&mut self) -> Result<u32, IntervalTreeError> {
        self.next()?.try_into().map_err(|_| self.id.corruption_error("a number is too large"))
    }
}

impl TreeNode {
    /// Decodes the bytes of the node `id`.
    ///
    /// # Errors
    /// They are not that node.
    pub fn decode(bytes: &[u8], id: NodeId) -> Result<TreeNode, IntervalTreeError> {
        let (crc, rest) =
            bytes.split_first_chunk().ok_or_else(|| id.corruption_error("it ends too early"))?;
        if crc32c::crc32c_append(NodeId::seed(id.at), rest) != u32::from_le_bytes(*crc) {
            return Err(id.corruption_error("its checksum does not match"));
        }
        let mut numbers = VarintReader { bytes: rest, id };
        let head = numbers.next()?;
        let count = head >> 1;
        if count > EXTENTS_MAX {
            return Err(id.corruption_error("it has too many extents"));
        }
        let (mut end, mut last) = (0, 0);
        let mut extents = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let extent = decode_extent(&mut numbers, end, &mut last)?;
            end = extent.end;
            extents.push(extent);
        }
        let links = if head & 1 == 1 { count + 1 } else { 0 };
        let mut children = Vec::with_capacity(links as usize);
        for _ in 0..links {
            children.push(decode_link(&mut numbers)?);
        }
        if !numbers.bytes.is_empty() {
            return Err(id.corruption_error("it goes on behind its end"));
        }
        let node = TreeNode::new(extents, children);
        node.set_saved(id);
        Ok(node)
    }
}

fn decode_extent(
    numbers: &mut VarintReader<'_>,
    behind: u64,
    last: &mut u64,
) -> Result<Extent, IntervalTreeError> {
    let (gap, length, skip) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let start = behind.checked_add(gap).filter(|start| *start <= FILE_BYTES_MAX);
    let end =
        start.and_then(|start| start.checked_add(length)).filter(|end| *end <= FILE_BYTES_MAX);
    let (Some(start), Some(end), true) = (start, end, length > 0) else {
        return Err(numbers.id.corruption_error("an extent has no place"));
    };
    if skip & 1 == 1 {
        return Ok(Extent { start, end, source: ExtentSource::Hole });
    }
    *last = last.wrapping_add(unzigzag(numbers.next()?) as u64);
    let reach = (skip >> 1).checked_add(length).filter(|reach| *reach <= u64::from(u32::MAX));
    if reach.is_none() {
        return Err(numbers.id.corruption_error("an extent is longer than any write"));
    }
    let source = ExtentSource::Entry { offset: Offset(*last), skip: (skip >> 1) as u32 };
    Ok(Extent { start, end, source })
}

/// Decodes a link. It must lead backwards, so that links form no circle.
fn decode_link(numbers: &mut VarintReader<'_>) -> Result<NodeLink, IntervalTreeError> {
    let node = numbers.id;
    let entry = match numbers.next()? {
        0 => return Ok(NodeLink::Empty),
        1 => node.entry,
        other => Offset(other - 2),
    };
    let (at, length) = (numbers.next_u32()?, numbers.next_u32()?);
    let below = NodeId { entry, at, length };
    if (below.entry, below.at) >= (node.entry, node.at) {
        return Err(node.corruption_error("a link leads forwards"));
    }
    Ok(NodeLink::Saved(below))
}
