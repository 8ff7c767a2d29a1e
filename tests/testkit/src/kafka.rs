//! Kafka's batches on an engine, and a Kafka server, both on a memory disk.

#![allow(
    missing_docs,
    clippy::new_without_default,
    clippy::unwrap_used,
    reason = "a fixture's names say what it is, and a test that it fails has failed"
)]

mod engine;
mod server;

pub use engine::{CountingFormat, TestKafkaEngine, TestReadRecord, TestRecordInput, read_all};
pub use server::{
    PATIENCE, TestKafkaConnection, TestKafkaResponses, TestKafkaServer, one_record_batch,
};

/// The wall clock at the start of a test.
pub const START: u64 = 1_795_252_948_000;
