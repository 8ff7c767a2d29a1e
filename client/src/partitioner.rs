//! The partition of a key. Kafka's own producer chooses the same one, so both put a key in one
//! place.

/// The partition of `key` among `count`.
///
/// # Panics
/// If `count` is not positive.
pub fn partition_of_key(key: &[u8], count: i32) -> i32 {
    assert!(count > 0, "a topic has at least one partition: {count}");
    (murmur2(key) & 0x7fff_ffff) as i32 % count
}

/// MurmurHash2 as Kafka computes it, with its seed.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Kafka's `UtilsTest.testMurmur2`.
    #[test]
    fn a_key_hashes_as_in_kafkas_own_producer() {
        for (key, hash) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn a_partition_is_never_negative() {
        assert!((0..7).contains(&partition_of_key(b"21", 7)));
    }
}
