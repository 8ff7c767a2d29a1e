//! Pins: moments that are kept readable.

use std::sync::Arc;

use engine::Pin;
use hlc::SysTime;
use serde::Deserialize;
use serde_json::{Value, json};

use super::HistoryApiError;
use super::moment::{default_wait, moment_text, parse_cut, stamp_text};
use crate::core::KafkaServer;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PinRequest {
    name: String,
    at: String,
    /// How long from now, by the server's clock.
    for_ms: u64,
    #[serde(default)]
    topics: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UnpinRequest {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PinsRequest {}

pub(super) async fn pin(
    kafka: &Arc<KafkaServer>,
    request: PinRequest,
) -> Result<Value, HistoryApiError> {
    let PinRequest { name, at, for_ms, topics } = request;
    let expires = SysTime(kafka.engine.wall_now().0.saturating_add(for_ms));
    let at = parse_cut(&at)?;
    let pin =
        kafka.engine.pins().set(&name, at, default_wait(kafka), expires, topics.as_deref()).await?;
    Ok(json!({ "pin": pin_json(&pin) }))
}

pub(super) async fn unpin(
    kafka: &Arc<KafkaServer>,
    request: UnpinRequest,
) -> Result<Value, HistoryApiError> {
    kafka.engine.pins().remove(&request.name).await?;
    Ok(json!({ "removed": request.name }))
}

pub(super) fn pins(
    kafka: &Arc<KafkaServer>,
    PinsRequest {}: PinsRequest,
) -> Result<Value, HistoryApiError> {
    let pins: Vec<Value> = kafka.engine.pins().all().iter().map(pin_json).collect();
    Ok(json!({ "pins": pins }))
}

fn pin_json(pin: &Pin) -> Value {
    let topics = pin.topics.as_ref().map(|topics| topics.iter().map(|topic| &**topic));
    json!({
        "name": &*pin.name,
        "at": moment_text(pin.at),
        "expires_ms": pin.expires.0,
        "topics": topics.map(Iterator::collect::<Vec<&str>>),
        "set": stamp_text(pin.set),
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{DAY_MS, append_three, code, kafka, moment};
    use super::super::handle_json;
    use super::*;

    #[tokio::test]
    async fn a_pin_is_set_listed_and_removed() {
        let kafka = kafka().await;
        append_three(&kafka).await;
        let at = moment(&kafka).await;
        let earliest = kafka.engine.wall_now().0 + DAY_MS;
        let set = json!({"op": "pin", "name": "p", "at": at, "for_ms": DAY_MS, "topics": ["a"]});
        let pin = handle_json(&kafka, set).await["pin"].take();
        assert_eq!((&pin["name"], &pin["at"]), (&json!("p"), &json!(at)));
        assert_eq!(pin["topics"], json!(["a"]));
        assert!(pin["expires_ms"].as_u64().unwrap() >= earliest, "{pin}");
        assert_eq!(handle_json(&kafka, json!({"op": "pins"})).await, json!({ "pins": [pin] }));
        let all = json!({"op": "pin", "name": "all", "at": at, "for_ms": 60_000});
        assert_eq!(handle_json(&kafka, all).await["pin"]["topics"], Value::Null);
        let removed = handle_json(&kafka, json!({"op": "unpin", "name": "p"})).await;
        assert_eq!(removed, json!({"removed": "p"}));
        let left = handle_json(&kafka, json!({"op": "pins"})).await;
        assert_eq!(left["pins"].as_array().unwrap().len(), 1);
        assert_eq!(left["pins"][0]["name"], "all");
    }

    #[tokio::test]
    async fn a_pin_that_cannot_be_is_refused_by_a_code_of_its_own() {
        let kafka = kafka().await;
        append_three(&kafka).await;
        let at = moment(&kafka).await;
        let pin = |name: &str, at: &str, for_ms: u64| json!({"op": "pin", "name": name, "at": at, "for_ms": for_ms});
        assert_eq!(code(&kafka, pin("a b", &at, DAY_MS)).await, "bad_pin");
        assert_eq!(code(&kafka, pin("p", &at, 0)).await, "bad_pin");
        assert_eq!(code(&kafka, pin("p", &at, u64::MAX)).await, "bad_pin");
        assert_eq!(code(&kafka, pin("p", "u5", DAY_MS)).await, "bad_moment");
        assert_eq!(code(&kafka, pin("p", "s9999999999999", DAY_MS)).await, "far_future");
        assert_eq!(code(&kafka, json!({"op": "unpin", "name": "p"})).await, "unknown_pin");
        handle_json(&kafka, pin("p", &at, DAY_MS)).await;
        let later = moment(&kafka).await;
        assert_eq!(code(&kafka, pin("p", &later, DAY_MS)).await, "pin_taken");
        let other = json!({"op": "pin", "name": "q", "at": at, "for_ms": 1000, "topics": ["b"]});
        assert_eq!(code(&kafka, other).await, "unknown_topic");
        for nth in 1..100 {
            handle_json(&kafka, pin(&format!("p{nth}"), &at, DAY_MS)).await;
        }
        assert_eq!(code(&kafka, pin("one-more", &at, DAY_MS)).await, "too_many_pins");
    }

    #[tokio::test]
    async fn a_moment_before_the_log_start_cannot_be_pinned() {
        let kafka = kafka().await;
        append_three(&kafka).await;
        let at = moment(&kafka).await;
        append_three(&kafka).await;
        let topic = kafka.engine.topics().named("a").unwrap();
        kafka.engine.topics().delete_records(&topic, 0, 4).await.unwrap();
        let pin = json!({"op": "pin", "name": "p", "at": at, "for_ms": DAY_MS});
        assert_eq!(code(&kafka, pin).await, "before_history");
        assert_eq!(handle_json(&kafka, json!({"op": "pins"})).await, json!({ "pins": [] }));
    }
}
