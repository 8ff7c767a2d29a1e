//! Settings of topics that actors make and invariants judge by.

/// The time that a tombstone is kept.
pub(crate) const DELETE_RETENTION_MS: u64 = 6000;

/// The time that a record of the topic `short` is kept.
pub(crate) const SHORT_RETENTION_MS: u64 = 2500;
