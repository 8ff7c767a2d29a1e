//! The horizon of offsets and groups, against a model that keeps everything (TIME.md 6).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::CoreOptions;
use engine::groups::GroupOptions;
use engine::groups::{OffsetCommit, OffsetExpiry, ResourceConfig, ResourceType, StoredGroup};
use engine::{Engine, EngineOptions, MaintenanceOptions, PinError, SeekError, TopicId, WaitPolicy};
use hlc::{Cut, Hlc, ManualClock, SysTime};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use storage::backup::{AsOfError, copy_file, finish_copy, plan_copy_as_of};
use storage::catalog::Catalog;
use storage::disk::{Disk, DiskFault, MemoryDisk};
use testkit::directory::TestDirectory;
use testkit::engine::{START, TimeListFormat};
use testkit::rng::SeededRng;

const RETENTION: Duration = Duration::from_millis(100);

/// From group, topic and partition to offset and stamp.
type OffsetStamps = BTreeMap<(String, String, u32), (i64, Hlc)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct GroupHorizonState {
    offsets: OffsetStamps,
    snapshots: BTreeMap<String, StoredGroup>,
    configs: BTreeMap<String, ResourceConfig>,
}

fn copy(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// The catalog that the next incarnation finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CatalogFate {
    Kept,
    Lost,
    /// As an earlier incarnation left it.
    Old,
}

struct GroupHorizonWorld {
    disk: MemoryDisk,
    clock: Arc<ManualClock>,
    engine: Arc<Engine>,
    catalog: TestDirectory,
    old: Option<TestDirectory>,
    restated_bytes_max: usize,
    state: GroupHorizonState,
    topics: BTreeMap<String, TopicId>,
    /// The state at each moment.
    history: Vec<(Cut, GroupHorizonState)>,
    horizon_moves: u64,
    /// The number of topics that were removed.
    topics_removed: u64,
    /// The number of copies that got a restatement.
    copies_carried: usize,
}

fn open(
    disk: &MemoryDisk,
    clock: &Arc<ManualClock>,
    catalog: &TestDirectory,
    restated_bytes_max: usize,
) -> Arc<Engine> {
    let housekeeping = MaintenanceOptions { restated_bytes_max, ..MaintenanceOptions::default() };
    let options = EngineOptions {
        core: CoreOptions {
            catalog: Some(catalog.path().to_owned()),
            deleted_topic_retention: RETENTION / 2,
            maintenance: housekeeping,
            ..CoreOptions::default()
        },
        groups: GroupOptions { offsets_retention: RETENTION },
        ..EngineOptions::default()
    };
    let clock = Arc::clone(clock) as Arc<dyn hlc::WallClock>;
    let opened = Engine::open(Arc::new(disk.clone()), options, clock, Arc::new(TimeListFormat));
    Arc::new(opened.expect("the engine opens"))
}

/// The own retention of an offset; only some have one.
fn own_retention_ms(offset: i64) -> Option<u64> {
    (offset % 4 == 3).then_some(offset as u64 * 100)
}

impl GroupHorizonWorld {
    fn new(restated_bytes_max: usize) -> GroupHorizonWorld {
        let (disk, catalog) = (MemoryDisk::new(), TestDirectory::new());
        let clock = Arc::new(ManualClock::at(SysTime(START)));
        let engine = open(&disk, &clock, &catalog, restated_bytes_max);
        GroupHorizonWorld {
            disk,
            clock,
            engine,
            catalog,
            old: None,
            restated_bytes_max,
            state: GroupHorizonState::default(),
            topics: BTreeMap::new(),
            history: Vec::new(),
            horizon_moves: 0,
            topics_removed: 0,
            copies_carried: 0,
        }
    }

    fn advance_clock(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
    }

    /// Records the current state.
    fn record_moment(&mut self) {
        self.history.push((Cut::through(self.engine.frontier()), self.state.clone()));
    }

    async fn commit(&mut self, group: &str, topic: &str, partition: u32, offset: i64) {
        let (group, topic) = (group.to_owned(), topic.to_owned());
        let metadata = "m".repeat(offset as usize % 20);
        let retention_ms = own_retention_ms(offset);
        let topic_name = topic.clone();
        let commit = OffsetCommit {
            topic: topic_name,
            partition,
            offset,
            leader_epoch: -1,
            metadata,
            retention_ms,
        };
        let stamp = self.engine.groups().commit(&group, vec![commit]).await.unwrap();
        self.state.offsets.insert((group, topic, partition), (offset, stamp));
        self.record_moment();
    }

