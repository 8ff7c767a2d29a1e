//! The spine: one store, the namespace, and the catalog on top of it.
//!
//! Changes are appended to logs of events like any other entry. A dedicated thread applies them in
//! journal order, and only then completes them: a client that got the response to a topic creation
//! finds the topic.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;

use admission::BudgetRegistry;
use arc_swap::{ArcSwap, Guard};
use hlc::{Cut, Hlc, SysTime, WallClock};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use storage::catalog::CatalogDirectory;
use storage::disk::Disk;
use storage::journal::RecoverError;
use storage::log::LogWatcher;
use storage::timekeeper::Timekeeper;
use storage::{DataCache, HistoryStats, LogId, OpenError, StorageError, Store, StoreStats};
use tokio::sync::{Notify, OwnedMutexGuard, watch};

use crate::active_rules::ActiveRules;
use crate::append::{BatchFormat, EngineAppendStage};
use crate::applier::{ApplierTask, EventSender, EventWaiters};
use crate::audit_log::AuditLog;
use crate::catalog_fill::open_catalog;
use crate::catalog_slot::CatalogSlot;
use crate::config::TopicDefaults;
use crate::cut_cache::CutCache;
use crate::log_history::{earliest_bound, is_retained};
use crate::marker::MarkerStage;
use crate::namespace::event::NamespaceEvent;
use crate::namespace::{Namespace, Partition};
use crate::namespace_accounts::NamespaceAccounts;
use crate::options::{CoreOptions, DynamicMaintenance};
use crate::partition_failures::PartitionFailures;
use crate::pending_appends::AppendBudget;
use crate::producers::ProducerStates;
use crate::projection::EngineWings;
use crate::replay::{ProducerReplay, UnfinishedMarker, replay_namespace};
use crate::seek_error::SeekError;
use crate::transactions::restore_transactions;

/// The store of an engine.
pub type EngineStore = Store<EngineAppendStage>;

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

/// The lock from [`EngineCore::lock_changes`]. It travels with the change that was decided under
/// it, so the caller that requested the change may go away meanwhile.
#[derive(Debug)]
pub struct ChangesGuard(
    #[expect(dead_code, reason = "held, not read")] pub(crate) OwnedMutexGuard<()>,
);

pub(crate) struct EngineState {
    pub(crate) namespace: RwLock<Namespace>,
    pub(crate) accounts: NamespaceAccounts,
    pub(crate) catalog: Arc<CatalogSlot>,
    /// The stamp of the last applied event.
    pub(crate) applied_stamp: AtomicU64,
    /// The requests whose events are not applied yet.
    pub(crate) event_waiters: EventWaiters,
    /// Held while an event is applied.
    pub(crate) apply_lock: Mutex<()>,
    pub(crate) frontier_advanced: Arc<Notify>,
    /// The error that stopped the applier, if an event could not be applied: answers that skip it
    /// would have a hole. The next start applies all events.
    pub(crate) apply_failure: OnceLock<Arc<str>>,
}

