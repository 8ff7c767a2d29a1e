//! Produce (0): batches go to the journal as they came.
//!
//! Validated here is what a broker must: framing, checksum, size, count, times, and for a compacted
//! topic that each record has a key. A compressed batch is unpacked for that, and stored as it came:
//! what its header claims of its times is not believed, for the index would answer questions about
//! the past from it.

use std::sync::Arc;

use bytes::Bytes;
use engine::blocking::on_disk;
use engine::{Batch, Durability, EngineError, Head, Payload, Topic};
use hlc::UserTime;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use kafka_records::{BatchError, BatchHeader, HEADER_BYTES, Limit, check, keyless, time_range};

use crate::core::Kafka;
use crate::error_code::{batch_error, engine_error};
use crate::format::producer_note;
use crate::frame_memory::LARGE_BYTES_MIN;
use crate::metrics::add;
use crate::routes::{BadRequest, Context, Served, decode, encode};

#[cfg(test)]
mod tests;
mod user_time;

pub(crate) const SERVED: VersionRange = VersionRange { min: 3, max: 13 };
const NO_TIME: i64 = -1;
/// How many of a batch's bad records an answer names: a small batch can hold millions.
const RECORD_ERRORS_MAX: usize = 1000;

/// How many bytes a batch may unpack to on the thread that answers many. Whatever is larger is unpacked anew where
/// others need not wait for it; handing it over costs more than to unpack less.
const UNPACKED_HERE: Limit = Limit { decompressed_bytes_max: 1 << 20 };

/// Why a partition's batch was refused before it reached the engine.
#[derive(Clone)]
struct Refused {
    error: ResponseError,
    message: String,
    /// The records that were to blame, where not the whole batch was.
    records: Vec<BatchIndexAndErrorMessage>,
    /// It unpacks to more than was allowed at that try.
    is_too_large: bool,
}

impl Refused {
    fn new(error: ResponseError, message: impl Into<String>) -> Refused {
        Refused { error, message: message.into(), records: Vec::new(), is_too_large: false }
    }

    fn unreadable(error: &BatchError) -> Refused {
        let is_too_large = matches!(error, BatchError::TooLarge { .. });
        Refused { is_too_large, ..Refused::new(batch_error(error), error.to_string()) }
    }
}

/// Where in the answer a result belongs.
struct Slot {
    topic: usize,
    partition: usize,
    append_time: bool,
    /// The batch, where the partition's order may yet refuse it and name its records.
    strict: Option<Bytes>,
}

/// A batch that is ready for the engine.
struct Taken {
    partition: u32,
    batch: Batch,
    strict: Option<Bytes>,
}

