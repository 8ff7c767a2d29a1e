//! The data that maintenance removes, and the data that it must not remove: retention,
//! DeleteRecords, pins, deleted topics, and the space of all that (TIME.md 6; F12, F38, B13).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::{CoreOptions, EngineError, EngineOptions, Offset, SeekError, WaitPolicy};
use hlc::{Cut, Hlc, SysTime};
use testkit::kafka::{TestKafkaEngine, TestReadRecord, TestRecordInput, read_all};

const SECOND: u64 = 1000;

/// A batch that was produced, as the model remembers it.
#[derive(Clone, Debug)]
struct KafkaRetentionBatch {
    partition: u32,
    base: u64,
    end: u64,
    stamp: Hlc,
    records: Vec<TestReadRecord>,
}

#[derive(Default)]
struct KafkaRetentionModel {
    batches: Vec<KafkaRetentionBatch>,
    /// Moments between batches.
    moments: Vec<Cut>,
}

impl KafkaRetentionModel {
    async fn produce(
        &mut self,
        fixture: &TestKafkaEngine,
        topic: &str,
        partition: u32,
        times: &[i64],
    ) {
        let nth = self.batches.len();
        // Large enough for space to be reclaimed.
        let value = format!("{nth:>2000}");
        let records: Vec<TestRecordInput> =
            times.iter().map(|time| (None, Some(value.clone()), *time)).collect();
        let appended = fixture.produce(topic, partition, &records).await;
        let base = appended.base.0;
        let read = |(nth, time): (usize, &i64)| TestReadRecord {
            offset: base + nth as u64,
            key: None,
            value: Some(value.clone()),
            time: *time,
        };
        self.batches.push(KafkaRetentionBatch {
            partition,
            base,
            end: base + times.len() as u64,
            stamp: appended.stamp,
            records: times.iter().enumerate().map(read).collect(),
        });
        self.moments.push(Cut::below(appended.stamp));
        self.moments.push(Cut::through(appended.stamp));
    }

    fn of(&self, partition: u32) -> impl DoubleEndedIterator<Item = &KafkaRetentionBatch> {
        self.batches.iter().filter(move |batch| batch.partition == partition)
    }

    fn end_at(&self, partition: u32, cut: Cut) -> u64 {
        let mut held = self.of(partition).filter(|batch| cut.admits(batch.stamp));
        held.next_back().map_or(0, |batch| batch.end)
    }

    /// The end of the prefix before the first record at or after a user time, as known at `cut`.
    fn end_before(&self, partition: u32, time: i64, cut: Cut) -> u64 {
        let found = self
            .of(partition)
            .filter(|batch| cut.admits(batch.stamp))
            .flat_map(|batch| &batch.records)
            .find(|record| record.time >= time);
        found.map_or(self.end_at(partition, cut), |record| record.offset)
    }

    fn between(&self, partition: u32, start: u64, end: u64) -> Vec<TestReadRecord> {
        let records = self.of(partition).flat_map(|batch| &batch.records).cloned();
        records.filter(|record| (start..end).contains(&record.offset)).collect()
    }

    /// The log start of a partition when all that is older is gone.
    fn start_by_age(&self, partition: u32, oldest: u64) -> u64 {
        let kept = self.of(partition).find(|batch| batch.stamp.time().0 >= oldest);
        kept.map_or_else(|| self.end_at(partition, Cut::ALL), |batch| batch.base)
    }
}

/// Compares what can be read of a topic with the model: at every moment, present and past.
async fn check(
    fixture: &TestKafkaEngine,
    topic: &str,
    model: &KafkaRetentionModel,
    starts: &[u64],
) {
    let partitions = || (0..starts.len() as u32).zip(starts.iter().copied());
    for (index, start) in partitions() {
        let view = fixture.present(topic, index);
        let end = model.end_at(index, Cut::ALL);
        assert_eq!((view.start().0, view.end().0), (start, end));
        assert_eq!(read_all(&view), model.between(index, start, end));
        if start > 0 {
            for below in [0, start - 1] {
                let refused = view.read(below as i64, 1 << 20);
                assert!(matches!(refused, Err(EngineError::OffsetOutOfRange { .. })), "{below}");
            }
        }
    }
    for cut in &model.moments {
        let expected: Vec<u32> = partitions()
            .filter(|(index, start)| model.end_at(*index, *cut) < *start)
            .map(|(index, _)| index)
            .collect();
        match fixture.at(topic, *cut).await {
            Ok(view) => {
                assert_eq!(expected, [0; 0], "at {cut:?}");
                for (index, start) in partitions() {
                    let end = model.end_at(index, *cut);
                    let found = read_all(&view.partitions[index as usize]);
                    assert_eq!(found, model.between(index, start, end), "at {cut:?}");
                }
            }
            Err(SeekError::BeforeHistory { lost }) => {
                let named: Vec<u32> = lost.iter().map(|lost| lost.partition).collect();
                assert_eq!(named, expected, "at {cut:?}");
                for lost in &lost {
                    let earliest = Cut::below(lost.earliest);
                    let index = lost.partition;
                    assert!(model.end_at(index, earliest) >= starts[index as usize]);
                    let before = Cut::below(lost.earliest.previous());
                    assert!(model.end_at(index, before) < starts[index as usize]);
                }
                let latest = lost.iter().map(|lost| lost.earliest).max().expect("one is named");
                fixture.at(topic, Cut::below(latest)).await.expect("the earliest moment is whole");
            }
            Err(error) => panic!("at {cut:?}: {error}"),
        }
        check_user_times(fixture, topic, model, starts, *cut).await;
    }
}

