//! The state that share groups keep of the records of their partitions (KIP-932): which are
//! delivered to whom, and which are done with.
//!
//! [`SharePartition`] is one partition, as one group sees it: a state machine without time or I/O
//! of its own. [`SharePartitions`] holds all of them, and connects them to time, to fetches that
//! wait, and to what is stored. `ShareSessions` are the sessions in which members fetch. The
//! members of a group are in `kafka_groups`.

#![forbid(unsafe_code)]

use engine::groups::CommittedOffset;

mod partition;
mod partitions;
mod sessions;

pub use partition::{
    AcknowledgedBatch, AcquireRequest, AcquiredRange, RecordBatchRange, SharePartition,
};
pub use partitions::{ShareGroupProgress, SharePartitions, ShareSessionGuard};
pub use sessions::ShareSessionCounts;
pub use sessions::{CLOSING_EPOCH, OPENING_EPOCH, SessionKey, SessionPartition};

/// The position of a group, by what is stored of it: its start offset, and the number of records
/// after that which are done with.
pub fn position_of(stored: &CommittedOffset) -> (i64, i64) {
    let partition = SharePartition::parse(stored.offset, &stored.metadata);
    partition.map_or((stored.offset, 0), |partition| (partition.start(), partition.final_count()))
}
