//! Scans of a partition's stored batches, in steps of bounded size.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use engine::blocking::read;
use engine::{Engine, EntryPayload, Isolation, Offset, Partition, PartitionView, TopicView};
use hlc::{Cut, Hlc, UserTime};
use kafka_records::{
    BatchError, BatchHeader, CommittedBatches, CompressionType, KafkaRecord, records,
};

use super::TreeError;
use super::semaphore::BlockingSemaphore;
use crate::render::UNPACKED_LIMIT;

/// The most batches that are decompressed at a time, in all trees together. Each may use as
/// much memory as a decompressed batch may have, and there are many requests.
static UNPACK_PERMITS: BlockingSemaphore = BlockingSemaphore::with_permits(4);

/// The range of a partition that a reader may see.
#[derive(Clone, Debug)]
pub(crate) struct VisibleRange {
    /// The name of its topic.
    pub(crate) topic: Arc<str>,
    pub(crate) partition: Arc<Partition>,
    /// The first offset.
    pub(crate) start: Offset,
    /// The offset after the last one. For the present, the current end.
    pub(crate) end: Offset,
    /// The transactions that have records in it.
    pub(crate) transactions: TransactionFilter,
    /// A filter by user time on the records in the range.
    pub(crate) user: Option<UserTimeFilter>,
    /// Only for a moment: tells whether the moment is retained, for all partitions of the same
    /// request.
    pub(crate) topic_view: Option<Arc<TopicView>>,
}

impl VisibleRange {
    /// The offset after the last batch, whether its records are shown or not.
    pub(crate) fn raw_end(&self) -> Offset {
        if self.topic_view.is_some() { self.end } else { self.partition.end() }
    }

    /// Ends it before the first record of a transaction that was not decided in `cut`. Returns true
    /// if there is one.
    ///
    /// # Errors
    /// The transaction log cannot be read.
    pub(crate) fn end_before_undecided(&mut self, cut: Cut) -> Result<bool, TreeError> {
        if self.transactions.undecided_at.is_none() {
            return Ok(false);
        }
        let engine = &self.transactions.engine;
        let undecided = engine.undecided_in(&self.partition, Offset(0)..self.end, cut)?;
        let Some(first) = undecided.iter().map(|transaction| transaction.first).min() else {
            return Ok(false);
        };
        self.end = self.end.min(first.max(self.start));
        Ok(true)
    }

    /// Checks that everything that belongs to the moment is still retained.
    ///
    /// Call it after a read. The read is complete only if this check succeeds, because retention or
    /// compaction may have removed records during the read.
    ///
    /// # Errors
    /// [`TreeError::BeforeHistory`].
    pub(crate) fn check_kept(&self) -> Result<(), TreeError> {
        Ok(self.topic_view.as_ref().map_or(Ok(()), |view| view.check_retained())?)
    }
}

/// Leaves out the records of transactions that are not committed (TIME.md 7), unless all are
/// wanted.
#[derive(Clone, Debug)]
pub(crate) struct TransactionFilter {
    engine: Arc<Engine>,
    isolation: Isolation,
    /// Only for a moment at which a transaction was not decided that may be by now: the moment.
    undecided_at: Option<Cut>,
}

impl TransactionFilter {
    /// For the present.
    pub(crate) fn present(engine: &Arc<Engine>, isolation: Isolation) -> TransactionFilter {
        TransactionFilter { engine: Arc::clone(engine), isolation, undecided_at: None }
    }

    /// For the records of a partition below `end` as of `cut`.
    pub(crate) fn at(
        engine: &Arc<Engine>,
        isolation: Isolation,
        partition: &Partition,
        end: Offset,
        cut: Cut,
    ) -> Result<TransactionFilter, TreeError> {
        if isolation == Isolation::Uncommitted {
            return Ok(TransactionFilter::present(engine, isolation));
        }
        let undecided = engine.undecided_in(partition, Offset(0)..end, cut)?;
        let undecided_at = (!undecided.is_empty()).then_some(cut);
        Ok(TransactionFilter { engine: Arc::clone(engine), isolation, undecided_at })
    }

    pub(crate) fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// The current end of a partition. An open transaction holds back readers that wait for its
    /// decision.
    pub(crate) fn end_of(&self, partition: &Partition) -> Offset {
        match self.isolation {
            Isolation::Committed => partition.stable_end(),
            Isolation::Uncommitted => partition.end(),
        }
    }

    /// The moment that tells its texts from others. `None` if all was decided: then the texts of
    /// moments are prefixes of each other.
    pub(crate) fn undecided_at(&self) -> Option<Cut> {
        self.undecided_at
    }

    /// The batches among `pieces`, which begin at `from`, that are shown.
    fn select(
        &self,
        partition: &Partition,
        from: Offset,
        batches: Vec<StoredBatch>,
    ) -> Result<Vec<StoredBatch>, TreeError> {
        if self.isolation == Isolation::Uncommitted {
            return Ok(batches);
        }
        let Some(last) = batches.last() else { return Ok(batches) };
        let range = from..last.end();
        let excluded = match self.undecided_at {
            None => self.engine.aborted_in(partition, range)?,
            Some(cut) => self.engine.excluded_in(partition, range, cut)?,
        };
        if excluded.is_empty() {
            return Ok(batches);
        }
        let excluded = excluded
            .into_iter()
            .map(|transaction| (transaction.first.0 as i64, transaction.producer));
        let mut committed = CommittedBatches::new(excluded);
        let mut shown = Vec::with_capacity(batches.len());
        for batch in batches {
            let header = BatchHeader::parse(&batch.bytes).map_err(|error| batch.damage(&error))?;
            if committed.admits(&header, &batch.bytes) {
                shown.push(batch);
            }
        }
        Ok(shown)
    }
}

