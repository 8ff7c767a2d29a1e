//! Cuts by user time, among the records known at a moment (TIME.md 4), against a replay of all that
//! was appended (F3, F9).

use std::sync::Arc;
use std::time::Duration;

use engine::{CutAnswer, SeekError, Topic, WaitPolicy};
use hlc::{Cut, Hlc, Moment, SysTime, UserTime};
use proptest::prelude::*;
use testkit::engine::EngineFixture;

const NOW: WaitPolicy = WaitPolicy::Refuse;
const PARTITIONS: u32 = 3;
/// User times are drawn from below this, so that they repeat and decrease.
const TIMES: i64 = 12;

/// The appends to one partition: the stamp, and the times of the records.
type AppendHistory = Vec<(Hlc, Vec<i64>)>;

fn moment(before: i64, known: Option<Cut>) -> Moment {
    Moment::User { before: UserTime(before), known }
}

/// The replay's answer: the first known record at or after the time.
fn replayed_end(appended: &AppendHistory, before: i64, known: Cut) -> u64 {
    let known = appended.iter().filter(|(stamp, _)| known.admits(*stamp));
    let times: Vec<i64> = known.flat_map(|(_, times)| times.clone()).collect();
    times.iter().position(|time| *time >= before).unwrap_or(times.len()) as u64
}

fn ends(answer: &CutAnswer) -> Vec<u64> {
    answer.partitions.iter().map(|partition| partition.end.0).collect()
}

async fn cut(fixture: &EngineFixture, moment: Moment) -> CutAnswer {
    fixture.engine.cuts().at_moment(moment, None, NOW).await.unwrap()
}

fn workload() -> impl Strategy<Value = Vec<(u32, Vec<i64>, bool)>> {
    let batch = prop::collection::vec(0..TIMES, 1..5);
    prop::collection::vec((0..PARTITIONS, batch, any::<bool>()), 1..24)
}

async fn compare(steps: Vec<(u32, Vec<i64>, bool)>) {
    let fixture = EngineFixture::new();
    let topic: Arc<Topic> = fixture.topic("t", PARTITIONS).await;
    let mut appended = vec![AppendHistory::new(); PARTITIONS as usize];
    let mut moments = vec![fixture.now()];
    for (partition, times, passes) in steps {
        let stamp = fixture.append(&topic, partition, &times).await.unwrap().stamp;
        appended[partition as usize].push((stamp, times));
        moments.push(Cut::below(stamp));
        if passes {
            fixture.advance_clock(1);
            moments.push(fixture.now());
        }
    }
    moments.push(fixture.now());
    let mut first: Vec<(Moment, CutAnswer)> = Vec::new();
    for known in moments {
        for before in -1..=TIMES {
            let at = moment(before, Some(known));
            let answer = cut(&fixture, at).await;
            let expected: Vec<u64> =
                appended.iter().map(|history| replayed_end(history, before, known)).collect();
            assert_eq!(ends(&answer), expected, "{at}");
            assert_eq!((answer.moment, answer.at), (at, known));
            first.push((at, answer));
        }
    }
    // The same content has one hash, and other content another, whatever the spelling of the
    // moment.
    for pair in first.windows(2) {
        let [(_, first), (_, second)] = pair else { unreachable!("windows of two") };
        assert_eq!(first.hash == second.hash, ends(first) == ends(second), "{pair:?}");
    }
    let fixture = fixture.restart();
    fixture.append(&fixture.engine.topics().named("t").unwrap(), 0, &[0]).await.unwrap();
    for (at, answer) in &first {
        let again = cut(&fixture, *at).await;
        assert_eq!((again.hash, ends(&again)), (answer.hash, ends(answer)), "{at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn f3_f9_a_cut_by_user_time_is_what_a_replay_says_and_repeats_after_a_restart(steps in workload()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(compare(steps));
    }
}

#[tokio::test]
async fn a_cut_of_everything_known_is_the_cut_by_system_time() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 2).await;
    fixture.append(&topic, 0, &[3, 1]).await.unwrap();
    fixture.append(&topic, 1, &[2]).await.unwrap();
    let now = fixture.now();
    let (by_user, by_system) = (
        cut(&fixture, moment(4, Some(now))).await,
        fixture.engine.cuts().at(now, None, NOW).await.unwrap(),
    );
    assert_eq!(by_user.partitions, by_system.partitions);
    assert_eq!(by_user.hash, by_system.hash);
    assert_eq!(by_system.moment, Moment::Sys(now));
}

