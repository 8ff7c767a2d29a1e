//! Produce (0): batches go to the journal unchanged.
//!
//! The validation is a broker's: framing, checksum, size, count, times, and for a compacted topic a
//! key in each record. A compressed batch is decompressed for that, and stored unchanged. The times
//! in its header are not trusted, because the index would answer questions about the past from
//! them.

use std::sync::Arc;

use admission::Holder;
use bytes::Bytes;
use engine::blocking::block_in_place;
use engine::security::{Operation, Resource};
use engine::{
    AppendReceipt, Durability, EngineError, NO_TIMES, Offset, Payload, PayloadHeader,
    PendingAppends, REQUEST_TARGET, RecordBatch, Topic, TopicId, UserTimeRule,
};
use hlc::UserTime;
use kafka_errors::{batch_error, engine_error, error_message, transaction_error};
use kafka_format::producer_sequence;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_request::PartitionProduceData;
use kafka_protocol::messages::produce_response::{
    BatchIndexAndErrorMessage, LeaderIdAndEpoch, PartitionProduceResponse, TopicProduceResponse,
};
use kafka_protocol::messages::{ProduceRequest, ProduceResponse, TransactionalId};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use kafka_records::{
    BatchError, BatchHeader, DecompressionLimit, HEADER_BYTES, check, keyless_records, time_range,
};
use kafka_topics::ReadableTopic;
use kafka_transactions::{TransactionError, TransactionScope};
use tracing::Instrument;

use crate::frame_buffer_pool::{FrameBufferPool, LARGE_BYTES_MIN};
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::request::{
    BadRequest, RequestBody, RequestContext, ResponseResult, decode, encode, take_room_to_decode,
};

mod import;
#[cfg(test)]
mod tests;
mod user_time;

pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 3, max: 13 };
const NO_TIME: i64 = -1;
/// From here on, a batch adds its partition to the transaction (KIP-890).
const BEGINS_TRANSACTION: i16 = 12;
/// The most invalid records that a response names: a small batch can hold millions, and a request
/// many batches.
const RECORD_ERRORS_MAX: usize = 1000;

/// The most bytes that a batch may decompress to on an async worker thread. A larger one is
/// decompressed again on a blocking thread. Moving it there costs more than decompressing less than
/// this.
const INLINE_DECOMPRESSION: DecompressionLimit =
    DecompressionLimit { decompressed_bytes_max: 1 << 20 };

/// The reason why a partition's batch was refused before it reached the engine.
#[derive(Clone)]
struct PartitionProduceError {
    error: ResponseError,
    message: String,
    /// The invalid records, if the fault is not the whole batch's.
    records: Vec<BatchIndexAndErrorMessage>,
    /// It decompresses to more than this attempt allowed.
    is_too_large: bool,
}

impl PartitionProduceError {
    fn new(error: ResponseError, message: impl Into<String>) -> PartitionProduceError {
        PartitionProduceError {
            error,
            message: message.into(),
            records: Vec::new(),
            is_too_large: false,
        }
    }

    fn unreadable(error: &BatchError) -> PartitionProduceError {
        let is_too_large = matches!(error, BatchError::TooLarge { .. });
        PartitionProduceError {
            is_too_large,
            ..PartitionProduceError::new(batch_error(error), error.to_string())
        }
    }

    fn into_response(self, response: PartitionProduceResponse) -> PartitionProduceResponse {
        error_response(response, self.error, self.message).with_record_errors(self.records)
    }
}

/// The place of a partition's result in the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ResponsePlace {
    topic_index: usize,
    partition_index: usize,
}

/// The data that the response needs of a batch that is on its way to the journal.
struct PendingAppend {
    place: ResponsePlace,
    /// True if the batch before it is of the same partition: an importer sends several.
    follows: bool,
    /// True if the topic's timestamps are append times.
    has_append_time: bool,
    log_start: Offset,
    /// The topic's rule for user times, and the records that it may refuse in the order of appends.
    rule: Option<Arc<UserTimeRule>>,
    strict_records: Option<Bytes>,
}

/// A request whose batches were checked.
#[derive(Default)]
struct PreparedProduce {
    /// One for each topic; those of refused batches are complete.
    responses: Vec<TopicProduceResponse>,
    /// The batches to append, each with what its response needs.
    batches: Vec<(Arc<Topic>, u32, RecordBatch)>,
    pending: Vec<PendingAppend>,
}

