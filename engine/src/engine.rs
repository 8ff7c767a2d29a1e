//! The engine: one store, and the namespace and the groups on top of it.
//!
//! Changes of the namespace are appended to log 0 like any other entry. A dedicated thread applies
//! them in journal order, and only then completes them: a client that got the response to a topic
//! creation finds the topic.

mod append;
mod applier;
mod catalog_rebuild;
mod options;
mod replay;
mod topics;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;

use hlc::{Hlc, WallClock};
use parking_lot::{Mutex, RwLock};
use storage::catalog::{CatalogDirectory, CatalogError};
use storage::disk::Disk;
use storage::journal::RecoverError;
use storage::log::LogWatcher;
use storage::timekeeper::Timekeeper;
use storage::{DataCache, HistoryStats, Log, OpenError, StorageError, Store, StoreStats};
use tokio::sync::{Notify, Semaphore};

use crate::append::{BatchFormat, EngineAppendStage};
use crate::catalog_slot::CatalogSlot;
use crate::config::TopicDefaults;
use crate::cut_cache::CutCache;
use crate::files::FileSystem;
use crate::groups::GroupCatalog;
use crate::namespace::event::MetadataEvent;
use crate::namespace::{GROUPS_LOG, Namespace};
use crate::partition_failures::PartitionFailures;
use crate::producers::ProducerStates;
use crate::user_time::ActiveRules;

pub use append::PendingAppends;
pub(crate) use append::{IN_FLIGHT_UNIT, flatten};
use applier::PendingEvent;
pub use options::EngineOptions;
pub(crate) use replay::{CatalogFillError, EventReader};
use replay::{ProducerReplay, open_catalog, replay_namespace};

/// Wakes a waiter when a log that it watches grows.
#[derive(Debug, Default)]
pub struct AppendWatch(Notify);

impl AppendWatch {
    /// Waits until a watched log has grown since the last call.
    pub async fn changed(&self) {
        self.0.notified().await;
    }
}

impl LogWatcher for AppendWatch {
    fn on_append(&self) {
        self.0.notify_one();
    }
}

/// Held from the first read of the namespace until the change that follows is applied.
///
/// The guard travels with the change, so the caller that requested the change may go away
/// meanwhile.
pub(crate) type ChangeLock = Arc<tokio::sync::Mutex<()>>;

pub(crate) struct EngineState {
    pub(crate) namespace: RwLock<Namespace>,
    /// Offsets, groups, and file names.
    pub(crate) catalog: CatalogSlot,
    /// The stamp of the last applied event of the namespace or of groups.
    applied_stamp: AtomicU64,
    /// Held while an event is applied.
    apply_lock: Mutex<()>,
    pub(crate) frontier_advanced: Arc<Notify>,
    /// Why the applier stopped, if an event could not be applied: answers that skip it would have a
    /// hole. The next start applies all events.
    apply_failure: OnceLock<Arc<str>>,
}

impl EngineState {
    /// Offsets and groups.
    pub(crate) fn groups(&self) -> Result<GroupCatalog, CatalogError> {
        Ok(GroupCatalog::new(self.catalog.get()?))
    }

    /// The name of the topic that `event` deleted. `event` is already applied.
    fn deleted_topic_name(&self, event: &MetadataEvent, stamp: Hlc) -> Option<Arc<str>> {
        let MetadataEvent::TopicDeleted { id } = event else { return None };
        let namespace = self.namespace.read();
        // A journal may delete a topic twice; only the first deletion counts. The catalog holds
        // nothing of a removed topic.
        let deletes = namespace.deleted_at(id) == Some(stamp);
        deletes.then(|| namespace.name_of(id)).flatten()
    }
}

/// Opens the store, with the states of its producers and the rules by which batches are checked.
fn open_store(
    disk: Arc<dyn Disk>,
    options: &EngineOptions,
    wall: Arc<dyn WallClock>,
    format: &Arc<dyn BatchFormat>,
    rules: &ActiveRules,
    frontier_advanced: Arc<Notify>,
) -> Result<Arc<Store<EngineAppendStage>>, OpenError> {
    // Maintenance starts later: the key that signs proofs is set before the first proof is written.
    let storage = storage::Options { manual_maintenance: true, ..options.storage };
    let mut replay =
        ProducerReplay { format: Arc::clone(format), producers: ProducerStates::default() };
    let stage = |replay: &mut ProducerReplay| EngineAppendStage {
        producers: std::mem::take(&mut replay.producers),
        rules: rules.clone(),
        format: Arc::clone(format),
    };
    let notify = move || frontier_advanced.notify_waiters();
    Store::open(disk, storage, wall, &mut replay, stage, notify).map(Arc::new)
}

