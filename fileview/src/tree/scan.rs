//! Walking through what is stored of a partition, in steps of bounded size.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use engine::blocking::read;
use engine::{Engine, EntryPayload, Offset, Partition, PartitionView, TopicView};
use hlc::{Hlc, UserTime};
use kafka_records::{BatchHeader, CompressionType, KafkaRecord, records};

use super::TreeError;
use super::semaphore::BlockingSemaphore;
use crate::render::UNPACKED_LIMIT;

/// How many batches are unpacked at a time, of all trees: each may take as much as a batch may unpack to,
/// and requests are many.
static UNPACK_PERMITS: BlockingSemaphore = BlockingSemaphore::with_permits(4);

/// What of a partition a reader may see.
#[derive(Clone, Debug)]
pub(crate) struct VisibleRange {
    /// Its topic's name.
    pub(crate) topic: Arc<str>,
    pub(crate) partition: Arc<Partition>,
    /// The first offset.
    pub(crate) start: Offset,
    /// The offset behind the last; of the present, as it is by now.
    pub(crate) end: Offset,
    /// Of what lies between, the records with some user times.
    pub(crate) user: Option<UserTimeFilter>,
    /// Of a moment: whether it is kept, with that of the partitions it was asked for together with.
    pub(crate) topic_view: Option<Arc<TopicView>>,
}

impl VisibleRange {
    /// Whether everything that belongs to the moment is still kept. What was read counts once this was
    /// asked behind it: what was given up or compacted meanwhile may be missing there.
    ///
    /// # Errors
    /// [`TreeError::BeforeHistory`].
    pub(crate) fn check_kept(&self) -> Result<(), TreeError> {
        Ok(self.topic_view.as_ref().map_or(Ok(()), |then| then.check_retained())?)
    }
}

/// The records with some user times.
#[derive(Clone, Debug)]
pub(crate) struct UserTimeFilter {
    pub(crate) times: Range<UserTime>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) partition: Arc<Partition>,
}

impl UserTimeFilter {
    /// The offsets of those in a batch, rising: user time comes from where the topic says, or said
    /// when the batch was accepted.
    fn offsets(&self, piece: &EntryPayload) -> Result<Vec<Offset>, TreeError> {
        let times = self.engine.user_times(&self.partition, piece)?;
        let is_then = |time: &Option<UserTime>| time.is_some_and(|time| self.times.contains(&time));
        Ok(times.into_iter().filter(|(_, time)| is_then(time)).map(|(offset, _)| offset).collect())
    }
}

/// Which state of a log something was read in: compaction puts others in the place of batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LogGeneration(u64);

impl LogGeneration {
    pub(crate) fn of(partition: &Partition) -> LogGeneration {
        LogGeneration(partition.log.horizon().compacted_generation())
    }

    /// Another one for each generation of a log.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// From where on all is still what it was in this generation.
    pub(crate) fn floor(self, partition: &Partition) -> Offset {
        let horizon = partition.log.horizon();
        if horizon.compacted_generation() == self.0 {
            return horizon.start;
        }
        horizon.start.max(horizon.released_tip().end)
    }

    /// Whether what lies from `offset` on is still what it was in this generation.
    ///
    /// # Errors
    /// It is not: it was given up or compacted.
    pub(crate) fn check(self, partition: &Partition, offset: Offset) -> Result<(), TreeError> {
        if offset >= self.floor(partition) {
            return Ok(());
        }
        Err(TreeError::Gone(format!("partition={}, offset={}", partition.index, offset.0)))
    }
}

/// Some batches in a row.
pub(crate) struct ScanStep {
    pub(crate) batches: Vec<StoredBatch>,
    /// Where the next step begins.
    pub(crate) next: Offset,
}

/// A stored batch.
pub(crate) struct StoredBatch {
    piece: EntryPayload,
    pub(crate) bytes: Bytes,
}

impl StoredBatch {
    pub(crate) fn stamp(&self) -> Hlc {
        self.piece.entry.stamp
    }

    /// The offset behind its last record.
    pub(crate) fn end(&self) -> Offset {
        self.piece.entry.end()
    }
}

/// The batches from the one that holds `from` on, about `bytes_max` of them, that begin before `until`.
/// To be called where it may wait for the disk.
pub(crate) fn read_step(
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
    // Where compaction left nothing, there is nothing up to the end.
    let next = batches.last().map_or(until, |last| last.end().min(until));
    Ok(ScanStep { batches, next })
}

/// The records of a batch that are in `offsets`, and at one of the user times if that is asked for.
/// A transaction's markers are the server's, not a producer's. To be called where it may wait.
pub(crate) fn for_each_record(
    batch: &StoredBatch,
    offsets: &Range<Offset>,
    user: Option<&UserTimeFilter>,
    mut act: impl FnMut(&KafkaRecord) -> Result<(), TreeError>,
) -> Result<(), TreeError> {
    let damaged = |error: kafka_records::BatchError| {
        TreeError::Io(
            format!("a stored batch cannot be read. ends_at={}: {error}", batch.end().0).into(),
        )
    };
    let header = BatchHeader::parse(&batch.bytes).map_err(damaged)?;
    let is_packed = header.compression().map_err(damaged)? != CompressionType::None;
    let _unpacking = is_packed.then(|| UNPACK_PERMITS.acquire());
    let all = records(&batch.bytes, UNPACKED_LIMIT).map_err(damaged)?;
    if header.is_control() {
        return Ok(());
    }
    let chosen = user.map(|user| user.offsets(&batch.piece)).transpose()?;
    for record in all {
        let record = record.map_err(damaged)?;
        let offset = Offset(record.offset as u64);
        let is_chosen = chosen.as_ref().is_none_or(|chosen| chosen.binary_search(&offset).is_ok());
        if offsets.contains(&offset) && is_chosen {
            act(&record)?;
        }
    }
    Ok(())
}
