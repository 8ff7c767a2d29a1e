//! Kafka's transactions (KIP-98, with KIP-360, KIP-447 and both parts of KIP-890).
//!
//! `TransactionalId` is one transactional id as a pure state machine: who may do what, and how ids
//! and epochs go on. [`TransactionCoordinator`] holds all of them, and connects them to the journal
//! and to time.
//!
//! The journal has an event when a producer is initialized, one for the offsets that are added to a
//! transaction, and one for its decision; the markers follow from that. The partitions of an open
//! transaction are not stored: their logs say so.
//!
//! Invariants:
//! - Everything that is checked under the lock of a transactional id is queued under it too:
//!   nothing of a producer comes behind its decision, or behind what fenced it.
//! - A transaction is decided once, and a new one begins only behind the markers of the last.

#![forbid(unsafe_code)]

mod budgets;
mod coordinator;
mod describe;
mod error;
mod options;
#[cfg(test)]
mod properties;
mod transactional_id;

pub use coordinator::{TransactionCoordinator, TransactionScope};
pub use describe::{TransactionDescription, TransactionOverview, TransactionStatus};
pub use error::TransactionError;
pub use options::TransactionOptions;
pub use transactional_id::{EndVersion, ProducerIdAndEpoch};
