//! The differences between two moments.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::Topic;
use engine::diff::{DiffCursor, DiffCursorError, DiffPageRequest, DiffSection, Difference};
use engine::groups::{CommittedOffset, GroupDifference};
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use super::members::membership;
use super::moment::{MomentWaitPolicy, moment_text, parse_window, stamp_text, when};
use super::{HistoryApiError, HistoryErrorCode};
use crate::core::KafkaServer;

/// The default number of differences on a page.
const LIMIT: usize = 1000;
/// The most differences on a page.
const LIMIT_MAX: usize = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DiffRequest {
    from: String,
    until: String,
    #[serde(default)]
    topics: Option<Vec<String>>,
    #[serde(default)]
    only: Option<Vec<DiffKind>>,
    #[serde(default)]
    when: MomentWaitPolicy,
    #[serde(default)]
    patience_ms: Option<u64>,
    /// Where the page begins: `next` of the previous one.
    #[serde(default)]
    after: Option<String>,
    #[serde(default)]
    limit: Option<usize>,
}

/// The subject of a difference.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DiffKind {
    Topics,
    Records,
    Pins,
    Offsets,
    Groups,
}

impl From<DiffKind> for DiffSection {
    fn from(kind: DiffKind) -> DiffSection {
        match kind {
            DiffKind::Topics => DiffSection::Topics,
            DiffKind::Records => DiffSection::Records,
            DiffKind::Pins => DiffSection::Pins,
            DiffKind::Offsets => DiffSection::Offsets,
            DiffKind::Groups => DiffSection::Groups,
        }
    }
}

pub(super) async fn diff(
    kafka: &Arc<KafkaServer>,
    request: DiffRequest,
) -> Result<Value, HistoryApiError> {
    let (from, until) = parse_window(&request.from, &request.until)?;
    let after: Option<DiffCursor> = request.after.as_deref().map(str::parse).transpose()?;
    let only =
        request.only.map(|kinds| kinds.into_iter().map(DiffSection::from).collect::<Vec<_>>());
    let ask = DiffPageRequest {
        from,
        until,
        topics: request.topics.as_deref(),
        only: only.as_deref(),
        after: after.as_ref(),
        limit: request.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX),
    };
    let when = when(kafka, request.when, request.patience_ms);
    let page = kafka.engine.diff(ask, when).await?;
    Ok(json!({
        "from": moment_text(page.from),
        "until": moment_text(page.until),
        "frontier": stamp_text(page.frontier),
        "changes": page.differences.iter().map(difference_json).collect::<Vec<_>>(),
        "next": page.next.map(|next| next.to_string()),
    }))
}

impl From<DiffCursorError> for HistoryApiError {
    fn from(error: DiffCursorError) -> HistoryApiError {
        HistoryApiError::new(HistoryErrorCode::BadRequest, error.to_string())
    }
}

fn difference_json(difference: &Difference) -> Value {
    match difference {
        Difference::TopicCreated(topic) => json!({
            "kind": "topic_created",
            "topic": &*topic.name,
            "id": id(topic),
            "partitions": topic.partitions.len(),
            "configs": topic.config.overrides(),
            "stamp": stamp_text(topic.created),
        }),
        Difference::TopicChanged { before, after } => json!({
            "kind": "topic_changed",
            "topic": &*after.name,
            "id": id(after),
            "partitions": {"before": before.partitions.len(), "after": after.partitions.len()},
            "configs": configs(before, after),
        }),
        Difference::TopicDeleted { topic, stamp: deleted } => json!({
            "kind": "topic_deleted",
            "topic": &*topic.name,
            "id": id(topic),
            "partitions": topic.partitions.len(),
            "stamp": stamp_text(*deleted),
        }),
        Difference::Appended { topic, partition, start, end, bytes } => json!({
            "kind": "appended",
            "topic": &*topic.name,
            "id": id(topic),
            "partition": partition,
            "start": start.0,
            "end": end.0,
            "records": end.0 - start.0,
            "bytes": bytes,
        }),
        Difference::PinSet { name, at, expires, stamp: set } => json!({
            "kind": "pin_set",
            "pin": name,
            "at": moment_text(*at),
            "expires_ms": expires.0,
            "stamp": stamp_text(*set),
        }),
        Difference::PinRemoved { name, stamp: removed } => {
            json!({ "kind": "pin_removed", "pin": name, "stamp": stamp_text(*removed) })
        }
        Difference::Offset(offset) => json!({
            "kind": "offset",
            "group": offset.group,
            "topic": offset.topic,
            "partition": offset.partition,
            "before": offset.before.as_ref().map(committed_json),
            "after": offset.after.as_ref().map(committed_json),
        }),
        Difference::Group(group) => group_difference_json(group),
    }
}

