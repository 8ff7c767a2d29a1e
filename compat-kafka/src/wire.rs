//! Parts of messages that are encoded and decoded by hand, as flexible versions have them
//! (KIP-482).

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::ResponseHeader;
use kafka_protocol::protocol::Encodable;

use crate::request::{BadRequest, RequestContext};
use crate::response::KafkaResponse;

/// The version of the header of a flexible response.
const FLEXIBLE_HEADER: i16 = 1;

/// Writes a flexible response of which the body is encoded.
pub(crate) fn write_flexible(
    context: &RequestContext,
    body: &[Bytes],
) -> Result<KafkaResponse, BadRequest> {
    let (mut answer, mut result) = (KafkaResponse::new(), Ok(()));
    answer.write(|out| {
        let id = ResponseHeader::default().with_correlation_id(context.correlation_id);
        result = id.encode(out, FLEXIBLE_HEADER);
        body.iter().for_each(|part| out.put_slice(part));
    });
    result.map(|()| answer).map_err(|error| BadRequest {
        api: context.api_key,
        version: context.version,
        reason: format!("{error:#}"),
    })
}

pub(crate) fn put_varint(out: &mut BytesMut, mut value: u32) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// The length of an array, before its elements.
pub(crate) fn put_count(out: &mut BytesMut, count: usize) {
    put_varint(out, count as u32 + 1);
}

/// A text that may be null.
pub(crate) fn put_text(out: &mut BytesMut, text: Option<&str>) {
    match text {
        None => out.put_u8(0),
        Some(text) => {
            put_count(out, text.len());
            out.put_slice(text.as_bytes());
        }
    }
}

/// No tagged fields: every struct ends so.
pub(crate) fn put_no_tags(out: &mut BytesMut) {
    out.put_u8(0);
}

/// Each element of an array.
pub(crate) fn put_array<T>(
    out: &mut BytesMut,
    elements: impl ExactSizeIterator<Item = T>,
    mut put: impl FnMut(&mut BytesMut, T),
) {
    put_count(out, elements.len());
    elements.for_each(|element| put(out, element));
}

/// Reads a flexible message field by field. Every read gives `None` if the message ends early, or
/// has a length that cannot be, or takes too much memory. Memory is taken for what is there, not
/// for what is announced.
pub(crate) struct WireReader {
    rest: Bytes,
    /// The memory of the elements of arrays so far.
    structure_bytes: usize,
}

/// The longest text, as in Kafka.
const STRING_BYTES_MAX: usize = i16::MAX as usize;
/// The most memory of the elements of all arrays of a message: an empty text has one byte of it,
/// and takes 24.
const STRUCTURE_BYTES_MAX: usize = 16 << 20;

impl WireReader {
    pub(crate) fn new(body: Bytes) -> WireReader {
        WireReader { rest: body, structure_bytes: 0 }
    }

    pub(crate) fn bool(&mut self) -> Option<bool> {
        Some(self.rest.try_get_u8().ok()? != 0)
    }

    /// Reads the mark of a struct that may be null; true if the struct is there.
    pub(crate) fn is_present(&mut self) -> Option<bool> {
        Some(self.rest.try_get_i8().ok()? >= 0)
    }

    #[cfg(test)]
    pub(crate) fn i8(&mut self) -> Option<i8> {
        self.rest.try_get_i8().ok()
    }

    pub(crate) fn i16(&mut self) -> Option<i16> {
        self.rest.try_get_i16().ok()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.rest.try_get_u16().ok()
    }

    pub(crate) fn i32(&mut self) -> Option<i32> {
        self.rest.try_get_i32().ok()
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.rest.try_get_i64().ok()
    }

    fn varint(&mut self) -> Option<u32> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = self.rest.try_get_u8().ok()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value).ok();
            }
        }
        None
    }

    /// A length, before what is so long; `None` within if there is nothing.
    fn length(&mut self) -> Option<Option<usize>> {
        let length = self.varint()?.checked_sub(1).map(|length| length as usize);
        length.is_none_or(|length| length <= self.rest.len()).then_some(length)
    }

    pub(crate) fn nullable_text(&mut self) -> Option<Option<String>> {
        let Some(length) = self.length()? else { return Some(None) };
        if length > STRING_BYTES_MAX {
            return None;
        }
        Some(Some(String::from_utf8(self.rest.split_to(length).to_vec()).ok()?))
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        self.nullable_text()?
    }

    pub(crate) fn nullable_array<T>(
        &mut self,
        mut read: impl FnMut(&mut WireReader) -> Option<T>,
    ) -> Option<Option<Vec<T>>> {
        let Some(count) = self.length()? else { return Some(None) };
        let mut elements = Vec::new();
        for _ in 0..count {
            self.structure_bytes += size_of::<T>();
            if self.structure_bytes > STRUCTURE_BYTES_MAX {
                return None;
            }
            elements.push(read(self)?);
        }
        Some(Some(elements))
    }

    pub(crate) fn array<T>(
        &mut self,
        read: impl FnMut(&mut WireReader) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.nullable_array(read)?
    }

    /// Skips the tagged fields at the end of a struct.
    pub(crate) fn end(&mut self) -> Option<()> {
        for _ in 0..self.varint()? {
            let (_tag, size) = (self.varint()?, self.varint()? as usize);
            if size > self.rest.len() {
                return None;
            }
            self.rest.advance(size);
        }
        Some(())
    }
}

/// The error of a request that [`WireReader`] cannot read.
pub(crate) fn unreadable(context: &RequestContext) -> BadRequest {
    let reason = "the request ends early, or has a length that cannot be".to_owned();
    BadRequest { api: context.api_key, version: context.version, reason }
}
