//! What Kafka's protocol has no words for: cuts, and the past of topics and offsets.
//!
//! One API of our own, with a key far above Kafka's, not listed in ApiVersions: stock clients never
//! see it. Its body is one JSON document each way; `docs/KAFKA.md` describes them.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use engine::{CutAnswer, SeekError, When};
use hlc::{Cut, Hlc, Moment};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::answer::Answer;
use crate::core::Kafka;
use crate::routes::{BadRequest, Context, Served};

/// "FF".
pub(crate) const API_KEY: i16 = 17990;
/// The longest that anybody may wait for a moment.
const PATIENCE_MAX: Duration = Duration::from_secs(60);
/// The longest request.
const REQUEST_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
enum Request {
    Cut {
        at: String,
        #[serde(default)]
        topics: Option<Vec<String>>,
        #[serde(default)]
        when: Patience,
        #[serde(default)]
        patience_ms: Option<u64>,
    },
    Topics {
        #[serde(default)]
        at: Option<String>,
    },
    Offsets {
        #[serde(default)]
        at: Option<String>,
        #[serde(default)]
        group: Option<String>,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Patience {
    #[default]
    Wait,
    Refuse,
    Frontier,
}

#[derive(Debug, Serialize)]
struct Refusal {
    code: &'static str,
    message: String,
    frontier: Option<String>,
}

impl Refusal {
    fn new(code: &'static str, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), frontier: None }
    }
}

impl From<SeekError> for Refusal {
    fn from(error: SeekError) -> Refusal {
        let (code, frontier) = match &error {
            SeekError::NotYet { frontier, .. } => ("not_yet", Some(*frontier)),
            SeekError::FarFuture { frontier, .. } => ("far_future", Some(*frontier)),
            SeekError::BeforeHistory { .. } => ("before_history", None),
            SeekError::NoTopic { .. } => ("unknown_topic", None),
            SeekError::Engine(engine::EngineError::Fenced(_)) => ("fenced", None),
            SeekError::Engine(_) => ("internal", None),
        };
        Refusal { code, message: error.to_string(), frontier: frontier.map(stamp) }
    }
}

/// A stamp, as a moment that can be given back.
fn stamp(stamp: Hlc) -> String {
    format!("sh{:016x}", stamp.bits())
}

pub(crate) async fn serve(kafka: &Arc<Kafka>, context: &Context, body: Bytes) -> Served {
    if context.version != 0 || body.len() > REQUEST_BYTES_MAX {
        return Err(BadRequest {
            api: context.api_key,
            version: context.version,
            reason: "the extension API is served in version 0, up to 1 MiB".to_owned(),
        });
    }
    let answer = match serde_json::from_slice::<Request>(&body) {
        Ok(request) => ask(kafka, request).await,
        Err(error) => Err(Refusal::new("bad_request", format!("not a request: {error}"))),
    };
    let answer = answer.unwrap_or_else(|refusal| json!({ "error": refusal }));
    let mut out = Answer::new();
    out.write(|bytes| {
        bytes.put_i32(context.correlation_id);
        bytes.put_slice(answer.to_string().as_bytes());
    });
    Ok(Some(out))
}

async fn ask(kafka: &Arc<Kafka>, request: Request) -> Result<Value, Refusal> {
    let wait = When::Wait(kafka.options.moment_patience);
    match request {
        Request::Cut { at, topics, when, patience_ms } => {
            let patience = patience_ms.map_or(kafka.options.moment_patience, Duration::from_millis);
            let when = match when {
                Patience::Wait => When::Wait(patience.min(PATIENCE_MAX)),
                Patience::Refuse => When::Refuse,
                Patience::Frontier => When::AtFrontier,
            };
            let answer = kafka.engine.cut(parse(&at)?, topics.as_deref(), when).await?;
            Ok(cut_answer(&answer))
        }
        Request::Topics { at } => {
            let (cut, when) = moment(at.as_deref(), wait)?;
            let (at, frontier, topics) = kafka.engine.topics_at(cut, when).await?;
            let topics: Vec<Value> = topics
                .iter()
                .map(|(topic, deleted)| {
                    json!({
                        "name": &*topic.name,
                        "id": Uuid::from_bytes(topic.id).to_string(),
                        "partitions": topic.partitions.len(),
                        "created": stamp(topic.created),
                        "deleted": deleted.map(stamp),
                        "configs": topic.config.set(),
                    })
                })
                .collect();
            Ok(json!({ "at": shown(at), "frontier": stamp(frontier), "topics": topics }))
        }
        Request::Offsets { at, group } => {
            let (cut, when) = moment(at.as_deref(), wait)?;
            let (at, frontier, offsets) =
                kafka.engine.offsets_at(group.as_deref(), cut, when).await?;
            let mut groups: Vec<Value> = Vec::new();
            for chunk in offsets.chunk_by(|a, b| a.group == b.group) {
                let offsets: Vec<Value> = chunk
                    .iter()
                    .map(|held| {
                        json!({
                            "topic": held.topic,
                            "partition": held.partition,
                            "offset": held.committed.offset,
                            "leader_epoch": held.committed.leader_epoch,
                            "metadata": held.committed.metadata,
                            "committed": stamp(held.stamp),
                        })
                    })
                    .collect();
                groups.push(json!({ "group": chunk[0].group, "offsets": offsets }));
            }
            Ok(json!({ "at": shown(at), "frontier": stamp(frontier), "groups": groups }))
        }
    }
}

fn shown(cut: Cut) -> String {
    Moment::Sys(cut).to_string()
}

fn parse(text: &str) -> Result<Cut, Refusal> {
    match text.parse::<Moment>() {
        Ok(Moment::Sys(cut)) => Ok(cut),
        Ok(Moment::User { .. }) => Err(Refusal::new(
            "bad_moment",
            "a cut across partitions is by system time (s…); by user time ask each topic",
        )),
        Err(error) => Err(Refusal::new("bad_moment", error.to_string())),
    }
}

/// What is asked, or the frontier.
fn moment(text: Option<&str>, wait: When) -> Result<(Cut, When), Refusal> {
    match text {
        Some(text) => Ok((parse(text)?, wait)),
        None => Ok((Cut::ALL, When::AtFrontier)),
    }
}

fn cut_answer(answer: &CutAnswer) -> Value {
    let partitions: Vec<Value> = answer
        .partitions
        .iter()
        .map(|held| {
            json!({
                "topic": &*held.topic,
                "partition": held.partition,
                "start": held.start.0,
                "end": held.end.0,
            })
        })
        .collect();
    json!({
        "at": shown(answer.at),
        "frontier": stamp(answer.frontier),
        "skew_ms": answer.skew_ms,
        "durable": answer.durable,
        "hash": format!("{:032x}", answer.hash),
        "partitions": partitions,
    })
}
