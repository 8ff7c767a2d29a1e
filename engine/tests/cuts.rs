//! The cache of answers to cuts (F15, F38).

use std::sync::Arc;

use engine::{CoreOptions, EngineOptions, SeekError, WaitPolicy};
use hlc::{Cut, Hlc, Moment, MomentSelector, SysTime, UserTime};
use storage::disk::MemoryDisk;
use testkit::engine::{EngineFixture, START};

const NOW: WaitPolicy = WaitPolicy::Refuse;

fn fixture_with(cut_cache_bytes_max: usize) -> EngineFixture {
    let options = EngineOptions {
        core: CoreOptions { cut_cache_bytes_max, ..CoreOptions::default() },
        ..EngineOptions::default()
    };
    let clock = Arc::new(hlc::ManualClock::at(SysTime(START)));
    EngineFixture::with(MemoryDisk::new(), clock, options)
}

/// F15, the paper's figure 5: user time 3 and system time (5, 0) lead to the same snapshot.
#[tokio::test]
async fn f15_user_time_3_and_system_time_5_0_share_one_snapshot() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    // The five records of the figure, each accepted in a millisecond of its own: 1 … 5.
    let mut accepted = Vec::new();
    for user in [0, 1, 2, 2, 3] {
        fixture.advance_clock(1);
        accepted.push(fixture.append(&topic, 0, &[user]).await.unwrap().stamp);
    }
    fixture.advance_clock(10);
    let fifth = Cut::below(Hlc::at(accepted[4].time()));
    let by_system = fixture.engine.cuts().at(fifth, None, NOW).await.unwrap();
    // By user time: all before the first record of time 3.
    let selector = MomentSelector::At(Moment::User { before: UserTime(3), known: None });
    let view = fixture.engine.seek().view("t", selector, NOW).await.unwrap();
    let end = view.partitions[0].end();
    assert_eq!((end, by_system.partitions[0].end), (engine::Offset(4), end));
    // Its cut is the one below that record, as for each moment since the record before.
    for same in [Cut::below(accepted[4]), Cut::through(accepted[3])] {
        let answer = fixture.engine.cuts().at(same, None, NOW).await.unwrap();
        assert_eq!(answer.hash, by_system.hash);
        assert!(Arc::ptr_eq(&answer.partitions, &by_system.partitions), "one snapshot");
    }
    let later = fixture.engine.cuts().at(Cut::through(accepted[4]), None, NOW).await.unwrap();
    assert_ne!(later.hash, by_system.hash);
    assert_eq!(fixture.engine.cuts().cache_stats().snapshots, 2);
}

#[tokio::test]
async fn f15_the_second_read_of_a_cut_is_a_hit_and_says_the_same() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 3).await;
    fixture.topic("u", 1).await;
    fixture.append(&topic, 1, &[1, 2]).await.unwrap();
    fixture.advance_clock(1);
    let at = fixture.now();
    let names: Vec<String> = ["u", "t", "u"].map(str::to_owned).into();
    for topics in [None, Some(&names[..]), Some(&names[..1])] {
        let before = fixture.engine.cuts().cache_stats();
        let first = fixture.engine.cuts().at(at, topics, NOW).await.unwrap();
        let second = fixture.engine.cuts().at(at, topics, NOW).await.unwrap();
        assert_eq!((first.hash, &first.partitions), (second.hash, &second.partitions));
        let after = fixture.engine.cuts().cache_stats();
        assert_eq!((after.hits - before.hits, after.misses - before.misses), (1, 1));
    }
    // The order of the names does not matter.
    let sorted: Vec<String> = ["t", "u"].map(str::to_owned).into();
    let before = fixture.engine.cuts().cache_stats().hits;
    fixture.engine.cuts().at(at, Some(&sorted), NOW).await.unwrap();
    assert_eq!(fixture.engine.cuts().cache_stats().hits, before + 1);
    // The topics are part of the hash: all topics, and all of them by name, have the same content.
    assert_eq!(fixture.engine.cuts().cache_stats().snapshots, 2);
}

