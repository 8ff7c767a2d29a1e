//! A cache of answers to cuts.
//!
//! It has two bounded maps: from a query to the hash of its content, and from the hash to the
//! snapshot. So many moments share one snapshot if nothing happened between them, and neither map
//! takes the other's memory. Both evict on their own. A miss costs one search in each partition.
//!
//! Only closed moments are cached, so the ends in a snapshot never change. The starts of partitions
//! do: each reader of a cached snapshot calls [`CutSnapshot::with_current_starts`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hlc::Cut;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::cut_snapshot::CutSnapshot;
use crate::weighted_cache::weighted_cache;

/// The overhead of an entry: its slot, and its share of the table.
const ENTRY_BYTES: u64 = 128;
/// The share of the bytes that the map of queries gets: `KEY_SHARE` of `SHARES`.
const KEY_SHARE: u64 = 1;
const SHARES: u64 = 4;

/// A query: a moment and the topics.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CutCacheKey {
    at: Cut,
    /// Sorted and without duplicates; `None` for all topics that existed.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutCacheStats {
    /// Cuts that were answered without reading the logs.
    pub hits: u64,
    /// Cuts for which the logs were searched.
    pub misses: u64,
    /// The number of misses with the same content as another moment.
    pub shared: u64,
    /// The number of moments that are cached.
    pub moments: u64,
    /// The number of snapshots that they share.
    pub snapshots: u64,
    /// The bytes that all of it takes.
    pub bytes: u64,
}

pub(crate) struct CutCache {
    maps: Option<CutCacheMaps>,
    hits: AtomicU64,
    misses: AtomicU64,
    shared: AtomicU64,
}

impl CutCache {
    /// A cache of at most `bytes_max` bytes; 0 turns it off.
    pub(crate) fn new(bytes_max: usize) -> CutCache {
        let bytes_max = bytes_max as u64;
        let asked_bytes = bytes_max * KEY_SHARE / SHARES;
        let maps = (bytes_max > 0).then(|| CutCacheMaps {
            hashes: weighted_cache(asked_bytes, ENTRY_BYTES, CutKeyWeighter),
            snapshots: weighted_cache(bytes_max - asked_bytes, ENTRY_BYTES, SnapshotWeighter),
        });
        let (hits, misses, shared) = Default::default();
        CutCache { maps, hits, misses, shared }
    }

    /// The cached snapshot for a query.
    pub(crate) fn get(&self, key: &CutCacheKey) -> Option<Arc<CutSnapshot>> {
        let snapshot = self.maps.as_ref().and_then(|maps| {
            let hash = maps.hashes.get(key)?;
            maps.snapshots.get(&hash)
        });
        let count = if snapshot.is_some() { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
        snapshot
    }

    /// Caches the snapshot for a query. If a snapshot with the same content and the same starts is
    /// cached already, that one is kept and returned.
    pub(crate) fn insert(&self, key: CutCacheKey, snapshot: Arc<CutSnapshot>) -> Arc<CutSnapshot> {
        let Some(maps) = &self.maps else { return snapshot };
        let hash = snapshot.hash;
        let cached = maps.snapshots.get(&hash);
        self.shared.fetch_add(u64::from(cached.is_some()), Ordering::Relaxed);
        let shared = match cached {
            Some(cached) if cached.partitions == snapshot.partitions => cached,
            _ => {
                maps.snapshots.insert(hash, Arc::clone(&snapshot));
                snapshot
            }
        };
        maps.hashes.insert(key, hash);
        shared
    }

    /// Replaces a snapshot by one whose partitions have other starts.
    pub(crate) fn replace(&self, snapshot: &Arc<CutSnapshot>) {
        if let Some(maps) = &self.maps {
            maps.snapshots.insert(snapshot.hash, Arc::clone(snapshot));
        }
    }

    pub(crate) fn stats(&self) -> CutCacheStats {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (hits, misses, shared) = (now(&self.hits), now(&self.misses), now(&self.shared));
        let counts = CutCacheStats { hits, misses, shared, ..CutCacheStats::default() };
        let Some(CutCacheMaps { hashes, snapshots }) = &self.maps else { return counts };
        CutCacheStats {
            moments: hashes.len() as u64,
            snapshots: snapshots.len() as u64,
            bytes: hashes.weight() + snapshots.weight(),
            ..counts
        }
    }
}
