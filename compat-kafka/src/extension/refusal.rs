//! Why a question is not answered: a code for programs, and a sentence for people.

use engine::{EngineError, GroupSetError, PinError, SeekError};
use hlc::Hlc;
use serde::Serialize;
use serde_json::json;

use super::error_code::HistoryErrorCode;
use super::moment::stamp;
use crate::groups::GroupError;

/// When to ask again for what is being loaded from the journal.
const LOADING_RETRY_MS: u64 = 1000;

/// Why a question is not answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    code: HistoryErrorCode,
    message: String,
    frontier: Option<String>,
    /// When to ask again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_ms: Option<u64>,
}

impl Refusal {
    /// A refusal of a kind.
    pub fn new(code: HistoryErrorCode, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), frontier: None, retry_ms: None }
    }

    /// Its kind.
    pub fn code(&self) -> HistoryErrorCode {
        self.code
    }

    /// When to ask again, in milliseconds, if that would help.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// The same, to be asked again after so many milliseconds.
    pub fn retry_in(self, retry_ms: u64) -> Refusal {
        Refusal { retry_ms: Some(retry_ms), ..self }
    }

    /// The document that says so: one field, `error`.
    pub fn document(&self) -> String {
        json!({ "error": self }).to_string()
    }

    fn at_frontier(self, frontier: Hlc) -> Refusal {
        Refusal { frontier: Some(stamp(frontier)), ..self }
    }
}

impl From<SeekError> for Refusal {
    fn from(error: SeekError) -> Refusal {
        let message = error.to_string();
        match error {
            SeekError::NotYet { frontier, retry_ms, .. } => {
                let refusal = Refusal::new(HistoryErrorCode::NotYet, message).at_frontier(frontier);
                refusal.retry_in(retry_ms)
            }
            SeekError::FarFuture { frontier, .. } => {
                Refusal::new(HistoryErrorCode::FarFuture, message).at_frontier(frontier)
            }
            SeekError::BeforeHistory { .. }
            | SeekError::BeforeOffsets { .. }
            | SeekError::BeforeNames { .. } => {
                Refusal::new(HistoryErrorCode::BeforeHistory, message)
            }
            SeekError::NoTopic { .. } => Refusal::new(HistoryErrorCode::UnknownTopic, message),
            SeekError::Engine(error) => error.into(),
        }
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Refusal {
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
            EngineError::Disk(_) | EngineError::Corrupt(_) => HistoryErrorCode::Internal,
            // Only who appends or makes a topic is told of these, and no question does.
            EngineError::TopicExists(_)
            | EngineError::TopicLimit(_)
            | EngineError::Duplicate { .. }
            | EngineError::OutOfOrderSequence { .. }
            | EngineError::StaleProducerEpoch { .. }
            | EngineError::Pinned { .. }
            | EngineError::UserTimeChanged
            | EngineError::UserTimeFalls { .. } => HistoryErrorCode::Internal,
        };
        let retry_ms = matches!(error, EngineError::Loading(_)).then_some(LOADING_RETRY_MS);
        Refusal { retry_ms, ..Refusal::new(code, error.to_string()) }
    }
}

impl From<PinError> for Refusal {
    fn from(error: PinError) -> Refusal {
        let code = match error {
            PinError::Seek(error) => return error.into(),
            PinError::Invalid(_) => HistoryErrorCode::BadPin,
            PinError::Taken { .. } => HistoryErrorCode::PinTaken,
            PinError::TooMany(_) => HistoryErrorCode::TooManyPins,
            PinError::Unknown(_) => HistoryErrorCode::UnknownPin,
        };
        Refusal::new(code, error.to_string())
    }
}

impl From<GroupSetError> for Refusal {
    fn from(error: GroupSetError) -> Refusal {
        let code = match error {
            GroupSetError::Seek(error) => return error.into(),
            GroupSetError::NothingCommitted(_) | GroupSetError::NothingThen { .. } => {
                HistoryErrorCode::UnknownGroup
            }
            GroupSetError::UnknownTopic(_) => HistoryErrorCode::UnknownTopic,
        };
        Refusal::new(code, error.to_string())
    }
}

impl From<GroupError> for Refusal {
    fn from(error: GroupError) -> Refusal {
        match error {
            GroupError::NonEmptyGroup => Refusal::new(
                HistoryErrorCode::GroupActive,
                "the group has members, which would go on from where they are, and commit that: stop \
                 them, and wait until they have left or their session has ended",
            ),
            GroupError::InvalidGroupId => {
                Refusal::new(HistoryErrorCode::BadRequest, "a group has a name")
            }
            GroupError::CoordinatorNotAvailable => Refusal::new(
                HistoryErrorCode::GroupBusy,
                "the group is being changed by somebody else; try again",
            ),
            GroupError::TooManyGroups => Refusal::new(
                HistoryErrorCode::TooManyGroups,
                "there are as many groups as there may be",
            ),
            GroupError::GroupIdNotFound => {
                Refusal::new(HistoryErrorCode::UnknownGroup, error.to_string())
            }
            // Only a member is told of these, and no question comes from one.
            GroupError::UnknownMemberId
            | GroupError::IllegalGeneration
            | GroupError::RebalanceInProgress
            | GroupError::InconsistentGroupProtocol
            | GroupError::MemberIdRequired
            | GroupError::FencedInstanceId
            | GroupError::InvalidSessionTimeout
            | GroupError::GroupMaxSizeReached
            | GroupError::GroupSubscribedToTopic
            | GroupError::NoRoom
            | GroupError::TooLarge => Refusal::new(HistoryErrorCode::Internal, error.to_string()),
        }
    }
}
