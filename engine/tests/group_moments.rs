//! Groups that are set to a moment, or back to what they had committed at one (TIME.md 5 and 10).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::groups::{
    GroupOptions, GroupSeekTarget, GroupSetError, GroupSetMode, GroupSetResult, OffsetCommit,
};
use engine::{Engine, EngineOptions, Isolation, SeekError, WaitPolicy};
use hlc::{Cut, ManualClock, Moment, SysTime, UserTime};
use storage::disk::MemoryDisk;
use testkit::engine::{EngineFixture, START};

const NOW: WaitPolicy = WaitPolicy::Refuse;

type PartitionOffsets = BTreeMap<(String, u32), i64>;

fn commit(topic: &str, partition: u32, offset: i64) -> OffsetCommit {
    let (topic, metadata) = (topic.to_owned(), "m".to_owned());
    OffsetCommit { topic, partition, offset, leader_epoch: 3, metadata, retention_ms: None }
}

async fn at(engine: &Engine, cut: Cut) -> PartitionOffsets {
    let (_, _, offsets) = engine.groups().offsets_at(Some("g"), cut, NOW).await.unwrap();
    offsets
        .into_iter()
        .map(|offset| ((offset.topic, offset.partition), offset.committed.offset))
        .collect()
}

fn now(engine: &Engine) -> PartitionOffsets {
    let offsets = engine.groups().committed_offsets(Some("g")).unwrap();
    offsets
        .into_iter()
        .map(|offset| ((offset.topic, offset.partition), offset.committed.offset))
        .collect()
}

fn offsets<const N: usize>(offsets: [(&str, u32, i64); N]) -> PartitionOffsets {
    offsets.into_iter().map(|(topic, nth, offset)| ((topic.to_owned(), nth), offset)).collect()
}

fn user(before: i64) -> Moment {
    Moment::User { before: UserTime(before), known: None }
}

fn target(moment: Moment, topics: Option<&[String]>) -> GroupSeekTarget<'_> {
    GroupSeekTarget { moment, topics, isolation: Isolation::Committed }
}

async fn seek(engine: &Engine, moment: Moment) -> GroupSetResult {
    engine.groups().seek("g", target(moment, None), NOW, GroupSetMode::Commit).await.unwrap()
}

/// Two topics, five batches, and a group that has committed an offset for one partition of each.
async fn world() -> (EngineFixture, Vec<Cut>) {
    let fixture = EngineFixture::new();
    let (t, u) = (fixture.topic("t", 2).await, fixture.topic("u", 1).await);
    let mut moments = vec![fixture.now()];
    for (topic, partition, times) in [
        (&t, 0, [10, 12]),
        (&u, 0, [11, 11]),
        (&t, 1, [30, 13]),
        (&t, 0, [14, 20]),
        (&u, 0, [9, 21]),
    ] {
        fixture.advance_clock(1);
        fixture.append(topic, partition, &times).await.unwrap();
        moments.push(fixture.now());
    }
    let commits = vec![commit("t", 0, 4), commit("u", 0, 3)];
    fixture.engine.groups().commit("g", commits).await.unwrap();
    (fixture, moments)
}