/// By user time too, a moment reads as it always did, or is an error.
async fn check_user_times(
    fixture: &TestKafkaEngine,
    topic: &str,
    model: &KafkaRetentionModel,
    starts: &[u64],
    known: Cut,
) {
    let times = model.batches.iter().flat_map(|batch| &batch.records).map(|record| record.time);
    for time in times.step_by(7) {
        let ends: Vec<u64> =
            (0..starts.len() as u32).map(|index| model.end_before(index, time, known)).collect();
        let is_lost = ends.iter().zip(starts).any(|(end, start)| end < start)
            || fixture.at(topic, known).await.is_err();
        match fixture.before(topic, time, known).await {
            Ok(view) => {
                assert!(!is_lost, "u{time} as of {known:?} is lost: {starts:?} {ends:?}");
                for (index, (end, start)) in ends.into_iter().zip(starts).enumerate() {
                    let found = read_all(&view.partitions[index]);
                    assert_eq!(found, model.between(index as u32, *start, end), "u{time}");
                }
            }
            Err(SeekError::BeforeHistory { .. }) => assert!(is_lost, "u{time} as of {known:?}"),
            Err(error) => panic!("u{time}: {error}"),
        }
    }
}

async fn hashes(
    fixture: &TestKafkaEngine,
    topic: &str,
    model: &KafkaRetentionModel,
) -> Vec<Option<u128>> {
    let mut hashes = Vec::new();
    for cut in &model.moments {
        hashes.push(fixture.hash(topic, *cut).await.ok());
    }
    hashes
}

fn sorted_bytes(fixture: &TestKafkaEngine) -> u64 {
    fixture.engine.history_stats().sorted_bytes.load(Ordering::Relaxed)
}

