//! A map from each key to its last offset, in bounded memory: a hash table, as in Kafka's log
//! cleaner.
//!
//! Keys are identified by 128 bits (XXH3). The seed keeps a producer from choosing keys that
//! collide in one place of the table.

use storage::Offset;
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The two halves of a hash, and the offset plus one; 0 in an empty slot.
type KeySlot = [u64; 3];

/// The largest load of the table: above it, a lookup takes many steps.
const FULL_PERCENT: usize = 90;

pub(super) struct KeyOffsetMap {
    slots: Vec<KeySlot>,
    used: usize,
    used_max: usize,
    seed: u64,
}

impl KeyOffsetMap {
    /// A table of at most `memory_bytes`. They are untouched zero pages, which cost nothing until
    /// keys arrive.
    pub(super) fn new(memory_bytes: usize, seed: u64) -> KeyOffsetMap {
        let count = memory_bytes / size_of::<KeySlot>();
        // Divides first, because the product may overflow. One slot always stays free: it ends the
        // search.
        let used_max = (count / 100 * FULL_PERCENT + count % 100 * FULL_PERCENT / 100)
            .min(count.saturating_sub(1));
        KeyOffsetMap { slots: vec![[0; 3]; count], used: 0, used_max, seed }
    }

    /// Stores the offset of a key. False if the key is new and there is no room.
    pub(super) fn put(&mut self, key: &[u8], offset: Offset) -> bool {
        let hash = xxh3_128_with_seed(key, self.seed);
        let Some(at) = self.find_slot(hash) else { return false };
        if self.slots[at][2] == 0 {
            if self.used == self.used_max {
                return false;
            }
            self.used += 1;
        }
        let [high, low] = halves(hash);
        self.slots[at] = [high, low, offset.0 + 1];
        true
    }

    pub(super) fn last_offset(&self, key: &[u8]) -> Option<Offset> {
        let at = self.find_slot(xxh3_128_with_seed(key, self.seed))?;
        self.slots[at][2].checked_sub(1).map(Offset)
    }

    /// The slot of a hash, or the free slot that it would take.
    fn find_slot(&self, hash: u128) -> Option<usize> {
        let count = self.slots.len();
        if count == 0 {
            return None;
        }
        let [high, low] = halves(hash);
        let mut at = ((u128::from(high) * count as u128) >> 64) as usize;
        loop {
            let slot = &self.slots[at];
            if slot[2] == 0 || (slot[0], slot[1]) == (high, low) {
                return Some(at);
            }
            at = if at + 1 == count { 0 } else { at + 1 };
        }
    }
}

fn halves(hash: u128) -> [u64; 2] {
    [(hash >> 64) as u64, hash as u64]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_table_remembers_the_last_offset_of_each_key_until_it_is_full() {
        for count in 0..200 {
            let mut keys = KeyOffsetMap::new(count * 24 + 23, 7);
            let mut model = HashMap::new();
            for offset in 0..600u64 {
                let key = (offset * 7919 % 300).to_le_bytes();
                if keys.put(&key, Offset(offset)) {
                    model.insert(key, Offset(offset));
                } else {
                    assert!(!model.contains_key(&key), "a known key needs no room");
                    assert_eq!(model.len(), keys.used_max);
                }
            }
            assert_eq!(model.len(), 300.min(count * 9 / 10).min(count.saturating_sub(1)));
            for key in 0..300u64 {
                let key = key.to_le_bytes();
                assert_eq!(keys.last_offset(&key), model.get(&key).copied(), "{count} slots");
            }
        }
    }
}
