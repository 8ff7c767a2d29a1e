//! The history that pins hold, and until when (TIME.md 6).

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::{
    CoreOptions, EngineError, EngineOptions, Pin, PinError, PinHold, SeekError, WaitPolicy,
};
use hlc::{ClockDiscipline, Cut, ManualClock, SysTime};
use storage::disk::MemoryDisk;
use testkit::engine::{EngineFixture, START};

const NOW: WaitPolicy = WaitPolicy::Refuse;
const HOUR: u64 = 3_600_000;

async fn pin(fixture: &EngineFixture, name: &str, at: Cut) -> Result<Pin, PinError> {
    fixture.engine.pins().set(name, at, NOW, SysTime(START + HOUR), None).await
}

async fn pin_topics(
    fixture: &EngineFixture,
    name: &str,
    at: Cut,
    topics: &[&str],
) -> Result<Pin, PinError> {
    let topics: Vec<String> = topics.iter().map(|topic| (*topic).to_owned()).collect();
    fixture.engine.pins().set(name, at, NOW, SysTime(START + HOUR), Some(&topics)).await
}

fn names(fixture: &EngineFixture) -> Vec<String> {
    fixture.engine.pins().all().iter().map(|pin| pin.name.to_string()).collect()
}

fn assert_invalid<T: std::fmt::Debug>(result: Result<T, PinError>, case: &str) {
    assert!(matches!(result, Err(PinError::Invalid(_))), "{case}: {result:?}");
}

#[tokio::test]
async fn a_pin_holds_what_it_admits_against_delete_records_until_it_is_removed() {
    let fixture = EngineFixture::new();
    let (a, b) = (fixture.topic("a", 1).await, fixture.topic("b", 1).await);
    for topic in [&a, &b] {
        fixture.append(topic, 0, &[1]).await.unwrap();
        fixture.append(topic, 0, &[2]).await.unwrap();
    }
    fixture.advance_clock(1);
    let at = fixture.now();
    for topic in [&a, &b] {
        fixture.append(topic, 0, &[3]).await.unwrap();
    }
    let set = pin_topics(&fixture, "p", at, &["a"]).await.unwrap();
    assert_eq!(set.topics, Some(vec![Arc::from("a")]));
    let error = fixture.engine.topics().delete_records(&a, 0, 1).await.unwrap_err();
    assert!(matches!(&error, EngineError::Pinned { pin, .. } if &**pin == "p"), "{error}");
    assert!(error.to_string().contains("the pin p"), "{error}");
    assert!(fixture.engine.topics().delete_records(&a, 0, -1).await.is_err());
    // A request that removes nothing is not refused, and another topic's pin does not matter.
    assert_eq!(fixture.engine.topics().delete_records(&a, 0, 0).await.unwrap().0, 0);
    assert_eq!(fixture.engine.topics().delete_records(&b, 0, 2).await.unwrap().0, 2);
    fixture.engine.pins().remove("p").await.unwrap();
    assert!(matches!(fixture.engine.pins().remove("p").await, Err(PinError::Unknown(_))));
    assert_eq!(fixture.engine.topics().delete_records(&a, 0, 1).await.unwrap().0, 1);
}

/// Otherwise its moment could not be read: it would end below the log start.
#[tokio::test]
async fn a_pin_holds_a_partition_that_was_empty_and_none_that_was_not_there() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.advance_clock(1);
    let empty = fixture.now();
    fixture.append(&topic, 0, &[1]).await.unwrap();
    let later = fixture.topic("later", 1).await;
    fixture.append(&later, 0, &[1]).await.unwrap();
    fixture.engine.topics().add_partitions("t", 2, false).await.unwrap();
    let topic = fixture.engine.topics().by_id(&topic.id).unwrap();
    fixture.append(&topic, 1, &[1]).await.unwrap();
    pin(&fixture, "p", empty).await.unwrap();
    let refused = fixture.engine.topics().delete_records(&topic, 0, 1).await;
    assert!(matches!(refused, Err(EngineError::Pinned { .. })), "{refused:?}");
    assert_eq!(fixture.engine.topics().delete_records(&topic, 1, 1).await.unwrap().0, 1);
    assert_eq!(fixture.engine.topics().delete_records(&later, 0, 1).await.unwrap().0, 1);
    let pinned = fixture.engine.cuts().at(empty, None, NOW).await.unwrap();
    assert_eq!(pinned.partitions.len(), 1);
    fixture.engine.pins().remove("p").await.unwrap();
    assert_eq!(fixture.engine.topics().delete_records(&topic, 0, 1).await.unwrap().0, 1);
}