pub(crate) async fn serve(kafka: Arc<Kafka>, context: Context, body: Bytes) -> Served {
    let frame_bytes = body.len();
    let request = decode::<ProduceRequest>(&context, body)?;
    let durability = match request.acks {
        -1 => Durability::Synced,
        0 | 1 => Durability::Written,
        _ => {
            let response = refuse_all(&request, ResponseError::InvalidRequiredAcks);
            return encode::<ProduceRequest>(&context, &response).map(Some);
        }
    };
    // Taken before anything is waited for: a later request of the connection must not overtake this one.
    let gate = context.gate.lock().await;
    let (mut batches, mut slots) = (Vec::new(), Vec::new());
    let mut responses = Vec::with_capacity(request.topic_data.len());
    let transactional = request.transactional_id.is_some();
    for (topic_index, data) in request.topic_data.into_iter().enumerate() {
        let found = if context.version >= 13 {
            let id = data.topic_id.as_bytes();
            kafka.engine.topic_by_id(id).ok_or_else(|| match kafka.moments.by_id(id) {
                Some(_) => read_only(),
                None => Refused::new(ResponseError::UnknownTopicId, "there is no such topic"),
            })
        } else {
            find(&kafka, &data.name)
        };
        let mut partitions = Vec::with_capacity(data.partition_data.len());
        for (index, partition) in data.partition_data.into_iter().enumerate() {
            let answer = PartitionProduceResponse::default()
                .with_index(partition.index)
                .with_base_offset(-1);
            let taken = match &found {
                Ok(topic) => {
                    let asked = BatchRequest { data: &partition, transactional, frame_bytes };
                    take_in(&kafka, topic, asked).await
                }
                Err(refused) => Err(refused.clone()),
            };
            partitions.push(match (taken, &found) {
                (Ok(Taken { partition: index_in_topic, batch, strict }), Ok(topic)) => {
                    let defaults = kafka.engine.topic_defaults();
                    let append_time = topic.config.is_log_append_time(defaults);
                    slots.push(Slot { topic: topic_index, partition: index, append_time, strict });
                    batches.push((Arc::clone(topic), index_in_topic, batch));
                    answer
                }
                (Err(refused), _) => refuse(answer, refused.error, refused.message)
                    .with_record_errors(refused.records),
                (Ok(_), Err(_)) => unreachable!("a batch was taken for a topic"),
            });
        }
        responses.push(
            TopicProduceResponse::default()
                .with_name(data.name)
                .with_topic_id(data.topic_id)
                .with_partition_responses(partitions),
        );
    }
    let starts: Vec<_> = batches
        .iter()
        .map(|(topic, partition, _)| topic.partitions[*partition as usize].start())
        .collect();
    let rules: Vec<_> = batches.iter().map(|(topic, ..)| topic.user_time().cloned()).collect();
    let results = if batches.is_empty() {
        Vec::new()
    } else {
        let appending = kafka.engine.begin_append(batches, durability).await;
        drop(gate);
        appending.results().await
    };
    for (((slot, result), start), rule) in slots.into_iter().zip(results).zip(starts).zip(rules) {
        let answer = &mut responses[slot.topic].partition_responses[slot.partition];
        answer.log_start_offset = start.0 as i64;
        answer.log_append_time_ms = NO_TIME;
        match result {
            Ok(appended) => {
                answer.base_offset = appended.base.0 as i64;
                if slot.append_time {
                    answer.log_append_time_ms = appended.stamp.time().0 as i64;
                }
            }
            // The batch is there: the client did not hear so the first time.
            Err(EngineError::Duplicate { base, time_ms }) => {
                answer.base_offset = base.0 as i64;
                if slot.append_time {
                    answer.log_append_time_ms = time_ms;
                }
            }
            Err(error) => {
                let refused = match (&slot.strict, &rule) {
                    (Some(records), Some(rule)) => {
                        let name =
                            || user_time::fallen(&kafka, rule, slot.append_time, records, &error);
                        on_disk(name)
                    }
                    _ => Refused::new(engine_error(&error), error.to_string()),
                };
                *answer = refuse(std::mem::take(answer), refused.error, refused.message)
                    .with_record_errors(refused.records);
            }
        }
    }
    if request.acks == 0 {
        return no_answer(&context, &responses);
    }
    let response = ProduceResponse::default().with_responses(responses);
    encode::<ProduceRequest>(&context, &response).map(Some)
}

/// A client that wants no answer learns of an error from the end of its connection, as in Kafka.
fn no_answer(context: &Context, responses: &[TopicProduceResponse]) -> Served {
    let failed = responses
        .iter()
        .flat_map(|topic| &topic.partition_responses)
        .find(|partition| partition.error_code != 0);
    match failed {
        None => Ok(None),
        Some(failed) => Err(BadRequest {
            api: context.api_key,
            version: context.version,
            reason: format!(
                "a batch sent with acks=0 was refused. error_code={}, message={}",
                failed.error_code,
                failed.error_message.as_deref().unwrap_or_default()
            ),
        }),
    }
}

fn refuse(
    answer: PartitionProduceResponse,
    error: ResponseError,
    message: String,
) -> PartitionProduceResponse {
    let leader = LeaderIdAndEpoch::default().with_leader_id((-1).into()).with_leader_epoch(-1);
    PartitionProduceResponse::default()
        .with_index(answer.index)
        .with_base_offset(-1)
        .with_log_append_time_ms(NO_TIME)
        .with_log_start_offset(-1)
        .with_error_code(error.code())
        .with_error_message(Some(StrBytes::from_string(message)))
        .with_current_leader(leader)
}

fn refuse_all(request: &ProduceRequest, error: ResponseError) -> ProduceResponse {
    let responses = request
        .topic_data
        .iter()
        .map(|data| {
            let partitions = data.partition_data.iter().map(|partition| {
                let answer = PartitionProduceResponse::default().with_index(partition.index);
                refuse(answer, error, "acks must be 0, 1 or -1 (all)".to_owned())
            });
            TopicProduceResponse::default()
                .with_name(data.name.clone())
                .with_topic_id(data.topic_id)
                .with_partition_responses(partitions.collect())
        })
        .collect();
    ProduceResponse::default().with_responses(responses)
}

