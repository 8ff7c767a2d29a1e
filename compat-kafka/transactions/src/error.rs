//! The reasons for which the coordinator of transactions refuses a request.

use admission::BudgetError;
use engine::EngineError;

#[derive(Clone, Debug, thiserror::Error)]
pub enum TransactionError {
    /// An empty transactional id.
    #[error("the transactional id is empty")]
    EmptyId,
    /// A new transactional id is too long.
    #[error("the transactional id has {bytes} bytes, and a new one may have {most}")]
    IdTooLong { bytes: usize, most: usize },
    /// The timeout is zero, or above `transaction.max.timeout.ms`.
    #[error("transaction.timeout.ms is not above 0 and at most transaction.max.timeout.ms")]
    InvalidTimeout,
    /// The transactional id is unknown, or belongs to another producer id.
    #[error("the transactional id is not mapped to this producer id")]
    InvalidProducerIdMapping,
    /// A newer producer has this transactional id.
    #[error("a newer producer has this transactional id")]
    Fenced,
    /// The last transaction is not complete yet. Retry.
    #[error("the producer's last request, or its last transaction, is not complete yet")]
    Concurrent,
    /// The request does not fit the state of the transaction.
    #[error("the request does not fit the state of the transaction")]
    InvalidState,
    /// The client has its share of transactional ids, or of what open transactions may have. Retry
    /// once some are gone.
    #[error("{0}")]
    TooMany(Box<BudgetError>),
    /// The journal does not take it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl From<BudgetError> for TransactionError {
    fn from(error: BudgetError) -> TransactionError {
        TransactionError::TooMany(Box::new(error))
    }
}
