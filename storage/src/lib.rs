//! Logs of bytes, their one journal, recovery, and reading as of a moment.
//!
//! This crate deals with entries, stamps, files and syncs. It has no notion of topics or of a wire
//! format. An [`AppendStage`], which the crate's user supplies, decides what an append means.
//! Payloads are opaque.
//!
//! Overview:
//! - All logs share one **journal**: frames in stamp order, written by one thread, synced in
//!   groups. A crash leaves a prefix of it, which is a prefix in stamp order ([`journal`]).
//! - A **log** is the index over its entries, and the newest payloads in memory ([`log`]).
//! - The **timekeeper** owns the clock, the persisted bound and the stamps of appends in flight
//!   ([`timekeeper`]).
//! - A **proof** for each sealed segment makes its history verifiable ([`proof`]).
//! - A [`StorageError`] says why something cannot be read or written, and what a caller can do
//!   about it.
//! - A **backup** is a copy of the journal that a running store need not stop for, and a copy as of
//!   a moment ([`backup`]).
//! - The **catalog** is a soft ordered map. It is rebuilt from the journal when in doubt
//!   ([`catalog`]).
//!
//! The layout of every file is in `docs/FORMAT.md`, and only there.

#![forbid(unsafe_code)]

pub mod backup;
pub mod catalog;
pub mod check;
mod checksum;
mod data_cache;
mod data_dir;
mod data_file;
pub mod disk;
mod entry;
mod error;
mod history;
pub mod index;
pub mod journal;
mod latency;
pub mod log;
mod log_throttle;
pub mod manifest;
mod payload;
pub mod proof;
mod read_range;
pub mod sealed_segment;
pub mod sorted_segment;
mod space_reserve;
mod storage_file;
mod store;
mod tail;
pub mod timekeeper;

pub use data_cache::{DATA_BLOCK_BYTES, DataCache, DataCacheStats, DataFileBlock, block_of};
pub use data_dir::{
    DataDirectory, DataDirectoryError, DirectoryIdentity, FORMAT_VERSION, IdentityError,
    is_open_to_others,
};
pub use data_file::{DIRECT_READ_BYTES_MIN, DataFile, LoadBuffer, LoadMemory, LoadMemorySource};
pub use entry::{Entry, LogId, Offset};
pub use error::StorageError;
pub use history::{
    CompactedEntry, CompactionHorizon, CompactionSource, EntrySink, HistoryError, HistoryStats,
    ReclaimStats,
};
pub use latency::{LatencyCounts, LatencyHistogram};
pub use log::Log;
pub use log_throttle::{LogThrottle, LogThrottles};
pub use payload::{
    EntryPayload, PAYLOAD_HEADER_BYTES_MAX, Payload, PayloadHeader, PayloadLocation,
};
pub use space_reserve::RESERVE_FILE;
pub use storage_file::StorageFile;
pub use store::{
    AbortOnPanic, AppendError, AppendReceipt, AppendResults, AppendStage, Commit, CommitAuthority,
    Durability, ForeignGroup, GroupNumber, LogAppend, LogSource, OpenError, Options, PromiseBound,
    ReplayHandler, ReplayedEntry, Store, StoreStats, TakeOverError, TruncateError, UndoLog,
    WrittenGroup,
};
