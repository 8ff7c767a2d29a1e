//! Fetch (1): the same bytes that were produced, from memory or from the journal's files, without
//! copying them together.
//!
//! The response is encoded manually, because the codec would copy the records into it. In a fetch
//! session (KIP-227) only the partitions that are due are read, and a response has those alone of
//! which the client learns something.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use engine::security::{Operation, Resource};
use engine::{AppendWatch, ExcludedTransaction, LogWatcher, REQUEST_TARGET};
use kafka_connections::{QuotaPermit, units};
use kafka_fetch_sessions::{
    FetchOutcome, FetchSession, FetchSessionRequest, LockedFetchSession, ResolvedFetchTopic,
};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{FetchRequest, FetchResponse, ResponseHeader, TopicName};
use kafka_protocol::protocol::{Encodable, HeaderVersion, VersionRange};
use kafka_topics::{MomentRowQuota, ReadableTopic};

use tokio::time::Instant;
use tracing::Instrument;
use uuid::Uuid;

use super::partition_read::{
    BatchStamps, FetchPartitionResult, ReadOptions, held_bytes, read_and_check,
};
use crate::file_run::LoadError;
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::request::{BadRequest, RequestBody, RequestContext, ResponseResult, decode};
use crate::response::{KafkaResponse, UNBUDGETED_BYTES_MAX};
use crate::wire::put_varint;

pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 4, max: 18 };
/// From here on strings and arrays are compact, and tagged fields follow.
const FLEXIBLE: i16 = 12;
/// From here on topics are named by id.
const BY_ID: i16 = 13;
/// The most corrupt batches that one response works around before it fails.
const CORRUPT_BATCHES_MAX: usize = 64;
/// The isolation level of a client that reads committed records alone.
pub(super) const READ_COMMITTED: i8 = 1;
/// A response may always have this many bytes of batches, however little room there is.
pub(super) const GUARANTEED_BYTES_MAX: usize = 1 << 20;

/// A tagged field of ours. An empty one in a request asks when batches were accepted; the answer is
/// one in each partition.
const STAMPS_TAG: i32 = 10_000;

/// The epoch of a request that closes its session, or has none.
const CLOSING_EPOCH: i32 = -1;
/// The epoch of a request that opens a session.
const OPENING_EPOCH: i32 = 0;
/// The id of no session.
const NO_SESSION: i32 = 0;

pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let mut long_poll = LongPoll::default();
    let response = fetch(&kafka, &context, body, &mut long_poll).await;
    let latency = context.received_at.elapsed().saturating_sub(long_poll.waited);
    kafka.metrics().fetch_latency.record(latency);
    response
}

/// The wait of a fetch for more bytes, for as long as its client wishes.
#[derive(Debug, Default)]
struct LongPoll {
    waited: Duration,
}

impl LongPoll {
    /// Waits until `grown` is ready, or the deadline is over; returns true if the deadline is.
    async fn wait(&mut self, deadline: Instant, grown: impl Future<Output = ()>) -> bool {
        let begun = Instant::now();
        let span = tracing::trace_span!(target: REQUEST_TARGET, "long poll");
        let is_over = tokio::time::timeout_at(deadline, grown).instrument(span).await.is_err();
        self.waited += begun.elapsed();
        is_over
    }
}

async fn fetch(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    body: RequestBody,
    long_poll: &mut LongPoll,
) -> ResponseResult {
    let mut request = decode::<FetchRequest>(context, body)?;
    let (id, epoch) = (request.session_id, request.session_epoch);
    if epoch != CLOSING_EPOCH && epoch != OPENING_EPOCH {
        return continue_session(kafka, context, request, long_poll).await;
    }
    if id != NO_SESSION {
        kafka.fetch_sessions.close(id);
    }
    if epoch == OPENING_EPOCH && request.topics.iter().any(|topic| !topic.partitions.is_empty()) {
        let mut session = FetchSession::new(context.version >= BY_ID);
        session.update(request.topics.clone(), &[]);
        let [a, b, c, d, ..] = (kafka.options.new_id)();
        let random = u32::from_be_bytes([a, b, c, d]);
        let holder = kafka.holder(context);
        if let Some((id, session)) = kafka.fetch_sessions.open(session, &holder, random) {
            return fetch_in_session(kafka, context, &request, id, session, long_poll).await;
        }
    }
    let topics = std::mem::take(&mut request.topics);
    fetch_all(kafka, context, &request, topics, long_poll).await
}

