//! The committed offsets of the source's groups, as they are in the target.
//!
//! They only advance: a group whose members already read from the target is further there.

use std::collections::BTreeMap;

use broker::IMPORT_GROUP_PREFIX;
use client::{Client, ClientError, GroupCommittedOffset};

use super::origin::{PartitionOrigin, PartitionOrigins};
use crate::name_patterns::NamePatterns;

/// The groups whose offsets were copied, and those that were not.
#[derive(Debug, Default)]
pub(super) struct CopiedGroups {
    pub(super) copied: usize,
    /// Groups whose offsets the server does not take, and why.
    pub(super) refused: BTreeMap<String, String>,
}

/// Copies the offsets that groups have committed in imported partitions.
pub(super) async fn copy_groups(
    source: &mut Client,
    target: &mut Client,
    groups: &NamePatterns,
    origins: &PartitionOrigins,
) -> anyhow::Result<CopiedGroups> {
    let mut result = CopiedGroups::default();
    for listing in source.groups().await? {
        let group = &listing.group;
        // The groups of another import, into the source, have no meaning here.
        if !groups.admits(group) || group.starts_with(IMPORT_GROUP_PREFIX) {
            continue;
        }
        let committed = match source.committed_offsets(group).await {
            // Groups of other kinds have no offsets that Kafka's protocol shows.
            Err(ClientError::NotFreezeframe { .. }) => continue,
            committed => committed?,
        };
        let there = target.committed_offsets(group).await?;
        let offsets = advanced_offsets(committed, &there, origins);
        if offsets.is_empty() {
            continue;
        }
        match target.commit_offsets(group, &offsets).await {
            Ok(()) => result.copied += 1,
            Err(error) if error.response_error().is_some() => {
                result.refused.insert(group.clone(), error.to_string());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(result)
}

/// The offsets of the target that are ahead of those that it has.
fn advanced_offsets(
    committed: Vec<GroupCommittedOffset>,
    there: &[GroupCommittedOffset],
    origins: &PartitionOrigins,
) -> Vec<GroupCommittedOffset> {
    let known: BTreeMap<_, _> =
        there.iter().map(|offset| ((&offset.topic, offset.partition), offset.offset)).collect();
    let translated = committed.into_iter().filter_map(|committed| {
        let key = (committed.topic.clone(), committed.partition);
        let offset = translated_offset(committed.offset, origins.get(&key)?);
        Some(GroupCommittedOffset { offset, ..committed })
    });
    let is_ahead = |offset: &GroupCommittedOffset| {
        known.get(&(&offset.topic, offset.partition)).is_none_or(|there| offset.offset > *there)
    };
    translated.filter(is_ahead).collect()
}

/// The offset in the target. What was not copied yet has none, and neither has what the source removed
/// before: the nearest one that there is stands for it.
fn translated_offset(offset: i64, origin: &PartitionOrigin) -> i64 {
    let first = if origin.delta() == 0 { 0 } else { origin.target_start };
    offset.saturating_add(origin.delta()).min(origin.target_end).max(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(partition: i32, offset: i64) -> GroupCommittedOffset {
        GroupCommittedOffset { topic: "t".to_owned(), partition, offset, metadata: "m".to_owned() }
    }

    fn origin(source_start: i64, target_start: i64, target_end: i64) -> PartitionOrigin {
        PartitionOrigin { topic_id: String::new(), source_start, target_start, target_end }
    }

    #[test]
    fn offsets_are_translated_and_stay_within_what_was_copied() {
        let kept = origin(5, 5, 100);
        assert_eq!([3, 50, 200].map(|offset| translated_offset(offset, &kept)), [3, 50, 100]);
        assert_eq!(translated_offset(i64::MAX, &origin(0, 7, 100)), 100);
        let shifted = origin(10, 1000, 1040);
        let translated = [3, 10, 30, 200].map(|offset| translated_offset(offset, &shifted));
        assert_eq!(translated, [1000, 1000, 1020, 1040]);
    }

    #[test]
    fn offsets_only_advance() {
        let origins = (0..3).map(|partition| (("t".to_owned(), partition), origin(0, 0, 100)));
        let origins: PartitionOrigins = origins.collect();
        let source = vec![committed(0, 10), committed(1, 10), committed(2, 10), committed(9, 10)];
        let there = [committed(0, 10), committed(1, 20)];
        assert_eq!(advanced_offsets(source, &there, &origins), [committed(2, 10)]);
    }
}
