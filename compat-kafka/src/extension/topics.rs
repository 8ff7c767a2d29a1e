//! Topics at a moment.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::HistoryApiError;
use super::moment::{MomentWaitPolicy, moment_text, parse_or_frontier, stamp_text, when};
use crate::core::KafkaServer;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TopicsRequest {
    #[serde(default)]
    at: Option<String>,
    #[serde(default)]
    when: MomentWaitPolicy,
    #[serde(default)]
    patience_ms: Option<u64>,
}

pub(super) async fn topics(
    kafka: &Arc<KafkaServer>,
    request: TopicsRequest,
) -> Result<Value, HistoryApiError> {
    let TopicsRequest { at, when: patience, patience_ms } = request;
    let (cut, when) = parse_or_frontier(at.as_deref(), when(kafka, patience, patience_ms))?;
    let (at, frontier, topics) = kafka.engine.topics().at(cut, when).await?;
    let topics: Vec<Value> = topics
        .iter()
        .map(|(topic, deleted)| {
            json!({
                "name": &*topic.name,
                "id": Uuid::from_bytes(topic.id).to_string(),
                "partitions": topic.partitions.len(),
                "created": stamp_text(topic.created),
                "deleted": deleted.map(stamp_text),
                "configs": topic.config.overrides(),
            })
        })
        .collect();
    Ok(json!({ "at": moment_text(at), "frontier": stamp_text(frontier), "topics": topics }))
}