/// Serves a request of a session that is open.
async fn continue_session(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    mut request: FetchRequest,
    long_poll: &mut LongPoll,
) -> ResponseResult {
    let session_request = FetchSessionRequest {
        id: request.session_id,
        epoch: request.session_epoch,
        is_by_id: context.version >= BY_ID,
        topics: std::mem::take(&mut request.topics),
        forgotten: &request.forgotten_topics_data,
    };
    match kafka.fetch_sessions.resume(session_request).await {
        Ok((id, session)) => {
            // A client whose response has no session opens another one.
            let id = id.unwrap_or(NO_SESSION);
            fetch_in_session(kafka, context, &request, id, session, long_poll).await
        }
        Err(error) => write(context, Some(error), NO_SESSION, Vec::new()).map(Some),
    }
}

/// The most bytes of a response, whatever its request wants.
pub(super) fn bytes_max(kafka: &KafkaServer, context: &RequestContext) -> usize {
    let quota = context.quota.as_ref().and_then(|quota| quota.fetch_bytes_max());
    kafka.options.fetch_bytes_max.min(quota.unwrap_or(usize::MAX))
}

/// The bytes that a request waits for, and the end of its wait; `None` if it does not wait.
fn wanted(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: &FetchRequest,
) -> (usize, Option<Instant>) {
    let bytes_limit =
        usize::try_from(request.max_bytes).unwrap_or(0).min(bytes_max(kafka, context));
    let min_bytes = usize::try_from(request.min_bytes).unwrap_or(0).min(bytes_limit);
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
    (min_bytes, (!wait.is_zero()).then(|| Instant::now() + wait))
}

/// True if the fetched batches are enough to respond at once.
fn is_enough(fetched: &[Vec<FetchPartitionResult>], min_bytes: usize) -> bool {
    let bytes: usize = fetched.iter().flatten().map(FetchPartitionResult::bytes).sum();
    bytes >= min_bytes || fetched.iter().flatten().any(|fetched| fetched.error.is_some())
}

async fn fetch_in_session(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: &FetchRequest,
    id: i32,
    mut session: LockedFetchSession,
    long_poll: &mut LongPoll,
) -> ResponseResult {
    let security = kafka.engine.security();
    let mut rules = security.version();
    find_topics_of_session(kafka, context, request, &mut session).await;
    let (min_bytes, deadline) = wanted(kafka, context, request);
    let mut is_over = deadline.is_none();
    loop {
        let due = session.take_due();
        let fetched = read(kafka, context, request, &due);
        if is_over || is_enough(&fetched, min_bytes) {
            let scope = Some((id, &*session));
            let (answer, outcomes) = respond(kafka, context, request, due, fetched, scope).await?;
            session.mark_sent(&outcomes);
            return Ok(Some(answer));
        }
        session.remove_quiet(&outcomes(&due, &fetched));
        // Not to be kept in memory during the wait: it is out of date by then.
        drop(fetched);
        if let Some(deadline) = deadline {
            is_over = long_poll.wait(deadline, session.grown()).await;
        }
        if rules != security.version() {
            rules = security.version();
            find_topics_of_session(kafka, context, request, &mut session).await;
        }
    }
}

/// Looks up the topics of a session that the client may read: its rights change.
async fn find_topics_of_session(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: &FetchRequest,
    session: &mut FetchSession,
) {
    let mut rows = MomentRowQuota::default();
    for number in session.topic_numbers() {
        let Some(topic) = session.topic(number).cloned() else { continue };
        let readable = find_topic(kafka, context, request, &topic, &mut rows).await;
        session.refresh(number, readable);
    }
}

