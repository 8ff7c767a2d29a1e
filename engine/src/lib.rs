//! Topics, partitions, committed offsets, and reads of all of them as of a moment.
//!
//! This crate defines topics and what a read of the past promises. It knows no wire format: what it
//! needs from the bytes of a batch, it gets through [`BatchFormat`].
//!
//! The one temporal read path is [`seek`]: every protocol server that reads the past enters there.
mod append;
pub mod blocking;
mod catalog_slot;
pub mod compaction;
mod config;
mod cut;
mod cut_cache;
pub mod diff;
mod engine;
mod error;
pub mod files;
mod group_commits;
mod group_expiry;
mod group_horizon;
mod group_moments;
mod group_offsets;
mod groups;
mod maintenance;
mod manual_stepping;
mod namespace;
mod namespace_horizon;
mod partition_failures;
pub mod pins;
mod plugins;
mod producers;
pub mod retention;
pub mod seek;
pub mod user_time;

pub use append::{
    BatchFormat, KeyedRecord, ProducerSequence, RecordBatch, RewriteOutcome, TimeRange,
};
pub use config::{ConfigError, ConfigType, TopicConfig, TopicDefaults, topic_config_keys};
pub use cut::{CutAnswer, CutPartition};
pub use cut_cache::CutCacheStats;
pub use engine::{AppendWatch, Engine, EngineOptions, PendingAppends};
pub use error::EngineError;
pub use group_commits::PendingCommit;
pub use group_moments::{
    GroupSetError, GroupSetMode, GroupSetResult, OffsetChange, SkippedPartition,
};
pub use group_offsets::GroupAtCut;
pub use groups::{
    CommittedOffset, ExpiredOffset, ExpiredOffsets, GroupDifference, GroupOffset, OffsetDifference,
    OffsetExpiry,
};
pub use maintenance::MaintenanceOptions;
pub use namespace::event::{
    MetadataEvent, OffsetCommit, RestatedChange, RestatedGroup, RestatedOffset, RestatedPin,
    TopicChange,
};
pub use namespace::{Partition, Topic, TopicId, check_topic_name};
pub use pins::{Pin, PinError, PinHold, PinHoldRange};
pub use plugins::{PluginFilesError, PluginSummary};
pub use seek::{OffsetAndTimestamp, PartitionView, SeekError, TopicView, WaitPolicy};

pub use user_time::UserTimeRule;

pub use storage::disk::is_data_loss;
pub use storage::log::LogWatcher;
pub use storage::{
    AppendReceipt, DATA_BLOCK_BYTES, DIRECT_READ_BYTES_MIN, DataCache, DataFile, DataFileBlock,
    Durability, Entry, EntryPayload, LoadBuffer, LogThrottle, Offset, Payload, PayloadHeader,
    PayloadLocation, block_of,
};
