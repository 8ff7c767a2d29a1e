//! Batches that an importer copies from another log.
//!
//! An importer says where its batches begin, in a tagged field of ours, and the partition must end there:
//! the batches keep their offsets, and a request that is repeated, or that another producer came before,
//! is refused with `OffsetOutOfRange`. So the end of the partition says how far an import has come.
//!
//! A log may hold more than producers may write: offsets without records, several batches in a row, old
//! timestamps, batches that are longer than producers may send today, records without a key from before
//! compaction. All of that is accepted. The batches of transactions are not: the importer leaves out
//! those that were aborted, and gives the others without their producer.

use bytes::Bytes;
use engine::security::{Operation, Resource};
use engine::{NO_TIMES, Offset, RecordBatch, Topic};
use kafka_errors::{batch_error, engine_error, error_message};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_records::{
    BatchError, BatchHeader, BatchIterator, DecompressionLimit, HEADER_BYTES, check_sparse,
};

use super::{
    PartitionBatchRequest, PartitionProduceError, ValidatedBatch, record_batch, record_time_range,
    user_time,
};
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::request::RequestContext;

/// A tagged field of ours in a partition of a request: the offset of its first batch, 8 bytes.
const IMPORT_TAG: i32 = 10_001;
/// The most batches of a partition in a request.
const BATCHES_MAX: usize = 10_000;

/// The offset at which the batches of a partition must begin; `None` if no importer sends them.
pub(super) fn expected_base(
    data: &PartitionProduceData,
) -> Result<Option<Offset>, PartitionProduceError> {
    let Some(field) = data.unknown_tagged_fields.get(&IMPORT_TAG) else { return Ok(None) };
    let offset = <[u8; 8]>::try_from(&field[..]).ok().map(i64::from_be_bytes);
    let offset = offset.and_then(|offset| u64::try_from(offset).ok());
    let message = "the offset of an import is 8 bytes, and not negative";
    offset
        .map(|offset| Some(Offset(offset)))
        .ok_or_else(|| PartitionProduceError::new(ResponseError::InvalidRequest, message))
}

/// An importer changes what a topic is, as its administrator may: it chooses offsets.
pub(super) fn authorize(
    kafka: &KafkaServer,
    context: &RequestContext,
    topic: &str,
) -> Result<(), PartitionProduceError> {
    let allowed = kafka.authorize(context, Operation::Alter, Resource::topic(topic));
    allowed.map_err(|error| PartitionProduceError::new(error, error_message(error).to_string()))
}

/// Checks the batches of a partition, and prepares them for the engine.
pub(super) fn validate_batches(
    kafka: &KafkaServer,
    topic: &Topic,
    request: PartitionBatchRequest<'_>,
    base: Offset,
    limit: DecompressionLimit,
) -> Result<Vec<ValidatedBatch>, PartitionProduceError> {
    let PartitionBatchRequest { data, is_transactional, frame_bytes } = request;
    topic
        .partition(data.index)
        .map_err(|error| PartitionProduceError::new(engine_error(&error), error.to_string()))?;
    if is_transactional {
        return Err(invalid("batches are not imported in a transaction"));
    }
    let records = data.records.clone().unwrap_or_default();
    let (mut batches, mut next, mut count) = (Vec::new(), base.0 as i64, 0);
    let mut rest = BatchIterator::new(&records);
    for batch in rest.by_ref() {
        let (header, bytes) = batch.map_err(|error| unreadable(&error))?;
        if header.base_offset != next {
            let found = header.base_offset;
            return Err(invalid(format!("a batch begins at {found}, and {next} was expected")));
        }
        if batches.len() == BATCHES_MAX {
            return Err(invalid(format!(
                "a request has at most {BATCHES_MAX} batches of a partition"
            )));
        }
        let bytes = records.slice_ref(bytes);
        batches.push(validate_batch(kafka, topic, data.index, bytes, frame_bytes, limit)?);
        next = header.last_offset().saturating_add(1);
        count += header.record_count as u64;
    }
    if batches.is_empty() || !rest.rest().is_empty() {
        return Err(invalid("an import has whole batches, at least one for each partition"));
    }
    let metrics = kafka.metrics();
    add(&metrics.records_produced, count);
    add(&metrics.bytes_produced, records.len() as u64);
    Ok(batches)
}

fn validate_batch(
    kafka: &KafkaServer,
    topic: &Topic,
    partition: i32,
    records: Bytes,
    frame_bytes: usize,
    limit: DecompressionLimit,
) -> Result<ValidatedBatch, PartitionProduceError> {
    let header = check_sparse(&records).map_err(|error| unreadable(&error))?;
    if header.is_control() || header.producer_id >= 0 {
        return Err(invalid("an imported batch has no producer, and is no marker"));
    }
    let times = match topic.user_time() {
        _ if header.record_count == 0 => {
            check_empty(&header)?;
            NO_TIMES
        }
        None => record_time_range(&records, limit)?,
        Some(rule) => {
            let has_append_time = topic.config.is_log_append_time(&kafka.engine.topic_defaults());
            if has_append_time || header.is_log_append_time() {
                let message =
                    "a topic with a rule for user times takes no batches with append times";
                return Err(invalid(message));
            }
            user_time::extract_user_times(kafka, topic, rule, &records, limit)?.user_times
        }
    };
    let batch = RecordBatch {
        count: header.last_offset_delta.cast_unsigned() + 1,
        times,
        expected_base: Some(Offset(header.base_offset as u64)),
        ..record_batch(kafka, &records, frame_bytes)
    };
    Ok(ValidatedBatch { partition: partition as u32, batch, strict_records: None })
}

/// A batch without records is its header.
fn check_empty(header: &BatchHeader) -> Result<(), PartitionProduceError> {
    if header.total_bytes() == HEADER_BYTES {
        return Ok(());
    }
    Err(invalid("bytes follow the header of a batch without records"))
}

fn invalid(message: impl Into<String>) -> PartitionProduceError {
    PartitionProduceError::new(ResponseError::InvalidRecord, message)
}

fn unreadable(error: &BatchError) -> PartitionProduceError {
    PartitionProduceError::new(batch_error(error), error.to_string())
}