fn id(topic: &Topic) -> String {
    Uuid::from_bytes(topic.id).to_string()
}

/// The settings that differ.
fn configs(before: &Topic, after: &Topic) -> BTreeMap<String, Value> {
    let (before, after) = (before.config.overrides(), after.config.overrides());
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let differs = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    differs
        .map(|key| (key.clone(), json!({"before": before.get(key), "after": after.get(key)})))
        .collect()
}

fn committed_json(committed: &CommittedOffset) -> Value {
    json!({
        "offset": committed.offset,
        "leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
    })
}

fn group_difference_json(group: &GroupDifference) -> Value {
    let kind = match (&group.before, &group.after) {
        (None, _) => "group_created",
        (Some(_), None) => "group_deleted",
        (Some(_), Some(_)) => "group_changed",
    };
    json!({
        "kind": kind,
        "group": group.group,
        "before": group.before.as_deref().map(membership),
        "after": group.after.as_deref().map(membership),
    })
}

#[cfg(test)]
mod tests {
    use engine::groups::OffsetCommit;

    use super::super::fixture::{append_three, code, kafka, moment};
    use super::super::handle_json;
    use super::*;

    #[tokio::test]
    async fn differences_are_listed_by_kind_and_in_pages() {
        let kafka = kafka().await;
        let from = moment(&kafka).await;
        append_three(&kafka).await;
        let (topic, metadata) = ("a".to_owned(), "m".to_owned());
        let commit = OffsetCommit {
            topic,
            partition: 0,
            offset: 2,
            leader_epoch: 1,
            metadata,
            retention_ms: None,
        };
        kafka.engine.groups().commit("g", vec![commit]).await.unwrap();
        let configs = BTreeMap::from([("retention.ms".to_owned(), "5000".to_owned())]);
        let set = |held: &mut BTreeMap<String, String>| {
            held.extend(configs);
            Ok(())
        };
        kafka.engine.topics().configure("a", set, false).await.unwrap();
        let until = moment(&kafka).await;
        let asked = json!({"op": "diff", "from": from, "until": until});
        let whole = handle_json(&kafka, asked).await;
        assert_eq!(whole["next"], Value::Null);
        let changes = whole["changes"].as_array().unwrap();
        assert_eq!(changes.len(), 3, "{whole}");
        let changed = &changes[0];
        let setting = &changed["configs"]["retention.ms"];
        assert_eq!(changed["kind"], "topic_changed");
        assert_eq!(*setting, json!({"before": null, "after": "5000"}));
        let appended = &changes[1];
        assert_eq!((&appended["kind"], &appended["start"]), (&json!("appended"), &json!(0)));
        assert_eq!((&appended["end"], &appended["records"]), (&json!(3), &json!(3)));
        assert!(appended["bytes"].as_u64().unwrap() > 100);
        let after = json!({"offset": 2, "leader_epoch": 1, "metadata": "m"});
        assert_eq!((&changes[2]["before"], &changes[2]["after"]), (&Value::Null, &after));
        let mut paged = Vec::new();
        let mut next = json!(null);
        loop {
            let asked = json!({"op": "diff", "from": from, "until": until, "limit": 1,
                               "after": next});
            let mut page = handle_json(&kafka, asked).await;
            paged.extend(page["changes"].as_array().unwrap().iter().cloned());
            next = page["next"].take();
            if next.is_null() {
                break;
            }
        }
        assert_eq!(&paged, changes);
        let asked = json!({"op": "diff", "from": from, "until": until, "only": ["offsets"]});
        assert_eq!(handle_json(&kafka, asked).await["changes"], json!([changes[2]]));
        let asked = json!({"op": "diff", "from": from, "until": until, "only": ["moods"]});
        assert_eq!(code(&kafka, asked).await, "bad_request");
    }

    #[tokio::test]
    async fn two_moments_that_cannot_be_compared_are_refused() {
        let kafka = kafka().await;
        let now = moment(&kafka).await;
        let code = async |from: &str, until: &str| {
            code(&kafka, json!({"op": "diff", "from": from, "until": until})).await
        };
        assert_eq!(code(&now, &now).await, "bad_moment");
        assert_eq!(code(&now, "s5").await, "bad_moment");
        assert_eq!(code("u5", "u6").await, "bad_moment");
        assert_eq!(code("s5", "s9999999999999").await, "far_future");
        let asked = json!({"op": "diff", "from": "s5", "until": now, "after": "nonsense"});
        assert_eq!(super::super::fixture::code(&kafka, asked).await, "bad_request");
        let asked = json!({"op": "diff", "from": "s5", "until": now, "topics": ["no"]});
        assert_eq!(super::super::fixture::code(&kafka, asked).await, "unknown_topic");
    }
}
