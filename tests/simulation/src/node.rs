//! One incarnation of a node: the engine and both servers, on a simulated disk and clock.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use compat_kafka::{
    ConnectionEnds, KafkaFormat, KafkaListener, KafkaOptions, KafkaServer, TransferLimits,
};
use compat_zk::{ZkOptions, ZkServer};
use engine::files::FileOptions;
use engine::groups::GroupOptions;
use engine::security::{Principal, SecurityOptions};
use engine::znodes::ZnodeOptions;
use engine::{CoreOptions, DynamicMaintenance, Engine, EngineOptions, MaintenanceOptions};
use hlc::{ClockFence, WallClock};
use parking_lot::Mutex;
use storage::catalog::CatalogFaults;
use testkit::rng::SeededRng;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::clock::SimClock;
use crate::disk::SimDisk;
use crate::network::{SimSocket, pump, socket_pair};

/// The longest time that a group gathers before it is written: the disk's time.
const STEP_MS_MAX: u64 = 4;

/// The retention of deleted topics' records and old offsets: short, so that a run sees it.
const RETENTION: Duration = Duration::from_secs(6);
const OFFSETS_RETENTION: Duration = Duration::from_secs(3);
/// The shortest time that the history of znodes is kept.
pub(crate) const ZNODES_RETENTION: Duration = Duration::from_secs(4);
/// The time that offsets stay committed without another commit.
pub(crate) const COMMITTED_OFFSETS_RETENTION: Duration = Duration::from_secs(2);

/// The shape of a world's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorldShape {
    /// Some dozens of segments.
    Short,
    /// More than a hundred, of very many logs.
    Long,
    /// As many, which are merged.
    Merged,
}

impl WorldShape {
    /// The shape for a seed.
    pub(crate) fn of(seed: u64) -> WorldShape {
        match seed % 24 {
            6 => WorldShape::Long,
            18 => WorldShape::Merged,
            _ => WorldShape::Short,
        }
    }
}

/// The longest pause of a client in a request or a response.
pub(crate) const STALL_MAX: Duration = Duration::from_millis(1500);
/// The bytes between the network and a connection of ZooKeeper.
const DUPLEX_BYTES: usize = 4 << 10;
/// The most bytes of batches on their way to the disk: some batches.
const IN_FLIGHT_BYTES: usize = 8 << 10;

fn engine_options(shape: WorldShape, catalog: PathBuf) -> EngineOptions {
    let (segment_bytes_max, segment_frames_max) = match shape {
        WorldShape::Short => (24 << 10, 60),
        WorldShape::Long | WorldShape::Merged => (4 << 10, 10),
    };
    let merge_bytes_min = if shape == WorldShape::Long { 0 } else { 32 << 10 };
    let storage = storage::Options {
        manual_stepping: true,
        segment_bytes_max,
        segment_frames_max,
        tail_bytes_max: 4 << 10,
        index_bytes_max: 64 << 10,
        idle_logs_max: 4,
        uncovered_segments_max: 3,
        merge_bytes_min,
        ..storage::Options::default()
    };
    EngineOptions {
        core: CoreOptions {
            storage,
            catalog: Some(catalog),
            in_flight_bytes_max: IN_FLIGHT_BYTES,
            deleted_topic_retention: RETENTION,
            cut_cache_bytes_max: 16 << 10,
            maintenance: MaintenanceOptions {
                dynamic: DynamicMaintenance {
                    compaction_bytes_max: 16 << 10,
                    ..DynamicMaintenance::default()
                },
                ..MaintenanceOptions::default()
            },
            ..CoreOptions::default()
        },
        groups: GroupOptions { offsets_retention: OFFSETS_RETENTION },
        znodes: ZnodeOptions {
            history_retention: ZNODES_RETENTION,
            checkpoint_bytes_min: 1 << 10,
            // Less than there is.
            cached_bytes_max: 100,
            enforces_quotas: false,
            ..ZnodeOptions::default()
        },
        files: FileOptions { checkpoint_entries: 8, closed_max: 2, node_bytes_max: 2 << 10 },
        security: SecurityOptions::default(),
    }
}

thread_local! {
    /// The number of ids issued in this world, above its seed.
    static ID_COUNTER: Cell<u128> = const { Cell::new(0) };
}

/// Starts to issue the ids of a world.
pub(crate) fn seed_ids(seed: u64) {
    ID_COUNTER.set(u128::from(seed) << 64);
}

/// An id that is new in this world, and the same in each run of it.
fn new_id() -> [u8; 16] {
    ID_COUNTER.set(ID_COUNTER.get() + 1);
    // In no order, as ids are.
    ID_COUNTER.get().wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes()
}

fn zookeeper_options() -> ZkOptions {
    ZkOptions { tick_ms: 50, connections_per_address_max: 0, new_id, ..ZkOptions::default() }
}

/// The time that a group waits for its first members.
const REBALANCE_DELAY: Duration = Duration::from_millis(300);
/// A member of a group that is not heard for so long owns nothing any more.
pub(crate) const GROUP_SESSION_TIMEOUT: Duration = Duration::from_secs(3);

/// The interval at which the node looks for transactions that are open for too long.
const TRANSACTION_ABORT_INTERVAL: Duration = Duration::from_millis(300);

