//! The engine: one store, the namespace and the groups over it.
//!
//! Changes of the namespace go through log 0 like any append. They are applied on a thread of their
//! own, in journal order, and completed only then: whoever was told that a topic exists, finds it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use hlc::{Cut, Hlc, UserTime, WallClock};
use parking_lot::{Mutex, RwLock};
use storage::catalog::{Applied, Catalog};
use storage::disk::Disk;
use storage::log::Watcher;
use storage::proof::SigningKey;
use storage::timekeeper::Timekeeper;
use storage::{
    Append, AppendError, Appended, Durability, HistoryStats, Log, LogId, LogSource, Offset,
    OpenError, Payload, Piece, Replay, Replayed, Results, Stats, Store,
};
use tokio::sync::{Notify, OwnedMutexGuard, Semaphore, oneshot};

use crate::append::{Batch, Format, Note, Stager};
use crate::blocking::tip_at;
use crate::config::{TopicConfig, TopicDefaults};
use crate::cut_cache::CutCache;
use crate::error::EngineError;
use crate::files::{FileOptions, Files, is_file_kind};
use crate::group_horizon::refill;
use crate::groups::Groups;
use crate::housekeeping::HousekeepingOptions;
use crate::namespace::event::{Event, KIND_CATALOG, KIND_NAMESPACE, KIND_RECORDS, OffsetCommit};
use crate::namespace::{GROUPS_LOG, NAMESPACE_LOG, Namespace, Topic, TopicId, check_topic_name};
use crate::pins::Hold;
use crate::producers::Producers;
use crate::troubles::Troubles;
use crate::user_time::{RuleChange, RulesInForce, UserTimeRule, succeeding};

/// How many producer ids are granted by one entry.
const PRODUCER_IDS_BLOCK: i64 = 1000;
/// The unit in which bytes on their way are counted.
pub(crate) const FLIGHT_UNIT: usize = 1024;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How the journal is kept.
    pub storage: storage::Options,
    /// The directory of the catalog; `None` for one that is gone with the process.
    pub catalog: Option<PathBuf>,
    /// What topics get that say nothing themselves.
    pub topic_defaults: TopicDefaults,
    /// The most partitions that one topic may have.
    pub partitions_max: u32,
    /// How many bytes of appends may be on their way to the disk.
    pub flight_bytes_max: usize,
    /// How many pins may stand at a time.
    pub pins_max: usize,
    /// How long the records of a deleted topic are kept, if its settings do not end them before.
    pub deleted_topic_retention: Duration,
    /// How far back committed offsets and groups can be read. What they are now is kept whatever its age.
    pub offsets_retention: Duration,
    /// How many bytes of answers to cuts are kept; 0 for none.
    pub cut_cache_bytes_max: usize,
    /// When it looks after what it keeps.
    pub housekeeping: HousekeepingOptions,
    /// Who signs the proofs of sealed segments; nobody does without.
    pub signing_key: Option<Arc<SigningKey>>,
    /// How files are kept.
    pub files: FileOptions,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            storage: storage::Options::default(),
            catalog: None,
            topic_defaults: TopicDefaults::new(),
            partitions_max: 10_000,
            flight_bytes_max: 128 << 20,
            pins_max: 100,
            deleted_topic_retention: Duration::from_secs(7 * 24 * 60 * 60),
            offsets_retention: Duration::from_secs(7 * 24 * 60 * 60),
            cut_cache_bytes_max: 16 << 20,
            housekeeping: HousekeepingOptions::default(),
            signing_key: None,
            files: FileOptions::default(),
        }
    }
}

/// Woken when a log that it watches grows.
#[derive(Debug, Default)]
pub struct Watch(Notify);

impl Watch {
    /// Waits until a watched log has grown since the last call.
    pub async fn changed(&self) {
        self.0.notified().await;
    }
}

impl Watcher for Watch {
    fn grew(&self) {
        self.0.notify_one();
    }
}

/// Held from looking at the namespace until the change that follows is applied: it goes with the
/// change, so that whoever asked for it may go away meanwhile.
pub(crate) type Changing = Arc<tokio::sync::Mutex<()>>;

