//! Version 2 of ShareFetch and ShareAcknowledge (KIP-1206, KIP-1222), and version 1 of
//! DescribeShareGroupOffsets (KIP-1226), which the codec does not have.
//!
//! A request of version 2 has a few fields more than one of version 1, at a place that is easy to
//! find: they are taken out, and the rest is decoded. Responses are completed the same way.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{
    ShareAcknowledgeRequest, ShareAcknowledgeResponse, ShareFetchRequest,
};
use kafka_protocol::protocol::Encodable;

use crate::request::{BadRequest, RequestBody, RequestContext, decode};
use crate::response::KafkaResponse;
use crate::wire::{unreadable, write_flexible};

/// From here on members may renew, and say how exact a limit on records is.
pub(crate) const RENEWS: i16 = 2;
/// The version that the codec has.
const KNOWN: i16 = 1;

/// The fields of ShareFetch between its texts and those of version 2: six numbers of 32 bits.
const FETCH_NUMBERS_BYTES: usize = 24;
/// The fields of ShareAcknowledge between its texts and that of version 2: the session's epoch.
const ACKNOWLEDGE_NUMBERS_BYTES: usize = 4;

/// The additions of version 2 of ShareFetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShareFetchMode {
    /// True if the limit on records cuts batches of the log.
    pub(crate) is_exact: bool,
    /// True if any acknowledgement renews.
    pub(crate) is_renewing: bool,
}

/// Decodes a ShareFetch of any version.
pub(crate) fn decode_share_fetch(
    context: &RequestContext,
    body: RequestBody,
) -> Result<(ShareFetchRequest, ShareFetchMode), BadRequest> {
    if context.version < RENEWS {
        return Ok((decode(context, body)?, ShareFetchMode::default()));
    }
    let (rest, added) =
        take_out(body.into_bytes(), FETCH_NUMBERS_BYTES, 2).ok_or_else(|| unreadable(context))?;
    let mode = ShareFetchMode { is_exact: added[0] == 1, is_renewing: added[1] != 0 };
    Ok((decode(&RequestContext { version: KNOWN, ..context.clone() }, rest)?, mode))
}

/// Decodes a ShareAcknowledge of any version, and whether any acknowledgement in it renews.
pub(crate) fn decode_share_acknowledge(
    context: &RequestContext,
    body: RequestBody,
) -> Result<(ShareAcknowledgeRequest, bool), BadRequest> {
    if context.version < RENEWS {
        return Ok((decode(context, body)?, false));
    }
    let (rest, added) = take_out(body.into_bytes(), ACKNOWLEDGE_NUMBERS_BYTES, 1)
        .ok_or_else(|| unreadable(context))?;
    Ok((decode(&RequestContext { version: KNOWN, ..context.clone() }, rest)?, added[0] != 0))
}

/// Encodes a response of ShareAcknowledge of any version.
pub(crate) fn encode_share_acknowledge(
    context: &RequestContext,
    response: &ShareAcknowledgeResponse,
    lock_ms: i32,
) -> Result<KafkaResponse, BadRequest> {
    let mut body = BytesMut::new();
    let encoded = response.encode(&mut body, KNOWN);
    let bad =
        |reason: String| BadRequest { api: context.api_key, version: context.version, reason };
    encoded.map_err(|error| bad(format!("the answer cannot be encoded: {error:#}")))?;
    let mut body = body.freeze();
    let mut head = BytesMut::new();
    if context.version >= RENEWS {
        // The throttle time, the error, and its message.
        head.put(body.split_to(6));
        copy_text(&mut body, &mut head).ok_or_else(|| bad("the answer is too short".to_owned()))?;
        head.put_i32(lock_ms);
    }
    write_flexible(context, &[head.freeze(), body])
}

/// Takes `added` bytes out of a body that begins with two texts and `numbers` bytes.
fn take_out(mut body: Bytes, numbers: usize, added: usize) -> Option<(Bytes, Bytes)> {
    let mut rest = BytesMut::with_capacity(body.len());
    copy_text(&mut body, &mut rest)?;
    copy_text(&mut body, &mut rest)?;
    if body.len() < numbers + added {
        return None;
    }
    rest.put(body.split_to(numbers));
    let added = body.split_to(added);
    rest.put(body);
    Some((rest.freeze(), added))
}

/// Copies a text, which may be null; `None` if there is none.
fn copy_text(from: &mut Bytes, to: &mut BytesMut) -> Option<()> {
    let mut length = 0u64;
    for shift in (0..35).step_by(7) {
        let byte = from.try_get_u8().ok()?;
        to.put_u8(byte);
        length |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let length = usize::try_from(length.saturating_sub(1)).ok()?;
            if from.len() < length {
                return None;
            }
            to.put(from.split_to(length));
            return Some(());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::GroupId;
    use kafka_protocol::protocol::StrBytes;

    use super::*;

    fn text(text: &str) -> Option<StrBytes> {
        Some(StrBytes::from_string(text.to_owned()))
    }

    fn encoded(message: &impl Encodable) -> Bytes {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes, KNOWN).unwrap();
        bytes.freeze()
    }

    /// The bytes of version 2 by hand: two bytes more, after the numbers.
    #[test]
    fn the_fields_of_version_2_are_taken_out() {
        let fetch = ShareFetchRequest::default()
            .with_group_id(Some(GroupId(StrBytes::from_string("g".repeat(200)))))
            .with_member_id(text("m"))
            .with_share_session_epoch(3)
            .with_max_wait_ms(5)
            .with_min_bytes(1)
            .with_max_bytes(7)
            .with_max_records(8)
            .with_batch_size(9);
        let known = encoded(&fetch);
        // A length of two bytes and 200 more, one of one byte and 1 more, and six numbers.
        let at = 202 + 2 + FETCH_NUMBERS_BYTES;
        let newer = [&known[..at], &[1, 0], &known[at..]].concat();
        let (rest, added) = take_out(newer.clone().into(), FETCH_NUMBERS_BYTES, 2).unwrap();
        assert_eq!((rest, &added[..]), (known, &[1, 0][..]));
        for length in 0..at + 2 {
            let cut = Bytes::copy_from_slice(&newer[..length]);
            assert_eq!(take_out(cut, FETCH_NUMBERS_BYTES, 2), None);
        }
    }

    #[test]
    fn texts_may_be_null_and_no_longer_than_what_is_there() {
        let copy = |bytes: &'static [u8]| {
            let (mut from, mut to) = (Bytes::from_static(bytes), BytesMut::new());
            copy_text(&mut from, &mut to).map(|()| (from, to.freeze()))
        };
        assert_eq!(copy(&[0, 9]), Some((Bytes::from_static(&[9]), Bytes::from_static(&[0]))));
        assert_eq!(copy(&[3, b'a']), None);
        assert_eq!(copy(&[0xff; 6]), None);
    }
}
