//! Pins: moments that are kept readable.

use engine::security::{Operation, Resource};
use engine::{Pin, WaitPolicy};
use history_documents::{
    PinDescription, PinRequest, PinResponse, PinsRequest, PinsResponse, UnpinRequest, UnpinResponse,
};
use hlc::SysTime;

use crate::access::HistoryAccess;
use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::moment::{default_wait, moment_text, parse_cut};

pub(crate) async fn pin(
    context: &HistoryContext,
    access: &HistoryAccess,
    request: PinRequest,
) -> Result<PinResponse, HistoryApiError> {
    let PinRequest { name, at, for_ms, topics } = request;
    require_change(access, topics.as_deref())?;
    require_change_of_named(context, access, &name, true)?;
    let at = parse_cut(context, access, &at)?;
    context.engine.core().wait_until_closed(at, default_wait(context)).await?;
    // They may have been taken away meanwhile.
    require_change(access, topics.as_deref())?;
    require_change_of_named(context, access, &name, true)?;
    let expires = SysTime(context.engine.wall_now().0.saturating_add(for_ms));
    let holder = access.holder();
    let pins = context.engine.pins().on_behalf_of(&holder);
    let pin = pins.set(&name, at, WaitPolicy::Refuse, expires, topics.as_deref()).await?;
    access.record_change("pin", format_args!("pin {name} of {}", moment_text(pin.at)));
    Ok(PinResponse { pin: description(&pin) })
}

pub(crate) async fn unpin(
    context: &HistoryContext,
    access: &HistoryAccess,
    UnpinRequest { name }: UnpinRequest,
) -> Result<UnpinResponse, HistoryApiError> {
    let pin = require_change_of_named(context, access, &name, false)?;
    let pins = context.engine.pins();
    match pin {
        // Another pin may get the name meanwhile, and the client may have no right to that one.
        Some(pin) => pins.remove_set_at(&name, pin.set).await?,
        None => pins.remove(&name).await?,
    }
    access.record_change("unpin", format_args!("pin {name}"));
    Ok(UnpinResponse { removed: name })
}

pub(crate) fn pins(
    context: &HistoryContext,
    access: &HistoryAccess,
    PinsRequest {}: PinsRequest,
) -> Result<PinsResponse, HistoryApiError> {
    access.require(Operation::Describe, Resource::CLUSTER)?;
    Ok(PinsResponse { pins: context.engine.pins().all().iter().map(description).collect() })
}

/// Refuses a requester that may not set or remove a pin of these topics; `None` is all topics. A
/// requester that may alter the cluster may do so always.
fn require_change(
    access: &HistoryAccess,
    topics: Option<&[String]>,
) -> Result<(), HistoryApiError> {
    match topics {
        Some(topics)
            if !topics.is_empty() && !access.allows(Operation::Alter, Resource::CLUSTER) =>
        {
            access.require_topics(Operation::Alter, topics)
        }
        _ => access.require(Operation::Alter, Resource::CLUSTER),
    }
}

/// [`require_change`] of the pin that has this name, if there is one; returns it. The refusal does
/// not name its topics.
fn require_change_of_named(
    context: &HistoryContext,
    access: &HistoryAccess,
    name: &str,
    may_be_missing: bool,
) -> Result<Option<Pin>, HistoryApiError> {
    let pin = context.engine.pins().all().into_iter().find(|pin| *pin.name == *name);
    let is_allowed = match &pin {
        Some(Pin { topics: Some(topics), .. }) => {
            let topics: Vec<String> = topics.iter().map(ToString::to_string).collect();
            require_change(access, Some(&topics)).is_ok()
        }
        Some(Pin { topics: None, .. }) => false,
        None => may_be_missing,
    };
    if !is_allowed {
        access.require(Operation::Alter, Resource::CLUSTER)?;
    }
    Ok(pin)
}

fn description(pin: &Pin) -> PinDescription {
    let topics = pin.topics.as_ref();
    PinDescription {
        name: pin.name.to_string(),
        at: moment_text(pin.at),
        expires_ms: pin.expires.0,
        topics: topics.map(|topics| topics.iter().map(|topic| topic.to_string()).collect()),
        set: pin.set.into(),
        set_ms: pin.set.time().0,
    }
}