/// What the applier needs to make an event true.
struct Applying {
    event: Event,
    stamp: Hlc,
    position: u64,
    done: oneshot::Sender<Result<Hlc, EngineError>>,
    changing: Option<OwnedMutexGuard<()>>,
}

pub(crate) struct Shared {
    pub(crate) namespace: RwLock<Namespace>,
    pub(crate) groups: Groups,
    /// The stamp of the last namespace event that was applied.
    applied: AtomicU64,
    pub(crate) advanced: Arc<Notify>,
    /// Why no further event is applied, if one could not be: what follows it would be an answer with
    /// a hole in it. The next start applies them all.
    failed: OnceLock<Arc<str>>,
}

/// Topics, groups, and their past.
pub struct Engine {
    pub(crate) store: Arc<Store<Stager>>,
    pub(crate) groups_log: Arc<Log>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) format: Arc<dyn Format>,
    pub(crate) options: EngineOptions,
    pub(crate) cuts: CutCache,
    pub(crate) troubles: Troubles,
    flight: Arc<Semaphore>,
    files: Files,
    /// Held from looking at the namespace until the change that follows is applied.
    pub(crate) changing: Changing,
    producer_ids: tokio::sync::Mutex<std::ops::Range<i64>>,
    applier: Mutex<Option<mpsc::Sender<Applying>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// What waits to be applied, where no thread does it.
    by_hand: Mutex<Option<mpsc::Receiver<Applying>>>,
}

/// Remembers again what producers wrote last.
struct Rebuild {
    format: Arc<dyn Format>,
    producers: Producers,
}

impl Replay for Rebuild {
    fn restore(&mut self, state: &[u8]) -> std::io::Result<()> {
        self.producers = Producers::decode(state).map_err(std::io::Error::other)?;
        Ok(())
    }

    fn entry(&mut self, replayed: &Replayed<'_>) -> std::io::Result<()> {
        let entry = replayed.entry;
        self.producers.advance(entry.stamp);
        match entry.kind {
            KIND_RECORDS => {
                if let Some(note) = self.format.producer(replayed.start) {
                    self.producers.record(replayed.log, &note, entry.base, entry.stamp);
                }
            }
            // Their logs say what happened, once the store has opened.
            KIND_NAMESPACE | KIND_CATALOG => {}
            kind if is_file_kind(kind) => {}
            kind => {
                return Err(std::io::Error::other(format!(
                    "entry of a kind that this version does not know. kind={kind}, position={}",
                    entry.position
                )));
            }
        }
        Ok(())
    }

    fn state(&self) -> Vec<u8> {
        self.producers.encode()
    }
}

impl Engine {
    /// Opens the engine on a disk.
    ///
    /// # Errors
    /// The journal or the catalog cannot be read; nothing was changed then.
    pub fn open(
        disk: Arc<dyn Disk>,
        options: EngineOptions,
        wall: Arc<dyn WallClock>,
        format: Arc<dyn Format>,
    ) -> Result<Engine, OpenError> {
        let catalog_failed = |error: storage::catalog::CatalogError| {
            OpenError::Disk(std::io::Error::other(error.to_string()))
        };
        let catalog = match &options.catalog {
            Some(directory) => Catalog::open(directory),
            None => Catalog::temporary(),
        }
        .map_err(catalog_failed)?;
        let mut rebuild = Rebuild { format: Arc::clone(&format), producers: Producers::default() };
        let advanced = Arc::new(Notify::new());
        let told = Arc::clone(&advanced);
        let rules = RulesInForce::default();
        // What signs the proofs is known before the first is written.
        let storage = storage::Options { tended_by_hand: true, ..options.storage };
        let store = Store::open(
            disk,
            storage,
            wall,
            &mut rebuild,
            |rebuild| Stager {
                producers: std::mem::take(&mut rebuild.producers),
                rules: rules.clone(),
                format: Arc::clone(&format),
            },
            move || told.notify_waiters(),
        )?;
        let store = Arc::new(store);
        let groups_log = store.log(GROUPS_LOG).map_err(OpenError::Disk)?;
        if !options.storage.tended_by_hand && !options.storage.driven_by_hand {
            store.tend_in_background(options.signing_key.clone()).map_err(OpenError::Disk)?;
        }
        let shared = Arc::new(Shared {
            namespace: RwLock::new(Namespace::new()),
            groups: Groups::new(catalog),
            applied: AtomicU64::new(0),
            advanced,
            failed: OnceLock::new(),
        });
        replay_events(&store, &shared).map_err(|why| {
            OpenError::Disk(std::io::Error::other(format!("replay the namespace: {why}")))
        })?;
        shared.namespace.read().restore_rules(&rules);
        let below = shared.namespace.read().producer_ids_below;
        let flight_units = (options.flight_bytes_max / FLIGHT_UNIT).max(1);
        let flight = Arc::new(Semaphore::new(flight_units));
        let files = Files::open_all(
            Arc::clone(&store),
            Arc::clone(&shared),
            (Arc::clone(&flight), flight_units),
            options.files,
        )
        .map_err(|error| OpenError::Disk(std::io::Error::other(error)))?;
        let engine = Engine {
            store,
            groups_log,
            shared,
            format,
            flight,
            cuts: CutCache::new(options.cut_cache_bytes_max),
            troubles: Troubles::default(),
            files,
            options,
            changing: Changing::default(),
            producer_ids: tokio::sync::Mutex::new(below..below),
            applier: Mutex::new(None),
            thread: Mutex::new(None),
            by_hand: Mutex::new(None),
        };
        engine.start_applier().map_err(OpenError::Disk)?;
        Ok(engine)
    }

