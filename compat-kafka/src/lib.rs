//! The Kafka protocol server: frames, APIs and groups, over the engine.
//!
//! This crate knows Kafka's wire format and its rules. It knows no files and no disks. Every read
//! of the past goes through `engine::seek`. No type of `kafka-protocol` leaves the crate.
//!
//! The path of a request: `conn` takes a frame from the socket, and `routes` finds its API and
//! version. `guard` checks that its counts are possible. Then the request is decoded, and a file of
//! `apis` serves it.

// The allocator of a test is unsafe.
#![cfg_attr(not(test), forbid(unsafe_code))]

mod accept;
mod apis;
mod authorization;
mod broker_settings;
mod client_metrics;
mod conn;
mod connection_table;
mod core;
mod corruption;
mod error_code;
mod extension;
mod fetch_session;
mod fetch_sessions;
mod file_run;
mod format;
mod frame_buffer_pool;
mod frame_reader;
mod group_log;
mod group_topics;
pub mod groups;
mod guard;
mod history_support;
mod link;
mod link_devices;
mod link_session;
mod listener;
mod memory_budget;
mod metrics;
mod moment_cache;
mod offset_expiry;
mod quotas;
mod readable_topic;
mod refusal_log;
mod request;
mod response;
mod routes;
mod sasl;
mod share;
mod share_versions;
#[cfg(test)]
mod shared_limits;
mod stream;
mod topic_id_versions;
mod topic_permissions;
pub mod transactions;
mod transfer_pace;
mod trim;
mod wire;

pub use crate::core::{KafkaOptions, KafkaServer};
pub use accept::serve;
pub use broker_settings::{
    AssignmentIntervals, BrokerSetting, ConnectionLimits, DynamicConfigs, DynamicOptions,
    DynamicSettings, InvalidSettings, PreparedSettings, RestoreSettingsError, SettingSource,
};
pub use client_metrics::{ClientMetric, ClientMetricSeries};
pub use conn::{ConnectionEnds, serve_stream};
pub use fetch_sessions::FetchSessionCounts;
pub use format::KafkaFormat;
pub use link_devices::LinkDevices;
pub use listener::{AdvertisedAddress, KafkaListener};
pub use metrics::KafkaMetrics;
pub use quotas::{QuotaRates, RateOptions};
pub use sasl::{SaslMechanism, SaslOptions};
pub use share::ShareSessionCounts;
pub use stream::ByteStream;
pub use transfer_pace::TransferLimits;
