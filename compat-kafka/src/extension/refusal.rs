//! Why a question is not answered: a code for programs, and a sentence for people.

use engine::{EngineError, PinError, SeekError};
use hlc::Hlc;
use serde::Serialize;

use super::moment::stamp;

/// Why a question is not answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    code: &'static str,
    message: String,
    frontier: Option<String>,
}

impl Refusal {
    /// A refusal of a kind that `docs/KAFKA.md` lists.
    pub fn new(code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), frontier: None }
    }

    /// Its kind.
    pub fn code(&self) -> &'static str {
        self.code
    }

    fn at_frontier(self, frontier: Hlc) -> Refusal {
        Refusal { frontier: Some(stamp(frontier)), ..self }
    }
}

impl From<SeekError> for Refusal {
    fn from(error: SeekError) -> Refusal {
        let message = error.to_string();
        match error {
            SeekError::NotYet { frontier, .. } => {
                Refusal::new("not_yet", message).at_frontier(frontier)
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
        let code = match error {
            EngineError::Fenced(_) => "fenced",
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
