//! ZooKeeper's wire: frames, requests, sessions, connections and watches, over the tree of
//! `engine-znodes`.
//!
//! [`ZkServer`] is all that a broker needs. The way of a request:
//! 1. `reader` takes frames off a socket and decodes them (`frame`, `jute`, `request`).
//! 2. A write (`writes`) becomes a transaction. A read (`reads`) is answered from the tree.
//! 3. Replies and events (`watches`) go into the connection's `output`.
//!
//! Everything is big-endian. A length from the wire is checked against the available bytes before it
//! is used.

#![forbid(unsafe_code)]

mod auth;
mod connection;
mod event;
mod four_letter;
mod frame;
mod handshake;
mod header;
mod jute;
mod listener;
mod opcode;
mod options;
mod output;
mod past;
mod reader;
mod reads;
mod request;
mod server;
mod watches;
mod writes;

pub use auth::digest_of;
pub use frame::FRAME_BYTES_MAX;
pub use handshake::{ConnectRequest, ConnectResponse};
pub use jute::{JuteError, JuteReader, JuteWriter};
pub use listener::serve;
pub use options::ZkOptions;
pub use server::ZkServer;
