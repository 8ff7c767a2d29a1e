//! The operations of the history API, on the real engine over a memory disk.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use history_documents::{
    CutResponse, DiffResponse, GroupSeekResult, GroupsResponse, OffsetsResponse, PinResponse,
    PinsResponse, RefusalDocument, TopicsResponse, TreeListResponse, TreeNodeStat,
    UserTimesResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::fixture::{DAY_MS, TestHistoryApi, answer_text, api, append_three, code, moment};

mod access;
mod cuts;
mod diffs;
mod fixture;
mod groups;
mod pins;
mod plugins;
mod security;
mod seeks;
mod tree;

#[tokio::test]
async fn what_is_no_request_is_refused() {
    let api = api().await;
    for document in [
        json!(null),
        json!([1]),
        json!({}),
        json!({"op": 5}),
        json!({"op": "none"}),
        json!({"op": "cut"}),
        json!({"op": "cut", "at": 5}),
        json!({"op": "cut", "at": "s5", "more": 1}),
        json!({"op": "pins", "more": 1}),
    ] {
        assert_eq!(code(&api, document.clone()).await, "bad_request", "{document}");
    }
}

/// The text of an answer reads as its type, and that type writes the same text.
async fn same_text<T: DeserializeOwned + Serialize>(api: &TestHistoryApi, document: Value) {
    let text = answer_text(api, document).await;
    let parsed: T = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&parsed).unwrap(), text);
}

#[tokio::test]
async fn every_answer_is_the_text_of_the_type_that_clients_read() {
    let api = api().await;
    let from = moment(&api).await;
    append_three(&api).await;
    let pin = json!({"op": "pin", "name": "p", "at": from, "for_ms": DAY_MS, "topics": ["a"]});
    same_text::<PinResponse>(&api, pin).await;
    let seek = json!({"op": "seek_group", "group": "g", "at": from, "topics": ["a"]});
    same_text::<GroupSeekResult>(&api, seek).await;
    let until = moment(&api).await;
    same_text::<CutResponse>(&api, json!({"op": "cut", "at": until})).await;
    same_text::<TopicsResponse>(&api, json!({"op": "topics", "at": until})).await;
    same_text::<OffsetsResponse>(&api, json!({"op": "offsets"})).await;
    same_text::<GroupsResponse>(&api, json!({"op": "groups", "at": until})).await;
    same_text::<PinsResponse>(&api, json!({"op": "pins"})).await;
    let diff = json!({"op": "diff", "from": from, "until": until});
    same_text::<DiffResponse>(&api, diff).await;
    let list = json!({"op": "tree", "do": "list", "path": "/", "stat": true});
    same_text::<TreeListResponse>(&api, list).await;
    let stat = json!({"op": "tree", "do": "stat", "path": "/topics/a/0.log"});
    same_text::<TreeNodeStat>(&api, stat).await;
    let times = json!({"op": "user-times", "topic": "a", "partition": 0, "from": 0});
    same_text::<UserTimesResponse>(&api, times).await;
    let far_cut = json!({"op": "cut", "at": "s9999999999999"});
    same_text::<RefusalDocument>(&api, far_cut).await;
}