    async fn delete_offsets(&mut self, group: &str, topic: &str, partition: u32) {
        let partitions = vec![(topic.to_owned(), partition)];
        self.engine.groups().delete_offsets(group, partitions).await.unwrap();
        self.state.offsets.remove(&(group.to_owned(), topic.to_owned(), partition));
        self.record_moment();
    }

    /// Expires all offsets that are this old, or older than their own retention. With `is_beaten`,
    /// one offset of one group is committed again before its removal.
    async fn expire(&mut self, ms: u64, is_beaten: bool) {
        let expiry = OffsetExpiry::new(self.engine.wall_now(), Duration::from_millis(ms));
        let is_old = |offset: i64, stamp: Hlc| match own_retention_ms(offset) {
            Some(own_ms) => stamp.time().0 + own_ms <= expiry.now.0,
            None => stamp <= expiry.until,
        };
        let (mut last, mut groups_seen, mut is_beaten) =
            (None::<String>, BTreeSet::new(), is_beaten);
        while let Some(group) = self.engine.groups().next_group(last.as_deref()).unwrap() {
            let offsets = self.state.offsets.iter().filter(|((owner, ..), _)| *owner == group);
            let expected = offsets.filter(|(_, (offset, stamp))| is_old(*offset, *stamp));
            let expected: Vec<(String, u32)> =
                expected.map(|((_, topic, partition), _)| (topic.clone(), *partition)).collect();
            let (mut expired, mut topic) = (Vec::new(), None::<String>);
            while let Some(old) =
                self.engine.groups().expired_offsets(&group, topic.as_deref(), expiry).unwrap()
            {
                expired.extend(old.offsets.into_iter().map(|old| (old.topic, old.partition)));
                topic = Some(old.last);
            }
            assert_eq!(expired, expected, "{group:?}");
            let saved = self.engine.groups().saved_at(&group).unwrap();
            assert_eq!(saved.is_some(), self.state.snapshots.contains_key(&group));
            if is_beaten && let Some((topic, partition)) = expired.first() {
                is_beaten = false;
                self.commit(&group, topic, *partition, 7).await;
            }
            let removing =
                self.engine.groups().begin_expire_offsets(&group, expired, expiry).unwrap();
            removing.wait().await.unwrap();
            let state = &mut self.state.offsets;
            state
                .retain(|(owner, ..), (offset, stamp)| *owner != group || !is_old(*offset, *stamp));
            self.record_moment();
            assert!(groups_seen.insert(group.clone()), "{group:?} comes twice");
            last = Some(group);
        }
        for (group, ..) in self.state.offsets.keys() {
            assert!(groups_seen.contains(group), "{group:?} was not checked");
        }
    }

    async fn save(&mut self, group: &str, snapshot: Vec<u8>) {
        self.engine.groups().save(group, snapshot.clone()).await.unwrap();
        self.state.snapshots.insert(group.to_owned(), StoredGroup::whole(snapshot));
        self.record_moment();
    }

    /// Saves a group whose members are stored one by one: of one of them `bytes`, or its end.
    async fn save_member(
        &mut self,
        group: &str,
        member: &str,
        bytes: Option<usize>,
        is_whole: bool,
    ) {
        let snapshot = vec![8; bytes.unwrap_or(1)];
        let members = vec![(member.to_owned(), bytes.map(|bytes| vec![9; bytes]))];
        let groups = self.engine.groups();
        groups.save_changes(group, snapshot.clone(), members.clone(), is_whole).await.unwrap();
        let empty = || StoredGroup::whole(Vec::new());
        let stored = self.state.snapshots.entry(group.to_owned()).or_insert_with(empty);
        stored.snapshot = snapshot;
        if is_whole {
            stored.members.clear();
        }
        for (member, snapshot) in members {
            match snapshot {
                Some(snapshot) => drop(stored.members.insert(member, snapshot)),
                None => drop(stored.members.remove(&member)),
            }
        }
        self.record_moment();
    }

    /// Gives a group a setting of this length, or none.
    async fn configure(&mut self, group: &str, bytes: Option<usize>) {
        let config: ResourceConfig =
            bytes.map(|bytes| ("k".to_owned(), "v".repeat(bytes))).into_iter().collect();
        let groups = self.engine.groups();
        groups.set_config(ResourceType::Group, group, config.clone()).await.unwrap();
        if config.is_empty() {
            drop(self.state.configs.remove(group))
        } else {
            drop(self.state.configs.insert(group.to_owned(), config))
        }
        self.record_moment();
    }

