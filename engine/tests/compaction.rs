//! Compaction against a log that is never compacted (TIME.md 6): the state by key is the same from
//! the horizon on, and a reader that continues from any offset misses no last value.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use engine::compaction::{
    BatchSource, CompactedBatch, CompactionError, CompactionOptions, CompactionOutcome,
    SourceBatch, compact,
};
use engine::{
    BatchFormat, KeyedRecord, Offset, Payload, ProducerSequence, RewriteOutcome, StorageError,
};
use hlc::{Cut, Hlc, SysTime, UserTime};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// A record: offset, key, and value; a tombstone has no value.
type CompactionRecord = (u64, Option<Vec<u8>>, Option<u32>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
struct CompactionTestBatch {
    delete_horizon: Option<u64>,
    records: Vec<CompactionRecord>,
}

impl CompactionTestBatch {
    fn to_bytes(&self) -> Bytes {
        postcard::to_stdvec(self).expect("plain data").into()
    }

    fn parse(bytes: &[u8]) -> Result<CompactionTestBatch, String> {
        postcard::from_bytes(bytes).map_err(|error| error.to_string())
    }
}

struct CompactionTestFormat;

impl BatchFormat for CompactionTestFormat {
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
        bytes: &Bytes,
        delete_horizon: Option<SysTime>,
        keep: &mut dyn FnMut(&KeyedRecord<'_>) -> bool,
    ) -> Result<RewriteOutcome, String> {
        let before = CompactionTestBatch::parse(bytes)?;
        let mut batch = before.clone();
        batch.records.retain(|(offset, key, value)| {
            keep(&KeyedRecord {
                offset: Offset(*offset),
                key: key.as_deref(),
                is_tombstone: value.is_none(),
                delete_horizon: before.delete_horizon.map(SysTime),
            })
        });
        if batch.delete_horizon.is_none() && batch.records.iter().any(|(.., value)| value.is_none())
        {
            batch.delete_horizon = delete_horizon.map(|time| time.0);
        }
        Ok(match batch {
            batch if batch.records.is_empty() => RewriteOutcome::Empty(batch.to_bytes()),
            batch if batch == before => RewriteOutcome::Unchanged,
            batch => RewriteOutcome::Changed(batch.to_bytes()),
        })
    }
}

#[derive(Clone, Default)]
struct BatchListLog(Vec<SourceBatch<()>>);

impl BatchSource for BatchListLog {
    type Entry = SourceBatch<()>;

    fn batches(
        &self,
        from: Offset,
    ) -> impl Iterator<Item = Result<SourceBatch<SourceBatch<()>>, StorageError>> {
        self.0.iter().filter(move |stored| stored.end > from).map(|stored| {
            let SourceBatch { base, end, stamp, batch, .. } = stored.clone();
            Ok(SourceBatch { base, end, stamp, batch, entry: stored.clone() })
        })
    }
}

impl BatchListLog {
    fn end(&self) -> Offset {
        self.0.last().map_or(Offset(0), |stored| stored.end)
    }

    fn append(&mut self, stamp: Hlc, records: &[(Option<u8>, Option<u32>)]) {
        let base = self.end();
        let records: Vec<CompactionRecord> = records
            .iter()
            .zip(base.0..)
            .map(|((key, value), offset)| (offset, key.map(|key| vec![key]), *value))
            .collect();
        let end = Offset(base.0 + records.len() as u64);
        let batch = CompactionTestBatch { delete_horizon: None, records }.to_bytes();
        self.0.push(SourceBatch { base, end, stamp, batch, entry: () });
    }

    fn records(&self) -> Vec<CompactionRecord> {
        self.0
            .iter()
            .flat_map(|stored| {
                CompactionTestBatch::parse(&stored.batch).unwrap_or_default().records
            })
            .collect()
    }

    /// The content of a cut, and where it ends.
    fn cut(&self, cut: Cut) -> (BatchListLog, Offset) {
        let log = BatchListLog(
            self.0.iter().filter(|stored| cut.admits(stored.stamp)).cloned().collect(),
        );
        let end = log.end();
        (log, end)
    }

    fn state(&self) -> BTreeMap<Vec<u8>, (u64, u32)> {
        let mut state = BTreeMap::new();
        for (offset, key, value) in self.records() {
            let Some(key) = key else { continue };
            match value {
                Some(value) => state.insert(key, (offset, value)),
                None => state.remove(&key),
            };
        }
        state
    }

    fn replace(&mut self, until: Offset, batches: Vec<CompactedBatch<SourceBatch<()>>>) {
        let dirty = self.0.iter().filter(|stored| stored.base >= until).cloned();
        let sources = batches.into_iter().map(|compacted| {
            assert_eq!(compacted.is_changed, compacted.batch != compacted.entry.batch);
            SourceBatch { batch: compacted.batch, ..compacted.entry }
        });
        self.0 = sources.chain(dirty).collect();
    }
}

fn at(ms: u64) -> Hlc {
    Hlc::at(SysTime(ms))
}

fn run(
    log: &mut BatchListLog,
    options: &CompactionOptions,
) -> Result<CompactionOutcome, CompactionError> {
    let mut retained = Vec::new();
    let outcome = compact(log, options, &CompactionTestFormat, &mut |batch| {
        retained.push(batch);
        Ok(())
    })?;
    let before = log.clone();
    log.replace(outcome.until, retained);
    assert_eq!(outcome.is_change(), log.0 != before.0);
    Ok(outcome)
}

const RETENTION: u64 = 50;
const PLENTY: usize = 1 << 16;

fn options(first_dirty: Offset, horizon: u64, now: u64) -> CompactionOptions {
    CompactionOptions {
        horizon: at(horizon),
        start: Offset(0),
        first_dirty,
        undecided_from: Offset(u64::MAX),
        now: SysTime(now),
        delete_retention: Duration::from_millis(RETENTION),
        memory_bytes: PLENTY,
        seed: 1,
    }
}

#[derive(Clone, Debug)]
enum CompactionStep {
    Append(Vec<(Option<u8>, Option<u32>)>),
    Pass(u64),
    Compact { lag: u64, slots: usize },
}

fn step() -> impl Strategy<Value = CompactionStep> {
    let key = prop_oneof![12 => (0..12u8).prop_map(Some), 1 => Just(None)];
    let value = prop_oneof![3 => any::<u32>().prop_map(Some), 1 => Just(None)];
    prop_oneof![
        5 => proptest::collection::vec((key, value), 1..6).prop_map(CompactionStep::Append),
        3 => (0..40u64).prop_map(CompactionStep::Pass),
        2 => (0..100u64, 8..40usize).prop_map(|(lag, slots)| CompactionStep::Compact { lag, slots }),
    ]
}

/// A log that is compacted repeatedly, and the same log without compaction.
#[derive(Default)]
struct CompactionModel {
    now: u64,
    last: Hlc,
    log: BatchListLog,
    full: BatchListLog,
    first_dirty: Offset,
    compacted_to: Hlc,
    /// The time until which each tombstone stays that a run has seen as the last record of its key.
    tombstones: BTreeMap<u64, u64>,
}

impl CompactionModel {
    fn step(&mut self, step: CompactionStep) {
        match step {
            CompactionStep::Append(records) => {
                self.last = self.last.next().max(at(self.now));
                self.log.append(self.last, &records);
                self.full.append(self.last, &records);
            }
            CompactionStep::Pass(ms) => self.now += ms,
            CompactionStep::Compact { lag, slots } => self.compact(lag, slots),
        }
    }

    fn compact(&mut self, lag: u64, slots: usize) {
        let horizon = at(self.now.saturating_sub(lag));
        let options = CompactionOptions {
            horizon,
            memory_bytes: slots * 24,
            ..options(self.first_dirty, 0, self.now)
        };
        let outcome = run(&mut self.log, &options).expect("a batch of five keys fits");
        assert!(outcome.until >= self.first_dirty && outcome.unreadable == 0);
        assert!(outcome.compacted_to <= horizon.max(self.compacted_to));
        if slots >= 16 {
            // All twelve keys fit, so the run goes as far as the horizon allows.
            let (_, reach) = self.full.cut(Cut::below(horizon));
            assert_eq!(outcome.until, reach.max(self.first_dirty));
        }
        self.first_dirty = outcome.until;
        self.compacted_to = self.compacted_to.max(outcome.compacted_to);
        let values = last_of_each_key(&self.full, self.first_dirty);
        for (offset, value) in values.values() {
            if value.is_none() {
                self.tombstones.entry(*offset).or_insert(self.now + RETENTION);
            }
        }
        self.check();
    }

    fn check(&self) {
        let (log, full) = (self.log.records(), self.full.records());
        // The remaining records are unchanged.
        assert!(log.iter().all(|record| full.contains(record)));
        assert!(log.is_sorted_by(|a, b| a.0 < b.0));
        self.check_prefix(&log);
        // Every moment from the horizon on: just before, at and after each stamp.
        let moments = self.full.0.iter().flat_map(|stored| [stored.stamp, stored.stamp.next()]);
        for moment in moments.chain([self.compacted_to, Hlc::MAX]) {
            if moment >= self.compacted_to {
                let ours = self.log.cut(Cut::below(moment));
                let theirs = self.full.cut(Cut::below(moment));
                assert_eq!(ours.0.state(), theirs.0.state(), "at {moment}");
                assert_eq!(ours.1, theirs.1, "the end at {moment}");
            }
        }
        // A reader that continues from any offset sees the last record of each key. For a key
        // without a value, this holds at least until its tombstone expires.
        for (key, (offset, value)) in last_of_each_key(&self.full, self.full.end()) {
            let is_there = log.contains(&(offset, Some(key), value));
            let may_be_gone =
                value.is_none() && self.tombstones.get(&offset).is_some_and(|end| self.now >= *end);
            assert!(is_there || may_be_gone, "the last of a key is gone. offset={offset}");
        }
    }

    /// Below the compacted offset, each key occurs at most once, and none is missing.
    fn check_prefix(&self, log: &[CompactionRecord]) {
        let prefix: Vec<_> =
            log.iter().filter(|(offset, ..)| *offset < self.first_dirty.0).collect();
        let keys: std::collections::BTreeSet<_> = prefix.iter().map(|(_, key, _)| key).collect();
        assert_eq!(keys.len(), prefix.len(), "{prefix:?}");
        assert!(!keys.contains(&None));
    }
}

fn last_of_each_key(log: &BatchListLog, until: Offset) -> BTreeMap<Vec<u8>, (u64, Option<u32>)> {
    let records = log.records().into_iter().filter(|(offset, ..)| *offset < until.0);
    records.filter_map(|(offset, key, value)| Some((key?, (offset, value)))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_state_by_key_is_exact_from_the_horizon_on(steps in proptest::collection::vec(step(), 1..60)) {
        let mut model = CompactionModel { now: 1000, ..CompactionModel::default() };
        steps.into_iter().for_each(|step| model.step(step));
        // In the end everything is compacted, and every expired tombstone is dropped.
        model.now += 1;
        model.compact(0, 40);
        model.now += RETENTION;
        model.compact(0, 40);
        let left = model.log.records();
        prop_assert!(left.iter().all(|(_, key, value)| key.is_some() && value.is_some()));
        prop_assert_eq!(left.len(), model.full.state().len());
        prop_assert_eq!(model.log.end(), model.full.end());
    }
}

fn put(key: u8, value: u32) -> (Option<u8>, Option<u32>) {
    (Some(key), Some(value))
}

fn gone(key: u8) -> (Option<u8>, Option<u32>) {
    (Some(key), None)
}

fn offsets(log: &BatchListLog) -> Vec<u64> {
    log.records().iter().map(|(offset, ..)| *offset).collect()
}

#[test]
fn what_was_superseded_after_the_horizon_stays() {
    let mut log = BatchListLog::default();
    for (ms, value) in [(10, 0), (20, 1), (30, 2)] {
        log.append(at(ms), &[put(1, value), put(2, value)]);
    }
    let outcome = run(&mut log, &options(Offset(0), 30, 100)).unwrap();
    assert_eq!(offsets(&log), [2, 3, 4, 5]);
    assert_eq!((outcome.until, outcome.compacted_to), (Offset(4), at(20).next()));
    assert_eq!((outcome.records_dropped, outcome.records_kept), (2, 2));
    assert_eq!((outcome.batches_dropped, outcome.batches_kept), (1, 1));
}

#[test]
fn where_nothing_is_superseded_nothing_changes_and_every_moment_can_be_read() {
    let mut log = BatchListLog::default();
    log.append(at(10), &[put(1, 0), put(2, 0)]);
    log.append(at(20), &[put(3, 0)]);
    let outcome = run(&mut log, &options(Offset(0), 100, 100)).unwrap();
    assert_eq!((outcome.until, outcome.compacted_to), (Offset(3), Hlc::ZERO));
    assert!(!outcome.is_change());
}

#[test]
fn a_tombstone_outlives_what_it_deletes_by_the_retention() {
    let mut log = BatchListLog::default();
    log.append(at(10), &[put(1, 0)]);
    log.append(at(20), &[gone(1)]);
    log.append(at(30), &[put(2, 0)]);
    let mut compact_at = |now| {
        run(&mut log, &options(Offset(0), 100, now)).unwrap();
        offsets(&log)
    };
    assert_eq!(compact_at(100), [1, 2]);
    // The horizon is that of the first run.
    assert_eq!(compact_at(100 + RETENTION - 1), [1, 2]);
    assert_eq!(compact_at(100 + RETENTION), [2]);
}

#[test]
fn the_last_batch_stays_to_hold_the_end_and_goes_when_another_holds_it() {
    let mut log = BatchListLog::default();
    log.append(at(10), &[put(1, 0)]);
    log.append(at(20), &[gone(1)]);
    let first = run(&mut log, &options(Offset(0), 100, 100)).unwrap();
    let second = run(&mut log, &options(first.until, 200, 200)).unwrap();
    assert_eq!((offsets(&log), log.end(), log.0.len()), (vec![], Offset(2), 1));
    assert_eq!(second.compacted_to, at(20).next());
    let third = run(&mut log, &options(second.until, 300, 300)).unwrap();
    assert!(!third.is_change(), "an empty batch is not emptied again");
    log.append(at(300), &[put(2, 0)]);
    let fourth = run(&mut log, &options(third.until, 400, 400)).unwrap();
    assert_eq!((offsets(&log), log.0.len()), (vec![2], 1));
    // A cut before the last append would have another end than before.
    assert_eq!(fourth.compacted_to, at(300).next());
}

#[test]
fn a_run_that_has_no_room_for_more_keys_ends_there_and_the_next_goes_on() {
    let mut log = BatchListLog::default();
    for nth in 0..10 {
        log.append(at(nth), &[put(nth as u8, 0), put(0, nth as u32)]);
    }
    let full = log.clone();
    let mut first_dirty = Offset(0);
    for until in [8, 14, 20] {
        // Four keys in five slots.
        let options = CompactionOptions { memory_bytes: 5 * 24, ..options(first_dirty, 100, 100) };
        let outcome = run(&mut log, &options).unwrap();
        assert_eq!(outcome.until, Offset(until));
        // The batch that did not fit has superseded the first key, and stays.
        assert_eq!(outcome.compacted_to, at((until / 2).min(9)).next());
        first_dirty = outcome.until;
    }
    assert_eq!((first_dirty, log.state()), (full.end(), full.state()));
    assert_eq!(log.records().len(), 10);
}

#[test]
fn a_batch_whose_keys_never_fit_is_named_and_the_log_stays_as_it_is() {
    let mut log = BatchListLog::default();
    log.append(at(1), &[put(0, 0)]);
    log.append(at(2), &[put(0, 0), put(1, 0), put(2, 0), put(3, 0)]);
    let before = log.0.clone();
    let little =
        |first_dirty| CompactionOptions { memory_bytes: 4 * 24, ..options(first_dirty, 100, 100) };
    let first = run(&mut log, &little(Offset(0))).unwrap();
    assert_eq!(first.until, Offset(1));
    let refused = run(&mut log, &little(first.until));
    assert!(matches!(refused, Err(CompactionError::Memory { base: Offset(1), .. })), "{refused:?}");
    assert_eq!(log.0.last(), before.last());
}

/// A tombstone after a batch that cannot be read may be what keeps its keys from coming back.
#[test]
fn an_unreadable_batch_stays_and_so_does_every_tombstone_behind_it() {
    let mut log = BatchListLog::default();
    log.append(at(10), &[gone(1), put(2, 0)]);
    log.append(at(20), &[put(1, 7)]);
    log.0[1].batch = Bytes::from_static(&[0xff; 3]);
    log.append(at(30), &[gone(1), put(2, 1)]);
    log.append(at(40), &[put(2, 2)]);
    let broken = log.0[1].clone();
    for now in [100, 1000, 2000] {
        let outcome = run(&mut log, &options(Offset(0), 100, now)).unwrap();
        assert_eq!(outcome.unreadable, 1);
    }
    assert_eq!(offsets(&log), [3, 5]);
    assert!(log.0.contains(&broken));
    // Later it can be read, and is not dirty any more: its own tombstone was in no index.
    let batch =
        CompactionTestBatch { delete_horizon: None, records: vec![(2, Some(vec![9]), None)] };
    log.0.insert(0, SourceBatch { batch: batch.to_bytes(), ..broken.clone() });
    log.0.retain(|stored| *stored != broken);
    let end = log.end();
    for now in [3000, 4000] {
        run(&mut log, &options(end, 100, now)).unwrap();
    }
    assert_eq!(offsets(&log), [2, 3, 5]);
}

/// A pin below what an earlier run has compacted, where that run dropped nothing from any moment.
#[test]
fn a_horizon_that_is_lower_than_that_of_an_earlier_run_is_kept_too() {
    let mut log = BatchListLog::default();
    log.append(at(10), &[gone(1)]);
    log.append(at(20), &[gone(2)]);
    log.append(at(30), &[gone(3)]);
    let first = run(&mut log, &options(Offset(0), 100, 100)).unwrap();
    assert_eq!((first.until, first.compacted_to), (Offset(3), Hlc::ZERO));
    let second = run(&mut log, &options(first.until, 30, 1000)).unwrap();
    assert_eq!((second.until, second.compacted_to), (Offset(3), at(20).next()));
    assert_eq!(offsets(&log), [2]);
    assert_eq!(log.cut(Cut::below(at(30))).1, Offset(2));
}

#[test]
fn what_is_below_the_log_start_is_not_read() {
    let mut log = BatchListLog::default();
    log.append(at(10), &[put(1, 0)]);
    log.0[0].batch = Bytes::from_static(&[0xff; 3]);
    log.append(at(20), &[put(2, 0)]);
    log.append(at(30), &[put(2, 1)]);
    let options = CompactionOptions { start: Offset(1), ..options(Offset(0), 100, 100) };
    let outcome = run(&mut log, &options).unwrap();
    assert_eq!((outcome.unreadable, outcome.batches_dropped), (0, 1));
    assert_eq!((offsets(&log), log.0.len()), (vec![2], 1));
}

#[test]
fn a_failure_of_the_source_or_the_sink_ends_the_run() {
    struct FailingBatchSource(BatchListLog);
    impl BatchSource for FailingBatchSource {
        type Entry = SourceBatch<()>;
        fn batches(
            &self,
            from: Offset,
        ) -> impl Iterator<Item = Result<SourceBatch<SourceBatch<()>>, StorageError>> {
            let failed = std::iter::once_with(|| Err(io::Error::other("the disk fails").into()));
            self.0.batches(from).chain(failed)
        }
    }
    let mut log = BatchListLog::default();
    log.append(at(10), &[put(1, 0)]);
    let early = run(&mut log, &options(Offset(7), 100, 100));
    assert!(matches!(
        early,
        Err(CompactionError::EndsEarly { reached: Offset(1), until: Offset(7) })
    ));
    let options = options(Offset(0), 100, 100);
    let failed =
        compact(&FailingBatchSource(log.clone()), &options, &CompactionTestFormat, &mut |_| Ok(()));
    assert!(matches!(failed, Err(CompactionError::Disk(_))), "{failed:?}");
    let failed = compact(&log, &options, &CompactionTestFormat, &mut |_| {
        Err(io::Error::other("it is full").into())
    });
    assert!(matches!(failed, Err(CompactionError::Disk(_))), "{failed:?}");
}
