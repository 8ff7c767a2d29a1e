//! Deleted topics without records are removed, and nothing else is (TIME.md 6).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use engine::diff::{DiffPageRequest, DiffSection, Difference};
use engine::groups::{GroupOptions, OffsetCommit};
use engine::{
    CoreOptions, Durability, Engine, EngineOptions, Isolation, MaintenanceOptions, Offset, Payload,
    PayloadHeader, PinError, RecordBatch, SeekError, Topic, TopicId, WaitPolicy,
};
use hlc::{Cut, Hlc, ManualClock, Moment, MomentSelector, SysTime, UserTime};
use storage::LogId;
use storage::disk::{DiskFault, MemoryDisk};
use storage::manifest::Manifest;
use testkit::engine::{START, TimeListFormat};

const RETENTION: Duration = Duration::from_millis(1000);

/// A name so long that removing the topic is worth it.
const GONE: &str = "gone.................................................................................................";
const OTHER: &str = "other................................................................................................";

struct NamespaceWorld {
    disk: MemoryDisk,
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
    restated_bytes_max: usize,
    topics: u64,
}

fn open(
    disk: &MemoryDisk,
    clock: &Arc<ManualClock>,
    restated_bytes_max: usize,
) -> Result<Arc<Engine>, storage::OpenError> {
    let housekeeping = MaintenanceOptions { restated_bytes_max, ..MaintenanceOptions::default() };
    let storage = storage::Options {
        manual_maintenance: true,
        idle_logs_max: 16,
        merge_bytes_min: 64 << 10,
        ..storage::Options::default()
    };
    let options = EngineOptions {
        core: CoreOptions {
            storage,
            maintenance: housekeeping,
            deleted_topic_retention: RETENTION,
            ..CoreOptions::default()
        },
        groups: GroupOptions { offsets_retention: RETENTION },
        ..EngineOptions::default()
    };
    let clock = Arc::clone(clock) as Arc<dyn hlc::WallClock>;
    Engine::open(Arc::new(disk.clone()), options, clock, Arc::new(TimeListFormat)).map(Arc::new)
}

impl NamespaceWorld {
    fn new() -> NamespaceWorld {
        NamespaceWorld::with(1 << 20)
    }

    fn with(restated_bytes_max: usize) -> NamespaceWorld {
        let disk = MemoryDisk::new();
        let clock = Arc::new(ManualClock::at(SysTime(START)));
        let engine = open(&disk, &clock, restated_bytes_max).unwrap();
        NamespaceWorld { disk, clock, engine, restated_bytes_max, topics: 0 }
    }

