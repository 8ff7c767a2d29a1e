//! The fixture of the operations' tests: a server over an engine in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::{Durability, Engine, EngineOptions, Payload, PayloadHeader, RecordBatch};
use hlc::UserTime;
use kafka_records::HEADER_BYTES;
use serde_json::{Value, json};
use storage::disk::MemoryDisk;

use super::handle_json;
use crate::core::{KafkaOptions, KafkaServer};
use crate::format::KafkaFormat;

pub(super) const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A server over an engine in memory, with a topic `a` of one partition.
pub(super) async fn kafka() -> Arc<KafkaServer> {
    kafka_with(EngineOptions::default()).await
}

pub(super) async fn kafka_with(options: EngineOptions) -> Arc<KafkaServer> {
    let engine = Engine::open(
        Arc::new(MemoryDisk::new()),
        options,
        Arc::new(hlc::OsClock),
        Arc::new(KafkaFormat { decompressed_bytes_max: 1 << 20 }),
    );
    let engine = engine.unwrap();
    engine.topics().create("a", 1, BTreeMap::new(), [1; 16], false).await.unwrap();
    KafkaServer::new(Arc::new(engine), KafkaOptions::default()).unwrap()
}

/// Appends a batch of three records, of which only the count is real.
pub(super) async fn append_three(kafka: &KafkaServer) {
    let batch = RecordBatch {
        payload: Payload {
            header: PayloadHeader::new(&[0; HEADER_BYTES]),
            rest: vec![0; 100].into(),
        },
        count: 3,
        times: (UserTime(0), UserTime(0)),
        producer: None,
    };
    let topic = kafka.engine.topics().named("a").unwrap();
    let appended = kafka.engine.append(vec![(topic, 0, batch)], Durability::Synced).await;
    assert!(appended[0].is_ok(), "{appended:?}");
}

/// The code of the error.
pub(super) async fn code(kafka: &Arc<KafkaServer>, document: Value) -> String {
    let answer = handle_json(kafka, document).await;
    answer["error"]["code"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The newest final moment.
pub(super) async fn moment(kafka: &Arc<KafkaServer>) -> String {
    let cut = json!({"op": "cut", "at": "s9999999999999", "when": "frontier"});
    handle_json(kafka, cut).await["at"].as_str().unwrap().to_owned()
}
