//! ZooKeeper's wire, for servers and clients: fields, frames, headers, the handshake, the numbers
//! of requests, and error codes.
//!
//! Everything is big-endian. A length from the wire is checked against the available bytes before
//! it is used.

#![forbid(unsafe_code)]

mod code;
mod frame;
mod handshake;
mod header;
mod jute;
pub mod opcode;
mod stat;

pub use code::ZkCode;
pub use frame::{FRAME_BYTES_MAX, frame, put_frame};
pub use handshake::{ConnectRequest, ConnectResponse};
pub use header::{ReplyHeader, RequestHeader};
pub use jute::{JuteError, JuteReader, JuteWriter};
pub use stat::ZnodeStat;
