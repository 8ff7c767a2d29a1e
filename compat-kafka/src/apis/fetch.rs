//! Fetch (1): the same bytes that were produced, from memory or from the journal's files, without
//! copying them together.
//!
//! The answer is written by hand, because the codec would copy the records into it. Fetch sessions
//! (KIP-227) are refused, as the KIP allows: every answer names session 0.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use engine::{EngineError, Piece, PieceData, View, Watch, Watcher, blocking, is_data_loss};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{FetchRequest, FetchResponse, ResponseHeader};
use kafka_protocol::protocol::{Encodable, HeaderVersion, VersionRange};

use tokio::time::Instant;

use crate::answer::{Answer, FREE_BYTES_MAX};
use crate::core::{Kafka, Readable};
use crate::error_code::engine_error;
use crate::file_run::LoadError;
use crate::memory_budget::{QuotaPermit, units};
use crate::metrics::add;
use crate::routes::{BadRequest, Context, Served, decode};
use crate::trim::trim;

pub(crate) const SERVED: VersionRange = VersionRange { min: 4, max: 18 };
/// From here on strings and arrays are compact, and tagged fields follow.
const FLEXIBLE: i16 = 12;
/// From here on topics are named by id.
const BY_ID: i16 = 13;
/// How many damaged batches an answer gets around before it is given up.
const ROTTEN_MAX: usize = 64;
/// What an answer takes for each batch, beside the batch.
const PIECE_BYTES: usize = 256;
/// What an answer takes at most for batches in files: what goes out, and what is loaded meanwhile.
const LOAD_BYTES_MAX: usize = 2 << 20;
/// However little room there is for answers, one may have this many bytes of batches.
const LEAST_BYTES_MAX: usize = 1 << 20;

/// What a partition is answered.
struct Fetched {
    index: i32,
    error: Option<ResponseError>,
    high_watermark: i64,
    log_start: i64,
    pieces: Vec<Piece>,
    /// A batch cut short, behind the pieces.
    trimmed: Bytes,
}

impl Fetched {
    fn refused(index: i32, error: ResponseError) -> Fetched {
        Fetched {
            index,
            error: Some(error),
            high_watermark: -1,
            log_start: -1,
            pieces: Vec::new(),
            trimmed: Bytes::new(),
        }
    }

    /// Has nothing in it that is in files, which cannot be read now.
    fn refuse_files(&mut self) {
        let in_file = |piece: &Piece| matches!(piece.data, PieceData::File { .. });
        if self.pieces.iter().any(in_file) {
            *self = Fetched::refused(self.index, ResponseError::KafkaStorageError);
        }
    }

    fn bytes(&self) -> usize {
        let length = |piece: &Piece| piece.entry.length as usize;
        self.pieces.iter().map(length).sum::<usize>() + self.trimmed.len()
    }

    /// How many bytes of batches it holds in memory, and how many lie in files.
    fn held_bytes(&self) -> (usize, usize) {
        let mut held = (self.trimmed.len() + self.pieces.len() * PIECE_BYTES, 0);
        for piece in &self.pieces {
            match piece.data {
                PieceData::Memory(_) => held.0 += piece.entry.length as usize,
                PieceData::File { .. } => held.1 += piece.entry.length as usize,
            }
        }
        held
    }
}

/// A topic of the request, looked up once.
struct Asked {
    topic: FetchTopic,
    found: Result<Readable, ResponseError>,
}

pub(crate) async fn serve(kafka: Arc<Kafka>, context: Context, body: Bytes) -> Served {
    let mut request = decode::<FetchRequest>(&context, body)?;
    let session = session_error(&request);
    if session.is_some() {
        return write(&context, session, Vec::new()).map(Some);
    }
    let mut asked = Vec::with_capacity(request.topics.len());
    for topic in std::mem::take(&mut request.topics) {
        let found = find(&kafka, &context, &topic).await;
        asked.push(Asked { topic, found });
    }
    let most = usize::try_from(request.max_bytes).unwrap_or(0).min(kafka.options.fetch_bytes_max);
    let min_bytes = usize::try_from(request.min_bytes).unwrap_or(0).min(most);
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
    let deadline = Instant::now() + wait;
    let watch = Arc::new(Watch::default());
    let mut watching = false;
    loop {
        let fetched = read(&kafka, &context, &request, &asked);
        let bytes: usize = fetched.iter().flatten().map(Fetched::bytes).sum();
        let failed = fetched.iter().flatten().any(|fetched| fetched.error.is_some());
        let nothing_asked = fetched.iter().all(Vec::is_empty);
        if bytes >= min_bytes || failed || nothing_asked || wait.is_zero() {
            return finish(&kafka, &context, &request, asked, fetched).await;
        }
        // What is old by the time that there is more must not stay in memory for it.
        drop(fetched);
        if !watching {
            // Looked at before it was watched: what came in between is seen by looking again.
            watch_all(&asked, &watch);
            watching = true;
            continue;
        }
        if tokio::time::timeout_at(deadline, watch.changed()).await.is_err() {
            let fetched = read(&kafka, &context, &request, &asked);
            return finish(&kafka, &context, &request, asked, fetched).await;
        }
        watching = false;
    }
}

