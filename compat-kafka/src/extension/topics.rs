//! Topics as they were.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Refusal;
use super::moment::{moment, patient, shown, stamp};
use crate::core::Kafka;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopicsRequest {
    #[serde(default)]
    at: Option<String>,
}

pub(super) async fn topics(kafka: &Arc<Kafka>, request: TopicsRequest) -> Result<Value, Refusal> {
    let (cut, when) = moment(request.at.as_deref(), patient(kafka))?;
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
