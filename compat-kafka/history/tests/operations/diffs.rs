//! Differences.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use engine::groups::OffsetCommit;

use crate::fixture::{answer_json, api, append_three, code, moment};

#[tokio::test]
async fn differences_are_listed_by_kind_and_in_pages() {
    let api = api().await;
    let from = moment(&api).await;
    append_three(&api).await;
    let (topic, metadata) = ("a".to_owned(), "m".to_owned());
    let commit = OffsetCommit {
        topic,
        partition: 0,
        offset: 2,
        leader_epoch: 1,
        metadata,
        retention_ms: None,
    };
    api.engine.groups().commit("g", vec![commit]).await.unwrap();
    let configs = BTreeMap::from([("retention.ms".to_owned(), "5000".to_owned())]);
    let change = |configs_of_group: &mut BTreeMap<String, String>| {
        configs_of_group.extend(configs);
        Ok(())
    };
    api.engine.topics().configure("a", change, false).await.unwrap();
    let until = moment(&api).await;
    let request = json!({"op": "diff", "from": from, "until": until});
    let full_diff = answer_json(&api, request).await;
    assert_eq!(full_diff["next"], Value::Null);
    let changes = full_diff["changes"].as_array().unwrap();
    assert_eq!(changes.len(), 3, "{full_diff}");
    let changed = &changes[0];
    let setting = &changed["configs"]["retention.ms"];
    assert_eq!(changed["kind"], "topic_changed");
    assert_eq!(*setting, json!({"before": null, "after": "5000"}));
    let appended = &changes[1];
    assert_eq!((&appended["kind"], &appended["start"]), (&json!("appended"), &json!(0)));
    assert_eq!((&appended["end"], &appended["records"]), (&json!(3), &json!(3)));
    assert!(appended["bytes"].as_u64().unwrap() > 100);
    let after = json!({"offset": 2, "leader_epoch": 1, "metadata": "m"});
    assert_eq!((&changes[2]["before"], &changes[2]["after"]), (&Value::Null, &after));
    let mut paged = Vec::new();
    let mut next = json!(null);
    loop {
        let request = json!({"op": "diff", "from": from, "until": until, "limit": 1,
                           "after": next});
        let mut page = answer_json(&api, request).await;
        paged.extend(page["changes"].as_array().unwrap().iter().cloned());
        next = page["next"].take();
        if next.is_null() {
            break;
        }
    }
    assert_eq!(&paged, changes);
    let request = json!({"op": "diff", "from": from, "until": until, "only": ["offsets"]});
    assert_eq!(answer_json(&api, request).await["changes"], json!([changes[2]]));
    let request = json!({"op": "diff", "from": from, "until": until, "only": ["moods"]});
    assert_eq!(code(&api, request).await, "bad_request");
}

#[tokio::test]
async fn two_moments_that_cannot_be_compared_are_refused() {
    let api = api().await;
    let now = moment(&api).await;
    let code = async |from: &str, until: &str| {
        code(&api, json!({"op": "diff", "from": from, "until": until})).await
    };
    assert_eq!(code(&now, &now).await, "bad_moment");
    assert_eq!(code(&now, "s5").await, "bad_moment");
    assert_eq!(code("u5", "u6").await, "bad_moment");
    assert_eq!(code("s5", "s9999999999999").await, "far_future");
    let request = json!({"op": "diff", "from": "s5", "until": now, "after": "nonsense"});
    assert_eq!(crate::fixture::code(&api, request).await, "bad_request");
    let request = json!({"op": "diff", "from": "s5", "until": now, "topics": ["no"]});
    assert_eq!(crate::fixture::code(&api, request).await, "unknown_topic");
}
