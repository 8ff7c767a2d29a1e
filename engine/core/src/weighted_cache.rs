//! Caches with a limit in bytes.

use std::hash::Hash;

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// A cache of at most `bytes_max`, whose entries take about `entry_bytes` each. A scan over many
/// entries does not evict those that are used again. An entry that exceeds the limit is not cached.
///
/// It has one shard, because a single entry may take a large share of the bytes.
pub fn weighted_cache<Key, Value, Weight>(
    bytes_max: u64,
    entry_bytes: u64,
    weighter: Weight,
) -> Cache<Key, Value, Weight>
where
    Key: Eq + Hash,
    Value: Clone,
    Weight: Weighter<Key, Value> + Clone,
{
    let options = OptionsBuilder::new()
        .shards(1)
        .weight_capacity(bytes_max)
        .estimated_items_capacity((bytes_max / entry_bytes) as usize)
        // Keys of evicted entries; few, because they are not weighed.
        .ghost_allocation(0.05)
        .build()
        .expect("both capacities are given");
    Cache::with_options(
        options,
        weighter,
        DefaultHashBuilder::default(),
        DefaultLifecycle::default(),
    )
}
