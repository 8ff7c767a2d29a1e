//! The promises of a read of the past (TIME.md 3 and 4), on one node.

use std::sync::Arc;
use std::time::Duration;

use engine::{Offset, PartitionView, SeekError, WaitPolicy};
use hlc::{Cut, Moment, MomentSelector, SysTime, UserTime};
use testkit::engine::{EngineFixture, START};
use testkit::rng::SeededRng;

const NOW: WaitPolicy = WaitPolicy::Refuse;

fn sys(ms: u64) -> MomentSelector {
    MomentSelector::At(Moment::Sys(Cut::before(SysTime(ms))))
}

fn user(ms: i64) -> MomentSelector {
    MomentSelector::At(Moment::User { before: UserTime(ms), known: None })
}

async fn ends(fixture: &EngineFixture, topic: &str, selector: MomentSelector) -> Vec<u64> {
    let view =
        fixture.engine.seek().view(topic, selector, NOW).await.expect("the moment can be read");
    view.partitions.iter().map(|view| view.end().0).collect()
}

/// F7: the bound is exclusive, on the axis of system time.
#[tokio::test]
async fn f7_a_cut_at_t_holds_what_came_before_t_and_nothing_of_t() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.advance_clock(1000);
    let appended = fixture.append(&topic, 0, &[1]).await.unwrap();
    let ms = appended.stamp.time().0;
    fixture.advance_clock(10);
    assert_eq!(ends(&fixture, "t", sys(ms - 1)).await, [0]);
    assert_eq!(ends(&fixture, "t", sys(ms)).await, [0]);
    assert_eq!(ends(&fixture, "t", sys(ms + 1)).await, [1]);
}

/// The same on the axis of user time.
#[tokio::test]
async fn f7_a_user_time_bound_is_exclusive_too() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[100, 200]).await.unwrap();
    assert_eq!(ends(&fixture, "t", user(199)).await, [1]);
    assert_eq!(ends(&fixture, "t", user(200)).await, [1]);
    assert_eq!(ends(&fixture, "t", user(201)).await, [2]);
}

/// B2: read at t, then write in the same millisecond, 2000 times. FFFS changed 1823 of its answers.
#[tokio::test]
async fn b2_a_write_in_the_millisecond_of_a_read_never_enters_the_cut_that_was_read() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    for round in 0..2000 {
        fixture.advance_clock(1);
        let cut = fixture.now();
        let before = fixture.engine.cuts().at(cut, None, NOW).await.unwrap();
        fixture.append(&topic, 0, &[round]).await.unwrap();
        let after = fixture.engine.cuts().at(cut, None, NOW).await.unwrap();
        assert_eq!((before.hash, before.partitions), (after.hash, after.partitions));
    }
}

/// B3: FFFS cached cuts of the future by user time; an answer "as known at s" may not change.
#[tokio::test]
async fn b3_a_user_time_read_as_known_at_a_moment_repeats_whatever_arrives_late() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[100]).await.unwrap();
    let view = fixture.engine.seek().view("t", user(500), NOW).await.unwrap();
    assert_eq!(view.partitions[0].end(), Offset(1));
    fixture.append(&topic, 0, &[200]).await.unwrap();
    let again = fixture.engine.seek().view("t", view.selector, NOW).await.unwrap();
    assert_eq!(again.partitions[0].end(), Offset(1), "as known then");
    assert_eq!(ends(&fixture, "t", user(500)).await, [2], "as known now");
}

/// B4: FFFS used binary search on user times that were not sorted.
#[tokio::test]
async fn b4_a_time_is_found_exactly_although_times_are_out_of_order() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    for times in [&[50, 10][..], &[5, 80, 60], &[20], &[90, 70, 100]] {
        fixture.append(&topic, 0, times).await.unwrap();
    }
    let all = [50, 10, 5, 80, 60, 20, 90, 70, 100];
    let view = PartitionView::present(topic.partition(0).unwrap());
    for time in 0..=101 {
        let expected = all.iter().position(|t| *t >= time).map(|offset| offset as u64);
        let record = fixture.engine.seek().first_at_or_after(&view, UserTime(time)).unwrap();
        assert_eq!(record.map(|record| record.offset.0), expected, "time {time}");
    }
}

#[tokio::test]
async fn a_time_is_found_exactly_after_records_were_deleted() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    for times in [[50, 10], [5, 80], [60, 20], [70, 90]] {
        fixture.append(&topic, 0, &times).await.unwrap();
    }
    fixture.engine.topics().delete_records(&topic, 0, 3).await.unwrap();
    let view = PartitionView::present(topic.partition(0).unwrap());
    for (time, expected) in [(0, 3), (81, 7), (65, 3), (20, 3)] {
        let record =
            fixture.engine.seek().first_at_or_after(&view, UserTime(time)).unwrap().unwrap();
        assert_eq!(record.offset.0, expected, "time {time}");
    }
}