    async fn configs_at(&self, cut: Cut) -> BTreeMap<String, ResourceConfig> {
        let (groups, mut configs) = (self.engine.groups(), BTreeMap::new());
        for group in GROUPS {
            let config = groups.config_at(ResourceType::Group, group, cut, WaitPolicy::Refuse);
            configs.insert(group.to_owned(), config.await.unwrap());
        }
        configs.retain(|_, config| !config.is_empty());
        configs
    }

    async fn groups_at(&self, cut: Cut) -> BTreeMap<String, StoredGroup> {
        let (_, _, groups) = self.engine.groups().at(None, cut, WaitPolicy::Refuse).await.unwrap();
        groups.into_iter().filter_map(|at_cut| Some((at_cut.group, at_cut.snapshot?.1))).collect()
    }

    async fn delete_group(&mut self, group: &str) {
        self.engine.groups().delete(group).await.unwrap();
        self.state.offsets.retain(|(owner, ..), _| owner != group);
        self.state.snapshots.remove(group);
        self.record_moment();
    }

    /// Deletes the topic if it exists, otherwise creates it.
    async fn recreate_topic(&mut self, topic: &str) {
        if let Some(id) = self.topics.remove(topic) {
            self.engine.topics().delete(id).await.unwrap();
            self.state.offsets.retain(|(_, name, _), _| name != topic);
        } else {
            let id = (self.history.len() as u128).to_le_bytes();
            self.engine.topics().create(topic, 1, BTreeMap::new(), id, false).await.unwrap();
            self.topics.insert(topic.to_owned(), id);
        }
        self.record_moment();
    }

    async fn run_maintenance(&mut self) {
        let before = self.engine.groups().horizon();
        let moved = self.engine.groups().apply_retention().await.unwrap();
        self.horizon_moves += u64::from(moved);
        assert_eq!(moved, self.engine.groups().horizon() > before, "{before}");
        self.topics_removed +=
            self.engine.maintenance().remove_deleted_topics().await.unwrap() as u64;
    }

    /// Makes copies as of moments at and after the horizon, while no engine is open, and checks that
    /// each is what there was. Returns how many lacked a restatement.
    async fn check_copies(&self) -> usize {
        self.engine.close();
        let (horizon, mut carried_count) = (self.engine.groups().horizon(), 0);
        let recent = self.history.iter().filter(|(cut, _)| cut.bound() >= horizon);
        let recent: Vec<_> = recent.collect();
        let few = recent.iter().take(3).chain(recent.iter().rev().take(1));
        for (cut, state) in few {
            let copy = match plan_copy_as_of(&self.disk, cut.bound().previous()) {
                Ok(copy) => copy,
                Err(AsOfError::Incomplete { .. }) => continue,
                Err(error) => panic!("{cut:?}: {error}"),
            };
            let target = MemoryDisk::new();
            for file in &copy.files {
                copy_file(&self.disk, &target, file).unwrap();
            }
            finish_copy(&target, &copy).unwrap();
            let clock = Arc::clone(&self.clock) as Arc<dyn hlc::WallClock>;
            let disk: Arc<dyn Disk> = Arc::new(target.clone());
            let carried = engine::carry_restatements(&self.disk, disk, &copy, clock, 7).unwrap();
            carried_count += usize::from(carried > 0);
            let catalog = TestDirectory::new();
            let restored = GroupHorizonWorld {
                engine: open(&target, &self.clock, &catalog, self.restated_bytes_max),
                disk: target,
                clock: Arc::clone(&self.clock),
                catalog,
                old: None,
                restated_bytes_max: self.restated_bytes_max,
                state: state.clone(),
                topics: BTreeMap::new(),
                history: vec![(*cut, state.clone())],
                horizon_moves: 0,
                topics_removed: 0,
                copies_carried: 0,
            };
            restored.check().await;
        }
        carried_count
    }

    fn restart(&mut self, fate: CatalogFate) {
        self.engine.close();
        let catalog = std::mem::replace(&mut self.catalog, TestDirectory::new());
        self.reopen(fate, &catalog);
    }

