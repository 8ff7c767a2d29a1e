//! Stamps in documents, and what to do about a moment that is not final yet.

use std::fmt;
use std::str::FromStr;

use hlc::{Hlc, Moment};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A stamp, written as a moment: `sh` and 16 hex digits. A later request can use it as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub Hlc);

/// Asks which moment a text means: a spelled one, words (dates without a zone are in UTC), or a
/// name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MomentRequest {
    /// The text. Without it, the present is meant, with all that was acknowledged before the
    /// request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// A moment or a window that means the same whenever it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MomentResponse {
    /// As it is spelled.
    pub at: String,
    /// The stamp up to which the past is final.
    pub frontier: Stamp,
    /// The time of the frontier in milliseconds since 1970.
    pub frontier_ms: u64,
}

/// A text that is not a stamp.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a stamp: {0}")]
pub struct StampError(String);

impl From<Hlc> for Stamp {
    fn from(stamp: Hlc) -> Stamp {
        Stamp(stamp)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl FromStr for Stamp {
    type Err = StampError;

    fn from_str(text: &str) -> Result<Stamp, StampError> {
        match text.parse() {
            Ok(Moment::Sys(cut)) => Ok(Stamp(cut.bound())),
            _ => Err(StampError(text.to_owned())),
        }
    }
}

impl Serialize for Stamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Stamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stamp, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The isolation level: it selects the records of transactions that a reader wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// The records of transactions that were committed before the moment.
    #[default]
    Committed,
    /// All of them, also of open and aborted transactions.
    Uncommitted,
}

impl Isolation {
    pub(crate) fn is_default(&self) -> bool {
        *self == Isolation::default()
    }
}

/// The action of the server on a moment that is not final yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PendingMomentPolicy {
    /// Wait until it is final, within the patience of the request.
    #[default]
    Wait,
    /// Refuse, and return the frontier.
    Refuse,
    /// Answer for the frontier instead, and return it.
    Frontier,
}

impl PendingMomentPolicy {
    /// True if a document may leave it out.
    pub(crate) fn is_default(&self) -> bool {
        *self == PendingMomentPolicy::default()
    }
}