/// A client that goes on with a session that we never opened.
fn session_error(request: &FetchRequest) -> Option<ResponseError> {
    match (request.session_id, request.session_epoch) {
        (0, -1 | 0) => None,
        // Closes a session, and asks for everything.
        (_, -1) => None,
        (0, _) => Some(ResponseError::InvalidFetchSessionEpoch),
        _ => Some(ResponseError::FetchSessionIdNotFound),
    }
}

async fn find(
    kafka: &Arc<Kafka>,
    context: &Context,
    topic: &FetchTopic,
) -> Result<Readable, ResponseError> {
    if context.version >= BY_ID {
        let found = kafka.readable_by_id(topic.topic_id.as_bytes());
        return found.ok_or(ResponseError::UnknownTopicId);
    }
    match kafka.readable_in_part(&topic.topic).await {
        Ok(found) => found.ok_or(ResponseError::UnknownTopicOrPartition),
        Err(refused) => Err(refused.error()),
    }
}

fn watch_all(asked: &[Asked], watch: &Arc<Watch>) {
    let watcher: Arc<dyn Watcher> = Arc::clone(watch) as Arc<dyn Watcher>;
    for asked in asked {
        // The past does not grow.
        let Ok(Readable::Present(topic)) = &asked.found else { continue };
        for partition in &asked.topic.partitions {
            if let Ok(partition) = topic.partition(partition.partition) {
                partition.log.watch(&watcher);
            }
        }
    }
}

/// Reads from each partition in turn, within the bounds of the request.
fn read(
    kafka: &Kafka,
    context: &Context,
    request: &FetchRequest,
    asked: &[Asked],
) -> Vec<Vec<Fetched>> {
    let share = context.answers.share_bytes().max(LEAST_BYTES_MAX);
    let most = share.min(kafka.options.fetch_bytes_max);
    let limit = usize::try_from(request.max_bytes).unwrap_or(0).min(most);
    let mut taken = 0;
    asked
        .iter()
        .map(|asked| {
            let read = |partition: &FetchPartition| {
                let fetched = match &asked.found {
                    Ok(found) => read_kept(kafka, found, partition, limit, taken),
                    Err(error) => Fetched::refused(partition.partition, *error),
                };
                taken += fetched.bytes();
                fetched
            };
            asked.topic.partitions.iter().map(read).collect()
        })
        .collect()
}

/// Reads from a partition, unless what belongs to the moment was given up by then.
fn read_kept(
    kafka: &Kafka,
    found: &Readable,
    asked: &FetchPartition,
    limit: usize,
    taken: usize,
) -> Fetched {
    let fetched = read_partition(kafka, found, asked, limit, taken);
    match found.check_partition_kept(asked.partition) {
        Ok(()) => fetched,
        Err(error) => Fetched::refused(asked.partition, error),
    }
}

fn read_partition(
    kafka: &Kafka,
    found: &Readable,
    asked: &FetchPartition,
    limit: usize,
    taken: usize,
) -> Fetched {
    let Some(view) = found.view(asked.partition) else {
        return Fetched::refused(asked.partition, ResponseError::UnknownTopicOrPartition);
    };
    if asked.current_leader_epoch > 0 {
        return Fetched::refused(asked.partition, ResponseError::UnknownLeaderEpoch);
    }
    // The first batch of an answer goes out whatever its size (KIP-74).
    let first = taken == 0;
    let room =
        usize::try_from(asked.partition_max_bytes).unwrap_or(0).min(limit.saturating_sub(taken));
    let (log_start, high_watermark) = (view.start().0 as i64, view.end().0 as i64);
    let mut fetched = Fetched {
        index: asked.partition,
        error: None,
        high_watermark,
        log_start,
        pieces: Vec::new(),
        trimmed: Bytes::new(),
    };
    if room == 0 && !first {
        return fetched;
    }
    match view.read(asked.fetch_offset, room) {
        Ok(mut pieces) => {
            match kafka.rot.first_in(&pieces) {
                Some(0) => {
                    add(&kafka.metrics().rotten_reads, 1);
                    return Fetched::refused(asked.partition, ResponseError::CorruptMessage);
                }
                Some(good) => pieces.truncate(good),
                None => {}
            }
            if !first && pieces.first().is_some_and(|piece| piece.entry.length as usize > room) {
                pieces.clear();
            }
            match cut_last(kafka, &view, &mut pieces) {
                Ok(trimmed) => fetched.trimmed = trimmed,
                Err(error) => return Fetched::refused(asked.partition, error),
            }
            fetched.pieces = pieces;
        }
        Err(EngineError::OffsetOutOfRange { start, end, .. }) => {
            fetched.error = Some(ResponseError::OffsetOutOfRange);
            fetched.high_watermark = end.0 as i64;
            fetched.log_start = start.0 as i64;
        }
        Err(error) => return Fetched::refused(asked.partition, engine_error(&error)),
    }
    fetched
}