/// Serves a request outside of sessions.
async fn fetch_all(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: &FetchRequest,
    topics: Vec<FetchTopic>,
    long_poll: &mut LongPoll,
) -> ResponseResult {
    let security = kafka.engine.security();
    let mut rules = security.version();
    let (mut resolved, mut rows) = (Vec::with_capacity(topics.len()), MomentRowQuota::default());
    for topic in unique(topics) {
        let readable = find_topic(kafka, context, request, &topic, &mut rows).await;
        resolved.push(ResolvedFetchTopic { number: 0, topic, readable });
    }
    let (min_bytes, deadline) = wanted(kafka, context, request);
    let watch = Arc::new(AppendWatch::default());
    let mut watching = false;
    loop {
        let fetched = read(kafka, context, request, &resolved);
        let nothing_asked = fetched.iter().all(Vec::is_empty);
        let is_ready = nothing_asked || is_enough(&fetched, min_bytes);
        let wait_until = if is_ready { None } else { deadline };
        let Some(deadline) = wait_until else {
            let response = respond(kafka, context, request, resolved, fetched, None).await?;
            return Ok(Some(response.0));
        };
        // Not to be kept in memory during the wait: it is out of date by then.
        drop(fetched);
        if !watching {
            // The partitions were read before the watch began. Reading again finds what came in
            // between.
            watch_all(&resolved, &watch);
            watching = true;
            continue;
        }
        let is_over = long_poll.wait(deadline, watch.changed()).await;
        if rules != security.version() {
            rules = security.version();
            find_topics(kafka, context, request, &mut resolved).await;
        }
        if is_over {
            let fetched = read(kafka, context, request, &resolved);
            let response = respond(kafka, context, request, resolved, fetched, None).await?;
            return Ok(Some(response.0));
        }
        watching = false;
    }
}

/// Looks up topics again after a wait: the client's rights change.
async fn find_topics(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: &FetchRequest,
    topics: &mut [ResolvedFetchTopic],
) {
    let mut rows = MomentRowQuota::default();
    for topic in topics {
        topic.readable = find_topic(kafka, context, request, &topic.topic, &mut rows).await;
    }
}

/// Names each partition once, as a session does: a few bytes can ask for the same again and again.
/// If a partition is named several times, the last one counts, as in Kafka.
fn unique(mut topics: Vec<FetchTopic>) -> Vec<FetchTopic> {
    if let [topic] = &topics[..]
        && topic.partitions.len() <= 1
    {
        return topics;
    }
    let mut fetched: HashMap<(TopicName, Uuid), HashSet<i32>> = HashMap::new();
    for topic in topics.iter_mut().rev() {
        let indexes = fetched.entry((topic.topic.clone(), topic.topic_id)).or_default();
        topic.partitions.reverse();
        topic.partitions.retain(|partition| indexes.insert(partition.partition));
        topic.partitions.reverse();
    }
    topics
}

/// Looks up a topic that the client may read.
async fn find_topic(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: &FetchRequest,
    topic: &FetchTopic,
    rows: &mut MomentRowQuota,
) -> Result<ReadableTopic, ResponseError> {
    if is_from_broker(request)
        && !kafka.is_authorized(context, Operation::ClusterAction, Resource::CLUSTER)
    {
        return Err(ResponseError::TopicAuthorizationFailed);
    }
    if context.version < BY_ID {
        return kafka.readable_for(context, Operation::Read, &topic.topic, rows).await;
    }
    // An id tells nothing, so one that is not known is no secret.
    let topic = kafka.topics.by_id(topic.topic_id.as_bytes());
    let topic = topic.ok_or(ResponseError::UnknownTopicId)?;
    kafka.authorize(context, Operation::Read, Resource::topic(&topic.topic().name))?;
    Ok(topic)
}

/// True if the request says that it comes from a follower. There are none, so such a client needs
/// the right of a broker and that of a consumer.
fn is_from_broker(request: &FetchRequest) -> bool {
    request.replica_id.0 >= 0 || request.replica_state.replica_id.0 >= 0
}