#[tokio::test]
async fn a_group_is_set_to_a_moment_in_every_partition_of_what_it_reads() {
    let (fixture, moments) = world().await;
    let before = fixture.now();
    for (nth, expected) in [
        (0, [("t", 0, 0), ("t", 1, 0), ("u", 0, 0)]),
        (2, [("t", 0, 2), ("t", 1, 0), ("u", 0, 2)]),
        (5, [("t", 0, 4), ("t", 1, 2), ("u", 0, 4)]),
    ] {
        let set = seek(&fixture.engine, Moment::Sys(moments[nth])).await;
        assert_eq!(now(&fixture.engine), offsets(expected));
        // It matches the cut.
        let cut = fixture.engine.cuts().at(moments[nth], None, NOW).await;
        let ends = cut
            .unwrap()
            .partitions
            .iter()
            .map(|partition| partition.end.0 as i64)
            .collect::<Vec<_>>();
        if nth > 0 {
            assert_eq!(now(&fixture.engine).into_values().collect::<Vec<_>>(), ends);
        }
        assert_eq!(set.at, Moment::Sys(moments[nth]));
    }
    assert_eq!(at(&fixture.engine, before).await, offsets([("t", 0, 4), ("u", 0, 3)]));
    // By user time: each partition up to the first record at or after it. The answer contains the
    // system time as of which records are known.
    let set = seek(&fixture.engine, user(12)).await;
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 1), ("t", 1, 0), ("u", 0, 3)]));
    let Moment::User { known: Some(_), .. } = set.at else { panic!("{set:?}") };
    let known = Moment::User { before: UserTime(12), known: Some(moments[2]) };
    seek(&fixture.engine, known).await;
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 1), ("t", 1, 0), ("u", 0, 2)]));
}

#[tokio::test]
async fn a_dry_run_says_what_would_be_and_changes_nothing() {
    let (fixture, moments) = world().await;
    let seek = fixture.engine.groups().seek(
        "g",
        target(Moment::Sys(moments[1]), None),
        NOW,
        GroupSetMode::DryRun,
    );
    let set = seek.await.unwrap();
    let changes = set
        .offsets
        .iter()
        .map(|offset| (offset.topic.as_str(), offset.partition, offset.before, offset.after));
    let changes = changes.collect::<Vec<_>>();
    let expected =
        [("t", 0, Some(4), Some(2)), ("t", 1, None, Some(0)), ("u", 0, Some(3), Some(0))];
    assert_eq!((changes, set.committed), (expected.to_vec(), None));
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 4), ("u", 0, 3)]));
}

#[tokio::test]
async fn a_partition_that_appears_later_begins_at_its_beginning_over_restarts_too() {
    let (fixture, moments) = world().await;
    seek(&fixture.engine, Moment::Sys(moments[3])).await;
    fixture.engine.topics().add_partitions("t", 4, false).await.unwrap();
    let t = fixture.engine.topics().named("t").unwrap();
    fixture.append(&t, 2, &[1, 2, 3]).await.unwrap();
    let expected = offsets([("t", 0, 2), ("t", 1, 2), ("t", 2, 0), ("t", 3, 0), ("u", 0, 2)]);
    assert_eq!(now(&fixture.engine), expected);
    let fixture = fixture.crash(|_| 0);
    assert_eq!(now(&fixture.engine), expected);
    assert_eq!(fixture.engine.groups().committed_offset("g", "t", 2).unwrap().unwrap().offset, 0);
    assert_eq!(fixture.engine.groups().committed_offset("g", "t", 4).unwrap(), None);
    assert_eq!(fixture.engine.groups().committed_offset("other", "t", 2).unwrap(), None);
    // Later commits take precedence.
    fixture.engine.groups().commit("g", vec![commit("t", 2, 2)]).await.unwrap();
    assert_eq!(fixture.engine.groups().committed_offset("g", "t", 2).unwrap().unwrap().offset, 2);
    // A partition of the moment whose offset was removed has none: only later partitions have an
    // implied one.
    fixture.engine.groups().delete_offsets("g", vec![("t".to_owned(), 1)]).await.unwrap();
    assert_eq!(fixture.engine.groups().committed_offset("g", "t", 1).unwrap(), None);
    // A topic that is created again under that name is another one.
    let id = fixture.engine.topics().named("t").unwrap().id;
    fixture.engine.topics().delete(id).await.unwrap();
    fixture.topic("t", 9).await;
    assert_eq!(now(&fixture.engine), offsets([("u", 0, 2)]));
    let (_, _, groups) = fixture.engine.groups().at(Some("g"), fixture.now(), NOW).await.unwrap();
    assert_eq!(groups[0].seek_moments, [("u".to_owned(), Moment::Sys(moments[3]).to_string())]);
}

