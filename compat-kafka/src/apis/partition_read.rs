//! Reads of a partition for a fetch, of whichever kind: batches as they were produced, from memory
//! or from the journal's files, without copying them together.

use bytes::Bytes;
use engine::{
    EngineError, EntryPayload, ExcludedTransaction, Offset, PartitionView, PayloadLocation,
    StorageError, blocking,
};
use hlc::Hlc;
use kafka_errors::{engine_error, storage_error};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::fetch_request::FetchPartition;
use kafka_topics::ReadableTopic;

use crate::cluster_view::check_leader_epoch;
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::trim::trim;

/// The memory that a response takes for each batch, in addition to the batch.
const PIECE_BYTES: usize = 256;
/// The bytes of a transaction that a client has to leave out.
const EXCLUDED_BYTES: usize = 16;
/// The most memory for batches in files: for what is being sent, and what is loaded meanwhile.
const LOAD_BYTES_MAX: usize = 2 << 20;

/// The result for one partition.
pub(super) struct FetchPartitionResult {
    pub(super) index: i32,
    pub(super) error: Option<ResponseError>,
    pub(super) high_watermark: i64,
    pub(super) last_stable: i64,
    pub(super) log_start: i64,
    /// The transactions whose records the client has to leave out; `None` if it reads uncommitted
    /// ones.
    pub(super) excluded: Option<Vec<ExcludedTransaction>>,
    pub(super) pieces: Vec<EntryPayload>,
    /// A truncated batch, after the pieces.
    pub(super) trimmed: Bytes,
    /// Only for a reader that asked for them.
    pub(super) stamps: Option<BatchStamps>,
}

/// The stamps at which batches were accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BatchStamps {
    /// Everything that the reader will see of the partition behind these batches has a later stamp.
    pub(super) closed: Hlc,
    /// The stamp of each batch.
    pub(super) batches: Vec<Hlc>,
}

/// The isolation of a read, and the frontier if the reader wants stamps.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOptions {
    /// True if it reads committed records alone.
    pub(super) is_committed: bool,
    /// The frontier from before the read, if the reader asked for stamps.
    pub(super) frontier: Option<Hlc>,
}

impl FetchPartitionResult {
    pub(super) fn with_error(index: i32, error: ResponseError) -> FetchPartitionResult {
        FetchPartitionResult {
            index,
            error: Some(error),
            high_watermark: -1,
            last_stable: -1,
            log_start: -1,
            excluded: None,
            pieces: Vec::new(),
            trimmed: Bytes::new(),
            stamps: None,
        }
    }

    /// Removes the pieces in files, which cannot be read now.
    pub(super) fn remove_file_pieces(&mut self) {
        let in_file = |piece: &EntryPayload| matches!(piece.location, PayloadLocation::File { .. });
        if self.pieces.iter().any(in_file) {
            *self = FetchPartitionResult::with_error(self.index, ResponseError::KafkaStorageError);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let length = |piece: &EntryPayload| piece.entry.length as usize;
        self.pieces.iter().map(length).sum::<usize>() + self.trimmed.len()
    }

    /// The bytes of batches in memory, and the bytes in files.
    fn memory_and_file_bytes(&self) -> (usize, usize) {
        let excluded = self.excluded.as_ref().map_or(0, Vec::len) * EXCLUDED_BYTES;
        let mut bytes = (self.trimmed.len() + self.pieces.len() * PIECE_BYTES + excluded, 0);
        for piece in &self.pieces {
            match piece.location {
                PayloadLocation::Memory(_) => bytes.0 += piece.entry.length as usize,
                PayloadLocation::File { .. } => bytes.1 += piece.entry.length as usize,
            }
        }
        bytes
    }
}

/// The memory that a response of these results takes.
pub(super) fn held_bytes<'a>(fetched: impl Iterator<Item = &'a FetchPartitionResult>) -> usize {
    let sizes = fetched.map(FetchPartitionResult::memory_and_file_bytes);
    let (memory, files) = sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
    memory + files.min(LOAD_BYTES_MAX)
}

