//! Moments as documents spell them, and how long an answer may wait for one.

use std::time::Duration;

use engine::When;
use hlc::{Ask, Cut, Hlc, Moment};
use serde::Deserialize;

use super::{HistoryErrorCode, Refusal};
use crate::core::Kafka;

/// The longest that anybody may wait for a moment.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// What to do about a moment that is not past yet.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Patience {
    #[default]
    Wait,
    Refuse,
    Frontier,
}

/// What a document says of a moment that is not past yet.
pub(super) fn when(kafka: &Kafka, patience: Patience, patience_ms: Option<u64>) -> When {
    let longest = patience_ms.map_or(kafka.options.moment_patience, Duration::from_millis);
    match patience {
        Patience::Wait => When::Wait(longest.min(PATIENCE_MAX)),
        Patience::Refuse => When::Refuse,
        Patience::Frontier => When::AtFrontier,
    }
}

/// Waits as long as one waits who does not say.
pub(super) fn patient(kafka: &Kafka) -> When {
    When::Wait(kafka.options.moment_patience)
}

/// A stamp, as a moment that can be given back.
pub(super) fn stamp(stamp: Hlc) -> String {
    format!("sh{:016x}", stamp.bits())
}

pub(super) fn shown(cut: Cut) -> String {
    Moment::Sys(cut).to_string()
}

/// A moment of either time.
pub(super) fn parse_moment(text: &str) -> Result<Moment, Refusal> {
    match text.parse::<Ask>() {
        Ok(Ask::At(moment)) => Ok(moment),
        Ok(Ask::Window(..)) => {
            Err(bad_moment("one moment is asked for, and not a window; a diff is between two"))
        }
        Err(error) => Err(bad_moment(error.to_string())),
    }
}

/// A moment of system time.
pub(super) fn parse(text: &str) -> Result<Cut, Refusal> {
    match parse_moment(text)? {
        Moment::Sys(cut) => Ok(cut),
        Moment::User { .. } => {
            Err(bad_moment("this is asked by system time (s…), and not by user time"))
        }
    }
}

/// Two moments of system time, the earlier one first.
pub(super) fn parse_window(from: &str, until: &str) -> Result<(Cut, Cut), Refusal> {
    let (from, until) = (parse(from)?, parse(until)?);
    Ask::window(Moment::Sys(from), Moment::Sys(until))
        .map_err(|error| bad_moment(error.to_string()))?;
    Ok((from, until))
}

fn bad_moment(message: impl Into<String>) -> Refusal {
    Refusal::new(HistoryErrorCode::BadMoment, message)
}

/// What is asked, or the frontier.
pub(super) fn moment(text: Option<&str>, wait: When) -> Result<(Cut, When), Refusal> {
    match text {
        Some(text) => Ok((parse(text)?, wait)),
        None => Ok((Cut::ALL, When::AtFrontier)),
    }
}