/// Three segments of two topics, a second between batches; user times out of order.
async fn fill(fixture: &TestKafkaEngine, a: &mut KafkaRetentionModel, b: &mut KafkaRetentionModel) {
    for segment in 0..3_i64 {
        for nth in 0..12_i64 {
            fixture.advance_clock(SECOND);
            let time = 1000 * segment + 10 * nth;
            a.produce(fixture, "a", (nth % 2) as u32, &[time, time + 35, time - 20]).await;
            b.produce(fixture, "b", 0, &[time]).await;
        }
        fixture.roll_and_index().await;
    }
    for nth in 0..4 {
        fixture.advance_clock(SECOND);
        a.produce(fixture, "a", nth % 2, &[5000, 4000]).await;
        b.produce(fixture, "b", 0, &[5000]).await;
    }
    fixture.advance_clock(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn f34_retention_by_age_deletes_what_is_old_and_says_so_and_nothing_else() {
    let mut fixture = TestKafkaEngine::new();
    fixture.topic("a", 2, &[("retention.ms", "20000")]).await;
    fixture.topic("b", 1, &[("retention.ms", "-1")]).await;
    let (mut a, mut b) = (KafkaRetentionModel::default(), KafkaRetentionModel::default());
    fill(&fixture, &mut a, &mut b).await;
    check(&fixture, "a", &a, &[0, 0]).await;
    let before = hashes(&fixture, "b", &b).await;
    assert!(before.iter().all(Option::is_some));
    let a_before = hashes(&fixture, "a", &a).await;
    let (held, filed) = (fixture.disk.used_bytes(), sorted_bytes(&fixture));
    assert!(filed > 0, "segments with two topics are sorted");

    assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 2);
    let oldest = fixture.engine.wall_now().0 - 20_000;
    let mut starts = vec![a.start_by_age(0, oldest), a.start_by_age(1, oldest)];
    assert!(starts.iter().all(|start| *start > 12), "more than a segment goes: {starts:?}");
    check(&fixture, "a", &a, &starts).await;
    assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 0);

    fixture.reclaim().await;
    fixture.engine.maintenance().index_and_sort().await.unwrap();
    let gone: u64 = a.batches.iter().filter(|batch| batch.end <= 18).map(|_| 6000).sum();
    let given_back = held - fixture.disk.used_bytes();
    assert!(given_back > gone * 8 / 10, "{given_back} of {gone}");
    assert_eq!(sorted_bytes(&fixture), filed, "nobody's data is copied for it");
    for life in 0..3 {
        check(&fixture, "a", &a, &starts).await;
        check(&fixture, "b", &b, &[0]).await;
        assert_eq!(hashes(&fixture, "b", &b).await, before);
        let after = hashes(&fixture, "a", &a).await;
        assert!(
            after.iter().zip(&a_before).all(|(after, before)| after.is_none() || after == before)
        );
        assert!(after.iter().any(Option::is_some));
        fixture = if life == 0 { fixture.restart() } else { fixture.crash() };
    }
    // Also what lies in the open segment, the newest batch too; and then more is appended.
    fixture.advance_clock(100_000);
    assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 2);
    starts = vec![a.end_at(0, Cut::ALL), a.end_at(1, Cut::ALL)];
    check(&fixture, "a", &a, &starts).await;
    fixture.roll_and_index().await;
    fixture.reclaim().await;
    fixture.reclaim().await;
    check(&fixture, "a", &a, &starts).await;
    fixture = fixture.crash();
    a.produce(&fixture, "a", 1, &[9000]).await;
    fixture.advance_clock(1);
    check(&fixture, "a", &a, &starts).await;
    assert_eq!(hashes(&fixture, "b", &b).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn f34_retention_by_size_keeps_as_much_as_it_says_in_whole_batches() {
    let mut fixture = TestKafkaEngine::new();
    fixture.topic("a", 2, &[("retention.bytes", "30000"), ("retention.ms", "-1")]).await;
    fixture.topic("b", 1, &[]).await;
    let (mut a, mut b) = (KafkaRetentionModel::default(), KafkaRetentionModel::default());
    fill(&fixture, &mut a, &mut b).await;
    let before = hashes(&fixture, "b", &b).await;
    assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 2);
    let topic = fixture.engine.topics().named("a").unwrap();
    let starts: Vec<u64> = (0..2).map(|index| fixture.present("a", index).start().0).collect();
    for (index, start) in (0..2).zip(&starts) {
        let log = &topic.partitions[index as usize].log;
        let kept = log.bytes().unwrap();
        let first = a.of(index).find(|batch| batch.base == *start).expect("a whole batch");
        let length = log.entry_at(Offset(first.base)).unwrap().unwrap().length;
        assert!(kept >= 30_000 && kept - u64::from(length) < 30_000, "{kept}");
    }
    for _ in 0..2 {
        check(&fixture, "a", &a, &starts).await;
        fixture.reclaim().await;
        fixture.engine.maintenance().index_and_sort().await.unwrap();
        assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 0);
        check(&fixture, "a", &a, &starts).await;
        check(&fixture, "b", &b, &[0]).await;
        assert_eq!(hashes(&fixture, "b", &b).await, before);
        fixture = fixture.restart();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_that_are_deleted_in_the_midst_of_a_batch_are_gone_at_every_moment() {
    let mut fixture = TestKafkaEngine::new();
    fixture.topic("a", 2, &[]).await;
    fixture.topic("b", 1, &[]).await;
    let (mut a, mut b) = (KafkaRetentionModel::default(), KafkaRetentionModel::default());
    fill(&fixture, &mut a, &mut b).await;
    let mut starts = [0, 0];
    for (partition, before) in [(0, 1), (1, 20), (0, 18), (0, 25), (1, 54), (0, 58)] {
        let topic = fixture.engine.topics().named("a").unwrap();
        let start =
            fixture.engine.topics().delete_records(&topic, partition, before).await.unwrap();
        starts[partition as usize] = before as u64;
        assert_eq!(start.0, before as u64);
        fixture.reclaim().await;
        fixture.engine.maintenance().index_and_sort().await.unwrap();
        check(&fixture, "a", &a, &starts).await;
        fixture = if before % 2 == 0 { fixture.restart() } else { fixture.crash() };
        check(&fixture, "a", &a, &starts).await;
    }
    check(&fixture, "b", &b, &[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_keeps_what_it_covers_from_being_deleted_until_it_expires() {
    let mut fixture = TestKafkaEngine::new();
    fixture.topic("a", 2, &[("retention.ms", "1000")]).await;
    fixture.topic("b", 1, &[]).await;
    let (mut a, mut b) = (KafkaRetentionModel::default(), KafkaRetentionModel::default());
    fill(&fixture, &mut a, &mut b).await;
    let at = a.moments[30];
    let hash = fixture.hash("a", at).await.unwrap();
    let expires = SysTime(fixture.engine.wall_now().0 + 60_000);
    fixture.engine.pins().set("p", at, WaitPolicy::Refuse, expires, None).await.unwrap();
    fixture.advance_clock(10_000);
    let topic = fixture.engine.topics().named("a").unwrap();
    for _ in 0..2 {
        assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 0);
        let deleted = fixture.engine.topics().delete_records(&topic, 0, 5).await;
        assert!(matches!(deleted, Err(EngineError::Pinned { .. })), "{deleted:?}");
        fixture.reclaim().await;
        assert_eq!(fixture.hash("a", at).await.unwrap(), hash);
        check(&fixture, "a", &a, &[0, 0]).await;
        fixture = fixture.crash();
    }
    fixture.advance_clock(60_000);
    assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 2);
    assert_eq!(fixture.engine.pins().all(), []);
    check(&fixture, "a", &a, &[a.end_at(0, Cut::ALL), a.end_at(1, Cut::ALL)]).await;
    assert!(matches!(fixture.hash("a", at).await, Err(SeekError::BeforeHistory { .. })));
}

/// F12, B13: a topic that was deleted and created again. Each moment shows the topic of that time,
/// and retention of the old one removes nothing of the new one.
#[tokio::test(flavor = "multi_thread")]
async fn f12_b13_a_deleted_topic_goes_after_its_time_and_the_one_of_its_name_does_not() {
    let mut options = TestKafkaEngine::options();
    options.core.deleted_topic_retention = Duration::from_secs(100);
    let mut fixture = TestKafkaEngine::with(options);
    let mut old = KafkaRetentionModel::default();
    fixture.topic("a", 2, &[("retention.ms", "-1")]).await;
    fixture.topic("b", 1, &[]).await;
    let mut b = KafkaRetentionModel::default();
    fill(&fixture, &mut old, &mut b).await;
    let last = fixture.now();
    let old_hashes = hashes(&fixture, "a", &old).await;
    fixture.advance_clock(1);
    let id = fixture.engine.topics().named("a").unwrap().id;
    fixture.engine.topics().delete(id).await.unwrap();
    fixture.advance_clock(1);
    let between = fixture.now();
    fixture.advance_clock(1);
    fixture.topic("a", 1, &[("retention.ms", "-1")]).await;
    let mut new = KafkaRetentionModel::default();
    new.produce(&fixture, "a", 0, &[7]).await;
    fixture.advance_clock(1);
    fixture.roll_and_index().await;
    // The last moment of the old one still shows it.
    assert_eq!(fixture.at("a", last).await.unwrap().partitions.len(), 2);
    assert!(matches!(fixture.at("a", between).await, Err(SeekError::NoTopic { .. })));
    fixture.advance_clock(90_000);
    assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 0);
    assert_eq!(hashes(&fixture, "a", &old).await, old_hashes);
    fixture.advance_clock(10_000);
    let held = fixture.disk.used_bytes();
    assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 2);
    fixture.reclaim().await;
    fixture.engine.maintenance().index_and_sort().await.unwrap();
    fixture.reclaim().await;
    assert!(held - fixture.disk.used_bytes() > 36 * 6000 * 8 / 10);
    for _ in 0..2 {
        // At its last moment it begins where it ended; before, it is lost.
        for view in fixture.at("a", last).await.unwrap().partitions {
            assert_eq!((view.start(), view.end()), (Offset(58), Offset(58)));
        }
        let lost = fixture.at("a", old.moments[70]).await;
        assert!(
            matches!(&lost, Err(SeekError::BeforeHistory { lost }) if lost.len() == 2),
            "{lost:?}"
        );
        assert!(matches!(fixture.at("a", between).await, Err(SeekError::NoTopic { .. })));
        check(&fixture, "a", &new, &[0]).await;
        check(&fixture, "b", &b, &[0]).await;
        fixture = fixture.crash();
    }
}

