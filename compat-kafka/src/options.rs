//! The options of the server that are set at its start.

use std::path::PathBuf;
use std::time::Duration;

use kafka_connections::TransferLimits;
use kafka_groups::Options as GroupOptions;
use kafka_transactions::TransactionOptions;
use uuid::Uuid;

use crate::broker_settings::DynamicOptions;
use crate::link_devices::LinkDevices;
use crate::quotas::QuotaRates;

/// The options of the Kafka protocol server. Names in parentheses are Kafka's settings.
#[derive(Clone, Debug)]
pub struct KafkaOptions {
    /// This broker's id (`node.id`).
    pub node_id: i32,
    pub cluster_id: String,
    /// The directory on the volume that holds the data; `None` if they are on none.
    pub data_dir: Option<PathBuf>,
    /// The rack in responses to clients (`broker.rack`).
    pub rack: Option<String>,
    /// True if a request for a topic creates it (`auto.create.topics.enable`).
    pub auto_create_topics: bool,
    /// The number of partitions of a topic that is created without one (`num.partitions`).
    pub partitions: u32,
    /// True if topics may be deleted (`delete.topic.enable`).
    pub delete_topics: bool,
    /// The longest request, in bytes (`socket.request.max.bytes`).
    pub request_bytes_max: usize,
    /// The initial values of the options that may change while the server runs.
    pub dynamic: DynamicOptions,
    /// The longest lifetime of a delegation token (`delegation.token.max.lifetime.ms`).
    pub token_lifetime_max: Duration,
    /// The lifetime of a delegation token without renewal (`delegation.token.expiry.time.ms`).
    pub token_renewal_max: Duration,
    /// The windows over which the rates of quotas are measured.
    pub quota_rates: QuotaRates,
    /// The most bytes of large requests that have arrived and are not answered. Small pipelined
    /// requests may take a quarter as much in addition (`queued.max.request.bytes`).
    pub requests_bytes_max: usize,
    /// The most bytes of responses in memory that clients have not read yet.
    pub responses_bytes_max: usize,
    /// The slowest pace at which a client may send a request or read a response.
    pub transfer_limits: TransferLimits,
    /// A connection that is idle for longer is closed (`connections.max.idle.ms`).
    pub idle_max: Duration,
    /// The interval of checks that a client is still there while the server does not read from it
    /// for long.
    pub muted_look_interval: Duration,
    /// The most bytes that one fetch returns (`fetch.max.bytes`).
    pub fetch_bytes_max: usize,
    /// The most bytes of metadata for one offset in a commit (`offset.metadata.max.bytes`).
    pub offset_metadata_bytes_max: usize,
    /// The longest wait of a read for a moment that is not final yet.
    pub moment_patience: Duration,
    /// The most files of the tree that clients may have open (`limits.open-files-max`).
    pub open_files_max: usize,
    /// The most bytes that a batch may decompress to when its records are read.
    pub decompressed_bytes_max: usize,
    /// The most fetch sessions (`max.incremental.fetch.session.cache.slots`).
    pub fetch_sessions_max: usize,
    /// The most bytes that a client may push at a time (`telemetry.max.bytes`).
    pub telemetry_bytes_max: usize,
    pub groups: GroupOptions,
    pub transactions: TransactionOptions,
    /// The devices for links; `None` if there are none, or none are to be used.
    pub links: Option<LinkDevices>,
    /// Makes the ids of new topics and group members, each unique. A simulation derives them from
    /// its seed.
    pub new_id: fn() -> [u8; 16],
}

impl Default for KafkaOptions {
    fn default() -> KafkaOptions {
        KafkaOptions {
            node_id: 1,
            cluster_id: "freezeframe".to_owned(),
            data_dir: None,
            rack: None,
            auto_create_topics: true,
            partitions: 1,
            delete_topics: true,
            request_bytes_max: 100 << 20,
            dynamic: DynamicOptions::default(),
            token_lifetime_max: Duration::from_secs(7 * 24 * 3600),
            token_renewal_max: Duration::from_secs(24 * 3600),
            quota_rates: QuotaRates::default(),
            requests_bytes_max: 512 << 20,
            responses_bytes_max: 256 << 20,
            transfer_limits: TransferLimits::default(),
            idle_max: Duration::from_secs(600),
            muted_look_interval: Duration::from_secs(1),
            fetch_bytes_max: 55 << 20,
            offset_metadata_bytes_max: 4096,
            moment_patience: Duration::from_secs(5),
            open_files_max: 128,
            decompressed_bytes_max: 128 << 20,
            fetch_sessions_max: 1000,
            telemetry_bytes_max: 1 << 20,
            groups: GroupOptions::default(),
            transactions: TransactionOptions::default(),
            links: None,
            new_id: || Uuid::new_v4().into_bytes(),
        }
    }
}
