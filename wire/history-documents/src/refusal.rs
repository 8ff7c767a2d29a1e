//! The document of an error.

use std::fmt;

use hlc::{Cut, Moment};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error_code::{HistoryErrorCode, ReceivedErrorCode};
use crate::moment::Stamp;

/// The response to a request that failed: one field, `error`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusalDocument<Code = HistoryErrorCode> {
    /// The refusal of the request.
    pub error: HistoryRefusal<Code>,
}

/// The reason that a request failed: a code for programs, and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryRefusal<Code = HistoryErrorCode> {
    /// The kind of error.
    pub code: Code,
    /// The server's message.
    pub message: String,
    /// The frontier of the server, if it matters.
    #[serde(default)]
    pub frontier: Option<Stamp>,
    /// `frontier` in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontier_ms: Option<u64>,
    /// The milliseconds to wait before a retry, if a retry can help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_ms: Option<u64>,
}

/// A refusal as a client receives it: from a server that may know more codes.
pub type ServerRefusal = HistoryRefusal<ReceivedErrorCode>;

impl<Code> fmt::Display for HistoryRefusal<Code> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // In milliseconds, as users write moments. Skipped if the server's message has it already.
        let frontier = self.frontier.map(|Stamp(stamp)| Moment::Sys(Cut::before(stamp.time())));
        match frontier.map(|moment| moment.to_string()) {
            Some(frontier) if !self.message.contains(&frontier) => {
                write!(f, " (the server can answer up to {frontier})")
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_how_far_the_server_can_answer_once() {
        let text = r#"{"error":{"code":"not_yet","message":"not yet","frontier":"sh0000000000050001","frontier_ms":5}}"#;
        let RefusalDocument { error } =
            serde_json::from_str::<RefusalDocument<ReceivedErrorCode>>(text).unwrap();
        assert_eq!(error.code, HistoryErrorCode::NotYet);
        assert_eq!(error.to_string(), "not yet (the server can answer up to s5)");
        let refusal = ServerRefusal { message: "frontier=s5".to_owned(), ..error };
        assert_eq!(refusal.to_string(), "frontier=s5");
    }

    #[test]
    fn a_refusal_without_a_frontier_says_null_and_is_silent_about_a_retry() {
        let code = HistoryErrorCode::BadRequest;
        let error = HistoryRefusal {
            code,
            message: "no".to_owned(),
            frontier: None,
            frontier_ms: None,
            retry_ms: None,
        };
        assert_eq!(
            serde_json::to_string(&RefusalDocument { error }).unwrap(),
            r#"{"error":{"code":"bad_request","message":"no","frontier":null}}"#
        );
    }
}
