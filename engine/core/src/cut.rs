//! One moment across all topics.
//!
//! A cut by system time is causally closed: with an event, it holds everything that happened before
//! it. A cut by user time is not: of each partition it holds a prefix that depends on that
//! partition's own records.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hlc::{Cut, Hlc, Moment, MomentSelector, UserTime};
use storage::Offset;
use storage::manifest::LogHorizon;
use xxhash_rust::xxh3::Xxh3;

use crate::cut_cache::{CutCacheKey, CutCacheStats};
use crate::cut_snapshot::{CutAnswer, CutSnapshot, CutTip};
use crate::engine_core::EngineCore;
use crate::frontier::WaitPolicy;
use crate::isolation::Isolation;
use crate::log_history::{is_retained, is_retained_by_user_time};
use crate::namespace::Topic;
use crate::seek_error::SeekError;

/// Cuts across all topics.
#[derive(Clone, Copy, Debug)]
pub struct Cuts<'a> {
    core: &'a EngineCore,
    isolation: Isolation,
}

impl EngineCore {
    /// Cuts across all topics.
    pub fn cuts(&self) -> Cuts<'_> {
        Cuts { core: self, isolation: Isolation::Uncommitted }
    }
}

/// A committed transaction of a cut whose marker is not in the cut: the number of its partition,
/// its first offset, and its producer.
type MemberWithoutMarker = (u64, u64, i64);

