//! One moment across everything.
//!
//! A cut by system time is causally closed: with an event, it has all that happened before it. One by
//! user time is not: it has of each partition what its own records say, as a prefix.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hlc::{Cut, Hlc, Moment, MomentSelector, UserTime};
use storage::Offset;
use storage::manifest::LogHorizon;
use storage::timekeeper::ClockPrecision;
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
    /// The first offset that is kept.
    pub start: Offset,
    /// The first offset that is not in the cut.
    pub end: Offset,
}

/// The answer to "cut at t".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutAnswer {
    /// What the answer is true of, made absolute.
    pub moment: Moment,
    /// Its bound of system time: what was asked, unless it was to be answered at the frontier. Of a
    /// moment of user time, as known when.
    pub at: Cut,
    /// The frontier when it was answered.
    pub frontier: Hlc,
    /// How precise its times are.
    pub precision: ClockPrecision,
    /// Whether everything in the cut is on stable storage.
    pub durable: bool,
    /// Identifies the cut's whole content: topics, partitions, and every entry in them. The same for
    /// the same question, for ever.
    pub hash: u128,
    /// By topic and partition.
    pub partitions: Arc<[CutPartition]>,
}

/// What a closed cut holds.
#[derive(Debug)]
pub(crate) struct CutSnapshot {
    /// Of the whole content.
    pub(crate) hash: u128,
    /// Everything in it is on stable storage once the journal is, up to here.
    durable_from: u64,
    /// The topics, as they were.
    pub(crate) topics: Vec<Arc<Topic>>,
    /// The partitions of the topics, in order.
    pub(crate) partitions: Arc<[CutPartition]>,
}

/// Where a partition ends in a cut.
struct CutTip {
    end: Offset,
    /// Over all batches that have something in the cut.
    chain: u128,
    /// The position of the journal up to which it has to be on stable storage.
    journal_end: u64,
}

impl CutTip {
    fn at(partition: &Partition, at: Cut) -> io::Result<CutTip> {
        let (tip, reach) = tip_and_journal_end(&partition.log, at)?;
        Ok(CutTip { end: tip.end, chain: tip.chain, journal_end: reach })
    }

    /// The prefix of what `known` admits, up to `end`, which may lie inside a batch.
    fn before_offset(partition: &Partition, end: Offset, known: Cut) -> io::Result<CutTip> {
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
    /// Looks into every partition. Whether all of it is still there is another question:
    /// [`CutSnapshot::with_current_starts`].
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

    /// The snapshot with the starts that its partitions have now. Where a partition begins moves after
    /// a snapshot was taken, and may pass its end: `is_whole` says whether it did.
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
        // Once more, for the starts were read twice.
        Arc::new(renewed).with_current_starts(is_whole)
    }

    /// What it takes in memory. The topics themselves are the namespace's.
    pub(crate) fn bytes(&self) -> u64 {
        let partitions = size_of_val(&*self.partitions);
        let topics = self.topics.capacity() * size_of::<Arc<Topic>>();
        (size_of::<CutSnapshot>() + partitions + topics) as u64
    }
}

impl Engine {
    /// The cut at `cut`, across all topics that existed then, or those named.
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

    /// The cut at a moment of either time. By user time, each partition is the prefix of what was known
    /// up to the first record at or after the moment; as known when, if it does not say, is the frontier
    /// of this call, and is in the answer.
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

    /// What a cut holds that nothing can enter any more.
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

    /// How the answers to cuts that are kept have served.
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

    /// An answer that is kept must not outlive what is known of its topics: whether it is given would hang on
    /// who asked before.
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

    /// All topics as of `cut`, each with the stamp of its deletion if it was deleted since.
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