fn watch_all(topics: &[ResolvedFetchTopic], watch: &Arc<AppendWatch>) {
    let watcher: Arc<dyn LogWatcher> = Arc::clone(watch) as Arc<dyn LogWatcher>;
    for resolved in topics {
        // The past does not grow.
        let Ok(ReadableTopic::Present(topic)) = &resolved.readable else { continue };
        for partition in &resolved.topic.partitions {
            if let Ok(partition) = topic.partition(partition.partition) {
                partition.log.watch(&watcher);
            }
        }
    }
}

/// Reads from each partition in turn, within the limits of the request.
fn read(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: &FetchRequest,
    topics: &[ResolvedFetchTopic],
) -> Vec<Vec<FetchPartitionResult>> {
    let share = context.connection.response_quota.share_bytes().max(GUARANTEED_BYTES_MAX);
    let bytes_limit = share.min(bytes_max(kafka, context));
    let limit = usize::try_from(request.max_bytes).unwrap_or(0).min(bytes_limit);
    let wants_stamps = request.unknown_tagged_fields.contains_key(&STAMPS_TAG);
    let options = ReadOptions {
        is_committed: request.isolation_level == READ_COMMITTED,
        frontier: wants_stamps.then(|| kafka.engine.core().frontier()),
    };
    let mut bytes_taken = 0;
    topics
        .iter()
        .map(|topic| {
            let read_next = |partition: &FetchPartition| {
                let fetched = match &topic.readable {
                    Ok(readable) => {
                        read_and_check(kafka, readable, partition, options, limit, bytes_taken)
                    }
                    Err(error) => FetchPartitionResult::with_error(partition.partition, *error),
                };
                bytes_taken += fetched.bytes();
                fetched
            };
            topic.topic.partitions.iter().map(read_next).collect()
        })
        .collect()
}

/// Encodes the response, and loads its first file run. If that run is corrupt, reads again without
/// the corrupt batch. Returns with it what was found in each partition of a session.
async fn respond(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: &FetchRequest,
    mut topics: Vec<ResolvedFetchTopic>,
    mut fetched: Vec<Vec<FetchPartitionResult>>,
    session: Option<(i32, &FetchSession)>,
) -> Result<(KafkaResponse, Vec<FetchOutcome>), BadRequest> {
    let encode = |topics: &[ResolvedFetchTopic], fetched: Vec<Vec<FetchPartitionResult>>| {
        let outcomes = session.map_or_else(Vec::new, |_| outcomes(topics, &fetched));
        let id = session.map_or(NO_SESSION, |(id, _)| id);
        let topics = match session {
            Some((_, session)) => zip_news(topics, fetched, &outcomes, session),
            None => topics.iter().map(|topic| &topic.topic).zip(fetched).collect(),
        };
        write(context, None, id, topics).map(|answer| (answer, outcomes))
    };
    let (mut permit, mut is_counted) = (None, false);
    for _ in 0..CORRUPT_BATCHES_MAX {
        (fetched, permit) =
            acquire_permit(kafka, context, request, &mut topics, fetched, permit).await?;
        let bytes: usize = fetched.iter().flatten().map(FetchPartitionResult::bytes).sum();
        let (mut answer, outcomes) = encode(&topics, fetched)?;
        if !std::mem::replace(&mut is_counted, true)
            && let Some(quota) = &context.quota
            && !quota.record_fetch(answer.len())
        {
            return respond_throttled(kafka, context, request, session);
        }
        match answer.load_first_file(&kafka.loader).await {
            Ok(()) => {
                answer.set_permit(permit);
                add(&kafka.metrics().bytes_fetched, bytes as u64);
                return Ok((answer, outcomes));
            }
            Err(LoadError::Corrupt(corruption)) => kafka.record_corruption(&corruption),
            Err(LoadError::Removed) => {}
            Err(LoadError::Storage(error)) => {
                tracing::warn!(%error, "records cannot be read now; consumers get a retriable error");
                let mut fetched = read(kafka, context, request, &topics);
                fetched.iter_mut().flatten().for_each(FetchPartitionResult::remove_file_pieces);
                let (mut answer, outcomes) = encode(&topics, fetched)?;
                answer.set_permit(permit);
                return Ok((answer, outcomes));
            }
        }
        fetched = read(kafka, context, request, &topics);
    }
    // Sending it finds the error again, and ends the connection.
    fetched = read(kafka, context, request, &topics);
    (fetched, permit) =
        acquire_permit(kafka, context, request, &mut topics, fetched, permit).await?;
    let (mut answer, outcomes) = encode(&topics, fetched)?;
    answer.set_permit(permit);
    Ok((answer, outcomes))
}