impl EngineState {
    /// The name of the topic that `event` deleted. `event` is already applied.
    pub(crate) fn deleted_topic_name(
        &self,
        event: &NamespaceEvent,
        stamp: Hlc,
    ) -> Option<Arc<str>> {
        let NamespaceEvent::TopicDeleted { id } = event else { return None };
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
    options: &CoreOptions,
    wall: Arc<dyn WallClock>,
    format: &Arc<dyn BatchFormat>,
    rules: &ActiveRules,
    applier: mpsc::Sender<ApplierTask>,
    frontier_advanced: Arc<Notify>,
) -> Result<OpenedStore, OpenError> {
    // Maintenance starts later: the key that signs proofs is set before the first proof is written.
    let storage = storage::Options { manual_maintenance: true, ..options.storage };
    let mut replay = ProducerReplay {
        format: Arc::clone(format),
        producers: ProducerStates::default(),
        unfinished: HashMap::new(),
        corrupt_markers: HashMap::new(),
    };
    let producers = Arc::<Mutex<ProducerStates>>::default();
    let stage = |replay: &mut ProducerReplay| {
        *producers.lock() = std::mem::take(&mut replay.producers);
        EngineAppendStage {
            producers: Arc::clone(&producers),
            rules: rules.clone(),
            format: Arc::clone(format),
            markers: MarkerStage::default(),
            events: EventSender::new(applier),
        }
    };
    let notify = move || frontier_advanced.notify_waiters();
    let store = Store::open(disk, storage, wall, &mut replay, stage, notify).map(Arc::new)?;
    Ok(OpenedStore { store, producers, unfinished: replay.unfinished })
}

/// The store, and what its journal says of producers.
struct OpenedStore {
    store: Arc<EngineStore>,
    producers: Arc<Mutex<ProducerStates>>,
    unfinished: HashMap<LogId, VecDeque<UnfinishedMarker>>,
}

/// Topics, and their past.
pub struct EngineCore {
    pub(crate) store: Arc<EngineStore>,
    pub(crate) shared: Arc<EngineState>,
    pub(crate) format: Arc<dyn BatchFormat>,
    pub(crate) options: CoreOptions,
    topic_defaults: ArcSwap<TopicDefaults>,
    dynamic_maintenance: watch::Sender<DynamicMaintenance>,
    pub(crate) cuts: CutCache,
    pub(crate) failures: PartitionFailures,
    pub(crate) append_budget: AppendBudget,
    budgets: Arc<BudgetRegistry>,
    audit: AuditLog,
    /// The producers of all logs, and their open transactions.
    pub(crate) producers: Arc<Mutex<ProducerStates>>,
    /// The markers that a crash left without an entry in their transaction log.
    pub(crate) unfinished: Mutex<Vec<(Arc<Partition>, UnfinishedMarker)>>,
    /// Set by [`EngineCore::start`].
    wings: OnceLock<Arc<EngineWings>>,
    /// Held from the first read of the namespace until the change that follows is applied.
    pub(crate) change_lock: Arc<tokio::sync::Mutex<()>>,
    stopped: Arc<Notify>,
    pub(crate) producer_ids: tokio::sync::Mutex<std::ops::Range<i64>>,
    /// Producer ids below this may have been allocated.
    pub(crate) producer_ids_below: AtomicI64,
    /// True from [`EngineCore::start`] to [`EngineCore::close`].
    pub(crate) accepts_events: AtomicBool,
    applier: mpsc::Sender<ApplierTask>,
    /// The events that were published, until something applies them.
    pub(crate) published_events: Mutex<Option<mpsc::Receiver<ApplierTask>>>,
    pub(crate) threads: Mutex<Vec<JoinHandle<()>>>,
    /// Events that wait to be applied under manual stepping, where no thread applies them.
    pub(crate) manual_events: Mutex<Option<mpsc::Receiver<ApplierTask>>>,
}

impl EngineCore {
    /// Opens the spine on a disk. It takes no change before [`EngineCore::start`].
    ///
    /// # Errors
    /// The journal cannot be read. Nothing was changed in that case.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: CoreOptions,
        wall: Arc<dyn WallClock>,
        format: Arc<dyn BatchFormat>,
    ) -> Result<EngineCore, OpenError> {
        let advanced = Arc::new(Notify::new());
        let rules = ActiveRules::default();
        let (applier, published_events) = mpsc::channel();
        let OpenedStore { store, producers, unfinished } = open_store(
            disk,
            &options,
            wall,
            &format,
            &rules,
            applier.clone(),
            Arc::clone(&advanced),
        )?;
        if !options.storage.manual_maintenance && !options.storage.manual_stepping {
            store.start_maintenance(options.signing_key.clone())?;
        }
        let stopped = Arc::<Notify>::default();
        let notify_stopped = Arc::clone(&stopped);
        store.on_stop(move || notify_stopped.notify_waiters());
        let budgets = Arc::<BudgetRegistry>::default();
        let shared = Arc::new(EngineState {
            namespace: RwLock::new(Namespace::new()),
            accounts: NamespaceAccounts::new(options.namespace_limits(), &budgets),
            catalog: Arc::new(CatalogSlot::new(CatalogDirectory::new(
                options.catalog.clone(),
                options.catalog_faults.clone(),
            ))),
            applied_stamp: AtomicU64::new(0),
            event_waiters: EventWaiters::default(),
            apply_lock: Mutex::default(),
            frontier_advanced: advanced,
            apply_failure: OnceLock::new(),
        });
        replay_namespace(&store, &shared)
            .map_err(|why| open_failure("replay the namespace", why))?;
        shared.namespace.read().restore_rules(&rules);
        shared.accounts.restore(&shared.namespace.read());
        let below = shared.namespace.read().producer_ids_below;
        producers.lock().end_replay(below);
        let unfinished = restore_transactions(&store, &shared, &producers, unfinished)
            .map_err(|error| open_failure("restore open transactions", error.to_string()))?;
        for budget in producers.lock().budgets() {
            budgets.register(budget);
        }
        Ok(EngineCore {
            store,
            producers,
            unfinished: Mutex::new(unfinished),
            shared,
            format,
            append_budget: AppendBudget::new(options.in_flight_bytes_max, &budgets),
            budgets,
            audit: AuditLog::new(),
            cuts: CutCache::new(options.cut_cache_bytes_max),
            failures: PartitionFailures::default(),
            wings: OnceLock::new(),
            topic_defaults: ArcSwap::from_pointee(options.topic_defaults.clone()),
            dynamic_maintenance: watch::Sender::new(options.maintenance.dynamic),
            options,
            change_lock: Arc::default(),
            stopped,
            producer_ids: tokio::sync::Mutex::new(below..below),
            producer_ids_below: AtomicI64::new(below),
            accepts_events: AtomicBool::new(false),
            applier,
            published_events: Mutex::new(Some(published_events)),
            threads: Mutex::default(),
            manual_events: Mutex::new(None),
        })
    }

