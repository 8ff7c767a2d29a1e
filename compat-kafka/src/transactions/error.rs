//! Why the coordinator of transactions refuses a request.

use engine::EngineError;

#[derive(Clone, Debug, thiserror::Error)]
pub enum TransactionError {
    /// An empty transactional id.
    #[error("the transactional id is empty")]
    EmptyId,
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
    /// The limit of transactional ids, or of what open transactions may have, is reached. Retry once some
    /// are gone.
    #[error(
        "there may be no more transactional ids, or partitions, groups and offsets in open transactions"
    )]
    TooMany,
    /// The journal does not take it.
    #[error(transparent)]
    Engine(#[from] EngineError),
}