    /// Crashes the machine at an operation of the disk during maintenance; returns true if it was
    /// reached.
    async fn crash(
        &mut self,
        at: u64,
        fate: CatalogFate,
        choose: impl FnMut(usize) -> usize,
    ) -> bool {
        self.disk.arm(DiskFault::CrashAt(self.disk.operations() + at));
        let _ = self.engine.groups().apply_retention().await;
        let _ = self.engine.maintenance().remove_deleted_topics().await;
        let is_down = self.disk.has_crashed();
        self.disk = self.disk.after_crash(choose);
        let catalog = std::mem::replace(&mut self.catalog, TestDirectory::new());
        self.reopen(fate, &catalog);
        is_down
    }

    /// The next incarnation has its own catalog directory: the last one may still write to its
    /// directory.
    fn reopen(&mut self, fate: CatalogFate, last: &TestDirectory) {
        self.engine.close();
        let source = match fate {
            CatalogFate::Kept => Some(last),
            CatalogFate::Old => self.old.as_ref(),
            CatalogFate::Lost => None,
        };
        if let Some(source) = source {
            copy(source.path(), self.catalog.path());
        }
        if self.old.is_none() || self.history.len().is_multiple_of(3) {
            copy(last.path(), self.old.get_or_insert_default().path());
        }
        self.engine = open(&self.disk, &self.clock, &self.catalog, self.restated_bytes_max);
    }

    async fn offsets_at(&self, cut: Cut) -> Result<OffsetStamps, SeekError> {
        let (at, _, offsets) =
            self.engine.groups().offsets_at(None, cut, WaitPolicy::Refuse).await?;
        assert_eq!(at, cut);
        let offsets = offsets.into_iter().map(|offset| {
            let key = (offset.group, offset.topic, offset.partition);
            assert_eq!(offset.committed.metadata.len() as i64, offset.committed.offset % 20);
            (key, (offset.committed.offset, offset.stamp))
        });
        Ok(offsets.collect())
    }

    /// Checks every moment near the horizon, and some others: each reads as it was, or is an error.
    /// Checks the current state too.
    async fn check(&self) {
        let horizon = self.engine.groups().horizon();
        let at = self.history.partition_point(|(cut, _)| cut.bound() < horizon);
        for (nth, (cut, state)) in self.history.iter().enumerate() {
            if nth.abs_diff(at) > 5 && !nth.is_multiple_of(9) {
                continue;
            }
            match self.offsets_at(*cut).await {
                Ok(offsets) => {
                    assert!(cut.bound() >= horizon, "{cut:?} is before {horizon}");
                    assert_eq!(offsets, state.offsets, "{cut:?}, horizon {horizon}");
                    assert_eq!(self.groups_at(*cut).await, state.snapshots, "{cut:?}");
                    assert_eq!(self.configs_at(*cut).await, state.configs, "{cut:?}");
                }
                Err(SeekError::BeforeOffsets { earliest }) => {
                    assert!(cut.bound() < horizon, "{cut:?} is not before {horizon}");
                    assert_eq!(earliest, horizon);
                }
                Err(error) => panic!("{cut:?}: {error}"),
            }
        }
        for ((group, topic, partition), (offset, _)) in &self.state.offsets {
            let committed =
                self.engine.groups().committed_offset(group, topic, *partition).unwrap();
            assert_eq!(committed.map(|committed| committed.offset), Some(*offset));
        }
        let offsets = self.engine.groups().committed_offsets(None).unwrap();
        assert_eq!(offsets.len(), self.state.offsets.len());
        let snapshots: BTreeMap<_, _> =
            self.engine.groups().stored().unwrap().into_iter().collect();
        assert_eq!(snapshots, self.state.snapshots);
        let configs = self.engine.groups().configs(ResourceType::Group).unwrap();
        assert_eq!(configs, self.state.configs);
        for pin in self.engine.pins().all().iter().filter(|pin| pin.topics.is_none()) {
            assert!(pin.at.bound() >= horizon, "{pin:?} is before {horizon}");
        }
    }

    /// Commits many offsets, so that the log is long enough for retention.
    async fn commit_many(&mut self, count: i64) {
        for offset in 0..count {
            self.commit("much", "t", 0, offset).await;
        }
    }
}

