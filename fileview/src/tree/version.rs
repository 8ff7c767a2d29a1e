//! Which bytes a node shows by now.
//!
//! A moment of a partition is the same until its first records are given up, or it is compacted: what is
//! left is another file then. Who keeps bytes, as the kernel does, keeps them by node and version.

use xxhash_rust::xxh3::xxh3_64;

use super::scan::{Generation, Seen};
use super::{Node, Tree, TreeError};

impl Tree {
    /// Tells what a node shows from all that it showed before; 0 for what has no versions: it shows the
    /// same for ever, or the present.
    ///
    /// A version never comes back, so what was read between two equal ones is of that version.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn version(&self, node: &Node) -> Result<u64, TreeError> {
        let shown = match node {
            Node::Pin(_) => self.read_link(node).await?,
            Node::Partition { topic, partition, .. } if topic.at.is_some() => {
                state(&[self.seen_one(topic, *partition).await?])
            }
            Node::Key { topic, .. } if topic.at.is_some() => {
                state(&self.seen(topic, 0..u32::MAX).await?)
            }
            _ => return Ok(0),
        };
        Ok(xxh3_64(&shown).max(1))
    }
}

/// Where partitions begin by now, and how often they were compacted.
fn state(seen: &[Seen]) -> Vec<u8> {
    let numbers = seen.iter().flat_map(|seen| {
        [u64::from(seen.partition.index), seen.start.0, Generation::of(&seen.partition).number()]
    });
    numbers.flat_map(u64::to_le_bytes).collect()
}
