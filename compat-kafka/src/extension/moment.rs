//! Moments in documents, and how long a request may wait for one.

use std::time::Duration;

use engine::WaitPolicy;
use hlc::{Cut, Hlc, Moment, MomentSelector};
use serde::Deserialize;

use super::{HistoryApiError, HistoryErrorCode};
use crate::core::KafkaServer;

/// The longest wait for a moment that a request may ask for.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// What to do about a moment that is not final yet.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MomentWaitPolicy {
    #[default]
    Wait,
    Refuse,
    Frontier,
}

/// The wait policy of a document.
pub(super) fn when(
    kafka: &KafkaServer,
    patience: MomentWaitPolicy,
    patience_ms: Option<u64>,
) -> WaitPolicy {
    let longest = patience_ms.map_or(kafka.options.moment_patience, Duration::from_millis);
    match patience {
        MomentWaitPolicy::Wait => WaitPolicy::Wait(longest.min(PATIENCE_MAX)),
        MomentWaitPolicy::Refuse => WaitPolicy::Refuse,
        MomentWaitPolicy::Frontier => WaitPolicy::AtFrontier,
    }
}

/// The wait policy if the document has none.
pub(super) fn default_wait(kafka: &KafkaServer) -> WaitPolicy {
    WaitPolicy::Wait(kafka.options.moment_patience)
}

/// A stamp, as a moment that a later request can use.
pub(super) fn stamp_text(stamp: Hlc) -> String {
    format!("sh{:016x}", stamp.bits())
}

pub(super) fn moment_text(cut: Cut) -> String {
    Moment::Sys(cut).to_string()
}

/// A moment of either time.
pub(super) fn parse_moment(text: &str) -> Result<Moment, HistoryApiError> {
    match text.parse::<MomentSelector>() {
        Ok(MomentSelector::At(moment)) => Ok(moment),
        Ok(MomentSelector::Window(..)) => {
            Err(bad_moment("a single moment is expected, not a window; a diff takes two moments"))
        }
        Err(error) => Err(bad_moment(error.to_string())),
    }
}

/// A moment of system time.
pub(super) fn parse_cut(text: &str) -> Result<Cut, HistoryApiError> {
    match parse_moment(text)? {
        Moment::Sys(cut) => Ok(cut),
        Moment::User { .. } => {
            Err(bad_moment("a moment of system time (s…) is expected, not of user time"))
        }
    }
}

/// Two moments of system time, the earlier one first.
pub(super) fn parse_window(from: &str, until: &str) -> Result<(Cut, Cut), HistoryApiError> {
    let (from, until) = (parse_cut(from)?, parse_cut(until)?);
    MomentSelector::window(Moment::Sys(from), Moment::Sys(until))
        .map_err(|error| bad_moment(error.to_string()))?;
    Ok((from, until))
}

fn bad_moment(message: impl Into<String>) -> HistoryApiError {
    HistoryApiError::new(HistoryErrorCode::BadMoment, message)
}

/// The cut in `text`, or the frontier.
pub(super) fn parse_or_frontier(
    text: Option<&str>,
    wait: WaitPolicy,
) -> Result<(Cut, WaitPolicy), HistoryApiError> {
    match text {
        Some(text) => Ok((parse_cut(text)?, wait)),
        None => Ok((Cut::ALL, WaitPolicy::AtFrontier)),
    }
}