#[tokio::test]
async fn a_moment_before_the_log_start_or_not_past_cannot_be_pinned() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 2).await;
    fixture.append(&topic, 1, &[1]).await.unwrap();
    fixture.advance_clock(1);
    let early = fixture.now();
    fixture.append(&topic, 1, &[2, 3]).await.unwrap();
    fixture.engine.topics().delete_records(&topic, 1, 2).await.unwrap();
    match pin(&fixture, "p", early).await {
        Err(PinError::Seek(SeekError::BeforeHistory { lost })) => {
            assert_eq!((&*lost[0].topic, lost[0].partition), ("t", 1));
        }
        other => panic!("the log start advanced: {other:?}"),
    }
    let later = Cut::before(SysTime(START + 10_000));
    let not_yet = pin(&fixture, "p", later).await;
    assert!(matches!(not_yet, Err(PinError::Seek(SeekError::NotYet { .. }))), "{not_yet:?}");
    let unknown = pin_topics(&fixture, "p", fixture.now(), &["t", "u"]).await;
    assert!(matches!(unknown, Err(PinError::Seek(SeekError::NoTopic { .. }))), "{unknown:?}");
    assert_eq!(names(&fixture), [""; 0]);
    pin(&fixture, "p", fixture.now()).await.unwrap();
}

#[tokio::test]
async fn a_name_or_an_expiry_that_cannot_be_is_refused() {
    let fixture = EngineFixture::new();
    let at = fixture.now();
    let long = "x".repeat(250);
    for name in ["", ".", "..", "a b", "a/b", "ä", &long] {
        assert_invalid(pin(&fixture, name, at).await, name);
    }
    pin(&fixture, &long[1..], at).await.unwrap();
    let ten_years = engine::pins::EXPIRY_MS_MAX;
    for expires in [0, START, START + ten_years + 1, u64::MAX] {
        let refused = fixture.engine.pins().set("p", at, NOW, SysTime(expires), None).await;
        assert_invalid(refused, &expires.to_string());
    }
    fixture.engine.pins().set("p", at, NOW, SysTime(START + ten_years), None).await.unwrap();
    assert_invalid(pin_topics(&fixture, "q", at, &[]).await, "of nothing");
}

#[tokio::test]
async fn the_same_pin_again_is_extended_and_another_of_its_name_is_refused() {
    let fixture = EngineFixture::new();
    fixture.topic("t", 1).await;
    fixture.advance_clock(1);
    let at = fixture.now();
    fixture.advance_clock(1);
    let until = |expires| fixture.engine.pins().set("p", at, NOW, SysTime(expires), None);
    until(START + 100).await.unwrap();
    assert_eq!(until(START + 300).await.unwrap().expires, SysTime(START + 300));
    assert_eq!(until(START + 200).await.unwrap().expires, SysTime(START + 300), "never shortened");
    let error = pin(&fixture, "p", fixture.now()).await.unwrap_err();
    assert!(matches!(error, PinError::Taken { at: stands, .. } if stands == at), "{error}");
    let result = pin_topics(&fixture, "p", at, &["t"]).await;
    assert!(matches!(result, Err(PinError::Taken { .. })), "{result:?}");
    // Once the pin has expired, the name is free.
    fixture.advance_clock(300);
    assert_eq!(names(&fixture), [""; 0]);
    pin_topics(&fixture, "p", at, &["t"]).await.unwrap();
    assert_eq!(names(&fixture), ["p"]);
}

