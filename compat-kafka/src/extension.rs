//! What Kafka's protocol has no words for: cuts, the past of topics and groups, and pins.
//!
//! One API of our own, with a key far above Kafka's, not listed in ApiVersions: stock clients never
//! see it. Its body is one JSON document each way; `docs/KAFKA.md` describes them. The same documents
//! are asked over HTTP, so [`ask_text`] is the one way in.
//!
//! A file here is about one subject, and has its operations. Operations on what this crate does not
//! know are brought by others, as [`MoreOps`].

use std::pin::Pin;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::Answer;
use crate::core::Kafka;
use crate::routes::{BadRequest, Context, Served};

mod cuts;
mod diffs;
mod error_code;
mod groups;
mod members;
mod moment;
mod pins;
mod plugins;
mod refusal;
#[cfg(test)]
mod rig;
mod seeks;
mod topics;

pub use error_code::HistoryErrorCode;
pub use refusal::Refusal;

/// "FF".
pub(crate) const API_KEY: i16 = 17990;
/// The longest request.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// An answer that is being made.
pub type Answering<'a> = Pin<Box<dyn Future<Output = Result<Value, Refusal>> + Send + 'a>>;

/// Operations that come from a part of the server which this crate does not know.
pub trait MoreOps: Send + Sync + 'static {
    /// The names of the operations.
    fn ops(&self) -> &[&'static str];

    /// Answers one of them. `document` is what was asked, without its `op`.
    fn ask<'a>(&'a self, op: &'a str, document: Value) -> Answering<'a>;
}

pub(crate) async fn serve(kafka: &Arc<Kafka>, context: &Context, body: Bytes) -> Served {
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
        read_and_answer(kafka, &body).await
    };
    let mut out = Answer::new();
    out.write(|bytes| {
        bytes.put_i32(context.correlation_id);
        bytes.put_slice(answer.unwrap_or_else(|refusal| refusal.document()).as_bytes());
    });
    Ok(Some(out))
}

fn too_large(bytes: usize) -> Refusal {
    let what = format!("a document is too long. bytes={bytes}, most={REQUEST_BYTES_MAX}");
    Refusal::new(HistoryErrorCode::TooLarge, what)
}

async fn read_and_answer(kafka: &Arc<Kafka>, body: &[u8]) -> Result<String, Refusal> {
    let document = serde_json::from_slice(body).map_err(|error| {
        Refusal::new(HistoryErrorCode::BadRequest, format!("not JSON: {error}"))
    })?;
    ask_text(kafka, document).await
}

/// Answers one document, as `docs/KAFKA.md` describes them, with the text of another.
///
/// # Errors
/// Why there is none; [`Refusal::document`] is what to answer then.
pub async fn ask_text(kafka: &Arc<Kafka>, mut document: Value) -> Result<String, Refusal> {
    let op = match document.as_object_mut().and_then(|fields| fields.remove("op")) {
        Some(Value::String(op)) => op,
        _ => {
            let what = "a request is an object with a field op, as in {\"op\":\"pins\"}";
            return Err(Refusal::new(HistoryErrorCode::BadRequest, what));
        }
    };
    // A cut may have very many partitions: its text is written without a tree of values before it.
    if op == "cut" {
        return cuts::cut(kafka, read(document)?).await;
    }
    dispatch(kafka, &op, document).await.map(|answer| answer.to_string())
}

async fn dispatch(kafka: &Arc<Kafka>, op: &str, document: Value) -> Result<Value, Refusal> {
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
        "plugin-add" => plugins::add(kafka, read(document)?).await,
        "plugin-remove" => plugins::remove(kafka, read(document)?).await,
        "plugin-test" => plugins::test(kafka, read(document)?),
        "user-times" => plugins::user_times(kafka, read(document)?).await,
        _ => more(kafka, op, document).await,
    }
}

fn read<T: DeserializeOwned>(document: Value) -> Result<T, Refusal> {
    serde_json::from_value(document).map_err(|error| {
        Refusal::new(HistoryErrorCode::BadRequest, format!("not a request: {error}"))
    })
}

async fn more(kafka: &Arc<Kafka>, op: &str, document: Value) -> Result<Value, Refusal> {
    match kafka.ops_of(op) {
        Some(ops) => ops.ask(op, document).await,
        None => {
            Err(Refusal::new(HistoryErrorCode::BadRequest, format!("no such operation. op={op:?}")))
        }
    }
}

/// [`ask_text`], with a refusal as the document that it is on the wire.
#[cfg(test)]
async fn ask(kafka: &Arc<Kafka>, document: Value) -> Value {
    let answer = ask_text(kafka, document).await.unwrap_or_else(|refusal| refusal.document());
    serde_json::from_str(&answer).unwrap()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::rig::{code, kafka};
    use super::*;

    struct Echo;

    impl MoreOps for Echo {
        fn ops(&self) -> &[&'static str] {
            &["echo"]
        }

        fn ask<'a>(&'a self, op: &'a str, document: Value) -> Answering<'a> {
            Box::pin(async move {
                match document["refuse"] {
                    Value::Null => Ok(json!({ "op": op, "said": document })),
                    _ => Err(Refusal::new(HistoryErrorCode::UnknownPath, "it said so")),
                }
            })
        }
    }

    #[tokio::test]
    async fn operations_that_others_bring_are_answered_by_them() {
        let kafka = kafka().await;
        assert_eq!(code(&kafka, json!({"op": "echo"})).await, "bad_request");
        kafka.add_ops(Arc::new(Echo));
        let answer = ask(&kafka, json!({"op": "echo", "a": 5})).await;
        assert_eq!(answer, json!({"op": "echo", "said": {"a": 5}}));
        assert_eq!(code(&kafka, json!({"op": "echo", "refuse": true})).await, "unknown_path");
        assert_eq!(ask(&kafka, json!({"op": "pins"})).await, json!({ "pins": [] }));
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