/// The response to a throttled client, without the batches that were found. A session that it would
/// learn of is closed.
fn respond_throttled(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: &FetchRequest,
    session: Option<(i32, &FetchSession)>,
) -> Result<(KafkaResponse, Vec<FetchOutcome>), BadRequest> {
    let id = match session {
        Some((id, _)) if request.session_epoch == OPENING_EPOCH => {
            kafka.fetch_sessions.close(id);
            NO_SESSION
        }
        Some((id, _)) => id,
        None => NO_SESSION,
    };
    Ok((write(context, None, id, Vec::new())?, Vec::new()))
}

/// The outcome of each partition, in the order of `topics`.
fn outcomes(
    topics: &[ResolvedFetchTopic],
    fetched: &[Vec<FetchPartitionResult>],
) -> Vec<FetchOutcome> {
    let topic_outcomes =
        |(requested, fetched): (&ResolvedFetchTopic, &Vec<FetchPartitionResult>)| {
            let topic = requested.number;
            let of_partition = |(partition, fetched): (&FetchPartition, &FetchPartitionResult)| {
                let has_records = fetched.bytes() > 0;
                FetchOutcome {
                    topic,
                    partition: partition.partition,
                    is_at_end: match fetched.excluded {
                        Some(_) => partition.fetch_offset == fetched.last_stable,
                        None => partition.fetch_offset == fetched.high_watermark,
                    },
                    high_watermark: fetched.high_watermark,
                    log_start: fetched.log_start,
                    has_records,
                    is_error: fetched.error.is_some(),
                }
            };
            requested.topic.partitions.iter().zip(fetched).map(of_partition).collect::<Vec<_>>()
        };
    topics.iter().zip(fetched).flat_map(topic_outcomes).collect()
}

/// The results of which a session's client learns something.
fn zip_news<'a>(
    resolved: &'a [ResolvedFetchTopic],
    fetched: Vec<Vec<FetchPartitionResult>>,
    outcomes: &[FetchOutcome],
    session: &FetchSession,
) -> Vec<(&'a FetchTopic, Vec<FetchPartitionResult>)> {
    let mut outcomes = outcomes.iter();
    let mut topics = Vec::new();
    for (topic, fetched) in resolved.iter().zip(fetched) {
        let is_news = |_: &FetchPartitionResult| {
            outcomes.next().is_some_and(|outcome| session.is_news(outcome))
        };
        let news: Vec<FetchPartitionResult> = fetched.into_iter().filter(is_news).collect();
        if !news.is_empty() {
            topics.push((&topic.topic, news));
        }
    }
    topics
}

/// Takes room for what was read. If it must wait for room, it releases what was read and reads
/// again, because batches keep their memory even after the tail has released them.
async fn acquire_permit(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: &FetchRequest,
    topics: &mut [ResolvedFetchTopic],
    mut fetched: Vec<Vec<FetchPartitionResult>>,
    mut permit: Option<QuotaPermit>,
) -> Result<(Vec<Vec<FetchPartitionResult>>, Option<QuotaPermit>), BadRequest> {
    loop {
        let bytes = held_bytes(fetched.iter().flatten());
        if bytes <= UNBUDGETED_BYTES_MAX {
            return Ok((fetched, None));
        }
        let units = units(bytes).min(context.connection.response_quota.units_max());
        if let Some(mut permit) = permit.take_if(|permit| permit.units() >= units) {
            permit.shrink_to(units);
            return Ok((fetched, Some(permit)));
        }
        drop(permit.take());
        if let Some(permit) = context.connection.response_quota.try_take(units) {
            return Ok((fetched, Some(permit)));
        }
        drop(fetched);
        let granted = context.connection.response_quota.take(units).await;
        permit = Some(granted.map_err(|error| BadRequest {
            api: context.api_key,
            version: context.version,
            reason: error.to_string(),
        })?);
        find_topics(kafka, context, request, topics).await;
        fetched = read(kafka, context, request, topics);
    }
}

