//! Kafka's face: frames, APIs, groups, over the engine.
//!
//! This crate knows Kafka's wire format and its rules. It knows no files and no disks; every read of
//! the past goes through `engine::seek`. No type of `kafka-protocol` leaves it.
//!
//! A request's way: `conn` takes a frame off the socket, `routes` finds its API and version,
//! checks that its counts can be true (`guard`), decodes it, and a file of `apis` serves it.
mod answer;
mod apis;
mod conn;
mod core;
mod error_code;
mod extension;
mod file_run;
mod format;
mod frame_memory;
mod frame_reader;
mod group_log;
pub mod groups;
mod guard;
mod memory_budget;
mod metrics;
mod moments;
mod offset_expiry;
mod pace;
mod rot;
mod routes;
mod stream;
mod trim;

pub use crate::core::{Address, Kafka, KafkaOptions};
pub use conn::{serve, serve_stream};
pub use extension::{Answering, HistoryErrorCode, MoreOps, Refusal, ask_text};
pub use format::KafkaFormat;
pub use metrics::Metrics;
pub use pace::TransferLimits;
pub use stream::Stream;
