//! Which bytes a node shows by now.
//!
//! A moment of a partition is the same until its first records are given up, or it is compacted: what is
//! left is another file then. Who keeps bytes, as the kernel does, keeps them by node and version.

use xxhash_rust::xxh3::xxh3_64;

use super::scan::{LogGeneration, VisibleRange};
use super::{TreeError, ViewNode, ViewTree};

impl ViewTree {
    /// Tells what a node shows from all that it showed before; 0 for what has no versions: it shows the
    /// same for ever, or the present.
    ///
    /// A version never comes back, so what was read between two equal ones is of that version.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn version(&self, node: &ViewNode) -> Result<u64, TreeError> {
        let shown = match node {
            ViewNode::Pin(_) => self.read_link(node).await?,
            ViewNode::Partition { topic, partition, .. } if topic.at.is_some() => {
                version_bytes(&[self.visible_range(topic, *partition).await?])
            }
            ViewNode::Key { topic, .. } if topic.at.is_some() => {
                version_bytes(&self.visible_ranges(topic, 0..u32::MAX).await?)
            }
            _ => return Ok(0),
        };
        Ok(xxh3_64(&shown).max(1))
    }
}

/// Where partitions begin by now, and how often they were compacted.
fn version_bytes(seen: &[VisibleRange]) -> Vec<u8> {
    let numbers = seen.iter().flat_map(|seen| {
        [u64::from(seen.partition.index), seen.start.0, LogGeneration::of(&seen.partition).number()]
    });
    numbers.flat_map(u64::to_le_bytes).collect()
}
