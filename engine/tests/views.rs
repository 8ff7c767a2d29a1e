//! Views of a topic, and their errors once a part of it is gone.

use std::sync::Arc;
use std::time::Duration;

use engine::CoreOptions;
use engine::{
    EngineError, EngineOptions, Offset, PartitionView, SeekError, Topic, TopicView, WaitPolicy,
};
use hlc::{Cut, ManualClock, Moment, MomentSelector, SysTime, UserTime};
use proptest::prelude::*;
use storage::disk::MemoryDisk;
use testkit::engine::{EngineFixture, START};

const NOW: WaitPolicy = WaitPolicy::Refuse;
const LARGE: usize = 1 << 20;

fn user(before: i64, known: Option<Cut>) -> Moment {
    Moment::User { before: UserTime(before), known }
}

async fn view(fixture: &EngineFixture, selector: MomentSelector) -> TopicView {
    fixture.engine.seek().view("t", selector, NOW).await.unwrap()
}

/// The first offsets of the batches that a read returns, or `None` if it is refused.
fn read(view: &PartitionView, from: i64, bytes_max: usize) -> Option<Vec<u64>> {
    match view.read(from, bytes_max) {
        Ok(pieces) => Some(pieces.iter().map(|piece| piece.entry.base.0).collect()),
        Err(EngineError::OffsetOutOfRange { offset, start, end }) => {
            assert_eq!((offset, start, end), (from, view.start(), view.end()));
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Three batches of two records each, with these times: 0 1 | 2 3 | 4 5.
async fn six(fixture: &EngineFixture) -> Arc<Topic> {
    let topic = fixture.topic("t", 2).await;
    for times in [[10, 20], [30, 40], [50, 60]] {
        fixture.append(&topic, 0, &times).await.unwrap();
        fixture.advance_clock(1);
    }
    topic
}

#[tokio::test]
async fn a_view_is_read_from_its_start_to_its_end_and_nowhere_else() {
    let fixture = EngineFixture::new();
    let topic = six(&fixture).await;
    let present = PartitionView::present(&topic.partitions[0]);
    let past =
        view(&fixture, MomentSelector::At(Moment::Sys(Cut::before(SysTime(START + 2))))).await;
    let inside = view(&fixture, MomentSelector::At(user(40, None))).await;
    for (view, end) in [(&present, 6), (&past.partitions[0], 4), (&inside.partitions[0], 3)] {
        assert_eq!((view.start(), view.end()), (Offset(0), Offset(end)));
        let bases: Vec<u64> = (0..end).step_by(2).collect();
        assert_eq!(read(view, 0, LARGE), Some(bases.clone()));
        assert_eq!(read(view, 1, LARGE), Some(bases.clone()), "the batch that holds it");
        assert_eq!(read(view, 2, LARGE), Some(bases[1..].to_vec()));
        assert_eq!(read(view, 2, 0), Some(vec![2]), "one at the least");
        // Also where the end is inside a batch.
        assert_eq!(read(view, end as i64, LARGE), Some(vec![]));
        for outside in [-1, end as i64 + 1, i64::MAX, i64::MIN] {
            assert_eq!(read(view, outside, LARGE), None, "{outside}");
        }
    }
    fixture.engine.topics().delete_records(&topic, 0, 3).await.unwrap();
    assert_eq!((present.start(), read(&present, 2, LARGE)), (Offset(3), None));
    assert_eq!(read(&present, 3, LARGE), Some(vec![2, 4]));
    // Nothing is left of the shorter views but their end.
    for (view, expected) in
        [(&past.partitions[0], Some(vec![2])), (&inside.partitions[0], Some(vec![]))]
    {
        assert_eq!(read(view, 2, LARGE), None);
        assert_eq!(read(view, 3, LARGE), expected);
    }
    fixture.append(&topic, 0, &[70]).await.unwrap();
    assert_eq!(read(&present, 6, LARGE), Some(vec![6]), "the present grows");
}

fn truncated_partitions(checked: Result<(), SeekError>) -> Vec<u32> {
    match checked {
        Ok(()) => Vec::new(),
        Err(SeekError::BeforeHistory { lost }) => {
            assert!(lost.iter().all(|lost| &*lost.topic == "t"));
            lost.iter().map(|lost| lost.partition).collect()
        }
        Err(error) => panic!("{error}"),
    }
}

/// A view outlives its records; a reader of it gets an error.
#[tokio::test]
async fn what_was_deleted_of_a_view_is_reported_for_each_partition() {
    let fixture = EngineFixture::new();
    let topic = six(&fixture).await;
    fixture.append(&topic, 1, &[10, 20]).await.unwrap();
    fixture.advance_clock(1);
    let known = Some(fixture.now());
    let sys = |ms| Moment::Sys(Cut::before(SysTime(START + ms)));
    let asks = [
        // Records up to the offset 3 are deleted, which is inside the second batch.
        (MomentSelector::At(sys(1)), true),
        (MomentSelector::At(sys(2)), false),
        (MomentSelector::At(sys(4)), false),
        (MomentSelector::Window(sys(1), sys(4)), true),
        (MomentSelector::Window(sys(2), sys(4)), false),
        // By user time, the end of the prefix and the start of the window count.
        (MomentSelector::At(user(30, known)), true),
        (MomentSelector::At(user(40, known)), false),
        (MomentSelector::At(user(61, known)), false),
        (MomentSelector::Window(user(30, known), user(61, known)), true),
        (MomentSelector::Window(user(40, known), user(61, known)), false),
        (MomentSelector::Window(user(50, known), sys(4)), false),
    ];
    let mut views = Vec::new();
    for (selector, is_lost) in asks {
        let view = view(&fixture, selector).await;
        assert_eq!(truncated_partitions(view.check_retained()), [0; 0], "{selector:?}");
        views.push((view, is_lost));
    }
    fixture.engine.topics().delete_records(&topic, 0, 3).await.unwrap();
    for (view, is_lost) in &views {
        let expected = if *is_lost { vec![0] } else { vec![] };
        assert_eq!(truncated_partitions(view.check_retained()), expected, "{:?}", view.selector);
        let by_one = |nth| truncated_partitions(view.check_partition_retained(nth));
        assert_eq!(
            (by_one(0), by_one(1), by_one(2)),
            (expected, vec![], vec![]),
            "{:?}",
            view.selector
        );
    }
}

#[tokio::test]
async fn a_moment_is_lost_once_a_record_after_it_was_deleted() {
    let fixture = EngineFixture::new();
    let topic = six(&fixture).await;
    let at = |ms| MomentSelector::At(Moment::Sys(Cut::before(SysTime(START + ms))));
    let mut views = Vec::new();
    for ms in 1..4 {
        views.push(view(&fixture, at(ms)).await);
    }
    // One record of the second batch is deleted: earlier moments are incomplete.
    fixture.engine.topics().delete_records(&topic, 0, 3).await.unwrap();
    let is_lost: Vec<bool> = views.iter().map(|view| view.check_retained().is_err()).collect();
    assert_eq!(is_lost, [true, false, false]);
    let refused = fixture.engine.seek().view("t", at(1), NOW).await.unwrap_err().to_string();
    let lost_to = views[0].partitions[0].partition.log.horizon().lost_to;
    let earliest = Moment::Sys(Cut::through(lost_to));
    assert!(refused.contains(&format!("t/0 begins at {earliest}")), "{refused}");
}

#[tokio::test]
async fn of_many_lost_partitions_the_first_five_are_named() {
    for (count, suffix) in [(5, None), (6, Some("and 1 more")), (9, Some("and 4 more"))] {
        let fixture = EngineFixture::new();
        let topic = fixture.topic("t", count).await;
        fixture.advance_clock(1);
        for partition in 0..count {
            fixture.append(&topic, partition, &[1, 2]).await.unwrap();
        }
        fixture.advance_clock(1);
        for partition in 0..count {
            fixture.engine.topics().delete_records(&topic, partition as i32, 1).await.unwrap();
        }
        let before = MomentSelector::At(Moment::Sys(Cut::before(SysTime(START + 1))));
        let refused = fixture.engine.seek().view("t", before, NOW).await.unwrap_err().to_string();
        let named_count =
            (0..count).filter(|nth| refused.contains(&format!("t/{nth} begins at"))).count();
        assert_eq!(named_count, 5, "{refused}");
        assert_eq!(suffix.is_some(), refused.contains("more"), "{refused}");
        assert!(suffix.is_none_or(|suffix| refused.contains(suffix)), "{refused}");
    }
}

/// After an idle time the frontier is at the bound on disk; an answer waits for a later bound.
#[tokio::test]
async fn the_present_is_the_present_after_a_long_time_in_which_nobody_asked() {
    let fixture = EngineFixture::new();
    fixture.topic("t", 1).await;
    for _ in 0..20 {
        fixture.clock.advance(Duration::from_secs(3600));
        let present = fixture.engine.present_frontier().await;
        assert_eq!(present.time(), fixture.engine.wall_now());
    }
    // A past moment is past, whether or not anybody read the frontier before.
    for _ in 0..20 {
        fixture.clock.advance(Duration::from_secs(3600));
        let at = Cut::before(fixture.engine.wall_now());
        let (settled, frontier) = fixture
            .engine
            .cuts()
            .at(at, None, NOW)
            .await
            .map(|cut| (cut.at, cut.frontier))
            .unwrap();
        assert!(settled == at && at.is_closed_by(frontier));
    }
}

async fn compare_times(
    batches: &[Vec<i64>],
    deleted: prop::sample::Index,
    end: prop::sample::Index,
) {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    let mut records: Vec<i64> = Vec::new();
    for times in batches {
        fixture.append(&topic, 0, times).await.unwrap();
        fixture.advance_clock(1);
        records.extend(times);
    }
    let deleted = deleted.index(records.len());
    if deleted > 0 {
        fixture.engine.topics().delete_records(&topic, 0, deleted as i64).await.unwrap();
    }
    let end = deleted + end.index(records.len() - deleted + 1);
    let partition = Arc::clone(&topic.partitions[0]);
    let view = PartitionView { partition, start: Offset(0), end: Some(Offset(end as u64)) };
    let retained = || (deleted..end).map(|offset| (offset as u64, records[offset]));
    let offset_and_time = |record: Option<engine::OffsetAndTimestamp>| {
        record.map(|record| (record.offset.0, record.time.0))
    };
    // The first one of the largest.
    let latest = retained().max_by_key(|(offset, time)| (*time, std::cmp::Reverse(*offset)));
    assert_eq!(
        offset_and_time(fixture.engine.seek().latest_by_user_time(&view).unwrap()),
        latest,
        "{deleted}..{end}"
    );
    for time in -1..=7 {
        let first = retained().find(|(_, record_time)| *record_time >= time);
        let answer = fixture.engine.seek().first_at_or_after(&view, UserTime(time)).unwrap();
        assert_eq!(offset_and_time(answer), first, "{time} in {deleted}..{end}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn the_latest_and_the_first_by_user_time_are_those_of_the_records_between_start_and_end(
        batches in prop::collection::vec(prop::collection::vec(0_i64..6, 1..5), 1..8),
        (gone, end) in any::<(prop::sample::Index, prop::sample::Index)>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(compare_times(&batches, gone, end));
    }
}

/// A removed record may have been the first one of its time: then a later one would be another
/// answer.
#[tokio::test]
async fn a_user_time_is_lost_once_records_as_late_are_gone_wherever_they_were() {
    // Each batch is in a segment of its own.
    let storage = storage::Options { segment_frames_max: 1, ..storage::Options::default() };
    let options = EngineOptions {
        core: CoreOptions { storage, ..CoreOptions::default() },
        ..EngineOptions::default()
    };
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let fixture = EngineFixture::with(MemoryDisk::new(), clock, options);
    let topic = fixture.topic("t", 1).await;
    for time in [100, 10, 20, 200] {
        fixture.append(&topic, 0, &[time]).await.unwrap();
    }
    fixture.advance_clock(1);
    let known = Some(fixture.now());
    let times = [15, 50, 99, 100, 101, 150, 201];
    let mut views = Vec::new();
    for time in times {
        views.push(view(&fixture, MomentSelector::At(user(time, known))).await);
    }
    let ends: Vec<u64> = views.iter().map(|view| view.partitions[0].end().0).collect();
    assert_eq!(ends, [0, 0, 0, 0, 3, 3, 4]);
    let engine = Arc::new(fixture.engine);
    engine.topics().delete_records(&topic, 0, 1).await.unwrap();
    for _ in 0..3 {
        engine.maintenance().index_and_sort().await.unwrap();
        engine.maintenance().reclaim().await.unwrap();
    }
    let horizon = topic.partitions[0].log.horizon();
    assert_eq!(horizon.released_user_time_max(), UserTime(100));
    for (view, time) in views.iter().zip(times) {
        // A record from 101 on cannot have been among the removed ones.
        assert_eq!(view.check_retained().is_err(), time <= 100, "{time}");
        let again = engine.seek().view("t", MomentSelector::At(user(time, known)), NOW).await;
        assert_eq!(again.is_err(), time <= 100, "{time}");
    }
}

#[tokio::test]
async fn a_moment_that_may_be_answered_at_the_frontier_is_moved_only_if_it_is_not_past() {
    let fixture = EngineFixture::new();
    fixture.topic("t", 1).await;
    fixture.advance_clock(10);
    let cut = async |at| {
        fixture
            .engine
            .cuts()
            .at(Cut::before(SysTime(START + at)), None, WaitPolicy::AtFrontier)
            .await
            .unwrap()
    };
    for past in [1, 5, 10] {
        assert_eq!(cut(past).await.at, Cut::before(SysTime(START + past)));
    }
    let answer = cut(1000).await;
    assert_eq!(answer.at, Cut::through(answer.frontier));
    assert_eq!(answer.frontier.time(), SysTime(START + 10));
}
