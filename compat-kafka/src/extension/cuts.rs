//! Cuts: one moment across all partitions.

use std::sync::Arc;

use engine::{CutAnswer, CutPartition};
use hlc::Moment;
use serde::{Deserialize, Serialize, Serializer};

use super::HistoryApiError;
use super::moment::{MomentWaitPolicy, parse_moment, stamp_text, when};
use crate::core::KafkaServer;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CutRequest {
    at: String,
    #[serde(default)]
    topics: Option<Vec<String>>,
    #[serde(default)]
    when: MomentWaitPolicy,
    #[serde(default)]
    patience_ms: Option<u64>,
}

/// The approximate length of a partition's text.
const PARTITION_BYTES: usize = 80;

/// The response document. Its fields are in the order of their names, as everywhere.
#[derive(Serialize)]
struct CutDocument<'a> {
    /// How far stamps run ahead of the wall clock.
    ahead_ms: u64,
    at: String,
    /// The possible error of the wall clock: measured, and at most `skew_ms`.
    clock_error_ms: u64,
    clock_synchronised: bool,
    /// Whether it holds, with an event, all that happened before it.
    closed: bool,
    durable: bool,
    frontier: String,
    hash: String,
    /// `prefix`: of each partition it has all up to an offset, and nothing after it.
    kind: &'static str,
    #[serde(serialize_with = "write_partitions")]
    partitions: &'a [CutPartition],
    skew_ms: u64,
}

#[derive(Serialize)]
struct CutPartitionDocument<'a> {
    end: u64,
    partition: u32,
    start: u64,
    topic: &'a str,
}

pub(super) async fn cut(
    kafka: &Arc<KafkaServer>,
    request: CutRequest,
) -> Result<String, HistoryApiError> {
    let CutRequest { at, topics, when: patience, patience_ms } = request;
    let when = when(kafka, patience, patience_ms);
    let answer = kafka.engine.cuts().at_moment(parse_moment(&at)?, topics.as_deref(), when).await?;
    Ok(cut_document(&answer))
}

fn cut_document(answer: &CutAnswer) -> String {
    let document = CutDocument {
        ahead_ms: answer.precision.ahead_ms,
        at: answer.moment.to_string(),
        clock_error_ms: answer.precision.error_ms,
        clock_synchronised: answer.precision.is_synchronised,
        closed: matches!(answer.moment, Moment::Sys(_)),
        durable: answer.durable,
        frontier: stamp_text(answer.frontier),
        hash: format!("{:032x}", answer.hash),
        kind: "prefix",
        partitions: &answer.partitions,
        skew_ms: answer.precision.skew_max_ms,
    };
    let mut text = Vec::with_capacity(answer.partitions.len() * PARTITION_BYTES);
    serde_json::to_writer(&mut text, &document).expect("texts and numbers are JSON");
    String::from_utf8(text).expect("JSON is text")
}

fn write_partitions<S: Serializer>(held: &[CutPartition], out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(held.iter().map(|held| CutPartitionDocument {
        end: held.end.0,
        partition: held.partition,
        start: held.start.0,
        topic: &held.topic,
    }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixture::{append_three, code, kafka, moment};
    use super::super::handle_json;

    #[tokio::test]
    async fn a_cut_says_of_which_kind_it_is_and_what_it_is_true_of() {
        let kafka = kafka().await;
        append_three(&kafka).await;
        let at = moment(&kafka).await;
        let by_system = handle_json(&kafka, json!({"op": "cut", "at": at})).await;
        assert_eq!((&by_system["kind"], &by_system["closed"]), (&json!("prefix"), &json!(true)));
        assert_eq!(by_system["partitions"][0]["end"], 3);
        // All records of the batch have a timestamp in 1970.
        let early = handle_json(&kafka, json!({"op": "cut", "at": "u0"})).await;
        assert_eq!((&early["kind"], &early["closed"]), (&json!("prefix"), &json!(false)));
        let early_at = early["at"].as_str().unwrap();
        assert!(early_at.starts_with("u0@s"), "{early}");
        let late = handle_json(&kafka, json!({"op": "cut", "at": format!("u1@{at}")})).await;
        assert_eq!(late["hash"], by_system["hash"]);
        append_three(&kafka).await;
        let again = handle_json(&kafka, json!({"op": "cut", "at": early_at})).await;
        assert_eq!((&again["hash"], &again["at"]), (&early["hash"], &early["at"]));
    }

    #[tokio::test]
    async fn what_is_no_moment_for_a_cut_is_refused_with_a_reason() {
        let kafka = kafka().await;
        for (at, reason) in [
            ("5 minutes ago", "a moment begins with s"),
            ("s5..s6", "not a window"),
            ("s6..s5", "the window is empty"),
            ("s5@s6", "only a moment of user time"),
            ("s", "not a time"),
        ] {
            let answer = handle_json(&kafka, json!({"op": "cut", "at": at})).await;
            assert_eq!(answer["error"]["code"], "bad_moment", "{answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(reason), "{answer}");
        }
        let far = json!({"op": "cut", "at": "u5@s9999999999999"});
        assert_eq!(code(&kafka, far).await, "far_future");
        let soon = kafka.engine.wall_now().0 + 500;
        let soon = json!({"op": "cut", "at": format!("s{soon}"), "when": "refuse"});
        let refused = handle_json(&kafka, soon).await;
        assert_eq!(refused["error"]["code"], "not_yet");
        assert!(refused["error"]["retry_ms"].as_u64().is_some_and(|ms| ms <= 501), "{refused}");
    }
}
