//! A server for tests of single APIs, and requests to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;
use engine::{
    CoreOptions, Durability, Engine, EngineOptions, Payload, PayloadHeader, RecordBatch,
    TopicDefaults,
};
use hlc::UserTime;
use kafka_format::KafkaFormat;
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use kafka_records::HEADER_BYTES;
use storage::disk::MemoryDisk;

use super::support::new_topic_id;
use crate::kafka_server::KafkaServer;
use crate::options::KafkaOptions;
use crate::request::{ApiHandler, RequestContext};

/// A server on an engine in memory, whose operator has set `retention.ms`.
pub(super) fn kafka_with(options: KafkaOptions) -> Arc<KafkaServer> {
    kafka_over(EngineOptions::default(), options)
}

pub(super) fn kafka_over(engine: EngineOptions, options: KafkaOptions) -> Arc<KafkaServer> {
    let defaults = TopicDefaults::from([("retention.ms".to_owned(), "5000".to_owned())]);
    let engine = Engine::open(
        Arc::new(MemoryDisk::new()),
        EngineOptions { core: CoreOptions { topic_defaults: defaults, ..engine.core }, ..engine },
        Arc::new(hlc::OsClock),
        Arc::new(KafkaFormat { decompressed_bytes_max: 1 << 20 }),
    );
    KafkaServer::new(Arc::new(engine.unwrap()), options).unwrap()
}

pub(super) fn kafka() -> Arc<KafkaServer> {
    kafka_with(KafkaOptions { partitions: 3, ..KafkaOptions::default() })
}

pub(super) async fn topic(kafka: &Arc<KafkaServer>, name: &str, partitions: u32) {
    let id = new_topic_id(kafka);
    kafka.engine.topics().create(name, partitions, BTreeMap::new(), id, false).await.unwrap();
}

/// A topic of one partition with so many records, of which only the count is real.
pub(super) async fn topic_with_records(kafka: &Arc<KafkaServer>, name: &str, records: u32) {
    topic(kafka, name, 1).await;
    let batch = RecordBatch {
        payload: Payload {
            header: PayloadHeader::new(&[0; HEADER_BYTES]),
            rest: vec![0; 100].into(),
        },
        count: records,
        times: (UserTime(0), UserTime(0)),
        producer: None,
        expected_base: None,
        holder: None,
    };
    let topic = kafka.engine.topics().named(name).unwrap();
    let appended = kafka.engine.append(vec![(topic, 0, batch)], Durability::Synced).await;
    assert!(appended[0].is_ok(), "{appended:?}");
}

/// Sends a request, and decodes the response as a client of that version does.
pub(super) async fn ask<R: ApiHandler>(
    kafka: &Arc<KafkaServer>,
    version: i16,
    request: R,
) -> R::Response {
    let context = RequestContext {
        api_key: R::KEY,
        version,
        correlation_id: 1,
        client_id: "test".to_owned(),
        peer: ([127, 0, 0, 1], 50_000).into(),
        local: ([127, 0, 0, 1], 9092).into(),
        connection: crate::request::ConnectionState::for_test(),
        received_at: tokio::time::Instant::now(),
        quota: None,
    };
    let mut bytes = BytesMut::new();
    request.handle(kafka, &context).await.encode(&mut bytes, version).unwrap();
    let mut bytes = bytes.freeze();
    let response = R::Response::decode(&mut bytes, version).unwrap();
    assert!(bytes.is_empty());
    response
}

pub(super) fn name(name: &str) -> TopicName {
    TopicName(text(name))
}

pub(super) fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
