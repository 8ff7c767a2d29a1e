//! The requests by which a client sets up a link and uses it. They travel on the client's ordinary
//! connection, as bodies of one API of Kafka's protocol, so whatever guards that connection guards
//! the memory too.
//!
//! A [`LinkRequest::Call`] is any other request of the connection. Its body may be in the client's
//! memory, from where the server reads it, and its response may go there. The bytes are the same as
//! those of a request by itself.
//!
//! Each message carries a stamp of the hybrid logical clock (64 bits, 0 for none): a client's is
//! the highest that it received, and a server's is at or above that of all that the answer tells.
//! So what a client does after it read something has a later stamp than what it read, on any
//! server.
//!
//! Numbers are big-endian. A string has its length, of two bytes, in front of it.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::address::{LINK_ADDRESS_BYTES, LinkAddress};
use crate::link::RemoteRegion;

/// The number of the API among Kafka's. It is far above Kafka's own.
pub const LINK_API_KEY: i16 = 17991;
/// Responses up to this length come on the connection even if a region is named for them.
pub const INLINE_BYTES_MAX: usize = 4 << 10;
/// The most regions that a connection may expose at once.
pub const REGIONS_MAX: usize = 64;

/// A number that stands for a region, on one connection and for a while.
pub type RegionToken = u64;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkRequest {
    /// Opens the connection's link, in place of the one before it.
    Open {
        /// The client's end.
        client: LinkAddress,
    },
    /// Names a region of the client's memory.
    Expose {
        /// The region to expose.
        region: RemoteRegion,
    },
    /// The server is not to use a region any more. It does not by the time of the answer.
    Withdraw {
        /// The token of the region.
        token: RegionToken,
    },
    /// Calls an API.
    Call(LinkCall),
}

/// A call of one of Kafka's APIs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkCall {
    pub api_key: i16,
    pub version: i16,
    /// The body of the request, without a header.
    pub request: CallBody,
    /// The place for the response, with its header.
    pub response: ResponsePlace,
}

/// The place of the body of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallBody {
    /// Here.
    Inline(Bytes),
    /// In a region.
    Region { token: RegionToken, at: u64, length: u32 },
}

/// The place for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponsePlace {
    /// Into the answer.
    Inline,
    /// Into a region, unless it is short. Only a Fetch may ask for it: a response that does not
    /// arrive is asked for again.
    Region {
        token: RegionToken,
        at: u64,
        /// The longest response, in bytes.
        room: u64,
    },
}

/// The answer to a [`LinkRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkAnswer {
    Opened {
        /// The server's end.
        server: LinkAddress,
    },
    Exposed {
        token: RegionToken,
        /// After so many milliseconds without use, the token is forgotten.
        idle_ms: u32,
    },
    Withdrawn,
    /// The response to a call follows.
    Inline(Bytes),
    /// The response to a call is where it was to go. This is its length.
    Placed(u64),
    Refused(LinkRefusal),
}

/// The reason why a request was not served. Nothing of it took effect, unless the text says
/// otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct LinkRefusal {
    pub code: RefusalCode,
    /// For people.
    pub text: String,
}

/// The reaction of a client to a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCode {
    /// The server has no device that can be used: go without a link.
    NoDevice,
    /// The link is not open, or has broken: open another one, or go without.
    NoLink,
    /// Nothing stands for the token: name the region again.
    UnknownToken,
    /// The response or the request does not fit: use another region, or go without.
    TooSmall,
    /// The server cannot do it now, or not by a link: go without.
    NotNow,
    /// The stamp is too far ahead of the server's clock, or that clock cannot be trusted: find out
    /// whose clock is wrong.
    Clock,
}

impl RefusalCode {
    fn number(self) -> u8 {
        match self {
            RefusalCode::NoDevice => 1,
            RefusalCode::NoLink => 2,
            RefusalCode::UnknownToken => 3,
            RefusalCode::TooSmall => 4,
            RefusalCode::NotNow => 5,
            RefusalCode::Clock => 6,
        }
    }

