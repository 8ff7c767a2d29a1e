//! Pins.

use serde_json::{Value, json};

use crate::fixture::{DAY_MS, answer_json, api, append_three, code, moment};

#[tokio::test]
async fn a_pin_is_set_listed_and_removed() {
    let api = api().await;
    append_three(&api).await;
    let at = moment(&api).await;
    let earliest = api.engine.wall_now().0 + DAY_MS;
    let pin = json!({"op": "pin", "name": "p", "at": at, "for_ms": DAY_MS, "topics": ["a"]});
    let pin = answer_json(&api, pin).await["pin"].take();
    assert_eq!((&pin["name"], &pin["at"]), (&json!("p"), &json!(at)));
    assert_eq!(pin["topics"], json!(["a"]));
    assert!(pin["expires_ms"].as_u64().unwrap() >= earliest, "{pin}");
    assert_eq!(answer_json(&api, json!({"op": "pins"})).await, json!({ "pins": [pin] }));
    let pin_all = json!({"op": "pin", "name": "all", "at": at, "for_ms": 60_000});
    assert_eq!(answer_json(&api, pin_all).await["pin"]["topics"], Value::Null);
    let removed = answer_json(&api, json!({"op": "unpin", "name": "p"})).await;
    assert_eq!(removed, json!({"removed": "p"}));
    let pins = answer_json(&api, json!({"op": "pins"})).await;
    assert_eq!(pins["pins"].as_array().unwrap().len(), 1);
    assert_eq!(pins["pins"][0]["name"], "all");
}

#[tokio::test]
async fn a_pin_that_cannot_be_is_refused_by_a_code_of_its_own() {
    let api = api().await;
    append_three(&api).await;
    let at = moment(&api).await;
    let pin = |name: &str, at: &str, for_ms: u64| json!({"op": "pin", "name": name, "at": at, "for_ms": for_ms});
    assert_eq!(code(&api, pin("a b", &at, DAY_MS)).await, "bad_pin");
    assert_eq!(code(&api, pin("p", &at, 0)).await, "bad_pin");
    assert_eq!(code(&api, pin("p", &at, u64::MAX)).await, "bad_pin");
    assert_eq!(code(&api, pin("p", "u5", DAY_MS)).await, "bad_moment");
    assert_eq!(code(&api, pin("p", "s9999999999999", DAY_MS)).await, "far_future");
    assert_eq!(code(&api, json!({"op": "unpin", "name": "p"})).await, "unknown_pin");
    answer_json(&api, pin("p", &at, DAY_MS)).await;
    let later = moment(&api).await;
    assert_eq!(code(&api, pin("p", &later, DAY_MS)).await, "pin_taken");
    let second_pin = json!({"op": "pin", "name": "q", "at": at, "for_ms": 1000, "topics": ["b"]});
    assert_eq!(code(&api, second_pin).await, "unknown_topic");
    for nth in 1..100 {
        answer_json(&api, pin(&format!("p{nth}"), &at, DAY_MS)).await;
    }
    assert_eq!(code(&api, pin("one-more", &at, DAY_MS)).await, "too_many_pins");
}

#[tokio::test]
async fn a_moment_before_the_log_start_cannot_be_pinned() {
    let api = api().await;
    append_three(&api).await;
    let at = moment(&api).await;
    append_three(&api).await;
    let topic = api.engine.topics().named("a").unwrap();
    api.engine.topics().delete_records(&topic, 0, 4).await.unwrap();
    let pin = json!({"op": "pin", "name": "p", "at": at, "for_ms": DAY_MS});
    assert_eq!(code(&api, pin).await, "before_history");
    assert_eq!(answer_json(&api, json!({"op": "pins"})).await, json!({ "pins": [] }));
}