#[derive(Clone, Debug)]
enum GroupHorizonStep {
    Commit { group: usize, topic: usize, partition: u32, count: i64 },
    DeleteOffsets { group: usize, topic: usize, partition: u32 },
    Save { group: usize, bytes: usize },
    SaveMember { group: usize, member: usize, bytes: Option<usize>, is_whole: bool },
    Configure { group: usize, bytes: Option<usize> },
    DeleteGroup { group: usize },
    RecreateTopic { topic: usize, count: u32 },
    Pass { ms: u64 },
    Expire { ms: u64, is_beaten: bool },
    RunMaintenance,
    Pin { ms: u64 },
    Restart { found: CatalogFate },
    Crash { at: u64, found: CatalogFate, seed: u64 },
}

const GROUPS: [&str; 3] = ["g", "g\0", "gg"];
const MEMBERS: [&str; 3] = ["", "m", "m\0"];
/// The second name is so long that removing the topic is worth it.
const TOPICS: [&str; 2] = [
    "t",
    "tt................................................................................................",
];

fn found() -> impl Strategy<Value = CatalogFate> {
    prop_oneof![Just(CatalogFate::Kept), Just(CatalogFate::Lost), Just(CatalogFate::Old)]
}

fn step() -> impl Strategy<Value = GroupHorizonStep> {
    let (group, topic, partition) = (|| 0..GROUPS.len(), || 0..TOPICS.len(), || 0..2u32);
    prop_oneof![
        8 => (group(), topic(), partition(), 1..30i64).prop_map(
            |(group, topic, partition, count)| GroupHorizonStep::Commit { group, topic, partition, count }
        ),
        2 => (group(), topic(), partition()).prop_map(
            |(group, topic, partition)| GroupHorizonStep::DeleteOffsets { group, topic, partition }
        ),
        2 => (group(), 0..200usize).prop_map(|(group, bytes)| GroupHorizonStep::Save { group, bytes }),
        4 => (group(), 0..MEMBERS.len(), proptest::option::weighted(0.7, 0..200usize), any::<bool>())
            .prop_map(|(group, member, bytes, is_whole)| {
                GroupHorizonStep::SaveMember { group, member, bytes, is_whole }
            }),
        2 => (group(), proptest::option::weighted(0.7, 0..200usize))
            .prop_map(|(group, bytes)| GroupHorizonStep::Configure { group, bytes }),
        2 => group().prop_map(|group| GroupHorizonStep::DeleteGroup { group }),
        4 => (topic(), 1..6u32).prop_map(|(topic, count)| GroupHorizonStep::RecreateTopic { topic, count }),
        8 => (1..150u64).prop_map(|ms| GroupHorizonStep::Pass { ms }),
        3 => (0..150u64, any::<bool>()).prop_map(
            |(ms, is_beaten)| GroupHorizonStep::Expire { ms, is_beaten }
        ),
        10 => Just(GroupHorizonStep::RunMaintenance),
        1 => (1..200u64).prop_map(|ms| GroupHorizonStep::Pin { ms }),
        2 => found().prop_map(|found| GroupHorizonStep::Restart { found }),
        2 => (0..20u64, found(), any::<u64>()).prop_map(
            |(at, found, seed)| GroupHorizonStep::Crash { at, found, seed }
        ),
    ]
}