fn write(
    context: &RequestContext,
    error: Option<ResponseError>,
    session_id: i32,
    topics: Vec<(&FetchTopic, Vec<FetchPartitionResult>)>,
) -> Result<KafkaResponse, BadRequest> {
    let version = context.version;
    let mut answer = KafkaResponse::new();
    let mut header = Ok(());
    answer.write(|out| {
        header = ResponseHeader::default()
            .with_correlation_id(context.correlation_id)
            .encode(out, FetchResponse::header_version(version));
        out.put_i32(0); // throttle time
        if version >= 7 {
            out.put_i16(error.map_or(0, |error| error.code()));
            out.put_i32(session_id);
        }
        put_count(out, version, topics.len());
    });
    header.map_err(|error| BadRequest {
        api: context.api_key,
        version,
        reason: format!("the response cannot be encoded: {error:#}"),
    })?;
    for (topic, partitions) in topics {
        answer.write(|out| {
            if version >= BY_ID {
                out.put_slice(topic.topic_id.as_bytes());
            } else {
                put_string(out, version, &topic.topic);
            }
            put_count(out, version, partitions.len());
        });
        for partition in partitions {
            write_partition(&mut answer, version, partition);
        }
        answer.write(|out| put_tags(out, version));
    }
    answer.write(|out| put_tags(out, version));
    Ok(answer)
}

fn write_partition(answer: &mut KafkaResponse, version: i16, fetched: FetchPartitionResult) {
    let bytes = fetched.bytes();
    answer.write(|out| {
        out.put_i32(fetched.index);
        out.put_i16(fetched.error.map_or(0, |error| error.code()));
        out.put_i64(fetched.high_watermark);
        out.put_i64(fetched.last_stable);
        if version >= 5 {
            out.put_i64(fetched.log_start);
        }
        match &fetched.excluded {
            None => put_null(out, version),
            Some(excluded) => put_excluded(out, version, excluded),
        }
        if version >= 11 {
            out.put_i32(-1); // preferred read replica
        }
        if version >= FLEXIBLE {
            put_varint(out, bytes as u32 + 1);
        } else {
            out.put_i32(bytes as i32);
        }
    });
    for piece in fetched.pieces {
        answer.push(piece);
    }
    answer.write(|out| {
        out.put_slice(&fetched.trimmed);
        match fetched.stamps {
            Some(stamps) if version >= FLEXIBLE => put_stamps(out, &stamps),
            _ => put_tags(out, version),
        }
    });
}

/// The tagged fields of a partition: how far it is known, and the stamp of each batch.
fn put_stamps(out: &mut BytesMut, stamps: &BatchStamps) {
    out.put_u8(1); // one tagged field
    put_varint(out, STAMPS_TAG.cast_unsigned());
    put_varint(out, (size_of::<u64>() * (1 + stamps.batches.len())) as u32);
    out.put_u64(stamps.closed.bits());
    stamps.batches.iter().for_each(|stamp| out.put_u64(stamp.bits()));
}

/// The aborted transactions of a partition, in Kafka's words.
fn put_excluded(out: &mut BytesMut, version: i16, excluded: &[ExcludedTransaction]) {
    put_count(out, version, excluded.len());
    for ExcludedTransaction { first, producer } in excluded {
        out.put_i64(*producer);
        out.put_i64(first.0 as i64);
        put_tags(out, version);
    }
}

fn put_count(out: &mut BytesMut, version: i16, count: usize) {
    if version >= FLEXIBLE {
        put_varint(out, count as u32 + 1);
    } else {
        out.put_i32(count as i32);
    }
}

