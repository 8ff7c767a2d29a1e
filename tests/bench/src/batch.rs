//! Record batches (format v2), made once and sent many times, and checked when they come back.
//!
//! A batch is a header of 61 bytes and the records. The check sum covers what follows itself, from
//! the attributes on; the base offset, which the broker rewrites, lies outside it. So the same bytes
//! may be sent again and again, except by an idempotent producer, whose sequence numbers lie within:
//! for it [`BatchHeaderBytes::set_producer`] writes a new header, and the records stay as they are.

use anyhow::{Result, bail, ensure};
use testkit::rng::SeededRng;

pub(crate) const HEADER_BYTES: usize = 61;

const LENGTH_AT: usize = 8;
/// What the length field does not count: the base offset and itself.
const LENGTH_SKIPS: usize = 12;
const MAGIC_AT: usize = 16;
const CRC_AT: usize = 17;
const ATTRIBUTES_AT: usize = 21;
const LAST_OFFSET_DELTA_AT: usize = 23;
const BASE_TIMESTAMP_AT: usize = 27;
const MAX_TIMESTAMP_AT: usize = 35;
const PRODUCER_ID_AT: usize = 43;
const PRODUCER_EPOCH_AT: usize = 51;
const BASE_SEQUENCE_AT: usize = 53;
const RECORD_COUNT_AT: usize = 57;

/// A batch of equal records, without key or headers, whose values do not compress.
pub(crate) struct BenchBatch {
    pub(crate) header: BatchHeaderBytes,
    pub(crate) records: Vec<u8>,
    pub(crate) record_count: u32,
    /// The bytes of the values: what an application would say it has sent.
    pub(crate) payload_bytes: u64,
}

/// The 61 bytes before the records.
#[derive(Clone)]
pub(crate) struct BatchHeaderBytes(pub(crate) [u8; HEADER_BYTES]);

/// Who wrote a batch, and the place of its first record among all that it wrote to the partition.
#[derive(Clone, Copy)]
pub(crate) struct BatchProducer {
    pub(crate) id: i64,
    pub(crate) epoch: i16,
    pub(crate) sequence: i32,
}

impl BenchBatch {
    /// As many records of `record_bytes` as `batch_bytes_max` admits, but one at least.
    pub(crate) fn filled(record_bytes: usize, batch_bytes_max: usize, now_ms: i64) -> BenchBatch {
        let mut noise = SeededRng::new(1);
        let (mut records, mut count) = (Vec::with_capacity(batch_bytes_max), 0_u32);
        loop {
            let value: Vec<u8> = noise.bytes(record_bytes);
            let before = records.len();
            put_record(&mut records, count, &value);
            if count > 0 && HEADER_BYTES + records.len() > batch_bytes_max {
                records.truncate(before);
                break;
            }
            count += 1;
        }
        BenchBatch::of_records(records, count, count as u64 * record_bytes as u64, now_ms)
    }

    /// One record with this value.
    pub(crate) fn single(value: &[u8], now_ms: i64) -> BenchBatch {
        let mut records = Vec::with_capacity(value.len() + 16);
        put_record(&mut records, 0, value);
        BenchBatch::of_records(records, 1, value.len() as u64, now_ms)
    }

    fn of_records(records: Vec<u8>, count: u32, payload_bytes: u64, now_ms: i64) -> BenchBatch {
        let mut header = BatchHeaderBytes([0; HEADER_BYTES]);
        let length = HEADER_BYTES + records.len() - LENGTH_SKIPS;
        header.put(LENGTH_AT, (length as i32).to_be_bytes());
        header.put(12, (-1_i32).to_be_bytes());
        header.put(MAGIC_AT, [2]);
        header.put(LAST_OFFSET_DELTA_AT, (count as i32 - 1).to_be_bytes());
        header.put(RECORD_COUNT_AT, (count as i32).to_be_bytes());
        header.put_times(now_ms);
        header.set_producer(BatchProducer { id: -1, epoch: -1, sequence: -1 }, &records);
        BenchBatch { header, records, record_count: count, payload_bytes }
    }

