//! The errors of the engine, grouped by how a caller reacts.

use std::sync::Arc;

use hlc::{Cut, Moment, UserTime};
use storage::catalog::CatalogError;
use storage::{AppendError, Offset, StorageError};

use crate::config::ConfigError;

/// The reason that the engine did not do what was requested.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// No such topic, or no such partition of it.
    #[error("there is no partition {topic}/{partition}")]
    UnknownPartition { topic: String, partition: i32 },
    /// No such topic.
    #[error("there is no topic {0}")]
    UnknownTopic(String),
    #[error("the topic {0} exists already")]
    TopicExists(String),
    /// The name is not a valid topic name.
    #[error("{0}")]
    TopicName(String),
    /// The partition count is below 1, below the current count, or too large.
    #[error("{0}")]
    PartitionCount(String),
    /// A setting is unknown or its value is not valid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The batch was appended before, at this place.
    #[error("the batch was appended before, at offset {}", .base.0)]
    Duplicate {
        /// Its first offset.
        base: Offset,
        /// The time of its append: milliseconds since 1970.
        time_ms: i64,
    },
    /// A producer's sequence number does not follow its last.
    #[error(
        "the sequence number {got} of producer {producer} (epoch {epoch}) is out of order: {expected} would follow"
    )]
    OutOfOrderSequence {
        /// The producer's id.
        producer: i64,
        epoch: i16,
        /// The sequence number that would follow.
        expected: i32,
        /// The sequence number that came.
        got: i32,
    },
    /// A newer incarnation of the producer has written.
    #[error("the epoch {epoch} of producer {producer} is stale: the newest is {newest}")]
    StaleProducerEpoch {
        /// The producer's id.
        producer: i64,
        /// The epoch of the batch.
        epoch: i16,
        /// The newest epoch seen.
        newest: i16,
    },
    /// A producer with an open transaction has sent a batch that belongs to none.
    #[error("the batch belongs to no transaction, and its producer, {producer}, has an open one")]
    NotTransactional {
        /// The producer's id.
        producer: i64,
    },
    /// No transaction of the producer is open in the partition: there is nothing to end.
    #[error("no transaction of producer {producer} is open here")]
    NoOpenTransaction {
        /// The producer's id.
        producer: i64,
    },
    /// There are too many open transactions: retry once some have ended.
    #[error(
        "no more than {most} transactions may be open, counted for each of their partitions: retry once some have ended"
    )]
    TooManyTransactions { most: usize },
    /// The client has its share of a limit that all clients share.
    #[error(transparent)]
    OverBudget(Box<admission::BudgetError>),
    /// The offset is outside of the log.
    #[error("the offset {offset} is out of range: the log is from {} to {}", .start.0, .end.0)]
    OffsetOutOfRange {
        /// The requested offset.
        offset: i64,
        /// The first offset.
        start: Offset,
        /// The offset after the last.
        end: Offset,
    },
    /// A pin holds records that were to be deleted.
    #[error(
        "the pin {pin} of {} holds records of {topic}/{partition}: remove it, or wait until it expires",
        Moment::Sys(*.at)
    )]
    Pinned {
        pin: Arc<str>,
        /// The moment that it holds.
        at: Cut,
        topic: Arc<str>,
        partition: u32,
    },
    /// The topic's user time was changed between a batch's check and its append.
    #[error("the topic's user time was changed while the batch was in flight: send it again")]
    UserTimeChanged,
    /// The topic is strict, and the batch has a user time below its partition's largest.
    #[error(
        "the batch's user time {} falls below the partition's last, {}, and the topic is strict",
        .least.0, .last.0
    )]
    UserTimeOutOfOrder {
        /// The smallest user time in the batch.
        least: UserTime,
        /// The largest user time of the partition.
        last: UserTime,
    },
    /// The extractor of a topic's user time cannot be made, for example because its plug-in is
    /// missing.
    #[error("{0}")]
    UserTime(Arc<str>),
    /// The clock cannot be trusted, or its bound cannot be written.
    #[error("{0}")]
    Fenced(String),
    /// Offsets, groups and names are being loaded from the journal: retry.
    #[error(transparent)]
    Loading(#[from] CatalogError),
    /// Something that is stored cannot be read or written.
    #[error("{0}")]
    Storage(StorageError),
    /// Stored data is intact, and has no meaning to this version.
    #[error("stored batch cannot be read: {0}")]
    Corrupt(String),
    /// The service cannot go on with this: an event cannot be applied, a task has panicked, or a
    /// log cannot be compacted.
    #[error("{0}")]
    Internal(Arc<str>),
    #[error("the service is stopping: {0}")]
    Stopping(Arc<str>),
}

impl EngineError {
    /// The engine is being closed.
    pub fn closing() -> EngineError {
        EngineError::Stopping("it is being closed".into())
    }
}

impl From<AppendError<EngineError>> for EngineError {
    fn from(error: AppendError<EngineError>) -> EngineError {
        match error {
            AppendError::Refused(refusal) => refusal,
            AppendError::Time(error) => EngineError::Fenced(error.to_string()),
            AppendError::Storage(StorageError::Stopped { why }) => EngineError::Stopping(why),
            AppendError::Storage(error) => EngineError::Storage(error),
            AppendError::CutOff | AppendError::Undecided => {
                EngineError::Storage(StorageError::Interrupted)
            }
        }
    }
}

impl From<StorageError> for EngineError {
    fn from(error: StorageError) -> EngineError {
        EngineError::Storage(error)
    }
}