/// A batch that is ready for the engine.
struct ValidatedBatch {
    partition: u32,
    batch: RecordBatch,
    strict_records: Option<Bytes>,
}

pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let response = produce(&kafka, &context, body).await;
    kafka.metrics().produce_latency.record(context.received_at.elapsed());
    response
}

async fn produce(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    mut body: RequestBody,
) -> ResponseResult {
    let frame_bytes = body.len();
    // Taken before any wait: a later request of the connection must not overtake this one.
    let gate = context.connection.produce_lock.lock().await;
    let _room = take_room_to_decode(context, &mut body).await?;
    let request = decode::<ProduceRequest>(context, body)?;
    let (acks, transactional_id) = (request.acks, request.transactional_id.clone());
    if let Some(id) = &transactional_id
        && let Err(error) =
            kafka.authorize(context, Operation::Write, Resource::transactional_id(id))
    {
        let response = error_responses(&request, error, &error_message(error));
        return match acks {
            0 => no_response(context, &response.responses),
            _ => encode::<ProduceRequest>(context, &response).map(Some),
        };
    }
    let durability = match acks {
        -1 => Durability::Synced,
        0 | 1 => Durability::Written,
        _ => {
            let message = "acks must be 0, 1 or -1 (all)";
            let response = error_responses(&request, ResponseError::InvalidRequiredAcks, message);
            return encode::<ProduceRequest>(context, &response).map(Some);
        }
    };
    let prepared = prepare(kafka, context, request, frame_bytes).await;
    let PreparedProduce { mut responses, batches, pending } = prepared;
    if !batches.is_empty() {
        let (refused, append) = match transactional_id {
            None => {
                let holder = kafka.holder(context);
                (Vec::new(), kafka.engine.begin_append(&holder, batches, durability).await)
            }
            Some(id) => append_transactional(kafka, context, id, batches, durability).await,
        };
        drop(gate);
        let mut refused = refused.into_iter();
        let journal = tracing::trace_span!(target: REQUEST_TARGET, "journal");
        let mut results = append.results().instrument(journal).await.into_iter();
        for pending in pending {
            let topic = &mut responses[pending.place.topic_index];
            let response = &mut topic.partition_responses[pending.place.partition_index];
            match refused.next().flatten() {
                Some(error) => *response = error.into_response(std::mem::take(response)),
                None => {
                    let result = results.next().expect("each batch that was queued has a result");
                    pending.complete(kafka, context.version, response, result);
                }
            }
        }
    }
    if acks == 0 {
        return no_response(context, &responses);
    }
    let response = ProduceResponse::default().with_responses(responses);
    encode::<ProduceRequest>(context, &response).map(Some)
}

/// Appends the batches of a transaction; the result has an error for each that does not belong to
/// it.
async fn append_transactional(
    kafka: &KafkaServer,
    context: &RequestContext,
    id: TransactionalId,
    batches: Vec<(Arc<Topic>, u32, RecordBatch)>,
    durability: Durability,
) -> (Vec<Option<PartitionProduceError>>, PendingAppends) {
    let scope = TransactionScope {
        transactional_id: id.to_string(),
        may_begin: context.version >= BEGINS_TRANSACTION,
        holder: kafka.holder(context),
    };
    let (refused, append) =
        kafka.coordinators.transactions.append(&scope, batches, durability).await;
    let error = |error: TransactionError| {
        let code = produce_error(transaction_error(&error), context.version);
        PartitionProduceError::new(code, error.to_string())
    };
    (refused.into_iter().map(|refused| refused.map(error)).collect(), append)
}

/// The code by which a client of this version knows an error.
fn produce_error(error: ResponseError, version: i16) -> ResponseError {
    match error {
        ResponseError::ProducerFenced => ResponseError::InvalidProducerEpoch,
        // Old clients retry this one.
        ResponseError::ConcurrentTransactions if version < BEGINS_TRANSACTION => {
            ResponseError::NotEnoughReplicas
        }
        error => error,
    }
}

