//! One moment across all topics.
//!
//! A cut by system time is causally closed: with an event, it holds everything that happened before
//! it. A cut by user time is not: of each partition it holds a prefix that depends on that
//! partition's own records.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hlc::{Cut, Hlc, Moment, MomentSelector, UserTime};
use storage::manifest::LogHorizon;
use storage::timekeeper::ClockPrecision;
use storage::{Offset, StorageError};
use xxhash_rust::xxh3::Xxh3;

use crate::blocking::{read_log_from, tip_and_journal_end};
use crate::cut_cache::{CutCacheKey, CutCacheStats};
use crate::engine::Engine;
use crate::namespace::{Partition, Topic};
use crate::seek::{
    SeekError, TruncatedPartition, WaitPolicy, earliest_bound, is_retained,
    is_retained_by_user_time,
};

/// One partition in a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutPartition {
    /// The topic.
    pub topic: Arc<str>,
    /// The partition.
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
    /// How precise its times are.
    pub precision: ClockPrecision,
    /// Whether everything in the cut is on stable storage.
    pub durable: bool,
    /// Identifies the whole content of the cut: topics, partitions, and every entry in them. The
    /// same query always gets the same hash.
    pub hash: u128,
    /// Sorted by topic and partition.
    pub partitions: Arc<[CutPartition]>,
}

/// The content of a closed cut.
#[derive(Debug)]
pub(crate) struct CutSnapshot {
    /// A hash of the whole content.
    pub(crate) hash: u128,
    /// The whole cut is on stable storage once the journal is, up to this position.
    durable_from: u64,
    /// The topics as of the cut.
    pub(crate) topics: Vec<Arc<Topic>>,
    /// The partitions of the topics, in order.
    pub(crate) partitions: Arc<[CutPartition]>,
}

/// Where a partition ends in a cut.
struct CutTip {
    end: Offset,
    /// The hash chain over all batches that have records in the cut.
    chain: u128,
    /// The position up to which the journal has to be on stable storage.
    journal_end: u64,
}

impl CutTip {
    fn at(partition: &Partition, at: Cut) -> Result<CutTip, StorageError> {
        let (tip, reach) = tip_and_journal_end(&partition.log, at)?;
        Ok(CutTip { end: tip.end, chain: tip.chain, journal_end: reach })
    }

