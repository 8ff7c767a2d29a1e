//! The tree of files.

use serde_json::{Value, json};

use crate::fixture::{TestHistoryApi, answer_json, answer_text_as, api, append_three, code};

#[tokio::test]
async fn the_tree_is_an_operation_like_the_others() {
    let api = api().await;
    append_three(&api).await;
    let list = json!({"op": "tree", "do": "list", "path": "/topics", "stat": true});
    let listing = answer_json(&api, list).await;
    let entry = &listing["names"][0];
    assert_eq!((&entry["name"], &entry["kind"]), (&json!("a"), &json!("directory")), "{listing}");
    assert!(entry["cookie"].is_string() && entry["stat"]["inode"].is_string(), "{listing}");
    assert!(entry.get("error").is_none() && entry["stat"].get("target").is_none(), "{listing}");
    let without_stat = json!({"op": "tree", "do": "list", "path": "/topics"});
    assert!(answer_json(&api, without_stat).await["names"][0].get("stat").is_none());
}

#[tokio::test]
async fn a_file_is_opened_read_and_closed_by_its_number() {
    let api = api().await;
    append_three(&api).await;
    let open = json!({"op": "tree", "do": "open", "path": "/topics/a/0.log"});
    let opened = answer_json(&api, open).await;
    assert!(opened["size"].as_u64().unwrap() > 100, "{opened}");
    let read_request =
        json!({"op": "tree", "do": "read", "open": opened["open"], "at": 0, "length": 3});
    assert_eq!(answer_json(&api, read_request.clone()).await, json!({"base64": "AAAA"}));
    let close = json!({"op": "tree", "do": "close", "open": opened["open"]});
    assert_eq!(answer_json(&api, close).await, json!({"closed": opened["open"]}));
    assert_eq!(code(&api, read_request).await, "gone");
}

#[tokio::test]
async fn what_the_tree_does_not_have_is_refused_by_a_code_of_its_own() {
    let api = api().await;
    let stat = |path: serde_json::Value| json!({"op": "tree", "do": "stat", "path": path});
    assert_eq!(code(&api, stat(json!("/none"))).await, "not_found");
    assert_eq!(code(&api, stat(json!({"base64": "?"}))).await, "bad_path");
    assert_eq!(code(&api, stat(json!(5))).await, "bad_request");
    let list = json!({"op": "tree", "do": "list", "path": "/", "after": "x"});
    assert_eq!(code(&api, list).await, "bad_request");
    let keys =
        |topic: &str, at: &str| json!({"op": "tree", "do": "keys", "topic": topic, "at": at});
    assert_eq!(code(&api, keys("a", "soon")).await, "bad_moment");
    let open = json!({"op": "tree", "do": "open", "path": "/topics"});
    assert_eq!(code(&api, open).await, "is_directory");
}

async fn answer_as(api: &TestHistoryApi, user: &str, document: Value) -> Value {
    serde_json::from_str(&answer_text_as(api, user, document).await).unwrap()
}

#[tokio::test]
async fn a_user_with_many_open_files_closes_only_its_own() {
    let api = api().await;
    append_three(&api).await;
    let open = json!({"op": "tree", "do": "open", "path": "/topics/a/0.log"});
    let of_alice = answer_as(&api, "alice", open.clone()).await["open"].clone();
    let mut of_bob = Vec::new();
    for _ in 0..200 {
        of_bob.push(answer_as(&api, "bob", open.clone()).await["open"].clone());
    }
    let read_request =
        |file: &Value| json!({"op": "tree", "do": "read", "open": file, "at": 0, "length": 3});
    let bytes = json!({"base64": "AAAA"});
    assert_eq!(answer_as(&api, "alice", read_request(&of_alice)).await, bytes);
    assert_eq!(answer_as(&api, "bob", read_request(&of_bob[199])).await, bytes);
    assert_eq!(answer_as(&api, "bob", read_request(&of_bob[0])).await["error"]["code"], "gone");
    let usages = api.engine.budgets().usages();
    let usage = usages.iter().find(|usage| usage.name == "open-tree-files").expect("it is listed");
    assert!(usage.used <= usage.limit, "{usage:?}");
    assert!(usage.largest.as_ref().expect("it has holders").name.ends_with("bob"), "{usage:?}");
}