/// F38: also of what is sealed, sorted and partly removed.
#[tokio::test(flavor = "multi_thread")]
async fn f38_a_hundred_thousand_moments_of_what_is_sealed_leave_the_memory_bounded() {
    const MOMENTS: u64 = 100_000;
    const INDEX_BYTES: usize = 128 << 10;
    let mut options = TestKafkaEngine::options();
    options.core.storage.index_bytes_max = INDEX_BYTES;
    options.core.cut_cache_bytes_max = 64 << 10;
    let fixture = TestKafkaEngine::with(options);
    fixture.topic("a", 2, &[]).await;
    let record: TestRecordInput = (None, Some("x".to_owned()), 1);
    let from = fixture.engine.wall_now().0;
    for nth in 0..2000_u32 {
        fixture.advance_clock(50);
        fixture.produce("a", nth % 2, std::slice::from_ref(&record)).await;
        if nth % 500 == 499 {
            fixture.roll_and_index().await;
        }
    }
    fixture.advance_clock(1);
    let (mut cuts, mut index) = (0, 0);
    for nth in 0..MOMENTS {
        let ms = 1 + (nth * 62_137) % MOMENTS;
        let cut = Cut::before(SysTime(from + ms));
        let answer = fixture.engine.cuts().at(cut, None, WaitPolicy::Refuse).await.unwrap();
        let records: u64 = answer.partitions.iter().map(|held| held.end.0).sum();
        assert_eq!(records, (ms - 1) / 50, "at {ms}");
        if nth % 64 == 0 {
            cuts = cuts.max(fixture.engine.cuts().cache_stats().bytes);
            index = index.max(fixture.engine.index_bytes());
        }
    }
    assert!(cuts <= 64 << 10, "{cuts}");
    assert!(index > 0 && index <= INDEX_BYTES, "{index}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_reads_only_what_is_not_indexed() {
    let mut fixture = TestKafkaEngine::new();
    fixture.topic("a", 1, &[]).await;
    let record: TestRecordInput = (None, Some("x".to_owned()), 1);
    for nth in 0..300 {
        fixture.produce("a", 0, std::slice::from_ref(&record)).await;
        if nth % 100 == 96 {
            fixture.roll_and_index().await;
        }
    }
    for _ in 0..3 {
        fixture = fixture.crash();
        assert_eq!(fixture.format.replayed.load(Ordering::Relaxed), 3);
        assert_eq!(read_all(&fixture.present("a", 0)).len(), 300);
    }
}

/// A producer's state is remembered although all its batches are gone, with the last segment that
/// held them.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_is_known_again_after_all_that_it_wrote_was_deleted() {
    let mut fixture = TestKafkaEngine::new();
    fixture.topic("a", 1, &[("retention.ms", "1000")]).await;
    let record: TestRecordInput = (None, Some("x".to_owned()), 1);
    let write = async |fixture: &TestKafkaEngine, sequence: i32| {
        fixture.produce_as("a", 0, std::slice::from_ref(&record), Some((5, 0, sequence))).await
    };
    for sequence in 0..4 {
        write(&fixture, sequence).await.unwrap();
        fixture.roll_and_index().await;
    }
    fixture.advance_clock(2000);
    assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 1);
    for _ in 0..2 {
        fixture.reclaim().await;
        fixture.engine.maintenance().index_and_sort().await.unwrap();
        fixture = fixture.restart();
        let again = write(&fixture, 3).await;
        assert!(matches!(again, Err(EngineError::Duplicate { .. })), "{again:?}");
        let gap = write(&fixture, 5).await;
        assert!(matches!(gap, Err(EngineError::OutOfOrderSequence { expected: 4, .. })), "{gap:?}");
    }
    assert_eq!(write(&fixture, 4).await.unwrap().base, Offset(4));
    // State that was kept only for that goes with the next maintenance.
    fixture.roll_and_index().await;
    fixture.advance_clock(2000);
    for _ in 0..2 {
        fixture.engine.maintenance().apply_retention().await.unwrap();
        fixture.reclaim().await;
        fixture.engine.maintenance().index_and_sort().await.unwrap();
        fixture.produce("a", 0, std::slice::from_ref(&record)).await;
        fixture.roll_and_index().await;
        fixture.advance_clock(2000);
    }
    assert!(fixture.engine.segment_count() <= 4, "{:?}", fixture.disk.names());
}

