//! Resets a group's offsets to a moment, or to what it had committed at one.

use std::sync::Arc;

use engine::WaitPolicy;
use engine::groups::{GroupSetError, GroupSetMode, GroupSetResult, OffsetChange, SkippedPartition};
use hlc::{Cut, Moment};
use serde::Deserialize;
use serde_json::{Value, json};

use super::moment::{MomentWaitPolicy, parse_cut, parse_moment, stamp_text, when};
use super::{HistoryApiError, HistoryErrorCode};
use crate::core::KafkaServer;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeekRequest {
    group: String,
    at: String,
    /// If not set, all topics with committed offsets of the group.
    #[serde(default)]
    topics: Option<Vec<String>>,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    when: MomentWaitPolicy,
    #[serde(default)]
    patience_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RestoreRequest {
    group: String,
    at: String,
    #[serde(default)]
    dry_run: bool,
    #[serde(default)]
    when: MomentWaitPolicy,
    #[serde(default)]
    patience_ms: Option<u64>,
}

pub(super) async fn seek(
    kafka: &Arc<KafkaServer>,
    request: SeekRequest,
) -> Result<Value, HistoryApiError> {
    let SeekRequest { group, at, topics, dry_run, when: patience, patience_ms } = request;
    let when = when(kafka, patience, patience_ms);
    if topics.as_ref().is_some_and(Vec::is_empty) {
        return Err(HistoryApiError::new(
            HistoryErrorCode::BadRequest,
            "name a topic, or leave topics out",
        ));
    }
    let setting = GroupSeekTarget::Seek { moment: parse_moment(&at)?, topics };
    set_group(kafka, &group, setting, when, dry_run).await
}

pub(super) async fn restore(
    kafka: &Arc<KafkaServer>,
    request: RestoreRequest,
) -> Result<Value, HistoryApiError> {
    let RestoreRequest { group, at, dry_run, when: patience, patience_ms } = request;
    let when = when(kafka, patience, patience_ms);
    set_group(kafka, &group, GroupSeekTarget::Restore(parse_cut(&at)?), when, dry_run).await
}

/// The new offsets of a group.
enum GroupSeekTarget {
    Seek { moment: Moment, topics: Option<Vec<String>> },
    Restore(Cut),
}

impl GroupSeekTarget {
    /// The same with an absolute and final moment.
    fn at_moment(self, moment: Moment) -> GroupSeekTarget {
        match (self, moment) {
            (GroupSeekTarget::Seek { topics, .. }, moment) => {
                GroupSeekTarget::Seek { moment, topics }
            }
            (GroupSeekTarget::Restore(_), Moment::Sys(cut)) => GroupSeekTarget::Restore(cut),
            (restore, Moment::User { .. }) => restore,
        }
    }

    async fn apply(
        &self,
        kafka: &KafkaServer,
        group: &str,
        when: WaitPolicy,
        mode: GroupSetMode,
    ) -> Result<GroupSetResult, GroupSetError> {
        match self {
            GroupSeekTarget::Seek { moment, topics } => {
                kafka.engine.groups().seek(group, *moment, topics.as_deref(), when, mode).await
            }
            GroupSeekTarget::Restore(cut) => {
                kafka.engine.groups().restore(group, *cut, when, mode).await
            }
        }
    }
}

/// Sets the offsets of a group without members, and keeps members away meanwhile. A member that
/// joined just before would have read the old offsets, and continue from there.
async fn set_group(
    kafka: &Arc<KafkaServer>,
    group: &str,
    setting: GroupSeekTarget,
    when: WaitPolicy,
    dry_run: bool,
) -> Result<Value, HistoryApiError> {
    if group.is_empty() {
        return Err(HistoryApiError::new(HistoryErrorCode::BadRequest, "a group has a name"));
    }
    // A failed request must not leave a group behind that did not exist.
    let planned = setting.apply(kafka, group, when, GroupSetMode::DryRun).await?;
    if dry_run {
        return Ok(group_set_json(group, &planned));
    }
    let setting = setting.at_moment(planned.at);
    // In a task of its own: when the client disconnects, members must stay out until it is done.
    let setting = commit(Arc::clone(kafka), group.to_owned(), setting);
    match tokio::spawn(setting).await {
        Ok(done) => Ok(group_set_json(group, &done?)),
        Err(error) => Err(HistoryApiError::new(
            HistoryErrorCode::Internal,
            format!("the group may not be set: {error}"),
        )),
    }
}

async fn commit(
    kafka: Arc<KafkaServer>,
    group: String,
    setting: GroupSeekTarget,
) -> Result<GroupSetResult, HistoryApiError> {
    let held = kafka.groups.hold(&group)?;
    // The plan has waited for the moment already.
    let done = setting.apply(&kafka, &group, WaitPolicy::Refuse, GroupSetMode::Commit).await?;
    drop(held);
    tracing::info!(group, at = %done.at, partitions = done.offsets.len(), "a group was set");
    Ok(done)
}

fn group_set_json(group: &str, set: &GroupSetResult) -> Value {
    let offset = |one: &OffsetChange| {
        json!({
            "topic": one.topic,
            "partition": one.partition,
            "before": one.before,
            "after": one.after,
        })
    };
    let skipped = |one: &SkippedPartition| json!({ "topic": one.topic, "partition": one.partition, "offset": one.offset });
    json!({
        "group": group,
        "at": set.at.to_string(),
        "frontier": stamp_text(set.frontier),
        "offsets": set.offsets.iter().map(offset).collect::<Vec<_>>(),
        "skipped": set.skipped.iter().map(skipped).collect::<Vec<_>>(),
        "committed": set.committed.map(stamp_text),
    })
}

#[cfg(test)]
mod tests {
    use engine::groups::OffsetCommit;

    use super::super::fixture::{append_three, code, kafka, moment};
    use super::super::handle_json;
    use super::*;
    use crate::apis::join_group::test_kafka_api::TestKafkaApi;

    async fn commit_offset(kafka: &KafkaServer, offset: i64) {
        let (topic, metadata) = ("a".to_owned(), String::new());
        let commit = OffsetCommit {
            topic,
            partition: 0,
            offset,
            leader_epoch: -1,
            metadata,
            retention_ms: None,
        };
        kafka.engine.groups().commit("g", vec![commit]).await.unwrap();
    }

    fn committed(kafka: &KafkaServer) -> i64 {
        kafka.engine.groups().committed_offset("g", "a", 0).unwrap().unwrap().offset
    }

    #[tokio::test]
    async fn a_group_is_set_and_set_back() {
        let kafka = kafka().await;
        append_three(&kafka).await;
        let early = moment(&kafka).await;
        append_three(&kafka).await;
        commit_offset(&kafka, 5).await;
        let then = moment(&kafka).await;
        let seek = json!({"op": "seek_group", "group": "g", "at": early});
        let mut dry = seek.clone();
        dry["dry_run"] = json!(true);
        let dry = handle_json(&kafka, dry).await;
        assert_eq!((&dry["committed"], committed(&kafka)), (&Value::Null, 5), "{dry}");
        let done = handle_json(&kafka, seek).await;
        assert_eq!(done["offsets"], dry["offsets"]);
        assert_eq!(
            done["offsets"][0],
            json!({"topic": "a", "partition": 0, "before": 5, "after": 3})
        );
        assert_eq!(committed(&kafka), 3);
        let group =
            handle_json(&kafka, json!({"op": "groups", "group": "g"})).await["groups"][0].take();
        assert_eq!(group["sought"]["a"], json!(early));
        let restore = json!({"op": "restore_group", "group": "g", "at": then});
        let done = handle_json(&kafka, restore).await;
        assert_eq!((done["offsets"][0]["after"].as_i64(), committed(&kafka)), (Some(5), 5));
        let asked = json!({"op": "restore_group", "group": "g", "at": "s9999999999999",
                           "when": "frontier"});
        let as_it_is = handle_json(&kafka, asked).await;
        assert_ne!(as_it_is["at"], "s9999999999999", "{as_it_is}");
        assert_eq!((as_it_is["committed"].is_null(), committed(&kafka)), (false, 5));
        let by_user =
            handle_json(&kafka, json!({"op": "seek_group", "group": "g", "at": "u0"})).await;
        assert!(by_user["at"].as_str().unwrap().starts_with("u0@s"), "{by_user}");
        assert_eq!(committed(&kafka), 0);
    }

    /// The next user of the group sees it as it was or as it was set, and nothing in between.
    #[tokio::test]
    async fn a_group_is_held_until_it_is_set_also_when_the_caller_has_gone() {
        for polls in 1..12 {
            let kafka = kafka().await;
            append_three(&kafka).await;
            let early = moment(&kafka).await;
            append_three(&kafka).await;
            commit_offset(&kafka, 5).await;
            let mut seeking = Box::pin(handle_json(
                &kafka,
                json!({"op": "seek_group", "group": "g", "at": early}),
            ));
            for _ in 0..polls {
                let waker = std::task::Waker::noop();
                if seeking.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(seeking);
            if let Ok(held) = kafka.groups.hold("g") {
                let before = committed(&kafka);
                // After everything that was queued before it.
                let (topic, metadata) = ("a".to_owned(), String::new());
                let commit = OffsetCommit {
                    topic,
                    partition: 0,
                    offset: 0,
                    leader_epoch: -1,
                    metadata,
                    retention_ms: None,
                };
                kafka.engine.groups().commit("other", vec![commit]).await.unwrap();
                assert_eq!(committed(&kafka), before, "after {polls} polls");
                drop(held);
            }
        }
    }

    #[tokio::test]
    async fn what_cannot_be_set_is_refused_by_a_code_of_its_own() {
        let kafka = kafka().await;
        let at = moment(&kafka).await;
        let code = async |op: &str, group: &str, at: &str, topics: Value| {
            let mut asked = json!({"op": op, "group": group, "at": at});
            if !topics.is_null() {
                asked["topics"] = topics;
            }
            code(&kafka, asked).await
        };
        let none = Value::Null;
        assert_eq!(code("seek_group", "g", &at, none.clone()).await, "unknown_group");
        assert_eq!(code("seek_group", "g", &at, json!(["b"])).await, "unknown_topic");
        assert_eq!(code("seek_group", "g", &at, json!([])).await, "bad_request");
        assert_eq!(code("seek_group", "", &at, none.clone()).await, "bad_request");
        assert_eq!(code("seek_group", "g", "soon", none.clone()).await, "bad_moment");
        assert_eq!(code("seek_group", "g", "s9999999999999", json!(["a"])).await, "far_future");
        let refused = json!({"op": "groups", "at": "s9999999999999", "when": "refuse"});
        assert_eq!(super::super::fixture::code(&kafka, refused).await, "not_yet");
        assert_eq!(code("restore_group", "g", &at, none.clone()).await, "unknown_group");
        assert_eq!(code("restore_group", "g", "u5", none).await, "bad_moment");
        let listed = kafka.groups.list();
        assert!(listed.is_empty(), "a refusal leaves no group behind: {listed:?}");
    }

    #[tokio::test]
    async fn a_group_with_members_is_refused_and_shown_as_it_was() {
        let api = TestKafkaApi::new();
        api.topic("a", 1).await;
        let before = moment(&api.kafka).await;
        api.stable_group("g").await;
        let seek = json!({"op": "seek_group", "group": "g", "at": before, "topics": ["a"]});
        assert_eq!(code(&api.kafka, seek).await, "group_active");
        let now = handle_json(&api.kafka, json!({"op": "groups", "group": "g"})).await;
        let membership = &now["groups"][0]["membership"];
        assert_eq!(
            (&membership["state"], &membership["generation"]),
            (&json!("Stable"), &json!(1))
        );
        assert_eq!(membership["members"].as_array().unwrap().len(), 1, "{now}");
        let asked = json!({"op": "groups", "group": "g", "at": before});
        assert_eq!(code(&api.kafka, asked).await, "unknown_group");
        let all = handle_json(&api.kafka, json!({"op": "groups", "at": before})).await;
        assert_eq!(all["groups"], json!([]));
    }
}
