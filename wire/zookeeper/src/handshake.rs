//! The first frame in each direction. Neither has a header.
//!
//! Clients before 3.4 do not send the last byte, `read_only`, and do not expect it in the response.
//! So it is an `Option` here, and the response's must be `Some` exactly if the request's was.

use bytes::{Bytes, BytesMut};

use crate::{JuteError, JuteReader, JuteWriter};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Always 0.
    pub protocol_version: i32,
    /// The newest transaction that the client has seen. A server that is behind it must not answer.
    pub last_zxid_seen: i64,
    /// The session timeout that the client wants.
    pub timeout_ms: i32,
    /// The session to continue, or 0.
    pub session_id: i64,
    /// The session's password, of 16 bytes.
    pub password: Option<Bytes>,
    /// True if a server without a quorum is acceptable. `None` if the client does not send the
    /// field.
    pub read_only: Option<bool>,
}

impl ConnectRequest {
    /// Decodes the whole frame.
    pub fn read(frame: Bytes) -> Result<ConnectRequest, JuteError> {
        let mut fields = JuteReader::new(frame);
        let request = ConnectRequest {
            protocol_version: fields.int()?,
            last_zxid_seen: fields.long()?,
            timeout_ms: fields.int()?,
            session_id: fields.long()?,
            password: fields.buffer()?,
            read_only: read_only(&mut fields)?,
        };
        fields.end()?;
        Ok(request)
    }

    /// Appends the frame's content.
    pub fn write(&self, out: &mut BytesMut) {
        out.int(self.protocol_version);
        out.long(self.last_zxid_seen);
        out.int(self.timeout_ms);
        out.long(self.session_id);
        out.buffer(self.password.as_deref());
        write_read_only(self.read_only, out);
    }
}

/// The server's response. All fields are zero if the session is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectResponse {
    /// Always 0.
    pub protocol_version: i32,
    /// The session timeout granted; 0 if the session is gone.
    pub timeout_ms: i32,
    /// The session id; 0 if the session is gone.
    pub session_id: i64,
    /// The session's password, of 16 bytes.
    pub password: Option<Bytes>,
    /// True if this server has no quorum. `None` if the client did not send the field.
    pub read_only: Option<bool>,
}

impl ConnectResponse {
    /// Decodes the whole frame.
    pub fn read(frame: Bytes) -> Result<ConnectResponse, JuteError> {
        let mut fields = JuteReader::new(frame);
        let response = ConnectResponse {
            protocol_version: fields.int()?,
            timeout_ms: fields.int()?,
            session_id: fields.long()?,
            password: fields.buffer()?,
            read_only: read_only(&mut fields)?,
        };
        fields.end()?;
        Ok(response)
    }

    /// Appends the frame's content.
    pub fn write(&self, out: &mut BytesMut) {
        out.int(self.protocol_version);
        out.int(self.timeout_ms);
        out.long(self.session_id);
        out.buffer(self.password.as_deref());
        write_read_only(self.read_only, out);
    }
}

fn read_only(fields: &mut JuteReader) -> Result<Option<bool>, JuteError> {
    if fields.left() == 0 { Ok(None) } else { fields.bool().map(Some) }
}

fn write_read_only(read_only: Option<bool>, out: &mut BytesMut) {
    if let Some(read_only) = read_only {
        out.bool(read_only);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_handshake_reads_back_as_it_was_written(
            protocol_version: i32,
            last_zxid_seen: i64,
            timeout_ms: i32,
            session_id: i64,
            password in option::of(vec(any::<u8>(), 0..20)),
            read_only: Option<bool>,
        ) {
            let password = password.map(Bytes::from);
            let request = ConnectRequest {
                protocol_version, last_zxid_seen, timeout_ms, session_id,
                password: password.clone(), read_only,
            };
            let mut out = BytesMut::new();
            request.write(&mut out);
            prop_assert_eq!(ConnectRequest::read(out.freeze()), Ok(request));
            let response =
                ConnectResponse { protocol_version, timeout_ms, session_id, password, read_only };
            let mut out = BytesMut::new();
            response.write(&mut out);
            prop_assert_eq!(ConnectResponse::read(out.freeze()), Ok(response));
        }

        #[test]
        fn arbitrary_handshakes_never_panic(bytes in vec(prop_oneof![Just(0), any::<u8>()], 0..60)) {
            let bytes = Bytes::from(bytes);
            let _ = (ConnectRequest::read(bytes.clone()), ConnectResponse::read(bytes));
        }
    }

    #[test]
    fn a_clients_first_frame_reads_field_by_field() {
        // A new session: version, zxid, timeout 30,000 ms, session, 16 zeroes of password,
        // read_only.
        let frame = [&[0; 4][..], &[0; 8], &30_000i32.to_be_bytes(), &[0; 8], &16i32.to_be_bytes()];
        let old = [&frame.concat()[..], &[0; 16]].concat();
        let new = [&old[..], &[1]].concat();
        let expected = |read_only| ConnectRequest {
            protocol_version: 0,
            last_zxid_seen: 0,
            timeout_ms: 30_000,
            session_id: 0,
            password: Some(Bytes::from_static(&[0; 16])),
            read_only,
        };
        assert_eq!(ConnectRequest::read(old.into()), Ok(expected(None)));
        assert_eq!(ConnectRequest::read(new.clone().into()), Ok(expected(Some(true))));
        let tail = [&new[..], &[0]].concat();
        assert_eq!(ConnectRequest::read(tail.into()), Err(JuteError::Trailing { left: 1 }));
    }
}
