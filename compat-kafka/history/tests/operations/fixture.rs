//! The fixture of the tests: the history API over an engine in memory, with Kafka's groups.

use std::collections::BTreeMap;
use std::sync::Arc;

use compat_kafka::{KafkaFormat, KafkaOptions, KafkaServer};
use engine::security::{Principal, Requester};
use engine::{Durability, Engine, EngineOptions, Payload, PayloadHeader, RecordBatch};
use history_api::{HistoryAccess, HistoryApiError};
use history_documents::HistoryRequest;
use hlc::UserTime;
use kafka_records::HEADER_BYTES;
use serde_json::{Value, json};
use storage::disk::MemoryDisk;

pub(crate) const DAY_MS: u64 = 24 * 60 * 60 * 1000;

pub(crate) struct TestHistoryApi {
    pub(crate) engine: Arc<Engine>,
    /// The owner of the API and of the groups.
    kafka: Arc<KafkaServer>,
}

/// An API over an engine in memory, with a topic `a` of one partition.
pub(crate) async fn api() -> TestHistoryApi {
    api_with(EngineOptions::default()).await
}

pub(crate) async fn api_with(options: EngineOptions) -> TestHistoryApi {
    let engine = Engine::open(
        Arc::new(MemoryDisk::new()),
        options,
        Arc::new(hlc::OsClock),
        Arc::new(KafkaFormat { decompressed_bytes_max: 1 << 20 }),
    );
    let engine = Arc::new(engine.unwrap());
    engine.topics().create("a", 1, BTreeMap::new(), [1; 16], false).await.unwrap();
    let kafka = KafkaServer::new(Arc::clone(&engine), KafkaOptions::default()).unwrap();
    TestHistoryApi { engine, kafka }
}

/// Appends a batch of three records, of which only the count is real.
pub(crate) async fn append_three(api: &TestHistoryApi) {
    append_to(api, "a").await;
}

/// [`append_three`] to this topic.
pub(crate) async fn append_to(api: &TestHistoryApi, topic: &str) {
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
    let topic = api.engine.topics().named(topic).unwrap();
    let appended = api.engine.append(vec![(topic, 0, batch)], Durability::Synced).await;
    assert!(appended[0].is_ok(), "{appended:?}");
}

/// The text of the response to a document. An error is its document too.
pub(crate) async fn answer_text(api: &TestHistoryApi, document: Value) -> String {
    answer_text_as(api, "admin", document).await
}

/// The text of the response to a document of this user.
pub(crate) async fn answer_text_as(api: &TestHistoryApi, user: &str, document: Value) -> String {
    let requester = Requester::new(Principal::user(user), [127, 0, 0, 1].into());
    let access = HistoryAccess::new(Arc::clone(api.engine.security()), Arc::new(requester));
    let answer = match HistoryRequest::from_document(document) {
        Ok(request) => api.kafka.history().answer(request, &access).await,
        Err(error) => Err(HistoryApiError::from(error)),
    };
    answer.unwrap_or_else(|refusal| refusal.document())
}

/// The response to a document.
pub(crate) async fn answer_json(api: &TestHistoryApi, document: Value) -> Value {
    serde_json::from_str(&answer_text(api, document).await).unwrap()
}

/// The code of the error.
pub(crate) async fn code(api: &TestHistoryApi, document: Value) -> String {
    let answer = answer_json(api, document).await;
    answer["error"]["code"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The newest final moment.
pub(crate) async fn moment(api: &TestHistoryApi) -> String {
    let cut = json!({"op": "cut", "at": "s9999999999999", "when": "frontier"});
    answer_json(api, cut).await["at"].as_str().unwrap().to_owned()
}
