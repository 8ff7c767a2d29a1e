//! The extension API, for what Kafka's protocol does not have: cuts, the past of topics and groups,
//! and pins.
//!
//! It is one API with a key far above Kafka's, and ApiVersions does not list it, so stock clients
//! never see it. Requests and responses are one JSON document each; `docs/KAFKA.md` describes them.
//! The HTTP history API takes the same documents, so [`handle_document`] is the only entry point.
//!
//! Each file here is about one subject, and has its operations. Other crates register operations on
//! subjects that this crate does not know, as [`ExtensionOperations`].

use std::pin::Pin;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::core::KafkaServer;
use crate::request::{BadRequest, RequestContext, ResponseResult};
use crate::response::KafkaResponse;

mod cuts;
mod diffs;
mod error;
mod error_code;
#[cfg(test)]
mod fixture;
mod groups;
mod members;
mod moment;
mod pins;
mod plugins;
mod seeks;
mod topics;

pub use error::HistoryApiError;
pub use error_code::HistoryErrorCode;

/// "FF".
pub(crate) const API_KEY: i16 = 17990;
const REQUEST_BYTES_MAX: usize = 1 << 20;

pub type OperationFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Value, HistoryApiError>> + Send + 'a>>;

/// Operations from a part of the server that this crate does not know.
pub trait ExtensionOperations: Send + Sync + 'static {
    /// The names of the operations.
    fn operations(&self) -> &[&'static str];

    /// Runs the operation `op`. `document` is the request without its `op`.
    fn call<'a>(&'a self, op: &'a str, document: Value) -> OperationFuture<'a>;
}

pub(crate) async fn handle(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    body: Bytes,
) -> ResponseResult {
    if context.version != 0 {
        return Err(BadRequest {
            api: context.api_key,
            version: context.version,
            reason: "the extension API is served in version 0".to_owned(),
        });
    }
    let answer = if body.len() > REQUEST_BYTES_MAX {
        Err(too_large(body.len()))
    } else {
        parse_and_handle(kafka, &body).await
    };
    let mut out = KafkaResponse::new();
    out.write(|bytes| {
        bytes.put_i32(context.correlation_id);
        bytes.put_slice(answer.unwrap_or_else(|refusal| refusal.document()).as_bytes());
    });
    Ok(Some(out))
}

fn too_large(bytes: usize) -> HistoryApiError {
    let what = format!("a document is too long. bytes={bytes}, most={REQUEST_BYTES_MAX}");
    HistoryApiError::new(HistoryErrorCode::TooLarge, what)
}

async fn parse_and_handle(
    kafka: &Arc<KafkaServer>,
    body: &[u8],
) -> Result<String, HistoryApiError> {
    let document = serde_json::from_slice(body).map_err(|error| {
        HistoryApiError::new(HistoryErrorCode::BadRequest, format!("not JSON: {error}"))
    })?;
    handle_document(kafka, document).await
}

/// Handles one document, as `docs/KAFKA.md` describes them, and returns the text of the response.
///
/// # Errors
///
/// The reason of the failure. [`HistoryApiError::document`] is the response to send then.
pub async fn handle_document(
    kafka: &Arc<KafkaServer>,
    mut document: Value,
) -> Result<String, HistoryApiError> {
    let op = match document.as_object_mut().and_then(|fields| fields.remove("op")) {
        Some(Value::String(op)) => op,
        _ => {
            let what = "a request is an object with a field op, as in {\"op\":\"pins\"}";
            return Err(HistoryApiError::new(HistoryErrorCode::BadRequest, what));
        }
    };
    // A cut may have very many partitions. Its text is written directly, without a tree of JSON
    // values.
    if op == "cut" {
        return cuts::cut(kafka, read(document)?).await;
    }
    dispatch(kafka, &op, document).await.map(|answer| answer.to_string())
}

async fn dispatch(
    kafka: &Arc<KafkaServer>,
    op: &str,
    document: Value,
) -> Result<Value, HistoryApiError> {
    match op {
        "diff" => diffs::diff(kafka, read(document)?).await,
        "topics" => topics::topics(kafka, read(document)?).await,
        "offsets" => groups::offsets(kafka, read(document)?).await,
        "groups" => groups::groups(kafka, read(document)?).await,
        "seek_group" => seeks::seek(kafka, read(document)?).await,
        "restore_group" => seeks::restore(kafka, read(document)?).await,
        "pin" => pins::pin(kafka, read(document)?).await,
        "unpin" => pins::unpin(kafka, read(document)?).await,
        "pins" => pins::pins(kafka, read(document)?),
        "plugins" => plugins::plugins(kafka, read(document)?),
        "plugin-add" => plugins::add_plugin(kafka, read(document)?).await,
        "plugin-remove" => plugins::remove_plugin(kafka, read(document)?).await,
        "plugin-test" => plugins::test_user_time(kafka, read(document)?),
        "user-times" => plugins::user_times(kafka, read(document)?).await,
        _ => call_registered(kafka, op, document).await,
    }
}

fn read<T: DeserializeOwned>(document: Value) -> Result<T, HistoryApiError> {
    serde_json::from_value(document).map_err(|error| {
        HistoryApiError::new(HistoryErrorCode::BadRequest, format!("not a request: {error}"))
    })
}

async fn call_registered(
    kafka: &Arc<KafkaServer>,
    op: &str,
    document: Value,
) -> Result<Value, HistoryApiError> {
    match kafka.operations_for(op) {
        Some(ops) => ops.call(op, document).await,
        None => Err(HistoryApiError::new(
            HistoryErrorCode::BadRequest,
            format!("no such operation. op={op:?}"),
        )),
    }
}

/// [`handle_document`], with an error as its document on the wire.
#[cfg(test)]
async fn handle_json(kafka: &Arc<KafkaServer>, document: Value) -> Value {
    let answer =
        handle_document(kafka, document).await.unwrap_or_else(|refusal| refusal.document());
    serde_json::from_str(&answer).unwrap()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::fixture::{code, kafka};
    use super::*;

    struct EchoOperations;

    impl ExtensionOperations for EchoOperations {
        fn operations(&self) -> &[&'static str] {
            &["echo"]
        }

        fn call<'a>(&'a self, op: &'a str, document: Value) -> OperationFuture<'a> {
            Box::pin(async move {
                match document["refuse"] {
                    Value::Null => Ok(json!({ "op": op, "said": document })),
                    _ => Err(HistoryApiError::new(HistoryErrorCode::UnknownPath, "it said so")),
                }
            })
        }
    }

    #[tokio::test]
    async fn operations_that_others_bring_are_answered_by_them() {
        let kafka = kafka().await;
        assert_eq!(code(&kafka, json!({"op": "echo"})).await, "bad_request");
        kafka.register_operations(Arc::new(EchoOperations));
        let answer = handle_json(&kafka, json!({"op": "echo", "a": 5})).await;
        assert_eq!(answer, json!({"op": "echo", "said": {"a": 5}}));
        assert_eq!(code(&kafka, json!({"op": "echo", "refuse": true})).await, "unknown_path");
        assert_eq!(handle_json(&kafka, json!({"op": "pins"})).await, json!({ "pins": [] }));
    }

    #[tokio::test]
    async fn what_is_no_request_is_refused() {
        let kafka = kafka().await;
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
            assert_eq!(code(&kafka, document.clone()).await, "bad_request", "{document}");
        }
    }
}
