//! ShareFetch (78): a member of a share group gets records that no other member has (KIP-932), and
//! says what became of those that it had.
//!
//! A fetch reads first, and acquires records only when there is room for the response: what is
//! acquired waits for nobody else. If the bytes cannot be loaded then, the records are taken back.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use engine::security::{Operation, Resource};
use engine::{AppendWatch, EntryPayload, ExcludedTransaction, LogWatcher, TopicId, blocking};
use kafka_connections::{QuotaPermit, units};
use kafka_errors::{error_message, storage_error};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_request::FetchPartition;
use kafka_protocol::messages::share_fetch_request::FetchPartition as SharedPartition;
use kafka_protocol::messages::{ResponseHeader, ShareFetchRequest, ShareFetchResponse};
use kafka_protocol::protocol::{Encodable, HeaderVersion, VersionRange};
use kafka_records::{BatchHeader, CommittedBatches};
use kafka_share_groups::{
    AcknowledgedBatch, AcquireRequest, AcquiredRange, CLOSING_EPOCH, OPENING_EPOCH,
    RecordBatchRange, SessionKey, SessionPartition, ShareGroupProgress, SharePartitions,
    ShareSessionGuard,
};
use kafka_topics::ReadableTopic;
use tokio::time::Instant;
use uuid::Uuid;

use super::fetch::{GUARANTEED_BYTES_MAX, bytes_max};
use super::partition_read::{FetchPartitionResult, ReadOptions, held_bytes, read_and_check};
use super::share_acknowledge::{
    AcknowledgeResults, Acknowledgements, acknowledge, lock_ms, session_key,
};
use super::support::KafkaApiError;
use crate::file_run::LoadError;
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::request::{BadRequest, RequestBody, RequestContext, ResponseResult};
use crate::response::{KafkaResponse, UNBUDGETED_BYTES_MAX};
use crate::share_versions::{RENEWS, ShareFetchMode, decode_share_fetch};
use crate::wire::{put_count, put_no_tags, put_text, put_varint};

pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: RENEWS };

/// The contents of a response for one partition.
#[derive(Default)]
struct SharedResult {
    error: Option<ResponseError>,
    acknowledge_error: Option<ResponseError>,
    pieces: Vec<EntryPayload>,
    /// A truncated batch, after the pieces.
    trimmed: Bytes,
    acquired: Vec<AcquiredRange>,
}

impl SharedResult {
    fn bytes(&self) -> usize {
        let length = |piece: &EntryPayload| piece.entry.length as usize;
        self.pieces.iter().map(length).sum::<usize>() + self.trimmed.len()
    }
}

/// By partition, in the order of topics.
type SharedResults = BTreeMap<SessionPartition, SharedResult>;

pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let (request, mode) = decode_share_fetch(&context, body)?;
    let refuse = |error: KafkaApiError| {
        write(&context, &kafka, &request, Some(&error), SharedResults::new()).map(Some)
    };
    let (group, member) = (request.group_id.as_ref(), request.member_id.as_deref());
    let key = match session_key(&kafka, &context, group, member) {
        Ok(key) => key,
        Err(error) => return refuse(error.into()),
    };
    let acknowledged = acknowledgements(&request);
    if let Err(error) = begin(&kafka, &context, &request, mode, &key, &acknowledged).await {
        return refuse(error);
    }
    let is_closing = request.share_session_epoch == CLOSING_EPOCH;
    let partitions = kafka.coordinators.shares.sessions.partitions(&key);
    let topics = partitions.iter().chain(acknowledged.keys()).map(|(id, _)| *id);
    let refused = &kafka.refused_topics(&context, Operation::Read, topics);
    let (kafka, context) = (&kafka, &context);
    let fetch = ShareFetch { kafka, context, request: &request, mode, key: &key, refused };
    let acknowledging = acknowledge(kafka, &key, &acknowledged, mode.is_renewing, refused);
    let (results, results_found, permit) = if is_closing || mode.is_renewing {
        (acknowledging.await, SharedResults::new(), None)
    } else {
        let (results, fetched) = tokio::join!(acknowledging, fetch.run(partitions));
        let (fetched_results, permit) = fetched?;
        (results, fetched_results, permit)
    };
    if is_closing {
        kafka.coordinators.shares.end_session(&key, None);
    }
    fetch.respond(with_acknowledged(results_found, results), permit).await.map(Some)
}

