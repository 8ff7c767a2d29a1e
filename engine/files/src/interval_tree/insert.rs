//! Insertion: later extents eclipse earlier ones.

use super::node::{NodeDraft, NodeLink};
use super::{Extent, IntervalTreeError, NodeSource, NodeSpan};

/// The result of an insertion into a subtree.
pub(super) enum InsertResult {
    One(NodeLink),
    /// Its root was split; the extent belongs between the two halves.
    Two(NodeLink, Extent, NodeLink),
}

pub(super) struct ExtentInsertion<'a> {
    pub(super) nodes: &'a dyn NodeSource,
    pub(super) fanout: usize,
}

impl ExtentInsertion<'_> {
    /// Inserts `new` under `link`, of which only the part in `valid` counts.
    ///
    /// A continuation may lie outside of `valid`: then nothing that is left overlaps it, and it
    /// goes to the edge.
    pub(super) fn insert(
        &self,
        link: &NodeLink,
        valid: NodeSpan,
        new: Extent,
        depth: usize,
    ) -> Result<InsertResult, IntervalTreeError> {
        let Some(mut draft) = self.draft(link, valid, depth)? else {
            let leaf = NodeDraft { extents: vec![new], children: Vec::new() };
            return Ok(InsertResult::One(leaf.link()));
        };
        let first = draft.extents.partition_point(|extent| extent.end <= new.start);
        let behind = draft.extents.partition_point(|extent| extent.start < new.end);
        if first < behind {
            self.eclipse(&mut draft, first, behind, valid, new, depth)?;
        } else if draft.is_leaf() {
            draft.extents.insert(first, new);
        } else {
            let gap = draft.gap(first, valid);
            let grown = self.insert(&draft.children[first], gap, new, depth + 1)?;
            draft.put(first, grown);
        }
        let at_the_end = first + 1 >= draft.extents.len();
        Ok(draft.into_result(self.fanout, at_the_end))
    }

    /// Replaces the extents `first..behind`, which `new` overlaps, by `new`; the subtrees between
    /// them are removed with them.
    fn eclipse(
        &self,
        draft: &mut NodeDraft,
        first: usize,
        behind: usize,
        valid: NodeSpan,
        new: Extent,
        depth: usize,
    ) -> Result<(), IntervalTreeError> {
        let (leftmost, rightmost) = (draft.extents[first], draft.extents[behind - 1]);
        let left = (leftmost.start < new.start).then(|| leftmost.until(new.start));
        let right = (new.end < rightmost.end).then(|| rightmost.from(new.end));
        if draft.is_leaf() {
            draft.extents.splice(first..behind, [left, Some(new), right].into_iter().flatten());
            return Ok(());
        }
        // A continuation's subtree has what its extent had eclipsed. The gaps are those of the
        // extents that `new` overlaps, so that this is pruned on the continuations' paths.
        let (left_gap, right_gap) = (draft.gap(first, valid), draft.gap(behind, valid));
        draft.extents.splice(first..behind, [new]);
        draft.children.drain(first + 1..behind);
        // The right one first: its insertion moves nothing on the left.
        if let Some(right) = right {
            let below = &draft.children[first + 1];
            let grown = self.insert(below, right_gap, right, depth + 1)?;
            draft.put(first + 1, grown);
        }
        if let Some(left) = left {
            let grown = self.insert(&draft.children[first], left_gap, left, depth + 1)?;
            draft.put(first, grown);
        }
        Ok(())
    }

    /// The first node under `link` that has an extent in `valid`, pruned to that. Nodes with only
    /// one subtree left are skipped.
    fn draft(
        &self,
        link: &NodeLink,
        valid: NodeSpan,
        depth: usize,
    ) -> Result<Option<NodeDraft>, IntervalTreeError> {
        let (mut link, mut depth) = (link.clone(), depth);
        while !valid.is_empty() {
            let Some(node) = link.load(self.nodes, depth)? else { break };
            let mut draft = NodeDraft::pruned(&node, valid);
            if !draft.extents.is_empty() {
                return Ok(Some(draft));
            }
            link = draft.children.pop().unwrap_or(NodeLink::Empty);
            depth += 1;
        }
        Ok(None)
    }

    /// The part of `link` before the end of `valid`, without anything stale that growth could bring
    /// back: all nodes along the right edge are pruned.
    pub(super) fn prune(
        &self,
        link: &NodeLink,
        valid: NodeSpan,
        depth: usize,
    ) -> Result<NodeLink, IntervalTreeError> {
        let Some(mut draft) = self.draft(link, valid, depth)? else { return Ok(NodeLink::Empty) };
        if !draft.is_leaf() {
            let edge = draft.extents.len();
            let gap = draft.gap(edge, valid);
            draft.children[edge] = self.prune(&draft.children[edge], gap, depth + 1)?;
        }
        Ok(draft.link())
    }
}

impl NodeDraft {
    /// Puts the result of an insertion in the place of the child `at`.
    fn put(&mut self, at: usize, grown: InsertResult) {
        match grown {
            InsertResult::One(link) => self.children[at] = link,
            InsertResult::Two(left, middle, right) => {
                self.children[at] = right;
                self.children.insert(at, left);
                self.extents.insert(at, middle);
            }
        }
    }

    fn into_result(mut self, fanout: usize, at_the_end: bool) -> InsertResult {
        let count = self.extents.len();
        if count <= fanout {
            return InsertResult::One(self.link());
        }
        // A file that grows at its end never returns to the left half, so that half is left nearly
        // full.
        let spare = (count / 8).max(2).min(count - 2);
        let middle = if at_the_end { count - 1 - spare } else { count / 2 };
        let right = NodeDraft {
            extents: self.extents.split_off(middle + 1),
            children: if self.is_leaf() { Vec::new() } else { self.children.split_off(middle + 1) },
        };
        let between = self.extents.pop().expect("there is a middle");
        self.extents.shrink_to_fit();
        self.children.shrink_to_fit();
        InsertResult::Two(self.link(), between, right.link())
    }
}
