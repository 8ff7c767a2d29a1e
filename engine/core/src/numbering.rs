//! Numbers that mean the same in every journal: the kinds of entries, and the logs that belong to
//! no partition. `docs/FORMAT.md` lists them.
//!
//! The numbers of all wings are here, so that no two wings take the same one, and so that a start
//! refuses a journal with entries of an unknown kind before it reads any wing's log.

use std::ops::RangeInclusive;

use storage::LogId;

/// The log of events of topics, pins and producer ids.
pub const NAMESPACE_LOG: LogId = LogId(0);
/// The log of events of offsets and groups.
pub const GROUPS_LOG: LogId = LogId(1);
/// The log of the first partition that is ever created.
pub(crate) const FIRST_PARTITION: u64 = 2;
/// The log of names and attributes of files.
pub const FILES_LOG: LogId = LogId(u64::MAX);
/// The log of transactions on znodes and sessions. A transaction's zxid is its offset plus 1.
pub const ZNODES_LOG: LogId = LogId(u64::MAX - 1);
/// The log of checkpoints of all znodes and sessions.
pub const ZNODE_CHECKPOINTS_LOG: LogId = LogId(u64::MAX - 2);

/// The log of users, access control lists and quotas.
pub const SECURITY_LOG: LogId = LogId(u64::MAX - 3);

/// An event of the namespace. All of them are replayed at every start.
pub const KIND_NAMESPACE: u8 = 1;
/// An event of offsets and groups. Only those that the catalog has not applied are replayed.
pub const KIND_GROUPS: u8 = 2;
/// A transaction on znodes and sessions.
pub const KIND_ZNODES: u8 = 3;
/// A part of a checkpoint of znodes and sessions.
pub const KIND_ZNODE_CHECKPOINT: u8 = 4;
/// A change of users, access control lists and quotas, or a snapshot of them.
pub const KIND_SECURITY: u8 = 5;
/// A batch of records.
pub const KIND_RECORDS: u8 = 16;
/// A control batch that ends a transaction in a partition.
pub const KIND_MARKER: u8 = 17;
/// An entry of a transaction log.
pub const KIND_ENDED_TRANSACTION: u8 = 18;
/// The entries of files.
pub const FILE_KINDS: RangeInclusive<u8> = 32..=36;

/// Returns true for the logs that belong to no partition.
pub(crate) fn is_outside_partitions(log: LogId) -> bool {
    log.0 < FIRST_PARTITION
        || [FILES_LOG, ZNODES_LOG, ZNODE_CHECKPOINTS_LOG, SECURITY_LOG].contains(&log)
}

/// Returns true for the events that the applier applies.
pub(crate) fn is_event_kind(kind: u8) -> bool {
    matches!(kind, KIND_NAMESPACE | KIND_GROUPS)
}

/// Returns true if this version knows entries of that kind.
pub(crate) fn is_known_kind(kind: u8) -> bool {
    matches!(
        kind,
        KIND_NAMESPACE
            | KIND_GROUPS
            | KIND_ZNODES
            | KIND_ZNODE_CHECKPOINT
            | KIND_SECURITY
            | KIND_RECORDS
            | KIND_MARKER
            | KIND_ENDED_TRANSACTION
    ) || FILE_KINDS.contains(&kind)
}
