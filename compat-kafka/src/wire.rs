//! Parts of messages that are encoded by hand, as flexible versions have them (KIP-482).

use bytes::{BufMut, BytesMut};

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
