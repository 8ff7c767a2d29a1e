//! Reads the body of a batch. Every step is checked against the bytes that are left.

use std::ops::Range;

/// A position in a byte slice. It returns ranges, so that a caller that owns the bytes can share
/// them instead of copying.
#[derive(Clone, Debug)]
pub(crate) struct RecordCursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A result whose error describes the fault. The caller knows the record.
pub(crate) type CursorResult<T> = Result<T, &'static str>;

const ENDS_EARLY: &str = "it ends early";
const VARINT_LONG: &str = "a varint is too long";
const BEYOND: &str = "a length reaches beyond the end";

impl<'a> RecordCursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: usize) -> RecordCursor<'a> {
        RecordCursor { bytes, at: at.min(bytes.len()) }
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub(crate) fn byte(&mut self) -> CursorResult<u8> {
        let byte = *self.bytes.get(self.at).ok_or(ENDS_EARLY)?;
        self.at += 1;
        Ok(byte)
    }

    /// A zigzag varint of at most 5 bytes.
    pub(crate) fn varint(&mut self) -> CursorResult<i32> {
        let raw = self.varint_of(5)? as u32;
        Ok((raw >> 1) as i32 ^ -((raw & 1) as i32))
    }

    /// A zigzag varint of at most 10 bytes.
    pub(crate) fn varlong(&mut self) -> CursorResult<i64> {
        let raw = self.varint_of(10)?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    /// As the Java client reads it: bits of the last byte that do not fit are dropped.
    #[inline]
    fn varint_of(&mut self, bytes_max: usize) -> CursorResult<u64> {
        let mut value = 0;
        for index in 0..bytes_max {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(VARINT_LONG)
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: i32) -> CursorResult<Range<usize>> {
        let len = usize::try_from(len).map_err(|_| "a length is negative")?;
        if len > self.remaining() {
            return Err(BEYOND);
        }
        let start = self.at;
        self.at += len;
        Ok(start..self.at)
    }

    /// Bytes after their length; a negative length is null, as in the Java client.
    pub(crate) fn nullable_bytes(&mut self) -> CursorResult<Option<Range<usize>>> {
        match self.varint()? {
            len if len < 0 => Ok(None),
            len => self.take(len).map(Some),
        }
    }
}

/// Appends a zigzag varint, of 32 or 64 bits: the bytes are the same.
pub(crate) fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut raw = ((value << 1) ^ (value >> 63)) as u64;
    while raw >= 0x80 {
        out.push(raw as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_read_back_as_they_were_written(long: i64, int: i32) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, long);
            put_varint(&mut bytes, int.into());
            let mut cursor = RecordCursor::new(&bytes, 0);
            prop_assert_eq!(cursor.varlong(), Ok(long));
            prop_assert_eq!(cursor.varint(), Ok(int));
            prop_assert_eq!(cursor.remaining(), 0);
        }
    }

    #[test]
    fn varints_that_do_not_end_are_refused() {
        assert_eq!(RecordCursor::new(&[0xff; 5], 0).varint(), Err(VARINT_LONG));
        assert_eq!(RecordCursor::new(&[0xff; 10], 0).varlong(), Err(VARINT_LONG));
        assert_eq!(RecordCursor::new(&[0xff; 4], 0).varint(), Err(ENDS_EARLY));
    }
}