    fn start_applier(&self) -> std::io::Result<()> {
        let (sender, receiver) = mpsc::channel::<Applying>();
        *self.applier.lock() = Some(sender);
        if self.options.storage.driven_by_hand {
            *self.by_hand.lock() = Some(receiver);
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let logs = self.store.log_source();
        let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn(move || {
            for applying in receiver {
                make_true(&shared, applying, &logs);
            }
        })?;
        *self.thread.lock() = Some(thread);
        Ok(())
    }

    /// Applies the events that wait where no thread does; whether there were any.
    pub(crate) fn apply_by_hand(&self) -> bool {
        let receiver = self.by_hand.lock();
        let Some(receiver) = receiver.as_ref() else { return false };
        let (logs, mut any) = (self.store.log_source(), false);
        for applying in receiver.try_iter() {
            make_true(&self.shared, applying, &logs);
            any = true;
        }
        any
    }

    /// The settings that topics get which say nothing themselves.
    pub fn topic_defaults(&self) -> &TopicDefaults {
        &self.options.topic_defaults
    }

    /// Counters of the store.
    pub fn stats(&self) -> &Stats {
        self.store.stats()
    }

    /// Counters of what is done to what is sealed.
    pub fn history_stats(&self) -> &HistoryStats {
        self.store.history_stats()
    }

    /// How many bytes of index files are in memory.
    pub fn index_bytes(&self) -> usize {
        self.store.index_cache().held_bytes()
    }

    /// How many segments the journal has.
    pub fn segment_count(&self) -> usize {
        self.store.segment_count()
    }

    /// The clock, and the frontier.
    pub fn timekeeper(&self) -> &Arc<Timekeeper> {
        self.store.timekeeper()
    }

    /// Why nothing can be written any more, if so.
    pub fn stopped(&self) -> Option<Arc<str>> {
        self.store.stopped()
    }

    /// Completes what is on its way and closes the files.
    pub fn close(&self) {
        self.files.close();
        self.store.close();
        self.apply_by_hand();
        self.applier.lock().take();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
        self.shared.groups.catalog().flush();
    }

    /// Files, and their past.
    pub fn files(&self) -> &Files {
        &self.files
    }

    // ---- Topics ----

    /// The topic of that name.
    pub fn topic(&self, name: &str) -> Option<Arc<Topic>> {
        self.shared.namespace.read().topic(name).cloned()
    }

    /// The topic with that id.
    pub fn topic_by_id(&self, id: &TopicId) -> Option<Arc<Topic>> {
        self.shared.namespace.read().topic_by_id(id).cloned()
    }

    /// All topics, by name.
    pub fn topics(&self) -> Vec<Arc<Topic>> {
        self.shared.namespace.read().topics().cloned().collect()
    }

    /// Creates a topic; or, when only asked to, sees whether it could be.
    ///
    /// # Errors
    /// It exists, or its name, count or settings cannot be; or the disk fails.
    pub async fn create_topic(
        &self,
        name: &str,
        partitions: u32,
        configs: BTreeMap<String, String>,
        id: TopicId,
        only_validate: bool,
    ) -> Result<Arc<Topic>, EngineError> {
        check_topic_name(name)?;
        self.check_partition_count(partitions)?;
        let config = TopicConfig::new(configs)?;
        let changing = Arc::clone(&self.changing).lock_owned().await;
        self.check_plugin(&config, None)?;
        if self.topic(name).is_some() {
            return Err(EngineError::TopicExists(name.to_owned()));
        }
        let first_log = self.shared.namespace.read().next_log();
        let name = name.to_owned();
        if only_validate {
            return Ok(Arc::new(Topic::new(name.into(), id, Hlc::ZERO, config)));
        }
        let configs = config.set().clone();
        self.change(
            Event::TopicCreated { name, id, first_log, partitions, configs },
            Some(changing),
        )
        .await?;
        Ok(self.topic_by_id(&id).expect("a topic is there once its creation is applied"))
    }

    fn check_partition_count(&self, count: u32) -> Result<(), EngineError> {
        let most = self.options.partitions_max;
        if (1..=most).contains(&count) {
            return Ok(());
        }
        Err(EngineError::PartitionCount(format!(
            "number of partitions must be from 1 to {most}. partitions={count}"
        )))
    }

    /// Deletes a topic. Its past stays readable, by moments before.
    ///
    /// # Errors
    /// It does not exist, or the disk fails.
    pub async fn delete_topic(&self, id: TopicId) -> Result<(), EngineError> {
        let changing = Arc::clone(&self.changing).lock_owned().await;
        if self.topic_by_id(&id).is_none() {
            let topic = format!("{id:02x?}");
            return Err(EngineError::UnknownPartition { topic, partition: -1 });
        }
        self.change(Event::TopicDeleted { id }, Some(changing)).await.map(drop)
    }

    /// Gives a topic more partitions, `total` in all.
    ///
    /// # Errors
    /// It has as many or more, or does not exist; or the disk fails.
    pub async fn add_partitions(
        &self,
        name: &str,
        total: u32,
        only_validate: bool,
    ) -> Result<(), EngineError> {
        let changing = Arc::clone(&self.changing).lock_owned().await;
        let topic = self.require(name)?;
        self.check_partition_count(total)?;
        let count = topic.partitions.len() as u32;
        if total <= count {
            return Err(EngineError::PartitionCount(format!(
                "the topic {name} currently has {count} partition(s); {total} would not be an increase"
            )));
        }
        let first_log = self.shared.namespace.read().next_log();
        if only_validate {
            return Ok(());
        }
        let event = Event::PartitionsAdded { id: topic.id, first_log, more: total - count };
        self.change(event, Some(changing)).await.map(drop)
    }

    fn require(&self, name: &str) -> Result<Arc<Topic>, EngineError> {
        let unknown = || EngineError::UnknownPartition { topic: name.to_owned(), partition: -1 };
        self.topic(name).ok_or_else(unknown)
    }

    /// Changes what is set on a topic: `change` is given what is set now.
    ///
    /// # Errors
    /// It does not exist, a setting cannot be, or the disk fails.
    pub async fn configure_topic(
        &self,
        name: &str,
        change: impl FnOnce(&mut BTreeMap<String, String>) -> Result<(), EngineError>,
        only_validate: bool,
    ) -> Result<(), EngineError> {
        let changing = Arc::clone(&self.changing).lock_owned().await;
        let topic = self.require(name)?;
        let mut configs = topic.config.set().clone();
        change(&mut configs)?;
        let config = TopicConfig::new(configs)?;
        self.check_plugin(&config, Some(&topic))?;
        if only_validate || config == topic.config {
            return Ok(());
        }
        let configs = config.set().clone();
        self.change(Event::TopicConfigured { id: topic.id, configs }, Some(changing))
            .await
            .map(drop)
    }

    /// Gives up the records before `before`; -1 means all that there are. Returns the new start.
    ///
    /// # Errors
    /// The offset lies outside of the log, a pin holds some of them, or the disk fails.
    pub async fn delete_records(
        &self,
        topic: &Topic,
        partition: i32,
        before: i64,
    ) -> Result<Offset, EngineError> {
        let changing = Arc::clone(&self.changing).lock_owned().await;
        // It may have been deleted since it was looked up.
        let topic = self.topic_by_id(&topic.id).ok_or_else(|| EngineError::UnknownPartition {
            topic: topic.name.to_string(),
            partition,
        })?;
        let held = topic.partition(partition)?;
        let (start, end) = (held.start(), held.end());
        let before = if before == -1 { end } else { Offset(before.try_into().unwrap_or(u64::MAX)) };
        if before > end {
            let offset = before.0 as i64;
            return Err(EngineError::OffsetOutOfRange { offset, start, end });
        }
        if before > start {
            if let Some(fence) = self.timekeeper().fence() {
                return Err(EngineError::Fenced(fence.to_string()));
            }
            if let Some(held_by) = self.holding(&topic.id, held)? {
                let (topic, partition) = (Arc::clone(&topic.name), held.index);
                let Hold { pin, at } = held_by;
                return Err(EngineError::Pinned { pin, at, topic, partition });
            }
            let (store, log) = (Arc::clone(&self.store), held.log.id);
            self.on_a_thread(move || {
                // Held until the horizon is on stable storage, whoever goes away meanwhile.
                let _changing = changing;
                Ok(store.give_up(&[(log, before)])?)
            })
            .await?;
        }
        Ok(held.start())
    }

    /// A producer id that was never given out before.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn new_producer_id(&self) -> Result<i64, EngineError> {
        let mut ids = self.producer_ids.lock().await;
        if ids.is_empty() {
            let below = ids.end + PRODUCER_IDS_BLOCK;
            self.change(Event::ProducerIdsGranted { below }, None).await?;
            *ids = ids.end..below;
        }
        Ok(ids.next().expect("a block was just granted"))
    }

