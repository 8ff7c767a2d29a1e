//! Reading a part of a payload, for callers with their own checksums in it.

use std::ops::Range;

use bytes::Bytes;

use crate::error::StorageError;
use crate::payload::{EntryPayload, PayloadLocation};

impl EntryPayload {
    /// The bytes `range` of the payload, without reading the rest, and so without verifying the
    /// payload's checksum: [`EntryPayload::read`] does that. A contiguous range in memory is not
    /// copied.
    ///
    /// # Errors
    /// The disk fails, or the payload is shorter.
    pub fn read_range(&self, range: Range<usize>) -> Result<Bytes, StorageError> {
        if range.start > range.end || range.end > self.entry.length as usize {
            return Err(self.end_error());
        }
        match &self.location {
            PayloadLocation::Memory(payload) => {
                let head = payload.header.as_slice();
                if range.start >= head.len() {
                    return Ok(payload
                        .rest
                        .slice(range.start - head.len()..range.end - head.len()));
                }
                if range.end <= head.len() {
                    return Ok(Bytes::copy_from_slice(&head[range]));
                }
                Ok(payload.to_bytes().slice(range))
            }
            PayloadLocation::File { file, at } => {
                let mut bytes = vec![0; range.len()];
                file.read_exact(&mut bytes, at + range.start as u64)?;
                Ok(bytes.into())
            }
        }
    }

    /// Says that more was asked of the payload than there is: the reference to it is wrong.
    fn end_error(&self) -> StorageError {
        let reason = "a payload is shorter than what refers to it says";
        match &self.location {
            PayloadLocation::Memory(_) => {
                StorageError::corrupt("the newest journal segment", None, reason)
            }
            PayloadLocation::File { file, at } => StorageError::corrupt(file.name(), *at, reason),
        }
    }
}
