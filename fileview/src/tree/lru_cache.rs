//! An LRU cache with a limit in bytes.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// A value that reports its current memory use.
pub(crate) trait CacheWeight {
    fn bytes(&self) -> usize;
}

struct WeightedLruEntry<V> {
    value: Arc<V>,
    /// The size that the cache counts for it.
    bytes: usize,
    used: u64,
}

struct WeightedLruState<K, V> {
    entries: HashMap<K, WeightedLruEntry<V>>,
    by_use: BTreeMap<u64, K>,
    bytes: usize,
    uses: u64,
}

/// Values by key. The least recently used one is evicted first. A caller that still holds an
/// evicted value can go on using it.
pub(crate) struct WeightedLruCache<K, V> {
    state: Mutex<WeightedLruState<K, V>>,
    bytes_max: usize,
}

impl<K: Clone + Eq + Hash, V: CacheWeight> WeightedLruCache<K, V> {
    pub(crate) fn new(bytes_max: usize) -> WeightedLruCache<K, V> {
        let (entries, by_use) = (HashMap::new(), BTreeMap::new());
        WeightedLruCache {
            state: Mutex::new(WeightedLruState { entries, by_use, bytes: 0, uses: 0 }),
            bytes_max,
        }
    }

    /// The value of a key. Creates it if it is missing.
    pub(crate) fn get(&self, key: &K, make: impl FnOnce() -> V) -> Arc<V> {
        let mut state = self.state.lock();
        let WeightedLruState { entries, by_use, bytes, uses } = &mut *state;
        *uses += 1;
        if let Some(entry) = entries.get_mut(key) {
            by_use.remove(&entry.used);
            entry.used = *uses;
            by_use.insert(*uses, key.clone());
            return Arc::clone(&entry.value);
        }
        let value = Arc::new(make());
        let weight = value.bytes();
        entries.insert(
            key.clone(),
            WeightedLruEntry { value: Arc::clone(&value), bytes: weight, used: *uses },
        );
        by_use.insert(*uses, key.clone());
        *bytes += weight;
        value
    }

    /// Updates the counted size of a value that has grown, and evicts others if the limit is
    /// exceeded.
    pub(crate) fn update_weight(&self, key: &K) {
        let mut state = self.state.lock();
        let WeightedLruState { entries, by_use, bytes, .. } = &mut *state;
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

    /// Removes a value, if the entry still is this one.
    pub(crate) fn remove(&self, key: &K, value: &Arc<V>) {
        let mut state = self.state.lock();
        if state.entries.get(key).is_some_and(|entry| Arc::ptr_eq(&entry.value, value))
            && let Some(removed) = state.entries.remove(key)
        {
            state.by_use.remove(&removed.used);
            state.bytes -= removed.bytes;
        }
    }

    /// The counted size of all values.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.state.lock().bytes
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
        let recent = WeightedLruCache::new(100);
        let make = || TestWeight(AtomicUsize::new(40));
        for key in [1, 2, 1] {
            recent.get(&key, make);
        }
        recent.get(&3, make);
        recent.update_weight(&3);
        assert_eq!(recent.bytes(), 80);
        recent.get(&1, || panic!("it was used after the other"));
        let second = recent.get(&2, make);
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
