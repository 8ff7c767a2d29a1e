//! Compaction on a whole engine: from the horizon on the past does not change, and before it a read
//! is an error (TIME.md 11.12).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use engine::{EngineError, Offset, SeekError, WaitPolicy};
use hlc::{Cut, Hlc, Moment, MomentSelector, SysTime, UserTime};
use proptest::prelude::*;
use testkit::kafka::{TestKafkaEngine, TestReadRecord, TestRecordInput, read_all};

const KEYS: u32 = 6;
const RETENTION_MS: &str = "6000";

#[derive(Clone, Debug)]
enum KafkaCompactionStep {
    /// Keys, and whether they get a value; how long before.
    Produce(Vec<(u32, bool)>, u64),
    /// The number, among the last five batches, of the one that is sent again.
    Resend(usize),
    RollSegment,
    Compact,
    Retain,
    DeleteTo(u8),
    Reclaim,
    Pin,
    Unpin,
    Restart,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<KafkaCompactionStep>> {
    let records = prop::collection::vec((0..KEYS, prop::bool::weighted(0.75)), 1..6);
    let step = prop_oneof![
        10 => (records, 0..400_u64).prop_map(|(records, after)| KafkaCompactionStep::Produce(records, after)),
        2 => (0..5_usize).prop_map(KafkaCompactionStep::Resend),
        4 => Just(KafkaCompactionStep::RollSegment),
        4 => Just(KafkaCompactionStep::Compact),
        1 => Just(KafkaCompactionStep::Retain),
        1 => any::<u8>().prop_map(KafkaCompactionStep::DeleteTo),
        2 => Just(KafkaCompactionStep::Reclaim),
        1 => Just(KafkaCompactionStep::Pin),
        1 => Just(KafkaCompactionStep::Unpin),
        1 => Just(KafkaCompactionStep::Restart),
        1 => Just(KafkaCompactionStep::Crash),
    ];
    prop::collection::vec(step, 10..60)
}

struct KafkaCompactionBatch {
    base: u64,
    end: u64,
    stamp: Hlc,
    sequence: i32,
    records: Vec<TestReadRecord>,
    sent: Vec<TestRecordInput>,
}

struct KafkaCompactionModel {
    test_engine: TestKafkaEngine,
    batches: Vec<KafkaCompactionBatch>,
    /// Moments, and the first hash of each.
    moments: Vec<(Cut, u128)>,
    start: u64,
    deletes: bool,
    /// None below zero.
    retention_bytes: i64,
}

impl KafkaCompactionModel {
    async fn new(
        policy: &str,
        retention_bytes: &str,
        tail_bytes_max: usize,
    ) -> KafkaCompactionModel {
        let mut options = TestKafkaEngine::options();
        options.core.storage.tail_bytes_max = tail_bytes_max;
        let fixture = TestKafkaEngine::with(options);
        let configs = [
            ("cleanup.policy", policy),
            ("min.compaction.lag.ms", "500"),
            ("min.cleanable.dirty.ratio", "0"),
            ("delete.retention.ms", "700"),
            ("retention.ms", RETENTION_MS),
            ("retention.bytes", retention_bytes),
        ];
        fixture.topic("c", 1, &configs).await;
        // Another topic in the same files, of which nothing is ever removed.
        fixture.topic("other", 1, &[("retention.ms", "-1")]).await;
        let deletes = policy.contains("delete");
        let retention_bytes = retention_bytes.parse().unwrap();
        KafkaCompactionModel {
            test_engine: fixture,
            batches: Vec::new(),
            moments: Vec::new(),
            start: 0,
            deletes,
            retention_bytes,
        }
    }

    async fn produce(&mut self, keys: &[(u32, bool)], after: u64) {
        self.test_engine.advance_clock(after);
        let base = self.batches.last().map_or(0, |batch| batch.end);
        let sent: Vec<TestRecordInput> = keys
            .iter()
            .enumerate()
            .map(|(nth, (key, has_value))| {
                let value = has_value.then(|| format!("v{}", base + nth as u64));
                // User times that decrease now and then.
                let time = 1000 * self.batches.len() as i64 - 700 * i64::from(*key);
                (Some(format!("k{key}")), value, time)
            })
            .collect();
        let producer = Some((9, 0, base as i32));
        let appended = self.test_engine.produce_as("c", 0, &sent, producer).await.unwrap();
        assert_eq!(appended.base.0, base);
        let record: TestRecordInput = (None, Some("x".repeat(100)), 0);
        self.test_engine.produce("other", 0, &[record]).await;
        let read = |(nth, (key, value, time)): (usize, &TestRecordInput)| TestReadRecord {
            offset: base + nth as u64,
            key: key.clone(),
            value: value.clone(),
            time: *time,
        };
        self.batches.push(KafkaCompactionBatch {
            base,
            end: base + sent.len() as u64,
            stamp: appended.stamp,
            sequence: base as i32,
            records: sent.iter().enumerate().map(read).collect(),
            sent,
        });
        self.test_engine.advance_clock(1);
        for cut in [Cut::below(appended.stamp), Cut::through(appended.stamp)] {
            if let Ok(hash) = self.test_engine.hash("c", cut).await {
                self.moments.push((cut, hash));
            }
        }
    }