    pub(crate) fn len(&self) -> usize {
        HEADER_BYTES + self.records.len()
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        [&self.header.0[..], &self.records].concat()
    }
}

impl BatchHeaderBytes {
    fn put<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }

    fn put_times(&mut self, now_ms: i64) {
        self.put(BASE_TIMESTAMP_AT, now_ms.to_be_bytes());
        self.put(MAX_TIMESTAMP_AT, now_ms.to_be_bytes());
    }

    /// Writes who sends this, and the check sum over it and `records`.
    pub(crate) fn set_producer(&mut self, producer: BatchProducer, records: &[u8]) {
        self.put(PRODUCER_ID_AT, producer.id.to_be_bytes());
        self.put(PRODUCER_EPOCH_AT, producer.epoch.to_be_bytes());
        self.put(BASE_SEQUENCE_AT, producer.sequence.to_be_bytes());
        self.write_checksum(records);
    }

    /// Writes the time of the records, and the check sum over it and `records`.
    pub(crate) fn set_time(&mut self, now_ms: i64, records: &[u8]) {
        self.put_times(now_ms);
        self.write_checksum(records);
    }

    fn write_checksum(&mut self, records: &[u8]) {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&self.0[ATTRIBUTES_AT..]), records);
        self.put(CRC_AT, crc.to_be_bytes());
    }
}

/// length, attributes, timestamp delta 0, offset delta, no key, value, no headers
fn put_record(out: &mut Vec<u8>, offset_delta: u32, value: &[u8]) {
    let mut body = vec![0, 0];
    put_varint(&mut body, i64::from(offset_delta));
    put_varint(&mut body, -1);
    put_varint(&mut body, value.len() as i64);
    put_varint(out, (body.len() + value.len() + 1) as i64);
    out.extend_from_slice(&body);
    out.extend_from_slice(value);
    out.push(0);
}

fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A batch as it came back.
#[derive(Debug)]
pub(crate) struct FetchedBatch<'a> {
    pub(crate) base_offset: i64,
    pub(crate) last_offset: i64,
    pub(crate) record_count: u32,
    bytes: &'a [u8],
}

/// Whether the check sum of each batch is computed as well.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchCheck {
    Framing,
    FramingAndCrc,
}

/// Takes the next batch off `rest`. `None` at the end, or before a batch that the broker cut short
/// to keep to the bytes asked for.
pub(crate) fn take_batch<'a>(
    rest: &mut &'a [u8],
    check: BatchCheck,
) -> Result<Option<FetchedBatch<'a>>> {
    if rest.len() < LENGTH_SKIPS {
        return Ok(None);
    }
    let length = i32::from_be_bytes(field(rest, LENGTH_AT));
    let Ok(length) = usize::try_from(length) else { bail!("batch length is {length}") };
    let whole = length + LENGTH_SKIPS;
    ensure!(whole >= HEADER_BYTES, "batch is shorter than its header. length={length}");
    if rest.len() < whole {
        return Ok(None);
    }
    let (bytes, after) = rest.split_at(whole);
    *rest = after;
    parse_batch(bytes, check).map(Some)
}

fn parse_batch(bytes: &[u8], check: BatchCheck) -> Result<FetchedBatch<'_>> {
    ensure!(bytes[MAGIC_AT] == 2, "batch is not of format 2. magic={}", bytes[MAGIC_AT]);
    let base_offset = i64::from_be_bytes(field(bytes, 0));
    let delta = i32::from_be_bytes(field(bytes, LAST_OFFSET_DELTA_AT));
    let count = i32::from_be_bytes(field(bytes, RECORD_COUNT_AT));
    ensure!(
        count > 0 && delta == count - 1,
        "batch counts its records wrong. count={count}, last_offset_delta={delta}"
    );
    if check == BatchCheck::FramingAndCrc {
        let claimed = u32::from_be_bytes(field(bytes, CRC_AT));
        let computed = crc32c::crc32c(&bytes[ATTRIBUTES_AT..]);
        ensure!(claimed == computed, "batch check sum is wrong. base_offset={base_offset}");
    }
    let last_offset = base_offset + i64::from(delta);
    Ok(FetchedBatch { base_offset, last_offset, record_count: count as u32, bytes })
}

