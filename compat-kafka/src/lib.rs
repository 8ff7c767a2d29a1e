//! The Kafka protocol server: frames and APIs, over the engine.
//!
//! This crate and those beside it know Kafka's wire format and its rules, and no files and no
//! disks. Every read of the past goes through `engine::seek`. No type of `kafka-protocol` leaves
//! them.
//!
//! The path of a request: `conn` takes a frame from the socket, and `routes` finds its API and
//! version. [`kafka_guard`] checks that its counts are possible. Then the request is decoded, and a
//! file of `apis` serves it.

#![forbid(unsafe_code)]

mod accept;
mod admission_control;
mod apis;
mod authorization;
mod broker_settings;
mod client_log;
mod cluster_view;
mod conn;
mod connection_error;
mod connection_loop;
mod coordinators;
mod corruption;
mod extension;
mod file_run;
mod frame_buffer_pool;
mod frame_reader;
mod group_log;
mod history_support;
mod kafka_server;
mod link;
mod link_devices;
mod link_session;
mod metrics;
mod offset_expiry;
mod options;
mod quotas;
mod request;
mod response;
mod routes;
mod serve;
mod share_versions;
#[cfg(test)]
mod shared_limits;
mod stream;
mod topic_id_versions;
mod trim;
mod wire;

pub use accept::serve;
pub use broker_settings::{
    BrokerSetting, ConnectionLimits, DynamicConfigs, DynamicOptions, DynamicSettings,
    InvalidSettings, PreparedSettings, RestoreSettingsError, SettingSource,
};
pub use conn::{ConnectionEnds, serve_stream};
pub use kafka_client_metrics::{ClientMetric, ClientMetricSeries};
pub use kafka_connections::{AdvertisedAddress, KafkaListener, TransferLimits};
pub use kafka_fetch_sessions::FetchSessionCounts;
pub use kafka_format::KafkaFormat;
pub use kafka_groups::AssignmentIntervals;
pub use kafka_sasl::{SaslMechanism, SaslOptions};
pub use kafka_server::KafkaServer;
pub use kafka_share_groups::ShareSessionCounts;
pub use link_devices::LinkDevices;
pub use metrics::KafkaMetrics;
pub use options::KafkaOptions;
pub use quotas::{QuotaRates, RateOptions};
pub use stream::ByteStream;
