//! The headers of all frames after the handshake.

use bytes::BytesMut;

use crate::{JuteError, JuteReader, JuteWriter};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// The client's number for the request. Some below 0 are reserved (-2 ping, -4 auth, -8
    /// watches).
    pub xid: i32,
    pub op: i32,
}

impl RequestHeader {
    /// Takes the header from the front.
    pub fn read(fields: &mut JuteReader) -> Result<RequestHeader, JuteError> {
        Ok(RequestHeader { xid: fields.int()?, op: fields.int()? })
    }

    /// Appends the header.
    pub fn write(&self, out: &mut BytesMut) {
        out.int(self.xid);
        out.int(self.op);
    }
}

/// The header of a reply or an event. With an error no body follows, except after a multi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The xid of the request, or -1 for an event.
    pub xid: i32,
    /// The last transaction applied. For an event, the one that fired it.
    pub zxid: i64,
    /// 0, or an error code.
    pub err: i32,
}

impl ReplyHeader {
    /// Takes the header from the front.
    pub fn read(fields: &mut JuteReader) -> Result<ReplyHeader, JuteError> {
        Ok(ReplyHeader { xid: fields.int()?, zxid: fields.long()?, err: fields.int()? })
    }

    /// Appends the header.
    pub fn write(&self, out: &mut BytesMut) {
        out.int(self.xid);
        out.long(self.zxid);
        out.int(self.err);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_read_back_as_they_were_written(xid: i32, op: i32, zxid: i64, err: i32) {
            let (request, reply) = (RequestHeader { xid, op }, ReplyHeader { xid, zxid, err });
            let mut out = BytesMut::new();
            request.write(&mut out);
            reply.write(&mut out);
            prop_assert_eq!(out.len(), 8 + 16);
            let mut fields = JuteReader::new(out.freeze());
            prop_assert_eq!(RequestHeader::read(&mut fields), Ok(request));
            prop_assert_eq!(ReplyHeader::read(&mut fields), Ok(reply));
            prop_assert_eq!(fields.end(), Ok(()));
        }
    }
}
