//! Fields: int, long, bool, buffer, string, vector.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Invalid bytes from a peer. Each error ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JuteError {
    /// A frame length that is negative or too long.
    #[error("frame length is refused. length={length}, max={max}")]
    Frame {
        /// The length on the wire.
        length: i32,
        /// The longest length allowed.
        max: usize,
    },
    /// The frame ends inside a field.
    #[error("frame ends inside a field. need={need}, have={have}")]
    Short {
        /// Bytes that the field takes at least.
        need: usize,
        /// Bytes that are left.
        have: usize,
    },
    /// A length or count below -1, which is null.
    #[error("length is negative. length={length}")]
    Negative {
        /// The length on the wire.
        length: i32,
    },
    /// A field is null that must not be.
    #[error("field is null")]
    Null,
    #[error("string is not utf-8. valid_up_to={valid_up_to}")]
    NotUtf8 {
        /// The number of valid bytes at its front.
        valid_up_to: usize,
    },
    /// An operation that a multi cannot have.
    #[error("operation is not possible in a multi. opcode={opcode}")]
    Operation {
        /// The opcode on the wire.
        opcode: i32,
    },
    /// Bytes are left after the record.
    #[error("bytes follow the record. left={left}")]
    Trailing {
        /// The number of bytes after the record.
        left: usize,
    },
}

/// Null, for buffers, strings and vectors.
const NULL: i32 = -1;

/// Reads fields from the front of a frame. Buffers share its memory.
#[derive(Clone, Debug)]
pub struct JuteReader {
    rest: Bytes,
}

impl JuteReader {
    /// Starts at the front of `frame`.
    pub fn new(frame: Bytes) -> JuteReader {
        JuteReader { rest: frame }
    }

    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Checks that nothing is left.
    pub fn end(self) -> Result<(), JuteError> {
        match self.left() {
            0 => Ok(()),
            left => Err(JuteError::Trailing { left }),
        }
    }

    /// 4 bytes.
    pub fn int(&mut self) -> Result<i32, JuteError> {
        self.rest.try_get_i32().map_err(short)
    }

    /// 8 bytes.
    pub fn long(&mut self) -> Result<i64, JuteError> {
        self.rest.try_get_i64().map_err(short)
    }

    /// 1 byte.
    pub fn byte(&mut self) -> Result<u8, JuteError> {
        self.rest.try_get_u8().map_err(short)
    }

    /// A byte. As in Java, every value except 0 is true.
    pub fn bool(&mut self) -> Result<bool, JuteError> {
        Ok(self.byte()? != 0)
    }

    /// Bytes, or null, which differs from empty.
    pub fn buffer(&mut self) -> Result<Option<Bytes>, JuteError> {
        let Some(len) = self.length()? else { return Ok(None) };
        if len > self.left() {
            return Err(JuteError::Short { need: len, have: self.left() });
        }
        Ok(Some(self.rest.split_to(len)))
    }

    /// Text, or null.
    pub fn string(&mut self) -> Result<Option<String>, JuteError> {
        let Some(bytes) = self.buffer()? else { return Ok(None) };
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(error) => Err(JuteError::NotUtf8 { valid_up_to: error.valid_up_to() }),
        }
    }

    /// Text that must not be null.
    pub fn required_string(&mut self) -> Result<String, JuteError> {
        self.string()?.ok_or(JuteError::Null)
    }

    /// Items that `read` reads one by one, or null. An item takes `item_bytes_min` at least, so
    /// that a count that does not fit the frame is refused before the first item.
    pub fn vector<T>(
        &mut self,
        item_bytes_min: usize,
        mut read: impl FnMut(&mut JuteReader) -> Result<T, JuteError>,
    ) -> Result<Option<Vec<T>>, JuteError> {
        let Some(count) = self.length()? else { return Ok(None) };
        assert!(item_bytes_min > 0, "an item of no bytes would make any count fit");
        let need = count.saturating_mul(item_bytes_min);
        if need > self.left() {
            return Err(JuteError::Short { need, have: self.left() });
        }
        // The vector grows as items are read: an item can take much more memory than bytes on the
        // wire.
        (0..count).map(|_| read(self)).collect::<Result<_, _>>().map(Some)
    }

    fn length(&mut self) -> Result<Option<usize>, JuteError> {
        match self.int()? {
            NULL => Ok(None),
            length => usize::try_from(length).map(Some).map_err(|_| JuteError::Negative { length }),
        }
    }
}

fn short(error: bytes::TryGetError) -> JuteError {
    JuteError::Short { need: error.requested, have: error.available }
}

