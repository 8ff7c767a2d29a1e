//! A transactional id and its open transaction, as they are read back.

use hlc::Hlc;

use crate::event::OffsetCommit;
use crate::transaction_state::{StoredDecision, TransactionState};

/// A transactional id as the catalog has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTransaction {
    pub id: String,
    pub state: TransactionState,
    /// The decision of its last transaction, and when it was made.
    pub decided: Option<(Hlc, StoredDecision)>,
    /// The offsets that its open transaction commits.
    pub offsets: Vec<StoredTransactionOffset>,
    /// True if offsets were added to its open transaction that something later has superseded.
    pub has_superseded: bool,
}

/// An offset of an open transaction, as the catalog has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTransactionOffset {
    pub group: String,
    /// The stamp at which it was added.
    pub added: Hlc,
    pub commit: OffsetCommit,
}
