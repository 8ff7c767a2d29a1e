//! Standing pins show the same contents, whatever is removed, deleted, created again or compacted
//! (TIME.md 6).

use std::collections::BTreeMap;
use std::time::Duration;

use engine::CoreOptions;
use engine::groups::GroupOptions;
use engine::groups::OffsetCommit;
use engine::{EngineError, EngineOptions, Pin, WaitPolicy};
use hlc::{Cut, SysTime};
use proptest::prelude::*;
use testkit::kafka::{TestKafkaEngine, TestReadRecord, read_all};

const TOPICS: [&str; 3] = ["compacted", "short", "small"];
const PINS: [&str; 3] = ["p", "q", "r"];

#[derive(Clone, Debug)]
enum PinStep {
    Produce(usize, u64),
    Commit(usize),
    /// Deletes a topic, or creates it again.
    Toggle(usize),
    AddPartition(usize),
    DeleteRecords(usize),
    Pass(u64),
    RollSegment,
    RunMaintenance,
    /// A pin at one of the last moments, of everything or of a topic, for so long.
    Pin(usize, usize, Option<usize>, u64),
    Unpin(usize),
    Restart,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<PinStep>> {
    let topic = || 0..TOPICS.len();
    let pin = (0..PINS.len(), 0..6_usize, prop::option::of(topic()), 1..20_000_u64);
    let step = prop_oneof![
        10 => (topic(), 0..500_u64).prop_map(|(topic, key)| PinStep::Produce(topic, key)),
        2 => topic().prop_map(PinStep::Commit),
        2 => topic().prop_map(PinStep::Toggle),
        1 => topic().prop_map(PinStep::AddPartition),
        2 => topic().prop_map(PinStep::DeleteRecords),
        4 => (0..3000_u64).prop_map(PinStep::Pass),
        3 => Just(PinStep::RollSegment),
        5 => Just(PinStep::RunMaintenance),
        4 => pin.prop_map(|(name, moment, topic, ms)| PinStep::Pin(name, moment, topic, ms)),
        1 => (0..PINS.len()).prop_map(PinStep::Unpin),
        1 => Just(PinStep::Restart),
        1 => Just(PinStep::Crash),
    ];
    prop::collection::vec(step, 20..60)
}

#[derive(Clone, Debug, PartialEq)]
struct PinnedContents {
    hash: u128,
    records: BTreeMap<(String, usize), Vec<TestReadRecord>>,
    offsets: Vec<engine::groups::GroupOffset>,
}

struct PinModel {
    test_engine: TestKafkaEngine,
    moments: Vec<Cut>,
    /// The contents that each pin showed when it was set.
    pinned: BTreeMap<String, (Pin, PinnedContents)>,
}

impl PinModel {
    async fn new() -> PinModel {
        let mut options = EngineOptions {
            core: CoreOptions {
                deleted_topic_retention: Duration::from_secs(3),
                ..TestKafkaEngine::options().core
            },
            groups: GroupOptions { offsets_retention: Duration::from_secs(2) },
            ..TestKafkaEngine::options()
        };
        options.core.maintenance.restated_bytes_max = 200;
        let mut world = PinModel {
            test_engine: TestKafkaEngine::with(options),
            moments: Vec::new(),
            pinned: BTreeMap::new(),
        };
        for topic in 0..TOPICS.len() {
            world.toggle(topic).await;
        }
        world.record_moment();
        world
    }

    async fn toggle(&mut self, topic: usize) {
        let name = TOPICS[topic];
        if let Some(topic) = self.test_engine.engine.topics().named(name) {
            self.test_engine.engine.topics().delete(topic.id).await.unwrap();
            return;
        }
        let settings: &[(&str, &str)] = match topic {
            0 => &[
                ("cleanup.policy", "compact"),
                ("min.cleanable.dirty.ratio", "0"),
                ("delete.retention.ms", "0"),
            ],
            1 => &[("retention.ms", "2000")],
            _ => &[("retention.bytes", "300")],
        };
        self.test_engine.topic(name, 1, settings).await;
    }

    /// A moment that is final.
    fn record_moment(&mut self) {
        self.test_engine.advance_clock(1);
        self.moments.push(self.test_engine.now());
        self.test_engine.advance_clock(1);
    }