/// The `N` bytes at `at`, which the caller knows to be there.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a slice of N bytes is an array of N")
}

impl<'a> FetchedBatch<'a> {
    /// The values of the records, which must be as [`BenchBatch`] makes them: no key.
    pub(crate) fn values(&self) -> Result<Vec<&'a [u8]>> {
        let mut rest = &self.bytes[HEADER_BYTES..];
        (0..self.record_count).map(|_| take_value(&mut rest)).collect()
    }
}

fn take_value<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8]> {
    let length = take_varint(rest)?;
    let mut record = take(rest, length)?;
    take(&mut record, 1)?;
    take_varint(&mut record)?;
    take_varint(&mut record)?;
    let key = take_varint(&mut record)?;
    ensure!(key == -1, "record has a key, and none was sent");
    let length = take_varint(&mut record)?;
    take(&mut record, length)
}

fn take<'a>(rest: &mut &'a [u8], length: i64) -> Result<&'a [u8]> {
    let length = usize::try_from(length)?;
    ensure!(length <= rest.len(), "record ends early. wants={length}, has={}", rest.len());
    let (taken, after) = rest.split_at(length);
    *rest = after;
    Ok(taken)
}

fn take_varint(rest: &mut &[u8]) -> Result<i64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take(rest, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
        }
    }
    bail!("varint does not end")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use kafka_protocol::records::RecordBatchDecoder;

    /// The usual nine digits, and the zeroes of RFC 3720, B.4.
    #[test]
    fn the_check_sum_is_castagnolis() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn another_decoder_reads_our_batches_and_finds_their_check_sum_right() {
        for (record, batch) in [(100, 16_384), (1024, 1_000_000), (1 << 20, 1_000_000)] {
            let mut made = BenchBatch::filled(record, batch, 1_700_000_000_000);
            made.header
                .set_producer(BatchProducer { id: 7, epoch: 1, sequence: 40 }, &made.records);
            let mut bytes = Bytes::from(made.to_vec());
            let decoded = RecordBatchDecoder::decode(&mut bytes).unwrap();
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
        let mut rest = &bytes[..];
        for _ in 0..2 {
            let back = take_batch(&mut rest, BatchCheck::FramingAndCrc).unwrap().unwrap();
            assert_eq!(back.record_count, batch.record_count);
            assert!(back.values().unwrap().iter().all(|value| value.len() == 1024));
        }
        assert!(take_batch(&mut rest, BatchCheck::FramingAndCrc).unwrap().is_none());
    }

    #[test]
    fn a_changed_byte_is_noticed() {
        let mut bytes = BenchBatch::single(b"0123456789", 5).to_vec();
        bytes[HEADER_BYTES + 8] ^= 1;
        assert!(take_batch(&mut &bytes[..], BatchCheck::Framing).unwrap().is_some());
        let error = take_batch(&mut &bytes[..], BatchCheck::FramingAndCrc).unwrap_err();
        assert!(error.to_string().contains("check sum"), "{error}");
        bytes[MAGIC_AT] = 1;
        assert!(take_batch(&mut &bytes[..], BatchCheck::Framing).is_err());
    }

    #[test]
    fn no_truncated_record_is_read_past_its_end() {
        let bytes = BenchBatch::single(b"0123456789", 5).to_vec();
        for end in HEADER_BYTES..bytes.len() - 1 {
            let cut = FetchedBatch {
                base_offset: 0,
                last_offset: 0,
                record_count: 1,
                bytes: &bytes[..end],
            };
            assert!(cut.values().is_err(), "{end}");
        }
    }
}
