//! The records of one batch.
//!
//! Keys, values and headers share the batch's memory (or, of a compressed batch, the decompressed
//! bytes): they are not copied. Headers keep their order and their duplicates, because programs
//! attach meaning to them.

use std::iter::FusedIterator;
use std::ops::Range;

use bytes::Bytes;

use crate::check::check_length;
use crate::cursor::{CursorResult, RecordCursor};
use crate::decompress::decompress;
use crate::{BatchError, BatchHeader, DecompressionLimit, HEADER_BYTES};

/// One record, with absolute offset and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaRecord {
    /// Its offset in the log, if the batch's base offset is.
    pub offset: i64,
    /// Its time in ms: its own, or the broker's in a log-append-time batch.
    pub timestamp: i64,
    /// Null and empty differ.
    pub key: Option<Bytes>,
    /// Null and empty differ.
    pub value: Option<Bytes>,
    /// In the order written. A key can occur more than once.
    pub headers: Vec<(Bytes, Option<Bytes>)>,
}

impl KafkaRecord {
    /// The bytes of its key and its value.
    pub fn content_bytes(&self) -> usize {
        [&self.key, &self.value].into_iter().flatten().map(Bytes::len).sum()
    }
}

/// Length, attributes, two deltas, two null lengths and a header count, of a byte each.
const RECORD_BYTES_MIN: usize = 7;
/// A length and a null length.
const RECORD_HEADER_BYTES_MIN: usize = 2;

/// Reads the records of one whole batch. The CRC is not checked again.
pub fn records(batch: &Bytes, limit: DecompressionLimit) -> Result<RecordIterator, BatchError> {
    let header = BatchHeader::parse(batch)?;
    check_length(&header, batch)?;
    let codec = header.compression()?;
    let body = decompress(codec, batch.slice(HEADER_BYTES..), limit)?;
    let count = usize::try_from(header.record_count)
        .ok()
        .filter(|count| *count <= body.len() / RECORD_BYTES_MIN)
        .ok_or(BatchError::Incoherent {
            what: "the record count must fit the bytes",
            value: header.record_count.into(),
        })?;
    Ok(RecordIterator { header, body, at: 0, index: 0, count, last_delta: -1, is_over: false })
}

/// Iterates over the records of a batch. It ends after the first one that does not parse.
#[derive(Clone, Debug)]
pub struct RecordIterator {
    header: BatchHeader,
    body: Bytes,
    at: usize,
    /// Of the next record.
    index: usize,
    /// At most what `body` could hold.
    count: usize,
    last_delta: i32,
    is_over: bool,
}

impl RecordIterator {
    /// The batch's header.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }

    /// The number of records that follow, if none is malformed.
    pub fn remaining(&self) -> usize {
        if self.is_over { 0 } else { self.count - self.index }
    }

    /// One step of the iteration: what `read` returns for the next record.
    pub(crate) fn next_with<T>(
        &mut self,
        read: impl FnOnce(&Bytes, RecordPrefix) -> CursorResult<T>,
    ) -> Option<Result<T, BatchError>> {
        if self.is_over {
            return None;
        }
        let result = if self.index == self.count {
            self.is_over = true;
            (self.at < self.body.len()).then_some(Err("bytes follow the last record"))
        } else {
            Some(self.read_prefix().and_then(|head| read(&self.body, head)))
        };
        let index = self.index;
        self.index += usize::from(index < self.count);
        Some(result?.map_err(|what| {
            self.is_over = true;
            BatchError::BadRecord { index, what }
        }))
    }

    /// Reads up to the key of the next record, and moves to the one after it.
    fn read_prefix(&mut self) -> CursorResult<RecordPrefix> {
        let mut cursor = RecordCursor::new(&self.body, self.at);
        let len = cursor.varint()?;
        let whole = cursor.take(len)?;
        let mut cursor = RecordCursor::new(&self.body[..whole.end], whole.start);
        let attributes = cursor.byte()?;
        let (timestamp_delta, offset_delta) = (cursor.varlong()?, cursor.varint()?);
        let rest = cursor.at()..whole.end;
        self.at = whole.end;
        let timestamp = self.timestamp(timestamp_delta)?;
        Ok(RecordPrefix { attributes, offset: self.offset(offset_delta)?, timestamp, rest })
    }

    fn timestamp(&self, delta: i64) -> CursorResult<i64> {
        if self.header.is_log_append_time() {
            return Ok(self.header.max_timestamp);
        }
        self.header.base_timestamp.checked_add(delta).ok_or("its timestamp overflows")
    }

    /// Compaction leaves gaps between the offsets of a batch, but they still rise.
    fn offset(&mut self, delta: i32) -> CursorResult<i64> {
        if delta <= self.last_delta {
            return Err("its offset does not rise");
        }
        if delta > self.header.last_offset_delta {
            return Err("its offset lies beyond the batch");
        }
        self.last_delta = delta;
        self.header.base_offset.checked_add(delta.into()).ok_or("its offset overflows")
    }
}

/// A record up to its key.
pub(crate) struct RecordPrefix {
    pub(crate) attributes: u8,
    pub(crate) offset: i64,
    pub(crate) timestamp: i64,
    /// The range of key, value and headers in the body.
    pub(crate) rest: Range<usize>,
}

impl Iterator for RecordIterator {
    type Item = Result<KafkaRecord, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_with(record)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // One more than is left, because an error about the bytes after the last record may follow.
        (0, if self.is_over { Some(0) } else { Some(self.remaining() + 1) })
    }
}

impl FusedIterator for RecordIterator {}

fn record(body: &Bytes, head: RecordPrefix) -> CursorResult<KafkaRecord> {
    let mut cursor = RecordCursor::new(&body[..head.rest.end], head.rest.start);
    let key = cursor.nullable_bytes()?;
    let value = cursor.nullable_bytes()?;
    let headers = headers(body, &mut cursor)?;
    if cursor.remaining() > 0 {
        return Err("bytes follow its headers");
    }
    let share = |range| body.slice(range);
    let RecordPrefix { offset, timestamp, .. } = head;
    Ok(KafkaRecord { offset, timestamp, key: key.map(share), value: value.map(share), headers })
}

fn headers(
    body: &Bytes,
    cursor: &mut RecordCursor<'_>,
) -> CursorResult<Vec<(Bytes, Option<Bytes>)>> {
    let count = usize::try_from(cursor.varint()?).map_err(|_| "its header count is negative")?;
    if count > cursor.remaining() / RECORD_HEADER_BYTES_MIN {
        return Err("its header count does not fit its bytes");
    }
    // The vector grows as headers are read: a header takes 2 bytes on the wire and 64 here.
    let mut headers = Vec::with_capacity(count.min(4));
    for _ in 0..count {
        let len = cursor.varint()?;
        let key = body.slice(cursor.take(len)?);
        headers.push((key, cursor.nullable_bytes()?.map(|value| body.slice(value))));
    }
    Ok(headers)
}

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