/// Takes the last piece away if the view ends inside of it, and returns what of it may be seen.
fn cut_last(kafka: &Kafka, view: &View, pieces: &mut Vec<Piece>) -> Result<Bytes, ResponseError> {
    let Some(end) = view.end else { return Ok(Bytes::new()) };
    if pieces.last().is_none_or(|piece| piece.entry.end() <= end) {
        return Ok(Bytes::new());
    }
    let Some(piece) = pieces.pop() else { return Ok(Bytes::new()) };
    let batch = match blocking::read(&piece) {
        Ok(batch) => batch,
        Err(error) if is_data_loss(&error) => {
            tracing::error!(%error, "consumers are given CORRUPT_MESSAGE for a damaged batch");
            add(&kafka.metrics().rotten_reads, 1);
            // What stands before it can still be had.
            return if pieces.is_empty() {
                Err(ResponseError::CorruptMessage)
            } else {
                Ok(Bytes::new())
            };
        }
        Err(error) => return Err(engine_error(&EngineError::Disk(error.to_string().into()))),
    };
    // It is unpacked for that.
    blocking::on_disk(|| trim(&batch, end, kafka.format.limit()))
        .map_err(|error| engine_error(&EngineError::Corrupt(error.to_string())))
}

/// Writes the answer, with what of it is in the first file at hand; without what turns out to be
/// rotten there.
async fn finish(
    kafka: &Kafka,
    context: &Context,
    request: &FetchRequest,
    asked: Vec<Asked>,
    mut fetched: Vec<Vec<Fetched>>,
) -> Served {
    let mut room = None;
    for _ in 0..ROTTEN_MAX {
        (fetched, room) = find_room(kafka, context, request, &asked, (fetched, room)).await?;
        let bytes: usize = fetched.iter().flatten().map(Fetched::bytes).sum();
        let mut answer = write(context, None, zip(&asked, fetched))?;
        match answer.load_first(&kafka.loader).await {
            Ok(()) => {
                answer.keep_room(room);
                add(&kafka.metrics().bytes_fetched, bytes as u64);
                return Ok(Some(answer));
            }
            Err(LoadError::Rotten(rotten)) => kafka.found_rotten(&rotten),
            Err(LoadError::Io(error)) => {
                tracing::warn!(%error, "records cannot be read now; consumers are told to ask again");
                let mut fetched = read(kafka, context, request, &asked);
                fetched.iter_mut().flatten().for_each(Fetched::refuse_files);
                let mut answer = write(context, None, zip(&asked, fetched))?;
                answer.keep_room(room);
                return Ok(Some(answer));
            }
        }
        fetched = read(kafka, context, request, &asked);
    }
    // Whoever sends it finds what is wrong with it, and ends the connection.
    fetched = read(kafka, context, request, &asked);
    (fetched, room) = find_room(kafka, context, request, &asked, (fetched, room)).await?;
    let mut answer = write(context, None, zip(&asked, fetched))?;
    answer.keep_room(room);
    Ok(Some(answer))
}

/// What was read, or is read again, with room for what of it is in memory. Batches that are held keep their memory even when
/// the tail has let go of them; so nothing is held while room is waited for.
async fn find_room(
    kafka: &Kafka,
    context: &Context,
    request: &FetchRequest,
    asked: &[Asked],
    (mut fetched, mut room): (Vec<Vec<Fetched>>, Option<QuotaPermit>),
) -> Result<(Vec<Vec<Fetched>>, Option<QuotaPermit>), BadRequest> {
    loop {
        let held = fetched.iter().flatten().map(Fetched::held_bytes);
        let (memory, files) = held.fold((0, 0), |sum, held| (sum.0 + held.0, sum.1 + held.1));
        let bytes = memory + files.min(LOAD_BYTES_MAX);
        if bytes <= FREE_BYTES_MAX {
            return Ok((fetched, None));
        }
        let units = units(bytes).min(context.answers.units_max());
        if let Some(mut room) = room.take_if(|room| room.units() >= units) {
            room.shrink_to(units);
            return Ok((fetched, Some(room)));
        }
        drop(room.take());
        if let Some(taken) = context.answers.try_take(units) {
            return Ok((fetched, Some(taken)));
        }
        drop(fetched);
        let taken = context.answers.take(units).await;
        room = Some(taken.map_err(|error| BadRequest {
            api: context.api_key,
            version: context.version,
            reason: error.to_string(),
        })?);
        fetched = read(kafka, context, request, asked);
    }
}