/// Checks each batch of a request. A refused batch does not hold up the others.
async fn prepare(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: ProduceRequest,
    frame_bytes: usize,
) -> PreparedProduce {
    let is_transactional = request.transactional_id.is_some();
    let holder = kafka.holder(context);
    let (mut prepared, mut record_errors_left) = (PreparedProduce::default(), RECORD_ERRORS_MAX);
    for (topic_index, data) in request.topic_data.into_iter().enumerate() {
        let topic = match context.version {
            13.. => find_topic_by_id(kafka, context, data.topic_id.as_bytes()),
            _ => find_topic(kafka, context, &data.name),
        };
        let mut partitions = Vec::with_capacity(data.partition_data.len());
        for (partition_index, data) in data.partition_data.into_iter().enumerate() {
            let response =
                PartitionProduceResponse::default().with_index(data.index).with_base_offset(-1);
            let batches = match &topic {
                Ok(topic) => {
                    let request =
                        PartitionBatchRequest { data: &data, is_transactional, frame_bytes };
                    prepare_partition(kafka, context, topic, request)
                        .await
                        .map(|batches| (topic, batches))
                }
                Err(error) => Err(error.clone()),
            };
            partitions.push(match batches {
                Ok((topic, batches)) => {
                    let place = ResponsePlace { topic_index, partition_index };
                    for batch in batches {
                        prepared.push(kafka, place, topic, batch, &holder);
                    }
                    response
                }
                Err(mut error) => {
                    error.records.truncate(record_errors_left);
                    record_errors_left -= error.records.len();
                    error.into_response(response)
                }
            });
            // Many small batches may unpack to much: others get their turn.
            tokio::task::consume_budget().await;
        }
        prepared.responses.push(
            TopicProduceResponse::default()
                .with_name(data.name)
                .with_topic_id(data.topic_id)
                .with_partition_responses(partitions),
        );
    }
    prepared
}

impl PreparedProduce {
    fn push(
        &mut self,
        kafka: &KafkaServer,
        place: ResponsePlace,
        topic: &Arc<Topic>,
        batch: ValidatedBatch,
        holder: &Holder,
    ) {
        let ValidatedBatch { partition, mut batch, strict_records } = batch;
        if batch.producer.is_some() {
            batch.holder = Some(holder.clone());
        }
        self.pending.push(PendingAppend {
            place,
            follows: self.pending.last().is_some_and(|last| last.place == place),
            has_append_time: topic.config.is_log_append_time(&kafka.engine.topic_defaults()),
            log_start: topic.partitions[partition as usize].start(),
            rule: topic.user_time().cloned(),
            strict_records,
        });
        self.batches.push((Arc::clone(topic), partition, batch));
    }
}

impl PendingAppend {
    /// Writes the result of the append into its response.
    fn complete(
        self,
        kafka: &KafkaServer,
        version: i16,
        response: &mut PartitionProduceResponse,
        result: Result<AppendReceipt, EngineError>,
    ) {
        // The first batch that fails is the one to report, and the first of all says where they begin.
        if self.follows && (response.error_code != 0 || result.is_ok()) {
            return;
        }
        response.log_start_offset = self.log_start.0 as i64;
        response.log_append_time_ms = NO_TIME;
        let (base, time_ms) = match result {
            Ok(appended) => (appended.base, appended.stamp.time().0 as i64),
            // The batch is stored already: the client did not get the first response.
            Err(EngineError::Duplicate { base, time_ms }) => (base, time_ms),
            Err(error) => {
                let mut refused = self.refuse(kafka, error);
                refused.error = produce_error(refused.error, version);
                *response = refused.into_response(std::mem::take(response));
                return;
            }
        };
        response.base_offset = base.0 as i64;
        if self.has_append_time {
            response.log_append_time_ms = time_ms;
        }
    }

    fn refuse(self, kafka: &KafkaServer, error: EngineError) -> PartitionProduceError {
        match (&self.strict_records, &self.rule) {
            (Some(records), Some(rule)) => block_in_place(|| {
                user_time::out_of_order_error(kafka, rule, self.has_append_time, records, &error)
            }),
            _ => PartitionProduceError::new(engine_error(&error), error.to_string()),
        }
    }
}

