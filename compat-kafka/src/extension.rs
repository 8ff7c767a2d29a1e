//! What Kafka's protocol has no words for: cuts, the past of topics and offsets, and pins.
//!
//! One API of our own, with a key far above Kafka's, not listed in ApiVersions: stock clients never
//! see it. Its body is one JSON document each way; `docs/KAFKA.md` describes them.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use engine::{CutAnswer, Pin, PinError, SeekError, When};
use hlc::{Cut, Hlc, Moment, SysTime};
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
    Pin {
        name: String,
        at: String,
        /// How long from now, by the server's clock.
        for_ms: u64,
        #[serde(default)]
        topics: Option<Vec<String>>,
    },
    Unpin {
        name: String,
    },
    Pins {},
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
            SeekError::BeforeHistory { .. } | SeekError::BeforeOffsets { .. } => {
                ("before_history", None)
            }
            SeekError::NoTopic { .. } => ("unknown_topic", None),
            SeekError::Engine(engine::EngineError::Fenced(_)) => ("fenced", None),
            SeekError::Engine(_) => ("internal", None),
        };
        Refusal { code, message: error.to_string(), frontier: frontier.map(stamp) }
    }
}

impl From<PinError> for Refusal {
    fn from(error: PinError) -> Refusal {
        let code = match error {
            PinError::Seek(error) => return error.into(),
            PinError::Invalid(_) => "bad_pin",
            PinError::Taken { .. } => "pin_taken",
            PinError::TooMany(_) => "too_many_pins",
            PinError::Unknown(_) => "unknown_pin",
        };
        Refusal::new(code, error.to_string())
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
        Request::Pin { name, at, for_ms, topics } => {
            let expires = SysTime(kafka.engine.wall_now().0.saturating_add(for_ms));
            let at = parse(&at)?;
            let pin = kafka.engine.pin(&name, at, wait, expires, topics.as_deref()).await?;
            Ok(json!({ "pin": pin_answer(&pin) }))
        }
        Request::Unpin { name } => {
            kafka.engine.unpin(&name).await?;
            Ok(json!({ "removed": name }))
        }
        Request::Pins {} => {
            let pins: Vec<Value> = kafka.engine.pins().iter().map(pin_answer).collect();
            Ok(json!({ "pins": pins }))
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

fn pin_answer(pin: &Pin) -> Value {
    let topics = pin.topics.as_ref().map(|topics| topics.iter().map(|topic| &**topic));
    json!({
        "name": &*pin.name,
        "at": shown(pin.at),
        "expires_ms": pin.expires.0,
        "topics": topics.map(Iterator::collect::<Vec<&str>>),
        "set": stamp(pin.set),
    })
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use engine::{Batch, Durability, Engine, EngineOptions, Head, OffsetCommit, Payload};
    use hlc::UserTime;
    use kafka_records::HEADER_BYTES;
    use storage::disk::MemoryDisk;

    use super::*;
    use crate::core::KafkaOptions;
    use crate::format::KafkaFormat;

    const DAY_MS: u64 = 24 * 60 * 60 * 1000;

    /// Kafka's face over an engine in memory with a topic `a` of one partition.
    async fn kafka() -> Arc<Kafka> {
        kafka_with(EngineOptions::default()).await
    }

    async fn kafka_with(options: EngineOptions) -> Arc<Kafka> {
        let engine = Engine::open(
            Arc::new(MemoryDisk::new()),
            options,
            Arc::new(hlc::OsClock),
            Arc::new(KafkaFormat { unpacked_bytes_max: 1 << 20 }),
        );
        let engine = engine.unwrap();
        engine.create_topic("a", 1, BTreeMap::new(), [1; 16], false).await.unwrap();
        Kafka::new(Arc::new(engine), KafkaOptions::default()).unwrap()
    }

    /// Appends a batch of three records, of which only the count is real.
    async fn append_three(kafka: &Kafka) {
        let batch = Batch {
            payload: Payload { head: Head::new(&[0; HEADER_BYTES]), rest: vec![0; 100].into() },
            count: 3,
            times: (UserTime(0), UserTime(0)),
            producer: None,
        };
        let topic = kafka.engine.topic("a").unwrap();
        let appended = kafka.engine.append(vec![(topic, 0, batch)], Durability::Synced).await;
        assert!(appended[0].is_ok(), "{appended:?}");
    }

    /// The answer to one document.
    async fn answer(kafka: &Arc<Kafka>, document: Value) -> Value {
        let request = serde_json::from_value(document).unwrap();
        ask(kafka, request).await.unwrap_or_else(|refusal| json!({ "error": refusal }))
    }

    /// The code of a refusal.
    async fn code(kafka: &Arc<Kafka>, document: Value) -> String {
        let answer = answer(kafka, document).await;
        answer["error"]["code"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    async fn moment(kafka: &Arc<Kafka>) -> String {
        let cut = json!({"op": "cut", "at": "s9999999999999", "when": "frontier"});
        answer(kafka, cut).await["at"].as_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn offsets_of_a_moment_before_their_horizon_are_refused_with_the_earliest_there_is() {
        let offsets_retention = std::time::Duration::ZERO;
        let kafka =
            kafka_with(EngineOptions { offsets_retention, ..EngineOptions::default() }).await;
        let early = moment(&kafka).await;
        // What was committed within this millisecond is not old yet.
        while !kafka.engine.give_up_old_groups().await.unwrap() {
            let (topic, metadata) = ("a".to_owned(), String::new());
            let commit =
                OffsetCommit { topic, partition: 0, offset: 1, leader_epoch: -1, metadata };
            kafka.engine.commit_offsets("g", vec![commit]).await.unwrap();
        }
        let refusal = answer(&kafka, json!({"op": "offsets", "at": early})).await["error"].take();
        assert_eq!(refusal["code"], "before_history");
        let message = refusal["message"].as_str().unwrap();
        let (_, earliest) = message.split_once("they begin at ").unwrap();
        let then = answer(&kafka, json!({"op": "offsets", "at": earliest})).await;
        assert_eq!(then["groups"][0]["group"], "g", "{message}: {then}");
        let pin = json!({"op": "pin", "name": "p", "at": early, "for_ms": DAY_MS});
        assert_eq!(code(&kafka, pin).await, "before_history");
    }

    #[tokio::test]
    async fn a_pin_is_set_listed_and_removed() {
        let kafka = kafka().await;
        append_three(&kafka).await;
        let at = moment(&kafka).await;
        let earliest = kafka.engine.wall_now().0 + DAY_MS;
        let set = json!({"op": "pin", "name": "p", "at": at, "for_ms": DAY_MS, "topics": ["a"]});
        let pin = answer(&kafka, set).await["pin"].take();
        assert_eq!((&pin["name"], &pin["at"]), (&json!("p"), &json!(at)));
        assert_eq!(pin["topics"], json!(["a"]));
        assert!(pin["expires_ms"].as_u64().unwrap() >= earliest, "{pin}");
        assert_eq!(answer(&kafka, json!({"op": "pins"})).await, json!({ "pins": [pin] }));
        let all = json!({"op": "pin", "name": "all", "at": at, "for_ms": 60_000});
        assert_eq!(answer(&kafka, all).await["pin"]["topics"], Value::Null);
        let removed = answer(&kafka, json!({"op": "unpin", "name": "p"})).await;
        assert_eq!(removed, json!({"removed": "p"}));
        let left = answer(&kafka, json!({"op": "pins"})).await;
        assert_eq!(left["pins"].as_array().unwrap().len(), 1);
        assert_eq!(left["pins"][0]["name"], "all");
    }

    #[tokio::test]
    async fn a_pin_that_cannot_be_is_refused_by_a_code_of_its_own() {
        let kafka = kafka().await;
        append_three(&kafka).await;
        let at = moment(&kafka).await;
        let pin = |name: &str, at: &str, for_ms: u64| json!({"op": "pin", "name": name, "at": at, "for_ms": for_ms});
        assert_eq!(code(&kafka, pin("a b", &at, DAY_MS)).await, "bad_pin");
        assert_eq!(code(&kafka, pin("p", &at, 0)).await, "bad_pin");
        assert_eq!(code(&kafka, pin("p", &at, u64::MAX)).await, "bad_pin");
        assert_eq!(code(&kafka, pin("p", "u5", DAY_MS)).await, "bad_moment");
        assert_eq!(code(&kafka, pin("p", "s9999999999999", DAY_MS)).await, "far_future");
        assert_eq!(code(&kafka, json!({"op": "unpin", "name": "p"})).await, "unknown_pin");
        answer(&kafka, pin("p", &at, DAY_MS)).await;
        let later = moment(&kafka).await;
        assert_eq!(code(&kafka, pin("p", &later, DAY_MS)).await, "pin_taken");
        let other = json!({"op": "pin", "name": "q", "at": at, "for_ms": 1000, "topics": ["b"]});
        assert_eq!(code(&kafka, other).await, "unknown_topic");
        for nth in 1..100 {
            answer(&kafka, pin(&format!("p{nth}"), &at, DAY_MS)).await;
        }
        assert_eq!(code(&kafka, pin("one-more", &at, DAY_MS)).await, "too_many_pins");
    }

    #[tokio::test]
    async fn a_moment_that_was_given_up_cannot_be_pinned() {
        let kafka = kafka().await;
        append_three(&kafka).await;
        let at = moment(&kafka).await;
        append_three(&kafka).await;
        let topic = kafka.engine.topic("a").unwrap();
        kafka.engine.delete_records(&topic, 0, 4).await.unwrap();
        let pin = json!({"op": "pin", "name": "p", "at": at, "for_ms": DAY_MS});
        assert_eq!(code(&kafka, pin).await, "before_history");
        assert_eq!(answer(&kafka, json!({"op": "pins"})).await, json!({ "pins": [] }));
    }
}