async fn apply_step(world: &mut GroupHorizonWorld, step: GroupHorizonStep) {
    match step {
        GroupHorizonStep::Commit { group, topic, partition, count } => {
            for offset in 0..count {
                world.commit(GROUPS[group], TOPICS[topic], partition, offset).await;
            }
        }
        GroupHorizonStep::DeleteOffsets { group, topic, partition } => {
            world.delete_offsets(GROUPS[group], TOPICS[topic], partition).await;
        }
        GroupHorizonStep::Save { group, bytes } => world.save(GROUPS[group], vec![7; bytes]).await,
        GroupHorizonStep::SaveMember { group, member, bytes, is_whole } => {
            world.save_member(GROUPS[group], MEMBERS[member], bytes, is_whole).await;
        }
        GroupHorizonStep::Configure { group, bytes } => {
            world.configure(GROUPS[group], bytes).await;
        }
        GroupHorizonStep::DeleteGroup { group } => world.delete_group(GROUPS[group]).await,
        GroupHorizonStep::RecreateTopic { topic, count } => {
            for _ in 0..count {
                world.recreate_topic(TOPICS[topic]).await;
            }
        }
        GroupHorizonStep::Pass { ms } => world.advance_clock(ms),
        GroupHorizonStep::Expire { ms, is_beaten } => {
            world.expire(ms, is_beaten).await;
            world.check().await;
        }
        GroupHorizonStep::RunMaintenance => {
            world.run_maintenance().await;
            world.check().await;
        }
        GroupHorizonStep::Pin { ms } => {
            let (at, name) = (Cut::through(world.engine.frontier()), format!("p{ms}"));
            let expires = SysTime(world.engine.wall_now().0 + ms);
            let _ = world.engine.pins().set(&name, at, WaitPolicy::Refuse, expires, None).await;
        }
        GroupHorizonStep::Restart { found: fate } => {
            world.copies_carried += world.check_copies().await;
            world.restart(fate);
            world.check().await;
        }
        GroupHorizonStep::Crash { at, found: fate, seed } => {
            let mut random = SeededRng::new(seed);
            let choose = |count: usize| random.below(count as u64) as usize;
            world.crash(at, fate, choose).await;
            world.check().await;
        }
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

#[test]
fn every_moment_from_the_horizon_on_reads_as_it_was_whatever_is_deleted_or_lost() {
    let (moved, forgotten) = (AtomicU64::new(0), AtomicU64::new(0));
    let carried = AtomicU64::new(0);
    let mut runner =
        TestRunner::new(Config { cases: 40, source_file: Some(file!()), ..Config::default() });
    let runs = (
        prop::collection::vec(step(), 10..50),
        prop_oneof![Just(0usize), Just(150), Just(1 << 20)],
    );
    let result = runner.run(&runs, |(steps, restated_bytes_max)| {
        run(async {
            let mut world = GroupHorizonWorld::new(restated_bytes_max);
            for step in steps {
                apply_step(&mut world, step).await;
            }
            world.check().await;
            world.copies_carried += world.check_copies().await;
            world.restart(CatalogFate::Lost);
            world.check().await;
            carried.fetch_add(world.copies_carried as u64, Ordering::Relaxed);
            moved.fetch_add(world.horizon_moves, Ordering::Relaxed);
            forgotten.fetch_add(world.topics_removed, Ordering::Relaxed);
        });
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    // Random steps do each about forty times, and now and then less than half as often.
    let moved = moved.into_inner();
    assert!(moved > 5, "the horizon moved: {moved}");
    let forgotten = forgotten.into_inner();
    assert!(forgotten > 5, "topics were removed: {forgotten}");
    let carried = carried.into_inner();
    assert!(carried > 5, "copies got a restatement: {carried}");
}

#[test]
fn a_horizon_change_that_is_interrupted_at_any_operation_of_the_disk_loses_nothing() {
    run(async {
        for at in 0.. {
            let mut world = GroupHorizonWorld::new(60);
            world.recreate_topic("t").await;
            world.commit("other", "t", 0, 3).await;
            world.delete_offsets("other", "t", 0).await;
            world.save("g", vec![1; 90]).await;
            world.commit_many(60).await;
            for partition in 0..3 {
                world.commit("g", "t", partition, 5).await;
            }
            world.advance_clock(200);
            // Some commits, and the deletion of the topic, are within the retention.
            world.commit_many(4).await;
            world.recreate_topic("t").await;
            world.commit("g", "t", 7, 5).await;
            let was_down = world.crash(at, CatalogFate::Lost, |count| at as usize % count).await;
            world.check().await;
            world.advance_clock(1);
            world.run_maintenance().await;
            world.check().await;
            world.restart(CatalogFate::Lost);
            world.check().await;
            assert!(world.engine.groups().horizon() > Hlc::ZERO, "{at}");
            if !was_down {
                assert!(at > 4, "several events are written: {at}");
                break;
            }
        }
    });
}

#[tokio::test]
async fn commits_to_the_same_keys_cost_no_more_the_longer_they_go_on() {
    let mut world = GroupHorizonWorld::new(1 << 20);
    let (mut bytes, mut horizons) = (Vec::new(), Vec::new());
    for round in 0..40 {
        for offset in 0..50 {
            world.commit(GROUPS[offset as usize % 3], "t", round % 2, offset).await;
            world.advance_clock(2);
        }
        world.delete_group("gg").await;
        world.run_maintenance().await;
        bytes.push(world.engine.groups().bytes().unwrap());
        horizons.push(world.engine.groups().horizon());
    }
    world.check().await;
    // The commits within the retention, and as much again.
    let peak = *bytes.iter().max().unwrap();
    let per_retention = bytes[0];
    assert!(peak <= 3 * per_retention, "{bytes:?}");
    assert!(horizons.last() > horizons.get(30), "it moves on: {horizons:?}");
    world.engine.close();
    world.engine = open(&world.disk, &world.clock, &TestDirectory::new(), 0);
    let versions = Catalog::open(&world.catalog.path().join("1")).unwrap().version_count();
    assert!(versions < 200, "of 2000 and more: {versions}");
}

#[tokio::test]
async fn a_pin_of_everything_holds_offsets_and_one_of_a_topic_does_not() {
    let mut world = GroupHorizonWorld::new(1 << 20);
    world.recreate_topic("t").await;
    world.commit_many(30).await;
    let early = world.history[10].0;
    let pin = |world: &GroupHorizonWorld, name: &'static str, topics: Option<Vec<String>>| {
        let (engine, expires) = (Arc::clone(&world.engine), SysTime(START + 1000));
        async move {
            engine.pins().set(name, early, WaitPolicy::Refuse, expires, topics.as_deref()).await
        }
    };
    pin(&world, "topic", Some(vec!["t".to_owned()])).await.unwrap();
    pin(&world, "all", None).await.unwrap();
    world.advance_clock(500);
    world.run_maintenance().await;
    assert!(world.engine.groups().horizon() <= early.bound());
    assert_eq!(world.offsets_at(early).await.unwrap(), world.history[10].1.offsets);
    world.engine.pins().remove("all").await.unwrap();
    world.run_maintenance().await;
    assert!(world.engine.groups().horizon() > early.bound());
    let refused = pin(&world, "all", None).await;
    let before = matches!(refused, Err(PinError::Seek(SeekError::BeforeOffsets { .. })));
    assert!(before, "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("offsets and groups before the moment"));
    world.check().await;
}

#[tokio::test]
async fn what_is_not_worth_rewriting_the_rest_stays() {
    let mut world = GroupHorizonWorld::new(1 << 20);
    world.save("g", vec![0; 5000]).await;
    world.commit_many(20).await;
    world.advance_clock(500);
    world.run_maintenance().await;
    assert_eq!(world.engine.groups().horizon(), Hlc::ZERO);
    world.save("g", vec![0; 10]).await;
    world.advance_clock(500);
    world.run_maintenance().await;
    assert!(world.engine.groups().horizon() > Hlc::ZERO);
    // Only the current state remains: another restatement gains nothing.
    let bytes_kept = world.engine.groups().bytes().unwrap();
    for _ in 0..5 {
        world.advance_clock(500);
        world.run_maintenance().await;
    }
    assert!(world.engine.groups().bytes().unwrap() <= bytes_kept);
    world.check().await;
}

#[tokio::test]
async fn a_clock_that_cannot_be_trusted_makes_nothing_old() {
    let mut world = GroupHorizonWorld::new(1 << 20);
    world.commit_many(30).await;
    world.clock.step_to(SysTime(START + 86_400_000));
    world.engine.frontier();
    assert!(!world.engine.groups().apply_retention().await.unwrap());
    assert_eq!(world.engine.groups().horizon(), Hlc::ZERO);
    world.check().await;
}

#[tokio::test]
async fn what_was_removed_since_a_restatement_does_not_come_back_with_a_lost_catalog() {
    for removal in ["offsets", "group", "topic"] {
        let mut world = GroupHorizonWorld::new(1 << 20);
        world.recreate_topic("t").await;
        world.recreate_topic("tt").await;
        world.commit("g", "tt", 0, 1).await;
        world.commit_many(60).await;
        world.advance_clock(100);
        match removal {
            "offsets" => world.delete_offsets("g", "tt", 0).await,
            "group" => world.delete_group("g").await,
            _ => world.recreate_topic("tt").await,
        }
        world.commit_many(60).await;
        world.advance_clock(50);
        // The horizon is before the removal: the restatement has what was removed later.
        world.run_maintenance().await;
        assert!(world.check_copies().await > 0, "{removal}: moments before the restatement");
        world.restart(CatalogFate::Lost);
        world.check().await;
        // The horizon passes the removal, but not the earlier restatement.
        world.advance_clock(60);
        world.run_maintenance().await;
        assert_eq!(world.horizon_moves, 2, "{removal}");
        world.restart(CatalogFate::Lost);
        world.check().await;
        world.commit("g", "tt", 0, 2).await;
        world.check().await;
    }
}
