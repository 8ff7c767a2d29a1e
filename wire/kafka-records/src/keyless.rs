//! Records without a key, which a compacted topic refuses.

use bytes::Bytes;

use crate::{BatchError, DecompressionLimit, records};

/// The records of a batch that have no key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeylessRecords {
    /// The number of records without a key.
    pub count: usize,
    /// The first of them, by index in the batch, from 0.
    pub first: Vec<usize>,
}

/// Reads the whole batch, and lists at most `named_max` of the records without a key: a client can
/// send millions of them in a small batch.
pub fn keyless_records(
    batch: &Bytes,
    limit: DecompressionLimit,
    named_max: usize,
) -> Result<KeylessRecords, BatchError> {
    let mut keyless = KeylessRecords::default();
    for (index, record) in records(batch, limit)?.enumerate() {
        if record?.key.is_some() {
            continue;
        }
        keyless.count += 1;
        if keyless.first.len() < named_max {
            keyless.first.push(index);
        }
    }
    Ok(keyless)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, CompressionType};

    #[test]
    fn records_without_a_key_are_counted_and_the_first_are_named() {
        let limit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };
        for codec in CompressionType::ALL {
            let mut builder = BatchBuilder::new(codec);
            for key in [Some(&b"k"[..]), None, Some(b""), None, None] {
                builder.record(0, key, Some(b"value"), &[]);
            }
            let keyless = keyless_records(&builder.build(), limit, 2);
            assert_eq!(keyless, Ok(KeylessRecords { count: 3, first: vec![1, 3] }), "{codec:?}");
        }
    }
}
