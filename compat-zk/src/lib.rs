//! The jute codec: ZooKeeper's frames, the fields inside them, and the records that every
//! connection needs — the two headers and the connect handshake.
//!
//! Serving ZooKeeper is not part of this crate: it has no sessions, no tree and no sockets.
//!
//! [`frame`] cuts a stream into frames, [`JuteReader`] takes fields off a frame and [`JuteWriter`]
//! puts them there. Everything is big-endian. A length from the wire is held against the bytes that
//! are there before anything is made of it.

#![forbid(unsafe_code)]

mod frame;
mod handshake;
mod header;
mod jute;

pub use frame::{FRAME_BYTES_MAX, frame, put_frame};
pub use handshake::{ConnectRequest, ConnectResponse};
pub use header::{ReplyHeader, RequestHeader};
pub use jute::{JuteError, JuteReader, JuteWriter};
