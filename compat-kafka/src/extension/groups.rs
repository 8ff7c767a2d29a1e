//! Groups as they were: who was in them, and what they had committed.

use std::sync::Arc;

use engine::{GroupOffset, GroupThen};
use serde::Deserialize;
use serde_json::{Value, json};

use super::members::membership;
use super::moment::{Patience, moment, shown, stamp, when};
use super::{HistoryErrorCode, Refusal};
use crate::core::Kafka;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OffsetsRequest {
    #[serde(default)]
    at: Option<String>,
    #[serde(default)]
    group: Option<String>,
    #[serde(default)]
    when: Patience,
    #[serde(default)]
    patience_ms: Option<u64>,
}

pub(super) async fn offsets(kafka: &Arc<Kafka>, request: OffsetsRequest) -> Result<Value, Refusal> {
    let OffsetsRequest { at, group, when: patience, patience_ms } = request;
    let (cut, when) = moment(at.as_deref(), when(kafka, patience, patience_ms))?;
    let (at, frontier, offsets) = kafka.engine.offsets_at(group.as_deref(), cut, when).await?;
    let groups: Vec<Value> = offsets
        .chunk_by(|a, b| a.group == b.group)
        .map(|of_group| json!({ "group": of_group[0].group, "offsets": offsets_answer(of_group) }))
        .collect();
    Ok(json!({ "at": shown(at), "frontier": stamp(frontier), "groups": groups }))
}

pub(super) async fn groups(kafka: &Arc<Kafka>, request: OffsetsRequest) -> Result<Value, Refusal> {
    let OffsetsRequest { at, group, when: patience, patience_ms } = request;
    let (cut, when) = moment(at.as_deref(), when(kafka, patience, patience_ms))?;
    let (at, frontier, groups) = kafka.engine.groups_at(group.as_deref(), cut, when).await?;
    if let Some(group) = group.filter(|_| groups.is_empty()) {
        let message = format!("there was no such group at that moment. group={group}");
        return Err(Refusal::new(HistoryErrorCode::UnknownGroup, message));
    }
    let groups: Vec<Value> = groups.iter().map(group_answer).collect();
    Ok(json!({ "at": shown(at), "frontier": stamp(frontier), "groups": groups }))
}

fn group_answer(then: &GroupThen) -> Value {
    let snapshot = then.snapshot.as_ref();
    let sought: serde_json::Map<String, Value> =
        then.sought.iter().map(|(topic, at)| (topic.clone(), json!(at))).collect();
    json!({
        "group": then.group,
        "membership": snapshot.map(|(_, bytes)| membership(bytes)),
        "changed": snapshot.map(|(saved, _)| stamp(*saved)),
        "offsets": offsets_answer(&then.offsets),
        "sought": sought,
    })
}

fn offsets_answer(offsets: &[GroupOffset]) -> Vec<Value> {
    offsets
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
        .collect()
}

#[cfg(test)]
mod tests {
    use engine::{EngineOptions, OffsetCommit};

    use super::super::ask;
    use super::super::rig::{DAY_MS, code, kafka_with, moment};
    use super::*;

    #[tokio::test]
    async fn offsets_of_a_moment_before_their_horizon_are_refused_with_the_earliest_there_is() {
        let offsets_retention = std::time::Duration::ZERO;
        let kafka =
            kafka_with(EngineOptions { offsets_retention, ..EngineOptions::default() }).await;
        let early = moment(&kafka).await;
        // What was committed within this millisecond is not old yet.
        while !kafka.engine.give_up_old_groups().await.unwrap() {
            let (topic, metadata) = ("a".to_owned(), String::new());
            let commit = OffsetCommit {
                topic,
                partition: 0,
                offset: 1,
                leader_epoch: -1,
                metadata,
                retention_ms: None,
            };
            kafka.engine.commit_offsets("g", vec![commit]).await.unwrap();
        }
        let refusal = ask(&kafka, json!({"op": "offsets", "at": early})).await["error"].take();
        assert_eq!(refusal["code"], "before_history");
        let message = refusal["message"].as_str().unwrap();
        let (_, earliest) = message.split_once("they begin at ").unwrap();
        let then = ask(&kafka, json!({"op": "offsets", "at": earliest})).await;
        assert_eq!(then["groups"][0]["group"], "g", "{message}: {then}");
        let pin = json!({"op": "pin", "name": "p", "at": early, "for_ms": DAY_MS});
        assert_eq!(code(&kafka, pin).await, "before_history");
    }
}