fn find(kafka: &Kafka, name: &str) -> Result<Arc<Topic>, Refused> {
    kafka.engine.topic(name).ok_or_else(|| match hlc::split_topic(name) {
        Some(_) => read_only(),
        None => Refused::new(ResponseError::UnknownTopicOrPartition, "there is no such topic"),
    })
}

fn read_only() -> Refused {
    Refused::new(
        ResponseError::InvalidTopicException,
        "this topic is a moment of the past and cannot be written; produce to the topic itself",
    )
}

/// A batch of a request, and what of the request matters to it.
#[derive(Clone, Copy)]
struct BatchRequest<'a> {
    data: &'a PartitionProduceData,
    transactional: bool,
    frame_bytes: usize,
}

/// Takes a batch in: here if it is small. Of large ones, a few at a time are unpacked, and not in the way of others.
async fn take_in(kafka: &Kafka, topic: &Topic, asked: BatchRequest<'_>) -> Result<Taken, Refused> {
    let most = kafka.format.limit();
    let here = if UNPACKED_HERE.decompressed_bytes_max < most.decompressed_bytes_max {
        UNPACKED_HERE
    } else {
        most
    };
    match take(kafka, topic, asked, here) {
        Err(refused) if refused.is_too_large && here != most => {
            let _turn = kafka.unpacking.acquire().await;
            on_disk(|| take(kafka, topic, asked, most))
        }
        taken => taken,
    }
}

/// Checks a partition's batch, and makes it ready for the engine.
fn take(
    kafka: &Kafka,
    topic: &Topic,
    asked: BatchRequest<'_>,
    limit: Limit,
) -> Result<Taken, Refused> {
    let BatchRequest { data, transactional, frame_bytes } = asked;
    topic
        .partition(data.index)
        .map_err(|error| Refused::new(engine_error(&error), error.to_string()))?;
    let records = data.records.clone().unwrap_or_default();
    if records.is_empty() {
        let message = "a produce request carries a record batch for each partition";
        return Err(Refused::new(ResponseError::InvalidRecord, message));
    }
    let bad = |error: BatchError| Refused::new(batch_error(&error), error.to_string());
    let header = BatchHeader::parse(&records).map_err(bad)?;
    if header.total_bytes() < records.len() {
        let message = "a produce request carries exactly one record batch for each partition";
        return Err(Refused::new(ResponseError::InvalidRecord, message));
    }
    let defaults = kafka.engine.topic_defaults();
    let bytes_max = topic.config.number("max.message.bytes", defaults);
    if records.len() as i64 > bytes_max {
        let message = format!(
            "the batch has {} bytes, and max.message.bytes of the topic is {bytes_max}",
            records.len()
        );
        return Err(Refused::new(ResponseError::MessageTooLarge, message));
    }
    let header = check(&records).map_err(bad)?;
    if header.is_control() || header.is_log_append_time() {
        let message = "clients write neither control batches nor append times";
        return Err(Refused::new(ResponseError::InvalidRecord, message));
    }
    if header.delete_horizon_ms().is_some() {
        let message = "clients do not set the delete horizon of a batch";
        return Err(Refused::new(ResponseError::InvalidRecord, message));
    }
    if header.is_transactional() || transactional {
        let message = "transactions are not served";
        return Err(Refused::new(ResponseError::InvalidTxnState, message));
    }
    let rule = topic.user_time();
    let (times, stamps) = match rule {
        None => {
            let stamps = times_of(&records, limit)?;
            (stamps, stamps)
        }
        Some(rule) => {
            let found = user_time::find(kafka, topic, rule, (&records, limit))?;
            (found.user, found.stamps)
        }
    };
    check_times(kafka, topic, stamps)?;
    if topic.config.is_compacted(defaults) {
        check_keys(topic, data.index, &records, limit)?;
    }
    let metrics = kafka.metrics();
    add(&metrics.records_produced, header.record_count as u64);
    add(&metrics.bytes_produced, records.len() as u64);
    let strict = rule.filter(|rule| rule.is_strict()).map(|_| records.clone());
    let batch = Batch {
        payload: Payload {
            head: Head::new(&records[..HEADER_BYTES]),
            rest: own_if_small(records.slice(HEADER_BYTES..), frame_bytes),
        },
        count: header.record_count as u32,
        times,
        producer: producer_note(&header),
    };
    Ok(Taken { partition: data.index as u32, batch, strict })
}

