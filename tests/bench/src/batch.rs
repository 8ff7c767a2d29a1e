//! Record batches (format v2), built once and sent many times, and checked when they are fetched.
//!
//! A batch is a header of 61 bytes and the records. The checksum covers the bytes after itself,
//! from the attributes on. The base offset, which the broker rewrites, is outside it. So the same
//! bytes may be sent again and again, except by an idempotent producer, whose sequence numbers are
//! inside. For it [`header_bytes`] writes a new header, and the records stay
//! unchanged.

use anyhow::{Result, ensure};
use bytes::Bytes;
use kafka_records::{
    BatchBuilder, BatchHeader, BatchIterator, CompressionType, DecompressionLimit, HEADER_BYTES,
    records, set_crc,
};
use testkit::rng::SeededRng;

/// No batch that comes back is larger.
const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 256 << 20 };

/// A batch of equal records, without key or headers, whose values do not compress.
pub(crate) struct BenchBatch {
    pub(crate) header: BatchHeader,
    pub(crate) records: Bytes,
    pub(crate) record_count: u32,
    /// The bytes of the values: what an application counts as sent.
    pub(crate) payload_bytes: u64,
}

impl BenchBatch {
    /// As many records of `record_bytes` as fit `batch_bytes_max`, but at least one.
    pub(crate) fn filled(record_bytes: usize, batch_bytes_max: usize, now_ms: i64) -> BenchBatch {
        let mut too_large = BatchBuilder::new(CompressionType::None);
        let zeros = vec![0; record_bytes];
        while too_large.uncompressed_bytes() <= batch_bytes_max {
            too_large.record(now_ms, None, Some(&zeros), &[]);
        }
        let count = (too_large.record_count() - 1).max(1);
        let mut noise = SeededRng::new(1);
        BenchBatch::of((0..count).map(|_| noise.bytes(record_bytes)), now_ms)
    }

    /// One record with this value.
    pub(crate) fn single(value: &[u8], now_ms: i64) -> BenchBatch {
        BenchBatch::of([value.to_vec()], now_ms)
    }

    fn of(values: impl IntoIterator<Item = Vec<u8>>, now_ms: i64) -> BenchBatch {
        let (mut builder, mut payload_bytes) = (BatchBuilder::new(CompressionType::None), 0);
        for value in values {
            builder.record(now_ms, None, Some(&value), &[]);
            payload_bytes += value.len() as u64;
        }
        let batch = builder.build();
        let header = BatchHeader::parse(&batch).expect("a batch that was built has a header");
        let record_count = builder.record_count() as u32;
        BenchBatch { header, records: batch.slice(HEADER_BYTES..), record_count, payload_bytes }
    }

    pub(crate) fn len(&self) -> usize {
        HEADER_BYTES + self.records.len()
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        [&header_bytes(&self.header, &self.records), &self.records[..]].concat()
    }
}

/// The header on the wire, with the checksum over it and `records`.
pub(crate) fn header_bytes(header: &BatchHeader, records: &[u8]) -> [u8; HEADER_BYTES] {
    let mut bytes = header.to_bytes();
    set_crc(&mut bytes, records);
    bytes
}

#[derive(Debug)]
pub(crate) struct FetchedBatch<'a> {
    pub(crate) header: BatchHeader,
    bytes: &'a [u8],
}

/// The checks of each batch: its framing, and also its checksum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchCheck {
    Framing,
    FramingAndCrc,
}

/// Takes the next batch from `rest`. `None` at the end, or before an incomplete batch, which the
/// broker cut at the requested bytes.
pub(crate) fn batches(
    bytes: &[u8],
    check: BatchCheck,
) -> impl Iterator<Item = Result<FetchedBatch<'_>>> {
    BatchIterator::new(bytes).map(move |next| {
        let (header, bytes) = next?;
        if check == BatchCheck::FramingAndCrc {
            kafka_records::check(bytes)?;
        }
        let (count, delta) = (header.record_count, header.last_offset_delta);
        ensure!(
            count > 0 && delta == count - 1,
            "batch counts its records wrong. count={count}, last_offset_delta={delta}"
        );
        Ok(FetchedBatch { header, bytes })
    })
}

