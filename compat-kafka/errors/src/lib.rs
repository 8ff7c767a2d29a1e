//! Kafka's code for each error of the engine, of groups and of transactions. A new kind of error
//! needs a code here before it compiles; only the faults of batches have a code for the rest.

#![forbid(unsafe_code)]

use engine::security::SecurityError;
use engine::{EngineError, SeekError, StorageError};
use kafka_groups::GroupError;
use kafka_protocol::ResponseError;
use kafka_protocol::protocol::StrBytes;
use kafka_records::BatchError;
use kafka_transactions::TransactionError;

/// The text that clients show for an error. A refusal is in Kafka's words.
pub fn error_message(error: ResponseError) -> StrBytes {
    let refusal = match error {
        ResponseError::TopicAuthorizationFailed => "Topic authorization failed.",
        ResponseError::GroupAuthorizationFailed => "Group authorization failed.",
        ResponseError::ClusterAuthorizationFailed => "Cluster authorization failed.",
        ResponseError::TransactionalIdAuthorizationFailed => {
            "Transactional Id authorization failed."
        }
        ResponseError::DelegationTokenAuthorizationFailed => {
            "Delegation Token authorization failed."
        }
        ResponseError::UnknownTopicOrPartition => "This server does not host this topic-partition.",
        ResponseError::ElectionNotNeeded => "Leader election not needed for topic partition.",
        ResponseError::NoReassignmentInProgress => "No partition reassignment is in progress.",
        ResponseError::ThrottlingQuotaExceeded => "The throttling quota has been exceeded.",
        error => return StrBytes::from_string(error.to_string()),
    };
    StrBytes::from_static_str(refusal)
}

/// There is no `_` arm: a new kind of error needs a code here before it compiles.
pub fn engine_error(error: &EngineError) -> ResponseError {
    match error {
        EngineError::UnknownPartition { .. } | EngineError::UnknownTopic(_) => {
            ResponseError::UnknownTopicOrPartition
        }
        EngineError::TopicExists(_) => ResponseError::TopicAlreadyExists,
        EngineError::TopicName(_) => ResponseError::InvalidTopicException,
        EngineError::PartitionCount(_) => ResponseError::InvalidPartitions,
        EngineError::Config(_) => ResponseError::InvalidConfig,
        // A duplicate is answered as a success with the old offset. A caller that cannot do that
        // returns this.
        EngineError::Duplicate { .. } => ResponseError::DuplicateSequenceNumber,
        EngineError::OutOfOrderSequence { .. } => ResponseError::OutOfOrderSequenceNumber,
        EngineError::StaleProducerEpoch { .. } => ResponseError::InvalidProducerEpoch,
        EngineError::NotTransactional { .. } | EngineError::NoOpenTransaction { .. } => {
            ResponseError::InvalidTxnState
        }
        // Clients retry.
        EngineError::TooManyTransactions { .. } => ResponseError::ConcurrentTransactions,
        EngineError::OffsetOutOfRange { .. } => ResponseError::OffsetOutOfRange,
        EngineError::Pinned { .. } | EngineError::OverBudget(_) => ResponseError::PolicyViolation,
        // Clients send the batch again, and then it is checked by the new setting.
        EngineError::UserTimeChanged => ResponseError::NotLeaderOrFollower,
        EngineError::UserTimeOutOfOrder { .. } => ResponseError::InvalidTimestamp,
        EngineError::UserTime(_) => ResponseError::InvalidConfig,
        EngineError::Fenced(_) => ResponseError::NotLeaderOrFollower,
        // Kafka's coordinator returns this while it loads its partition of the offsets topic.
        // Clients retry.
        EngineError::Loading(_) => ResponseError::CoordinatorLoadInProgress,
        EngineError::Storage(error) => storage_error(error),
        EngineError::Corrupt(_) | EngineError::Internal(_) => ResponseError::KafkaStorageError,
        EngineError::Stopping(_) => ResponseError::NotLeaderOrFollower,
    }
}

/// The code for stored data that cannot be read or written. Clients retry: there may be room by
/// then, and a corrupt index is rebuilt. A corrupt payload is not mapped here: a fetch of it
/// returns CORRUPT_MESSAGE, so that a consumer does not retry endlessly (`apis/fetch.rs`).
pub fn storage_error(error: &StorageError) -> ResponseError {
    match error {
        StorageError::Io { .. }
        | StorageError::NoSpace { .. }
        | StorageError::Missing { .. }
        | StorageError::Corrupt { .. }
        | StorageError::Stopped { .. }
        | StorageError::Interrupted => ResponseError::KafkaStorageError,
    }
}

