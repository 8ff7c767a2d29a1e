//! One life of a node: the engine and Kafka's face, on a simulated disk and clock.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use compat_kafka::{Kafka, KafkaFormat, KafkaOptions, TransferLimits};
use engine::files::FileOptions;
use engine::{Engine, EngineOptions, HousekeepingOptions};
use hlc::{Fence, WallClock};
use parking_lot::Mutex;
use storage::catalog::CatalogFaults;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::chance::Chance;
use crate::clock::SimClock;
use crate::disk::SimDisk;
use crate::network::{End, connection};

/// How long a group may gather before it is written: the disk's time.
const TURN_MS_MAX: u64 = 4;

/// How long records of deleted topics and old offsets stay: not long, so that a run sees them go.
const RETENTION: Duration = Duration::from_secs(6);
const OFFSETS_RETENTION: Duration = Duration::from_secs(3);
/// How long offsets that nobody commits again stay committed.
pub(crate) const COMMITTED_FOR: Duration = Duration::from_secs(2);

/// What the history of a world is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Some dozens of stretches.
    Short,
    /// More than a hundred, of very many logs.
    Long,
    /// As many, which are merged.
    Merged,
}

impl Shape {
    /// That of the world of a seed.
    pub(crate) fn of(seed: u64) -> Shape {
        match seed % 24 {
            6 => Shape::Long,
            18 => Shape::Merged,
            _ => Shape::Short,
        }
    }
}

/// How long a client may pause in a request or an answer.
pub(crate) const STALL_MAX: Duration = Duration::from_millis(1500);
/// How many bytes of batches may be on their way to the disk: some batches.
const FLIGHT_BYTES: usize = 8 << 10;

fn engine_options(shape: Shape, catalog: PathBuf) -> EngineOptions {
    let (segment_bytes_max, segment_frames_max) = match shape {
        Shape::Short => (24 << 10, 60),
        Shape::Long | Shape::Merged => (4 << 10, 10),
    };
    let merge_bytes_min = if shape == Shape::Long { 0 } else { 32 << 10 };
    let storage = storage::Options {
        driven_by_hand: true,
        segment_bytes_max,
        segment_frames_max,
        tail_bytes_max: 4 << 10,
        index_bytes_max: 64 << 10,
        idle_logs_max: 4,
        uncovered_parts_max: 3,
        merge_bytes_min,
        ..storage::Options::default()
    };
    EngineOptions {
        storage,
        catalog: Some(catalog),
        flight_bytes_max: FLIGHT_BYTES,
        deleted_topic_retention: RETENTION,
        offsets_retention: OFFSETS_RETENTION,
        cut_cache_bytes_max: 16 << 10,
        housekeeping: HousekeepingOptions {
            compaction_bytes_max: 16 << 10,
            ..HousekeepingOptions::default()
        },
        files: FileOptions { checkpoint_entries: 8, closed_max: 2, node_bytes_max: 2 << 10 },
        ..EngineOptions::default()
    }
}

thread_local! {
    /// How many ids were given out in this world, above its seed.
    static IDS: Cell<u128> = const { Cell::new(0) };
}

/// Begins to give out the ids of a world.
pub(crate) fn begin_ids(seed: u64) {
    IDS.set(u128::from(seed) << 64);
}

/// An id that nobody has had in this world, and that is the same in each run of it.
fn new_id() -> [u8; 16] {
    IDS.set(IDS.get() + 1);
    // In no order, as ids are.
    IDS.get().wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes()
}

fn kafka_options() -> KafkaOptions {
    let mut options = KafkaOptions {
        auto_create_topics: false,
        transfers: TransferLimits { stall_max: STALL_MAX, rate_min: 4 << 10 },
        requests_bytes_max: 512 << 10,
        answers_bytes_max: 256 << 10,
        new_id,
        ..KafkaOptions::default()
    };
    options.groups.offsets_retention = COMMITTED_FOR;
    options
}

pub(crate) struct Node {
    pub(crate) disk: SimDisk,
    pub(crate) engine: Arc<Engine>,
    pub(crate) kafka: Arc<Kafka>,
    catalog_faults: CatalogFaults,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    chance: Mutex<Chance>,
}

impl Node {
    /// Opens what is on the disk, and serves.
    pub(crate) fn start(
        disk: SimDisk,
        (shape, catalog): (Shape, PathBuf),
        clock: &Arc<SimClock>,
        mut chance: Chance,
    ) -> Result<Node, String> {
        let kafka_options = kafka_options();
        let format = KafkaFormat { unpacked_bytes_max: kafka_options.unpacked_bytes_max };
        let options = engine_options(shape, catalog);
        let catalog_faults = options.catalog_faults.clone();
        let engine = Engine::open(
            Arc::new(disk.clone()),
            options,
            Arc::clone(clock) as Arc<dyn WallClock>,
            Arc::new(format),
        );
        let engine = Arc::new(engine.map_err(|error| error.to_string())?);
        let kafka = Kafka::new(Arc::clone(&engine), kafka_options);
        let kafka = kafka.map_err(|error| error.to_string())?;
        let turns = tokio::spawn(turn(Arc::clone(&engine), chance.fork()));
        let (stop, _) = watch::channel(false);
        let (tasks, chance) = (Mutex::new(vec![turns]), Mutex::new(chance));
        Ok(Node { disk, engine, kafka, catalog_faults, stop, tasks, chance })
    }

    /// A client's end of a new connection, unless it stops.
    pub(crate) fn connect(&self) -> Option<End> {
        if self.is_stopping() {
            return None;
        }
        let (client, server) = connection(&mut self.chance.lock());
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 9092));
        let (kafka, stop) = (Arc::clone(&self.kafka), self.stop.subscribe());
        let serving = compat_kafka::serve_stream(kafka, server, (anywhere, anywhere), stop);
        self.tasks.lock().push(tokio::spawn(serving));
        Some(client)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// What goes wrong with its catalog.
    pub(crate) fn catalog_faults(&self) -> &CatalogFaults {
        &self.catalog_faults
    }

    /// The operator says that the wall clock is right. Why nothing is accepted all the same, if so.
    pub(crate) fn confirm_clock(&self) -> Option<Fence> {
        self.engine.timekeeper().confirm()
    }

    /// Takes no more connections, and lets requests end.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
        self.kafka.close();
    }

    /// Closes the files.
    ///
    /// # Errors
    /// As [`Node::end_at_once`].
    pub(crate) async fn end_in_order(self) -> Result<(), String> {
        self.disk.set_peek(None);
        self.engine.close();
        self.end_at_once().await
    }

    /// The process dies.
    ///
    /// # Errors
    /// One of its tasks had panicked.
    pub(crate) async fn end_at_once(self) -> Result<(), String> {
        self.disk.set_peek(None);
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in &tasks {
            task.abort();
        }
        for task in tasks {
            match task.await {
                Err(error) if error.is_panic() => {
                    return Err(io::Error::other(error).to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Does what the node's threads would do, now and then.
async fn turn(engine: Arc<Engine>, mut chance: Chance) {
    loop {
        tokio::time::sleep(Duration::from_millis(chance.between(0, TURN_MS_MAX))).await;
        engine.turn();
    }
}