    async fn resend(&self, nth: usize) {
        let Some(batch) = self.batches.iter().rev().nth(nth) else { return };
        let producer = Some((9, 0, batch.sequence));
        match self.test_engine.produce_as("c", 0, &batch.sent, producer).await {
            Err(EngineError::Duplicate { base, .. }) => assert_eq!(base.0, batch.base),
            other => panic!("the {nth}th last is a duplicate: {other:?}"),
        }
    }

    fn in_cut(&self, cut: Cut) -> impl Iterator<Item = &TestReadRecord> {
        let held = self.batches.iter().filter(move |batch| cut.admits(batch.stamp));
        held.flat_map(|batch| &batch.records).filter(|record| record.offset >= self.start)
    }

    /// The contents of a cut have the state by key that a replay yields, with offsets.
    fn check_state(&self, found: &[TestReadRecord], cut: Cut, said: &str) {
        let expected = state(self.in_cut(cut));
        assert_eq!(state(found.iter()), expected, "{said}");
        let mut known = self.in_cut(cut).peekable();
        for read in found {
            while known.next_if(|record| record.offset < read.offset).is_some() {}
            assert_eq!(known.next(), Some(read), "{said}: nothing is made up");
        }
    }

    async fn check(&mut self) {
        let present = self.test_engine.present("c", 0);
        assert_eq!(present.end().0, self.batches.last().map_or(0, |batch| batch.end));
        assert_eq!(present.start().0, self.start);
        self.check_state(&read_all(&present), Cut::ALL, "now");
        let horizon = present.partition.log.horizon();
        for (cut, hash) in &self.moments {
            let said = format!("{cut:?}, horizon {:?}, start {}", horizon.compacted_to, self.start);
            let end = self.batches.iter().rfind(|batch| cut.admits(batch.stamp));
            let end = end.map_or(0, |batch| batch.end);
            let is_lost = end < self.start || cut.bound() < horizon.compacted_to;
            match self.test_engine.at("c", *cut).await {
                Ok(view) => {
                    assert!(!is_lost, "{said}");
                    assert_eq!(view.partitions[0].end().0, end, "{said}");
                    self.check_state(&read_all(&view.partitions[0]), *cut, &said);
                    assert_eq!(self.test_engine.hash("c", *cut).await.unwrap(), *hash, "{said}");
                }
                Err(SeekError::BeforeHistory { lost }) => {
                    assert!(is_lost, "{said}");
                    let earliest = Cut::below(lost[0].earliest);
                    assert!(self.test_engine.hash("c", *cut).await.is_err());
                    assert!(self.test_engine.at("c", earliest).await.is_ok(), "{said}");
                }
                Err(error) => panic!("{said}: {error}"),
            }
            self.check_window(*cut, is_lost).await;
        }
        self.check_user_times().await;
    }

    /// From a moment to the last.
    async fn check_window(&self, first: Cut, is_lost: bool) {
        let Some((last, _)) = self.moments.last() else { return };
        let ask = MomentSelector::window(Moment::Sys(first), Moment::Sys(*last));
        let Ok(ask) = ask else { return };
        let view = self.test_engine.engine.seek().view("c", ask, WaitPolicy::Refuse).await;
        assert_eq!(view.is_err(), is_lost, "{view:?}");
    }

