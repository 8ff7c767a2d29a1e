//! Moments as documents spell them, and how long an answer may wait for one.

use std::time::Duration;

use engine::When;
use hlc::{Cut, Hlc, Moment};
use serde::Deserialize;

use super::Refusal;
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

/// A moment of system time.
pub(super) fn parse(text: &str) -> Result<Cut, Refusal> {
    match text.parse::<Moment>() {
        Ok(Moment::Sys(cut)) => Ok(cut),
        Ok(Moment::User { .. }) => Err(Refusal::new(
            "bad_moment",
            "a cut across partitions is by system time (s…); by user time ask each topic",
        )),
        Err(error) => Err(Refusal::new("bad_moment", error.to_string())),
    }
}

/// What is asked, or the frontier.
pub(super) fn moment(text: Option<&str>, wait: When) -> Result<(Cut, When), Refusal> {
    match text {
        Some(text) => Ok((parse(text)?, wait)),
        None => Ok((Cut::ALL, When::AtFrontier)),
    }
}
