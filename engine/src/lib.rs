//! Topics, partitions, committed offsets, and reading all of them as of a moment.
//!
//! This crate knows what a topic is and what a read of the past promises. It knows no wire format:
//! what it must know of the bytes in a batch, it asks of a [`Format`].
//!
//! The one temporal read path is [`seek`]: every face of the service that reads the past enters
//! there.
mod append;
pub mod blocking;
mod catalog_slot;
pub mod compaction;
mod config;
mod cut;
mod cut_cache;
pub mod diff;
mod driven;
mod engine;
mod error;
pub mod files;
mod group_commits;
mod group_expiry;
mod group_horizon;
mod group_moments;
mod group_offsets;
mod groups;
mod housekeeping;
mod namespace;
mod namespace_horizon;
pub mod pins;
mod plugins;
mod producers;
pub mod retention;
pub mod seek;
mod troubles;
pub mod user_time;

pub use append::{Batch, Format, KeyedRecord, ProducerNote, Rewritten, TimeRange};
pub use config::{ConfigError, ConfigType, TopicConfig, TopicDefaults, topic_config_keys};
pub use cut::{CutAnswer, CutPartition};
pub use cut_cache::CutCacheStats;
pub use engine::{Appending, Engine, EngineOptions, Watch};
pub use error::EngineError;
pub use group_commits::Committing;
pub use group_moments::{GroupSet, GroupSetError, OffsetChange, SetMode, Skipped};
pub use group_offsets::GroupThen;
pub use groups::{
    Committed, Expiry, GroupDifference, GroupOffset, OffsetDifference, OldOffset, OldOffsets,
};
pub use housekeeping::HousekeepingOptions;
pub use namespace::event::{
    Event, OffsetCommit, RestatedChange, RestatedGroup, RestatedOffset, RestatedPin, TopicChange,
};
pub use namespace::{Partition, Topic, TopicId, check_topic_name};
pub use pins::{Hold, Holds, Pin, PinError};
pub use plugins::{ListedPlugin, PluginFilesError};
pub use seek::{Found, SeekError, TopicView, View, When};

pub use user_time::UserTimeRule;

pub use storage::disk::is_data_loss;
pub use storage::log::Watcher;
pub use storage::{
    AROUND_BYTES_MIN, DATA_BLOCK_BYTES, DataCache, DataFile, DataFileBlock, Durability, Entry,
    Head, LoadBuffer, Offset, Payload, Piece, PieceData, block_of,
};
