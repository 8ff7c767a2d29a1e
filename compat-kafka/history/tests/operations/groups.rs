//! Groups and offsets of a moment.

use serde_json::json;

use engine::EngineOptions;
use engine::groups::{GroupOptions, OffsetCommit};

use crate::fixture::{DAY_MS, answer_json, api_with, code, moment};

#[tokio::test]
async fn offsets_of_a_moment_before_their_horizon_are_refused_with_the_earliest_there_is() {
    let offsets_retention = std::time::Duration::ZERO;
    let api = api_with(EngineOptions {
        groups: GroupOptions { offsets_retention },
        ..EngineOptions::default()
    })
    .await;
    let early_moment = moment(&api).await;
    // A commit within this millisecond is not old yet.
    while !api.engine.groups().apply_retention().await.unwrap() {
        let (topic, metadata) = ("a".to_owned(), String::new());
        let commit = OffsetCommit {
            topic,
            partition: 0,
            offset: 1,
            leader_epoch: -1,
            metadata,
            retention_ms: None,
        };
        api.engine.groups().commit("g", vec![commit]).await.unwrap();
    }
    let refusal =
        answer_json(&api, json!({"op": "offsets", "at": early_moment})).await["error"].take();
    assert_eq!(refusal["code"], "before_history");
    let message = refusal["message"].as_str().unwrap();
    let (_, earliest) = message.split_once("they begin at ").unwrap();
    let offsets = answer_json(&api, json!({"op": "offsets", "at": earliest})).await;
    assert_eq!(offsets["groups"][0]["group"], "g", "{message}: {offsets}");
    let pin = json!({"op": "pin", "name": "p", "at": early_moment, "for_ms": DAY_MS});
    assert_eq!(code(&api, pin).await, "before_history");
}
