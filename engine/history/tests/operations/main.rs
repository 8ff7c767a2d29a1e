//! The operations of the history API, on the real engine over a memory disk.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::json;

use crate::fixture::{api, code};

mod cuts;
mod diffs;
mod fixture;
mod groups;
mod pins;
mod plugins;
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
