//! Moments, topics and offsets in documents, and how long a request may wait for a moment.

use std::time::Duration;

use engine::security::{Operation, Resource, ResourceType};
use engine::{Offset, SeekError, Topic, WaitPolicy};
use history_documents::{HistoryErrorCode, MomentRequest, MomentResponse, PendingMomentPolicy};
use hlc::{Cut, Hlc, Moment, MomentReference, MomentSelector};
use jiff::tz::TimeZone;
use uuid::Uuid;

use crate::access::HistoryAccess;
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

/// A moment of either time, however it is spelled: absolute, in words (dates without a zone are in
/// UTC), or by one of its names.
pub(crate) fn parse_moment(
    context: &HistoryContext,
    access: &HistoryAccess,
    text: &str,
) -> Result<Moment, HistoryApiError> {
    match parse_selector(context, access, text)? {
        MomentSelector::At(moment) => Ok(moment),
        MomentSelector::Window(..) => {
            Err(bad_moment("a single moment is expected, not a window; a diff takes two moments"))
        }
    }
}

/// [`parse_moment`], or a window.
pub(crate) fn parse_selector(
    context: &HistoryContext,
    access: &HistoryAccess,
    text: &str,
) -> Result<MomentSelector, HistoryApiError> {
    let now = context.engine.wall_now();
    let reference = |text: &str| match text.trim().parse() {
        Ok(reference) => resolve(context, access, &reference).map(Some),
        Err(_) => Ok(None),
    };
    if let Some(moment) = reference(text)? {
        return Ok(MomentSelector::At(moment));
    }
    if let Some((first, second)) = text.split_once("..")
        && let (first_named, second_named) = (reference(first)?, reference(second)?)
        && (first_named.is_some() || second_named.is_some())
    {
        let end = |moment: Option<Moment>, text: &str| match moment {
            Some(moment) => Ok(moment),
            None => match hlc::parse_selector(text.trim(), now, &TimeZone::UTC) {
                Ok(MomentSelector::At(moment)) => Ok(moment),
                Ok(MomentSelector::Window(..)) => Err(bad_moment("a window has two ends")),
                Err(error) => Err(bad_moment(error.to_string())),
            },
        };
        let window = MomentSelector::window(end(first_named, first)?, end(second_named, second)?);
        return window.map_err(|error| bad_moment(error.to_string()));
    }
    match hlc::parse_selector(text, now, &TimeZone::UTC) {
        Ok(selector) => Ok(selector),
        // After @, a pin needs no more than its name.
        Err(error) if !access.allows(Operation::Describe, Resource::CLUSTER) => {
            Err(bad_moment(error.to_string()))
        }
        Err(error) => match context.engine.pins().moment_of(text) {
            Some(cut) => Ok(MomentSelector::At(Moment::Sys(cut))),
            None => Err(bad_moment(format!("{error}; and there is no pin of that name"))),
        },
    }
}

/// The moment that has a name.
fn resolve(
    context: &HistoryContext,
    access: &HistoryAccess,
    reference: &MomentReference,
) -> Result<Moment, HistoryApiError> {
    let engine = &context.engine;
    let cut = match reference {
        MomentReference::Now => Cut::through(engine.frontier()),
        MomentReference::Start => {
            let whole_history = Cut::below(Hlc::ZERO);
            engine.core().namespace().removed_in(whole_history).map_or(whole_history, Cut::below)
        }
        MomentReference::Pin(name) => {
            access.require(Operation::Describe, Resource::CLUSTER)?;
            let missing = || bad_moment(format!("there is no pin {name}"));
            engine.pins().moment_of(&reference.to_string()).ok_or_else(missing)?
        }
        MomentReference::Zxid(zxid) => {
            access.require(Operation::Describe, Resource::CLUSTER)?;
            let stamp = engine.znodes().history().stamp_of(*zxid);
            let stamp = stamp.map_err(SeekError::from)?;
            let missing =
                || bad_moment(format!("there is no transaction {reference}, or not any more"));
            Cut::through(stamp.ok_or_else(missing)?)
        }
        MomentReference::Record { topic, partition, offset } => {
            access.require_topics(Operation::Describe, std::slice::from_ref(topic))?;
            let stamp = engine.topics().stamp_of(topic, *partition, Offset(*offset));
            let stamp = stamp.map_err(SeekError::from)?;
            let missing = || bad_moment(format!("there is no record {reference}, or not any more"));
            Cut::below(stamp.ok_or_else(missing)?)
        }
    };
    Ok(Moment::Sys(cut))
}

/// A moment of system time.
pub(crate) fn parse_cut(
    context: &HistoryContext,
    access: &HistoryAccess,
    text: &str,
) -> Result<Cut, HistoryApiError> {
    match parse_moment(context, access, text)? {
        Moment::Sys(cut) => Ok(cut),
        Moment::User { .. } => {
            Err(bad_moment("a moment of system time (s…) is expected, not of user time"))
        }
    }
}

/// Two moments of system time, the earlier one first.
pub(crate) fn parse_window(
    context: &HistoryContext,
    access: &HistoryAccess,
    from: &str,
    until: &str,
) -> Result<(Cut, Cut), HistoryApiError> {
    let (from, until) = (parse_cut(context, access, from)?, parse_cut(context, access, until)?);
    MomentSelector::window(Moment::Sys(from), Moment::Sys(until))
        .map_err(|error| bad_moment(error.to_string()))?;
    Ok((from, until))
}

pub(crate) fn bad_moment(message: impl Into<String>) -> HistoryApiError {
    HistoryApiError::new(HistoryErrorCode::BadMoment, message)
}

/// The cut in `text`, or the frontier.
pub(crate) fn parse_or_frontier(
    context: &HistoryContext,
    access: &HistoryAccess,
    text: Option<&str>,
    wait: WaitPolicy,
) -> Result<(Cut, WaitPolicy), HistoryApiError> {
    match text {
        Some(text) => Ok((parse_cut(context, access, text)?, wait)),
        None => Ok((Cut::ALL, WaitPolicy::AtFrontier)),
    }
}

/// Says which moment a text means.
pub(crate) async fn moment(
    context: &HistoryContext,
    access: &HistoryAccess,
    MomentRequest { at }: MomentRequest,
) -> Result<MomentResponse, HistoryApiError> {
    access.require_any(Operation::Describe, ResourceType::Topic)?;
    let frontier = context.engine.core().present_frontier().await;
    let selector = match at.as_deref() {
        None => MomentSelector::At(Moment::Sys(Cut::through(frontier))),
        Some(text) => parse_selector(context, access, text)?,
    };
    let (frontier, frontier_ms) = (frontier.into(), frontier.time().0);
    Ok(MomentResponse { at: selector.to_string(), frontier, frontier_ms })
}

pub(crate) fn engine_isolation(isolation: history_documents::Isolation) -> engine::Isolation {
    match isolation {
        history_documents::Isolation::Committed => engine::Isolation::Committed,
        history_documents::Isolation::Uncommitted => engine::Isolation::Uncommitted,
    }
}
