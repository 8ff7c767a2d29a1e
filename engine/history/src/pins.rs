//! Pins: moments that are kept readable.

use engine::Pin;
use history_documents::{
    PinDescription, PinRequest, PinResponse, PinsRequest, PinsResponse, UnpinRequest, UnpinResponse,
};
use hlc::SysTime;

use crate::context::HistoryContext;
use crate::error::HistoryApiError;
use crate::moment::{default_wait, moment_text, parse_cut};

pub(crate) async fn pin(
    context: &HistoryContext,
    request: PinRequest,
) -> Result<PinResponse, HistoryApiError> {
    let PinRequest { name, at, for_ms, topics } = request;
    let expires = SysTime(context.engine.wall_now().0.saturating_add(for_ms));
    let at = parse_cut(&at)?;
    let pin = context
        .engine
        .pins()
        .set(&name, at, default_wait(context), expires, topics.as_deref())
        .await?;
    Ok(PinResponse { pin: description(&pin) })
}

pub(crate) async fn unpin(
    context: &HistoryContext,
    UnpinRequest { name }: UnpinRequest,
) -> Result<UnpinResponse, HistoryApiError> {
    context.engine.pins().remove(&name).await?;
    Ok(UnpinResponse { removed: name })
}

pub(crate) fn pins(context: &HistoryContext, PinsRequest {}: PinsRequest) -> PinsResponse {
    PinsResponse { pins: context.engine.pins().all().iter().map(description).collect() }
}

fn description(pin: &Pin) -> PinDescription {
    let topics = pin.topics.as_ref();
    PinDescription {
        name: pin.name.to_string(),
        at: moment_text(pin.at),
        expires_ms: pin.expires.0,
        topics: topics.map(|topics| topics.iter().map(|topic| topic.to_string()).collect()),
        set: pin.set.into(),
    }
}
