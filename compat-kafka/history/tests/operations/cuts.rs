//! Cuts.

use serde_json::json;

use crate::fixture::{answer_json, api, append_three, code, moment};

#[tokio::test]
async fn a_cut_says_of_which_kind_it_is_and_what_it_is_true_of() {
    let api = api().await;
    append_three(&api).await;
    let at = moment(&api).await;
    let by_system = answer_json(&api, json!({"op": "cut", "at": at})).await;
    assert_eq!((&by_system["kind"], &by_system["closed"]), (&json!("prefix"), &json!(true)));
    assert_eq!(by_system["partitions"][0]["end"], 3);
    // All records of the batch have a timestamp in 1970.
    let early_cut = answer_json(&api, json!({"op": "cut", "at": "u0"})).await;
    assert_eq!((&early_cut["kind"], &early_cut["closed"]), (&json!("prefix"), &json!(false)));
    let early_at = early_cut["at"].as_str().unwrap();
    assert!(early_at.starts_with("u0@s"), "{early_cut}");
    let late_cut = answer_json(&api, json!({"op": "cut", "at": format!("u1@{at}")})).await;
    assert_eq!(late_cut["hash"], by_system["hash"]);
    append_three(&api).await;
    let repeated_cut = answer_json(&api, json!({"op": "cut", "at": early_at})).await;
    assert_eq!(
        (&repeated_cut["hash"], &repeated_cut["at"]),
        (&early_cut["hash"], &early_cut["at"])
    );
}

#[tokio::test]
async fn what_is_no_moment_for_a_cut_is_refused_with_a_reason() {
    let api = api().await;
    for (at, reason) in [
        ("whenever", "not a time"),
        ("s5..s6", "not a window"),
        ("s6..s5", "the window is empty"),
        ("s5@s6", "only a moment of user time"),
        ("s", "not a time"),
    ] {
        let answer = answer_json(&api, json!({"op": "cut", "at": at})).await;
        assert_eq!(answer["error"]["code"], "bad_moment", "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(reason), "{answer}");
    }
    let far_cut = json!({"op": "cut", "at": "u5@s9999999999999"});
    assert_eq!(code(&api, far_cut).await, "far_future");
    let soon_ms = api.engine.wall_now().0 + 500;
    let soon_cut = json!({"op": "cut", "at": format!("s{soon_ms}"), "when": "refuse"});
    let refused = answer_json(&api, soon_cut).await;
    assert_eq!(refused["error"]["code"], "not_yet");
    assert!(refused["error"]["retry_ms"].as_u64().is_some_and(|ms| ms <= 501), "{refused}");
}
