//! The one place where our errors become Kafka's.

use engine::{EngineError, SeekError, StorageError};
use kafka_protocol::ResponseError;
use kafka_records::BatchError;

use crate::groups::GroupError;

/// No `_` arm: a new kind of error must be given a code here before it compiles.
pub(crate) fn engine_error(error: &EngineError) -> ResponseError {
    match error {
        EngineError::UnknownPartition { .. } => ResponseError::UnknownTopicOrPartition,
        EngineError::TopicExists(_) => ResponseError::TopicAlreadyExists,
        EngineError::TopicName(_) => ResponseError::InvalidTopicException,
        EngineError::PartitionCount(_) => ResponseError::InvalidPartitions,
        EngineError::Config(_) => ResponseError::InvalidConfig,
        // Answered as a success with the old offset; a caller that cannot, says this.
        EngineError::Duplicate { .. } => ResponseError::DuplicateSequenceNumber,
        EngineError::OutOfOrderSequence { .. } => ResponseError::OutOfOrderSequenceNumber,
        EngineError::StaleProducerEpoch { .. } => ResponseError::InvalidProducerEpoch,
        EngineError::OffsetOutOfRange { .. } => ResponseError::OffsetOutOfRange,
        EngineError::Pinned { .. } | EngineError::TopicLimit(_) => ResponseError::PolicyViolation,
        // Clients send it again, and then it is checked by the new setting.
        EngineError::UserTimeChanged => ResponseError::NotLeaderOrFollower,
        EngineError::UserTimeOutOfOrder { .. } => ResponseError::InvalidTimestamp,
        EngineError::UserTime(_) => ResponseError::InvalidConfig,
        EngineError::Fenced(_) => ResponseError::NotLeaderOrFollower,
        // As a coordinator of Kafka that reads its part of the offsets' topic back: clients ask again.
        EngineError::Loading(_) => ResponseError::CoordinatorLoadInProgress,
        EngineError::Storage(error) => storage_error(error),
        EngineError::Corrupt(_) | EngineError::Internal(_) => ResponseError::KafkaStorageError,
        EngineError::Stopping(_) => ResponseError::NotLeaderOrFollower,
    }
}

/// Something that is stored and cannot be read or written. Clients ask again: there may be room by then, and
/// a corrupt index is rebuilt. A corrupt payload does not come here: who fetches one gets CORRUPT_MESSAGE, at
/// which a consumer does not ask for it for ever (`apis/fetch.rs`).
pub(crate) fn storage_error(error: &StorageError) -> ResponseError {
    match error {
        StorageError::Io { .. }
        | StorageError::NoSpace { .. }
        | StorageError::Missing { .. }
        | StorageError::Corrupt { .. }
        | StorageError::Stopped { .. }
        | StorageError::Interrupted => ResponseError::KafkaStorageError,
    }
}

/// A moment that cannot be read, where the topic's name asked for it.
pub(crate) fn seek_error(error: &SeekError) -> ResponseError {
    match error {
        SeekError::NotYet { .. } => ResponseError::OffsetNotAvailable,
        // Not "unknown topic", which clients ask for again and again.
        SeekError::FarFuture { .. }
        | SeekError::BeforeHistory { .. }
        | SeekError::BeforeOffsets { .. }
        | SeekError::BeforeNames { .. }
        | SeekError::NoTopic { .. } => ResponseError::InvalidTopicException,
        SeekError::Engine(error) => engine_error(error),
    }
}

/// A batch that a producer sent.
pub(crate) fn batch_error(error: &BatchError) -> ResponseError {
    match error {
        BatchError::Crc { .. } | BatchError::Length { .. } | BatchError::TooShort { .. } => {
            ResponseError::CorruptMessage
        }
        // Java's producer splits the batch then.
        BatchError::TooLarge { .. } => ResponseError::MessageTooLarge,
        // Kafka 4 takes no message format but the newest, and calls any other invalid.
        _ => ResponseError::InvalidRecord,
    }
}

pub(crate) fn group_error(error: GroupError) -> ResponseError {
    match error {
        GroupError::UnknownMemberId => ResponseError::UnknownMemberId,
        GroupError::IllegalGeneration => ResponseError::IllegalGeneration,
        GroupError::RebalanceInProgress => ResponseError::RebalanceInProgress,
        GroupError::InconsistentGroupProtocol => ResponseError::InconsistentGroupProtocol,
        GroupError::MemberIdRequired => ResponseError::MemberIdRequired,
        GroupError::FencedInstanceId => ResponseError::FencedInstanceId,
        GroupError::InvalidSessionTimeout => ResponseError::InvalidSessionTimeout,
        GroupError::GroupMaxSizeReached => ResponseError::GroupMaxSizeReached,
        // Clients look for the coordinator, and try again after a while.
        GroupError::CoordinatorNotAvailable
        | GroupError::TooManyGroups
        | GroupError::TooManyBytes => ResponseError::CoordinatorNotAvailable,
        GroupError::TooLarge => ResponseError::UnknownServerError,
        GroupError::NonEmptyGroup => ResponseError::NonEmptyGroup,
        GroupError::GroupIdNotFound => ResponseError::GroupIdNotFound,
        GroupError::GroupSubscribedToTopic => ResponseError::GroupSubscribedToTopic,
        GroupError::InvalidGroupId => ResponseError::InvalidGroupId,
    }
}
