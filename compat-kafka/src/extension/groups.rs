//! Groups at a moment: their members, and their committed offsets.

use std::sync::Arc;

use engine::groups::{GroupAtCut, GroupOffset};
use serde::Deserialize;
use serde_json::{Value, json};

use super::members::membership;
use super::moment::{MomentWaitPolicy, moment_text, parse_or_frontier, stamp_text, when};
use super::{HistoryApiError, HistoryErrorCode};
use crate::core::KafkaServer;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupOffsetsRequest {
    #[serde(default)]
    at: Option<String>,
    #[serde(default)]
    group: Option<String>,
    #[serde(default)]
    when: MomentWaitPolicy,
    #[serde(default)]
    patience_ms: Option<u64>,
}

pub(super) async fn offsets(
    kafka: &Arc<KafkaServer>,
    request: GroupOffsetsRequest,
) -> Result<Value, HistoryApiError> {
    let GroupOffsetsRequest { at, group, when: patience, patience_ms } = request;
    let (cut, when) = parse_or_frontier(at.as_deref(), when(kafka, patience, patience_ms))?;
    let (at, frontier, offsets) =
        kafka.engine.groups().offsets_at(group.as_deref(), cut, when).await?;
    let groups: Vec<Value> = offsets
        .chunk_by(|a, b| a.group == b.group)
        .map(|of_group| json!({ "group": of_group[0].group, "offsets": offsets_json(of_group) }))
        .collect();
    Ok(json!({ "at": moment_text(at), "frontier": stamp_text(frontier), "groups": groups }))
}

pub(super) async fn groups(
    kafka: &Arc<KafkaServer>,
    request: GroupOffsetsRequest,
) -> Result<Value, HistoryApiError> {
    let GroupOffsetsRequest { at, group, when: patience, patience_ms } = request;
    let (cut, when) = parse_or_frontier(at.as_deref(), when(kafka, patience, patience_ms))?;
    let (at, frontier, groups) = kafka.engine.groups().at(group.as_deref(), cut, when).await?;
    if let Some(group) = group.filter(|_| groups.is_empty()) {
        let message = format!("there was no such group at that moment. group={group}");
        return Err(HistoryApiError::new(HistoryErrorCode::UnknownGroup, message));
    }
    let groups: Vec<Value> = groups.iter().map(group_json).collect();
    Ok(json!({ "at": moment_text(at), "frontier": stamp_text(frontier), "groups": groups }))
}

fn group_json(then: &GroupAtCut) -> Value {
    let snapshot = then.snapshot.as_ref();
    let sought: serde_json::Map<String, Value> =
        then.seek_moments.iter().map(|(topic, at)| (topic.clone(), json!(at))).collect();
    json!({
        "group": then.group,
        "membership": snapshot.map(|(_, bytes)| membership(bytes)),
        "changed": snapshot.map(|(saved, _)| stamp_text(*saved)),
        "offsets": offsets_json(&then.offsets),
        "sought": sought,
    })
}

fn offsets_json(offsets: &[GroupOffset]) -> Vec<Value> {
    offsets
        .iter()
        .map(|held| {
            json!({
                "topic": held.topic,
                "partition": held.partition,
                "offset": held.committed.offset,
                "leader_epoch": held.committed.leader_epoch,
                "metadata": held.committed.metadata,
                "committed": stamp_text(held.stamp),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use engine::EngineOptions;
    use engine::groups::{GroupOptions, OffsetCommit};

    use super::super::fixture::{DAY_MS, code, kafka_with, moment};
    use super::super::handle_json;
    use super::*;

    #[tokio::test]
    async fn offsets_of_a_moment_before_their_horizon_are_refused_with_the_earliest_there_is() {
        let offsets_retention = std::time::Duration::ZERO;
        let kafka = kafka_with(EngineOptions {
            groups: GroupOptions { offsets_retention },
            ..EngineOptions::default()
        })
        .await;
        let early = moment(&kafka).await;
        // What was committed within this millisecond is not old yet.
        while !kafka.engine.groups().apply_retention().await.unwrap() {
            let (topic, metadata) = ("a".to_owned(), String::new());
            let commit = OffsetCommit {
                topic,
                partition: 0,
                offset: 1,
                leader_epoch: -1,
                metadata,
                retention_ms: None,
            };
            kafka.engine.groups().commit("g", vec![commit]).await.unwrap();
        }
        let refusal =
            handle_json(&kafka, json!({"op": "offsets", "at": early})).await["error"].take();
        assert_eq!(refusal["code"], "before_history");
        let message = refusal["message"].as_str().unwrap();
        let (_, earliest) = message.split_once("they begin at ").unwrap();
        let then = handle_json(&kafka, json!({"op": "offsets", "at": earliest})).await;
        assert_eq!(then["groups"][0]["group"], "g", "{message}: {then}");
        let pin = json!({"op": "pin", "name": "p", "at": early, "for_ms": DAY_MS});
        assert_eq!(code(&kafka, pin).await, "before_history");
    }
}