#[tokio::test]
async fn a_window_holds_what_happened_between_its_ends() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[1, 2]).await.unwrap();
    fixture.advance_clock(10);
    let first = fixture.now();
    fixture.append(&topic, 0, &[3]).await.unwrap();
    fixture.advance_clock(10);
    let second = fixture.now();
    fixture.append(&topic, 0, &[4]).await.unwrap();
    let selector = MomentSelector::window(Moment::Sys(first), Moment::Sys(second)).unwrap();
    let view = fixture.engine.seek().view("t", selector, NOW).await.unwrap();
    assert_eq!((view.partitions[0].start(), view.partitions[0].end()), (Offset(2), Offset(3)));
}

/// F12, B13: the name is resolved as of the requested moment.
#[tokio::test]
async fn f12_a_deleted_topic_is_still_there_in_the_past_and_a_new_one_of_its_name_is_another() {
    let fixture = EngineFixture::new();
    let old = fixture.topic("t", 2).await;
    fixture.append(&old, 1, &[1]).await.unwrap();
    fixture.advance_clock(10);
    let moment = MomentSelector::At(Moment::Sys(fixture.now()));
    fixture.engine.topics().delete(old.id).await.unwrap();
    fixture.advance_clock(10);
    let between = MomentSelector::At(Moment::Sys(fixture.now()));
    let new = fixture.topic("t", 1).await;
    fixture.append(&new, 0, &[1]).await.unwrap();
    fixture.advance_clock(10);
    let fixture = fixture.restart();
    assert_eq!(ends(&fixture, "t", moment).await, [0, 1]);
    assert!(matches!(
        fixture.engine.seek().view("t", between, NOW).await,
        Err(SeekError::NoTopic { .. })
    ));
    assert_eq!(ends(&fixture, "t", MomentSelector::At(Moment::Sys(fixture.now()))).await, [1]);
}

#[tokio::test]
async fn a_moment_that_is_not_past_is_refused_waited_for_or_answered_at_the_frontier() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[1]).await.unwrap();
    let soon = Cut::before(SysTime(fixture.engine.wall_now().0 + 200));
    let refused = fixture.engine.cuts().at(soon, None, WaitPolicy::Refuse).await;
    assert!(matches!(refused, Err(SeekError::NotYet { retry_ms: 1.., .. })), "{refused:?}");
    let answered = fixture.engine.cuts().at(soon, None, WaitPolicy::AtFrontier).await.unwrap();
    assert!(answered.at < soon);
    let answer = fixture.engine.cuts().at(soon, None, WaitPolicy::Wait(Duration::from_secs(5)));
    let passing = async { fixture.advance_clock(200) };
    let (waited, ()) = tokio::join!(answer, passing);
    assert_eq!(waited.unwrap().at, soon);
    let far = Cut::before(SysTime(START + 86_400_000));
    let refused =
        fixture.engine.cuts().at(far, None, WaitPolicy::Wait(Duration::from_secs(5))).await;
    assert!(matches!(refused, Err(SeekError::FarFuture { .. })), "{refused:?}");
}

/// Nobody has read the frontier for hours, so the clock's bound is as far back. An error or an
/// answer that names the frontier names the current one.
#[tokio::test]
async fn a_frontier_that_is_named_is_that_of_now_also_on_a_server_that_was_idle() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[1]).await.unwrap();
    let far = Cut::before(SysTime(START + 86_400_000));
    let mut asks = 0;
    for when in
        [WaitPolicy::Wait(Duration::from_secs(5)), WaitPolicy::Refuse, WaitPolicy::AtFrontier]
    {
        fixture.advance_clock(3_600_000);
        asks += 1;
        let frontier = match fixture.engine.cuts().at(far, None, when).await {
            Err(SeekError::FarFuture { frontier, .. } | SeekError::NotYet { frontier, .. }) => {
                frontier
            }
            Ok(answer) => answer.frontier,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(frontier.time(), SysTime(START + asks * 3_600_000), "{when:?}");
    }
    fixture.advance_clock(3_600_000);
    let past = Cut::before(SysTime(fixture.clock_ms() - 1000));
    assert!(fixture.engine.cuts().at(past, None, WaitPolicy::Refuse).await.is_ok(), "it is past");
}

