//! Resetting a group to a moment.

use serde_json::{Value, json};

use engine::groups::OffsetCommit;

use crate::fixture::{TestHistoryApi, answer_json, api, append_three, moment};

async fn commit_offset(api: &TestHistoryApi, offset: i64) {
    let (topic, metadata) = ("a".to_owned(), String::new());
    let commit = OffsetCommit {
        topic,
        partition: 0,
        offset,
        leader_epoch: -1,
        metadata,
        retention_ms: None,
    };
    api.engine.groups().commit("g", vec![commit]).await.unwrap();
}

fn committed(api: &TestHistoryApi) -> i64 {
    api.engine.groups().committed_offset("g", "a", 0).unwrap().unwrap().offset
}

#[tokio::test]
async fn a_group_is_set_and_set_back() {
    let api = api().await;
    append_three(&api).await;
    let early_moment = moment(&api).await;
    append_three(&api).await;
    commit_offset(&api, 5).await;
    let seek_moment = moment(&api).await;
    let seek = json!({"op": "seek_group", "group": "g", "at": early_moment});
    let mut dry = seek.clone();
    dry["dry_run"] = json!(true);
    let dry = answer_json(&api, dry).await;
    assert_eq!((&dry["committed"], committed(&api)), (&Value::Null, 5), "{dry}");
    let result = answer_json(&api, seek).await;
    assert_eq!(result["offsets"], dry["offsets"]);
    assert_eq!(
        result["offsets"][0],
        json!({"topic": "a", "partition": 0, "before": 5, "after": 3})
    );
    assert_eq!(committed(&api), 3);
    let group = answer_json(&api, json!({"op": "groups", "group": "g"})).await["groups"][0].take();
    assert_eq!(group["sought"]["a"], json!(early_moment));
    let restore = json!({"op": "restore_group", "group": "g", "at": seek_moment});
    let result = answer_json(&api, restore).await;
    assert_eq!((result["offsets"][0]["after"].as_i64(), committed(&api)), (Some(5), 5));
    let request = json!({"op": "restore_group", "group": "g", "at": "s9999999999999",
                       "when": "frontier"});
    let as_it_is = answer_json(&api, request).await;
    assert_ne!(as_it_is["at"], "s9999999999999", "{as_it_is}");
    assert_eq!((as_it_is["committed"].is_null(), committed(&api)), (false, 5));
    let by_user = answer_json(&api, json!({"op": "seek_group", "group": "g", "at": "u0"})).await;
    assert!(by_user["at"].as_str().unwrap().starts_with("u0@s"), "{by_user}");
    assert_eq!(committed(&api), 0);
}