/// Reads from a partition, then checks that retention removed nothing of its moment meanwhile.
pub(super) fn read_and_check(
    kafka: &KafkaServer,
    readable: &ReadableTopic,
    partition: &FetchPartition,
    options: ReadOptions,
    limit: usize,
    bytes_taken: usize,
) -> FetchPartitionResult {
    let mut fetched = if options.is_committed {
        read_committed(kafka, readable, partition, limit, bytes_taken)
    } else {
        read_partition(kafka, readable, partition, false, limit, bytes_taken)
    };
    if let Some(frontier) = options.frontier
        && fetched.error.is_none()
    {
        match stamps(readable, partition, &fetched, frontier) {
            Ok(stamps) => fetched.stamps = stamps,
            Err(error) => {
                return FetchPartitionResult::with_error(
                    partition.partition,
                    storage_error(&error),
                );
            }
        }
    }
    match readable.check_partition_kept(partition.partition) {
        Ok(()) => fetched,
        Err(error) => FetchPartitionResult::with_error(partition.partition, error),
    }
}

/// The stamps of the batches that were read, and the stamp up to which their partition is known.
fn stamps(
    readable: &ReadableTopic,
    partition: &FetchPartition,
    fetched: &FetchPartitionResult,
    frontier: Hlc,
) -> Result<Option<BatchStamps>, StorageError> {
    let Some(view) = readable.view(partition.partition) else { return Ok(None) };
    let log = &view.partition.log;
    let mut batches: Vec<Hlc> = fetched.pieces.iter().map(|piece| piece.entry.stamp).collect();
    let mut next =
        fetched.pieces.last().map_or(partition.fetch_offset, |last| last.entry.end().0 as i64);
    if !fetched.trimmed.is_empty() {
        next = view.end().0 as i64;
        let entry = log.entry_at(Offset(view.end().0.saturating_sub(1)))?;
        batches.push(entry.map_or(Hlc::ZERO, |entry| entry.stamp));
    }
    let is_committed = fetched.excluded.is_some();
    let end = if is_committed { fetched.last_stable } else { fetched.high_watermark };
    let closed = if next < end {
        batches.last().copied().unwrap_or(Hlc::ZERO)
    } else if readable.cut().is_some() {
        Hlc::MAX
    } else if is_committed && let Some(undecided) = log.entry_at(Offset(next as u64))? {
        undecided.stamp.previous()
    } else {
        frontier
    };
    Ok(Some(BatchStamps { closed, batches }))
}

/// Reads from a partition, with the transactions that the client has to leave out.
fn read_committed(
    kafka: &KafkaServer,
    readable: &ReadableTopic,
    partition: &FetchPartition,
    limit: usize,
    bytes_taken: usize,
) -> FetchPartitionResult {
    // Compaction and retention remove records together with what is known of their transactions:
    // both are to be read of one state of the log.
    let state_of = |view: PartitionView| {
        let horizon = view.partition.log.horizon();
        (horizon.compacted_generation(), horizon.start)
    };
    let state = || readable.view(partition.partition).map(state_of);
    loop {
        let before = state();
        let mut fetched = read_partition(kafka, readable, partition, true, limit, bytes_taken);
        if fetched.error.is_some() {
            return fetched;
        }
        match exclude(kafka, readable, partition, &fetched) {
            Ok(excluded) => fetched.excluded = Some(excluded),
            Err(error) => {
                tracing::error!(%error, "the transactions of a partition cannot be read");
                return FetchPartitionResult::with_error(partition.partition, engine_error(&error));
            }
        }
        if state() == before {
            return fetched;
        }
    }
}

/// The transactions that a client which reads committed records has to leave out of what was read.
fn exclude(
    kafka: &KafkaServer,
    readable: &ReadableTopic,
    partition: &FetchPartition,
    fetched: &FetchPartitionResult,
) -> Result<Vec<ExcludedTransaction>, EngineError> {
    let last = fetched.pieces.last().map(|piece| piece.entry.end());
    let end = match last {
        _ if !fetched.trimmed.is_empty() => Offset(fetched.last_stable as u64),
        Some(end) => end,
        None => return Ok(Vec::new()),
    };
    let Some(view) = readable.view(partition.partition) else { return Ok(Vec::new()) };
    let range = Offset(partition.fetch_offset as u64)..end;
    match readable.cut() {
        None => kafka.engine.aborted_in(&view.partition, range),
        Some(cut) => kafka.engine.excluded_in(&view.partition, range, cut),
    }
}

