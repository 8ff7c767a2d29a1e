//! ZooKeeper's protocol: requests, sessions, connections and watches, over the tree of
//! `engine-znodes`. The format of the wire is in `zk-wire`.
//!
//! [`ZkServer`] is all that a broker needs. The way of a request:
//! 1. `reader` takes frames off a socket and decodes them (`request`).
//! 2. A write (`writes`) becomes a transaction. A read (`reads`) is answered from the tree.
//! 3. Replies and events (`watches`) go into the connection's `output`.

#![forbid(unsafe_code)]

mod admin;
mod auth;
mod connection;
mod connections;
mod event;
mod four_letter;
mod history;
mod listener;
mod monitor;
mod options;
mod output;
mod past;
mod reader;
mod reads;
mod request;
mod sasl;
mod server;
mod sessions;
mod traffic;
mod watches;
mod writes;

pub use auth::digest_of;
pub use listener::{ListenerSecurity, serve, serve_stream};
pub use monitor::{MonitorEntry, MonitorValue};
pub use options::ZkOptions;
pub use sasl::SaslUsers;
pub use server::ZkServer;
pub use traffic::ZkLatencies;
