//! What every frame after the handshake begins with.

use bytes::BytesMut;

use crate::{JuteError, JuteReader, JuteWriter};

/// Before each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// The client's number for the request; some below 0 are set apart (-2 ping, -4 auth, -8
    /// watches).
    pub xid: i32,
    /// The operation.
    pub op: i32,
}

impl RequestHeader {
    /// Takes it off the front.
    pub fn read(fields: &mut JuteReader) -> Result<RequestHeader, JuteError> {
        Ok(RequestHeader { xid: fields.int()?, op: fields.int()? })
    }

    /// Puts it at the end.
    pub fn write(&self, out: &mut BytesMut) {
        out.int(self.xid);
        out.int(self.op);
    }
}

/// Before each reply and each event. With an error no body follows, except after a multi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The request's, or -1: an event.
    pub xid: i32,
    /// The last transaction applied; of an event, the one that fired it.
    pub zxid: i64,
    /// 0, or an error code.
    pub err: i32,
}

impl ReplyHeader {
    /// Takes it off the front.
    pub fn read(fields: &mut JuteReader) -> Result<ReplyHeader, JuteError> {
        Ok(ReplyHeader { xid: fields.int()?, zxid: fields.long()?, err: fields.int()? })
    }

    /// Puts it at the end.
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
