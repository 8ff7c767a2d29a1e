//! What can go wrong, by what a caller would do about it.

use std::sync::Arc;

use hlc::{Cut, Moment, UserTime};
use storage::Offset;
use storage::catalog::CatalogError;

use crate::config::ConfigError;

/// Why the engine did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EngineError {
    /// No such topic, or no such partition of it.
    #[error("unknown topic or partition. topic={topic}, partition={partition}")]
    UnknownPartition {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
    },
    /// A topic of that name is there.
    #[error("topic exists already. topic={0}")]
    TopicExists(String),
    /// The name cannot be a topic's.
    #[error("{0}")]
    TopicName(String),
    /// Fewer partitions than 1, or than there are, or too many.
    #[error("{0}")]
    PartitionCount(String),
    /// There are as many topics or partitions as there may be.
    #[error("{0}")]
    TopicLimit(String),
    /// A setting is unknown or its value is none.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The batch was appended before; this is where it went.
    #[error("batch was appended before. base={}", .base.0)]
    Duplicate {
        /// Its first offset.
        base: Offset,
        /// When it was appended: milliseconds since 1970.
        time_ms: i64,
    },
    /// A producer's sequence number does not follow its last.
    #[error(
        "out-of-order sequence number. producer={producer}, epoch={epoch}, expected={expected}, got={got}"
    )]
    OutOfOrderSequence {
        /// The producer's id.
        producer: i64,
        /// Its epoch.
        epoch: i16,
        /// What would follow.
        expected: i32,
        /// What came.
        got: i32,
    },
    /// A newer incarnation of the producer has written.
    #[error("producer epoch is stale. producer={producer}, epoch={epoch}, newest={newest}")]
    StaleProducerEpoch {
        /// The producer's id.
        producer: i64,
        /// The epoch that came.
        epoch: i16,
        /// The newest epoch seen.
        newest: i16,
    },
    /// The offset lies outside of the log.
    #[error("offset is out of range. offset={offset}, start={}, end={}", .start.0, .end.0)]
    OffsetOutOfRange {
        /// What was asked for.
        offset: i64,
        /// The first offset.
        start: Offset,
        /// The offset behind the last.
        end: Offset,
    },
    /// A pin holds records that were to be given up.
    #[error(
        "a pin holds these records: remove it, or wait until it expires. pin={pin}, moment={}, topic={topic}, partition={partition}",
        Moment::Sys(*.at)
    )]
    Pinned {
        /// The pin.
        pin: Arc<str>,
        /// What it holds.
        at: Cut,
        /// The topic.
        topic: Arc<str>,
        /// The partition.
        partition: u32,
    },
    /// The topic's user time was set anew between a batch's check and its append.
    #[error("the topic's user time was changed while the batch was in flight: send it again")]
    UserTimeChanged,
    /// A strict topic takes no user time below its partition's largest.
    #[error(
        "the batch's user time falls below the partition's last, and the topic is strict. least={}, last={}",
        .least.0, .last.0
    )]
    UserTimeOutOfOrder {
        /// The smallest user time in the batch.
        least: UserTime,
        /// The largest of the partition.
        last: UserTime,
    },
    /// What finds a topic's user time cannot be had.
    #[error("{0}")]
    UserTime(Arc<str>),
    /// The clock cannot be trusted, or its bound not be written.
    #[error("{0}")]
    Fenced(String),
    /// Offsets, groups and names are being loaded from the journal: ask again.
    #[error(transparent)]
    Loading(#[from] CatalogError),
    /// The disk is full or fails.
    #[error("{0}")]
    Disk(Arc<str>),
    /// A batch that was stored cannot be read.
    #[error("stored batch cannot be read: {0}")]
    Corrupt(String),
    /// The service is stopping.
    #[error("the service is stopping: {0}")]
    Stopping(Arc<str>),
}

impl From<std::io::Error> for EngineError {
    fn from(error: std::io::Error) -> EngineError {
        EngineError::Disk(error.to_string().into())
    }
}