/// A failure in one partition does not stop maintenance of the others.
#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_keys_do_not_fit_keeps_no_other_from_being_compacted() {
    let mut options = TestKafkaEngine::options();
    options.core.maintenance.dynamic.compaction_bytes_max = 1 << 10;
    let fixture = TestKafkaEngine::with(options);
    for topic in ["a", "b"] {
        fixture.topic(topic, 1, &[("cleanup.policy", "compact")]).await;
    }
    let record = |key: u32| (Some(format!("{key}")), Some("x".to_owned()), 1);
    fixture.produce("a", 0, &(0..1000).map(record).collect::<Vec<_>>()).await;
    for _ in 0..2 {
        fixture.produce("b", 0, &[record(7)]).await;
    }
    fixture.advance_clock(SECOND);
    fixture.roll_and_index().await;
    let clean_to = |topic| fixture.present(topic, 0).partition.log.horizon().clean_to;
    for _ in 0..2 {
        let failed = fixture.engine.maintenance().compact_due().await.unwrap_err().to_string();
        assert!(failed.contains("the keys of one batch need more memory"), "{failed}");
        assert_eq!((clean_to("a"), clean_to("b")), (Offset(0), Offset(2)));
    }
}

/// Corrupts the blocks of all indexes that have entries of the first topic, and none of the second.
fn spoil_indexes(fixture: &TestKafkaEngine) {
    for name in fixture.disk.names().iter().filter(|name| name.ends_with(".index")) {
        for block in 2..4 {
            fixture.disk.corrupt(name, block * 4096 + 100, 0x10);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f34_a_partition_that_cannot_be_looked_into_keeps_no_other_from_retention() {
    // By its rules, its new log start is unknown; or it is deleted, and its contents are unknown.
    for is_deleted in [false, true] {
        let mut options = TestKafkaEngine::options();
        options.core.deleted_topic_retention = Duration::from_secs(1);
        let fixture = TestKafkaEngine::with(options);
        let a = fixture.topic("a", 1, &[("retention.ms", "20000")]).await;
        fixture.topic("b", 1, &[("retention.ms", "20000")]).await;
        for topic in ["a", "b"] {
            for nth in 0..200 {
                fixture.advance_clock(100);
                fixture.produce(topic, 0, &[(None, Some("x".to_owned()), nth)]).await;
            }
        }
        if is_deleted {
            fixture.engine.topics().delete(a.id).await.unwrap();
        }
        fixture.advance_clock(30 * SECOND);
        fixture.roll_and_index().await;
        spoil_indexes(&fixture);
        let start = |topic: &engine::Topic| topic.partitions[0].start();
        let b = fixture.engine.topics().named("b").unwrap();
        for _ in 0..2 {
            let failed =
                fixture.engine.maintenance().apply_retention().await.unwrap_err().to_string();
            assert!(
                failed.contains(".index at byte ") && failed.contains("the index is rebuilt"),
                "{failed}"
            );
            assert_eq!((start(&a), start(&b)), (Offset(0), Offset(200)));
        }
        fixture.engine.maintenance().index_and_sort().await.unwrap();
        fixture.engine.maintenance().apply_retention().await.unwrap();
        assert_eq!(start(&a), Offset(200));
    }
}

/// A run that had no room for all keys has replaced more than it cleaned. The part that a pin then
/// holds in between is not retried again and again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pin_inside_of_what_was_replaced_lets_the_rest_wait_until_it_is_gone() {
    let mut options = TestKafkaEngine::options();
    // 23 keys.
    options.core.maintenance.dynamic.compaction_bytes_max = 26 * 24;
    let fixture = TestKafkaEngine::with(options);
    let settings = [("cleanup.policy", "compact"), ("min.cleanable.dirty.ratio", "0")];
    fixture.topic("a", 1, &settings).await;
    let mut moments = Vec::new();
    for keys in [0..20, 20..30, 30..40] {
        let record = |key: u32| (Some(format!("{key}")), Some("x".to_owned()), 1);
        fixture.produce("a", 0, &keys.map(record).collect::<Vec<_>>()).await;
        fixture.roll_and_index().await;
        fixture.advance_clock(SECOND);
        moments.push(fixture.now());
        fixture.advance_clock(SECOND);
    }
    let horizon = || fixture.present("a", 0).partition.log.horizon();
    assert_eq!(fixture.engine.maintenance().compact_due().await.unwrap(), 1);
    assert_eq!((horizon().clean_to, horizon().released_tip().end), (Offset(20), Offset(40)));

    let expires = SysTime(fixture.engine.wall_now().0 + 60_000);
    fixture.engine.pins().set("p", moments[1], WaitPolicy::Refuse, expires, None).await.unwrap();
    let cleaned = || fixture.format.compacted.load(Ordering::Relaxed);
    let before = cleaned();
    assert_eq!(fixture.engine.maintenance().compact_due().await.unwrap(), 0);
    assert_eq!(cleaned(), before, "nothing is cleaned that cannot be put in place");

    fixture.advance_clock(60_000);
    fixture.engine.pins().remove_expired().await.unwrap();
    assert_eq!(fixture.engine.maintenance().compact_due().await.unwrap(), 1);
    assert_eq!((horizon().clean_to, horizon().released_tip().end), (Offset(40), Offset(40)));
}

/// Two topics, of which the first is compacted, and has retention by age too.
async fn compacted_and_not(options: EngineOptions) -> TestKafkaEngine {
    let fixture = TestKafkaEngine::with(options);
    let settings = [
        ("cleanup.policy", "compact,delete"),
        ("min.cleanable.dirty.ratio", "0"),
        ("retention.ms", "100000"),
    ];
    fixture.topic("a", 1, &settings).await;
    fixture.topic("b", 1, &[("retention.ms", "100000")]).await;
    for _ in 0..2 {
        for nth in 0..4 {
            for topic in ["a", "b"] {
                let record = (Some(format!("{}", nth % 2)), Some("x".to_owned()), nth);
                fixture.produce(topic, 0, &[record]).await;
            }
        }
        fixture.roll_and_index().await;
    }
    fixture.advance_clock(SECOND);
    fixture
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_log_is_compacted_its_start_can_advance_and_its_space_be_reclaimed_and_it_is_not_compacted_twice()
 {
    for is_given_up in [false, true] {
        let fixture = compacted_and_not(TestKafkaEngine::options()).await;
        let (mut arrived, go) = fixture.pause_compaction();
        let engine = Arc::clone(&fixture.engine);
        let compacting = tokio::spawn(async move { engine.maintenance().compact_due().await });
        arrived.recv().await.expect("it compacts");
        assert_eq!(fixture.engine.maintenance().compact_due().await.unwrap(), 0);
        if is_given_up {
            fixture.advance_clock(200_000);
            assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 2);
        }
        let parts = fixture.engine.segment_count();
        fixture.reclaim().await;
        fixture.engine.maintenance().index_and_sort().await.unwrap();
        fixture.reclaim().await;
        assert!(fixture.engine.segment_count() <= parts);
        drop(go);
        assert_eq!(compacting.await.unwrap().unwrap(), usize::from(!is_given_up));
        // And again, after more appends.
        for nth in 0..2 {
            let record = (Some("0".to_owned()), Some("y".to_owned()), nth);
            fixture.produce("a", 0, &[record]).await;
        }
        fixture.roll_and_index().await;
        fixture.advance_clock(SECOND);
        assert_eq!(fixture.engine.maintenance().compact_due().await.unwrap(), 1);
        let offsets = |fixture: &TestKafkaEngine| {
            let read = read_all(&fixture.present("a", 0));
            read.iter().map(|record| record.offset).collect::<Vec<_>>()
        };
        let expected: &[u64] = if is_given_up { &[9] } else { &[7, 9] };
        assert_eq!(offsets(&fixture), expected);
        fixture.reclaim().await;
        assert_eq!(offsets(&fixture.crash()), expected);
    }
}

/// A client that has been told that a setting holds can rely on it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_while_a_log_is_compacted_holds_for_that_run_too() {
    let lag = ("min.compaction.lag.ms", "900000");
    for change in [Some(("cleanup.policy", "delete")), Some(lag), None] {
        let fixture = compacted_and_not(TestKafkaEngine::options()).await;
        let earlier = fixture.now();
        let (mut arrived, go) = fixture.pause_compaction();
        let engine = Arc::clone(&fixture.engine);
        let compacting = tokio::spawn(async move { engine.maintenance().compact_due().await });
        arrived.recv().await.expect("it compacts");
        let topic = fixture.engine.topics().named("a").unwrap();
        match change {
            Some((key, value)) => {
                let set = |configs: &mut std::collections::BTreeMap<String, String>| {
                    configs.insert(key.to_owned(), value.to_owned());
                    Ok(())
                };
                fixture.engine.topics().configure("a", set, false).await.unwrap();
            }
            None => fixture.engine.topics().delete(topic.id).await.unwrap(),
        }
        drop(go);
        assert_eq!(compacting.await.unwrap().unwrap(), 0, "{change:?}");
        assert_eq!(topic.partitions[0].log.horizon().compacted_to, Hlc::ZERO, "{change:?}");
        assert_eq!(read_all(&fixture.at("a", earlier).await.unwrap().partitions[0]).len(), 8);
    }
}

/// The plan of the run did not know of the pin.
#[tokio::test(flavor = "multi_thread")]
async fn a_pin_that_is_set_while_a_log_is_compacted_holds_what_it_admits() {
    let fixture = compacted_and_not(TestKafkaEngine::options()).await;
    let (mut arrived, go) = fixture.pause_compaction();
    let engine = Arc::clone(&fixture.engine);
    let compacting = tokio::spawn(async move { engine.maintenance().compact_due().await });
    arrived.recv().await.expect("it compacts");
    let topic = fixture.engine.topics().named("a").unwrap();
    let log = &topic.partitions[0].log;
    let pinned = Cut::through(log.entry_at(Offset(3)).unwrap().unwrap().stamp);
    let until = SysTime(fixture.engine.wall_now().0 + 3600 * SECOND);
    fixture.engine.pins().set("audit", pinned, WaitPolicy::Refuse, until, None).await.unwrap();
    drop(go);
    assert_eq!(compacting.await.unwrap().unwrap(), 0, "its result is not taken");
    assert_eq!(log.horizon().compacted_to, Hlc::ZERO);
    assert_eq!(read_all(&fixture.at("a", pinned).await.unwrap().partitions[0]).len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_log_is_compacted_retention_goes_on() {
    let mut options = TestKafkaEngine::options();
    options.core.maintenance.retention_interval = Duration::from_millis(1);
    let fixture = compacted_and_not(options).await;
    let (mut arrived, go) = fixture.pause_compaction();
    let keeping = tokio::spawn(Arc::clone(&fixture.engine).run_maintenance());
    arrived.recv().await.expect("it compacts");
    // Nothing was old before.
    assert_eq!(fixture.present("b", 0).start(), Offset(0));
    fixture.advance_clock(200_000);
    let given_up = async {
        while fixture.present("b", 0).start() < Offset(8) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), given_up).await.expect("the log start advances");
    drop(go);
    keeping.abort();
    assert!(keeping.await.unwrap_err().is_cancelled());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_be_compacted_leaves_the_open_segment_in_time() {
    for (policy, compacts) in [("compact", true), ("delete", false)] {
        let fixture = TestKafkaEngine::new();
        let settings = [
            ("cleanup.policy", policy),
            ("max.compaction.lag.ms", "100000"),
            ("min.cleanable.dirty.ratio", "1"),
        ];
        fixture.topic("a", 1, &settings).await;
        for value in ["old", "new"] {
            fixture.produce("a", 0, &[(Some("key".to_owned()), Some(value.to_owned()), 0)]).await;
        }
        fixture.advance_clock(99 * SECOND);
        let round = async || fixture.engine.maintenance().compact_due().await.unwrap();
        assert_eq!(round().await, 0, "it need not be compacted yet");
        fixture.advance_clock(2 * SECOND);
        assert_eq!(round().await, usize::from(compacts), "{policy}");
    }
}

/// A segment stays open for a minute at least, however short a topic's `segment.ms` is. Data that
/// must be compacted sooner does not wait for that. Once none of it is there, no more segments are
/// rolled for it.
#[tokio::test(flavor = "multi_thread")]
async fn what_must_be_compacted_at_once_leaves_the_open_segment_and_leaves_it_alone_then() {
    for (lag, compacts) in [("100", 1), ("9223372036854775807", 0)] {
        let fixture = TestKafkaEngine::new();
        let settings = [
            ("cleanup.policy", "compact"),
            ("segment.ms", "500"),
            ("max.compaction.lag.ms", lag),
            ("min.cleanable.dirty.ratio", "1"),
        ];
        fixture.topic("a", 1, &settings).await;
        fixture.topic("b", 1, &[]).await;
        for value in ["old", "new"] {
            fixture.produce("a", 0, &[(Some("key".to_owned()), Some(value.to_owned()), 0)]).await;
        }
        fixture.advance_clock(SECOND);
        let mut compacted = 0;
        for _ in 0..3 {
            compacted += fixture.engine.maintenance().compact_due().await.unwrap();
            fixture.produce("b", 0, &[(None, Some("other".to_owned()), 0)]).await;
            fixture.advance_clock(SECOND);
            fixture.engine.maintenance().index_and_sort().await.unwrap();
            compacted += fixture.engine.maintenance().compact_due().await.unwrap();
        }
        assert_eq!(compacted, compacts, "lag {lag}");
        let segments = storage::disk::Disk::list(&fixture.disk).unwrap();
        let segments = segments.iter().filter(|name| name.ends_with(".journal")).count();
        assert!(segments <= 1 + compacts, "{segments} segments with lag {lag}");
    }
}

#[tokio::test]
async fn a_pin_of_everything_holds_a_topic_that_is_deleted_later_and_none_that_was_before() {
    let day = Duration::from_secs(24 * 60 * 60);
    let fixture = TestKafkaEngine::with(EngineOptions {
        core: CoreOptions { deleted_topic_retention: day, ..TestKafkaEngine::options().core },
        ..TestKafkaEngine::options()
    });
    let mut logs = Vec::new();
    for topic in ["before", "after"] {
        let topic = fixture.topic(topic, 1, &[("retention.ms", "-1")]).await;
        fixture.produce(&topic.name, 0, &[(None, Some("x".to_owned()), 0)]).await;
        logs.push((topic.id, Arc::clone(&topic.partitions[0].log)));
    }
    let [(before, gone), (after, held)] = &logs[..] else { unreachable!("there are two") };
    fixture.advance_clock(SECOND);
    let both = fixture.now();
    fixture.engine.topics().delete(*before).await.unwrap();
    fixture.advance_clock(SECOND);
    let at = fixture.now();
    let hash = fixture.engine.cuts().at(at, None, WaitPolicy::Refuse).await.unwrap().hash;
    let expires = SysTime(fixture.engine.wall_now().0 + 10 * 24 * 3600 * SECOND);
    fixture.engine.pins().set("p", at, WaitPolicy::Refuse, expires, None).await.unwrap();
    fixture.engine.pins().set("both", both, WaitPolicy::Refuse, expires, None).await.unwrap();
    fixture.engine.topics().delete(*after).await.unwrap();
    fixture.advance_clock(2 * 24 * 3600 * SECOND);
    assert_eq!(
        fixture.engine.maintenance().apply_retention().await.unwrap(),
        0,
        "the earlier pin holds it"
    );
    assert_eq!(read_all(&fixture.at("before", both).await.unwrap().partitions[0]).len(), 1);
    fixture.engine.pins().remove("both").await.unwrap();
    assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 1);
    assert_eq!((gone.start(), held.start()), (Offset(1), Offset(0)));
    fixture.roll_and_index().await;
    fixture.reclaim().await;
    assert_eq!(fixture.engine.cuts().at(at, None, WaitPolicy::Refuse).await.unwrap().hash, hash);
    assert_eq!(read_all(&fixture.at("after", at).await.unwrap().partitions[0]).len(), 1);
    fixture.engine.pins().remove("p").await.unwrap();
    assert_eq!(fixture.engine.maintenance().apply_retention().await.unwrap(), 1);
    assert_eq!(held.start(), Offset(1));
}
