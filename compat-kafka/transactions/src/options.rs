//! The options of transactions.

use std::time::Duration;

/// Options of transactions. Names in parentheses are Kafka's settings, and the defaults are
/// Kafka's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionOptions {
    /// The longest timeout that a producer may ask for (`transaction.max.timeout.ms`).
    pub timeout_max: Duration,
    /// The time for which a transactional id without an open transaction is kept
    /// (`transactional.id.expiration.ms`).
    pub id_expiration: Duration,
    /// The interval of checks for transactions that are open for too long
    /// (`transaction.abort.timed.out.transaction.cleanup.interval.ms`).
    pub abort_interval: Duration,
    /// The interval of checks for transactional ids that are not used
    /// (`transaction.remove.expired.transaction.cleanup.interval.ms`).
    pub removal_interval: Duration,
    /// The most bytes of all transactional ids (`limits.transactional-ids-bytes`).
    pub ids_bytes_max: usize,
    /// The most partitions of all open transactions (`limits.transaction-partitions-max`).
    pub enlisted_max: usize,
    /// The most bytes of groups and offsets in all open transactions
    /// (`limits.transaction-offsets-bytes`).
    pub offsets_bytes_max: usize,
}

impl Default for TransactionOptions {
    fn default() -> TransactionOptions {
        TransactionOptions {
            timeout_max: Duration::from_secs(15 * 60),
            id_expiration: Duration::from_secs(7 * 24 * 60 * 60),
            abort_interval: Duration::from_secs(10),
            removal_interval: Duration::from_secs(60 * 60),
            ids_bytes_max: 384 << 20,
            enlisted_max: 100_000,
            offsets_bytes_max: 128 << 20,
        }
    }
}