/// Topics, groups, and their past.
pub struct Engine {
    pub(crate) store: Arc<Store<EngineAppendStage>>,
    pub(crate) groups_log: Arc<Log>,
    pub(crate) shared: Arc<EngineState>,
    pub(crate) format: Arc<dyn BatchFormat>,
    pub(crate) options: EngineOptions,
    pub(crate) cuts: CutCache,
    pub(crate) failures: PartitionFailures,
    in_flight: Arc<Semaphore>,
    files: FileSystem,
    /// Held from the first read of the namespace until the change that follows is applied.
    pub(crate) change_lock: ChangeLock,
    producer_ids: tokio::sync::Mutex<std::ops::Range<i64>>,
    applier: Mutex<Option<mpsc::Sender<PendingEvent>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Events that wait to be applied under manual stepping, where no thread applies them.
    manual_events: Mutex<Option<mpsc::Receiver<PendingEvent>>>,
}

impl Engine {
    /// Opens the engine on a disk.
    ///
    /// # Errors
    /// The journal or the catalog cannot be read. Nothing was changed in that case.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: EngineOptions,
        wall: Arc<dyn WallClock>,
        format: Arc<dyn BatchFormat>,
    ) -> Result<Engine, OpenError> {
        let advanced = Arc::new(Notify::new());
        let rules = ActiveRules::default();
        let store = open_store(disk, &options, wall, &format, &rules, Arc::clone(&advanced))?;
        let groups_log = store.log(GROUPS_LOG)?;
        if !options.storage.manual_maintenance && !options.storage.manual_stepping {
            store.start_maintenance(options.signing_key.clone())?;
        }
        let shared = Arc::new(EngineState {
            namespace: RwLock::new(Namespace::new()),
            catalog: CatalogSlot::new(CatalogDirectory::new(
                options.catalog.clone(),
                options.catalog_faults.clone(),
            )),
            applied_stamp: AtomicU64::new(0),
            apply_lock: Mutex::default(),
            frontier_advanced: advanced,
            apply_failure: OnceLock::new(),
        });
        let failed = |doing: &str, why: String| {
            OpenError::Recover(RecoverError::Unusable(format!("{doing}: {why}")))
        };
        replay_namespace(&store, &shared).map_err(|why| failed("replay the namespace", why))?;
        let files_next =
            open_catalog(&store, &shared).map_err(|why| failed("fill the catalog", why))?;
        shared.namespace.read().restore_rules(&rules);
        let below = shared.namespace.read().producer_ids_below;
        let flight_units = (options.in_flight_bytes_max / IN_FLIGHT_UNIT).max(1);
        let flight = Arc::new(Semaphore::new(flight_units));
        let files = FileSystem::open_all(
            Arc::clone(&store),
            Arc::clone(&shared),
            (Arc::clone(&flight), flight_units),
            files_next,
            options.files,
        )
        .map_err(|error| failed("open the files", error.to_string()))?;
        let engine = Engine {
            store,
            groups_log,
            shared,
            format,
            in_flight: flight,
            cuts: CutCache::new(options.cut_cache_bytes_max),
            failures: PartitionFailures::default(),
            files,
            options,
            change_lock: ChangeLock::default(),
            producer_ids: tokio::sync::Mutex::new(below..below),
            applier: Mutex::new(None),
            threads: Mutex::default(),
            manual_events: Mutex::new(None),
        };
        engine.start_applier().map_err(StorageError::from)?;
        engine.start_rebuild().map_err(StorageError::from)?;
        Ok(engine)
    }

    /// The defaults of settings that a topic does not set itself.
    pub fn topic_defaults(&self) -> &TopicDefaults {
        &self.options.topic_defaults
    }

    /// Counters of the store.
    pub fn stats(&self) -> &StoreStats {
        self.store.stats()
    }

    /// Counters of the work on sealed segments.
    pub fn history_stats(&self) -> &HistoryStats {
        self.store.history_stats()
    }

    /// How many bytes of index files are in memory.
    pub fn index_bytes(&self) -> usize {
        self.store.index_cache().held_bytes()
    }

    /// The blocks of data files that are in memory.
    pub fn data_cache(&self) -> &Arc<DataCache> {
        self.store.data_cache()
    }

    /// How many segments the journal has.
    pub fn segment_count(&self) -> usize {
        self.store.segment_count()
    }

    /// The clock, and the frontier.
    pub fn timekeeper(&self) -> &Arc<Timekeeper> {
        self.store.timekeeper()
    }

    /// Why nothing can be written any more, if the store has stopped.
    pub fn stop_reason(&self) -> Option<Arc<str>> {
        self.store.stop_reason()
    }

    /// Completes what is in flight and closes the files.
    pub fn close(&self) {
        self.files.close();
        self.store.close();
        self.step_applier();
        self.applier.lock().take();
        self.shared.catalog.close();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        if let Ok(catalog) = self.shared.catalog.get() {
            catalog.flush();
        }
    }

    /// Files, and their past.
    pub fn files(&self) -> &FileSystem {
        &self.files
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}