    /// The prefix before a user time, as known at the last moment: with the state that it always
    /// had, or an error.
    async fn check_user_times(&self) {
        let Some((known, _)) = self.moments.last() else { return };
        let horizon = self.test_engine.present("c", 0).partition.log.horizon();
        for time in (-4000..1000 * self.batches.len() as i64 + 2000).step_by(900) {
            let all = self.batches.iter().filter(|batch| known.admits(batch.stamp));
            let records = all.clone().flat_map(|batch| &batch.records);
            let end = records.clone().find(|record| record.time >= time);
            let end = end.map_or(all.clone().next_back().map_or(0, |batch| batch.end), |record| {
                record.offset
            });
            let view = self.test_engine.before("c", time, *known).await;
            if let Ok(view) = view {
                let said = format!("u{time}, {horizon:?}");
                assert!(end >= self.start, "{said}");
                assert_eq!(view.partitions[0].end().0, end, "{said}");
                let held = |record: &&TestReadRecord| (self.start..end).contains(&record.offset);
                let found = read_all(&view.partitions[0]);
                assert_eq!(state(found.iter()), state(records.filter(held)), "{said}");
            } else if self.start == 0 && horizon.compacted_to == Hlc::ZERO {
                panic!("u{time} is whole: {view:?}");
            }
        }
        // The largest time of what is left.
        let present = self.test_engine.present("c", 0);
        let found = self.test_engine.engine.seek().latest_by_user_time(&present).unwrap();
        let all = read_all(&present);
        let largest = all.iter().map(|read| read.time).max();
        assert_eq!(found.map(|found| found.time.0), largest);
        for time in all.iter().map(|read| read.time) {
            let found =
                self.test_engine.engine.seek().first_at_or_after(&present, UserTime(time)).unwrap();
            let first = all.iter().find(|read| read.time >= time).map(|read| read.offset);
            assert_eq!(found.map(|found| found.offset.0), first, "u{time}");
        }
    }

    /// Each batch that is kept: the first offset, when it was accepted, and its bytes.
    fn retained(&self) -> Vec<(u64, u64, u64)> {
        let view = self.test_engine.present("c", 0);
        let pieces = view.read(self.start as i64, usize::MAX).unwrap();
        let fact =
            |entry: &engine::Entry| (entry.base.0, entry.stamp.time().0, u64::from(entry.length));
        pieces
            .iter()
            .filter(|piece| piece.entry.count > 0)
            .map(|piece| fact(&piece.entry))
            .collect()
    }

    /// The first batch that ends after an offset.
    fn next_batch(&self, offset: u64) -> Option<u64> {
        let next = self.test_engine.present("c", 0).partition.log.entry_at(Offset(offset)).unwrap();
        next.map(|entry| entry.base.0)
    }

    /// The first batch that retention leaves if no pin holds it, one after the other.
    fn first_retained(&self) -> Option<u64> {
        let kept = self.retained();
        if !self.deletes {
            return kept.first().map(|(base, ..)| *base);
        }
        let oldest = self.test_engine.engine.wall_now().0 - RETENTION_MS.parse::<u64>().unwrap();
        let mut left: u64 = kept.iter().map(|(.., bytes)| bytes).sum();
        let first = kept.iter().find(|(_, time, bytes)| {
            let is_spare = self.retention_bytes >= 0 && left - bytes >= self.retention_bytes as u64;
            left -= bytes;
            *time >= oldest && !is_spare
        });
        first.map(|(base, ..)| *base)
    }