#[tokio::test]
async fn what_is_deleted_of_a_group_that_was_set_to_a_moment_is_gone_and_the_rest_stays() {
    let (fixture, moments) = world().await;
    let moment = fixture.now();
    fixture.advance_clock(1);
    seek(&fixture.engine, Moment::Sys(moments[3])).await;
    fixture.engine.topics().add_partitions("t", 5, false).await.unwrap();
    let t = fixture.engine.topics().named("t").unwrap();
    fixture.append(&t, 4, &[1, 2]).await.unwrap();
    fixture.engine.topics().delete_records(&t, 4, 1).await.unwrap();
    let delete = async |partitions: &[(&str, u32)]| {
        let partitions = partitions.iter().map(|(topic, index)| ((*topic).to_owned(), *index));
        fixture.engine.groups().delete_offsets("g", partitions.collect()).await.unwrap();
    };
    // One of the later partitions: it has no offset then, and its neighbours keep their implied
    // offsets.
    delete(&[("t", 3)]).await;
    assert_eq!(fixture.engine.groups().committed_offset("g", "t", 3).unwrap(), None);
    let remaining = [("t", 0, 2), ("t", 1, 2), ("t", 2, 0), ("t", 4, 1), ("u", 0, 2)];
    assert_eq!(now(&fixture.engine), offsets(remaining));
    // Partitions that are added afterwards still have an implied offset.
    fixture.engine.topics().add_partitions("t", 6, false).await.unwrap();
    assert_eq!(fixture.engine.groups().committed_offset("g", "t", 5).unwrap().unwrap().offset, 0);
    // Again: one of the original partitions, and one that has no offset already.
    delete(&[("t", 1), ("t", 3), ("no", 0)]).await;
    let remaining = [("t", 0, 2), ("t", 2, 0), ("t", 4, 1), ("t", 5, 0), ("u", 0, 2)];
    assert_eq!(now(&fixture.engine), offsets(remaining));
    // A topic that loses all offsets is not read any more, whatever partitions are added.
    delete(&[("u", 0), ("t", 0), ("t", 2), ("t", 4), ("t", 5)]).await;
    fixture.engine.topics().add_partitions("t", 7, false).await.unwrap();
    fixture.engine.topics().add_partitions("u", 2, false).await.unwrap();
    assert_eq!(now(&fixture.engine), PartitionOffsets::new());
    let fixture = fixture.crash(|_| 0);
    assert_eq!(now(&fixture.engine), PartitionOffsets::new());
    let (_, _, groups) = fixture.engine.groups().at(Some("g"), fixture.now(), NOW).await.unwrap();
    assert!(groups.iter().all(|group| group.seek_moments.is_empty()), "{groups:?}");
    // At the earlier moment the offsets are unchanged.
    fixture.engine.groups().restore("g", moment, NOW, GroupSetMode::Commit).await.unwrap();
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 4), ("u", 0, 3)]));
}

