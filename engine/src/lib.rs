//! The engine: topics, consumer groups and files, and reads of all of them as of a moment.
//!
//! It is made of crates. [`engine_core`] is the spine: the namespace, appends, seeks, cuts and the
//! frontier. [`groups`] and [`files`] are wings: they depend on the spine, and the spine knows
//! nothing of them. This crate opens them together as an [`Engine`], and holds what cuts across
//! them: maintenance, plug-ins (whose modules are files), the differences of two moments, and the
//! restatements of copies.

#![forbid(unsafe_code)]

pub mod diff;
mod engine;
mod maintenance;
mod options;
mod plugins;
mod restatements;

pub use engine_core::config::{
    ConfigError, ConfigType, TopicConfig, TopicDefaults, topic_config_keys,
};
pub use engine_core::namespace::event::{NamespaceEvent, RestatedChange, RestatedPin, TopicChange};
pub use engine_core::namespace::pin_table::{Pin, PinHold, PinHoldRange};
pub use engine_core::namespace::{
    Namespace, Partition, Topic, TopicId, check_collision, check_topic_name,
};
pub use engine_core::pins::PinError;
pub use engine_core::seek::OffsetAndTimestamp;
pub use engine_core::{
    AUDIT_TARGET, ActiveProducer, AppendWatch, AuditLog, AuditOutcome, AuditSubject, BatchFormat,
    CacheWeight, CoreOptions, CutAnswer, CutCacheStats, CutPartition, DynamicMaintenance,
    EndingTransaction, EngineCore, EngineError, ExcludedTransaction, Isolation, KeyedRecord,
    LruCache, MaintenanceOptions, NO_TIMES, OpenTransaction, PartitionView, PendingAppends,
    PendingStamp, ProducerSequence, REQUEST_TARGET, RecordBatch, RefusalLog, RewriteOutcome,
    SeekError, TimeRange, TopicView, TransactionEnd, TruncatedPartition, UserTimeRule, WaitPolicy,
    blocking, compaction, pins, retention, span_text,
};
pub use engine_files as files;
pub use engine_groups as groups;
pub use engine_security as security;
pub use engine_znodes as znodes;

pub use engine::Engine;
pub use options::EngineOptions;
pub use plugins::{PluginFilesError, PluginSummary, Plugins};
pub use restatements::{CarryError, carry_restatements};

pub use storage::disk::volume_bytes;
pub use storage::log::LogWatcher;
pub use storage::{
    AppendReceipt, DATA_BLOCK_BYTES, DIRECT_READ_BYTES_MIN, DataCache, DataFile, DataFileBlock,
    Durability, Entry, EntryPayload, LatencyCounts, LatencyHistogram, LoadBuffer, LoadMemory,
    LoadMemorySource, LogId, LogThrottle, LogThrottles, Offset, Payload, PayloadHeader,
    PayloadLocation, StorageError, block_of,
};
