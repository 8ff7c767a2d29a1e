//! The version of the bytes that a node shows.
//!
//! A moment of a partition shows the same bytes until retention removes its first records or
//! compaction rewrites it. The rest is then another file. A cache of the bytes, such as the
//! kernel's, uses node and version as its key.

use xxhash_rust::xxh3::xxh3_64;

use super::scan::{LogGeneration, VisibleRange};
use super::{TreeError, ViewNode, ViewTree};

impl ViewTree {
    /// The version of what a node shows now; 0 for nodes without versions, which never change or
    /// show the present.
    ///
    /// A version never comes back. So what was read between two equal versions belongs to that
    /// version.
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

/// The current log starts of the partitions, and how often they were compacted.
fn version_bytes(ranges: &[VisibleRange]) -> Vec<u8> {
    let numbers = ranges.iter().flat_map(|range| {
        [
            u64::from(range.partition.index),
            range.start.0,
            LogGeneration::of(&range.partition).number(),
        ]
    });
    numbers.flat_map(u64::to_le_bytes).collect()
}