    async fn read_pinned(&self, pin: &Pin) -> PinnedContents {
        let engine = &self.test_engine.engine;
        let topics: Option<Vec<String>> =
            pin.topics.as_ref().map(|names| names.iter().map(ToString::to_string).collect());
        let cut = engine.cuts().at(pin.at, topics.as_deref(), WaitPolicy::Refuse).await;
        let cut = cut.unwrap_or_else(|error| panic!("{pin:?}: {error}"));
        let mut records = BTreeMap::new();
        for topic in cut.partitions.iter().map(|held| held.topic.to_string()) {
            let view = self.test_engine.at(&topic, pin.at).await.unwrap();
            for (index, partition) in view.partitions.iter().enumerate() {
                records.insert((topic.clone(), index), state(read_all(partition)));
            }
        }
        let offsets = match pin.topics {
            Some(_) => Vec::new(),
            None => {
                engine.groups().offsets_at(Some("g"), pin.at, WaitPolicy::Refuse).await.unwrap().2
            }
        };
        PinnedContents { hash: cut.hash, records, offsets }
    }

    async fn act(&mut self, step: &PinStep) {
        let engine = self.test_engine.engine.clone();
        let present = |topic: &usize| engine.topics().named(TOPICS[*topic]);
        match step {
            PinStep::Produce(topic, key) => {
                let Some(topic) = present(topic) else { return };
                let partition = (*key as usize % topic.partitions.len()) as u32;
                let value = (key % 4 > 0).then(|| "x".repeat(60));
                let record = (Some(format!("k{}", key % 5)), value, *key as i64);
                self.test_engine.produce(&topic.name, partition, &[record.clone(), record]).await;
            }
            PinStep::Commit(topic) => {
                let Some(topic) = present(topic) else { return };
                let commit = OffsetCommit {
                    topic: topic.name.to_string(),
                    partition: 0,
                    offset: topic.partitions[0].end().0 as i64,
                    leader_epoch: -1,
                    metadata: "m".repeat(40),
                    retention_ms: None,
                };
                engine.groups().commit("g", vec![commit]).await.unwrap();
            }
            PinStep::Toggle(topic) => self.toggle(*topic).await,
            PinStep::AddPartition(topic) => {
                let Some(topic) = present(topic) else { return };
                let count = topic.partitions.len() as u32;
                engine.topics().add_partitions(&topic.name, count + 1, false).await.unwrap();
            }
            PinStep::DeleteRecords(topic) => {
                let Some(topic) = present(topic) else { return };
                match engine.topics().delete_records(&topic, 0, -1).await {
                    Ok(_) | Err(EngineError::Pinned { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            PinStep::Pass(ms) => self.test_engine.advance_clock(*ms),
            PinStep::RollSegment => self.test_engine.roll_and_index().await,
            PinStep::RunMaintenance => {
                engine.maintenance().apply_retention().await.unwrap();
                engine.groups().apply_retention().await.unwrap();
                engine.maintenance().compact_due().await.unwrap();
                self.test_engine.reclaim().await;
            }
            PinStep::Pin(name, moment, topic, ms) => {
                let at = self.moments[self.moments.len().saturating_sub(1 + moment)];
                let expires = SysTime(engine.wall_now().0 + ms);
                let topics = topic.map(|topic| vec![TOPICS[topic].to_owned()]);
                let set = engine.pins().set(
                    PINS[*name],
                    at,
                    WaitPolicy::Refuse,
                    expires,
                    topics.as_deref(),
                );
                // A moment that is not complete any more is refused, and so is a name that is
                // taken.
                if let Ok(pin) = set.await {
                    let seen = self.read_pinned(&pin).await;
                    self.pinned.insert(PINS[*name].to_owned(), (pin, seen));
                }
            }
            PinStep::Unpin(name) => drop(engine.pins().remove(PINS[*name]).await),
            PinStep::Restart | PinStep::Crash => {}
        }
        self.record_moment();
    }

    async fn check(&self) {
        for pin in self.test_engine.engine.pins().all() {
            let (set, seen) = &self.pinned[&*pin.name];
            assert_eq!(&pin, set);
            assert_eq!(&self.read_pinned(&pin).await, seen, "{pin:?}");
        }
    }
}

/// The last record of each key: a compacted log may or may not have others.
fn state(records: Vec<TestReadRecord>) -> Vec<TestReadRecord> {
    let by_key: BTreeMap<_, _> =
        records.into_iter().map(|record| (record.key.clone(), record)).collect();
    by_key.into_values().filter(|record| record.value.is_some()).collect()
}

async fn play(steps: &[PinStep]) {
    let mut world = PinModel::new().await;
    for step in steps {
        world.act(step).await;
        world.test_engine = match step {
            PinStep::Restart => world.test_engine.restart(),
            PinStep::Crash => world.test_engine.crash(),
            _ => world.test_engine,
        };
        world.check().await;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn what_standing_pins_show_stays_whatever_happens(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(play(&steps));
    }
}

/// Set PROPTEST_CASES to run more.
fn cases() -> u32 {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    asked.unwrap_or(12)
}
