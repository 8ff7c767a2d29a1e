//! The 61 bytes before the records.
//!
//! A broker rewrites the first 16 of them (offset, length, leader epoch). The CRC excludes them on
//! purpose: appending a batch to a log needs no second pass over it.

use bytes::{Buf, BufMut};

use crate::{BatchError, CompressionType};

/// Bytes of a batch before its first record.
pub const HEADER_BYTES: usize = 61;

/// The first byte of the CRC's range.
pub(crate) const CRC_FROM: usize = 21;
/// The length field does not count itself and the offset before it.
pub(crate) const LOG_OVERHEAD: usize = 12;

const MAGIC_AT: usize = 16;
const CRC_AT: std::ops::Range<usize> = 17..21;

pub(crate) const MAGIC: i8 = 2;
pub(crate) const LOG_APPEND_TIME: i16 = 1 << 3;
pub(crate) const TRANSACTIONAL: i16 = 1 << 4;
pub(crate) const CONTROL: i16 = 1 << 5;
pub(crate) const DELETE_HORIZON: i16 = 1 << 6;

/// The header of a batch, field by field as on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset of the first record.
    pub base_offset: i64,
    /// The length of the batch after this field: all but the first 12 bytes.
    pub length: i32,
    /// The leader's epoch when it appended the batch.
    pub leader_epoch: i32,
    /// The format: 2.
    pub magic: i8,
    /// CRC32C of everything after this field.
    pub crc: u32,
    /// Codec, timestamp type, transactional, control, delete horizon.
    pub attributes: i16,
    /// The offset of the last record, minus the base offset. Compaction leaves it unchanged, even
    /// if it drops that record.
    pub last_offset_delta: i32,
    /// The base of the records' timestamp deltas.
    pub base_timestamp: i64,
    /// The newest timestamp. In a log-append-time batch, that of every record.
    pub max_timestamp: i64,
    /// The producer's id, or -1.
    pub producer_id: i64,
    /// The producer's epoch, or -1.
    pub producer_epoch: i16,
    /// The producer's sequence number for the first record, or -1.
    pub base_sequence: i32,
    /// The number of records that follow.
    pub record_count: i32,
}

impl BatchHeader {
    /// Reads the header at the front of `bytes`. It trusts nothing about the bytes after it.
    pub fn parse(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        // The oldest formats have their magic in the same place, and one of their messages can be
        // shorter than our header. The client should get "too old" then, not "too short".
        match bytes.get(MAGIC_AT).map(|magic| *magic as i8) {
            Some(MAGIC) | None => {}
            Some(magic @ (0 | 1)) => return Err(BatchError::OldMagic { magic }),
            Some(magic) => return Err(BatchError::BadMagic { magic }),
        }
        let Some(mut fields) = bytes.get(..HEADER_BYTES) else {
            return Err(BatchError::TooShort { have: bytes.len(), need: HEADER_BYTES });
        };
        let header = BatchHeader {
            base_offset: fields.get_i64(),
            length: fields.get_i32(),
            leader_epoch: fields.get_i32(),
            magic: fields.get_i8(),
            crc: fields.get_u32(),
            attributes: fields.get_i16(),
            last_offset_delta: fields.get_i32(),
            base_timestamp: fields.get_i64(),
            max_timestamp: fields.get_i64(),
            producer_id: fields.get_i64(),
            producer_epoch: fields.get_i16(),
            base_sequence: fields.get_i32(),
            record_count: fields.get_i32(),
        };
        if header.total_bytes() < HEADER_BYTES {
            let says = i64::from(header.length) + LOG_OVERHEAD as i64;
            return Err(BatchError::Length { says, have: bytes.len() });
        }
        Ok(header)
    }

    /// The length of the whole batch, by its length field; 0 for a negative one.
    pub fn total_bytes(&self) -> usize {
        usize::try_from(self.length).map_or(0, |length| length + LOG_OVERHEAD)
    }

    /// The compression of the records.
    pub fn compression(&self) -> Result<CompressionType, BatchError> {
        CompressionType::from_attributes(self.attributes)
    }

    /// Returns true if the batch belongs to a transaction.
    pub fn is_transactional(&self) -> bool {
        self.attributes & TRANSACTIONAL != 0
    }

