//! The requests that actors send, and the fields of the responses that they read.

use std::time::Duration;

use bytes::Bytes;
use hlc::{Cut, Hlc, Moment};
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest, GroupId, InitProducerIdRequest,
    OffsetCommitRequest, ProduceRequest,
};
use kafka_protocol::protocol::StrBytes;
use kafka_records::BatchIterator;
use serde_json::Value;
use testkit::requests::{fetch_request, topic_name};

use crate::audit::{AuditRecord, read_records};
use crate::ledger::AckMode;
use crate::wire::SimClient;

const PRODUCE: i16 = 9;
const FETCH: i16 = 12;
const OFFSET_OUT_OF_RANGE: i16 = 1;

/// A batch, with its topic and partition.
pub(super) type PartitionBatch = (String, u32, Bytes);

pub(super) fn produce_request(acks: AckMode, parcels: &[PartitionBatch]) -> ProduceRequest {
    let topics = parcels.iter().map(|(topic, partition, batch)| {
        let data = PartitionProduceData::default()
            .with_index(*partition as i32)
            .with_records(Some(batch.clone()));
        TopicProduceData::default().with_name(topic_name(topic)).with_partition_data(vec![data])
    });
    let acks = match acks {
        AckMode::None => 0,
        AckMode::Leader => 1,
        AckMode::All => -1,
    };
    let topics = topics.collect();
    ProduceRequest::default().with_acks(acks).with_timeout_ms(10_000).with_topic_data(topics)
}

/// The bytes of a produce request.
pub(super) fn produce_frame(acks: AckMode, parcels: &[PartitionBatch]) -> Vec<u8> {
    testkit::requests::encode_frame(PRODUCE, &produce_request(acks, parcels))
}

/// The error code and the base offset, for each batch of a request in order.
pub(super) async fn receive_produce_response(
    client: &mut SimClient,
) -> std::io::Result<Vec<(i16, i64)>> {
    let answer = client.receive_response::<ProduceRequest>(PRODUCE).await?;
    let partitions = answer.responses.iter().flat_map(|topic| &topic.partition_responses);
    Ok(partitions.map(|answer| (answer.error_code, answer.base_offset)).collect())
}

/// A producer id and its epoch.
pub(super) async fn init_producer_id(
    client: &mut SimClient,
) -> std::io::Result<Option<(i64, i16)>> {
    let request =
        InitProducerIdRequest::default().with_transactional_id(None).with_producer_id((-1).into());
    let answer = client.call(4, &request).await?;
    Ok((answer.error_code == 0).then_some((answer.producer_id.0, answer.producer_epoch)))
}

pub(super) struct FetchResult {
    pub(super) code: i16,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) records: Vec<AuditRecord>,
    /// The offset to continue at.
    pub(super) next: u64,
}

/// A fault in a response that no network can cause.
pub(super) type AnswerFault = String;

pub(super) async fn fetch_from(
    client: &mut SimClient,
    topic: &str,
    partition: u32,
    offset: u64,
) -> std::io::Result<Result<FetchResult, AnswerFault>> {
    let request = fetch_request(topic, partition as i32, offset as i64, Duration::ZERO);
    let answer = client.call(FETCH, &request).await?;
    let Some(answer) = answer.responses.first().and_then(|topic| topic.partitions.first()) else {
        return Ok(Err("a fetch was answered with nothing".to_owned()));
    };
    let bytes = answer.records.clone().unwrap_or_default();
    let (mut records, mut next) = (Vec::new(), offset);
    for batch in BatchIterator::new(&bytes) {
        let batch = match batch {
            Ok((header, batch)) => {
                next = header.last_offset() as u64 + 1;
                read_records(&Bytes::copy_from_slice(batch))
            }
            Err(error) => Err(error.to_string()),
        };
        match batch {
            Ok(read) => records.extend(read),
            Err(why) => return Ok(Err(format!("{topic}/{partition} from {offset}: {why}"))),
        }
    }
    let (start, end) = (answer.log_start_offset as u64, answer.high_watermark as u64);
    Ok(Ok(FetchResult { code: answer.error_code, start, end, records, next }))
}

impl FetchResult {
    /// True if it began before the log start.
    pub(super) fn is_before_start(&self, offset: u64) -> bool {
        self.code == OFFSET_OUT_OF_RANGE && offset < self.start
    }
}

pub(super) fn create_topic_request(topic: &str, partitions: i32) -> CreateTopicsRequest {
    let topic = CreatableTopic::default()
        .with_name(topic_name(topic))
        .with_num_partitions(partitions)
        .with_replication_factor(1);
    CreateTopicsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000)
}

pub(super) fn delete_topic_request(topic: &str) -> DeleteTopicsRequest {
    DeleteTopicsRequest::default().with_topic_names(vec![topic_name(topic)]).with_timeout_ms(10_000)
}

pub(super) fn delete_records_request(
    topic: &str,
    partition: u32,
    before: u64,
) -> DeleteRecordsRequest {
    let partition = DeleteRecordsPartition::default()
        .with_partition_index(partition as i32)
        .with_offset(before as i64);
    let topic =
        DeleteRecordsTopic::default().with_name(topic_name(topic)).with_partitions(vec![partition]);
    DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000)
}

pub(super) fn commit_request(group: &str, offsets: &[(&str, u32, u64)]) -> OffsetCommitRequest {
    let topics = offsets.iter().map(|(topic, partition, offset)| {
        let partition = OffsetCommitRequestPartition::default()
            .with_partition_index(*partition as i32)
            .with_committed_offset(*offset as i64);
        OffsetCommitRequestTopic::default()
            .with_name(topic_name(topic))
            .with_partitions(vec![partition])
    });
    OffsetCommitRequest::default()
        .with_group_id(GroupId(StrBytes::from_string(group.to_owned())))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(topics.collect())
}

/// A moment, in the format of the extension API.
pub(super) fn format_moment(bound: Hlc) -> String {
    Moment::Sys(Cut::below(bound)).to_string()
}

/// The bound of a moment that the extension API returned.
pub(super) fn parse_bound(value: &Value) -> Option<Hlc> {
    match value.as_str()?.parse() {
        Ok(Moment::Sys(cut)) => Some(cut.bound()),
        _ => None,
    }
}

/// The moment topic of a topic.
pub(super) fn moment_name(topic: &str, bound: Hlc) -> String {
    format!("{topic}.__at.sh{:016x}", bound.bits())
}

/// The name under which a topic can be read as of a user time, as known at a moment.
pub(super) fn bitemporal_name(topic: &str, time: i64, known: Hlc) -> String {
    format!("{topic}.__at.u{time}.as.sh{:016x}", known.bits())
}
