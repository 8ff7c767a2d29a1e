//! Why a question is not answered: a code for programs, and a sentence for people.

use engine::{EngineError, GroupSetError, PinError, SeekError};
use hlc::Hlc;
use serde::Serialize;
use serde_json::json;

use super::moment::stamp;
use crate::groups::GroupError;

/// Why a question is not answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    code: &'static str,
    message: String,
    frontier: Option<String>,
    /// When to ask again.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_ms: Option<u64>,
}

impl Refusal {
    /// A refusal of a kind that `docs/KAFKA.md` lists.
    pub fn new(code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), frontier: None, retry_ms: None }
    }

    /// Its kind.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// When to ask again, in milliseconds, if that would help.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
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
                let refusal = Refusal::new("not_yet", message).at_frontier(frontier);
                Refusal { retry_ms: Some(retry_ms), ..refusal }
            }
            SeekError::FarFuture { frontier, .. } => {
                Refusal::new("far_future", message).at_frontier(frontier)
            }
            SeekError::BeforeHistory { .. } | SeekError::BeforeOffsets { .. } => {
                Refusal::new("before_history", message)
            }
            SeekError::NoTopic { .. } => Refusal::new("unknown_topic", message),
            SeekError::Engine(error) => error.into(),
        }
    }
}

impl From<EngineError> for Refusal {
    fn from(error: EngineError) -> Refusal {
        let code = match &error {
            EngineError::Fenced(_) => "fenced",
            EngineError::UserTime(_) => "bad_plugin",
            EngineError::OffsetOutOfRange { .. } => "out_of_range",
            _ => "internal",
        };
        Refusal::new(code, error.to_string())
    }
}

impl From<PinError> for Refusal {
    fn from(error: PinError) -> Refusal {
        let code = match error {
            PinError::Seek(error) => return error.into(),
            PinError::Invalid(_) => "bad_pin",
            PinError::Taken { .. } => "pin_taken",
            PinError::TooMany(_) => "too_many_pins",
            PinError::Unknown(_) => "unknown_pin",
        };
        Refusal::new(code, error.to_string())
    }
}

impl From<GroupSetError> for Refusal {
    fn from(error: GroupSetError) -> Refusal {
        let code = match error {
            GroupSetError::Seek(error) => return error.into(),
            GroupSetError::NothingCommitted(_) | GroupSetError::NothingThen { .. } => {
                "unknown_group"
            }
            GroupSetError::UnknownTopic(_) => "unknown_topic",
        };
        Refusal::new(code, error.to_string())
    }
}

impl From<GroupError> for Refusal {
    fn from(error: GroupError) -> Refusal {
        match error {
            GroupError::NonEmptyGroup => Refusal::new(
                "group_active",
                "the group has members, which would go on from where they are, and commit that: stop \
                 them, and wait until they have left or their session has ended",
            ),
            GroupError::InvalidGroupId => Refusal::new("bad_request", "a group has a name"),
            GroupError::CoordinatorNotAvailable => {
                Refusal::new("group_busy", "the group is being changed by somebody else; try again")
            }
            GroupError::TooManyGroups => {
                Refusal::new("too_many_groups", "there are as many groups as there may be")
            }
            error => Refusal::new("internal", error.to_string()),
        }
    }
}