#[tokio::test]
async fn only_so_many_pins_stand_at_a_time_and_an_expired_one_is_not_counted() {
    let options = EngineOptions {
        core: CoreOptions { pins_max: 2, ..CoreOptions::default() },
        ..EngineOptions::default()
    };
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let fixture = EngineFixture::with(MemoryDisk::new(), clock, options);
    let at = fixture.now();
    fixture.engine.pins().set("short", at, NOW, SysTime(START + 10), None).await.unwrap();
    pin(&fixture, "long", at).await.unwrap();
    let Err(PinError::TooMany(refused)) = pin(&fixture, "more", at).await else {
        panic!("there are two")
    };
    assert_eq!((refused.limit, refused.setting), (2, Some("limits.pins-max")));
    // An existing pin can be extended all the same.
    pin(&fixture, "long", at).await.unwrap();
    fixture.advance_clock(10);
    pin(&fixture, "more", at).await.unwrap();
    assert_eq!(names(&fixture), ["long", "more"]);
}

#[tokio::test]
async fn an_expired_pin_holds_nothing_and_maintenance_removes_it() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.append(&topic, 0, &[1]).await.unwrap();
    fixture.advance_clock(1);
    pin(&fixture, "p", fixture.now()).await.unwrap();
    fixture.advance_clock(HOUR - 2);
    assert_eq!(fixture.engine.pins().remove_expired().await.unwrap(), 0);
    assert!(fixture.engine.topics().delete_records(&topic, 0, 1).await.is_err());
    fixture.advance_clock(1);
    assert_eq!(
        (names(&fixture), fixture.engine.pins().holds(None)),
        (vec![], engine::PinHoldRange::default())
    );
    assert_eq!(fixture.engine.topics().delete_records(&topic, 0, 1).await.unwrap().0, 1);
    assert_eq!(fixture.engine.pins().remove_expired().await.unwrap(), 1);
    assert_eq!(fixture.engine.pins().remove_expired().await.unwrap(), 0);
}

#[tokio::test]
async fn pins_survive_a_crash_and_so_do_their_removals() {
    let fixture = EngineFixture::new();
    fixture.topic("a", 1).await;
    fixture.advance_clock(1);
    let at = fixture.now();
    pin(&fixture, "gone", at).await.unwrap();
    let pinned = pin_topics(&fixture, "kept", at, &["a"]).await.unwrap();
    fixture.engine.pins().remove("gone").await.unwrap();
    let before = fixture.engine.pins().all();
    assert_eq!(before, [pinned]);
    let fixture = fixture.crash(|_| 0);
    assert_eq!(fixture.engine.pins().all(), before);
    let fixture = fixture.restart();
    assert_eq!(fixture.engine.pins().all(), before);
}

#[tokio::test]
async fn a_pin_of_a_topic_that_is_deleted_later_goes_on_to_hold_it_and_name_it() {
    let fixture = EngineFixture::new();
    let first = fixture.topic("t", 1).await;
    fixture.advance_clock(1);
    let at = fixture.now();
    pin_topics(&fixture, "p", at, &["t"]).await.unwrap();
    fixture.engine.topics().delete(first.id).await.unwrap();
    let second =
        fixture.engine.topics().create("t", 1, BTreeMap::new(), [9; 16], false).await.unwrap();
    assert_eq!(fixture.engine.pins().all()[0].topics, Some(vec![Arc::from("t")]));
    let hold = Some(PinHold { pin: "p".into(), at });
    assert_eq!(fixture.engine.pins().holds(Some(&first.id)).latest, hold);
    assert_eq!(fixture.engine.pins().holds(Some(&second.id)).latest, None);
}

/// To a clock that jumped ahead, every record would be old and every pin expired.
#[tokio::test]
async fn while_the_clock_is_fenced_there_is_no_retention_time() {
    let fixture = EngineFixture::new();
    let at = fixture.now();
    pin(&fixture, "p", at).await.unwrap();
    assert_eq!(fixture.engine.retention_time(), Some(SysTime(START)));
    fixture.clock.step_to(SysTime(START + 10 * HOUR));
    assert_eq!(fixture.engine.retention_time(), None);
    assert_eq!(fixture.engine.pins().holds(None).latest, Some(PinHold { pin: "p".into(), at }));
    assert!(fixture.engine.pins().remove_expired().await.is_err());
    fixture.clock.step_to(SysTime(START));
    assert_eq!(fixture.engine.retention_time(), Some(SysTime(START)));
    assert_eq!(names(&fixture), ["p"]);
}