/// A copy of `part` if it is less than half of the memory that it lies in: as the newest part of
/// its log it outlives the request, and would keep all of that memory, uncounted. Small frames lie together
/// in blocks that may be several times longer.
fn own_if_small(part: Bytes, frame_bytes: usize) -> Bytes {
    if frame_bytes < LARGE_BYTES_MIN || part.len() < frame_bytes / 2 {
        return Bytes::copy_from_slice(&part);
    }
    part
}

/// The smallest and the largest time of the records. Each record is looked at, so they are as many
/// as the header says.
fn times_of(records: &Bytes, limit: Limit) -> Result<(UserTime, UserTime), Refused> {
    let (least, most) = time_range(records, limit).map_err(|error| Refused::unreadable(&error))?;
    Ok((UserTime(least), UserTime(most)))
}

fn check_times(kafka: &Kafka, topic: &Topic, stamps: (UserTime, UserTime)) -> Result<(), Refused> {
    if topic.config.is_log_append_time(kafka.engine.topic_defaults()) {
        return Ok(());
    }
    let bounds = Bounds::of(kafka, topic);
    let early = stamps.0.0 != NO_TIME && bounds.is_early(stamps.0);
    if early || bounds.is_late(stamps.1) {
        let message = bounds.refusal("a record's timestamp", stamps);
        return Err(Refused::new(ResponseError::InvalidTimestamp, message));
    }
    Ok(())
}

/// How far from now a topic takes times: of records, and of what is found in them.
struct Bounds {
    now: i64,
    before: i64,
    after: i64,
}

impl Bounds {
    fn of(kafka: &Kafka, topic: &Topic) -> Bounds {
        let defaults = kafka.engine.topic_defaults();
        Bounds {
            now: kafka.engine.wall_now().0 as i64,
            before: topic.config.number("message.timestamp.before.max.ms", defaults),
            after: topic.config.number("message.timestamp.after.max.ms", defaults),
        }
    }

    fn is_early(&self, time: UserTime) -> bool {
        self.now.saturating_sub(self.before) > time.0
    }

    fn is_late(&self, time: UserTime) -> bool {
        time.0 > self.now.saturating_add(self.after)
    }

    fn refusal(&self, what: &str, (least, most): (UserTime, UserTime)) -> String {
        let Bounds { now, before, after } = self;
        let (least, most) = (least.0, most.0);
        format!(
            "{what} lies outside of what the topic takes. least={least}, most={most}, now={now}, message.timestamp.before.max.ms={before}, message.timestamp.after.max.ms={after}"
        )
    }
}

/// What is wrong with records of one batch: how much, and the first of it.
#[derive(Default)]
struct RecordErrors {
    count: usize,
    error: Option<ResponseError>,
    first: Vec<(usize, StrBytes)>,
}

impl RecordErrors {
    /// Remembers a fault of record `index`. The code of the first is the batch's.
    fn add(&mut self, index: usize, error: ResponseError, why: impl FnOnce() -> String) {
        self.count += 1;
        self.error.get_or_insert(error);
        if self.first.len() < RECORD_ERRORS_MAX {
            self.first.push((index, StrBytes::from_string(why())));
        }
    }

    fn into_result(self) -> Result<(), Refused> {
        let Some(error) = self.error else { return Ok(()) };
        let shown = self.first.iter().take(3);
        let shown: Vec<_> = shown
            .map(|(index, why)| format!("RecordError(batchIndex={index}, message='{why}')"))
            .collect();
        let message = format!(
            "One or more records have been rejected due to {} record errors in total, and only showing the first three errors at most: [{}]",
            self.count,
            shown.join(", ")
        );
        let record_error = |(index, why)| {
            BatchIndexAndErrorMessage::default()
                .with_batch_index(index as i32)
                .with_batch_index_error_message(Some(why))
        };
        let records = self.first.into_iter().map(record_error).collect();
        Err(Refused { records, ..Refused::new(error, message) })
    }
}

/// A record without a key could never be superseded.
fn check_keys(topic: &Topic, partition: i32, records: &Bytes, limit: Limit) -> Result<(), Refused> {
    let found =
        keyless(records, limit, RECORD_ERRORS_MAX).map_err(|error| Refused::unreadable(&error))?;
    let name = &topic.name;
    let why = StrBytes::from_string(format!(
        "Compacted topic cannot accept message without key in topic partition {name}-{partition}"
    ));
    RecordErrors {
        count: found.count,
        error: (found.count > 0).then_some(ResponseError::InvalidRecord),
        first: found.first.into_iter().map(|index| (index, why.clone())).collect(),
    }
    .into_result()
}
