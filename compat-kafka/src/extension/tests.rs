//! The history API and the group coordinator: operations that set a group hold it meanwhile.

use engine::groups::OffsetCommit;
use engine::{Durability, Payload, PayloadHeader, RecordBatch};
use hlc::UserTime;
use kafka_records::HEADER_BYTES;
use serde_json::{Value, json};

use super::*;
use crate::apis::join_group::test_kafka_api::TestKafkaApi;

/// A server over an engine in memory, with a topic `a` of one partition.
async fn kafka() -> Arc<KafkaServer> {
    let bench = TestKafkaApi::new();
    bench.topic("a", 1).await;
    bench.kafka
}

/// Appends a batch of three records, of which only the count is real.
async fn append_three(kafka: &KafkaServer) {
    let batch = RecordBatch {
        payload: Payload {
            header: PayloadHeader::new(&[0; HEADER_BYTES]),
            rest: vec![0; 100].into(),
        },
        count: 3,
        times: (UserTime(0), UserTime(0)),
        producer: None,
        expected_base: None,
        holder: None,
    };
    let topic = kafka.engine.topics().named("a").unwrap();
    let appended = kafka.engine.append(vec![(topic, 0, batch)], Durability::Synced).await;
    assert!(appended[0].is_ok(), "{appended:?}");
}

fn context() -> RequestContext {
    RequestContext {
        api_key: API_KEY,
        version: 0,
        correlation_id: 1,
        client_id: "test".to_owned(),
        peer: "10.1.2.3:4".parse().unwrap(),
        local: "127.0.0.1:9092".parse().unwrap(),
        connection: crate::request::ConnectionState::for_test(),
        received_at: tokio::time::Instant::now(),
        quota: None,
    }
}

/// The response to a document. An error is its document too.
async fn handle_json(kafka: &KafkaServer, document: Value) -> Value {
    let text = answer(kafka, &context(), document.to_string().as_bytes()).await;
    serde_json::from_str(&text.unwrap_or_else(|refusal| refusal.document())).unwrap()
}

/// The code of the error.
async fn code(kafka: &KafkaServer, document: Value) -> String {
    let answer = handle_json(kafka, document).await;
    answer["error"]["code"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The newest final moment.
async fn moment(kafka: &KafkaServer) -> String {
    let cut = json!({"op": "cut", "at": "s9999999999999", "when": "frontier"});
    handle_json(kafka, cut).await["at"].as_str().unwrap().to_owned()
}

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

/// The next user of the group sees it as it was or as it was set, and nothing in between.
#[tokio::test]
async fn a_group_is_held_until_it_is_set_also_when_the_caller_has_gone() {
    for polls in 1..12 {
        let kafka = kafka().await;
        append_three(&kafka).await;
        let early = moment(&kafka).await;
        append_three(&kafka).await;
        commit_offset(&kafka, 5).await;
        let mut seeking =
            Box::pin(handle_json(&kafka, json!({"op": "seek_group", "group": "g", "at": early})));
        for _ in 0..polls {
            let waker = std::task::Waker::noop();
            if seeking.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(seeking);
        if let Ok(held) = kafka.coordinators.groups.hold("g") {
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
    assert_eq!(self::code(&kafka, refused).await, "not_yet");
    assert_eq!(code("restore_group", "g", &at, none.clone()).await, "unknown_group");
    assert_eq!(code("restore_group", "g", "u5", none).await, "bad_moment");
    let listed = kafka.coordinators.groups.list();
    assert!(listed.is_empty(), "a refusal leaves no group behind: {listed:?}");
}

#[tokio::test]
async fn a_group_with_members_is_refused_and_shown_as_it_was() {
    let bench = TestKafkaApi::new();
    bench.topic("a", 1).await;
    let before = moment(&bench.kafka).await;
    bench.stable_group("g").await;
    let seek = json!({"op": "seek_group", "group": "g", "at": before, "topics": ["a"]});
    assert_eq!(code(&bench.kafka, seek).await, "group_active");
    let now = handle_json(&bench.kafka, json!({"op": "groups", "group": "g"})).await;
    let membership = &now["groups"][0]["membership"];
    assert_eq!((&membership["state"], &membership["generation"]), (&json!("Stable"), &json!(1)));
    assert_eq!(membership["members"].as_array().unwrap().len(), 1, "{now}");
    let asked = json!({"op": "groups", "group": "g", "at": before});
    assert_eq!(code(&bench.kafka, asked).await, "unknown_group");
    let all = handle_json(&bench.kafka, json!({"op": "groups", "at": before})).await;
    assert_eq!(all["groups"], json!([]));
}

#[tokio::test]
async fn a_document_that_is_too_long_is_refused_before_it_is_parsed() {
    let kafka = kafka().await;
    let refusal =
        answer(&kafka, &context(), &vec![b'['; DOCUMENT_BYTES_MAX + 1]).await.unwrap_err();
    assert_eq!(refusal.code(), HistoryErrorCode::TooLarge);
    let refusal = answer(&kafka, &context(), &vec![b'['; DOCUMENT_BYTES_MAX]).await.unwrap_err();
    assert_eq!(refusal.code(), HistoryErrorCode::BadRequest);
}
