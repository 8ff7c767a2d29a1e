//! The origin of a partition's records, as the target remembers it.
//!
//! It is a committed offset of the import's own group: the offset up to which the partition is known to
//! have the source's records, and in its metadata where they began on both sides. The offset may be
//! older than the partition: what was appended last has the source's mark.

use std::collections::BTreeMap;

use broker::IMPORT_GROUP_PREFIX;
use client::{Client, ClientError, GroupCommittedOffset};

/// The origin of a partition's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartitionOrigin {
    /// The id of the topic at the source, or a nil id.
    pub(super) topic_id: String,
    /// The first offset at the source.
    pub(super) source_start: i64,
    /// The offset that it got in the target.
    pub(super) target_start: i64,
    /// The partition is known to have the source's records up to here.
    pub(super) target_end: i64,
}

impl PartitionOrigin {
    /// The offset of a record in the target, minus that at the source.
    pub(super) fn delta(&self) -> i64 {
        self.target_start - self.source_start
    }

    fn metadata(&self) -> String {
        format!("from={} at={} topic={}", self.source_start, self.target_start, self.topic_id)
    }

    fn parse(committed: &GroupCommittedOffset) -> Option<PartitionOrigin> {
        let mut fields = committed.metadata.split(' ').map(|field| field.split_once('='));
        let mut field = |name: &str| Some(fields.next()??).filter(|(key, _)| *key == name);
        let source_start = field("from")?.1.parse().ok()?;
        let target_start = field("at")?.1.parse().ok()?;
        let topic_id = field("topic")?.1.to_owned();
        Some(PartitionOrigin { topic_id, source_start, target_start, target_end: committed.offset })
    }
}

/// The origins of all partitions that were imported from a source.
pub(super) type PartitionOrigins = BTreeMap<(String, i32), PartitionOrigin>;

/// The group of an import from a cluster.
pub(super) fn import_group(cluster: &str) -> String {
    format!("{IMPORT_GROUP_PREFIX}{cluster}")
}

pub(super) async fn read_origins(
    target: &mut Client,
    group: &str,
) -> Result<PartitionOrigins, ClientError> {
    let committed = target.committed_offsets(group).await?;
    let origin = |committed: GroupCommittedOffset| {
        let origin = PartitionOrigin::parse(&committed)?;
        Some(((committed.topic, committed.partition), origin))
    };
    Ok(committed.into_iter().filter_map(origin).collect())
}

pub(super) async fn write_origins(
    target: &mut Client,
    group: &str,
    origins: &PartitionOrigins,
) -> Result<(), ClientError> {
    if origins.is_empty() {
        return Ok(());
    }
    let offset =
        |((topic, partition), origin): (&(String, i32), &PartitionOrigin)| GroupCommittedOffset {
            topic: topic.clone(),
            partition: *partition,
            offset: origin.target_end,
            metadata: origin.metadata(),
        };
    let offsets: Vec<_> = origins.iter().map(offset).collect();
    target.commit_offsets(group, &offsets).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_read_as_it_was_written() {
        let origin = PartitionOrigin {
            topic_id: "00000000-0000-0000-0000-00000000000a".to_owned(),
            source_start: 500,
            target_start: 7,
            target_end: 100,
        };
        let committed = |metadata: &str| GroupCommittedOffset {
            topic: "t".to_owned(),
            partition: 0,
            offset: 100,
            metadata: metadata.to_owned(),
        };
        assert_eq!(PartitionOrigin::parse(&committed(&origin.metadata())), Some(origin.clone()));
        assert_eq!(origin.delta(), -493);
        for metadata in ["", "from=1", "from=x at=1 topic=a", "at=1 from=1 topic=a"] {
            assert_eq!(PartitionOrigin::parse(&committed(metadata)), None);
        }
    }
}
