//! Plug-ins and user times.

use serde_json::json;

use crate::fixture::{answer_json, api, code};

/// A plug-in that always returns this time.
fn saying(ms: i64) -> String {
    let text = format!(
        "(module (memory (export \"memory\") 1) \
           (func (export \"alloc\") (param i32) (result i32) (i32.const 1024)) \
           (func (export \"user_time\") (param i32 i32 i32 i32 i64) (result i64) \
             (i64.const {ms})))"
    );
    wat::parse_str(text).unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_plug_in_is_added_tried_replaced_listed_and_removed() {
    let api = api().await;
    assert_eq!(answer_json(&api, json!({"op": "plugins"})).await, json!({"plugins": []}));
    for ms in [17, 18] {
        let add = json!({"op": "plugin-add", "name": "p", "module": saying(ms)});
        assert_eq!(answer_json(&api, add).await, json!({"added": "p"}));
        let test = json!({"op": "plugin-test", "spec": "wasm:p", "value": "00"});
        assert_eq!(answer_json(&api, test).await, json!({"user_time": ms}));
    }
    let plugins = answer_json(&api, json!({"op": "plugins"})).await;
    assert_eq!(plugins["plugins"][0]["name"], "p", "{plugins}");
    assert_eq!(plugins["plugins"].as_array().unwrap().len(), 1);
    let remove = json!({"op": "plugin-remove", "name": "p"});
    assert_eq!(answer_json(&api, remove.clone()).await, json!({"removed": "p"}));
    assert_eq!(code(&api, remove).await, "unknown_plugin");
    let test = json!({"op": "plugin-test", "spec": "wasm:p"});
    assert_eq!(code(&api, test).await, "unknown_plugin");
}

#[tokio::test]
async fn a_spec_is_tried_without_a_topic() {
    let api = api().await;
    let test = |spec: &str, value: &str| json!({"op": "plugin-test", "spec": spec, "value": value});
    assert_eq!(
        answer_json(&api, test("csv:1;unit=s", "31372c")).await,
        json!({"user_time": 17_000})
    );
    assert_eq!(code(&api, test("csv:2", "31")).await, "unreadable");
    assert_eq!(code(&api, test("csv:0", "31")).await, "bad_spec");
    assert_eq!(code(&api, test("csv:1", "3")).await, "bad_request");
    assert_eq!(code(&api, test("csv:1", "zz")).await, "bad_request");
    let header = json!({"op": "plugin-test", "spec": "header:h", "headers": [["h", "35"]]});
    assert_eq!(answer_json(&api, header).await, json!({"user_time": 5}));
}

#[tokio::test]
async fn what_cannot_be_a_plug_in_is_refused() {
    let api = api().await;
    for (name, module) in [("p", "00"), ("../p", &saying(1)), ("", &saying(1)), ("p", "")] {
        let add = json!({"op": "plugin-add", "name": name, "module": module});
        assert_eq!(code(&api, add).await, "bad_plugin", "{name}");
    }
    let times = json!({"op": "user-times", "topic": "a", "partition": 9, "from": 0});
    assert_eq!(code(&api, times).await, "unknown_topic");
    let times = json!({"op": "user-times", "topic": "a", "partition": 0, "from": 0});
    assert_eq!(answer_json(&api, times).await, json!({"own": true, "next": 0, "times": []}));
}
