//! Drops records from a stored batch, as compaction does.
//!
//! Facts that a reader of the log may remember stay true: offsets, times, keys, values, headers and
//! the first and last sequence number of the producer do not change. So a batch keeps its base
//! offset and its last offset even if the records at its edges are gone, and offsets have gaps.
//!
//! The bytes are those that Kafka's cleaner writes from the same batch (`tests/java.rs`).

use bytes::Bytes;

use crate::builder::compress;
use crate::cursor::{CursorResult, RecordCursor, put_varint};
use crate::header::{DELETE_HORIZON, LOG_OVERHEAD};
use crate::records::RecordPrefix;
use crate::{
    BatchError, BatchHeader, CompressionType, DecompressionLimit, HEADER_BYTES, RecordIterator,
    records, set_crc,
};

/// The fields that decide whether a record is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordKey<'a> {
    /// Its offset in the log.
    pub offset: i64,
    /// Null and empty differ.
    pub key: Option<&'a [u8]>,
    /// It has no value: the key is deleted.
    pub is_tombstone: bool,
}

/// The result for a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchRewriteResult {
    /// The batch keeps its bytes.
    Unchanged,
    /// Some of its records are gone, or it has a delete horizon now.
    Changed(Bytes),
    /// No record is left. This is the batch without records, for callers that must keep its
    /// offsets.
    Empty(Bytes),
}

