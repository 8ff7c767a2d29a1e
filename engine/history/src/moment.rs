//! Moments, topics and offsets in documents, and how long a request may wait for a moment.

use std::time::Duration;

use engine::{Offset, Topic, WaitPolicy};
use history_documents::{HistoryErrorCode, PendingMomentPolicy};
use hlc::{Cut, Moment, MomentSelector};
use uuid::Uuid;

use crate::context::HistoryContext;
use crate::error::HistoryApiError;

/// The longest wait for a moment that a request may ask for.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

/// The wait policy of a document.
pub(crate) fn when(
    context: &HistoryContext,
    policy: PendingMomentPolicy,
    patience_ms: Option<u64>,
) -> WaitPolicy {
    let longest = patience_ms.map_or(context.patience, Duration::from_millis);
    match policy {
        PendingMomentPolicy::Wait => WaitPolicy::Wait(longest.min(PATIENCE_MAX)),
        PendingMomentPolicy::Refuse => WaitPolicy::Refuse,
        PendingMomentPolicy::Frontier => WaitPolicy::AtFrontier,
    }
}

/// The wait policy if the document has none.
pub(crate) fn default_wait(context: &HistoryContext) -> WaitPolicy {
    WaitPolicy::Wait(context.patience)
}

pub(crate) fn topic_id(topic: &Topic) -> String {
    Uuid::from_bytes(topic.id).to_string()
}

pub(crate) fn partition_count(topic: &Topic) -> u32 {
    u32::try_from(topic.partitions.len()).unwrap_or(u32::MAX)
}

/// A partition as Kafka counts them. No topic has more than `i32` can count.
pub(crate) fn partition_number(partition: u32) -> i32 {
    i32::try_from(partition).unwrap_or(i32::MAX)
}

/// An offset as Kafka counts them. No log is longer than `i64` can count.
pub(crate) fn offset_number(Offset(offset): Offset) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

pub(crate) fn moment_text(cut: Cut) -> String {
    Moment::Sys(cut).to_string()
}

/// A moment of either time.
pub(crate) fn parse_moment(text: &str) -> Result<Moment, HistoryApiError> {
    match text.parse::<MomentSelector>() {
        Ok(MomentSelector::At(moment)) => Ok(moment),
        Ok(MomentSelector::Window(..)) => {
            Err(bad_moment("a single moment is expected, not a window; a diff takes two moments"))
        }
        Err(error) => Err(bad_moment(error.to_string())),
    }
}

/// A moment of system time.
pub(crate) fn parse_cut(text: &str) -> Result<Cut, HistoryApiError> {
    match parse_moment(text)? {
        Moment::Sys(cut) => Ok(cut),
        Moment::User { .. } => {
            Err(bad_moment("a moment of system time (s…) is expected, not of user time"))
        }
    }
}

/// Two moments of system time, the earlier one first.
pub(crate) fn parse_window(from: &str, until: &str) -> Result<(Cut, Cut), HistoryApiError> {
    let (from, until) = (parse_cut(from)?, parse_cut(until)?);
    MomentSelector::window(Moment::Sys(from), Moment::Sys(until))
        .map_err(|error| bad_moment(error.to_string()))?;
    Ok((from, until))
}

fn bad_moment(message: impl Into<String>) -> HistoryApiError {
    HistoryApiError::new(HistoryErrorCode::BadMoment, message)
}

/// The cut in `text`, or the frontier.
pub(crate) fn parse_or_frontier(
    text: Option<&str>,
    wait: WaitPolicy,
) -> Result<(Cut, WaitPolicy), HistoryApiError> {
    match text {
        Some(text) => Ok((parse_cut(text)?, wait)),
        None => Ok((Cut::ALL, WaitPolicy::AtFrontier)),
    }
}

pub(crate) fn engine_isolation(isolation: history_documents::Isolation) -> engine::Isolation {
    match isolation {
        history_documents::Isolation::Committed => engine::Isolation::Committed,
        history_documents::Isolation::Uncommitted => engine::Isolation::Uncommitted,
    }
}