#[tokio::test]
async fn a_group_goes_back_to_what_it_had_committed_and_to_nothing_else() {
    let (fixture, _) = world().await;
    let moment = fixture.now();
    fixture.advance_clock(1);
    let commits = vec![commit("t", 0, 1), commit("t", 1, 2), commit("u", 0, 4)];
    fixture.engine.groups().commit("g", commits).await.unwrap();
    let restore = |mode| fixture.engine.groups().restore("g", moment, NOW, mode);
    let dry = restore(GroupSetMode::DryRun).await.unwrap();
    assert_eq!((dry.committed, at(&fixture.engine, fixture.now()).await.len()), (None, 3));
    let set = restore(GroupSetMode::Commit).await.unwrap();
    assert_eq!(set.offsets, dry.offsets);
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 4), ("u", 0, 3)]));
    let restored = fixture.engine.groups().committed_offset("g", "t", 0).unwrap().unwrap();
    assert_eq!(
        (restored.leader_epoch, restored.metadata.as_str()),
        (3, "m"),
        "all of what was committed"
    );
    let removed =
        set.offsets.iter().find(|offset| (&*offset.topic, offset.partition) == ("t", 1)).unwrap();
    assert_eq!((removed.before, removed.after), (Some(2), None));
    // An offset of a topic that was deleted, or created again, means nothing.
    fixture.engine.topics().delete(fixture.engine.topics().named("u").unwrap().id).await.unwrap();
    let anew = fixture.engine.topics().create("u", 1, BTreeMap::new(), [99; 16], false);
    anew.await.unwrap();
    let set = restore(GroupSetMode::Commit).await.unwrap();
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 4)]));
    let skipped: Vec<_> = set
        .skipped
        .iter()
        .map(|skipped| (&*skipped.topic, skipped.partition, skipped.offset))
        .collect();
    assert_eq!(skipped, [("u", 0, 3)]);
    // Offsets that the group has committed since for the new topic stay, and are reported as
    // skipped.
    fixture.engine.groups().commit("g", vec![commit("u", 0, 7)]).await.unwrap();
    let set = restore(GroupSetMode::Commit).await.unwrap();
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 4), ("u", 0, 7)]));
    assert_eq!(set.skipped.len(), 1);
    assert!(set.offsets.iter().all(|offset| offset.topic == "t"), "{:?}", set.offsets);
    // Also for a group that was deleted since.
    fixture.engine.groups().delete("g").await.unwrap();
    restore(GroupSetMode::Commit).await.unwrap();
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 4)]));
}

#[tokio::test]
async fn going_back_undoes_a_seek_with_what_it_meant_for_later_partitions() {
    let (fixture, moments) = world().await;
    let moment = fixture.now();
    seek(&fixture.engine, Moment::Sys(moments[1])).await;
    let sought = fixture.now();
    fixture.engine.groups().restore("g", moment, NOW, GroupSetMode::Commit).await.unwrap();
    fixture.engine.topics().add_partitions("t", 3, false).await.unwrap();
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 4), ("u", 0, 3)]));
    fixture.engine.groups().restore("g", sought, NOW, GroupSetMode::Commit).await.unwrap();
    let expected = [("t", 0, 2), ("t", 1, 0), ("t", 2, 0), ("u", 0, 0)];
    assert_eq!(now(&fixture.engine), offsets(expected));
}

/// Nobody sees half of it, whatever others commit meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_seek_is_one_event_among_concurrent_commits() {
    const PARTITIONS: u32 = 8;
    let fixture = EngineFixture::new();
    let t = fixture.topic("t", PARTITIONS).await;
    for partition in 0..PARTITIONS {
        fixture.append(&t, partition, &[1, 2, 3, 4]).await.unwrap();
    }
    let moment = fixture.now();
    fixture.engine.groups().commit("g", vec![commit("t", 0, 1)]).await.unwrap();
    let (engine, disk, clock) = (Arc::new(fixture.engine), fixture.disk, fixture.clock);
    let committing = (0..PARTITIONS).map(|partition| {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move {
            for offset in 0..20 {
                let commit = vec![commit("t", partition, 1000 + offset)];
                engine.groups().commit("g", commit).await.unwrap();
            }
        })
    });
    let committing: Vec<_> = committing.collect();
    let mut stamps = Vec::new();
    for _ in 0..10 {
        stamps.push(seek(&engine, Moment::Sys(moment)).await.committed.unwrap());
    }
    for task in committing {
        task.await.unwrap();
    }
    let all: PartitionOffsets = (0..PARTITIONS).map(|nth| (("t".to_owned(), nth), 4)).collect();
    let mut snapshots = Vec::new();
    for stamp in stamps {
        assert_eq!(at(&engine, Cut::through(stamp)).await, all, "all of it, in one moment");
        snapshots.push((Cut::below(stamp), at(&engine, Cut::below(stamp)).await));
    }
    assert!(snapshots.iter().any(|(_, before)| *before != all), "others committed in between");
    drop(engine);
    let fixture = EngineFixture::on_disk(disk, clock);
    for (cut, before) in snapshots {
        assert_eq!(at(&fixture.engine, cut).await, before, "also when it is read again");
    }
}