    /// Returns true if the records are the broker's own markers, which consumers do not see.
    pub fn is_control(&self) -> bool {
        self.attributes & CONTROL != 0
    }

    /// Returns true if the records' time is the time of the append: `max_timestamp`, for each of
    /// them.
    pub fn is_log_append_time(&self) -> bool {
        self.attributes & LOG_APPEND_TIME != 0
    }

    /// The time from which compaction may drop the tombstones of the batch, in ms (KIP-534). It is
    /// stored in the base timestamp's field, and the records' timestamps are relative to it as to
    /// any other.
    pub fn delete_horizon_ms(&self) -> Option<i64> {
        (self.attributes & DELETE_HORIZON != 0).then_some(self.base_timestamp)
    }

    /// Offset of the last record.
    pub fn last_offset(&self) -> i64 {
        self.base_offset.saturating_add(i64::from(self.last_offset_delta))
    }

    /// The header as on the wire, with the CRC that it has.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut fields = bytes.as_mut_slice();
        fields.put_i64(self.base_offset);
        fields.put_i32(self.length);
        fields.put_i32(self.leader_epoch);
        fields.put_i8(self.magic);
        fields.put_u32(self.crc);
        fields.put_i16(self.attributes);
        fields.put_i32(self.last_offset_delta);
        fields.put_i64(self.base_timestamp);
        fields.put_i64(self.max_timestamp);
        fields.put_i64(self.producer_id);
        fields.put_i16(self.producer_epoch);
        fields.put_i32(self.base_sequence);
        fields.put_i32(self.record_count);
        bytes
    }
}

/// Recomputes the CRC after a covered field of the header was changed. `rest` is the batch after
/// the header.
pub fn set_crc(header: &mut [u8; HEADER_BYTES], rest: &[u8]) {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header[CRC_FROM..]), rest);
    header[CRC_AT].copy_from_slice(&crc.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> impl Strategy<Value = BatchHeader> {
        let first = (any::<i64>(), 49..=i32::MAX, any::<i32>(), any::<u32>(), any::<i16>());
        let second = (any::<i32>(), any::<i64>(), any::<i64>());
        let third = (any::<i64>(), any::<i16>(), any::<i32>(), any::<i32>());
        (first, second, third).prop_map(|(first, second, third)| BatchHeader {
            base_offset: first.0,
            length: first.1,
            leader_epoch: first.2,
            magic: MAGIC,
            crc: first.3,
            attributes: first.4,
            last_offset_delta: second.0,
            base_timestamp: second.1,
            max_timestamp: second.2,
            producer_id: third.0,
            producer_epoch: third.1,
            base_sequence: third.2,
            record_count: third.3,
        })
    }

    proptest! {
        #[test]
        fn a_header_reads_back_as_it_was_written(header in header()) {
            prop_assert_eq!(BatchHeader::parse(&header.to_bytes()), Ok(header));
        }
    }

    #[test]
    fn an_old_message_is_named_even_when_it_is_shorter_than_our_header() {
        let mut message = [0; 30];
        for magic in [0, 1] {
            message[MAGIC_AT] = magic;
            let magic = magic as i8;
            assert_eq!(BatchHeader::parse(&message), Err(BatchError::OldMagic { magic }));
        }
        message[MAGIC_AT] = 3;
        assert_eq!(BatchHeader::parse(&message), Err(BatchError::BadMagic { magic: 3 }));
        message[MAGIC_AT] = 2;
        assert_eq!(
            BatchHeader::parse(&message),
            Err(BatchError::TooShort { have: 30, need: HEADER_BYTES })
        );
    }

    #[test]
    fn a_length_that_leaves_no_room_for_the_header_is_refused() {
        for length in [i32::MIN, -1, 0, 48] {
            let mut bytes = [0; HEADER_BYTES];
            bytes[8..12].copy_from_slice(&length.to_be_bytes());
            bytes[MAGIC_AT] = 2;
            let says = i64::from(length) + 12;
            assert_eq!(
                BatchHeader::parse(&bytes),
                Err(BatchError::Length { says, have: HEADER_BYTES })
            );
        }
    }
}