/// A closed moment stays readable, even under a clock that was set back so far that it issues
/// nothing.
#[tokio::test]
async fn a_wall_clock_that_was_set_back_does_not_make_the_past_a_future() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[1]).await.unwrap();
    fixture.advance_clock(60_000);
    let closed = fixture.now();
    let before = fixture.engine.cuts().at(closed, None, NOW).await.unwrap();
    fixture.clock.step_to(SysTime(START));
    let patience = WaitPolicy::Wait(Duration::from_secs(5));
    let after = fixture.engine.cuts().at(closed, None, patience).await.unwrap();
    assert_eq!((after.at, after.hash), (before.at, before.hash));
}

#[tokio::test]
async fn history_before_the_log_start_is_an_error_that_names_each_partition_and_its_earliest_moment()
 {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 2).await;
    fixture.append(&topic, 0, &[1]).await.unwrap();
    fixture.append(&topic, 1, &[1]).await.unwrap();
    fixture.advance_clock(10);
    let early = fixture.now();
    let appended = fixture.append(&topic, 0, &[2]).await.unwrap();
    fixture.advance_clock(10);
    fixture.engine.topics().delete_records(&topic, 0, 2).await.unwrap();
    let Err(SeekError::BeforeHistory { lost }) = fixture.engine.cuts().at(early, None, NOW).await
    else {
        panic!("half of the cut is gone");
    };
    assert_eq!(lost.len(), 1);
    assert_eq!((&*lost[0].topic, lost[0].partition), ("t", 0));
    let again = fixture.engine.cuts().at(Cut::below(lost[0].earliest), None, NOW).await;
    assert!(again.is_ok(), "the earliest moment that was named can be read");
    assert_eq!(lost[0].earliest, appended.stamp.next());
}

/// F9: every cut's hash is the same after a crash, whatever unsynced data the disk kept.
#[tokio::test]
async fn f9_cuts_read_the_same_after_crashes_even_with_the_clock_set_back() {
    let mut fixture = EngineFixture::new();
    let mut cuts: Vec<(Cut, u128)> = Vec::new();
    let mut random = SeededRng::new(7);
    for life in 0..12 {
        let name = format!("t{life}");
        let topic = fixture.topic(&name, 3).await;
        for round in 0..20 {
            let partition = (round % 3) as u32;
            fixture.append(&topic, partition, &[round]).await.unwrap();
            fixture.advance_clock((round % 4) as u64);
            let cut = fixture.now();
            cuts.push((cut, fixture.engine.cuts().at(cut, None, NOW).await.unwrap().hash));
        }
        if life % 3 == 2 {
            let back = fixture.engine.wall_now().0 - 200;
            fixture.clock.step_to(SysTime(back));
        }
        fixture = fixture.crash(|choices| random.below(choices as u64) as usize);
        for (cut, hash) in &cuts {
            let again = fixture.engine.cuts().at(*cut, None, NOW).await.unwrap();
            assert_eq!(again.hash, *hash, "cut {:?} in incarnation {life}", cut.bound());
        }
    }
}

/// F3: every past moment can be read without preparation: every cut agrees with a replay of what
/// was appended.
#[tokio::test]
async fn f3_any_past_moment_agrees_with_a_replay_of_the_history() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 4).await;
    fixture.advance_clock(1);
    let mut history = Vec::new();
    for round in 0..400_i64 {
        let partition = (round * 7 % 4) as u32;
        let appended = fixture.append(&topic, partition, &[round]).await.unwrap();
        history.push((appended.stamp, partition));
        fixture.advance_clock((round % 3) as u64);
    }
    fixture.advance_clock(5);
    let from = history[0].0.time().0;
    for ms in from..=fixture.engine.wall_now().0 {
        let cut = Cut::before(SysTime(ms));
        let expected: Vec<u64> = (0..4)
            .map(|partition| {
                history.iter().filter(|(s, p)| *p == partition && cut.admits(*s)).count() as u64
            })
            .collect();
        assert_eq!(ends(&fixture, "t", sys(ms)).await, expected, "t={ms}");
    }
}

#[tokio::test]
async fn deleting_records_of_a_topic_that_was_deleted_is_refused_and_the_store_opens_again() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[1, 2, 3]).await.unwrap();
    fixture.engine.topics().delete(topic.id).await.unwrap();
    assert!(fixture.engine.topics().delete_records(&topic, 0, 2).await.is_err());
    let fixture = fixture.restart();
    assert!(fixture.engine.topics().named("t").is_none());
}