fn read_partition(
    kafka: &KafkaServer,
    readable: &ReadableTopic,
    partition: &FetchPartition,
    is_committed: bool,
    limit: usize,
    bytes_taken: usize,
) -> FetchPartitionResult {
    let Some((mut view, stable_end)) = readable.view_and_stable_end(partition.partition) else {
        return FetchPartitionResult::with_error(
            partition.partition,
            ResponseError::UnknownTopicOrPartition,
        );
    };
    let current_epoch = partition.current_leader_epoch;
    if let Err(error) = check_leader_epoch(&view.partition, current_epoch) {
        return FetchPartitionResult::with_error(partition.partition, error);
    }
    // The first batch of a response is sent whatever its size (KIP-74).
    let first = bytes_taken == 0;
    let room = usize::try_from(partition.partition_max_bytes)
        .unwrap_or(0)
        .min(limit.saturating_sub(bytes_taken));
    let (log_start, high_watermark) = (view.start().0 as i64, view.end().0 as i64);
    let mut fetched = FetchPartitionResult {
        index: partition.partition,
        error: None,
        high_watermark,
        last_stable: stable_end.0 as i64,
        log_start,
        excluded: None,
        pieces: Vec::new(),
        trimmed: Bytes::new(),
        stamps: None,
    };
    if room == 0 && !first {
        return fetched;
    }
    if is_committed {
        if (fetched.last_stable..=high_watermark).contains(&partition.fetch_offset) {
            return fetched;
        }
        view.end = Some(stable_end);
    }
    match view.read(partition.fetch_offset, room) {
        Ok(mut pieces) => {
            match kafka.corruption_cache.first_corrupt(&pieces) {
                Some(0) => {
                    add(&kafka.metrics().corrupt_reads, 1);
                    return FetchPartitionResult::with_error(
                        partition.partition,
                        ResponseError::CorruptMessage,
                    );
                }
                Some(intact) => pieces.truncate(intact),
                None => {}
            }
            if !first && pieces.first().is_some_and(|piece| piece.entry.length as usize > room) {
                pieces.clear();
            }
            match trim_last(kafka, &view, &mut pieces) {
                Ok(trimmed) => fetched.trimmed = trimmed,
                Err(error) => return FetchPartitionResult::with_error(partition.partition, error),
            }
            fetched.pieces = pieces;
        }
        Err(EngineError::OffsetOutOfRange { start, .. }) => {
            fetched.error = Some(ResponseError::OffsetOutOfRange);
            fetched.high_watermark = fetched.high_watermark.max(start.0 as i64);
            fetched.log_start = start.0 as i64;
        }
        Err(error) => {
            return FetchPartitionResult::with_error(partition.partition, engine_error(&error));
        }
    }
    fetched
}

/// Removes the last piece if the view ends inside it, and returns the visible part of it.
fn trim_last(
    kafka: &KafkaServer,
    view: &PartitionView,
    pieces: &mut Vec<EntryPayload>,
) -> Result<Bytes, ResponseError> {
    let Some(end) = view.end else { return Ok(Bytes::new()) };
    if pieces.last().is_none_or(|piece| piece.entry.end() <= end) {
        return Ok(Bytes::new());
    }
    let Some(piece) = pieces.pop() else { return Ok(Bytes::new()) };
    let batch = match blocking::read(&piece) {
        Ok(batch) => batch,
        Err(error) if error.is_data_loss() => {
            tracing::error!(%error, "consumers get CORRUPT_MESSAGE for a corrupt batch");
            add(&kafka.metrics().corrupt_reads, 1);
            // The pieces before it can still be sent.
            return if pieces.is_empty() {
                Err(ResponseError::CorruptMessage)
            } else {
                Ok(Bytes::new())
            };
        }
        Err(error) => return Err(storage_error(&error)),
    };
    // The batch is decompressed for that.
    blocking::block_in_place(|| trim(&batch, end, kafka.format.decompression_limit()))
        .map_err(|error| engine_error(&EngineError::Corrupt(error.to_string())))
}