/// The acknowledgements of a request, by partition.
fn acknowledgements(request: &ShareFetchRequest) -> Acknowledgements {
    let partitions = request.topics.iter().flat_map(|topic| {
        topic.partitions.iter().map(|partition| (topic.topic_id.into_bytes(), partition))
    });
    let acknowledged =
        partitions.filter(|(_, partition)| !partition.acknowledgement_batches.is_empty());
    let batches = |(id, partition): (TopicId, &SharedPartition)| {
        let batches = partition.acknowledgement_batches.iter().map(|batch| AcknowledgedBatch {
            first: batch.first_offset,
            last: batch.last_offset,
            kinds: batch.acknowledge_types.clone(),
        });
        ((id, partition.partition_index), batches.collect())
    };
    acknowledged.map(batches).collect()
}

/// Opens the session of a request, or goes on with it.
async fn begin(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: &ShareFetchRequest,
    mode: ShareFetchMode,
    key: &SessionKey,
    acknowledged: &Acknowledgements,
) -> Result<(), KafkaApiError> {
    let wants = [request.max_bytes, request.min_bytes, request.max_records, request.max_wait_ms];
    if mode.is_renewing && wants.iter().any(|limit| *limit != 0) {
        return Err(ResponseError::InvalidRequest.into());
    }
    let added = request.topics.iter().flat_map(|topic| {
        let partitions = topic.partitions.iter().map(|partition| partition.partition_index);
        partitions.map(|index| (topic.topic_id.into_bytes(), index))
    });
    let epoch = request.share_session_epoch;
    if epoch != OPENING_EPOCH {
        let forgotten = request.forgotten_topics_data.iter().flat_map(|topic| {
            topic.partitions.iter().map(|index| (topic.topic_id.into_bytes(), *index))
        });
        return Ok(kafka
            .coordinators
            .shares
            .sessions
            .continue_session(key, epoch, added, forgotten)?);
    }
    if !acknowledged.is_empty() {
        return Err(ResponseError::InvalidRequest.into());
    }
    match kafka.coordinators.shares.sessions.open(key.clone(), &kafka.holder(context), added) {
        Ok(id) => {
            let guard = ShareSessionGuard {
                shares: Arc::downgrade(&kafka.coordinators.shares),
                key: key.clone(),
                id,
            };
            // An earlier session on this connection ends, and this one with the connection.
            drop(context.connection.share_session.lock().replace(guard));
            Ok(())
        }
        Err(error) => {
            // The client asks again at once.
            tokio::time::sleep(wait_max(request)).await;
            let code = ResponseError::ShareSessionLimitReached;
            Err(KafkaApiError::new(code, error.to_string()))
        }
    }
}

/// The longest time that a request may wait.
fn wait_max(request: &ShareFetchRequest) -> Duration {
    Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0))
}

fn with_acknowledged(mut shared: SharedResults, results: AcknowledgeResults) -> SharedResults {
    for (key, result) in results {
        shared.entry(key).or_default().acknowledge_error = result.err();
    }
    shared
}

/// A fetch in a session.
struct ShareFetch<'a> {
    kafka: &'a Arc<KafkaServer>,
    context: &'a RequestContext,
    request: &'a ShareFetchRequest,
    mode: ShareFetchMode,
    key: &'a SessionKey,
    /// The topics of the session that the client may not read.
    refused: &'a BTreeSet<TopicId>,
}

/// A partition of a session that can be read.
struct SharedSource {
    key: SessionPartition,
    readable: ReadableTopic,
}

/// The batches that were read from a partition, and are not acquired yet.
struct SourceContents<'a> {
    source: &'a SharedSource,
    from: i64,
    fetched: FetchPartitionResult,
}