#[tokio::test]
async fn a_cached_cut_has_the_current_start_and_is_refused_once_it_is_lost() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[1, 2]).await.unwrap();
    fixture.advance_clock(1);
    let at = fixture.now();
    fixture.append(&topic, 0, &[3, 4]).await.unwrap();
    let starts = |answer: &engine::CutAnswer| answer.partitions[0].start.0;
    let first = fixture.engine.cuts().at(at, None, NOW).await.unwrap();
    fixture.engine.topics().delete_records(&topic, 0, 1).await.unwrap();
    let second = fixture.engine.cuts().at(at, None, NOW).await.unwrap();
    assert_eq!((starts(&first), starts(&second)), (0, 1));
    assert_eq!(first.hash, second.hash);
    fixture.engine.topics().delete_records(&topic, 0, 2).await.unwrap();
    let third = fixture.engine.cuts().at(at, None, NOW).await.unwrap();
    assert_eq!((starts(&third), third.partitions[0].end.0), (2, 2));
    fixture.engine.topics().delete_records(&topic, 0, 3).await.unwrap();
    let lost = fixture.engine.cuts().at(at, None, NOW).await;
    assert!(matches!(lost, Err(SeekError::BeforeHistory { .. })), "{lost:?}");
    assert_eq!(fixture.engine.cuts().cache_stats().hits, 3);
}

#[tokio::test]
async fn a_cached_cut_becomes_durable_when_what_it_holds_is_synced() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append_as(engine::Durability::Written, &topic, 0, &[1]).await.unwrap();
    fixture.advance_clock(1);
    let at = fixture.now();
    let first = fixture.engine.cuts().at(at, None, NOW).await.unwrap();
    fixture.append(&topic, 0, &[2]).await.unwrap();
    let second = fixture.engine.cuts().at(at, None, NOW).await.unwrap();
    assert_eq!((first.durable, second.durable), (false, true));
    assert!(second.frontier > first.frontier);
    assert_eq!((first.hash, fixture.engine.cuts().cache_stats().hits), (second.hash, 1));
}

/// F38: 10⁵ distinct moments, each with its own content or a shared one, in any order: the weight
/// stays below its bound.
#[tokio::test]
async fn f38_a_hundred_thousand_moments_leave_the_memory_bounded() {
    const BYTES_MAX: usize = 256 << 10;
    const MOMENTS: u64 = 100_000;
    const APPENDS: u64 = 2000;
    let fixture = fixture_with(BYTES_MAX);
    let topic = fixture.topic("t", 4).await;
    let from = fixture.clock_ms();
    for nth in 0..APPENDS {
        fixture.advance_clock(MOMENTS / APPENDS);
        fixture.append(&topic, (nth % 4) as u32, &[nth as i64]).await.unwrap();
    }
    fixture.advance_clock(1);
    let mut peak = 0;
    for nth in 0..MOMENTS {
        // Each moment once, and far apart: the step is coprime to the count.
        let ms = from + 1 + (nth * 62_137) % MOMENTS;
        let answer = fixture.engine.cuts().at(Cut::before(SysTime(ms)), None, NOW).await.unwrap();
        let records: u64 = answer.partitions.iter().map(|partition| partition.end.0).sum();
        assert_eq!(records, (ms - from - 1) / (MOMENTS / APPENDS), "at {ms}");
        if nth % 100 == 0 {
            peak = peak.max(fixture.engine.cuts().cache_stats().bytes);
        }
    }
    let stats = fixture.engine.cuts().cache_stats();
    peak = peak.max(stats.bytes);
    assert_eq!((stats.hits, stats.misses), (0, MOMENTS));
    assert!(peak <= BYTES_MAX as u64, "{peak}: {stats:?}");
    assert!(stats.bytes > BYTES_MAX as u64 / 2, "it is made use of: {stats:?}");
    assert!(stats.snapshots < APPENDS, "{stats:?}");
}

#[tokio::test]
async fn an_answer_larger_than_the_bound_and_a_bound_of_nothing_are_answered_all_the_same() {
    for bytes_max in [0, 1, 4096] {
        let fixture = fixture_with(bytes_max);
        fixture.topic("t", 1000).await;
        fixture.advance_clock(1);
        let at = fixture.now();
        for _ in 0..2 {
            let answer = fixture.engine.cuts().at(at, None, NOW).await.unwrap();
            assert_eq!(answer.partitions.len(), 1000);
        }
        let stats = fixture.engine.cuts().cache_stats();
        assert_eq!((stats.hits, stats.misses, stats.snapshots), (0, 2, 0), "{bytes_max}");
        assert!(stats.bytes <= bytes_max as u64);
    }
}