impl FetchedBatch<'_> {
    pub(crate) fn record_count(&self) -> u64 {
        self.header.record_count as u64
    }

    /// The values of the records, which must be as [`BenchBatch`] makes them: no key.
    pub(crate) fn values(&self) -> Result<Vec<Bytes>> {
        let value = |record: Result<kafka_records::KafkaRecord, _>| {
            let record = record?;
            ensure!(record.key.is_none(), "record has a key, and none was sent");
            Ok(record.value.unwrap_or_default())
        };
        records(&Bytes::copy_from_slice(self.bytes), LIMIT)?.map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kafka_protocol::records::RecordBatchDecoder;

    #[test]
    fn another_decoder_reads_our_batches_and_finds_their_check_sum_right() {
        for (record, batch) in [(100, 16_384), (1024, 1_000_000), (1 << 20, 1_000_000)] {
            let mut made = BenchBatch::filled(record, batch, 1_700_000_000_000);
            let sequence =
                BatchHeader { producer_id: 7, producer_epoch: 1, base_sequence: 40, ..made.header };
            made.header = sequence;
            let decoded = RecordBatchDecoder::decode(&mut Bytes::from(made.to_vec())).unwrap();
            assert_eq!(decoded.records.len(), made.record_count as usize);
            assert_eq!(made.payload_bytes, u64::from(made.record_count) * record as u64);
            let last = decoded.records.last().unwrap();
            assert_eq!(last.offset, i64::from(made.record_count) - 1);
            assert_eq!(last.timestamp, 1_700_000_000_000);
            assert_eq!((last.producer_id, last.producer_epoch), (7, 1));
            assert_eq!(last.value.as_ref().unwrap().len(), record);
        }
    }

    #[test]
    fn a_batch_is_as_full_as_its_bound_admits() {
        for (record, bound) in [(100, 16_384), (1024, 1_000_000), (16_384, 1_000_000)] {
            let batch = BenchBatch::filled(record, bound, 0);
            assert!(batch.len() <= bound && batch.len() + record + 12 > bound);
        }
        assert_eq!(BenchBatch::filled(1 << 20, 1_000_000, 0).record_count, 1);
    }

    #[test]
    fn what_is_sent_is_recognised_when_it_comes_back() {
        let batch = BenchBatch::filled(1024, 16_384, 5);
        let bytes = [batch.to_vec(), batch.to_vec(), batch.to_vec()[..100].to_vec()].concat();
        let back: Vec<_> =
            batches(&bytes, BatchCheck::FramingAndCrc).collect::<Result<_>>().unwrap();
        assert_eq!(back.len(), 2);
        for back in back {
            assert_eq!(back.record_count(), u64::from(batch.record_count));
            assert!(back.values().unwrap().iter().all(|value| value.len() == 1024));
        }
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let first = |bytes: &[u8], check| batches(bytes, check).next().unwrap().map(drop);
        let mut bytes = BenchBatch::single(b"0123456789", 5).to_vec();
        bytes[HEADER_BYTES + 8] ^= 1;
        assert!(first(&bytes, BatchCheck::Framing).is_ok());
        let error = first(&bytes, BatchCheck::FramingAndCrc).unwrap_err();
        assert!(error.to_string().to_lowercase().contains("crc"), "{error}");
        bytes[16] = 1;
        assert!(first(&bytes, BatchCheck::Framing).is_err(), "another format");
    }

    #[test]
    fn no_truncated_record_is_read_past_its_end() {
        let batch = BenchBatch::single(b"0123456789", 5);
        let bytes = batch.to_vec();
        for end in HEADER_BYTES..bytes.len() - 1 {
            let cut = FetchedBatch { header: batch.header, bytes: &bytes[..end] };
            assert!(cut.values().is_err(), "{end}");
        }
    }
}
