//! Znodes and sessions: ZooKeeper's tree as a wing of the engine.
//!
//! Each change is one transaction in a log of its own. Its zxid is its offset plus 1, and its time is
//! that of its stamp. Three places know of a transaction, one after the other:
//! 1. `pending`: on the writer's thread, where the order of transactions is known, it is decided
//!    whether it fails.
//! 2. `tree`: once it is on stable storage, it is applied, on the thread of this crate.
//! 3. Whoever asked for it, and whoever watches, are called while the tree is still locked: nobody
//!    reads the change before they know of it.
//!
//! This crate knows no wire format, no connections and no watches.

#![forbid(unsafe_code)]

pub mod acl;
mod code;
mod entry;
mod history;
mod path;
mod pending;
mod request;
mod stat;
mod tree;
mod znodes;

pub use code::ZkCode;
pub use history::{PastZnode, ZnodeHistory};
pub use path::{SPECIAL_PATHS, check_path, split_path};
pub use request::{
    CheckedOp, OpOutcome, SessionId, TransactionOutcome, ZnodeLifetime, ZnodeOp, ZnodeRefusal,
    ZnodeTransaction,
};
pub use stat::ZnodeStat;
pub use tree::{ChangeVisitor, TreeChange, TreeChangeKind, ZkSession, ZnodeRef, ZnodeTree};
pub use znodes::{OnApplied, TransactionRequest, ZnodeObserver, Znodes};