    fn advance_clock(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    fn now(&self) -> Cut {
        Cut::through(self.engine.frontier())
    }

    fn reopen(&mut self) {
        self.engine = open(&self.disk, &self.clock, self.restated_bytes_max).unwrap();
    }

    fn restart(&mut self) {
        self.engine.close();
        self.reopen();
    }

    async fn create(&mut self, name: &str) -> Arc<Topic> {
        self.topics += 1;
        let id: TopicId = u128::from(self.topics).to_le_bytes();
        self.engine.topics().create(name, 1, BTreeMap::new(), id, false).await.unwrap()
    }

    async fn append(&self, topic: &Arc<Topic>) {
        let batch = RecordBatch {
            count: 1,
            payload: Payload {
                header: PayloadHeader::new(&[0; 8]),
                rest: 7_i64.to_le_bytes().to_vec().into(),
            },
            times: (UserTime(7), UserTime(7)),
            producer: None,
            expected_base: None,
            holder: None,
        };
        let batches = vec![(Arc::clone(topic), 0, batch)];
        self.engine.append(batches, Durability::Synced).await.remove(0).unwrap();
    }

    /// Creates a topic, appends a record, and deletes the topic.
    async fn create_and_delete(&mut self, name: &str) -> (Hlc, Hlc) {
        let topic = self.create(name).await;
        self.advance_clock(1);
        self.append(&topic).await;
        self.advance_clock(1);
        self.engine.topics().delete(topic.id).await.unwrap();
        let deleted = self.engine.frontier();
        self.advance_clock(1);
        (topic.created, deleted)
    }

    async fn run_maintenance(&self) -> usize {
        self.engine.maintenance().apply_retention().await.unwrap();
        self.engine.groups().apply_retention().await.unwrap();
        let forgotten = self.engine.maintenance().remove_deleted_topics().await.unwrap();
        self.engine.maintenance().remove_logs().await.unwrap();
        self.engine.maintenance().roll_segment().await.unwrap();
        for _ in 0..3 {
            self.engine.maintenance().index_and_sort().await.unwrap();
            self.engine.maintenance().reclaim().await.unwrap();
        }
        forgotten
    }

    async fn commit(&self, group: &str, topic: &str) {
        let commit = OffsetCommit {
            topic: topic.to_owned(),
            partition: 0,
            offset: 1,
            leader_epoch: -1,
            metadata: String::new(),
            retention_ms: None,
        };
        self.engine.groups().commit(group, vec![commit]).await.unwrap();
    }

    async fn view(&self, name: &str, cut: Cut) -> Result<u64, SeekError> {
        let view = self
            .engine
            .seek()
            .view(name, MomentSelector::At(Moment::Sys(cut)), WaitPolicy::Refuse)
            .await?;
        Ok(view.partitions.iter().map(|view| view.end().0).sum())
    }

    async fn hash(&self, cut: Cut) -> Result<u128, SeekError> {
        self.engine.cuts().at(cut, None, WaitPolicy::Refuse).await.map(|answer| answer.hash)
    }

    async fn names(&self, cut: Cut) -> Result<Vec<String>, SeekError> {
        let (.., topics) = self.engine.topics().at(cut, WaitPolicy::Refuse).await?;
        Ok(topics.into_iter().map(|(topic, _)| topic.name.to_string()).collect())
    }

    async fn diff(
        &self,
        from: Cut,
        until: Cut,
        topics: Option<&[String]>,
        only: Option<&[DiffSection]>,
    ) -> Result<Vec<Difference>, SeekError> {
        let request = DiffPageRequest {
            from,
            until,
            topics,
            only,
            isolation: Isolation::Committed,
            after: None,
            limit: 1000,
        };
        self.engine.diff(request, WaitPolicy::Refuse).await.map(|page| page.differences)
    }

    fn listed_logs(&self) -> usize {
        Manifest::read(&self.disk).unwrap().logs.len()
    }
}

fn is_before_names<T: std::fmt::Debug>(answer: &Result<T, SeekError>) -> bool {
    matches!(answer, Err(SeekError::BeforeNames { .. }))
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A topic whose settings and partitions change from moment to moment, and its state at each.
async fn eventful(
    world: &mut NamespaceWorld,
    moments: &mut Vec<(Cut, u64, usize, Option<String>)>,
    nth: u64,
) {
    if nth == 0 {
        world.create("stays").await;
    }
    if nth.is_multiple_of(40) && nth > 0 {
        let set = |configs: &mut BTreeMap<String, String>| {
            configs.insert("retention.ms".to_owned(), format!("{}", 1_000_000_000 + nth));
            Ok(())
        };
        world.engine.topics().configure("stays", set, false).await.unwrap();
    }
    if nth % 100 == 99 {
        let count = world.engine.topics().named("stays").unwrap().partitions.len() as u32;
        world.engine.topics().add_partitions("stays", count + 1, false).await.unwrap();
    }
    let topic = world.engine.topics().named("stays").unwrap();
    world.append(&topic).await;
    let set = topic.config.overrides().get("retention.ms").cloned();
    moments.push((world.now(), nth + 1, topic.partitions.len(), set));
}

async fn check_moments(world: &NamespaceWorld, moments: &[(Cut, u64, usize, Option<String>)]) {
    for (cut, records, partitions, set) in moments {
        let selector = MomentSelector::At(Moment::Sys(*cut));
        let view = world.engine.seek().view("stays", selector, WaitPolicy::Refuse).await.unwrap();
        assert_eq!(view.partitions.iter().map(|view| view.end().0).sum::<u64>(), *records);
        assert_eq!(view.topic.partitions.len(), *partitions);
        assert_eq!(view.topic.config.overrides().get("retention.ms"), set.as_ref());
    }
}

#[test]
fn a_thousand_topics_that_came_and_went_leave_little_and_change_no_moment() {
    run(async {
        let (mut world, mut moments) = (NamespaceWorld::with(2000), Vec::new());
        let (mut peak, mut forgotten) = ((0, 0, 0), 0);
        let mut newest = LogId(0);
        for nth in 0..1000 {
            eventful(&mut world, &mut moments, nth).await;
            let name = format!("t{}", nth % 7);
            let topic = world.create(&name).await;
            assert!(topic.partitions[0].log.id > newest, "a log is allocated once");
            newest = topic.partitions[0].log.id;
            world.append(&topic).await;
            world.advance_clock(5);
            world.engine.topics().delete(topic.id).await.unwrap();
            world.advance_clock(5);
            drop(topic);
            if nth % 20 == 19 {
                forgotten += world.run_maintenance().await;
                let (versions, bytes) = world.engine.maintenance().namespace_size().unwrap();
                let logs = world.listed_logs();
                peak = (peak.0.max(versions), peak.1.max(bytes), peak.2.max(logs));
            }
            if nth % 180 == 179 {
                world.restart();
            }
        }
        // A hundred are within the retention.
        assert!(forgotten > 800, "{forgotten} were removed");
        assert!(peak.0 < 600, "{peak:?}: versions in memory");
        assert!(peak.1 < 40_000, "{peak:?}: bytes of log 0");
        assert!(peak.2 < 400, "{peak:?}: logs in the manifest");
        check_moments(&world, &moments).await;
        world.restart();
        check_moments(&world, &moments).await;
        let old = moments[500].0;
        assert!(is_before_names(&world.hash(old).await));
        let now = world.now();
        assert_eq!(world.names(now).await.unwrap(), ["stays"]);
        assert_eq!(world.hash(now).await.unwrap(), world.hash(world.now()).await.unwrap());
    });
}

#[test]
fn what_was_at_a_moment_is_refused_only_where_a_removed_topic_may_have_been() {
    run(async {
        let mut world = NamespaceWorld::new();
        world.create("stays").await;
        world.advance_clock(5);
        let before = world.now();
        world.advance_clock(5);
        let mut moments = Vec::new();
        for nth in 0..10 {
            let first = world.now();
            let topic = world.create(GONE).await;
            let empty = world.now();
            world.advance_clock(1);
            world.append(&topic).await;
            world.advance_clock(1);
            let full = world.now();
            world.engine.topics().delete(topic.id).await.unwrap();
            let deleted = world.now();
            world.advance_clock(10);
            moments.push((first, empty, full, deleted));
            assert_eq!(world.view(GONE, full).await.unwrap(), 1, "{nth}");
        }
        world.advance_clock(2000);
        let late = world.now();
        let hash_before = world.hash(before).await.unwrap();
        let (first, empty, full, deleted) = moments[4];
        assert_eq!(world.names(full).await.unwrap(), [GONE, "stays"]);
        // The records are removed, and the topic is not: then the error names the partition.
        assert_eq!(world.engine.maintenance().apply_retention().await.unwrap(), 10);
        assert!(matches!(world.hash(empty).await, Err(SeekError::BeforeHistory { .. })));
        assert!(world.hash(full).await.is_ok());
        assert!(world.engine.topics().has_current_or_past(GONE));
        // These answers are cached.
        let cached = world.hash(deleted).await.unwrap();
        let both = [GONE.to_owned(), "stays".to_owned()];
        world.engine.cuts().at(full, Some(&both), WaitPolicy::Refuse).await.unwrap();

        assert_eq!(world.run_maintenance().await, 10);
        assert!(!world.engine.topics().has_current_or_past(GONE));
        for round in 0..2 {
            for cut in [empty, full] {
                let Err(SeekError::BeforeNames { earliest }) = world.hash(cut).await else {
                    panic!("{round}");
                };
                assert_eq!(earliest, deleted.bound());
                assert!(is_before_names(&world.names(cut).await));
                assert!(is_before_names(&world.view(GONE, cut).await));
                assert!(is_before_names(&world.view("never", cut).await));
                assert_eq!(world.view("stays", cut).await.unwrap(), 0);
                let refused = world.engine.cuts().at(cut, Some(&both), WaitPolicy::Refuse).await;
                assert!(is_before_names(&refused));
                let names = ["stays".to_owned()];
                // The second answer comes from the cache.
                for _ in 0..2 {
                    world.engine.cuts().at(cut, Some(&names), WaitPolicy::Refuse).await.unwrap();
                }
                let refused = world.engine.pins().set(
                    "p",
                    cut,
                    WaitPolicy::Refuse,
                    SysTime(START + 9000),
                    None,
                );
                let refused = refused.await;
                let is_refused =
                    matches!(refused, Err(PinError::Seek(SeekError::BeforeNames { .. })));
                assert!(is_refused, "{refused:?}");
            }
            // No removed topic existed between the two topics.
            assert_eq!(world.hash(deleted).await.unwrap(), cached);
            assert_eq!(world.names(deleted).await.unwrap(), ["stays"]);
            assert_eq!(world.hash(before).await.unwrap(), hash_before);
            for cut in [first, deleted, before] {
                let answer = world.view(GONE, cut).await;
                assert!(matches!(answer, Err(SeekError::NoTopic { .. })), "{answer:?}");
            }
            // A difference needs both moments, and needs the events of pins.
            let some = [DiffSection::Topics, DiffSection::Records];
            assert!(is_before_names(&world.diff(full, late, None, Some(&some)).await));
            assert!(is_before_names(&world.diff(first, full, None, Some(&some)).await));
            assert_eq!(world.diff(before, late, None, Some(&some)).await.unwrap().len(), 0);
            assert!(is_before_names(&world.diff(before, late, None, None).await));
            assert!(world.diff(late, world.now(), None, None).await.is_ok());
            let stays = ["stays".to_owned()];
            assert!(world.diff(full, late, Some(&stays), Some(&some)).await.is_ok());
            let names = [GONE.to_owned()];
            assert!(is_before_names(&world.diff(before, late, Some(&names), Some(&some)).await));
            world.restart();
        }
    });
}

#[test]
fn a_topic_without_records_is_known_for_as_long_as_deleted_topics_are_kept() {
    run(async {
        let mut world = NamespaceWorld::new();
        let topic = world.create("empty").await;
        let cut = world.now();
        world.advance_clock(1);
        world.engine.topics().delete(topic.id).await.unwrap();
        drop(topic);
        world.advance_clock(900);
        assert_eq!(world.run_maintenance().await, 0);
        assert_eq!(world.names(cut).await.unwrap(), ["empty"]);
        world.advance_clock(200);
        // While the clock cannot be trusted, nothing expires by age.
        world.clock.step_to(SysTime(START + 86_400_000));
        world.engine.frontier();
        assert_eq!(world.engine.maintenance().remove_deleted_topics().await.unwrap(), 0);
        assert_eq!(world.names(cut).await.unwrap(), ["empty"]);
    });
}

#[test]
fn a_pin_keeps_what_its_moment_shows_and_what_it_names() {
    run(async {
        let mut world = NamespaceWorld::new();
        world.create("stays").await;
        let named = world.create("named").await;
        let shown = world.create("shown").await;
        world.advance_clock(1);
        let at = world.now();
        let expires = SysTime(START + 100_000);
        let topics = ["named".to_owned()];
        world
            .engine
            .pins()
            .set("some", at, WaitPolicy::Refuse, expires, Some(&topics))
            .await
            .unwrap();
        world.engine.pins().set("all", at, WaitPolicy::Refuse, expires, None).await.unwrap();
        world.advance_clock(1);
        for topic in [named, shown] {
            world.engine.topics().delete(topic.id).await.unwrap();
        }
        let hash = world.hash(at).await.unwrap();
        for _ in 0..20 {
            world.create_and_delete(OTHER).await;
        }
        world.advance_clock(2000);
        assert_eq!(world.run_maintenance().await, 20);
        let pins = world.engine.pins().all();
        for _ in 0..2 {
            assert_eq!(world.hash(at).await.unwrap(), hash);
            assert_eq!(world.names(at).await.unwrap(), ["named", "shown", "stays"]);
            assert_eq!(world.engine.pins().all(), pins);
            world.restart();
        }
        world.engine.pins().remove("all").await.unwrap();
        for _ in 0..20 {
            world.create_and_delete(OTHER).await;
        }
        world.advance_clock(2000);
        assert_eq!(world.run_maintenance().await, 21);
        for _ in 0..2 {
            assert!(is_before_names(&world.hash(at).await));
            assert_eq!(world.view("named", at).await.unwrap(), 0);
            assert_eq!(world.engine.pins().all().len(), 1);
            assert_eq!(world.engine.pins().all()[0], pins[1]);
            world.restart();
        }
    });
}

/// A deletion of a topic ends its committed offsets again when the catalog is rebuilt: here at each
/// start.
#[test]
fn offsets_of_a_removed_topic_do_not_come_back() {
    run(async {
        let mut world = NamespaceWorld::new();
        world.create("stays").await;
        // This snapshot holds the horizon of offsets back: it is most of their log.
        world.engine.groups().save("g", vec![0; 50_000]).await.unwrap();
        world.commit("g", "stays").await;
        world.advance_clock(1);
        let read = world.create("read").await;
        world.commit("g", "read").await;
        world.advance_clock(1);
        world.engine.topics().delete(read.id).await.unwrap();
        drop(read);
        for _ in 0..20 {
            world.create_and_delete(OTHER).await;
        }
        world.advance_clock(2000);
        assert_eq!(world.run_maintenance().await, 20);
        assert_eq!(world.engine.groups().horizon(), Hlc::ZERO);
        let topics_with_offsets = |world: &NamespaceWorld| -> Vec<String> {
            let offsets = world.engine.groups().committed_offsets(None).unwrap();
            offsets.into_iter().map(|offset| offset.topic).collect()
        };
        assert!(world.engine.topics().has_current_or_past("read"));
        for _ in 0..2 {
            assert_eq!(topics_with_offsets(&world), ["stays"]);
            world.restart();
        }
        // Once offsets were restated, the deletion is not needed any more.
        world.engine.groups().save("g", vec![0; 10]).await.unwrap();
        world.advance_clock(2000);
        for _ in 0..20 {
            world.create_and_delete(OTHER).await;
        }
        world.advance_clock(2000);
        assert_eq!(world.run_maintenance().await, 21);
        assert!(world.engine.groups().horizon() > Hlc::ZERO);
        assert!(!world.engine.topics().has_current_or_past("read"));
        for _ in 0..2 {
            assert_eq!(topics_with_offsets(&world), ["stays"]);
            world.restart();
        }
    });
}

#[test]
fn what_is_not_worth_rewriting_the_rest_stays() {
    run(async {
        let mut world = NamespaceWorld::new();
        for nth in 0..50 {
            world.create(&format!("stays{nth}")).await;
        }
        world.advance_clock(1);
        for _ in 0..8 {
            world.create_and_delete(GONE).await;
        }
        world.advance_clock(2000);
        assert_eq!(world.run_maintenance().await, 0);
        for _ in 0..102 {
            world.create_and_delete(GONE).await;
        }
        world.advance_clock(2000);
        let newest = world.create(GONE).await;
        let log = newest.partitions[0].log.id;
        world.engine.topics().delete(newest.id).await.unwrap();
        drop(newest);
        world.advance_clock(2000);
        assert_eq!(world.run_maintenance().await, 111);
        assert_eq!(world.run_maintenance().await, 0);
        world.restart();
        assert_eq!(world.engine.topics().all().len(), 50);
        // Only the restatement says how many logs were allocated.
        assert!(world.create("later").await.partitions[0].log.id > log, "a log is allocated once");
    });
}

/// A crash at every operation of the disk while topics and their logs are removed.
#[test]
fn a_crash_while_topics_are_removed_loses_nothing() {
    run(async {
        let mut forgotten = 0;
        for at in 0.. {
            let (mut world, mut moments) = (NamespaceWorld::with(150), Vec::new());
            // It can be removed only after its pin, and was deleted before the others.
            let pinned = world.create("pinned").await;
            let (now, names) = (world.now(), ["pinned".to_owned()]);
            let expires = SysTime(START + 100_000);
            world
                .engine
                .pins()
                .set("q", now, WaitPolicy::Refuse, expires, Some(&names))
                .await
                .unwrap();
            world.engine.topics().delete(pinned.id).await.unwrap();
            drop(pinned);
            for nth in 0..6 {
                eventful(&mut world, &mut moments, nth * 40).await;
                moments.last_mut().unwrap().1 = nth + 1;
                world.create_and_delete(GONE).await;
                world.create_and_delete(OTHER).await;
            }
            let cut = moments[0].0;
            let topics = ["stays".to_owned()];
            world
                .engine
                .pins()
                .set("p", cut, WaitPolicy::Refuse, expires, Some(&topics))
                .await
                .unwrap();
            world.advance_clock(2000);
            world.engine.maintenance().apply_retention().await.unwrap();
            let before = world.create("before").await;
            let log = before.partitions[0].log.id;
            world.disk.arm(DiskFault::CrashAt(world.disk.operations() + at));
            let _ = world.engine.maintenance().remove_deleted_topics().await;
            let was_down = world.disk.has_crashed();
            world.disk = world.disk.after_crash(|count| at as usize % count);
            world.engine.close();
            world.reopen();
            check_moments(&world, &moments).await;
            assert!(world.engine.topics().has_current_or_past("pinned"), "{at}");
            world.engine.pins().remove("q").await.unwrap();
            for round in 0..2 {
                assert_eq!(world.engine.pins().all().len(), 1, "{at}");
                assert_eq!(world.names(world.now()).await.unwrap(), ["before", "stays"], "{at}");
                // The topic is known, or its span is known as removed.
                let result = world.view(GONE, cut).await;
                assert!(matches!(result, Err(SeekError::NoTopic { .. })), "{at}: {result:?}");
                if round == 0 {
                    world.run_maintenance().await;
                    // A complete restatement from before the crash may contain it.
                    let is_known = world.engine.topics().has_current_or_past("pinned");
                    forgotten += u64::from(!is_known);
                    world.restart();
                    assert_eq!(
                        world.engine.topics().has_current_or_past("pinned"),
                        is_known,
                        "{at}"
                    );
                    check_moments(&world, &moments).await;
                }
            }
            assert!(!world.engine.topics().has_current_or_past(GONE), "{at}");
            let after = world.create("after").await;
            assert!(after.partitions[0].log.id > log, "{at}: a log is allocated once");
            if !was_down {
                assert!(at > 8, "several events are written: {at}");
                assert!(forgotten > 0 && forgotten < at, "{forgotten} of {at}");
                break;
            }
        }
    });
}

/// Without the restatement for its log start, log 0 is incomplete.
#[test]
fn a_log_start_that_advanced_without_a_restatement_is_refused() {
    run(async {
        let mut world = NamespaceWorld::new();
        world.create("stays").await;
        world.create_and_delete(GONE).await;
        world.engine.close();
        {
            let fixture = storage_of(&world);
            fixture.advance_log_start(&[(LogId(0), Offset(3))]).unwrap();
            fixture.close();
        }
        let refused = open(&world.disk, &world.clock, 0).unwrap_err().to_string();
        assert!(
            refused.contains("the log start of topics advanced without a restatement"),
            "{refused}"
        );
    });
}

struct NoopAppendStage;

impl storage::AppendStage for NoopAppendStage {
    type Note = ();
    type Refusal = ();

    fn stage(&mut self, _: &mut storage::LogAppend<()>, _: Offset, _: Hlc) -> Result<(), ()> {
        Ok(())
    }
    fn begin(&mut self, _: storage::GroupNumber) {}

    fn commit(&mut self, _: storage::GroupNumber) {}
    fn replay(&mut self, _: &storage::ReplayedEntry<'_>) {}

    fn rollback(&mut self, _: storage::GroupNumber) {}
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }
}

struct NoopReplayHandler;

impl storage::ReplayHandler for NoopReplayHandler {
    fn restore(&mut self, _: &[u8]) -> Result<(), storage::journal::RecoverError> {
        Ok(())
    }
    fn entry(
        &mut self,
        _: &storage::ReplayedEntry<'_>,
    ) -> Result<(), storage::journal::RecoverError> {
        Ok(())
    }
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }
}

fn storage_of(world: &NamespaceWorld) -> storage::Store<NoopAppendStage> {
    let clock = Arc::clone(&world.clock) as Arc<dyn hlc::WallClock>;
    let options = storage::Options::default();
    let disk = Arc::new(world.disk.clone());
    storage::Store::open(disk, options, clock, &mut NoopReplayHandler, |_| NoopAppendStage, || {})
        .unwrap()
}
