//! Topics as they were.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Refusal;
use super::moment::{Patience, moment, shown, stamp, when};
use crate::core::Kafka;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopicsRequest {
    #[serde(default)]
    at: Option<String>,
    #[serde(default)]
    when: Patience,
    #[serde(default)]
    patience_ms: Option<u64>,
}

pub(super) async fn topics(kafka: &Arc<Kafka>, request: TopicsRequest) -> Result<Value, Refusal> {
    let TopicsRequest { at, when: patience, patience_ms } = request;
    let (cut, when) = moment(at.as_deref(), when(kafka, patience, patience_ms))?;
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
