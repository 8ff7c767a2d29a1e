//! The leaves of the segment that is being written, kept until its proof is written.
//!
//! A leaf is computed when its frame is laid out, from bytes that are in memory. So a proof of this
//! incarnation's writes reads nothing back, and covers the accepted bytes: if a disk changes them
//! later, they differ from the proof.

use hlc::Hlc;

use super::Digest;

/// One leaf for every frame of a segment, by position.
#[derive(Debug, Default)]
pub(crate) struct FrameLeaves {
    entries: Vec<FrameLeaf>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameLeaf {
    pub(crate) position: u64,
    pub(crate) stamp: Hlc,
    pub(crate) digest: Digest,
}

impl FrameLeaves {
    /// Adds the leaf of the next frame.
    pub(crate) fn push(&mut self, leaf: FrameLeaf) {
        self.entries.push(leaf);
    }

    /// Moves the leaves of the frames that follow here.
    pub(crate) fn append(&mut self, following: &mut FrameLeaves) {
        self.entries.append(&mut following.entries);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Drops the leaves of frames at or after `end`: they were not written.
    pub(crate) fn truncate(&mut self, end: u64) {
        let count = self.entries.partition_point(|leaf| leaf.position < end);
        self.entries.truncate(count);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FrameLeaf> {
        self.entries.iter()
    }
}