/// Appends fields to a frame. Lengths must fit an `i32`.
pub trait JuteWriter {
    /// 4 bytes.
    fn int(&mut self, value: i32);
    /// 8 bytes.
    fn long(&mut self, value: i64);
    /// A byte.
    fn bool(&mut self, value: bool);
    /// Bytes, or null.
    fn buffer(&mut self, value: Option<&[u8]>);
    /// Text, or null.
    fn string(&mut self, value: Option<&str>);
    /// Items that `write` appends one by one, or null.
    fn vector<T>(&mut self, items: Option<&[T]>, write: impl FnMut(&mut Self, &T));
}

impl JuteWriter for BytesMut {
    fn int(&mut self, value: i32) {
        self.put_i32(value);
    }

    fn long(&mut self, value: i64) {
        self.put_i64(value);
    }

    fn bool(&mut self, value: bool) {
        self.put_u8(value.into());
    }

    fn buffer(&mut self, value: Option<&[u8]>) {
        self.int(value.map_or(NULL, |value| wire_len(value.len())));
        self.put_slice(value.unwrap_or_default());
    }

    fn string(&mut self, value: Option<&str>) {
        self.buffer(value.map(str::as_bytes));
    }

    fn vector<T>(&mut self, items: Option<&[T]>, mut write: impl FnMut(&mut Self, &T)) {
        self.int(items.map_or(NULL, |items| wire_len(items.len())));
        for item in items.unwrap_or_default() {
            write(self, item);
        }
    }
}

fn wire_len(len: usize) -> i32 {
    i32::try_from(len).expect("a length below 2^31")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn fields_read_back_as_they_were_written(
            int: i32,
            long: i64,
            bool: bool,
            buffer in option::of(vec(any::<u8>(), 0..50)),
            string in option::of(".{0,20}"),
            strings in option::of(vec(option::of("[a-z/]{0,9}"), 0..9)),
        ) {
            let mut out = BytesMut::new();
            out.int(int);
            out.long(long);
            out.bool(bool);
            out.buffer(buffer.as_deref());
            out.string(string.as_deref());
            out.vector(strings.as_deref(), |out, item| out.string(item.as_deref()));
            let mut fields = JuteReader::new(out.freeze());
            prop_assert_eq!(fields.int(), Ok(int));
            prop_assert_eq!(fields.long(), Ok(long));
            prop_assert_eq!(fields.bool(), Ok(bool));
            prop_assert_eq!(fields.buffer(), Ok(buffer.map(Bytes::from)));
            prop_assert_eq!(fields.string(), Ok(string));
            prop_assert_eq!(fields.vector(4, JuteReader::string), Ok(strings));
            prop_assert_eq!(fields.end(), Ok(()));
        }

        /// Reads fields in an order that the bytes choose themselves.
        #[test]
        fn arbitrary_bytes_never_panic_and_yield_no_more_than_they_are(
            bytes in vec(prop_oneof![Just(0), Just(0xff), 0..9u8, any::<u8>()], 0..200),
            order in vec(0..6u8, 1..20),
        ) {
            let size = bytes.len();
            let mut fields = JuteReader::new(bytes.into());
            let mut yielded = 0;
            for field in order {
                yielded += match field {
                    0 => fields.int().map(|_| 4),
                    1 => fields.long().map(|_| 8),
                    2 => fields.bool().map(|_| 1),
                    3 => fields.buffer().map(|buffer| buffer.map_or(0, |buffer| buffer.len())),
                    4 => fields.string().map(|text| text.map_or(0, |text| text.len())),
                    _ => fields
                        .vector(4, JuteReader::int)
                        .map(|ints| 4 * ints.map_or(0, |ints| ints.len())),
                }.unwrap_or(0);
            }
            prop_assert!(yielded <= size);
        }
    }

    #[test]
    fn lengths_that_the_frame_cannot_hold_are_refused() {
        let read = |length: i32| {
            let mut out = BytesMut::new();
            out.int(length);
            out.int(7);
            JuteReader::new(out.freeze())
        };
        let huge = i32::MAX as usize;
        assert_eq!(read(i32::MAX).buffer(), Err(JuteError::Short { need: huge, have: 4 }));
        let need = huge.saturating_mul(4);
        let refused = Err(JuteError::Short { need, have: 4 });
        assert_eq!(read(i32::MAX).vector(4, JuteReader::int), refused);
        assert_eq!(read(1).vector(4, JuteReader::int), Ok(Some(vec![7])));
        assert_eq!(read(-2).buffer(), Err(JuteError::Negative { length: -2 }));
        assert_eq!(read(-2).vector(4, JuteReader::int), Err(JuteError::Negative { length: -2 }));
        assert_eq!(read(-1).string(), Ok(None));
        assert_eq!(read(0).string(), Ok(Some(String::new())));
    }

    #[test]
    fn a_string_that_is_not_utf8_is_refused() {
        let mut out = BytesMut::new();
        out.buffer(Some(b"a\xff"));
        assert_eq!(
            JuteReader::new(out.freeze()).string(),
            Err(JuteError::NotUtf8 { valid_up_to: 1 })
        );
    }
}
