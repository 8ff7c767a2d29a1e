//! The times of a batch's records, without reading their contents.

use bytes::Bytes;

use crate::{BatchError, DecompressionLimit, records};

/// Offset and timestamp of each record, by rising offset. Keys, values and headers are skipped, not
/// validated.
pub fn times(batch: &Bytes, limit: DecompressionLimit) -> Result<Vec<(i64, i64)>, BatchError> {
    let mut records = records(batch, limit)?;
    // A record takes at least 7 bytes on the wire, and 16 here.
    let mut times = Vec::with_capacity(records.remaining());
    while let Some(time) = records.next_with(|_, head| Ok((head.offset, head.timestamp))) {
        times.push(time?);
    }
    Ok(times)
}

/// The oldest and the newest timestamp of the records. The header's `max_timestamp` is a producer's
/// claim. This is read from the records.
pub fn time_range(batch: &Bytes, limit: DecompressionLimit) -> Result<(i64, i64), BatchError> {
    let mut records = records(batch, limit)?;
    let mut range: Option<(i64, i64)> = None;
    while let Some(time) = records.next_with(|_, head| Ok(head.timestamp)) {
        let time = time?;
        let (oldest, newest) = range.unwrap_or((time, time));
        range = Some((oldest.min(time), newest.max(time)));
    }
    range.ok_or(BatchError::Incoherent { what: "a batch must hold a record", value: 0 })
}
