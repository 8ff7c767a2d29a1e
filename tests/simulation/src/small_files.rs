//! Very many small files, most of which are written once and never again: each has a log of its own. What
//! was acknowledged is on stable storage; of what was not, nothing is expected.

use bytes::Bytes;
use hlc::Hlc;

/// A file that was written at least once.
#[derive(Clone, Debug, Default)]
pub(crate) struct SmallFile {
    pub(crate) inode: u64,
    /// All of it after each write, and the write's stamp.
    pub(crate) writes: Vec<(Hlc, Bytes)>,
    /// A write was sent and not answered: it may be there.
    pub(crate) is_uncertain: bool,
}

impl SmallFile {
    /// What is in it in the cut with this bound.
    pub(crate) fn bytes_at(&self, bound: Hlc) -> Bytes {
        let last = self.writes.iter().rev().find(|(stamp, _)| *stamp < bound);
        last.map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }
}
