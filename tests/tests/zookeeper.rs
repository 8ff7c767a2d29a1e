//! The real binary and ZooKeeper's wire.

mod bad_clients;
pub(crate) mod client;
mod command_line;
mod door;
mod histories;
mod import;
mod memory;
mod operators;
mod past;
mod replies;
mod sessions;
mod tls;