impl ShareFetch<'_> {
    /// Acquires records; waits for some, as long as the request allows.
    async fn run(
        &self,
        partitions: Vec<SessionPartition>,
    ) -> Result<(SharedResults, Option<QuotaPermit>), BadRequest> {
        let deadline = Instant::now() + wait_max(self.request);
        let wants_none = self.request.max_records <= 0 || self.request.max_bytes <= 0;
        let mut results = SharedResults::new();
        let progress = match self.kafka.coordinators.shares.progress(&self.key.0) {
            _ if wants_none || partitions.is_empty() => return Ok((results, None)),
            Ok(progress) => progress,
            Err(error) => {
                partitions
                    .iter()
                    .for_each(|key| results.entry(*key).or_default().error = Some(error));
                return Ok((results, None));
            }
        };
        let mut rules = self.kafka.engine.security().version();
        let mut sources = self.sources(&progress, partitions, &mut results);
        if let Err(error) = SharePartitions::wait_until_saved(&progress).await {
            // The group's start offset is not stored.
            sources
                .iter()
                .for_each(|source| results.entry(source.key).or_default().error = Some(error));
            return Ok((results, None));
        }
        let watch = Arc::new(AppendWatch::default());
        loop {
            let mut changed = pin!(progress.changed());
            changed.as_mut().enable();
            watch_all(&sources, &watch);
            if progress.is_over() {
                // The client asks again.
                return Ok((results, None));
            }
            let is_over = Instant::now() >= deadline;
            let (reads, permit) = self.read(&progress, &sources, &mut results).await?;
            let security = self.kafka.engine.security();
            if rules == security.version() {
                let bytes: usize = reads.iter().map(|read| read.fetched.bytes()).sum();
                if is_over || !results.is_empty() || bytes >= self.bytes_min() {
                    self.acquire(&progress, reads, &mut results);
                    if is_over || !results.is_empty() {
                        return Ok((results, permit));
                    }
                } else {
                    // Not to be kept in memory during the wait: it is out of date by then.
                    drop((reads, permit));
                }
                tokio::select! {
                    () = &mut changed => {}
                    () = watch.changed() => {}
                    () = tokio::time::sleep_until(deadline) => {}
                }
                continue;
            }
            // It may have waited long for records, or for room for them.
            drop((reads, permit));
            rules = security.version();
            let group = Resource::group(&self.key.0);
            if self.kafka.authorize(self.context, Operation::Read, group).is_err() {
                // The next request is refused.
                return Ok((SharedResults::new(), None));
            }
            sources.retain(|source| match self.authorize(&source.readable) {
                Ok(()) => true,
                Err(error) => {
                    results.entry(source.key).or_default().error = Some(error);
                    false
                }
            });
        }
    }

    fn authorize(&self, readable: &ReadableTopic) -> Result<(), ResponseError> {
        let topic = Resource::topic(&readable.topic().name);
        self.kafka.authorize(self.context, Operation::Read, topic)
    }

    fn bytes_min(&self) -> usize {
        let bytes_limit = bytes_max(self.kafka, self.context);
        usize::try_from(self.request.min_bytes).unwrap_or(0).clamp(1, bytes_limit.max(1))
    }

    /// The partitions that can be read. The others get their errors.
    fn sources(
        &self,
        progress: &Arc<ShareGroupProgress>,
        partitions: Vec<SessionPartition>,
        results: &mut SharedResults,
    ) -> Vec<SharedSource> {
        let mut sources = Vec::with_capacity(partitions.len());
        for key in partitions {
            match self.load(progress, key) {
                Ok(readable) => sources.push(SharedSource { key, readable }),
                Err(error) => results.entry(key).or_default().error = Some(error),
            }
        }
        sources
    }

    fn load(
        &self,
        progress: &Arc<ShareGroupProgress>,
        partition: SessionPartition,
    ) -> Result<ReadableTopic, ResponseError> {
        let (id, index) = partition;
        if self.refused.contains(&id) {
            return Err(ResponseError::TopicAuthorizationFailed);
        }
        let topic = self.kafka.topics.by_id(&id).zip(self.kafka.topics.name_of(&id));
        let Some((readable, name)) = topic else {
            self.kafka.coordinators.shares.forget_topic(progress, &id);
            return Err(ResponseError::UnknownTopicId);
        };
        // It may have got its name, a moment that is read again, since it was asked for.
        self.authorize(&readable)?;
        readable.view(index).ok_or(ResponseError::UnknownTopicOrPartition)?;
        self.kafka.coordinators.shares.load(progress, (id, index as u32), &name, &readable)?;
        Ok(readable)
    }

    /// Reads what may be acquired, with room for it in memory.
    async fn read<'s>(
        &self,
        progress: &Arc<ShareGroupProgress>,
        sources: &'s [SharedSource],
        results: &mut SharedResults,
    ) -> Result<(Vec<SourceContents<'s>>, Option<QuotaPermit>), BadRequest> {
        let quota = &self.context.connection.response_quota;
        let mut permit: Option<QuotaPermit> = None;
        loop {
            let reads = self.read_now(progress, sources, results);
            let bytes = held_bytes(reads.iter().map(|read| &read.fetched));
            if bytes <= UNBUDGETED_BYTES_MAX {
                return Ok((reads, None));
            }
            let units = units(bytes).min(quota.units_max());
            if let Some(mut permit) = permit.take_if(|permit| permit.units() >= units) {
                permit.shrink_to(units);
                return Ok((reads, Some(permit)));
            }
            drop(permit.take());
            if let Some(permit) = quota.try_take(units) {
                return Ok((reads, Some(permit)));
            }
            // Batches keep their memory even after the tail has released them.
            drop(reads);
            let granted = quota.take(units).await;
            permit = Some(granted.map_err(|error| BadRequest {
                api: self.context.api_key,
                version: self.context.version,
                reason: error.to_string(),
            })?);
        }
    }

    fn read_now<'s>(
        &self,
        progress: &Arc<ShareGroupProgress>,
        sources: &'s [SharedSource],
        results: &mut SharedResults,
    ) -> Vec<SourceContents<'s>> {
        let options = self.kafka.coordinators.shares.options_of(&self.key.0);
        let share = self.context.connection.response_quota.share_bytes().max(GUARANTEED_BYTES_MAX);
        let limit = usize::try_from(self.request.max_bytes).unwrap_or(0);
        let limit = limit.min(share).min(bytes_max(self.kafka, self.context));
        let (mut reads, mut bytes_taken) = (Vec::new(), 0);
        for source in sources {
            let (id, index) = source.key;
            let Some(from) = progress.next_offset((id, index as u32), &options) else { continue };
            let request = FetchPartition::default()
                .with_partition(index)
                .with_fetch_offset(from)
                .with_partition_max_bytes(i32::MAX);
            let options_of_read =
                ReadOptions { is_committed: options.is_committed, frontier: None };
            let fetched = read_and_check(
                self.kafka,
                &source.readable,
                &request,
                options_of_read,
                limit,
                bytes_taken,
            );
            match fetched.error {
                None => {}
                // The records were removed, or the offset was set to one that is not there yet.
                Some(ResponseError::OffsetOutOfRange) => {
                    if fetched.log_start > from {
                        self.skip_removed(progress, source, fetched.log_start);
                    }
                    continue;
                }
                Some(error) => {
                    results.entry(source.key).or_default().error = Some(error);
                    continue;
                }
            }
            bytes_taken += fetched.bytes();
            if fetched.bytes() > 0 {
                reads.push(SourceContents { source, from, fetched });
            }
        }
        reads
    }

    fn skip_removed(
        &self,
        progress: &Arc<ShareGroupProgress>,
        source: &SharedSource,
        log_start: i64,
    ) {
        let (id, index) = source.key;
        let moved = self.kafka.coordinators.shares.update(
            progress,
            (id, index as u32),
            |partition, _, _| ((), partition.move_start(log_start)),
        );
        if let Err(error) = moved {
            tracing::debug!(%error, group = self.key.0, index, "a share group forgot a partition meanwhile");
        }
    }

    /// Acquires the records of `reads`.
    fn acquire(
        &self,
        progress: &Arc<ShareGroupProgress>,
        reads: Vec<SourceContents<'_>>,
        results: &mut SharedResults,
    ) {
        let mut records = 0;
        let records_max = usize::try_from(self.request.max_records).unwrap_or(0);
        for read in reads.into_iter() {
            if records >= records_max {
                return;
            }
            match self.acquire_from(progress, &read, records_max - records) {
                Ok(acquired) if acquired.is_empty() => {}
                Ok(acquired) => {
                    records += acquired.iter().map(AcquiredRange::count).sum::<usize>();
                    let result = results.entry(read.source.key).or_default();
                    (result.pieces, result.trimmed) = cut_to(read.fetched, &acquired);
                    result.acquired = acquired;
                }
                Err(error) => results.entry(read.source.key).or_default().error = Some(error),
            }
        }
    }

    fn acquire_from(
        &self,
        progress: &Arc<ShareGroupProgress>,
        read: &SourceContents<'_>,
        records_max: usize,
    ) -> Result<Vec<AcquiredRange>, ResponseError> {
        let batches = batches(&read.fetched);
        let aborted = aborted(&read.fetched)?;
        let member: Arc<str> = self.key.1.as_str().into();
        let request = AcquireRequest {
            member: &member,
            records_max,
            is_exact: self.mode.is_exact,
            batch_size: usize::try_from(self.request.batch_size).unwrap_or(0),
        };
        let (id, index) = read.source.key;
        self.kafka.coordinators.shares.update(
            progress,
            (id, index as u32),
            |partition, now, options| {
                let mut acquired = partition.acquire(now, &request, read.from, &batches, options);
                partition.archive(&mut acquired, &aborted);
                (acquired, false)
            },
        )
    }

    /// Encodes the response, and loads its first bytes from files. If that fails, the records are
    /// taken back.
    async fn respond(
        &self,
        mut results: SharedResults,
        permit: Option<QuotaPermit>,
    ) -> Result<KafkaResponse, BadRequest> {
        let acquired: Vec<(SessionPartition, Vec<AcquiredRange>)> =
            results.iter().map(|(key, result)| (*key, result.acquired.clone())).collect();
        let bytes: usize = results.values().map(SharedResult::bytes).sum();
        let errors: Vec<_> = results
            .iter()
            .map(|(key, result)| (*key, result.error, result.acknowledge_error))
            .collect();
        let mut answer =
            write(self.context, self.kafka, self.request, None, std::mem::take(&mut results))?;
        let error = match answer.load_first_file(&self.kafka.loader).await {
            Ok(()) => {
                answer.set_permit(permit);
                // Acquired records are not withheld: nobody else could have them.
                if let Some(quota) = &self.context.quota {
                    quota.record_sent(answer.len());
                }
                add(&self.kafka.metrics().bytes_fetched, bytes as u64);
                return Ok(answer);
            }
            // The next fetch finds it, and reads what is before it.
            Err(LoadError::Corrupt(corruption)) => {
                self.kafka.record_corruption(&corruption);
                None
            }
            Err(LoadError::Removed) => None,
            Err(LoadError::Storage(error)) => {
                tracing::warn!(%error, "records cannot be read now; share consumers get a retriable error");
                Some(storage_error(&error))
            }
        };
        self.take_back(&acquired);
        for (key, partition_error, acknowledge_error) in errors {
            let result = results.entry(key).or_default();
            (result.error, result.acknowledge_error) =
                (partition_error.or(error), acknowledge_error);
        }
        write(self.context, self.kafka, self.request, None, results)
    }

    fn take_back(&self, acquired: &[(SessionPartition, Vec<AcquiredRange>)]) {
        let Ok(progress) = self.kafka.coordinators.shares.progress(&self.key.0) else { return };
        for ((id, index), ranges) in acquired.iter().filter(|(_, ranges)| !ranges.is_empty()) {
            let key = (*id, *index as u32);
            let returned =
                self.kafka.coordinators.shares.update(&progress, key, |partition, _, _| {
                    partition.take_back(&self.key.1, ranges);
                    ((), false)
                });
            if let Err(error) = returned {
                tracing::debug!(%error, group = self.key.0, "a share group forgot a partition meanwhile");
            }
        }
    }
}

