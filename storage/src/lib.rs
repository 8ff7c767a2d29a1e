//! Logs of bytes, their one journal, recovery, and reading as of a moment.
//!
//! This crate knows entries, stamps, files and syncs. It knows no topics and no wire format: what
//! an append means is decided by a [`Stage`] that its user supplies, and payloads are opaque.
//!
//! How it holds together:
//! - All logs share one **journal**: frames in stamp order, written by one thread, synced in groups.
//!   What survives a crash is a prefix of it, so it is a prefix in stamp order ([`journal`]).
//! - A **log** is the index over its entries, and the newest payloads in memory ([`log`]).
//! - The **timekeeper** owns the clock, the persisted bound and what is in flight ([`timekeeper`]).
//! - A **proof** beside each sealed segment makes its history verifiable ([`proof`]).
//! - A **file interval tree** says which entry of a log holds each byte of a file ([`fig`]).
//! - The **catalog** is a soft ordered map, rebuilt from the journal whenever in doubt ([`catalog`]).
//!
//! The layout of every file is in `docs/FORMAT.md`, and only there.
pub mod catalog;
pub mod check;
mod checksum;
mod data_cache;
mod data_file;
pub mod disk;
pub mod fig;
pub mod filed;
mod history;
mod home;
pub mod index;
pub mod journal;
pub mod log;
pub mod manifest;
pub mod part;
pub mod proof;
mod read_part;
mod refusals;
mod reserve;
mod store;
mod tail;
pub mod timekeeper;

pub use data_cache::{DATA_BLOCK_BYTES, DataCache, DataCacheStats, DataFileBlock, block_of};
pub use data_file::{AROUND_BYTES_MIN, DataFile, LoadBuffer};
pub use history::{Compacted, Emit, Fill, Freed, HistoryError, HistoryStats, Kept};
pub use home::{FORMAT, Home, HomeError};
pub use log::{Entry, Log, LogId, Offset, Piece, PieceData};
pub use reserve::RESERVE_FILE;
pub use store::{
    AbortOnPanic, Append, AppendError, Appended, Durability, LogSource, OpenError, Options, Replay,
    Replayed, Results, Stage, Stats, Store,
};
pub use tail::{HEAD_BYTES_MAX, Head, Payload};