fn put_null(out: &mut BytesMut, version: i16) {
    if version >= FLEXIBLE {
        out.put_u8(0);
    } else {
        out.put_i32(-1);
    }
}

fn put_string(out: &mut BytesMut, version: i16, text: &str) {
    if version >= FLEXIBLE {
        put_varint(out, text.len() as u32 + 1);
    } else {
        out.put_i16(text.len() as i16);
    }
    out.put_slice(text.as_bytes());
}

fn put_tags(out: &mut BytesMut, version: i16) {
    if version >= FLEXIBLE {
        out.put_u8(0);
    }
}

#[cfg(test)]
mod tests {
    use engine::Offset;
    use hlc::Hlc;
    use kafka_protocol::messages::TopicName;
    use kafka_protocol::protocol::{Decodable, StrBytes};
    use uuid::Uuid;

    use bytes::Bytes;

    use super::*;

    /// The codec decodes the manually encoded response in every version.
    #[test]
    fn every_version_of_the_answer_reads_as_what_it_says() {
        for version in SERVED_VERSIONS.min..=SERVED_VERSIONS.max {
            let topic = FetchTopic::default()
                .with_topic(TopicName(StrBytes::from_static_str("t")))
                .with_topic_id(Uuid::from_u128(7));
            let readable = FetchPartitionResult {
                index: 3,
                error: None,
                high_watermark: 40,
                last_stable: 39,
                log_start: 5,
                excluded: Some(vec![ExcludedTransaction { first: Offset(7), producer: 8 }]),
                pieces: Vec::new(),
                trimmed: Bytes::from(vec![b'x'; 300]),
                stamps: Some(BatchStamps {
                    closed: Hlc::from_bits(6),
                    batches: vec![Hlc::from_bits(4), Hlc::from_bits(5)],
                }),
            };
            let failed = FetchPartitionResult::with_error(4, ResponseError::OffsetOutOfRange);
            let context = RequestContext {
                api_key: 1,
                version,
                correlation_id: 9,
                client_id: String::new(),
                peer: "127.0.0.1:1".parse().unwrap(),
                local: "127.0.0.1:2".parse().unwrap(),
                connection: crate::request::ConnectionState::for_test(),
                received_at: Instant::now(),
                quota: None,
            };
            let answer = write(&context, None, 5, vec![(&topic, vec![readable, failed])]).unwrap();
            let length = answer.len();
            let mut bytes = BytesMut::new();
            for chunk in answer.into_frame().into_iter().skip(1) {
                let (crate::response::ResponseChunk::Encoded(chunk)
                | crate::response::ResponseChunk::Payload(chunk)) = chunk
                else {
                    panic!("no files here")
                };
                bytes.put_slice(&chunk);
            }
            assert_eq!(bytes.len(), length);
            let mut bytes = bytes.freeze();
            let header = FetchResponse::header_version(version);
            assert_eq!(ResponseHeader::decode(&mut bytes, header).unwrap().correlation_id, 9);
            let read = FetchResponse::decode(&mut bytes, version).unwrap();
            assert!(bytes.is_empty(), "version {version} leaves {} bytes", bytes.len());
            assert_eq!(read.session_id, if version >= 7 { 5 } else { 0 });
            let partitions = &read.responses[0].partitions;
            assert_eq!(partitions[0].high_watermark, 40);
            assert_eq!(partitions[0].last_stable_offset, 39);
            let aborted = partitions[0].aborted_transactions.as_ref().unwrap();
            assert_eq!((aborted[0].first_offset, aborted[0].producer_id.0), (7, 8));
            assert_eq!(partitions[1].aborted_transactions, None);
            assert_eq!(partitions[0].records.as_ref().unwrap().len(), 300);
            assert_eq!(partitions[1].error_code, 1);
            let tag = partitions[0].unknown_tagged_fields.get(&STAMPS_TAG);
            let words = tag.map(|tag| tag.chunks(8).map(|word| word[7]).collect::<Vec<_>>());
            assert_eq!(words, (version >= FLEXIBLE).then(|| vec![6, 4, 5]));
        }
    }
}
