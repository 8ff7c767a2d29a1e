//! An engine without threads: the caller decides the order of everything.

use std::sync::Arc;
use std::time::Duration;

use engine::{CoreOptions, EngineOptions, Offset};
use hlc::{ManualClock, SysTime};
use storage::disk::MemoryDisk;
use testkit::engine::{EngineFixture, START};

fn manually_stepped() -> EngineFixture {
    let storage = storage::Options { manual_stepping: true, ..storage::Options::default() };
    let options = EngineOptions {
        core: CoreOptions { storage, ..CoreOptions::default() },
        ..EngineOptions::default()
    };
    EngineFixture::with(MemoryDisk::new(), Arc::new(ManualClock::at(SysTime(START))), options)
}

#[tokio::test]
async fn nothing_is_written_or_applied_until_it_is_stepped() {
    let fixture = manually_stepped();
    let engine = &fixture.engine;
    let (topic, ()) = tokio::join!(fixture.topic("t", 1), async {
        assert!(engine.topics().named("t").is_none());
        assert!(engine.step(), "a topic is to be made");
        assert!(engine.topics().named("t").is_some());
    });
    let (appended, ()) = tokio::join!(fixture.append(&topic, 0, &[1, 2]), async {
        assert_eq!(topic.partitions[0].end(), Offset(0));
        assert!(engine.step(), "a batch is to be written");
        assert_eq!(topic.partitions[0].end(), Offset(2));
    });
    appended.expect("it is written");
    assert!(!engine.step(), "nothing is left to do");
}

#[tokio::test]
async fn what_was_queued_is_written_when_it_is_closed() {
    let fixture = manually_stepped();
    let engine = &fixture.engine;
    let (topic, ()) = tokio::join!(fixture.topic("t", 1), async { while engine.step() {} });
    let (appended, ()) = tokio::join!(fixture.append(&topic, 0, &[1]), async { engine.close() });
    appended.expect("it is written");
    let next = fixture.restart();
    assert_eq!(
        next.engine.topics().named("t").expect("it is there").partitions[0].end(),
        Offset(1)
    );
}

/// Stamps reach the bound on disk, and only the writer can renew it.
#[tokio::test]
async fn the_clock_s_bound_is_renewed_where_it_is_needed() {
    let fixture = manually_stepped();
    let engine = &fixture.engine;
    let (topic, ()) = tokio::join!(fixture.topic("t", 1), async { while engine.step() {} });
    fixture.advance_clock(60_000);
    let (appended, ()) =
        tokio::join!(fixture.append(&topic, 0, &[1]), async { assert!(engine.step()) });
    let appended = appended.expect("it is written");
    assert!(appended.stamp.time().0 >= START + 60_000, "stamped now: {}", appended.stamp);
}

/// It waits for the bound that limits it, and for nothing else.
#[tokio::test]
async fn the_present_frontier_is_there_once_a_later_bound_is() {
    let fixture = manually_stepped();
    let engine = &fixture.engine;
    while engine.step() {}
    let wall = engine.wall_now();
    let at_once = tokio::time::timeout(Duration::ZERO, engine.present_frontier()).await;
    assert_eq!(at_once.expect("nothing holds it back").time(), wall);
    fixture.advance_clock(60_000);
    let (present, ()) = tokio::join!(engine.present_frontier(), async {
        assert!(engine.frontier().time() < engine.wall_now());
        assert!(engine.step(), "a bound is wanted");
    });
    assert_eq!(present.time(), engine.wall_now());
}
