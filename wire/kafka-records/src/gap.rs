//! Batches that cover offsets and hold no records.
//!
//! Consumers skip them: compaction leaves such batches at the end of a log (`rewrite`).

use bytes::Bytes;

use crate::header::{LOG_OVERHEAD, MAGIC};
use crate::{BatchHeader, HEADER_BYTES, set_crc};

/// A batch without records that covers the offsets from `first` on, up to but not including `end`; the
/// first 2^31 of them if there are more.
///
/// # Panics
///
/// If there are none.
pub fn offset_gap(first: i64, end: i64) -> Bytes {
    let count = end.checked_sub(first).filter(|count| *count > 0).expect("a gap has offsets");
    let mut bytes = BatchHeader {
        base_offset: first,
        length: (HEADER_BYTES - LOG_OVERHEAD) as i32,
        leader_epoch: -1,
        magic: MAGIC,
        crc: 0,
        attributes: 0,
        last_offset_delta: i32::try_from(count - 1).unwrap_or(i32::MAX),
        base_timestamp: -1,
        max_timestamp: -1,
        producer_id: -1,
        producer_epoch: -1,
        base_sequence: -1,
        record_count: 0,
    }
    .to_bytes();
    set_crc(&mut bytes, &[]);
    Bytes::copy_from_slice(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecompressionLimit, check_sparse, records};

    #[test]
    fn a_gap_is_a_batch_that_no_reader_finds_a_record_in() {
        let limit = DecompressionLimit { decompressed_bytes_max: 0 };
        for (first, end, last) in [(0, 1, 0), (7, 10, 9), (5, i64::MAX, 5 + i64::from(i32::MAX))] {
            let batch = offset_gap(first, end);
            let header = check_sparse(&batch).unwrap();
            assert_eq!((header.base_offset, header.last_offset()), (first, last));
            assert_eq!(records(&batch, limit).unwrap().count(), 0);
        }
    }
}
