//! The content of a closed cut: where each partition ends, and a hash of everything in it.

use std::sync::Arc;

use hlc::{Cut, Hlc, Moment};
use storage::manifest::LogHorizon;
use storage::timekeeper::ClockPrecision;
use storage::{Offset, StorageError};
use xxhash_rust::xxh3::Xxh3;

use crate::blocking::{read_log_from, tip_and_journal_end};
use crate::isolation::Isolation;
use crate::log_history::earliest_bound;
use crate::namespace::{Partition, Topic};
use crate::seek_error::{SeekError, TruncatedPartition};

/// One partition in a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutPartition {
    pub topic: Arc<str>,
    pub partition: u32,
    /// The first offset that has not been removed.
    pub start: Offset,
    /// The first offset that is not in the cut.
    pub end: Offset,
}

/// The answer to a query for a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutAnswer {
    /// The moment that was answered, as an absolute moment.
    pub moment: Moment,
    /// The bound on system time: the requested one, unless the cut was answered at the frontier.
    /// For a moment of user time, the bound on what was known.
    pub at: Cut,
    /// The frontier at the time of the answer.
    pub frontier: Hlc,
    /// The precision of its times.
    pub precision: ClockPrecision,
    /// True if everything in the cut is on stable storage.
    pub durable: bool,
    /// Identifies the topics of the cut, their partitions, and every entry in them; not znodes, nor
    /// users and their rules. The same query always gets the same hash.
    pub hash: u128,
    /// The isolation level: it selects the records of transactions in the cut. The hash stands for
    /// these.
    pub isolation: Isolation,
    /// Sorted by topic and partition.
    pub partitions: Arc<[CutPartition]>,
}

/// The content of a closed cut.
#[derive(Debug)]
pub(crate) struct CutSnapshot {
    /// A hash of the whole content.
    pub(crate) hash: u128,
    /// The whole cut is on stable storage once the journal is, up to this position.
    pub(crate) durable_from: u64,
    /// The topics as of the cut.
    pub(crate) topics: Vec<Arc<Topic>>,
    /// The partitions of the topics, in order.
    pub(crate) partitions: Arc<[CutPartition]>,
}

/// The end of a partition in a cut.
pub(crate) struct CutTip {
    end: Offset,
    /// The hash chain over all batches that have records in the cut.
    chain: u128,
    /// The position up to which the journal has to be on stable storage.
    journal_end: u64,
}

impl CutTip {
    pub(crate) fn at(partition: &Partition, at: Cut) -> Result<CutTip, StorageError> {
        let (tip, reach) = tip_and_journal_end(&partition.log, at)?;
        Ok(CutTip { end: tip.end, chain: tip.chain, journal_end: reach })
    }

    /// The tip of the prefix up to `end` of what `known` admits. `end` may be inside a batch.
    pub(crate) fn before_offset(
        partition: &Partition,
        end: Offset,
        known: Cut,
    ) -> Result<CutTip, StorageError> {
        let log = &partition.log;
        let last = read_log_from(log, end, || log.entry_at(end))?;
        let cut = match last.filter(|last| known.admits(last.stamp)) {
            Some(last) if last.base < end => Cut::through(last.stamp),
            Some(last) => Cut::below(last.stamp),
            None => known,
        };
        Ok(CutTip { end, ..CutTip::at(partition, cut)? })
    }
}

impl CutSnapshot {
    /// Reads the tip of every partition. [`CutSnapshot::with_current_starts`] checks whether all of
    /// the cut is still retained.
    pub(crate) fn build<E>(
        topics: Vec<Arc<Topic>>,
        ended: impl Fn(&Partition) -> Result<CutTip, E>,
    ) -> Result<CutSnapshot, E> {
        let (mut hash, mut stable_from) = (Xxh3::new(), 0);
        let mut partitions = Vec::new();
        for topic in &topics {
            hash.update(&topic.id);
            hash.update(&(topic.name.len() as u64).to_le_bytes());
            hash.update(topic.name.as_bytes());
            for partition in &topic.partitions {
                let CutTip { end, chain, journal_end: reach } = ended(partition)?;
                if end > Offset(0) {
                    stable_from = stable_from.max(reach);
                    hash.update(&chain.to_le_bytes());
                }
                hash.update(&partition.index.to_le_bytes());
                hash.update(&end.0.to_le_bytes());
                let (topic, start) = (Arc::clone(&topic.name), partition.start());
                let partition = partition.index;
                partitions.push(CutPartition { topic, partition, start, end });
            }
        }
        let (hash, partitions) = (hash.digest128(), partitions.into());
        Ok(CutSnapshot { hash, durable_from: stable_from, topics, partitions })
    }

    pub(crate) fn partition_pairs(&self) -> impl Iterator<Item = (&Arc<Partition>, &CutPartition)> {
        self.topics.iter().flat_map(|topic| &topic.partitions).zip(&*self.partitions)
    }

    /// The snapshot with the current start of each partition.
    ///
    /// A start advances after a snapshot was taken, and may pass the partition's end in the
    /// snapshot: `is_whole` says whether a partition is still complete.
    pub(crate) fn with_current_starts(
        self: Arc<CutSnapshot>,
        is_whole: &dyn Fn(&LogHorizon, Offset) -> bool,
    ) -> Result<Arc<CutSnapshot>, SeekError> {
        let (mut moved, mut lost) = (false, Vec::new());
        for (partition, cut_partition) in self.partition_pairs() {
            let horizon = partition.log.horizon();
            moved |= horizon.start != cut_partition.start;
            if !is_whole(&horizon, cut_partition.end) {
                lost.push(TruncatedPartition {
                    topic: Arc::clone(&cut_partition.topic),
                    partition: cut_partition.partition,
                    earliest: earliest_bound(&horizon),
                });
            }
        }
        if !lost.is_empty() {
            return Err(SeekError::BeforeHistory { lost });
        }
        if !moved {
            return Ok(self);
        }
        let partitions = self
            .partition_pairs()
            .map(|(partition, cut_partition)| CutPartition {
                start: partition.start(),
                ..cut_partition.clone()
            })
            .collect();
        let (hash, stable_from) = (self.hash, self.durable_from);
        let renewed = CutSnapshot {
            hash,
            durable_from: stable_from,
            topics: self.topics.clone(),
            partitions,
        };
        // Checks again: the starts were read a second time, and may have advanced in between.
        Arc::new(renewed).with_current_starts(is_whole)
    }

    /// The size in memory. The topics are not counted: they belong to the namespace.
    pub(crate) fn bytes(&self) -> u64 {
        let partitions = size_of_val(&*self.partitions);
        let topics = self.topics.capacity() * size_of::<Arc<Topic>>();
        (size_of::<CutSnapshot>() + partitions + topics) as u64
    }
}