fn zip(asked: &[Asked], fetched: Vec<Vec<Fetched>>) -> Vec<(&FetchTopic, Vec<Fetched>)> {
    asked.iter().map(|asked| &asked.topic).zip(fetched).collect()
}

fn write(
    context: &Context,
    error: Option<ResponseError>,
    topics: Vec<(&FetchTopic, Vec<Fetched>)>,
) -> Result<Answer, BadRequest> {
    let version = context.version;
    let mut answer = Answer::new();
    let mut header = Ok(());
    answer.write(|out| {
        header = ResponseHeader::default()
            .with_correlation_id(context.correlation_id)
            .encode(out, FetchResponse::header_version(version));
        out.put_i32(0); // throttle time
        if version >= 7 {
            out.put_i16(error.map_or(0, |error| error.code()));
            out.put_i32(0); // session id
        }
        put_count(out, version, topics.len());
    });
    header.map_err(|error| BadRequest {
        api: context.api_key,
        version,
        reason: format!("the answer cannot be encoded: {error:#}"),
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

fn write_partition(answer: &mut Answer, version: i16, fetched: Fetched) {
    let bytes = fetched.bytes();
    answer.write(|out| {
        out.put_i32(fetched.index);
        out.put_i16(fetched.error.map_or(0, |error| error.code()));
        out.put_i64(fetched.high_watermark);
        out.put_i64(fetched.high_watermark); // last stable offset
        if version >= 5 {
            out.put_i64(fetched.log_start);
        }
        put_null(out, version); // aborted transactions
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
        put_tags(out, version);
    });
}

fn put_varint(out: &mut BytesMut, mut value: u32) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
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
    use kafka_protocol::messages::TopicName;
    use kafka_protocol::protocol::{Decodable, StrBytes};
    use uuid::Uuid;

    use super::*;

    /// What is written by hand, the codec reads, in every version.
    #[test]
    fn every_version_of_the_answer_reads_as_what_it_says() {
        for version in SERVED.min..=SERVED.max {
            let topic = FetchTopic::default()
                .with_topic(TopicName(StrBytes::from_static_str("t")))
                .with_topic_id(Uuid::from_u128(7));
            let good = Fetched {
                index: 3,
                error: None,
                high_watermark: 40,
                log_start: 5,
                pieces: Vec::new(),
                trimmed: Bytes::from(vec![b'x'; 300]),
            };
            let bad = Fetched::refused(4, ResponseError::OffsetOutOfRange);
            let context = Context {
                api_key: 1,
                version,
                correlation_id: 9,
                client_id: String::new(),
                peer: "127.0.0.1:1".parse().unwrap(),
                local: "127.0.0.1:2".parse().unwrap(),
                gate: Arc::default(),
                answers: crate::memory_budget::ConnectionQuota::ample(),
            };
            let answer = write(&context, None, vec![(&topic, vec![good, bad])]).unwrap();
            let length = answer.len();
            let mut bytes = BytesMut::new();
            for chunk in answer.into_frame().into_iter().skip(1) {
                let crate::answer::Chunk::Bytes(chunk) = chunk else { panic!("no files here") };
                bytes.put_slice(&chunk);
            }
            assert_eq!(bytes.len(), length);
            let mut bytes = bytes.freeze();
            let header = FetchResponse::header_version(version);
            assert_eq!(ResponseHeader::decode(&mut bytes, header).unwrap().correlation_id, 9);
            let read = FetchResponse::decode(&mut bytes, version).unwrap();
            assert!(bytes.is_empty(), "version {version} leaves {} bytes", bytes.len());
            let partitions = &read.responses[0].partitions;
            assert_eq!(partitions[0].high_watermark, 40);
            assert_eq!(partitions[0].last_stable_offset, 40);
            assert_eq!(partitions[0].records.as_ref().unwrap().len(), 300);
            assert_eq!(partitions[1].error_code, 1);
        }
    }

    #[test]
    fn a_session_is_never_opened_and_one_that_was_not_is_refused() {
        let ask = |id, epoch| {
            session_error(&FetchRequest::default().with_session_id(id).with_session_epoch(epoch))
        };
        assert_eq!(ask(0, 0), None);
        assert_eq!(ask(0, -1), None);
        assert_eq!(ask(5, 3), Some(ResponseError::FetchSessionIdNotFound));
        assert_eq!(ask(0, 3), Some(ResponseError::InvalidFetchSessionEpoch));
    }
}