fn kafka_options() -> KafkaOptions {
    let mut options = KafkaOptions {
        auto_create_topics: false,
        transfer_limits: TransferLimits { stall_max: STALL_MAX, rate_min: 4 << 10 },
        requests_bytes_max: 512 << 10,
        responses_bytes_max: 256 << 10,
        new_id,
        ..KafkaOptions::default()
    };
    options.groups.offsets_retention = COMMITTED_OFFSETS_RETENTION;
    options.groups.consumer.session_timeout = GROUP_SESSION_TIMEOUT;
    options.groups.session_timeout_min = GROUP_SESSION_TIMEOUT;
    options.groups.initial_rebalance_delay = REBALANCE_DELAY;
    options.groups.streams.session_timeout = GROUP_SESSION_TIMEOUT;
    options.groups.streams.initial_rebalance_delay = REBALANCE_DELAY;
    options.transactions.abort_interval = TRANSACTION_ABORT_INTERVAL;
    options
}

pub(crate) struct SimNode {
    pub(crate) disk: SimDisk,
    pub(crate) engine: Arc<Engine>,
    pub(crate) kafka: Arc<KafkaServer>,
    zookeeper: Arc<ZkServer>,
    catalog_faults: CatalogFaults,
    stop: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl SimNode {
    /// Opens what is on the disk, and serves.
    pub(crate) fn start(
        disk: SimDisk,
        shape: WorldShape,
        catalog: PathBuf,
        clock: &Arc<SimClock>,
        panicked: &Arc<Notify>,
        mut rng: SeededRng,
    ) -> Result<SimNode, String> {
        let kafka_options = kafka_options();
        let format = KafkaFormat { decompressed_bytes_max: kafka_options.decompressed_bytes_max };
        let options = engine_options(shape, catalog);
        let catalog_faults = options.core.catalog_faults.clone();
        let engine = Engine::open(
            Arc::new(disk.clone()),
            options,
            Arc::clone(clock) as Arc<dyn WallClock>,
            Arc::new(format),
        );
        let engine = Arc::new(engine.map_err(|error| error.to_string())?);
        let kafka = KafkaServer::new(Arc::clone(&engine), kafka_options);
        let kafka = kafka.map_err(|error| error.to_string())?;
        let turns = tokio::spawn(step_engine(
            Arc::clone(&engine),
            rng.fork(),
            NotifyOnPanic(Arc::clone(panicked)),
        ));
        let zookeeper = ZkServer::new(Arc::clone(engine.znodes()), zookeeper_options());
        let sessions = tokio::spawn(Arc::clone(&zookeeper).run_maintenance());
        let (stop, _) = watch::channel(false);
        let tasks = Mutex::new(vec![turns, sessions]);
        Ok(SimNode { disk, engine, kafka, zookeeper, catalog_faults, stop, tasks })
    }

    /// The same for a client of ZooKeeper.
    pub(crate) fn connect_zookeeper(&self, rng: &mut SeededRng) -> Option<SimSocket> {
        if self.is_stopping() {
            return None;
        }
        let (client, socket) = socket_pair(rng);
        let (near, far) = tokio::io::duplex(DUPLEX_BYTES);
        let zookeeper = Arc::clone(&self.zookeeper);
        let serving = async move {
            let anywhere = SocketAddr::from(([127, 0, 0, 1], 2181));
            // Either ends the other: what was written before the end still moves.
            tokio::join!(compat_zk::serve_stream(&zookeeper, near, anywhere), pump(&socket, far));
        };
        self.tasks.lock().push(tokio::spawn(serving));
        Some(client)
    }

    /// A client's end of a new connection, unless the node is stopping.
    pub(crate) fn connect(&self, rng: &mut SeededRng) -> Option<SimSocket> {
        if self.is_stopping() {
            return None;
        }
        let (client, server) = socket_pair(rng);
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 9092));
        let (kafka, stop) = (Arc::clone(&self.kafka), self.stop.subscribe());
        let listener = Arc::new(KafkaListener::plain());
        let ends = ConnectionEnds {
            listener,
            peer: anywhere,
            local: anywhere,
            principal: Principal::anonymous(),
        };
        let serving = compat_kafka::serve_stream(kafka, server, ends, stop);
        self.tasks.lock().push(tokio::spawn(serving));
        Some(client)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    pub(crate) fn catalog_faults(&self) -> &CatalogFaults {
        &self.catalog_faults
    }

    /// Confirms the wall clock, as an operator does. Returns the fence that remains, if any.
    pub(crate) fn confirm_clock(&self) -> Option<ClockFence> {
        self.engine.timekeeper().confirm()
    }

    /// Accepts no more connections, and lets requests end.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
        self.kafka.close();
    }

    /// Closes the files.
    ///
    /// # Errors
    /// As [`SimNode::abort`].
    pub(crate) async fn shut_down(self) -> Result<(), String> {
        self.disk.set_sync_hook(None);
        self.engine.close();
        self.abort().await
    }

    /// Kills the process.
    ///
    /// # Errors
    ///
    /// One of its tasks had panicked.
    pub(crate) async fn abort(self) -> Result<(), String> {
        self.disk.set_sync_hook(None);
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

/// Notifies if it is dropped by a panic.
struct NotifyOnPanic(Arc<Notify>);

impl Drop for NotifyOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.notify_one();
        }
    }
}

/// Does the work of the node's threads, now and then.
async fn step_engine(engine: Arc<Engine>, mut rng: SeededRng, _watch: NotifyOnPanic) {
    loop {
        tokio::time::sleep(Duration::from_millis(rng.between(0, STEP_MS_MAX))).await;
        engine.step();
    }
}
