//! The fields of each record, in place: nothing is copied, and no list is built.

use std::ops::{ControlFlow, Range};

use bytes::Bytes;

use crate::cursor::{CursorResult, RecordCursor};
use crate::records::RecordPrefix;
use crate::{BatchError, DecompressionLimit, records};

/// One record, in its batch's memory.
#[derive(Clone, Debug)]
pub struct RecordRef<'a> {
    /// Its offset in the log, if the batch's base offset is.
    pub offset: i64,
    /// Its time in ms: its own, or the broker's in a log-append-time batch.
    pub timestamp: i64,
    /// Null and empty differ.
    pub key: Option<&'a [u8]>,
    /// Null and empty differ.
    pub value: Option<&'a [u8]>,
    /// In the order written. A name can occur more than once.
    pub headers: RecordHeaders<'a>,
}

/// Iterates over the headers of a record: names and values.
#[derive(Clone, Debug)]
pub struct RecordHeaders<'a> {
    body: &'a [u8],
    cursor: RecordCursor<'a>,
    left: i32,
}

impl<'a> RecordHeaders<'a> {
    fn read(&mut self) -> CursorResult<(&'a [u8], Option<&'a [u8]>)> {
        let length = self.cursor.varint()?;
        let name = self.cursor.take(length)?;
        let value = self.cursor.nullable_bytes()?;
        Ok((&self.body[name], value.map(|value| &self.body[value])))
    }
}

impl<'a> Iterator for RecordHeaders<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1).filter(|left| *left >= 0)?;
        // They were read once already, and are valid.
        self.read().ok()
    }
}

/// Calls `visit` for the records of a batch one by one, until it breaks. A malformed record ends it
/// with an error, after the visits of the records before it.
pub fn for_each_record(
    batch: &Bytes,
    limit: DecompressionLimit,
    mut visit: impl FnMut(RecordRef<'_>) -> ControlFlow<()>,
) -> Result<(), BatchError> {
    let mut records = records(batch, limit)?;
    while let Some(flow) = records.next_with(|body, head| Ok(visit(read_record(body, &head)?))) {
        if flow?.is_break() {
            break;
        }
    }
    Ok(())
}

fn read_record<'a>(body: &'a Bytes, head: &RecordPrefix) -> CursorResult<RecordRef<'a>> {
    let whole = &body[..head.rest.end];
    let mut cursor = RecordCursor::new(whole, head.rest.start);
    let share = |range: Range<usize>| &whole[range];
    let (key, value) = (cursor.nullable_bytes()?.map(share), cursor.nullable_bytes()?.map(share));
    let left = cursor.varint()?;
    if left < 0 {
        return Err("its header count is negative");
    }
    let headers = RecordHeaders { body: whole, cursor, left };
    let mut rest = headers.clone();
    for _ in 0..left {
        rest.read()?;
    }
    if rest.cursor.remaining() > 0 {
        return Err("bytes follow its headers");
    }
    Ok(RecordRef { offset: head.offset, timestamp: head.timestamp, key, value, headers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, CompressionType};

    const LIMIT: DecompressionLimit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };

    fn batch(codec: CompressionType) -> Bytes {
        let mut builder = BatchBuilder::new(codec);
        builder.record(5, None, Some(b""), &[]);
        builder.record(4, Some(b"k"), None, &[("h", Some(b"1")), ("h", None), ("i", Some(b""))]);
        builder.build()
    }

    #[test]
    fn what_is_shown_is_what_records_reads() {
        for codec in CompressionType::ALL {
            let batch = batch(codec);
            let mut shown = Vec::new();
            let result = for_each_record(&batch, LIMIT, |record| {
                let share = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
                shown.push(crate::KafkaRecord {
                    offset: record.offset,
                    timestamp: record.timestamp,
                    key: record.key.map(share),
                    value: record.value.map(share),
                    headers: record.headers.map(|(k, v)| (share(k), v.map(share))).collect(),
                });
                ControlFlow::Continue(())
            });
            assert_eq!(result, Ok(()));
            let read: Vec<_> = records(&batch, LIMIT).unwrap().map(Result::unwrap).collect();
            assert_eq!(shown, read, "{codec:?}");
        }
    }

    #[test]
    fn it_ends_where_it_is_broken_off_and_at_what_is_malformed() {
        let mut visited = 0;
        let result = for_each_record(&batch(CompressionType::None), LIMIT, |_| {
            visited += 1;
            ControlFlow::Break(())
        });
        assert_eq!((result, visited), (Ok(()), 1));
        let mut bytes = batch(CompressionType::None).to_vec();
        let at = bytes.len() - 1;
        bytes[at] = 0x7e;
        let result = for_each_record(&bytes.into(), LIMIT, |_| ControlFlow::Continue(()));
        assert!(matches!(result, Err(BatchError::BadRecord { index: 1, .. })), "{result:?}");
    }
}