    /// A code that is not known is one that this version can do nothing about.
    fn from_number(number: u8) -> RefusalCode {
        match number {
            1 => RefusalCode::NoDevice,
            2 => RefusalCode::NoLink,
            3 => RefusalCode::UnknownToken,
            4 => RefusalCode::TooSmall,
            6 => RefusalCode::Clock,
            _ => RefusalCode::NotNow,
        }
    }
}

/// Bytes that are no request or no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are no message of a link: {0}")]
pub struct BadMessage(&'static str);

/// Checks that `count` more bytes are there.
fn need(body: &Bytes, count: usize) -> Result<(), BadMessage> {
    if body.remaining() < count { Err(BadMessage("it ends too early")) } else { Ok(()) }
}

fn take_u8(body: &mut Bytes) -> Result<u8, BadMessage> {
    need(body, 1).map(|()| body.get_u8())
}

fn take_u32(body: &mut Bytes) -> Result<u32, BadMessage> {
    need(body, 4).map(|()| body.get_u32())
}

fn take_u64(body: &mut Bytes) -> Result<u64, BadMessage> {
    need(body, 8).map(|()| body.get_u64())
}

fn take_i16(body: &mut Bytes) -> Result<i16, BadMessage> {
    need(body, 2).map(|()| body.get_i16())
}

fn take_address(body: &mut Bytes) -> Result<LinkAddress, BadMessage> {
    need(body, LINK_ADDRESS_BYTES)?;
    let bytes = body.split_to(LINK_ADDRESS_BYTES);
    LinkAddress::from_bytes(&bytes).ok_or(BadMessage("an address has values that none has"))
}

fn end(body: &Bytes) -> Result<(), BadMessage> {
    if body.is_empty() { Ok(()) } else { Err(BadMessage("bytes follow its end")) }
}

/// The API that a message calls, if it is a call. Nothing else of it is looked at.
pub fn called_api(message: &[u8]) -> Option<i16> {
    match message.get(8..11) {
        Some([4, high, low]) => Some(i16::from_be_bytes([*high, *low])),
        _ => None,
    }
}

impl LinkRequest {
    /// Encodes the request, with the highest stamp that the client received.
    pub fn encode(&self, stamp: u64, out: &mut BytesMut) {
        out.put_u64(stamp);
        match self {
            LinkRequest::Open { client } => {
                out.put_u8(1);
                out.put_slice(&client.to_bytes());
            }
            LinkRequest::Expose { region } => {
                out.put_u8(2);
                out.put_u64(region.address);
                out.put_u64(region.length);
                out.put_u32(region.key);
            }
            LinkRequest::Withdraw { token } => {
                out.put_u8(3);
                out.put_u64(*token);
            }
            LinkRequest::Call(call) => {
                out.put_u8(4);
                call.encode(out);
            }
        }
    }

    /// The stamp, and the request.
    ///
    /// # Errors
    ///
    /// [`BadMessage`].
    pub fn decode(mut body: Bytes) -> Result<(u64, LinkRequest), BadMessage> {
        let stamp = take_u64(&mut body)?;
        let request = match take_u8(&mut body)? {
            1 => LinkRequest::Open { client: take_address(&mut body)? },
            2 => {
                let (address, length) = (take_u64(&mut body)?, take_u64(&mut body)?);
                let region = RemoteRegion { address, length, key: take_u32(&mut body)? };
                LinkRequest::Expose { region }
            }
            3 => LinkRequest::Withdraw { token: take_u64(&mut body)? },
            4 => return LinkCall::decode(body).map(|call| (stamp, LinkRequest::Call(call))),
            _ => return Err(BadMessage("no request begins so")),
        };
        end(&body)?;
        Ok((stamp, request))
    }
}

impl LinkCall {
    /// Encodes what comes before the body of a call that is inline both ways.
    pub fn begin_inline(stamp: u64, api_key: i16, version: i16, out: &mut BytesMut) {
        let (request, response) = (CallBody::Inline(Bytes::new()), ResponsePlace::Inline);
        let call = LinkCall { api_key, version, request, response };
        LinkRequest::Call(call).encode(stamp, out);
    }

    fn encode(&self, out: &mut BytesMut) {
        out.put_i16(self.api_key);
        out.put_i16(self.version);
        match self.response {
            ResponsePlace::Inline => out.put_u8(0),
            ResponsePlace::Region { token, at, room } => {
                out.put_u8(1);
                out.put_u64(token);
                out.put_u64(at);
                out.put_u64(room);
            }
        }
        match &self.request {
            CallBody::Inline(body) => {
                out.put_u8(0);
                out.put_slice(body);
            }
            CallBody::Region { token, at, length } => {
                out.put_u8(1);
                out.put_u64(*token);
                out.put_u64(*at);
                out.put_u32(*length);
            }
        }
    }

    fn decode(mut body: Bytes) -> Result<LinkCall, BadMessage> {
        let (api_key, version) = (take_i16(&mut body)?, take_i16(&mut body)?);
        let response = match take_u8(&mut body)? {
            0 => ResponsePlace::Inline,
            1 => {
                let (token, at) = (take_u64(&mut body)?, take_u64(&mut body)?);
                ResponsePlace::Region { token, at, room: take_u64(&mut body)? }
            }
            _ => return Err(BadMessage("a response goes to no such place")),
        };
        let request = match take_u8(&mut body)? {
            0 => CallBody::Inline(std::mem::take(&mut body)),
            1 => {
                let (token, at) = (take_u64(&mut body)?, take_u64(&mut body)?);
                CallBody::Region { token, at, length: take_u32(&mut body)? }
            }
            _ => return Err(BadMessage("a request is in no such place")),
        };
        end(&body)?;
        Ok(LinkCall { api_key, version, request, response })
    }
}

impl LinkAnswer {
    /// Encodes the answer, with a stamp that is at or above all that it tells.
    pub fn encode(&self, stamp: u64, out: &mut BytesMut) {
        if !matches!(self, LinkAnswer::Inline(_)) {
            out.put_u64(stamp);
        }
        match self {
            LinkAnswer::Opened { server } => {
                out.put_u8(1);
                out.put_slice(&server.to_bytes());
            }
            LinkAnswer::Exposed { token, idle_ms } => {
                out.put_u8(2);
                out.put_u64(*token);
                out.put_u32(*idle_ms);
            }
            LinkAnswer::Withdrawn => out.put_u8(3),
            LinkAnswer::Inline(response) => {
                LinkAnswer::begin_inline(stamp, out);
                out.put_slice(response);
            }
            LinkAnswer::Placed(length) => {
                out.put_u8(5);
                out.put_u64(*length);
            }
            LinkAnswer::Refused(refusal) => {
                out.put_u8(6);
                out.put_u8(refusal.code.number());
                let text = refusal.text.as_bytes();
                let text = &text[..text.len().min(usize::from(u16::MAX))];
                out.put_u16(text.len() as u16);
                out.put_slice(text);
            }
        }
    }

    /// Encodes what comes before the response of [`LinkAnswer::Inline`].
    pub fn begin_inline(stamp: u64, out: &mut BytesMut) {
        out.put_u64(stamp);
        out.put_u8(4);
    }

    /// The stamp, and the answer.
    ///
    /// # Errors
    ///
    /// [`BadMessage`].
    pub fn decode(mut body: Bytes) -> Result<(u64, LinkAnswer), BadMessage> {
        let stamp = take_u64(&mut body)?;
        let answer = match take_u8(&mut body)? {
            1 => LinkAnswer::Opened { server: take_address(&mut body)? },
            2 => {
                let token = take_u64(&mut body)?;
                LinkAnswer::Exposed { token, idle_ms: take_u32(&mut body)? }
            }
            3 => LinkAnswer::Withdrawn,
            4 => LinkAnswer::Inline(std::mem::take(&mut body)),
            5 => LinkAnswer::Placed(take_u64(&mut body)?),
            6 => {
                let code = RefusalCode::from_number(take_u8(&mut body)?);
                let length = usize::from(take_i16(&mut body)?.cast_unsigned());
                need(&body, length)?;
                let text = String::from_utf8_lossy(&body.split_to(length)).into_owned();
                LinkAnswer::Refused(LinkRefusal { code, text })
            }
            _ => return Err(BadMessage("no answer begins so")),
        };
        end(&body)?;
        Ok((stamp, answer))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::gid::GidAddress;

    fn address() -> LinkAddress {
        LinkAddress { gid: GidAddress([9; 16]), lid: 1, queue_pair: 2, first_packet: 3, mtu: 5 }
    }

    fn requests() -> Vec<LinkRequest> {
        let inline = CallBody::Inline(Bytes::from_static(b"body"));
        let in_region = CallBody::Region { token: 7, at: 8, length: 9 };
        let place = ResponsePlace::Region { token: 1, at: 2, room: 3 };
        let call = |request: &CallBody, response| {
            LinkRequest::Call(LinkCall {
                api_key: 1,
                version: 12,
                request: request.clone(),
                response,
            })
        };
        vec![
            LinkRequest::Open { client: address() },
            LinkRequest::Expose { region: RemoteRegion { address: 1, length: 2, key: 3 } },
            LinkRequest::Withdraw { token: u64::MAX },
            call(&inline, ResponsePlace::Inline),
            call(&inline, place),
            call(&in_region, ResponsePlace::Inline),
            call(&in_region, place),
        ]
    }

    fn answers() -> Vec<LinkAnswer> {
        let refused =
            |code| LinkAnswer::Refused(LinkRefusal { code, text: "why \u{e9}".to_owned() });
        vec![
            LinkAnswer::Opened { server: address() },
            LinkAnswer::Exposed { token: 5, idle_ms: 6 },
            LinkAnswer::Withdrawn,
            LinkAnswer::Inline(Bytes::from_static(b"response")),
            LinkAnswer::Placed(1 << 40),
            refused(RefusalCode::NoDevice),
            refused(RefusalCode::NoLink),
            refused(RefusalCode::UnknownToken),
            refused(RefusalCode::TooSmall),
            refused(RefusalCode::NotNow),
            refused(RefusalCode::Clock),
        ]
    }

    #[test]
    fn messages_come_back_from_their_bytes_and_from_no_others() {
        for request in requests() {
            let mut bytes = BytesMut::new();
            request.encode(99, &mut bytes);
            let bytes = bytes.freeze();
            assert_eq!(LinkRequest::decode(bytes.clone()), Ok((99, request.clone())));
            let is_call = matches!(request, LinkRequest::Call(_));
            assert_eq!(called_api(&bytes), is_call.then_some(1));
            let is_inline =
                matches!(request, LinkRequest::Call(LinkCall { request: CallBody::Inline(_), .. }));
            let least = if is_inline { bytes.len() - 4 } else { bytes.len() };
            for length in 0..least {
                assert!(
                    LinkRequest::decode(bytes.slice(..length)).is_err(),
                    "{request:?} {length}"
                );
            }
            let longer = Bytes::from([&bytes[..], b"x"].concat());
            assert_eq!(LinkRequest::decode(longer).is_ok(), is_inline, "{request:?}");
        }
        for answer in answers() {
            let mut bytes = BytesMut::new();
            answer.encode(99, &mut bytes);
            let bytes = bytes.freeze();
            assert_eq!(LinkAnswer::decode(bytes.clone()), Ok((99, answer.clone())));
            let longer = Bytes::from([&bytes[..], b"x"].concat());
            let is_inline = matches!(answer, LinkAnswer::Inline(_));
            assert_eq!(LinkAnswer::decode(longer).is_ok(), is_inline, "{answer:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_decoder_panic(bytes: Vec<u8>) {
            let bytes = Bytes::from(bytes);
            let _ = called_api(&bytes);
            let _ = LinkRequest::decode(bytes.clone());
            let _ = LinkAnswer::decode(bytes);
        }
    }
}
