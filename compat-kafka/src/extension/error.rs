//! Why an operation failed: a code for programs, and a sentence for people.

use engine::groups::GroupSetError;
use engine::{EngineError, PinError, SeekError, StorageError};
use hlc::Hlc;
use serde::Serialize;
use serde_json::json;

use super::error_code::HistoryErrorCode;
use super::moment::stamp_text;
use crate::groups::GroupError;

/// The retry delay while the catalog is loaded from the journal.
const LOADING_RETRY_MS: u64 = 1000;

/// Why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryApiError {
    code: HistoryErrorCode,
    message: String,
    frontier: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_ms: Option<u64>,
}

impl HistoryApiError {
    pub fn new(code: HistoryErrorCode, message: impl Into<String>) -> HistoryApiError {
        HistoryApiError { code, message: message.into(), frontier: None, retry_ms: None }
    }

    pub fn code(&self) -> HistoryErrorCode {
        self.code
    }

    /// When to retry, in milliseconds, if that would help.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// The same, with a retry after so many milliseconds.
    pub fn retry_in(self, retry_ms: u64) -> HistoryApiError {
        HistoryApiError { retry_ms: Some(retry_ms), ..self }
    }

    /// The response document: one field, `error`.
    pub fn document(&self) -> String {
        json!({ "error": self }).to_string()
    }

    fn at_frontier(self, frontier: Hlc) -> HistoryApiError {
        HistoryApiError { frontier: Some(stamp_text(frontier)), ..self }
    }
}

impl From<SeekError> for HistoryApiError {
    fn from(error: SeekError) -> HistoryApiError {
        let message = error.to_string();
        match error {
            SeekError::NotYet { frontier, retry_ms, .. } => {
                let refusal =
                    HistoryApiError::new(HistoryErrorCode::NotYet, message).at_frontier(frontier);
                refusal.retry_in(retry_ms)
            }
            SeekError::FarFuture { frontier, .. } => {
                HistoryApiError::new(HistoryErrorCode::FarFuture, message).at_frontier(frontier)
            }
            SeekError::BeforeHistory { .. }
            | SeekError::BeforeOffsets { .. }
            | SeekError::BeforeNames { .. } => {
                HistoryApiError::new(HistoryErrorCode::BeforeHistory, message)
            }
            SeekError::NoTopic { .. } => {
                HistoryApiError::new(HistoryErrorCode::UnknownTopic, message)
            }
            SeekError::Engine(error) => error.into(),
        }
    }
}

impl From<EngineError> for HistoryApiError {
    fn from(error: EngineError) -> HistoryApiError {
        let code = match &error {
            EngineError::Fenced(_) => HistoryErrorCode::Fenced,
            EngineError::Loading(_) => HistoryErrorCode::Loading,
            EngineError::Stopping(_) => HistoryErrorCode::Stopping,
            EngineError::UserTime(_) => HistoryErrorCode::BadPlugin,
            EngineError::OffsetOutOfRange { .. } => HistoryErrorCode::OutOfRange,
            EngineError::UnknownPartition { .. } => HistoryErrorCode::UnknownTopic,
            EngineError::TopicName(_) | EngineError::Config(_) | EngineError::PartitionCount(_) => {
                HistoryErrorCode::BadRequest
            }
            EngineError::Storage(error) => storage_error_code(error),
            EngineError::Corrupt(_) | EngineError::Internal(_) => HistoryErrorCode::Internal,
            // Only appends and topic creation return these, and no operation here does.
            EngineError::TopicExists(_)
            | EngineError::TopicLimit(_)
            | EngineError::Duplicate { .. }
            | EngineError::OutOfOrderSequence { .. }
            | EngineError::StaleProducerEpoch { .. }
            | EngineError::Pinned { .. }
            | EngineError::UserTimeChanged
            | EngineError::UserTimeOutOfOrder { .. } => HistoryErrorCode::Internal,
        };
        let retry_ms = matches!(error, EngineError::Loading(_)).then_some(LOADING_RETRY_MS);
        HistoryApiError { retry_ms, ..HistoryApiError::new(code, error.to_string()) }
    }
}

/// The code of something that is stored and cannot be read or written.
fn storage_error_code(error: &StorageError) -> HistoryErrorCode {
    match error {
        StorageError::Io { .. }
        | StorageError::NoSpace { .. }
        | StorageError::Missing { .. }
        | StorageError::Corrupt { .. }
        | StorageError::Stopped { .. }
        | StorageError::Interrupted => HistoryErrorCode::Internal,
    }
}

impl From<PinError> for HistoryApiError {
    fn from(error: PinError) -> HistoryApiError {
        let code = match error {
            PinError::Seek(error) => return error.into(),
            PinError::Invalid(_) => HistoryErrorCode::BadPin,
            PinError::Taken { .. } => HistoryErrorCode::PinTaken,
            PinError::TooMany(_) => HistoryErrorCode::TooManyPins,
            PinError::Unknown(_) => HistoryErrorCode::UnknownPin,
        };
        HistoryApiError::new(code, error.to_string())
    }
}

impl From<GroupSetError> for HistoryApiError {
    fn from(error: GroupSetError) -> HistoryApiError {
        let code = match error {
            GroupSetError::Seek(error) => return error.into(),
            GroupSetError::NothingCommitted(_) | GroupSetError::NothingAtMoment { .. } => {
                HistoryErrorCode::UnknownGroup
            }
            GroupSetError::UnknownTopic(_) => HistoryErrorCode::UnknownTopic,
        };
        HistoryApiError::new(code, error.to_string())
    }
}

impl From<GroupError> for HistoryApiError {
    fn from(error: GroupError) -> HistoryApiError {
        match error {
            GroupError::NonEmptyGroup => HistoryApiError::new(
                HistoryErrorCode::GroupActive,
                "the group has members, which would go on from where they are, and commit that: stop \
                 them, and wait until they have left or their session has ended",
            ),
            GroupError::InvalidGroupId => {
                HistoryApiError::new(HistoryErrorCode::BadRequest, "a group has a name")
            }
            GroupError::CoordinatorNotAvailable => HistoryApiError::new(
                HistoryErrorCode::GroupBusy,
                "the group is being changed by somebody else; try again",
            ),
            GroupError::TooManyGroups => HistoryApiError::new(
                HistoryErrorCode::TooManyGroups,
                "there are as many groups as there may be",
            ),
            GroupError::GroupIdNotFound => {
                HistoryApiError::new(HistoryErrorCode::UnknownGroup, error.to_string())
            }
            // Only group members get these, and no operation here is a member's.
            GroupError::UnknownMemberId
            | GroupError::IllegalGeneration
            | GroupError::RebalanceInProgress
            | GroupError::InconsistentGroupProtocol
            | GroupError::MemberIdRequired
            | GroupError::FencedInstanceId
            | GroupError::InvalidSessionTimeout
            | GroupError::GroupMaxSizeReached
            | GroupError::GroupSubscribedToTopic
            | GroupError::TooManyBytes
            | GroupError::TooLarge => {
                HistoryApiError::new(HistoryErrorCode::Internal, error.to_string())
            }
        }
    }
}