#[tokio::test]
async fn f9_what_comes_late_changes_an_answer_that_does_not_say_as_known_when_and_no_other() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[1, 9]).await.unwrap();
    fixture.append(&topic, 0, &[2]).await.unwrap();
    fixture.advance_clock(1);
    let first = cut(&fixture, moment(5, None)).await;
    assert_eq!(ends(&first), [1], "a prefix, up to the first record at or after the time");
    let Moment::User { known: Some(known), .. } = first.moment else { panic!("{first:?}") };
    assert!(known.is_closed_by(first.frontier));
    fixture.append(&topic, 0, &[1]).await.unwrap();
    let again = cut(&fixture, first.moment).await;
    assert_eq!((again.moment, again.hash, ends(&again)), (first.moment, first.hash, vec![1]));
    assert_ne!(cut(&fixture, moment(5, None)).await.moment, first.moment);
}

#[tokio::test]
async fn a_moment_of_user_time_is_waited_for_refused_or_answered_at_the_frontier() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[1]).await.unwrap();
    let soon = Cut::before(SysTime(fixture.clock_ms() + 1000));
    let at = moment(5, Some(soon));
    let refused = fixture.engine.cuts().at_moment(at, None, WaitPolicy::Refuse).await;
    assert!(matches!(refused, Err(SeekError::NotYet { .. })), "{refused:?}");
    let far = moment(5, Some(Cut::before(SysTime(fixture.clock_ms() + 3_600_000))));
    let refused =
        fixture.engine.cuts().at_moment(far, None, WaitPolicy::Wait(Duration::from_secs(5))).await;
    assert!(matches!(refused, Err(SeekError::FarFuture { .. })), "{refused:?}");
    let answer = fixture.engine.cuts().at_moment(at, None, WaitPolicy::AtFrontier).await.unwrap();
    assert!(answer.at < soon && answer.moment != at);
    // A time in the future is no special case: no known record has it.
    assert_eq!(ends(&cut(&fixture, moment(i64::MAX, None)).await), [1]);
}

#[tokio::test]
async fn a_cut_by_user_time_that_lost_records_names_the_partitions() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 2).await;
    for time in [1, 2, 3] {
        fixture.append(&topic, 1, &[time]).await.unwrap();
    }
    fixture.engine.topics().delete_records(&topic, 1, 2).await.unwrap();
    let refused = fixture.engine.cuts().at_moment(moment(2, None), None, NOW).await;
    let Err(SeekError::BeforeHistory { lost }) = refused else { panic!("{refused:?}") };
    assert_eq!(lost.iter().map(|lost| lost.partition).collect::<Vec<_>>(), [1]);
    let later = cut(&fixture, moment(3, None)).await;
    assert_eq!((later.partitions[1].start.0, later.partitions[1].end.0), (2, 2));
    let unknown =
        fixture.engine.cuts().at_moment(moment(3, None), Some(&["no".to_owned()]), NOW).await;
    assert!(matches!(unknown, Err(SeekError::NoTopic { .. })), "{unknown:?}");
}

/// The content of a cut by user time determines its hash, as for a cut by system time.
#[tokio::test]
async fn the_hash_of_a_cut_is_that_of_its_batches_wherever_in_them_it_ends() {
    let hashes = |times: [[i64; 2]; 3]| async move {
        let fixture = EngineFixture::new();
        let topic = fixture.topic("t", 1).await;
        let mut stamps = Vec::new();
        for times in times {
            stamps.push(fixture.append(&topic, 0, &times).await.unwrap().stamp);
            fixture.advance_clock(1);
        }
        let mut hashes = Vec::new();
        for (before, end) in [(10, 0), (20, 1), (30, 2), (40, 3), (50, 4), (60, 5), (70, 6)] {
            let answer = cut(&fixture, moment(before, None)).await;
            assert_eq!(ends(&answer), [end]);
            hashes.push(answer.hash);
            // Between two batches it has the content of a cut by system time.
            let below = [0, 2, 4].iter().position(|base| *base == end).map(|nth| stamps[nth]);
            if let Some(below) = below {
                let same = fixture.engine.cuts().at(Cut::below(below), None, NOW).await.unwrap();
                assert_eq!(answer.hash, same.hash, "{before}");
            }
        }
        hashes
    };
    let first = hashes([[10, 20], [30, 40], [50, 60]]).await;
    assert_eq!(first, hashes([[10, 20], [30, 40], [50, 60]]).await, "for the same content");
    // The second batch differs: so do all cuts that have a part of it, and none before.
    let second = hashes([[10, 20], [31, 40], [50, 60]]).await;
    let same: Vec<bool> = first.iter().zip(&second).map(|(a, b)| a == b).collect();
    assert_eq!(same, [true, true, true, false, false, false, false]);
}