/// Code that decides by pins what to remove holds the lock until the horizon is on stable storage.
#[tokio::test]
async fn no_pin_is_set_while_changes_are_locked() {
    let fixture = EngineFixture::new();
    let at = fixture.now();
    let lock = fixture.engine.lock_changes().await;
    let setting = pin(&fixture, "p", at);
    tokio::pin!(setting);
    let once = std::future::poll_fn(|context| {
        std::task::Poll::Ready(setting.as_mut().poll(context).is_ready())
    });
    assert!(!once.await);
    assert_eq!(names(&fixture), [""; 0]);
    drop(lock);
    setting.await.unwrap();
    assert_eq!(names(&fixture), ["p"]);
}

/// To a server that starts under a clock that is days ahead, every record would be old and every
/// pin expired.
#[tokio::test]
async fn by_a_clock_far_ahead_at_the_start_no_pin_expires_and_no_log_start_advances() {
    let fixture = EngineFixture::new();
    fixture.clock.set_discipline(ClockDiscipline::default());
    let aged = BTreeMap::from([("retention.ms".to_owned(), "60000".to_owned())]);
    let topic = fixture.engine.topics().create("t", 1, aged, [7; 16], false).await.unwrap();
    fixture.append(&topic, 0, &[1]).await.unwrap();
    fixture.append(&topic, 0, &[2]).await.unwrap();
    let at = fixture.now();
    pin(&fixture, "p", at).await.unwrap();
    fixture.clock.step_to(SysTime(START + 200 * HOUR));
    let mut fixture = fixture.restart();
    for _ in 0..2 {
        let engine = Arc::new(fixture.engine);
        assert_eq!(engine.retention_time(), None);
        assert_eq!(engine.maintenance().apply_retention().await.unwrap(), 0);
        assert_eq!(engine.pins().remove_expired().await.unwrap(), 0);
        // Setting another pin removes none either.
        let expires = SysTime(START + 300 * HOUR);
        engine.pins().set("q", at, NOW, expires, None).await.unwrap();
        assert_eq!(engine.pins().all().len(), 2);
        assert_eq!(engine.topics().named("t").unwrap().partitions[0].start().0, 0);
        engine.pins().remove("q").await.unwrap();
        let engine = Arc::into_inner(engine).unwrap();
        fixture = EngineFixture { engine, ..fixture }.restart();
    }
    assert_eq!(fixture.engine.timekeeper().confirm(), None);
    let engine = Arc::new(fixture.engine);
    assert!(engine.pins().all().is_empty(), "by a clock that is right it is over");
    assert_eq!(engine.maintenance().apply_retention().await.unwrap(), 1);
    assert_eq!(engine.topics().named("t").unwrap().partitions[0].start().0, 2);
}

/// The size of a partition needs no clock: a disk must not fill up while nobody confirms the time.
#[tokio::test]
async fn what_is_too_large_goes_also_by_a_clock_that_is_in_doubt() {
    let fixture = EngineFixture::new();
    fixture.clock.set_discipline(ClockDiscipline::default());
    let small = BTreeMap::from([("retention.bytes".to_owned(), "16".to_owned())]);
    let topic = fixture.engine.topics().create("t", 1, small, [7; 16], false).await.unwrap();
    for time in 0..4 {
        fixture.append(&topic, 0, &[time]).await.unwrap();
    }
    fixture.clock.step_to(SysTime(START + 200 * HOUR));
    let engine = Arc::new(fixture.restart().engine);
    assert_eq!(engine.retention_time(), None);
    assert_eq!(engine.maintenance().apply_retention().await.unwrap(), 1);
    assert_eq!(engine.topics().named("t").unwrap().partitions[0].start().0, 3);
}

#[tokio::test]
async fn a_pin_that_was_replaced_is_not_removed_for_the_first() {
    let fixture = EngineFixture::new();
    fixture.topic("a", 1).await;
    fixture.advance_clock(1);
    let first = pin(&fixture, "p", fixture.now()).await.unwrap();
    fixture.engine.pins().remove("p").await.unwrap();
    fixture.advance_clock(1);
    let second = pin(&fixture, "p", fixture.now()).await.unwrap();
    let refused = fixture.engine.pins().remove_set_at("p", first.set).await;
    assert!(matches!(refused, Err(PinError::Unknown(_))), "{refused:?}");
    assert_eq!(names(&fixture), ["p"]);
    fixture.engine.pins().remove_set_at("p", second.set).await.unwrap();
    assert!(names(&fixture).is_empty());
}