    /// The tip of the prefix up to `end` of what `known` admits. `end` may be inside a batch.
    fn before_offset(
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
    fn build<E>(
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

    fn partition_pairs(&self) -> impl Iterator<Item = (&Arc<Partition>, &CutPartition)> {
        self.topics.iter().flat_map(|topic| &topic.partitions).zip(&*self.partitions)
    }

    /// The snapshot with the current start of each partition.
    ///
    /// A start advances after a snapshot was taken, and may pass the partition's end in the
    /// snapshot: `is_whole` says whether a partition is still complete.
    fn with_current_starts(
        self: Arc<CutSnapshot>,
        is_whole: &dyn Fn(&LogHorizon, Offset) -> bool,
    ) -> Result<Arc<CutSnapshot>, SeekError> {
        let (mut moved, mut lost) = (false, Vec::new());
        for (partition, held) in self.partition_pairs() {
            let horizon = partition.log.horizon();
            moved |= horizon.start != held.start;
            if !is_whole(&horizon, held.end) {
                lost.push(TruncatedPartition {
                    topic: Arc::clone(&held.topic),
                    partition: held.partition,
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
            .map(|(partition, held)| CutPartition { start: partition.start(), ..held.clone() })
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

impl Engine {
    /// The cut at `cut`, across all topics that existed then, or the named ones.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn cut(
        &self,
        cut: Cut,
        topics: Option<&[String]>,
        when: WaitPolicy,
    ) -> Result<CutAnswer, SeekError> {
        let (at, frontier) = self.wait_until_closed(cut, when).await?;
        let snapshot = self.snapshot_at(at, topics)?;
        Ok(self.cut_answer(Moment::Sys(at), at, frontier, &snapshot))
    }

    /// The cut at a moment on either time axis.
    ///
    /// By user time, the cut holds of each partition the prefix up to the first record at or after
    /// the moment, among the records known at a system time. If the moment does not give that
    /// system time, it is the frontier of this call. The answer contains it.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn cut_at(
        &self,
        moment: Moment,
        topics: Option<&[String]>,
        when: WaitPolicy,
    ) -> Result<CutAnswer, SeekError> {
        let (before, known) = match moment {
            Moment::Sys(cut) => return self.cut(cut, topics, when).await,
            Moment::User { before, known } => (before, known),
        };
        let known = self.known_or_now(known).await;
        let (at, frontier) = self.wait_until_closed(known, when).await?;
        let snapshot = self.snapshot_by_user_time(before, at, topics)?;
        let moment = Moment::User { before, known: Some(at) };
        Ok(self.cut_answer(moment, at, frontier, &snapshot))
    }

    fn cut_answer(
        &self,
        moment: Moment,
        at: Cut,
        frontier: Hlc,
        snapshot: &CutSnapshot,
    ) -> CutAnswer {
        let synced_to = self.stats().synced_to.load(Ordering::Relaxed);
        CutAnswer {
            moment,
            at,
            frontier,
            precision: self.timekeeper().precision(),
            durable: snapshot.durable_from <= synced_to,
            hash: snapshot.hash,
            partitions: Arc::clone(&snapshot.partitions),
        }
    }

    fn snapshot_by_user_time(
        &self,
        before: UserTime,
        known: Cut,
        topics: Option<&[String]>,
    ) -> Result<Arc<CutSnapshot>, SeekError> {
        let asked = CutCacheKey::new(known, topics);
        let topics = self.topics_in(known, asked.topics.as_deref())?;
        let moment = Moment::User { before, known: Some(known) };
        let snapshot = CutSnapshot::build(topics, |partition| {
            let end = self.end_at(partition, moment, known)?;
            Ok::<_, SeekError>(CutTip::before_offset(partition, end, known)?)
        })?;
        Arc::new(snapshot).with_current_starts(&|horizon, end| {
            is_retained_by_user_time(horizon, before, known, end)
        })
    }

    /// The content of a closed cut.
    pub(crate) fn snapshot_at(
        &self,
        at: Cut,
        topics: Option<&[String]>,
    ) -> Result<Arc<CutSnapshot>, SeekError> {
        let asked = CutCacheKey::new(at, topics);
        let is_whole: &dyn Fn(&LogHorizon, Offset) -> bool = &|horizon, _| is_retained(horizon, at);
        if let Some(known) = self.cuts.get(&asked) {
            self.check_names_known(at, asked.topics.is_none(), &known.topics)?;
            let snapshot = Arc::clone(&known).with_current_starts(is_whole)?;
            if !Arc::ptr_eq(&known, &snapshot) {
                self.cuts.replace(&snapshot);
            }
            return Ok(snapshot);
        }
        let topics = self.topics_in(at, asked.topics.as_deref())?;
        let snapshot = CutSnapshot::build(topics, |partition| CutTip::at(partition, at))?;
        let snapshot = Arc::new(snapshot).with_current_starts(is_whole)?;
        Ok(self.cuts.insert(asked, snapshot))
    }

    /// Counters of the cut cache.
    pub fn cut_cache_stats(&self) -> CutCacheStats {
        self.cuts.stats()
    }

    fn topics_in(
        &self,
        cut: Cut,
        names: Option<&[Box<str>]>,
    ) -> Result<Vec<Arc<Topic>>, SeekError> {
        let namespace = self.shared.namespace.read();
        match names {
            None => namespace.require_topics_at(cut),
            Some(names) => {
                let ask = MomentSelector::At(Moment::Sys(cut));
                names.iter().map(|name| namespace.require_topic_at(name, cut, ask)).collect()
            }
        }
    }

    /// A cached answer must not be given when the names of its topics are no longer known.
    /// Otherwise the answer would depend on earlier queries.
    fn check_names_known(
        &self,
        cut: Cut,
        is_of_all: bool,
        topics: &[Arc<Topic>],
    ) -> Result<(), SeekError> {
        let namespace = self.shared.namespace.read();
        match namespace.removed_in(cut) {
            Some(earliest)
                if is_of_all || topics.iter().any(|topic| !namespace.contains_id(&topic.id)) =>
            {
                Err(SeekError::BeforeNames { earliest })
            }
            _ => Ok(()),
        }
    }

    /// All topics as of `cut`, each with the stamp of its deletion if it was deleted later.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn topics_at(
        &self,
        cut: Cut,
        when: WaitPolicy,
    ) -> Result<(Cut, Hlc, Vec<(Arc<Topic>, Option<Hlc>)>), SeekError> {
        let (at, frontier) = self.wait_until_closed(cut, when).await?;
        let namespace = self.shared.namespace.read();
        let topics = namespace
            .require_topics_at(at)?
            .into_iter()
            .map(|topic| {
                let deleted = namespace.deleted_at(&topic.id);
                (topic, deleted)
            })
            .collect();
        Ok((at, frontier, topics))
    }
}