/// A client with acks=0 learns of an error from the end of its connection, as in Kafka.
fn no_response(context: &RequestContext, responses: &[TopicProduceResponse]) -> ResponseResult {
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

fn error_response(
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

fn error_responses(
    request: &ProduceRequest,
    error: ResponseError,
    message: &str,
) -> ProduceResponse {
    let responses = request
        .topic_data
        .iter()
        .map(|data| {
            let partitions = data.partition_data.iter().map(|partition| {
                let answer = PartitionProduceResponse::default().with_index(partition.index);
                error_response(answer, error, message.to_owned())
            });
            TopicProduceResponse::default()
                .with_name(data.name.clone())
                .with_topic_id(data.topic_id)
                .with_partition_responses(partitions.collect())
        })
        .collect();
    ProduceResponse::default().with_responses(responses)
}

fn find_topic_by_id(
    kafka: &KafkaServer,
    context: &RequestContext,
    id: &TopicId,
) -> Result<Arc<Topic>, PartitionProduceError> {
    let topic = kafka.topics.by_id(id).ok_or_else(|| {
        PartitionProduceError::new(ResponseError::UnknownTopicId, "there is no such topic")
    })?;
    authorize_write(kafka, context, &topic.topic().name)?;
    match topic {
        ReadableTopic::Present(topic) => Ok(topic),
        ReadableTopic::Past(_) => Err(read_only_error()),
    }
}

fn authorize_write(
    kafka: &KafkaServer,
    context: &RequestContext,
    topic: &str,
) -> Result<(), PartitionProduceError> {
    let allowed = kafka.authorize(context, Operation::Write, Resource::topic(topic));
    allowed.map_err(|error| PartitionProduceError::new(error, error_message(error).to_string()))
}

fn find_topic(
    kafka: &KafkaServer,
    context: &RequestContext,
    name: &str,
) -> Result<Arc<Topic>, PartitionProduceError> {
    authorize_write(kafka, context, name)?;
    kafka.engine.topics().named(name).ok_or_else(|| match hlc::split_moment_topic(name) {
        Some(_) => read_only_error(),
        None => PartitionProduceError::new(
            ResponseError::UnknownTopicOrPartition,
            "there is no such topic",
        ),
    })
}

fn read_only_error() -> PartitionProduceError {
    PartitionProduceError::new(
        ResponseError::InvalidTopicException,
        "this topic is a moment of the past and cannot be written; produce to the topic itself",
    )
}

/// A batch of a request, and the fields of the request that matter to it.
#[derive(Clone, Copy)]
struct PartitionBatchRequest<'a> {
    data: &'a PartitionProduceData,
    is_transactional: bool,
    frame_bytes: usize,
}

/// Validates the batch of a partition, or the batches of an importer.
async fn prepare_partition(
    kafka: &KafkaServer,
    context: &RequestContext,
    topic: &Topic,
    request: PartitionBatchRequest<'_>,
) -> Result<Vec<ValidatedBatch>, PartitionProduceError> {
    match import::expected_base(request.data)? {
        None => Ok(vec![prepare_batch(kafka, topic, request).await?]),
        Some(base) => {
            import::authorize(kafka, context, &topic.name)?;
            // Many batches may be in it, each as long as one may be.
            let _turn = kafka.admission.decompressions.acquire().await;
            let limit = kafka.format.decompression_limit();
            block_in_place(|| import::validate_batches(kafka, topic, request, base, limit))
        }
    }
}

/// Validates a batch: in place if it is small. Large ones are decompressed on blocking threads, a
/// few at a time.
async fn prepare_batch(
    kafka: &KafkaServer,
    topic: &Topic,
    request: PartitionBatchRequest<'_>,
) -> Result<ValidatedBatch, PartitionProduceError> {
    let format_limit = kafka.format.decompression_limit();
    let inline_limit =
        if INLINE_DECOMPRESSION.decompressed_bytes_max < format_limit.decompressed_bytes_max {
            INLINE_DECOMPRESSION
        } else {
            format_limit
        };
    match validate_batch(kafka, topic, request, inline_limit) {
        Err(refused) if refused.is_too_large && inline_limit != format_limit => {
            let _turn = kafka.admission.decompressions.acquire().await;
            block_in_place(|| validate_batch(kafka, topic, request, format_limit))
        }
        result => result,
    }
}

/// Checks a partition's batch, and prepares it for the engine.
fn validate_batch(
    kafka: &KafkaServer,
    topic: &Topic,
    request: PartitionBatchRequest<'_>,
    limit: DecompressionLimit,
) -> Result<ValidatedBatch, PartitionProduceError> {
    let PartitionBatchRequest { data, is_transactional, frame_bytes } = request;
    topic
        .partition(data.index)
        .map_err(|error| PartitionProduceError::new(engine_error(&error), error.to_string()))?;
    let records = data.records.clone().unwrap_or_default();
    let header = validate_frame(kafka, topic, &records)?;
    validate_attributes(&header, is_transactional)?;
    let rule = topic.user_time();
    let (times, stamps) = match rule {
        None => {
            let stamps = record_time_range(&records, limit)?;
            (stamps, stamps)
        }
        Some(rule) => {
            let times = user_time::extract_user_times(kafka, topic, rule, &records, limit)?;
            (times.user_times, times.timestamps)
        }
    };
    check_times(kafka, topic, stamps.0, stamps.1)?;
    if topic.config.is_compacted(&kafka.engine.topic_defaults()) {
        check_keys(topic, data.index, &records, limit)?;
    }
    let metrics = kafka.metrics();
    add(&metrics.records_produced, header.record_count as u64);
    add(&metrics.bytes_produced, records.len() as u64);
    let strict_records = rule.filter(|rule| rule.is_strict()).map(|_| records.clone());
    let batch = RecordBatch {
        count: header.record_count as u32,
        times,
        producer: producer_sequence(&header),
        ..record_batch(kafka, &records, frame_bytes)
    };
    Ok(ValidatedBatch { partition: data.index as u32, batch, strict_records })
}

/// A batch with these records, of no producer and for any offset.
fn record_batch(kafka: &KafkaServer, records: &Bytes, frame_bytes: usize) -> RecordBatch {
    RecordBatch {
        payload: Payload {
            header: PayloadHeader::new(&records[..HEADER_BYTES]),
            rest: copy_if_small(&kafka.frame_buffers, records.slice(HEADER_BYTES..), frame_bytes),
        },
        count: 0,
        times: NO_TIMES,
        producer: None,
        expected_base: None,
        holder: None,
    }
}

/// Checks that there is exactly one batch, within the topic's size limit, with the right checksum.
fn validate_frame(
    kafka: &KafkaServer,
    topic: &Topic,
    records: &Bytes,
) -> Result<BatchHeader, PartitionProduceError> {
    if records.is_empty() {
        let message = "a produce request carries a record batch for each partition";
        return Err(PartitionProduceError::new(ResponseError::InvalidRecord, message));
    }
    let unreadable =
        |error: BatchError| PartitionProduceError::new(batch_error(&error), error.to_string());
    let header = BatchHeader::parse(records).map_err(unreadable)?;
    if header.total_bytes() < records.len() {
        let message = "a produce request carries exactly one record batch for each partition";
        return Err(PartitionProduceError::new(ResponseError::InvalidRecord, message));
    }
    let bytes_max = topic.config.number("max.message.bytes", &kafka.engine.topic_defaults());
    if records.len() as i64 > bytes_max {
        let message = format!(
            "the batch has {} bytes, and max.message.bytes of the topic is {bytes_max}",
            records.len()
        );
        return Err(PartitionProduceError::new(ResponseError::MessageTooLarge, message));
    }
    check(records).map_err(unreadable)
}

/// Refuses attributes that only a broker writes, and transactions.
fn validate_attributes(
    header: &BatchHeader,
    is_transactional: bool,
) -> Result<(), PartitionProduceError> {
    let (error, message) = if header.is_control() || header.is_log_append_time() {
        (ResponseError::InvalidRecord, "clients write neither control batches nor append times")
    } else if header.delete_horizon_ms().is_some() {
        (ResponseError::InvalidRecord, "clients do not set the delete horizon of a batch")
    } else if header.is_transactional() && !is_transactional {
        // As in Kafka, where a request without an id is authorized for none.
        let message = "a transactional batch needs the transactional id in its request";
        (ResponseError::TransactionalIdAuthorizationFailed, message)
    } else if is_transactional
        && (!header.is_transactional() || producer_sequence(header).is_none())
    {
        let message = "a batch in a request with a transactional id is transactional, and has a producer id and a sequence number";
        (ResponseError::InvalidRecord, message)
    } else {
        return Ok(());
    };
    Err(PartitionProduceError::new(error, message))
}

/// A copy of `records` if it is less than half of the memory that it lies in. As the newest part of
/// its log it outlives the request, and would keep all of that memory, uncounted. Small frames
/// share blocks that may be several times longer.
fn copy_if_small(buffers: &FrameBufferPool, records: Bytes, frame_bytes: usize) -> Bytes {
    if frame_bytes < LARGE_BYTES_MIN || records.len() < frame_bytes / 2 {
        return buffers.copy(&records);
    }
    records
}

/// The smallest and the largest time of the records. It reads each record, so it also checks that
/// there are as many as the header says.
fn record_time_range(
    records: &Bytes,
    limit: DecompressionLimit,
) -> Result<(UserTime, UserTime), PartitionProduceError> {
    let (earliest, latest) =
        time_range(records, limit).map_err(|error| PartitionProduceError::unreadable(&error))?;
    Ok((UserTime(earliest), UserTime(latest)))
}

fn check_times(
    kafka: &KafkaServer,
    topic: &Topic,
    earliest: UserTime,
    latest: UserTime,
) -> Result<(), PartitionProduceError> {
    if topic.config.is_log_append_time(&kafka.engine.topic_defaults()) {
        return Ok(());
    }
    let bounds = TimestampBounds::of(kafka, topic);
    let is_early = earliest.0 != NO_TIME && bounds.is_early(earliest);
    if is_early || bounds.is_late(latest) {
        let message = bounds.error_message("a record's timestamp", earliest, latest);
        return Err(PartitionProduceError::new(ResponseError::InvalidTimestamp, message));
    }
    Ok(())
}

/// The bounds around now in which a topic accepts times: those of records, and those that are found
/// in them.
struct TimestampBounds {
    now: i64,
    before: i64,
    after: i64,
}

impl TimestampBounds {
    fn of(kafka: &KafkaServer, topic: &Topic) -> TimestampBounds {
        let defaults = kafka.engine.topic_defaults();
        TimestampBounds {
            now: kafka.engine.wall_now().0 as i64,
            before: topic.config.number("message.timestamp.before.max.ms", &defaults),
            after: topic.config.number("message.timestamp.after.max.ms", &defaults),
        }
    }

    fn is_early(&self, time: UserTime) -> bool {
        self.now.saturating_sub(self.before) > time.0
    }

    fn is_late(&self, time: UserTime) -> bool {
        time.0 > self.now.saturating_add(self.after)
    }

    fn error_message(&self, problem: &str, earliest: UserTime, latest: UserTime) -> String {
        let TimestampBounds { now, before, after } = self;
        let (earliest, latest) = (earliest.0, latest.0);
        format!(
            "{problem} lies outside of what the topic takes: it is from {earliest} to {latest}, now is {now}, message.timestamp.before.max.ms is {before}, and message.timestamp.after.max.ms is {after}"
        )
    }
}

/// The faults of one batch's records: their number, and the first of them.
#[derive(Default)]
struct RecordErrors {
    count: usize,
    error: Option<ResponseError>,
    first: Vec<(usize, StrBytes)>,
}

impl RecordErrors {
    /// Adds a fault of record `index`. The code of the first is the batch's.
    fn add(&mut self, index: usize, error: ResponseError, message: impl FnOnce() -> String) {
        self.count += 1;
        self.error.get_or_insert(error);
        if self.first.len() < RECORD_ERRORS_MAX {
            self.first.push((index, StrBytes::from_string(message())));
        }
    }

    fn into_result(self) -> Result<(), PartitionProduceError> {
        let Some(error) = self.error else { return Ok(()) };
        let first = self.first.iter().take(3);
        let errors: Vec<_> = first
            .map(|(index, message)| format!("RecordError(batchIndex={index}, message='{message}')"))
            .collect();
        let message = format!(
            "One or more records have been rejected due to {} record errors in total, and only showing the first three errors at most: [{}]",
            self.count,
            errors.join(", ")
        );
        let record_error = |(index, message)| {
            BatchIndexAndErrorMessage::default()
                .with_batch_index(index as i32)
                .with_batch_index_error_message(Some(message))
        };
        let records = self.first.into_iter().map(record_error).collect();
        Err(PartitionProduceError { records, ..PartitionProduceError::new(error, message) })
    }
}

/// A record without a key could never be superseded.
fn check_keys(
    topic: &Topic,
    partition: i32,
    records: &Bytes,
    limit: DecompressionLimit,
) -> Result<(), PartitionProduceError> {
    let keyless = keyless_records(records, limit, RECORD_ERRORS_MAX)
        .map_err(|error| PartitionProduceError::unreadable(&error))?;
    let name = &topic.name;
    let message = StrBytes::from_string(format!(
        "Compacted topic cannot accept message without key in topic partition {name}-{partition}"
    ));
    RecordErrors {
        count: keyless.count,
        error: (keyless.count > 0).then_some(ResponseError::InvalidRecord),
        first: keyless.first.into_iter().map(|index| (index, message.clone())).collect(),
    }
    .into_result()
}
