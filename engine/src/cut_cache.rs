//! Answers to cuts, kept for those who ask again.
//!
//! Two bounded caches: from what was asked to the hash of its content, and from the hash to the
//! snapshot. So many moments share one snapshot, as long as nothing happened between them, and neither
//! cache holds the other's memory. Both forget on their own; a miss costs one search in each partition.
//!
//! Only moments that are closed are kept, so the ends in a snapshot never change. Where partitions
//! begin does: whoever takes a snapshot from here asks it [`CutSnapshot::with_current_starts`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hlc::Cut;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::cut::CutSnapshot;

/// What an entry costs besides what it holds: its slot, and its share of the table.
const ENTRY_BYTES: u64 = 128;
/// Of the bytes, so many parts of this whole go to what was asked.
const KEY_SHARE: u64 = 1;
const SHARES: u64 = 4;

/// A moment and the topics whose cut was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CutCacheKey {
    at: Cut,
    /// Sorted, each once; `None` for all that there were.
    pub(crate) topics: Option<Box<[Box<str>]>>,
}

impl CutCacheKey {
    pub(crate) fn new(at: Cut, topics: Option<&[String]>) -> CutCacheKey {
        let topics = topics.map(|names| {
            let mut names: Vec<Box<str>> = names.iter().map(|name| name.as_str().into()).collect();
            names.sort_unstable();
            names.dedup();
            names.into()
        });
        CutCacheKey { at, topics }
    }

    fn bytes(&self) -> u64 {
        let names = self.topics.iter().flatten();
        names.map(|name| (size_of::<Box<str>>() + name.len()) as u64).sum()
    }
}

#[derive(Clone)]
struct CutKeyWeighter;

impl Weighter<CutCacheKey, u128> for CutKeyWeighter {
    fn weight(&self, asked: &CutCacheKey, _hash: &u128) -> u64 {
        ENTRY_BYTES + asked.bytes()
    }
}

#[derive(Clone)]
struct SnapshotWeighter;

impl Weighter<u128, Arc<CutSnapshot>> for SnapshotWeighter {
    fn weight(&self, _hash: &u128, snapshot: &Arc<CutSnapshot>) -> u64 {
        ENTRY_BYTES + snapshot.bytes()
    }
}

struct CutCacheMaps {
    hashes: Cache<CutCacheKey, u128, CutKeyWeighter>,
    snapshots: Cache<u128, Arc<CutSnapshot>, SnapshotWeighter>,
}

/// How the answers to cuts that are kept have served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutCacheStats {
    /// Cuts that were answered without a look at the logs.
    pub hits: u64,
    /// Cuts for which the logs were searched.
    pub misses: u64,
    /// Of those, how many turned out to hold what another moment holds.
    pub shared: u64,
    /// How many moments are remembered.
    pub moments: u64,
    /// How many snapshots they share.
    pub snapshots: u64,
    /// What all of it weighs.
    pub bytes: u64,
}

pub(crate) struct CutCache {
    maps: Option<CutCacheMaps>,
    hits: AtomicU64,
    misses: AtomicU64,
    shared: AtomicU64,
}

impl CutCache {
    /// Keeps at most so many bytes; nothing at all for 0.
    pub(crate) fn new(bytes_max: usize) -> CutCache {
        let bytes_max = bytes_max as u64;
        let asked_bytes = bytes_max * KEY_SHARE / SHARES;
        let kept = (bytes_max > 0).then(|| CutCacheMaps {
            hashes: cache(asked_bytes, CutKeyWeighter),
            snapshots: cache(bytes_max - asked_bytes, SnapshotWeighter),
        });
        let (hits, misses, shared) = Default::default();
        CutCache { maps: kept, hits, misses, shared }
    }

    /// The snapshot that was given for this.
    pub(crate) fn get(&self, asked: &CutCacheKey) -> Option<Arc<CutSnapshot>> {
        let found = self.maps.as_ref().and_then(|kept| {
            let hash = kept.hashes.get(asked)?;
            kept.snapshots.get(&hash)
        });
        let count = if found.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps the snapshot for what was asked. If there is one already that holds the same and begins
    /// at the same offsets, that is kept, and returned.
    pub(crate) fn insert(
        &self,
        asked: CutCacheKey,
        snapshot: Arc<CutSnapshot>,
    ) -> Arc<CutSnapshot> {
        let Some(kept) = &self.maps else { return snapshot };
        let hash = snapshot.hash;
        let known = kept.snapshots.get(&hash);
        self.shared.fetch_add(u64::from(known.is_some()), Ordering::Relaxed);
        let shared = match known {
            Some(known) if known.partitions == snapshot.partitions => known,
            _ => {
                kept.snapshots.insert(hash, Arc::clone(&snapshot));
                snapshot
            }
        };
        kept.hashes.insert(asked, hash);
        shared
    }

    /// Puts a snapshot whose partitions begin elsewhere now in the place of the old.
    pub(crate) fn replace(&self, snapshot: &Arc<CutSnapshot>) {
        if let Some(kept) = &self.maps {
            kept.snapshots.insert(snapshot.hash, Arc::clone(snapshot));
        }
    }

    pub(crate) fn stats(&self) -> CutCacheStats {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (hits, misses, shared) = (now(&self.hits), now(&self.misses), now(&self.shared));
        let counts = CutCacheStats { hits, misses, shared, ..CutCacheStats::default() };
        let Some(CutCacheMaps { hashes: asked, snapshots }) = &self.maps else { return counts };
        CutCacheStats {
            moments: asked.len() as u64,
            snapshots: snapshots.len() as u64,
            bytes: asked.weight() + snapshots.weight(),
            ..counts
        }
    }
}

/// One shard: a snapshot of many partitions takes a good part of all the room.
fn cache<Key, Value, Weight>(bytes: u64, weighter: Weight) -> Cache<Key, Value, Weight>
where
    Key: Eq + std::hash::Hash,
    Value: Clone,
    Weight: Weighter<Key, Value> + Clone,
{
    let options = OptionsBuilder::new()
        .shards(1)
        .weight_capacity(bytes)
        .estimated_items_capacity((bytes / ENTRY_BYTES) as usize)
        // Keys of what was forgotten; few, for they are not weighed.
        .ghost_allocation(0.05)
        .build()
        .expect("both capacities are given");
    let hash_builder = DefaultHashBuilder::default();
    Cache::with_options(options, weighter, hash_builder, DefaultLifecycle::default())
}