fn watch_all(sources: &[SharedSource], watch: &Arc<AppendWatch>) {
    let watcher: Arc<dyn LogWatcher> = Arc::clone(watch) as Arc<dyn LogWatcher>;
    for source in sources {
        // The past does not grow.
        let ReadableTopic::Present(topic) = &source.readable else { continue };
        if let Ok(partition) = topic.partition(source.key.1) {
            partition.log.watch(&watcher);
        }
    }
}

/// The batches that were read.
fn batches(fetched: &FetchPartitionResult) -> Vec<RecordBatchRange> {
    let of_piece = |piece: &EntryPayload| RecordBatchRange {
        first: piece.entry.base.0 as i64,
        last: piece.entry.end().0 as i64 - 1,
    };
    let trimmed = BatchHeader::parse(&fetched.trimmed).ok();
    let trimmed = trimmed
        .map(|header| RecordBatchRange { first: header.base_offset, last: header.last_offset() });
    fetched.pieces.iter().map(of_piece).chain(trimmed).collect()
}

/// The batches of transactions that were not committed. A group that reads uncommitted records has
/// none.
fn aborted(fetched: &FetchPartitionResult) -> Result<Vec<RecordBatchRange>, ResponseError> {
    let excluded = fetched.excluded.as_deref().unwrap_or_default();
    if excluded.is_empty() {
        return Ok(Vec::new());
    }
    let excluded = excluded.iter();
    let mut committed = CommittedBatches::new(
        excluded.map(|ExcludedTransaction { first, producer }| (first.0 as i64, *producer)),
    );
    let mut aborted = Vec::new();
    let mut check = |batch: &Bytes| {
        let header = BatchHeader::parse(batch).map_err(|_| ResponseError::CorruptMessage)?;
        if !committed.admits(&header, batch) && !header.is_control() {
            let (first, last) = (header.base_offset, header.last_offset());
            aborted.push(RecordBatchRange { first, last });
        }
        Ok(())
    };
    for piece in &fetched.pieces {
        let batch = blocking::read(piece);
        check(&batch.map_err(|error| {
            if error.is_data_loss() { ResponseError::CorruptMessage } else { storage_error(&error) }
        })?)?;
    }
    if !fetched.trimmed.is_empty() {
        check(&fetched.trimmed)?;
    }
    Ok(aborted)
}

