//! Fixtures that tests of several crates share. Each module but the first three needs a feature of
//! its name.
//!
//! - [`rng`]: random numbers that follow from a seed.
//! - [`directory`]: a temporary directory.
//! - [`allocations`]: an allocator that counts.
//! - `certificates`: keys and certificates for TLS.
//! - `disks`, `store` (feature `storage`): disks that hang or call back; a store on a memory disk.
//! - `engine`: an engine on a memory disk.
//! - `kafka`: an engine with Kafka's batches, and a Kafka server, on a memory disk.
//! - `requests`: Kafka requests and their frames.
//! - `streams` (feature `requests`): requests of streams groups.
//! - `tokens`: JSON Web Tokens, and the keys that sign them.
//! - `process`: the real binary as a process, its mount, and a raw connection to it.
//!
//! A unit test cannot use a fixture that wraps the crate it belongs to: that would be another copy
//! of the crate, with other types. It can use [`rng`], [`directory`] and [`allocations`].

#![deny(unsafe_code)]

pub mod allocations;
#[cfg(feature = "certificates")]
pub mod certificates;
pub mod directory;
#[cfg(feature = "storage")]
pub mod disks;
#[cfg(feature = "engine")]
pub mod engine;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "process")]
pub mod process;
#[cfg(feature = "requests")]
pub mod requests;
pub mod rng;
#[cfg(feature = "storage")]
pub mod store;
#[cfg(feature = "requests")]
pub mod streams;
#[cfg(feature = "tokens")]
pub mod tokens;
#[cfg(feature = "engine")]
pub mod znodes;