#[tokio::test]
async fn what_cannot_be_set_is_an_error_that_says_why() {
    let (fixture, moments) = world().await;
    let sys = Moment::Sys(moments[1]);
    let seek = async |group: &str, moment, topics: Option<&[&str]>| {
        let topics: Option<Vec<String>> =
            topics.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        let patience = WaitPolicy::Wait(Duration::from_secs(5));
        let seek = fixture.engine.groups().seek(
            group,
            target(moment, topics.as_deref()),
            patience,
            GroupSetMode::Commit,
        );
        seek.await
    };
    let refused = seek("new", sys, None).await;
    assert!(matches!(refused, Err(GroupSetError::NothingCommitted(_))), "{refused:?}");
    let refused = seek("g", sys, Some(&["no"])).await;
    assert!(matches!(refused, Err(GroupSetError::UnknownTopic(_))), "{refused:?}");
    let far = Moment::Sys(Cut::before(SysTime(fixture.clock_ms() + 3_600_000)));
    let refused = seek("g", far, None).await;
    assert!(
        matches!(refused, Err(GroupSetError::Seek(SeekError::FarFuture { .. }))),
        "{refused:?}"
    );
    let restored =
        fixture.engine.groups().restore("new", fixture.now(), NOW, GroupSetMode::Commit).await;
    assert!(matches!(restored, Err(GroupSetError::NothingAtMoment { .. })), "{restored:?}");
    let t = fixture.engine.topics().named("t").unwrap();
    fixture.engine.topics().delete_records(&t, 0, 3).await.unwrap();
    let refused = seek("g", sys, None).await;
    let Err(GroupSetError::Seek(SeekError::BeforeHistory { lost })) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(lost.len(), 1);
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 4), ("u", 0, 3)]), "nothing was changed");
    // A group that has committed nothing may be set in named topics.
    let set = seek("new", sys, Some(&["u", "u"])).await.unwrap();
    assert_eq!(set.offsets.len(), 1);
}

#[tokio::test]
async fn what_a_seek_means_for_later_partitions_survives_the_end_of_its_history() {
    let clock = Arc::new(ManualClock::at(SysTime(START)));
    let options = EngineOptions {
        groups: GroupOptions { offsets_retention: Duration::ZERO },
        ..EngineOptions::default()
    };
    let mut fixture = EngineFixture::with(MemoryDisk::new(), clock, options);
    fixture.topic("t", 1).await;
    fixture.engine.groups().commit("g", vec![commit("t", 0, 0)]).await.unwrap();
    let moment = fixture.now();
    seek(&fixture.engine, Moment::Sys(moment)).await;
    for offset in 0..2000 {
        fixture.engine.groups().commit("much", vec![commit("t", 0, offset)]).await.unwrap();
    }
    fixture.advance_clock(10);
    fixture.now();
    let EngineFixture { disk, clock, engine } = fixture;
    let engine = Arc::new(engine);
    assert!(engine.groups().apply_retention().await.unwrap());
    let early = engine.groups().at(Some("g"), moment, NOW).await;
    assert!(matches!(early, Err(SeekError::BeforeOffsets { .. })), "{early:?}");
    engine.close();
    drop(engine);
    fixture = EngineFixture::on_disk(disk, clock);
    fixture.engine.topics().add_partitions("t", 2, false).await.unwrap();
    assert_eq!(now(&fixture.engine), offsets([("t", 0, 0), ("t", 1, 0)]));
}