/// The batches that have any of the records that were acquired.
fn cut_to(fetched: FetchPartitionResult, acquired: &[AcquiredRange]) -> (Vec<EntryPayload>, Bytes) {
    let (Some(first), Some(last)) = (acquired.first(), acquired.last()) else {
        return (Vec::new(), Bytes::new());
    };
    let overlaps = |from: i64, to: i64| from <= last.last && first.first <= to;
    let mut pieces = fetched.pieces;
    pieces.retain(|piece| overlaps(piece.entry.base.0 as i64, piece.entry.end().0 as i64 - 1));
    let trimmed = BatchHeader::parse(&fetched.trimmed).ok();
    let is_in = trimmed.is_some_and(|header| overlaps(header.base_offset, header.last_offset()));
    (pieces, if is_in { fetched.trimmed } else { Bytes::new() })
}

/// Encodes a response.
fn write(
    context: &RequestContext,
    kafka: &KafkaServer,
    request: &ShareFetchRequest,
    error: Option<&KafkaApiError>,
    results: SharedResults,
) -> Result<KafkaResponse, BadRequest> {
    // The answer to a refused request does not say how the group is set up.
    let lock_ms = match &request.group_id {
        Some(group) if error.is_none() => lock_ms(kafka, group),
        _ => 0,
    };
    let mut by_topic = BTreeMap::<TopicId, Vec<(i32, SharedResult)>>::new();
    for ((id, index), result) in results {
        by_topic.entry(id).or_default().push((index, result));
    }
    let (mut answer, mut header) = (KafkaResponse::new(), Ok(()));
    answer.write(|out| {
        let id = ResponseHeader::default().with_correlation_id(context.correlation_id);
        header = id.encode(out, ShareFetchResponse::header_version(context.version));
        out.put_i32(0); // throttle time
        out.put_i16(error.map_or(0, |refused| refused.error.code()));
        put_text(out, error.map(ToString::to_string).as_deref());
        out.put_i32(lock_ms);
        put_count(out, by_topic.len());
    });
    header.map_err(|error| BadRequest {
        api: context.api_key,
        version: context.version,
        reason: format!("the response cannot be encoded: {error:#}"),
    })?;
    for (id, partitions) in by_topic {
        answer.write(|out| {
            out.put_slice(Uuid::from_bytes(id).as_bytes());
            put_count(out, partitions.len());
        });
        for (index, result) in partitions {
            write_partition(&mut answer, index, result);
        }
        answer.write(put_no_tags);
    }
    answer.write(|out| {
        put_count(out, 0); // nodes
        put_no_tags(out);
    });
    Ok(answer)
}

fn write_partition(answer: &mut KafkaResponse, index: i32, result: SharedResult) {
    let bytes = result.bytes();
    answer.write(|out| {
        out.put_i32(index);
        for error in [result.error, result.acknowledge_error] {
            out.put_i16(error.map_or(0, |error| error.code()));
            put_text(out, error.map(error_message).as_deref());
        }
        out.put_i32(0); // the current leader, and its epoch
        out.put_i32(0);
        put_no_tags(out);
        put_varint(out, bytes as u32 + 1);
    });
    result.pieces.into_iter().for_each(|piece| answer.push(piece));
    answer.write(|out| {
        out.put_slice(&result.trimmed);
        put_count(out, result.acquired.len());
        for AcquiredRange { first, last, deliveries } in result.acquired {
            out.put_i64(first);
            out.put_i64(last);
            out.put_i16(i16::try_from(deliveries).unwrap_or(i16::MAX));
            put_no_tags(out);
        }
        put_no_tags(out);
    });
}