/// KIP-734, also on views that begin and end inside a batch.
#[tokio::test]
async fn the_latest_record_by_user_time_is_exact_in_every_range_of_a_log() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    let all = [50, 10, 5, 80, 60, 20, 90, 70, 90];
    for times in [&all[..2], &all[2..5], &all[5..6], &all[6..]] {
        fixture.append(&topic, 0, times).await.unwrap();
    }
    let partition = topic.partition(0).unwrap();
    for from in 0..=all.len() {
        for until in from..=all.len() {
            let (start, end) = (Offset(from as u64), Some(Offset(until as u64)));
            let view = PartitionView { partition: Arc::clone(partition), start, end };
            let record = fixture.engine.seek().latest_by_user_time(&view).unwrap();
            let latest = all[from..until].iter().max();
            let expected =
                latest.and_then(|latest| all[from..until].iter().position(|t| t == latest));
            let expected = expected.map(|position| (from + position) as u64);
            assert_eq!(record.map(|record| record.offset.0), expected, "[{from}, {until})");
        }
    }
}

#[tokio::test]
async fn a_corrupt_namespace_event_is_never_applied() {
    let fixture = EngineFixture::new();
    fixture.topic("orders", 1).await;
    let EngineFixture { disk, clock, engine } = fixture;
    engine.close();
    drop(engine);
    let names = storage::disk::Disk::list(&disk).unwrap();
    let journal = names.into_iter().find(|name| name.ends_with(".journal")).unwrap();
    let bytes = disk.bytes(&journal);
    let name = bytes.windows(6).position(|window| window == b"orders").expect("it is there");
    disk.corrupt(&journal, name, 1);
    let opened = engine::Engine::open(
        Arc::new(disk),
        engine::EngineOptions::default(),
        clock as Arc<dyn hlc::WallClock>,
        Arc::new(testkit::engine::TimeListFormat),
    );
    let error = opened.expect_err("corruption is refused").to_string();
    assert!(error.contains("corrupt") && error.contains(&journal), "{error}");
}

#[tokio::test]
async fn a_view_that_was_whole_says_so_when_its_records_are_deleted_later() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[1, 2]).await.unwrap();
    fixture.advance_clock(10);
    let view = fixture
        .engine
        .seek()
        .view("t", MomentSelector::At(Moment::Sys(fixture.now())), NOW)
        .await
        .unwrap();
    assert!(view.check_retained().is_ok());
    fixture.append(&topic, 0, &[3, 4]).await.unwrap();
    fixture.engine.topics().delete_records(&topic, 0, 3).await.unwrap();
    assert!(matches!(view.check_retained(), Err(SeekError::BeforeHistory { .. })));
}

#[tokio::test]
async fn a_window_of_user_time_is_seen_as_known_at_the_later_of_its_moments() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[100]).await.unwrap();
    fixture.advance_clock(10);
    let early = fixture.now();
    fixture.append(&topic, 0, &[200]).await.unwrap();
    fixture.advance_clock(10);
    let late = fixture.now();
    let at = |ms, known| Moment::User { before: UserTime(ms), known };
    for (first, second) in [(Some(late), Some(early)), (Some(late), None), (None, Some(late))] {
        let selector = MomentSelector::window(at(50, first), at(500, second)).unwrap();
        let view = fixture.engine.seek().view("t", selector, NOW).await.unwrap();
        assert_eq!(view.partitions[0].end(), Offset(2), "{selector}");
    }
}

/// A client may go away while its change is in flight to the disk; the next change waits for it.
#[tokio::test]
async fn a_change_whose_caller_went_away_is_completed_before_the_next_is_decided() {
    let fixture = EngineFixture::new();
    let none = std::collections::BTreeMap::new;
    for round in 0..20_u8 {
        let (a, b) = (format!("a{round}"), format!("b{round}"));
        let first = fixture.engine.topics().create(&a, 2, none(), [round; 16], false);
        let _ = tokio::time::timeout(Duration::ZERO, first).await;
        let id = [100 + round; 16];
        let second = fixture.engine.topics().create(&b, 2, none(), id, false).await.unwrap();
        if let Some(first) = fixture.engine.topics().named(&a) {
            let logs = |topic: &engine::Topic| -> Vec<_> {
                topic.partitions.iter().map(|partition| partition.log.id).collect()
            };
            assert!(logs(&first).iter().all(|log| !logs(&second).contains(log)), "{round}");
        }
        let _ = tokio::time::timeout(Duration::ZERO, fixture.engine.topics().delete(id)).await;
        let _ = fixture.engine.topics().delete(id).await;
        assert!(fixture.engine.topics().named(&b).is_none());
    }
    let fixture = fixture.restart();
    assert!(fixture.engine.topics().all().iter().all(|topic| topic.name.starts_with('a')));
}