/// Selects the records with certain user times.
#[derive(Clone, Debug)]
pub(crate) struct UserTimeFilter {
    pub(crate) times: Range<UserTime>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) partition: Arc<Partition>,
}

impl UserTimeFilter {
    /// The offsets of the selected records of a batch, rising. The rule in force at the batch's
    /// stamp says where the user time is.
    fn offsets(&self, piece: &EntryPayload) -> Result<Vec<Offset>, TreeError> {
        let times = self.engine.user_times().of_batch(&self.partition, piece)?;
        let is_then = |time: &Option<UserTime>| time.is_some_and(|time| self.times.contains(&time));
        Ok(times.into_iter().filter(|(_, time)| is_then(time)).map(|(offset, _)| offset).collect())
    }
}

/// The generation of a log: compaction replaces batches and starts a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LogGeneration(u64);

impl LogGeneration {
    /// The generation with this [`LogGeneration::number`].
    pub(crate) fn from_number(number: u64) -> LogGeneration {
        LogGeneration(number)
    }

    pub(crate) fn of(partition: &Partition) -> LogGeneration {
        LogGeneration(partition.log.horizon().compacted_generation())
    }

    /// A number that is different for each generation of a log.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The offset from which the log is unchanged since this generation.
    pub(crate) fn floor(self, partition: &Partition) -> Offset {
        let horizon = partition.log.horizon();
        if horizon.compacted_generation() == self.0 {
            return horizon.start;
        }
        horizon.start.max(horizon.released_tip().end)
    }

    /// Checks that the log from `offset` on is unchanged since this generation.
    ///
    /// # Errors
    /// Retention or compaction removed records there.
    pub(crate) fn check(self, partition: &Partition, offset: Offset) -> Result<(), TreeError> {
        if offset >= self.floor(partition) {
            return Ok(());
        }
        Err(TreeError::Gone(format!(
            "record {} of partition {} is not kept any more",
            offset.0, partition.index
        )))
    }
}

/// Some consecutive batches.
pub(crate) struct ScanStep {
    pub(crate) batches: Vec<StoredBatch>,
    /// The bytes that were read, also of batches that are not shown.
    pub(crate) bytes: usize,
    /// The offset at which the next step begins.
    pub(crate) next: Offset,
}

pub(crate) struct StoredBatch {
    piece: EntryPayload,
    pub(crate) bytes: Bytes,
}

impl StoredBatch {
    pub(crate) fn stamp(&self) -> Hlc {
        self.piece.entry.stamp
    }

    /// The offset after its last record.
    pub(crate) fn end(&self) -> Offset {
        self.piece.entry.end()
    }

    fn damage(&self, error: &BatchError) -> TreeError {
        let message =
            format!("a stored batch that ends at offset {} cannot be read: {error}", self.end().0);
        TreeError::Io(message.into())
    }
}

/// Reads the batches from the one that holds `from` on, about `bytes_max` bytes, that begin before
/// `until` and are shown. May block on the disk.
pub(crate) fn read_step(
    partition: &Arc<Partition>,
    transactions: &TransactionFilter,
    from: Offset,
    until: Offset,
    bytes_max: usize,
) -> Result<ScanStep, TreeError> {
    let generation = LogGeneration::of(partition);
    let step = read_all_step(partition, from, until, bytes_max)?;
    let batches = transactions.select(partition, from, step.batches)?;
    // Compaction drops the records of an aborted transaction together with its marker.
    generation.check(partition, from)?;
    Ok(ScanStep { batches, ..step })
}

/// [`read_step`], whether the batches are shown or not.
pub(crate) fn read_all_step(
    partition: &Arc<Partition>,
    from: Offset,
    until: Offset,
    bytes_max: usize,
) -> Result<ScanStep, TreeError> {
    let view =
        PartitionView { partition: Arc::clone(partition), start: Offset(0), end: Some(until) };
    let pieces = view.read(from.0 as i64, bytes_max)?;
    let mut batches = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let bytes = read(&piece)?;
        batches.push(StoredBatch { piece, bytes });
    }
    // If compaction left nothing, there is nothing up to the end.
    let next = batches.last().map_or(until, |last| last.end().min(until));
    let bytes = batches.iter().map(|batch| batch.bytes.len()).sum();
    Ok(ScanStep { batches, bytes, next })
}

/// Calls `act` for the records of a batch that are in `offsets` and pass the user-time filter, and
/// returns the bytes of keys and values of all its records. Control batches are skipped: they are
/// written by the server, not by a producer. May block.
pub(crate) fn for_each_record(
    batch: &StoredBatch,
    offsets: &Range<Offset>,
    user: Option<&UserTimeFilter>,
    mut act: impl FnMut(&KafkaRecord) -> Result<(), TreeError>,
) -> Result<usize, TreeError> {
    let damaged = |error: BatchError| batch.damage(&error);
    let header = BatchHeader::parse(&batch.bytes).map_err(damaged)?;
    let is_packed = header.compression().map_err(damaged)? != CompressionType::None;
    let _unpacking = is_packed.then(|| UNPACK_PERMITS.acquire());
    let all = records(&batch.bytes, UNPACKED_LIMIT).map_err(damaged)?;
    if header.is_control() {
        return Ok(0);
    }
    let mut bytes = 0;
    let chosen = user.map(|user| user.offsets(&batch.piece)).transpose()?;
    for record in all {
        let record = record.map_err(damaged)?;
        bytes += record.content_bytes();
        let offset = Offset(record.offset as u64);
        let is_chosen = chosen.as_ref().is_none_or(|chosen| chosen.binary_search(&offset).is_ok());
        if offsets.contains(&offset) && is_chosen {
            act(&record)?;
        }
    }
    Ok(bytes)
}
