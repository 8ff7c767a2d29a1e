//! One moment across everything.

use std::sync::Arc;

use engine::CutAnswer;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Refusal;
use super::moment::{Patience, parse, shown, stamp, when};
use crate::core::Kafka;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CutRequest {
    at: String,
    #[serde(default)]
    topics: Option<Vec<String>>,
    #[serde(default)]
    when: Patience,
    #[serde(default)]
    patience_ms: Option<u64>,
}

pub(super) async fn cut(kafka: &Arc<Kafka>, request: CutRequest) -> Result<Value, Refusal> {
    let CutRequest { at, topics, when: patience, patience_ms } = request;
    let when = when(kafka, patience, patience_ms);
    let answer = kafka.engine.cut(parse(&at)?, topics.as_deref(), when).await?;
    Ok(cut_answer(&answer))
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