    /// Fills the catalog for the wings, and starts to take changes.
    ///
    /// # Errors
    /// The journal or the catalog cannot be read.
    ///
    /// # Panics
    /// It was started before.
    pub fn start(&self, wings: EngineWings) -> Result<(), OpenError> {
        assert!(self.wings.set(Arc::new(wings)).is_ok(), "an engine starts once");
        open_catalog(&self.store, &self.shared, self.wings())
            .map_err(|why| open_failure("fill the catalog", why))?;
        self.start_applier().map_err(StorageError::from)?;
        Ok(self.start_rebuild().map_err(StorageError::from)?)
    }

    /// The projections and plug-in modules of the wings.
    pub(crate) fn wings(&self) -> &Arc<EngineWings> {
        self.wings.get().expect("the engine is started before it is used")
    }

    pub fn store(&self) -> &Arc<EngineStore> {
        &self.store
    }

    /// The namespace. Nothing changes in it while the guard is held.
    pub fn namespace(&self) -> RwLockReadGuard<'_, Namespace> {
        self.shared.namespace.read()
    }

    /// The catalog in use, or the lack of one.
    pub fn catalog(&self) -> &Arc<CatalogSlot> {
        &self.shared.catalog
    }

    /// The budget for bytes of appends in flight.
    pub fn append_budget(&self) -> &AppendBudget {
        &self.append_budget
    }

    /// The audit log.
    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// The budgets that clients share, of this engine and of the servers on it.
    pub fn budgets(&self) -> &Arc<BudgetRegistry> {
        &self.budgets
    }

    /// Checks that the state of every projection can still be read at `cut`.
    pub(crate) fn check_projections_retained(&self, cut: Cut) -> Result<(), SeekError> {
        let wings = self.wings();
        wings.readers.iter().try_for_each(|projection| projection.check_retained(cut))?;
        wings.events.iter().try_for_each(|projection| {
            let horizon = self.store.log(projection.log())?.horizon();
            if is_retained(&horizon, cut) {
                return Ok(());
            }
            Err(projection.truncated(earliest_bound(&horizon)))
        })
    }

    pub fn options(&self) -> &CoreOptions {
        &self.options
    }

    /// Keeps pins and topics unchanged until the guard is dropped. Code that decides by them which
    /// records to remove holds it from the decision until the horizon is on stable storage.
    pub async fn lock_changes(&self) -> ChangesGuard {
        ChangesGuard(Arc::clone(&self.change_lock).lock_owned().await)
    }

    /// The reading of the wall clock.
    pub fn wall_now(&self) -> SysTime {
        self.store.timekeeper().wall_now()
    }

    /// The time by which records may be removed for their age; `None` while the clock cannot be
    /// trusted: a wrong clock could make everything look old, and every pin expired.
    pub fn retention_time(&self) -> Option<SysTime> {
        self.timekeeper().confirmed_now()
    }

    /// The defaults of settings that a topic does not set itself.
    pub fn topic_defaults(&self) -> Guard<Arc<TopicDefaults>> {
        self.topic_defaults.load()
    }

    /// The settings of maintenance that may change while it runs.
    pub fn dynamic_maintenance(&self) -> DynamicMaintenance {
        *self.dynamic_maintenance.borrow()
    }

    /// The same, and each change of it.
    pub fn watch_dynamic_maintenance(&self) -> watch::Receiver<DynamicMaintenance> {
        self.dynamic_maintenance.subscribe()
    }

    /// Changes the settings that may change while the engine runs. Removals from then on use the
    /// new defaults.
    pub async fn set_dynamic_options(
        &self,
        defaults: TopicDefaults,
        maintenance: DynamicMaintenance,
    ) {
        let _unchanged = self.lock_changes().await;
        self.topic_defaults.store(Arc::new(defaults));
        self.dynamic_maintenance.send_replace(maintenance);
    }

    /// Counters of the store.
    pub fn stats(&self) -> &StoreStats {
        self.store.stats()
    }

    /// Counters of the work on sealed segments.
    pub fn history_stats(&self) -> &HistoryStats {
        self.store.history_stats()
    }

    /// The bytes of index files in memory.
    pub fn index_bytes(&self) -> usize {
        self.store.index_cache().held_bytes()
    }

    /// The blocks of data files that are in memory.
    pub fn data_cache(&self) -> &Arc<DataCache> {
        self.store.data_cache()
    }

    /// The number of segments of the journal.
    pub fn segment_count(&self) -> usize {
        self.store.segment_count()
    }

    /// The clock, and the frontier.
    pub fn timekeeper(&self) -> &Arc<Timekeeper> {
        self.store.timekeeper()
    }

    /// The reason that nothing can be written any more, if the store has stopped.
    pub fn stop_reason(&self) -> Option<Arc<str>> {
        self.store.stop_reason()
    }

    /// Waits until nothing can be written any more, and returns the reason.
    pub async fn stopped(&self) -> Arc<str> {
        loop {
            let stopped = self.stopped.notified();
            if let Some(why) = self.stop_reason() {
                return why;
            }
            stopped.await;
        }
    }

    /// Completes what is in flight and closes the files.
    pub fn close(&self) {
        self.store.close();
        if self.wings.get().is_some() {
            self.step_applier();
        }
        self.accepts_events.store(false, Ordering::Release);
        let _ = self.applier.send(ApplierTask::End);
        self.shared.catalog.close();
        for thread in self.threads.lock().drain(..) {
            let _ = thread.join();
        }
        if let Ok(catalog) = self.shared.catalog.get() {
            catalog.flush();
        }
    }
}

fn open_failure(doing: &str, why: String) -> OpenError {
    OpenError::Recover(RecoverError::Unusable(format!("{doing}: {why}")))
}

impl Drop for EngineCore {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for EngineCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineCore").finish_non_exhaustive()
    }
}
