//! Very many small files, most of which are written only once: each has a log of its own.
//! Acknowledged files are on stable storage. Nothing is expected of the rest.

use bytes::Bytes;
use hlc::Hlc;

/// A file that was written at least once.
#[derive(Clone, Debug, Default)]
pub(crate) struct SmallFile {
    pub(crate) inode: u64,
    /// Its whole contents after each write, and the write's stamp.
    pub(crate) writes: Vec<(Hlc, Bytes)>,
    /// A write was sent and not answered: it may be there.
    pub(crate) is_uncertain: bool,
}

impl SmallFile {
    /// Its contents in the cut with this bound.
    pub(crate) fn bytes_at(&self, bound: Hlc) -> Bytes {
        let last = self.writes.iter().rev().find(|(stamp, _)| *stamp < bound);
        last.map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }
}
