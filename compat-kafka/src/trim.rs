//! Truncates a batch at its end.
//!
//! A cut by system time never splits a batch. A cut by user time can. Kafka's clients deliver all
//! records of a batch, so the batch at the edge is rewritten without the records after it.

use bytes::Bytes;
use engine::Offset;
use kafka_records::{
    BatchError, BatchHeader, BatchRewriteResult, DecompressionLimit, HEADER_BYTES, rewrite, set_crc,
};

/// Returns the batch as if it ended at `end`. It may have no record at all, if compaction removed
/// those before `end`: the reader still has to advance past them. Empty bytes if the batch begins
/// at `end` or later.
pub(crate) fn trim(
    batch: &Bytes,
    end: Offset,
    limit: DecompressionLimit,
) -> Result<Bytes, BatchError> {
    let last = end.0 as i64 - 1;
    if BatchHeader::parse(batch)?.base_offset > last {
        return Ok(Bytes::new());
    }
    let kept = match rewrite(batch, limit, None, |record| record.offset <= last)? {
        BatchRewriteResult::Unchanged => batch.clone(),
        BatchRewriteResult::Changed(bytes) | BatchRewriteResult::Empty(bytes) => bytes,
    };
    let mut header = BatchHeader::parse(&kept)?;
    if header.last_offset() <= last {
        return Ok(kept);
    }
    header.last_offset_delta = (last - header.base_offset) as i32;
    let (mut bytes, rest) = (header.to_bytes(), &kept[HEADER_BYTES..]);
    set_crc(&mut bytes, rest);
    Ok([&bytes, rest].concat().into())
}

#[cfg(test)]
mod tests {
    use kafka_records::{BatchBuilder, CompressionType, records};

    use super::*;

    const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };

    /// A batch at offset 10, of which compaction has left some offsets.
    fn compacted(codec: CompressionType, count: i64, left: &[i64]) -> Bytes {
        let mut builder = BatchBuilder::new(codec);
        builder.producer(5, 1, 40);
        for time in 0..count {
            builder.record(time, Some(b"key"), Some(b"value"), &[]);
        }
        let mut batch = builder.build().to_vec();
        batch[7] = 10;
        let batch = Bytes::from(batch);
        match rewrite(&batch, LIMIT, None, |record| left.contains(&record.offset)) {
            Ok(BatchRewriteResult::Changed(batch)) => batch,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_left_keeps_its_offsets_and_the_batch_ends_where_the_cut_does() {
        for codec in CompressionType::ALL {
            let batch = compacted(codec, 10, &[12, 13, 17]);
            for end in 8..25 {
                let trimmed = trim(&batch, Offset(end), LIMIT).unwrap();
                if end <= 10 {
                    assert_eq!(trimmed, Bytes::new(), "{end}");
                    continue;
                }
                let header = BatchHeader::parse(&trimmed).unwrap();
                assert_eq!(header.crc, crc32c(&trimmed), "{end}");
                assert_eq!((header.base_offset, header.base_sequence), (10, 40));
                assert_eq!(header.last_offset(), (end as i64 - 1).min(19));
                let records = records(&trimmed, LIMIT).unwrap().map(Result::unwrap);
                let read: Vec<_> =
                    records.map(|record| (record.offset, record.timestamp)).collect();
                let expected = [(12, 2), (13, 3), (17, 7)];
                let count = expected.iter().filter(|(offset, _)| *offset < end as i64).count();
                assert_eq!(read, expected[..count], "{codec:?} {end}");
            }
        }
    }

    /// As `set_crc` computes it.
    fn crc32c(batch: &[u8]) -> u32 {
        let mut header: [u8; HEADER_BYTES] = batch[..HEADER_BYTES].try_into().unwrap();
        set_crc(&mut header, &batch[HEADER_BYTES..]);
        BatchHeader::parse(&header).unwrap().crc
    }
}
