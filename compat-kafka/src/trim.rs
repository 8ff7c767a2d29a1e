//! A batch with its last records cut off.
//!
//! A cut by system time never splits a batch. One by user time can: then the batch at its edge is
//! written anew without the records behind it, for Kafka's clients hand on all that a batch holds.

use bytes::{Bytes, BytesMut};
use engine::Offset;
use kafka_records::{BatchBuilder, BatchError, BatchHeader, Limit, records};

/// The records of `batch` before `end`.
pub(crate) fn trim(batch: &Bytes, end: Offset, limit: Limit) -> Result<Bytes, BatchError> {
    let header = BatchHeader::parse(batch)?;
    let mut builder = BatchBuilder::new(header.compression()?);
    if header.producer_id >= 0 {
        builder.producer(header.producer_id, header.producer_epoch, header.base_sequence);
    }
    let mut first = None;
    for record in records(batch, limit)? {
        let record = record?;
        if record.offset >= end.0 as i64 {
            break;
        }
        // The builder counts from the first record's time.
        let first = *first.get_or_insert(record.timestamp);
        if record.timestamp.checked_sub(first).is_none() {
            let (index, what) = (builder.record_count(), "its time is too far from the first");
            return Err(BatchError::BadRecord { index, what });
        }
        let headers = record.headers.iter().map(|(name, value)| (&name[..], value.as_deref()));
        builder.raw_record(
            record.timestamp,
            record.key.as_deref(),
            record.value.as_deref(),
            headers,
        );
    }
    if builder.record_count() == 0 {
        return Ok(Bytes::new());
    }
    let mut bytes = BytesMut::from(&builder.build()[..]);
    // Neither is under the batch's checksum.
    bytes[..8].copy_from_slice(&header.base_offset.to_be_bytes());
    bytes[12..16].copy_from_slice(&header.leader_epoch.to_be_bytes());
    Ok(bytes.freeze())
}