/// The code for a refusal of the coordinator of transactions. If a client does not know the code
/// for being fenced, its API maps that.
pub fn transaction_error(error: &TransactionError) -> ResponseError {
    match error {
        TransactionError::EmptyId | TransactionError::IdTooLong { .. } => {
            ResponseError::InvalidRequest
        }
        TransactionError::InvalidTimeout => ResponseError::InvalidTransactionTimeout,
        TransactionError::InvalidProducerIdMapping => ResponseError::InvalidProducerIdMapping,
        TransactionError::Fenced => ResponseError::ProducerFenced,
        TransactionError::Concurrent => ResponseError::ConcurrentTransactions,
        TransactionError::InvalidState => ResponseError::InvalidTxnState,
        TransactionError::TooMany(_) => ResponseError::CoordinatorNotAvailable,
        // Clients look the coordinator up again, and retry.
        TransactionError::Engine(error) => match engine_error(error) {
            ResponseError::NotLeaderOrFollower | ResponseError::KafkaStorageError => {
                ResponseError::NotCoordinator
            }
            error => error,
        },
    }
}

/// The code for a moment in a topic's name that cannot be read.
pub fn seek_error(error: &SeekError) -> ResponseError {
    match error {
        SeekError::NotYet { .. } => ResponseError::OffsetNotAvailable,
        // Not UNKNOWN_TOPIC_OR_PARTITION, which clients retry again and again.
        SeekError::FarFuture { .. }
        | SeekError::BeforeHistory { .. }
        | SeekError::BeforeOffsets { .. }
        | SeekError::BeforeZnodes { .. }
        | SeekError::BeforeNames { .. }
        | SeekError::NoTopic { .. } => ResponseError::InvalidTopicException,
        SeekError::Engine(error) => engine_error(error),
    }
}

/// The code for a change of users, access control lists or quotas that was not made.
pub fn security_error(error: &SecurityError) -> ResponseError {
    match error {
        SecurityError::TooMuch { .. } => ResponseError::PolicyViolation,
        SecurityError::Seek(error) => seek_error(error),
    }
}

/// The code for a batch that a producer sent.
pub fn batch_error(error: &BatchError) -> ResponseError {
    match error {
        BatchError::Crc { .. } | BatchError::Length { .. } | BatchError::TooShort { .. } => {
            ResponseError::CorruptMessage
        }
        // Java's producer splits the batch then.
        BatchError::TooLarge { .. } => ResponseError::MessageTooLarge,
        // Kafka 4 accepts only the newest message format, and calls any other invalid.
        _ => ResponseError::InvalidRecord,
    }
}

pub fn group_error(error: GroupError) -> ResponseError {
    match error {
        GroupError::UnknownMemberId => ResponseError::UnknownMemberId,
        GroupError::IllegalGeneration => ResponseError::IllegalGeneration,
        GroupError::RebalanceInProgress => ResponseError::RebalanceInProgress,
        GroupError::InconsistentGroupProtocol => ResponseError::InconsistentGroupProtocol,
        GroupError::MemberIdRequired => ResponseError::MemberIdRequired,
        GroupError::FencedInstanceId => ResponseError::FencedInstanceId,
        GroupError::InvalidSessionTimeout => ResponseError::InvalidSessionTimeout,
        GroupError::GroupMaxSizeReached => ResponseError::GroupMaxSizeReached,
        // Clients look up the coordinator again, and retry after a pause.
        GroupError::CoordinatorNotAvailable
        | GroupError::TooManyGroups
        | GroupError::TooManyBytes => ResponseError::CoordinatorNotAvailable,
        GroupError::TooLarge => ResponseError::UnknownServerError,
        GroupError::NonEmptyGroup => ResponseError::NonEmptyGroup,
        GroupError::GroupIdNotFound | GroupError::OtherGroupType => ResponseError::GroupIdNotFound,
        GroupError::GroupSubscribedToTopic => ResponseError::GroupSubscribedToTopic,
        GroupError::InvalidGroupId => ResponseError::InvalidGroupId,
        GroupError::FencedMemberEpoch => ResponseError::FencedMemberEpoch,
        GroupError::StaleMemberEpoch => ResponseError::StaleMemberEpoch,
        GroupError::UnreleasedInstanceId => ResponseError::UnreleasedInstanceId,
        GroupError::UnsupportedAssignor => ResponseError::UnsupportedAssignor,
        GroupError::InvalidRegularExpression => ResponseError::InvalidRegularExpression,
        GroupError::InvalidRequest
        | GroupError::InvalidShareRequest
        | GroupError::InvalidStreamsRequest
        | GroupError::OtherTopology => ResponseError::InvalidRequest,
        GroupError::InvalidTopology => ResponseError::StreamsInvalidTopology,
        GroupError::UnsupportedVersion => ResponseError::UnsupportedVersion,
    }
}
