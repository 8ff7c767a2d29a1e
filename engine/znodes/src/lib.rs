//! Znodes and sessions: ZooKeeper's tree as a wing of the engine.
//!
//! Each change is one transaction in a log of its own. Its zxid is its offset plus 1, and its time
//! is that of its stamp. Three places know of a transaction, one after the other:
//! 1. `pending`: on the writer's thread, where the order of transactions is known, it is decided
//!    whether it fails.
//! 2. `tree`: once it is on stable storage, it is applied, on the thread of this crate.
//! 3. Watches fire while the tree is locked, and replies follow before the next transaction is
//!    applied: no reader sees a change before its event is on the way.
//!
//! This crate knows no connections and no watches, and of the wire only error codes and stats.

#![forbid(unsafe_code)]

pub mod acl;
mod changes;
mod charges;
mod checkpoint;
mod child_list;
mod children;
mod entry;
mod history;
mod meta;
mod path;
mod pending;
mod quota;
mod replay;
mod request;
mod restore;
mod retention;
mod subtree_guard;
mod table;
mod tree;
mod versions;
mod znodes;

pub use changes::{
    ChangesPage, ChangesQuery, PastTransaction, ZnodeAtMoment, ZnodeDiffPage, ZnodeDifference,
};
pub use history::{PastZnode, ZnodeHistory};
pub use path::{SPECIAL_PATHS, check_path, split_path};
pub use replay::{ZnodeChange, ZnodeChangeKind};
pub use request::{
    OpOutcome, SessionId, TransactionOutcome, ZnodeLifetime, ZnodeOp, ZnodeRefusal,
    ZnodeTransaction,
};
pub use restore::{PastSubtree, RestoreError};
pub use retention::ZnodeOptions;
pub use subtree_guard::SubtreeGuard;
pub use table::ZnodeData;
pub use tree::{ChangeVisitor, TreeChange, TreeChangeKind, ZkSession, ZnodeRef, ZnodeTree};
pub use zk_wire::{ZkCode, ZnodeStat};
pub use znodes::{
    FetchedData, OnApplied, TransactionDraft, TransactionRequest, ZnodeCheckpoint, ZnodeLogSizes,
    ZnodeObserver, Znodes,
};
