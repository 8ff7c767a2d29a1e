//! An LRU cache with a limit in bytes, for values that grow while they are used, or of which the
//! newest has to stay however large it is. Others belong in a [`weighted_cache`](crate::weighted_cache).

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// A value that reports its current memory use.
pub trait CacheWeight {
    /// The bytes that it takes now.
    fn bytes(&self) -> usize;
}

struct LruEntry<V> {
    value: Arc<V>,
    /// The size that the cache counts for it.
    bytes: usize,
    used: u64,
}

struct LruState<K, V> {
    entries: HashMap<K, LruEntry<V>>,
    by_use: BTreeMap<u64, K>,
    bytes: usize,
    uses: u64,
}

/// Values by key. The least recently used one is evicted first. A caller that still holds an
/// evicted value can go on using it.
pub struct LruCache<K, V> {
    state: Mutex<LruState<K, V>>,
    bytes_max: usize,
}

impl<K: Clone + Eq + Hash, V: CacheWeight> LruCache<K, V> {
    /// An empty cache of at most `bytes_max`, unless a single value takes more.
    pub fn new(bytes_max: usize) -> LruCache<K, V> {
        let (entries, by_use) = (HashMap::new(), BTreeMap::new());
        LruCache { state: Mutex::new(LruState { entries, by_use, bytes: 0, uses: 0 }), bytes_max }
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.state.lock().get(key)
    }

    /// The value of a key, created by `make` if it is missing. It is counted, but nothing is evicted
    /// until [`LruCache::update_weight`].
    pub fn get_or_insert_with(&self, key: &K, make: impl FnOnce() -> V) -> Arc<V> {
        let mut state = self.state.lock();
        if let Some(value) = state.get(key) {
            return value;
        }
        let value = Arc::new(make());
        let bytes = value.bytes();
        state.uses += 1;
        let used = state.uses;
        state.entries.insert(key.clone(), LruEntry { value: Arc::clone(&value), bytes, used });
        state.by_use.insert(used, key.clone());
        state.bytes += bytes;
        value
    }

    /// Updates the counted size of a value that is new or has grown, and evicts others if the limit
    /// is exceeded.
    pub fn update_weight(&self, key: &K) {
        let mut state = self.state.lock();
        let LruState { entries, by_use, bytes, .. } = &mut *state;
        if let Some(entry) = entries.get_mut(key) {
            let now = entry.value.bytes();
            *bytes = *bytes - entry.bytes + now;
            entry.bytes = now;
        }
        while *bytes > self.bytes_max
            && by_use.len() > 1
            && let Some((_, oldest)) = by_use.pop_first()
            && let Some(evicted) = entries.remove(&oldest)
        {
            *bytes -= evicted.bytes;
        }
    }

    /// Removes a value, unless the key has another one by now.
    pub fn remove(&self, key: &K, value: &Arc<V>) {
        let mut state = self.state.lock();
        if state.entries.get(key).is_some_and(|entry| Arc::ptr_eq(&entry.value, value))
            && let Some(removed) = state.entries.remove(key)
        {
            state.by_use.remove(&removed.used);
            state.bytes -= removed.bytes;
        }
    }

    /// The counted size of all values.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }
}

impl<K: Clone + Eq + Hash, V> LruState<K, V> {
    fn get(&mut self, key: &K) -> Option<Arc<V>> {
        let entry = self.entries.get_mut(key)?;
        self.by_use.remove(&entry.used);
        self.uses += 1;
        entry.used = self.uses;
        self.by_use.insert(self.uses, key.clone());
        Some(Arc::clone(&entry.value))
    }
}

impl<K, V> std::fmt::Debug for LruCache<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("LruCache")
            .field("values", &state.entries.len())
            .field("bytes", &state.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct TestWeight(AtomicUsize);

    impl CacheWeight for TestWeight {
        fn bytes(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let recent = LruCache::new(100);
        let make = || TestWeight(AtomicUsize::new(40));
        for key in [1, 2, 1] {
            recent.get_or_insert_with(&key, make);
        }
        recent.get_or_insert_with(&3, make);
        recent.update_weight(&3);
        assert_eq!(recent.bytes(), 80);
        assert!(recent.get(&1).is_some(), "it was used after the other");
        let second = recent.get_or_insert_with(&2, make);
        second.0.store(60, Ordering::Relaxed);
        recent.update_weight(&2);
        assert_eq!(recent.bytes(), 100);
        second.0.store(500, Ordering::Relaxed);
        recent.update_weight(&2);
        assert_eq!(recent.bytes(), 500, "what is in use is counted, whatever it takes");
        recent.remove(&2, &second);
        assert_eq!(recent.bytes(), 0);
    }
}
