//! Consumer groups: committed offsets and the snapshots of members, now and as of any moment; and
//! the state of transactional ids, because a transaction commits offsets.
//!
//! A wing of the engine: its events are in a log of their own, and [`Groups`] is its handle. It
//! knows nothing of how members join, vote and rebalance: that is the protocol server's part.
//!
//! Invariants:
//! - Each change is one event, so a cut has all of it or nothing.
//! - Committed offsets are a soft state in the catalog, rebuilt from the log of events when in
//!   doubt.

#![forbid(unsafe_code)]

mod commits;
mod configs;
mod event;
mod expiry;
mod group_catalog;
mod group_projection;
mod groups;
mod horizon;
mod moments;
mod offsets;
mod stored_transaction;
mod transaction_state;
mod transactions;

pub use configs::ResourceType;
pub use event::{
    GroupEvent, OffsetCommit, RestatedConfig, RestatedGroup, RestatedMember, RestatedOffset,
    RestatedTransaction, RestatedTransactionOffset, restated_bound,
};
pub use group_catalog::{
    CommittedOffset, ExpiredOffset, ExpiredOffsets, GroupDifference, GroupOffset, KeyComparison,
    OffsetDifference, OffsetExpiry, ResourceConfig, StoredGroup, StoredMembers,
};
pub use groups::{GroupOptions, Groups};
pub use moments::{
    GroupSeekTarget, GroupSetError, GroupSetMode, GroupSetResult, OffsetChange, SkippedPartition,
};
pub use offsets::GroupAtCut;
pub use stored_transaction::{StoredTransaction, StoredTransactionOffset};
pub use transaction_state::{LastTransaction, StoredDecision, TransactionState};
pub use transactions::GroupedOffsets;