/// Keeps the records of a whole batch for which `keep` returns true. It is called in the order of
/// offsets. If `delete_horizon_ms` is given and a tombstone is kept, a batch without a delete
/// horizon gets this one (KIP-534).
///
/// Control batches are never changed. If a batch does not parse to its last record, `keep` is not
/// called at all. The CRC is not checked again.
pub fn rewrite(
    batch: &Bytes,
    limit: DecompressionLimit,
    delete_horizon_ms: Option<i64>,
    keep: impl FnMut(RecordKey<'_>) -> bool,
) -> Result<BatchRewriteResult, BatchError> {
    let records = records(batch, limit)?;
    let header = *records.header();
    if header.is_control() {
        return Ok(BatchRewriteResult::Unchanged);
    }
    records.clone().try_for_each(|record| record.map(drop))?;
    let retained = RetainedRecords::select(records.clone(), keep)?;
    if retained.count == 0 {
        return Ok(BatchRewriteResult::Empty(empty_batch(&header)));
    }
    let (base_timestamp, horizon_bit) = retained.base_timestamp(&header, delete_horizon_ms);
    let attributes = header.attributes & !DELETE_HORIZON | horizon_bit;
    if retained.count == retained.is_retained.len() && attributes == header.attributes {
        return Ok(BatchRewriteResult::Unchanged);
    }
    let body = retained.body(records, base_timestamp)?;
    let header = BatchHeader {
        attributes,
        base_timestamp,
        max_timestamp: if header.is_log_append_time() {
            header.max_timestamp
        } else {
            retained.newest
        },
        record_count: i32::try_from(retained.count).expect("no more records than there were"),
        ..header
    };
    pack(header, &body).map(BatchRewriteResult::Changed)
}

/// The records to keep, and what the header must know about them.
struct RetainedRecords {
    is_retained: Vec<bool>,
    count: usize,
    has_tombstone: bool,
    first: i64,
    oldest: i64,
    newest: i64,
}

impl RetainedRecords {
    fn select(
        mut records: RecordIterator,
        mut keep: impl FnMut(RecordKey<'_>) -> bool,
    ) -> Result<RetainedRecords, BatchError> {
        let is_kept = Vec::with_capacity(records.remaining());
        let mut retained = RetainedRecords {
            is_retained: is_kept,
            count: 0,
            has_tombstone: false,
            first: 0,
            oldest: 0,
            newest: 0,
        };
        let mut add = |body: &Bytes, head: RecordPrefix| {
            let keyed = record_key(body, &head)?;
            let is_kept = keep(keyed);
            retained.is_retained.push(is_kept);
            if is_kept {
                retained.add(head.timestamp, keyed.is_tombstone);
            }
            Ok(())
        };
        while let Some(result) = records.next_with(&mut add) {
            result?;
        }
        Ok(retained)
    }

    fn add(&mut self, timestamp: i64, is_tombstone: bool) {
        if self.count == 0 {
            (self.first, self.oldest, self.newest) = (timestamp, timestamp, timestamp);
        }
        self.count += 1;
        self.has_tombstone |= is_tombstone;
        self.oldest = self.oldest.min(timestamp);
        self.newest = self.newest.max(timestamp);
    }

    /// The new base timestamp, and the bit that says whether it is a delete horizon. It is the
    /// horizon that the batch has or gets, or else the time of the first record.
    ///
    /// If a timestamp is so far off that its distance from there is no `i64`, the base stays what
    /// it was, from which all deltas fit. The tombstones of such a batch are never dropped.
    fn base_timestamp(&self, header: &BatchHeader, delete_horizon_ms: Option<i64>) -> (i64, i16) {
        let new_horizon = if self.has_tombstone { delete_horizon_ms } else { None };
        let (base, bit) = match header.delete_horizon_ms().or(new_horizon) {
            Some(horizon) => (horizon, DELETE_HORIZON),
            None => (self.first, 0),
        };
        let in_reach = |time: i64| time.checked_sub(base).is_some();
        if in_reach(self.oldest) && in_reach(self.newest) {
            return (base, bit);
        }
        (header.base_timestamp, header.attributes & DELETE_HORIZON)
    }

    /// The records to keep, not yet compressed.
    fn body(
        &self,
        mut records: RecordIterator,
        base_timestamp: i64,
    ) -> Result<Vec<u8>, BatchError> {
        let base_offset = records.header().base_offset;
        let mut is_kept = self.is_retained.iter();
        let (mut out, mut start) = (Vec::new(), Vec::with_capacity(16));
        let mut put = |body: &Bytes, head: RecordPrefix| {
            if *is_kept.next().expect("the same records again") {
                start.clear();
                start.push(head.attributes);
                // In a log-append-time batch nothing reads it, and it may be anything.
                put_varint(&mut start, head.timestamp.wrapping_sub(base_timestamp));
                put_varint(&mut start, head.offset - base_offset);
                put_varint(&mut out, (start.len() + head.rest.len()) as i64);
                out.extend_from_slice(&start);
                out.extend_from_slice(&body[head.rest]);
            }
            Ok(())
        };
        while let Some(done) = records.next_with(&mut put) {
            done?;
        }
        Ok(out)
    }
}

fn record_key<'a>(body: &'a [u8], head: &RecordPrefix) -> CursorResult<RecordKey<'a>> {
    let mut cursor = RecordCursor::new(&body[..head.rest.end], head.rest.start);
    let key = cursor.nullable_bytes()?.map(|key| &body[key]);
    let is_tombstone = cursor.nullable_bytes()?.is_none();
    Ok(RecordKey { offset: head.offset, key, is_tombstone })
}

/// A batch that only keeps its offsets: as Kafka writes it, not compressed, and without a base
/// time.
fn empty_batch(header: &BatchHeader) -> Bytes {
    let codec_and_horizon = header.attributes & (CompressionType::MASK | DELETE_HORIZON);
    let mut bytes = BatchHeader {
        length: (HEADER_BYTES - LOG_OVERHEAD) as i32,
        attributes: header.attributes & !codec_and_horizon,
        base_timestamp: -1,
        record_count: 0,
        ..*header
    }
    .to_bytes();
    set_crc(&mut bytes, &[]);
    Bytes::copy_from_slice(&bytes)
}

fn pack(header: BatchHeader, body: &[u8]) -> Result<Bytes, BatchError> {
    let mut batch = vec![0; HEADER_BYTES];
    compress(header.compression()?, body, &mut batch).expect("a Vec takes what is written to it");
    let length = i32::try_from(batch.len() - LOG_OVERHEAD)
        .map_err(|_| BatchError::TooLarge { max: i32::MAX as usize })?;
    let mut bytes = BatchHeader { length, ..header }.to_bytes();
    set_crc(&mut bytes, &batch[HEADER_BYTES..]);
    batch[..HEADER_BYTES].copy_from_slice(&bytes);
    Ok(batch.into())
}
