//! Kafka requests that tests send, and their frames.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    FetchRequest, ListOffsetsRequest, ProduceRequest, RequestHeader, TopicName,
};
use kafka_protocol::protocol::{Encodable, Request, StrBytes};

/// The correlation id of every request.
pub const CORRELATION_ID: i32 = 7;

/// A request's frame, its length in front.
///
/// # Panics
/// The request cannot be said in this version.
pub fn encode_frame<R: Request>(version: i16, request: &R) -> Vec<u8> {
    encode_frame_as("test", version, request)
}

/// [`encode_frame`] of a client with this id.
///
/// # Panics
/// The request cannot be said in this version.
pub fn encode_frame_as<R: Request>(client_id: &str, version: i16, request: &R) -> Vec<u8> {
    let mut body = BytesMut::new();
    RequestHeader::default()
        .with_request_api_key(R::KEY)
        .with_request_api_version(version)
        .with_correlation_id(CORRELATION_ID)
        .with_client_id(Some(str_bytes(client_id)))
        .encode(&mut body, R::header_version(version))
        .and_then(|()| request.encode(&mut body, version))
        .expect("a request of this version");
    length_prefixed(&body)
}

/// `body` behind its length.
pub fn length_prefixed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as i32).to_be_bytes(), body].concat()
}

/// Text, as the codec has it.
pub fn str_bytes(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// A topic's name, as the codec has it.
pub fn topic_name(text: &str) -> TopicName {
    TopicName(str_bytes(text))
}

/// A request to produce, acknowledged once it is on disk.
pub fn produce_request(topic: &str, partition: i32, records: &Bytes) -> ProduceRequest {
    let data =
        PartitionProduceData::default().with_index(partition).with_records(Some(records.clone()));
    let topic =
        TopicProduceData::default().with_name(topic_name(topic)).with_partition_data(vec![data]);
    ProduceRequest::default().with_acks(-1).with_timeout_ms(10_000).with_topic_data(vec![topic])
}

/// A request to fetch that waits for one byte.
pub fn fetch_request(topic: &str, partition: i32, offset: i64, wait: Duration) -> FetchRequest {
    let partition = FetchPartition::default()
        .with_partition(partition)
        .with_fetch_offset(offset)
        .with_partition_max_bytes(8 << 20);
    let topic =
        FetchTopic::default().with_topic(topic_name(topic)).with_partitions(vec![partition]);
    FetchRequest::default()
        .with_max_wait_ms(wait.as_millis() as i32)
        .with_min_bytes(1)
        .with_max_bytes(32 << 20)
        .with_topics(vec![topic])
}

/// A request for the first offset at or after a time.
pub fn list_offsets_request(topic: &str, partition: i32, time_ms: i64) -> ListOffsetsRequest {
    let partition =
        ListOffsetsPartition::default().with_partition_index(partition).with_timestamp(time_ms);
    let topic =
        ListOffsetsTopic::default().with_name(topic_name(topic)).with_partitions(vec![partition]);
    ListOffsetsRequest::default().with_replica_id((-1).into()).with_topics(vec![topic])
}