impl Cuts<'_> {
    /// The same, with these records of transactions.
    ///
    /// The ends of partitions do not depend on it. In a cut of committed records, a partition shows
    /// up to there the records that belong to no transaction, or to one that was committed before
    /// the cut.
    #[must_use]
    pub fn with_isolation(self, isolation: Isolation) -> Self {
        Cuts { isolation, ..self }
    }

    /// The cut at `cut`, across all topics that existed then, or the named ones.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn at(
        self,
        cut: Cut,
        topics: Option<&[String]>,
        when: WaitPolicy,
    ) -> Result<CutAnswer, SeekError> {
        let (at, frontier) = self.core.wait_until_closed(cut, when).await?;
        let snapshot = self.snapshot_at(at, topics)?;
        let is_whole = |horizon: &LogHorizon, _: Offset| is_retained(horizon, at);
        self.cut_answer(Moment::Sys(at), at, frontier, snapshot, &is_whole)
    }

    /// The cut at a moment on either time axis.
    ///
    /// By user time, the cut holds of each partition the prefix up to the first record at or after
    /// the moment, among the records known at a system time. If the moment does not give that
    /// system time, it is the frontier of this call. The answer contains it.
    ///
    /// # Errors
    /// [`SeekError`].
    pub async fn at_moment(
        self,
        moment: Moment,
        topics: Option<&[String]>,
        when: WaitPolicy,
    ) -> Result<CutAnswer, SeekError> {
        let (before, known) = match moment {
            Moment::Sys(cut) => return self.at(cut, topics, when).await,
            Moment::User { before, known } => (before, known),
        };
        let known = self.core.seek().known_or_now(known).await;
        let (at, frontier) = self.core.wait_until_closed(known, when).await?;
        let snapshot = self.snapshot_by_user_time(before, at, topics)?;
        let moment = Moment::User { before, known: Some(at) };
        let is_whole =
            |horizon: &LogHorizon, end| is_retained_by_user_time(horizon, before, at, end);
        self.cut_answer(moment, at, frontier, snapshot, &is_whole)
    }

    /// The hash of a cut.
    ///
    /// The content of a cut of committed records follows from the same entries, and from the
    /// transactions that were committed before and whose markers are not among these entries. The
    /// hash is the same as the other one if there are no such transactions.
    fn hash(self, at: Cut, snapshot: &CutSnapshot) -> Result<u128, SeekError> {
        if self.isolation == Isolation::Uncommitted {
            return Ok(snapshot.hash);
        }
        let mut members: Vec<MemberWithoutMarker> = Vec::new();
        for (nth, (partition, in_cut)) in (0..).zip(snapshot.partition_pairs()) {
            let committed = partition.transactions.committed_below(in_cut.end, at);
            members.extend(committed.iter().map(|ended| (nth, ended.first.0, ended.producer)));
            for ended in self.core.transactions_around(partition, in_cut.end)? {
                if ended.is_committed && at.admits(ended.decided) {
                    members.push((nth, ended.first.0, ended.producer));
                }
            }
        }
        if members.is_empty() {
            return Ok(snapshot.hash);
        }
        members.sort_unstable();
        members.dedup();
        let mut hash = Xxh3::new();
        hash.update(&snapshot.hash.to_le_bytes());
        for (partition, first, producer) in members {
            hash.update(&partition.to_le_bytes());
            hash.update(&first.to_le_bytes());
            hash.update(&producer.to_le_bytes());
        }
        Ok(hash.digest128())
    }

    fn cut_answer(
        self,
        moment: Moment,
        at: Cut,
        frontier: Hlc,
        snapshot: Arc<CutSnapshot>,
        is_whole: &dyn Fn(&LogHorizon, Offset) -> bool,
    ) -> Result<CutAnswer, SeekError> {
        let hash = self.hash(at, &snapshot)?;
        // Checked last: the hash lacks what was removed meanwhile.
        let snapshot = snapshot.with_current_starts(is_whole)?;
        let synced_to = self.core.stats().synced_to.load(Ordering::Relaxed);
        Ok(CutAnswer {
            moment,
            at,
            frontier,
            precision: self.core.timekeeper().precision(),
            durable: snapshot.durable_from <= synced_to,
            hash,
            isolation: self.isolation,
            partitions: Arc::clone(&snapshot.partitions),
        })
    }

    fn snapshot_by_user_time(
        self,
        before: UserTime,
        known: Cut,
        topics: Option<&[String]>,
    ) -> Result<Arc<CutSnapshot>, SeekError> {
        let key = CutCacheKey::new(known, topics);
        let topics = self.topics_in(known, key.topics.as_deref())?;
        let moment = Moment::User { before, known: Some(known) };
        let snapshot = CutSnapshot::build(topics, |partition| {
            let end = self.core.seek().end_at(partition, moment, known)?;
            Ok::<_, SeekError>(CutTip::before_offset(partition, end, known)?)
        })?;
        Arc::new(snapshot).with_current_starts(&|horizon, end| {
            is_retained_by_user_time(horizon, before, known, end)
        })
    }

    /// The content of a closed cut.
    pub(crate) fn snapshot_at(
        self,
        at: Cut,
        topics: Option<&[String]>,
    ) -> Result<Arc<CutSnapshot>, SeekError> {
        let key = CutCacheKey::new(at, topics);
        let is_whole: &dyn Fn(&LogHorizon, Offset) -> bool = &|horizon, _| is_retained(horizon, at);
        if let Some(cached) = self.core.cuts.get(&key) {
            self.check_names_known(at, key.topics.is_none(), &cached.topics)?;
            let snapshot = Arc::clone(&cached).with_current_starts(is_whole)?;
            if !Arc::ptr_eq(&cached, &snapshot) {
                self.core.cuts.replace(&snapshot);
            }
            return Ok(snapshot);
        }
        let topics = self.topics_in(at, key.topics.as_deref())?;
        let snapshot = CutSnapshot::build(topics, |partition| CutTip::at(partition, at))?;
        let snapshot = Arc::new(snapshot).with_current_starts(is_whole)?;
        Ok(self.core.cuts.insert(key, snapshot))
    }

    /// Counters of the cut cache.
    pub fn cache_stats(self) -> CutCacheStats {
        self.core.cuts.stats()
    }

    fn topics_in(self, cut: Cut, names: Option<&[Box<str>]>) -> Result<Vec<Arc<Topic>>, SeekError> {
        let namespace = self.core.shared.namespace.read();
        match names {
            None => namespace.require_topics_at(cut),
            Some(names) => {
                let selector = MomentSelector::At(Moment::Sys(cut));
                names.iter().map(|name| namespace.require_topic_at(name, cut, selector)).collect()
            }
        }
    }

    /// A cached answer must not be given when the names of its topics are no longer known.
    /// Otherwise the answer would depend on earlier queries.
    fn check_names_known(
        self,
        cut: Cut,
        is_of_all: bool,
        topics: &[Arc<Topic>],
    ) -> Result<(), SeekError> {
        let namespace = self.core.shared.namespace.read();
        match namespace.removed_in(cut) {
            Some(earliest)
                if is_of_all || topics.iter().any(|topic| !namespace.contains_id(&topic.id)) =>
            {
                Err(SeekError::BeforeNames { earliest })
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use hlc::{ManualClock, SysTime};
    use storage::disk::MemoryDisk;
    use storage::{Durability, Payload, PayloadHeader};

    use super::*;
    use crate::append::{BatchFormat, KeyedRecord, RecordBatch, RewriteOutcome};
    use crate::options::CoreOptions;
    use crate::producers::ProducerSequence;
    use crate::projection::{EngineWings, PluginModules};

    struct NoPlugins;

    impl PluginModules for NoPlugins {
        fn read(&self, plugin: &str, _at: Cut) -> Result<Vec<u8>, String> {
            Err(format!("there is no plug-in {plugin}"))
        }
    }

    struct OpaqueBatches;

    impl BatchFormat for OpaqueBatches {
        fn finalize_header(
            &self,
            _payload: &mut Payload,
            _base: Offset,
            _epoch: u32,
            _append_time: Option<SysTime>,
        ) -> Option<(usize, u32)> {
            None
        }

        fn producer(&self, _start: &[u8]) -> Option<ProducerSequence> {
            None
        }

        fn times(&self, _batch: &Bytes) -> Result<Vec<(Offset, UserTime)>, String> {
            Ok(Vec::new())
        }

        fn rewrite(
            &self,
            _batch: &Bytes,
            _delete_horizon: Option<SysTime>,
            _keep: &mut dyn FnMut(&KeyedRecord<'_>) -> bool,
        ) -> Result<RewriteOutcome, String> {
            Ok(RewriteOutcome::Unchanged)
        }
    }

    #[tokio::test]
    async fn a_cut_that_loses_records_before_its_hash_is_refused() {
        let wall = Arc::new(ManualClock::at(SysTime(1_000_000)));
        let (disk, format) = (Arc::new(MemoryDisk::new()), Arc::new(OpaqueBatches));
        let core = EngineCore::open(disk, CoreOptions::default(), wall, format).unwrap();
        let (events, readers) = (Vec::new(), Vec::new());
        core.start(EngineWings { events, readers, plugins: Box::new(NoPlugins) }).unwrap();
        let topic = core.topics().create("t", 1, BTreeMap::new(), [1; 16], false).await.unwrap();
        let mut at = Cut::ALL;
        for _ in 0..2 {
            let batch = RecordBatch {
                count: 1,
                payload: Payload { header: PayloadHeader::new(&[0; 8]), rest: Bytes::new() },
                times: (UserTime(0), UserTime(0)),
                producer: None,
                expected_base: None,
                holder: None,
            };
            let batches = vec![(Arc::clone(&topic), 0, batch)];
            let appended = core.append(batches, Durability::Synced).await.remove(0).unwrap();
            at = if at == Cut::ALL { Cut::through(appended.stamp) } else { at };
        }
        let cuts = core.cuts().with_isolation(Isolation::Committed);
        let snapshot = cuts.snapshot_at(at, None).unwrap();
        core.topics().delete_records(&topic, 0, 2).await.unwrap();
        let is_whole = |horizon: &LogHorizon, _: Offset| is_retained(horizon, at);
        let answer = cuts.cut_answer(Moment::Sys(at), at, core.frontier(), snapshot, &is_whole);
        assert!(matches!(answer, Err(SeekError::BeforeHistory { .. })), "{answer:?}");
    }
}