    // ---- Groups ----

    /// Commits offsets of a group, all of them or none; returns the moment.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn commit_offsets(
        &self,
        group: &str,
        offsets: Vec<OffsetCommit>,
    ) -> Result<Hlc, EngineError> {
        self.change(Event::OffsetsCommitted { group: group.to_owned(), offsets }, None).await
    }

    /// Removes committed offsets of a group.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn delete_offsets(
        &self,
        group: &str,
        partitions: Vec<(String, u32)>,
    ) -> Result<Hlc, EngineError> {
        self.change(Event::OffsetsDeleted { group: group.to_owned(), partitions }, None).await
    }

    /// Keeps a group's snapshot.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn save_group(&self, group: &str, snapshot: Vec<u8>) -> Result<Hlc, EngineError> {
        self.change(Event::GroupSaved { group: group.to_owned(), snapshot }, None).await
    }

    /// Deletes a group and its offsets.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn delete_group(&self, group: &str) -> Result<Hlc, EngineError> {
        self.change(Event::GroupDeleted { group: group.to_owned() }, None).await
    }

    /// The snapshots of all groups.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn group_snapshots(&self) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        Ok(self.shared.groups.snapshots(Cut::ALL)?)
    }

    // ---- Appending ----

    /// Appends batches, each to a partition, in order; one result each.
    pub async fn append(
        &self,
        batches: Vec<(Arc<Topic>, u32, Batch)>,
        durability: Durability,
    ) -> Vec<Result<Appended, EngineError>> {
        self.begin_append(batches, durability).await.results().await
    }

    /// Waits until there is room for batches on their way to the disk, and queues them: from then on
    /// they come before everything that is queued later, whoever goes away.
    pub async fn begin_append(
        &self,
        batches: Vec<(Arc<Topic>, u32, Batch)>,
        durability: Durability,
    ) -> Appending {
        let bytes: usize = batches.iter().map(|(.., batch)| batch.payload.len()).sum();
        let most = self.options.flight_bytes_max / FLIGHT_UNIT;
        let units = (bytes / FLIGHT_UNIT + 1).min(most.max(1)) as u32;
        let flight = Arc::clone(&self.flight).acquire_many_owned(units);
        let permit = flight.await.expect("never closed");
        let count = batches.len();
        let defaults = &self.options.topic_defaults;
        let appends = batches
            .into_iter()
            .map(|(topic, partition, batch)| {
                let append_time = topic.config.is_log_append_time(defaults);
                batch.into_append(&topic, &topic.partitions[partition as usize], append_time)
            })
            .collect();
        let (sender, receiver) = oneshot::channel();
        self.store.append(appends, durability, move |results: Results<EngineError>| {
            // The room is the journal's to give back: a client that went away has not emptied it.
            drop(permit);
            let _ = sender.send(results);
        });
        Appending { receiver, count }
    }

    /// Appends an event, and waits until it is applied.
    pub(crate) async fn change(
        &self,
        event: Event,
        changing: Option<OwnedMutexGuard<()>>,
    ) -> Result<Hlc, EngineError> {
        let applied = self.begin_change(event, changing)?.await;
        applied.unwrap_or(Err(EngineError::Stopping("it is being closed".into())))
    }

    pub(crate) fn begin_change(
        &self,
        event: Event,
        changing: Option<OwnedMutexGuard<()>>,
    ) -> Result<oneshot::Receiver<Result<Hlc, EngineError>>, EngineError> {
        if let Some(why) = self.shared.failed.get() {
            return Err(EngineError::Disk(Arc::clone(why)));
        }
        let Some(applier) = self.applier.lock().clone() else {
            return Err(EngineError::Stopping("it is being closed".into()));
        };
        let log = if event.kind() == KIND_CATALOG { GROUPS_LOG } else { NAMESPACE_LOG };
        let note = self.note_of(&event);
        let append = Append {
            log,
            kind: event.kind(),
            epoch: 0,
            count: 1,
            user: (UserTime(0), UserTime(0)),
            payload: Payload::plain(event.encode().into()),
            crc_from: None,
            note,
        };
        let (done, applied) = oneshot::channel();
        let log = self.store.log(log)?;
        let held = self.logs_made(&event)?;
        self.store.append(vec![append], Durability::Synced, move |results| {
            let result = results.into_iter().next().expect("one append has one result");
            match result {
                Ok(Appended { stamp, base, .. }) => {
                    let entry = log.entry_at(base).ok().flatten();
                    let position = entry.map_or(0, |entry| entry.position);
                    // The applier lives as long as the store.
                    drop(held);
                    let _ = applier.send(Applying { event, stamp, position, done, changing });
                }
                Err(error) => {
                    let _ = done.send(Err(flatten(error)));
                }
            }
        });
        Ok(applied)
    }

    /// The logs of the partitions that an event makes: an event in the journal has to be applied, so what
    /// they are is read before.
    fn logs_made(&self, event: &Event) -> Result<Vec<Arc<Log>>, EngineError> {
        let (first, count) = match event {
            Event::TopicCreated { first_log, partitions, .. } => (*first_log, *partitions),
            Event::PartitionsAdded { first_log, more, .. } => (*first_log, *more),
            _ => return Ok(Vec::new()),
        };
        let logs = (first..first + u64::from(count)).map(|log| self.store.log(LogId(log)));
        Ok(logs.collect::<std::io::Result<_>>()?)
    }

    /// What an event means to the writer's thread. Whoever changes a topic holds `changing`.
    fn note_of(&self, event: &Event) -> Note {
        let topic = |id| self.topic_by_id(id);
        let logs = |topic: &Topic| topic.partitions.iter().map(|held| held.log.id).collect();
        let from = |first: u64, count: u32| (first..first + u64::from(count)).map(LogId).collect();
        let (logs, change) = match event {
            Event::TopicCreated { first_log, partitions, configs, .. } => {
                let config = TopicConfig::new(configs.clone());
                let rule = config.ok().and_then(|config| UserTimeRule::of(&config, Hlc::ZERO));
                match rule {
                    Some(_) => (from(*first_log, *partitions), RuleChange::FromHere),
                    None => return Note::Event,
                }
            }
            Event::PartitionsAdded { id, first_log, more } => {
                match topic(id).and_then(|topic| topic.user_time().map(|rule| rule.since())) {
                    Some(since) => (from(*first_log, *more), RuleChange::Since(since)),
                    None => return Note::Event,
                }
            }
            Event::TopicConfigured { id, configs } => {
                let (Some(topic), Ok(config)) = (topic(id), TopicConfig::new(configs.clone()))
                else {
                    return Note::Event;
                };
                match (topic.user_time(), succeeding(topic.user_time(), &config, Hlc::ZERO)) {
                    (None, None) => return Note::Event,
                    (Some(before), Some(rule)) if Arc::ptr_eq(before, &rule) => return Note::Event,
                    (_, Some(_)) => (logs(&topic), RuleChange::FromHere),
                    (Some(_), None) => (logs(&topic), RuleChange::Nothing),
                }
            }
            Event::TopicDeleted { id } => match topic(id) {
                Some(topic) if topic.user_time().is_some() => (logs(&topic), RuleChange::Nothing),
                _ => return Note::Event,
            },
            _ => return Note::Event,
        };
        Note::Rules { logs, change }
    }

    /// Whether everything of the namespace and of groups that `cut` admits has been applied.
    pub(crate) fn namespace_has(&self, cut: Cut) -> std::io::Result<bool> {
        let applied = Hlc::from_bits(self.shared.applied.load(Ordering::Acquire));
        for log in [NAMESPACE_LOG, GROUPS_LOG] {
            let log = self.store.log(log)?;
            // What the log has in all, the cut has at the most.
            if log.tip().stamp > applied && tip_at(&log, cut)?.stamp > applied {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Batches that are on their way to the disk.
#[derive(Debug)]
pub struct Appending {
    receiver: oneshot::Receiver<Results<EngineError>>,
    count: usize,
}

impl Appending {
    /// One result for each batch, once all are known.
    pub async fn results(self) -> Vec<Result<Appended, EngineError>> {
        match self.receiver.await {
            Ok(results) => results.into_iter().map(|result| result.map_err(flatten)).collect(),
            Err(_) => {
                vec![Err(EngineError::Stopping("it is being closed".into())); self.count]
            }
        }
    }
}

pub(crate) fn flatten(error: AppendError<EngineError>) -> EngineError {
    match error {
        AppendError::Refused(refusal) => refusal,
        AppendError::Time(error) => EngineError::Fenced(error.to_string()),
        AppendError::Disk(why) | AppendError::Index(why) => EngineError::Disk(why),
        AppendError::Stopped(why) => EngineError::Stopping(why),
    }
}

/// Applies an event, and tells whoever asked for it.
fn make_true(shared: &Shared, applying: Applying, logs: &LogSource) {
    let Applying { event, stamp, position, done, changing } = applying;
    let result = match shared.failed.get() {
        Some(why) => Err(EngineError::Disk(Arc::clone(why))),
        None => apply(shared, &event, stamp, position, logs),
    };
    match &result {
        Ok(()) => shared.applied.store(stamp.bits(), Ordering::Release),
        Err(error) => {
            let why: Arc<str> = format!("{error}; restart the service").into();
            if shared.failed.set(why).is_ok() {
                tracing::error!(%error, "an event cannot be applied; no more are taken");
            }
        }
    }
    drop(changing);
    shared.advanced.notify_waiters();
    // Whoever asked may have gone away; the change stays.
    let _ = done.send(result.map(|()| stamp));
}

fn apply(
    shared: &Shared,
    event: &Event,
    stamp: Hlc,
    position: u64,
    logs: &LogSource,
) -> Result<(), EngineError> {
    let deleted = match event {
        Event::TopicDeleted { id } => {
            shared.namespace.read().topic_by_id(id).map(|topic| Arc::clone(&topic.name))
        }
        _ => None,
    };
    shared.namespace.write().apply(event, stamp, logs).map_err(EngineError::Corrupt)?;
    if event.kind() == KIND_CATALOG || deleted.is_some() {
        shared.groups.apply(event, stamp, position, deleted.as_deref())?;
    }
    Ok(())
}

/// Makes the namespace anew from its log, and brings the catalog up to date from both logs.
fn replay_events(store: &Store<Stager>, shared: &Arc<Shared>) -> Result<(), String> {
    let logs = store.log_source();
    let fail = |error: std::io::Error| error.to_string();
    let names = store.log(NAMESPACE_LOG).map_err(fail)?;
    let groups = store.log(GROUPS_LOG).map_err(fail)?;
    let catalog = shared.groups.catalog();
    let lost_to = groups.horizon().lost_to;
    let mut seen = catalog.applied().map_err(|error| error.to_string())?;
    if let Some(applied) = seen {
        if applied.stamp < lost_to {
            tracing::info!("the catalog misses entries that were given up; it is rebuilt");
            seen = None;
        } else if ![&names, &groups].iter().any(|log| has_entry(log, applied).unwrap_or(false)) {
            tracing::warn!("the catalog knows of entries that the journal has not; it is rebuilt");
            seen = None;
        }
    }
    if seen.is_none() {
        refill(&shared.groups, &groups)?;
    }
    // What was restated knows of the deletions before.
    let floor = seen.map_or(lost_to, |seen| seen.stamp);
    let unseen = match seen {
        Some(applied) => groups.offset_at(Cut::through(applied.stamp)).map_err(fail)?,
        None => Offset(0),
    };
    let mut changes = Events::new(groups.as_ref(), unseen).peekable();
    for event in Events::new(names.as_ref(), Offset(0)) {
        let (event, stamp, position) = event?;
        // What a deletion ends in the catalog was committed before it.
        while let Some(change) = changes.next_if(|change| is_before(change, stamp)) {
            replay_change(shared, change?)?;
        }
        let deleted = match &event {
            Event::TopicDeleted { id } => {
                shared.namespace.read().topic_by_id(id).map(|topic| Arc::clone(&topic.name))
            }
            _ => None,
        };
        shared.namespace.write().apply(&event, stamp, &logs)?;
        if deleted.is_some() && stamp > floor {
            let applied = shared.groups.apply(&event, stamp, position, deleted.as_deref());
            applied.map_err(|error| error.to_string())?;
        }
    }
    for change in changes {
        replay_change(shared, change?)?;
    }
    let last = names.tip().stamp.max(groups.tip().stamp);
    shared.applied.store(last.bits(), Ordering::Release);
    Ok(())
}

fn is_before(event: &Result<Replayable, String>, stamp: Hlc) -> bool {
    event.as_ref().is_ok_and(|(_, at, _)| *at < stamp)
}

fn replay_change(shared: &Shared, (event, stamp, position): Replayable) -> Result<(), String> {
    shared.groups.apply(&event, stamp, position, None).map_err(|error| error.to_string())
}

/// Whether a log has the entry up to which the catalog has seen the journal.
fn has_entry(log: &storage::Log, applied: Applied) -> std::io::Result<bool> {
    let tip = log.tip_at(Cut::through(applied.stamp))?;
    let Some(last) = tip.end.0.checked_sub(1) else { return Ok(false) };
    let entry = log.entry_at(Offset(last))?;
    Ok(entry
        .is_some_and(|entry| (entry.stamp, entry.position) == (applied.stamp, applied.position)))
}

/// An event, its stamp, and its position in the journal.
type Replayable = (Event, Hlc, u64);

/// The events of a log, in order.
pub(crate) struct Events<'a> {
    log: &'a storage::Log,
    next: Offset,
    read: std::collections::VecDeque<Piece>,
}

impl<'a> Events<'a> {
    pub(crate) fn new(log: &'a storage::Log, from: Offset) -> Events<'a> {
        Events { log, next: from.max(log.start()), read: std::collections::VecDeque::new() }
    }

    fn try_next(&mut self) -> Result<Option<Replayable>, String> {
        const AT_ONCE: usize = 1 << 20;
        if self.read.is_empty() {
            let pieces = self.log.read(self.next, self.log.end(), AT_ONCE);
            self.read = pieces.map_err(|error| error.to_string())?.into();
        }
        let Some(piece) = self.read.pop_front() else { return Ok(None) };
        self.next = piece.entry.end();
        let payload = piece.read().map_err(|error| error.to_string())?;
        Ok(Some((Event::decode(&payload)?, piece.entry.stamp, piece.entry.position)))
    }
}

impl Iterator for Events<'_> {
    type Item = Result<Replayable, String>;

    fn next(&mut self) -> Option<Self::Item> {
        self.try_next().transpose()
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
