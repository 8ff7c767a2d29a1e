//! The spine of the engine: topics, appends to them, and reads of them as of a moment.
//!
//! This crate defines topics and the promises of a read of the past. It knows no wire format: it
//! reads batches only through [`BatchFormat`]. It knows neither files nor groups: these are wings,
//! crates that depend on it and bring their state along as a [`projection`].
//!
//! The one temporal read path is [`seek`]: every protocol server that reads the past enters there.
//!
//! Modules are of three kinds. Ground modules hold types and pure decisions, and do not name
//! [`EngineCore`]. Verbs (`topics`, `pins`, `seek`, `cut`, `user_times`, `maintenance`,
//! `namespace_horizon`) are what an engine does, each behind a handle such as [`EngineCore::pins`].
//! The others are parts of [`EngineCore`] itself: how it opens (`replay`, `catalog_fill`), appends
//! (`pending_appends`, `transactions`), and applies events (`applier`, `catalog_rebuild`,
//! `stepping`).

#![forbid(unsafe_code)]

mod active_rules;
mod append;
mod applier;
mod audit_log;
pub mod blocking;
mod catalog_fill;
mod catalog_rebuild;
mod catalog_slot;
mod committed_difference;
pub mod compaction;
pub mod config;
mod cut;
mod cut_cache;
mod cut_snapshot;
mod engine_core;
mod error;
pub mod event_reader;
mod frontier;
mod isolation;
pub mod log_history;
mod log_transactions;
mod lru_cache;
mod maintenance;
mod marker;
pub mod namespace;
mod namespace_accounts;
mod namespace_horizon;
pub mod numbering;
mod options;
mod partition_failures;
mod pending_appends;
pub mod pins;
mod producer_ids;
mod producers;
pub mod projection;
mod refusal_log;
mod replay;
mod request_span;
pub mod retention;
pub mod seek;
mod seek_error;
mod stepping;
mod topics;
mod transaction_intervals;
mod transactions;
mod user_time;
mod user_times;
mod view;
mod weighted_cache;

pub use append::{
    AppendNote, BatchFormat, EngineAppendStage, KeyedRecord, RecordBatch, RewriteOutcome,
    TimeRange, WingAppend,
};
pub use applier::PendingStamp;
pub use audit_log::{AUDIT_TARGET, AuditLog, AuditOutcome, AuditSubject};
pub use catalog_slot::CatalogSlot;
pub use committed_difference::{CommittedDifference, DifferencePart};
pub use cut::Cuts;
pub use cut_cache::CutCacheStats;
pub use cut_snapshot::{CutAnswer, CutPartition};
pub use engine_core::{AppendWatch, ChangesGuard, EngineCore, EngineStore};
pub use error::EngineError;
pub use frontier::WaitPolicy;
pub use isolation::Isolation;
pub use log_transactions::{EndedTransaction, LogTransactions};
pub use lru_cache::{CacheWeight, LruCache};
pub use maintenance::CoreMaintenance;
pub use marker::TransactionEnd;
pub use options::{CoreOptions, DynamicMaintenance, MaintenanceOptions};
pub use pending_appends::{AppendBudget, PendingAppends};
pub use pins::Pins;
pub use producers::{ActiveProducer, OpenTransaction, ProducerSequence};
pub use refusal_log::RefusalLog;
pub use request_span::{REQUEST_TARGET, span_text};
pub use seek::Seek;
pub use seek_error::{SeekError, TruncatedPartition};
pub use topics::Topics;
pub use transactions::{EndingTransaction, ExcludedTransaction, TransactionDecision};
pub use user_time::{NO_TIMES, UserTimeRule};
pub use user_times::UserTimes;
pub use view::{PartitionView, TopicView};
pub use weighted_cache::weighted_cache;
