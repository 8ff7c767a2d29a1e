//! The stored state of a transactional id.

use engine_core::TransactionEnd;
use serde::{Deserialize, Serialize};

/// A transactional id, after its last event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionState {
    pub producer: i64,
    pub epoch: i16,
    /// The producer id that it had before its epochs were used up; -1 if it had no other.
    pub previous_producer: i64,
    /// The epoch before the last change that a producer asked for by its own epoch (KIP-360); -1
    /// otherwise.
    pub last_epoch: i16,
    /// The longest time that a transaction may stay open, in milliseconds.
    pub timeout_ms: u32,
    /// The end of its last transaction.
    pub last: LastTransaction,
    /// True if that raised its epoch (KIP-890).
    pub raised_epoch: bool,
    /// The time of its last change, in milliseconds since 1970.
    pub updated_ms: u64,
}

/// The end of the last transaction of a transactional id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LastTransaction {
    /// There was none since its producer was initialized.
    None,
    Committed,
    Aborted,
}

/// The decision of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredDecision {
    pub producer: i64,
    /// The epoch of its markers.
    pub epoch: i16,
    pub is_committed: bool,
}

impl StoredDecision {
    pub fn end(self) -> TransactionEnd {
        let StoredDecision { producer, epoch, is_committed } = self;
        TransactionEnd { producer, epoch, is_committed }
    }
}
