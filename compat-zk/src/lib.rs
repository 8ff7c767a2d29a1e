//! The jute codec: ZooKeeper's frames, the fields inside them, and the records that every
//! connection needs: the two headers and the connect handshake.
//!
//! Serving ZooKeeper is not part of this crate: it has no sessions, no tree and no sockets.
//!
//! [`frame`] splits a stream into frames, [`JuteReader`] reads the fields of a frame, and
//! [`JuteWriter`] writes them. Everything is big-endian. A length from the wire is checked against
//! the available bytes before it is used.

#![forbid(unsafe_code)]

mod frame;
mod handshake;
mod header;
mod jute;

pub use frame::{FRAME_BYTES_MAX, frame, put_frame};
pub use handshake::{ConnectRequest, ConnectResponse};
pub use header::{ReplyHeader, RequestHeader};
pub use jute::{JuteError, JuteReader, JuteWriter};
