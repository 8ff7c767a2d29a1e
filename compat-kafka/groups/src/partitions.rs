//! Partitions by the id of their topic, and tasks by the id of their subtopology.

use std::collections::{BTreeMap, BTreeSet};

use engine::TopicId;

/// Partitions by topic id.
pub type PartitionSet<K = TopicId> = BTreeMap<K, BTreeSet<u32>>;

/// Partitions by topic id, each with the member epoch at which it was assigned.
pub type AssignedPartitions<K = TopicId> = BTreeMap<K, BTreeMap<u32, i32>>;

/// About the memory of one partition in a set.
const PARTITION_BYTES: usize = 24;
/// About the memory of one topic in a set.
const TOPIC_BYTES: usize = 128;

/// The partitions, all assigned at one epoch.
pub(super) fn with_epoch(partitions: &PartitionSet, epoch: i32) -> AssignedPartitions {
    let with_epoch =
        |indexes: &BTreeSet<u32>| indexes.iter().map(|index| (*index, epoch)).collect();
    partitions.iter().map(|(topic, indexes)| (*topic, with_epoch(indexes))).collect()
}

/// Each partition of a set.
pub(super) fn each<K: Clone>(
    partitions: &AssignedPartitions<K>,
) -> impl Iterator<Item = (K, u32)> + '_ {
    partitions
        .iter()
        .flat_map(|(topic, indexes)| indexes.keys().map(|index| (topic.clone(), *index)))
}

/// True if any partition of `owned` is among `partitions`.
pub(super) fn has_any<K: Ord>(partitions: &AssignedPartitions<K>, owned: &PartitionSet<K>) -> bool {
    let has_partition =
        |topic: &K, index| partitions.get(topic).is_some_and(|indexes| indexes.contains_key(index));
    owned.iter().any(|(topic, indexes)| indexes.iter().any(|index| has_partition(topic, index)))
}

/// True if all partitions of `owned` are among `partitions`.
pub(super) fn has_all<K: Ord>(partitions: &AssignedPartitions<K>, owned: &PartitionSet<K>) -> bool {
    let has_partition =
        |topic: &K, index| partitions.get(topic).is_some_and(|indexes| indexes.contains_key(index));
    owned.iter().all(|(topic, indexes)| indexes.iter().all(|index| has_partition(topic, index)))
}

/// True if both have the same partitions, at whatever epochs.
pub(super) fn are_same(a: &AssignedPartitions, b: &AssignedPartitions) -> bool {
    let is_equal = |(topic, a): (&TopicId, &BTreeMap<u32, i32>)| {
        b.get(topic).is_some_and(|b| a.len() == b.len() && a.keys().eq(b.keys()))
    };
    a.len() == b.len() && a.iter().all(is_equal)
}

/// About the memory of a set.
pub(super) fn set_bytes<K>(partitions: &PartitionSet<K>) -> usize {
    bytes(partitions.len(), partitions.values().map(BTreeSet::len).sum())
}

/// About the memory of partitions.
pub(super) fn bytes(topics: usize, partitions: usize) -> usize {
    topics * TOPIC_BYTES + partitions * PARTITION_BYTES
}