    async fn act(mut self, step: &KafkaCompactionStep) -> KafkaCompactionModel {
        let engine = &self.test_engine.engine;
        match step {
            KafkaCompactionStep::Produce(keys, after) => self.produce(keys, *after).await,
            KafkaCompactionStep::Resend(nth) => self.resend(*nth).await,
            KafkaCompactionStep::RollSegment => self.test_engine.roll_and_index().await,
            KafkaCompactionStep::Compact => drop(engine.maintenance().compact_due().await.unwrap()),
            KafkaCompactionStep::Retain => {
                let expected = self.first_retained();
                engine.maintenance().apply_retention().await.unwrap();
                let start = self.test_engine.present("c", 0).start().0;
                let is_pinned = !engine.pins().all().is_empty();
                assert!(start == self.start || self.deletes);
                assert!(is_pinned && start == self.start || self.next_batch(start) == expected);
                self.start = start;
            }
            KafkaCompactionStep::DeleteTo(part) => {
                let topic = engine.topics().named("c").unwrap();
                let end = self.test_engine.present("c", 0).end().0;
                let before = self.start + (end - self.start) * u64::from(*part) / 512;
                match engine.topics().delete_records(&topic, 0, before as i64).await {
                    Ok(start) => self.start = start.0,
                    Err(EngineError::Pinned { .. }) => {
                        assert!(!engine.pins().all().is_empty())
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            KafkaCompactionStep::Reclaim => drop(engine.maintenance().reclaim().await.unwrap()),
            KafkaCompactionStep::Pin => {
                let expires = SysTime(engine.wall_now().0 + 3_600_000);
                // A pin that exists already, or of a moment that is lost, is refused.
                if let Some((cut, _)) = self.moments.get(self.moments.len() / 2) {
                    let _ = engine.pins().set("p", *cut, WaitPolicy::Refuse, expires, None).await;
                }
            }
            KafkaCompactionStep::Unpin => drop(engine.pins().remove("p").await),
            KafkaCompactionStep::Restart => self.test_engine = self.test_engine.restart(),
            KafkaCompactionStep::Crash => self.test_engine = self.test_engine.crash(),
        }
        for pin in self.test_engine.engine.pins().all() {
            let whole = self.test_engine.at("c", pin.at).await;
            assert!(whole.is_ok(), "a pin's moment is whole: {pin:?} {step:?} {whole:?}");
        }
        self
    }
}

fn state<'a>(records: impl Iterator<Item = &'a TestReadRecord>) -> BTreeMap<String, (u64, String)> {
    let mut state = BTreeMap::new();
    for record in records {
        let key = record.key.clone().unwrap();
        match &record.value {
            Some(value) => state.insert(key, (record.offset, value.clone())),
            None => state.remove(&key),
        };
    }
    state
}

async fn play(
    policy: &str,
    retention_bytes: &str,
    tail_bytes_max: usize,
    steps: &[KafkaCompactionStep],
) -> u64 {
    let mut world = KafkaCompactionModel::new(policy, retention_bytes, tail_bytes_max).await;
    let mut replaced = 0;
    let count = |world: &KafkaCompactionModel| {
        world.test_engine.engine.history_stats().replaced_prefixes.load(Ordering::Relaxed)
    };
    for (nth, step) in steps.iter().enumerate() {
        if matches!(step, KafkaCompactionStep::Restart | KafkaCompactionStep::Crash) {
            replaced += count(&world);
        }
        world = world.act(step).await;
        if nth % 4 == 3 || !matches!(step, KafkaCompactionStep::Produce(..)) {
            world.check().await;
        }
    }
    for nth in 0..5 {
        world.resend(nth).await;
    }
    // A check finds no problem, and all proofs are valid.
    world.test_engine.engine.close();
    let report = storage::check::verify(&world.test_engine.disk, &[], &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    replaced + count(&world)
}

/// Set PROPTEST_CASES to run more.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    asked.unwrap_or(40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_past_from_the_horizon_on_is_what_it_was(
        steps in steps(),
        deletes in any::<bool>(),
        retention_bytes in prop_oneof![Just("-1"), Just("0"), Just("700")],
        tail_bytes_max in prop_oneof![Just(1_usize), Just(3000), Just(64 << 20)],
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let policy = if deletes { "compact,delete" } else { "compact" };
        runtime.block_on(play(policy, retention_bytes, tail_bytes_max, &steps));
    }
}

/// A moment that ends where the remaining records begin, when the records after it have been
/// compacted: its end and its hash do not change.
#[tokio::test(flavor = "multi_thread")]
async fn a_moment_at_the_start_of_what_is_compacted_ends_where_it_did() {
    let records = |count| vec![(0, true); count];
    let steps = [
        KafkaCompactionStep::Produce(records(2), 0),
        KafkaCompactionStep::Produce(records(1), 0),
        KafkaCompactionStep::RollSegment,
        KafkaCompactionStep::Produce(records(4), 150),
        // The first two of seven.
        KafkaCompactionStep::DeleteTo(147),
        KafkaCompactionStep::Produce(records(1), 200),
        KafkaCompactionStep::Produce(records(1), 200),
        KafkaCompactionStep::Compact,
        KafkaCompactionStep::Reclaim,
        KafkaCompactionStep::Reclaim,
        KafkaCompactionStep::Crash,
    ];
    assert_eq!(play("compact", "-1", 1, &steps).await, 1);
}

/// A long run of the same, which is known to compact.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_compacted_over_and_over_has_its_state_at_every_moment() {
    let mut steps = Vec::new();
    for round in 0..12_u32 {
        for nth in 0..6 {
            let keys = [((round + nth) % KEYS, nth % 4 != 3), (nth * round % KEYS, true)];
            steps.push(KafkaCompactionStep::Produce(keys.to_vec(), 150));
        }
        steps.extend([
            KafkaCompactionStep::RollSegment,
            KafkaCompactionStep::Compact,
            KafkaCompactionStep::Reclaim,
            KafkaCompactionStep::Resend(4),
        ]);
        match round % 6 {
            1 => steps.push(KafkaCompactionStep::Crash),
            2 => steps.push(KafkaCompactionStep::Pin),
            3 => steps.push(KafkaCompactionStep::Unpin),
            4 => steps.push(KafkaCompactionStep::Restart),
            _ => {}
        }
    }
    for tail_bytes_max in [1, 3000, 64 << 20] {
        let replaced = play("compact", "-1", tail_bytes_max, &steps).await;
        assert!(replaced >= 8, "{replaced}");
    }
}
