//! Changes of the namespace and of groups: appended like any other entry, applied in journal order,
//! and completed only after they are applied.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use hlc::{Cut, Hlc};
use storage::catalog::AppliedPosition;
use storage::{
    AbortOnPanic, AppendReceipt, AppendResults, Durability, Log, LogAppend, LogId, LogSource,
    Payload, StorageError,
};
use tokio::sync::oneshot;

use crate::active_rules::RuleChange;
use crate::append::{AppendNote, event_append};
use crate::blocking::{block_in_place, tip_at};
use crate::config::TopicConfig;
use crate::engine_core::{ChangesGuard, EngineCore, EngineState};
use crate::error::EngineError;
use crate::marker::DecisionStamp;
use crate::namespace::Topic;
use crate::namespace::event::NamespaceEvent;
use crate::numbering::{KIND_NAMESPACE, NAMESPACE_LOG};
use crate::projection::{CatalogFillError, EngineWings, EventProjection, ProjectedEvent};
use crate::user_time::{UserTimeRule, next_rule};

/// A change that waits to be applied.
pub(crate) struct PendingEvent {
    change: PendingChange,
    stamp: Hlc,
    position: u64,
    done: oneshot::Sender<Result<Hlc, EngineError>>,
    change_guard: Option<ChangesGuard>,
}

/// The change that an event makes.
enum PendingChange {
    Namespace(NamespaceEvent),
    /// The payload of an event of the projection with that log.
    Projected(LogId, Bytes),
}

/// A change in flight. It precedes all changes that begin later.
#[derive(Debug)]
pub struct PendingStamp(oneshot::Receiver<Result<Hlc, EngineError>>);

impl PendingStamp {
    /// Waits until the change is applied; returns its stamp.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn wait(self) -> Result<Hlc, EngineError> {
        self.0.await.unwrap_or_else(|_| Err(EngineError::closing()))
    }

    /// [`PendingStamp::wait`], on a thread that may block.
    fn wait_blocking(self) -> Result<Hlc, EngineError> {
        self.0.blocking_recv().unwrap_or_else(|_| Err(EngineError::closing()))
    }

    /// The result, if it is there.
    fn result(mut self) -> Result<Hlc, EngineError> {
        self.0.try_recv().unwrap_or_else(|_| Err(EngineError::closing()))
    }
}

impl EngineCore {
    pub(crate) fn start_applier(&self) -> std::io::Result<()> {
        let (sender, receiver) = mpsc::channel::<PendingEvent>();
        *self.applier.lock() = Some(sender);
        if self.options.storage.manual_stepping {
            *self.manual_events.lock() = Some(receiver);
            return Ok(());
        }
        let applier = self.event_applier();
        let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn(move || {
            let abort = AbortOnPanic;
            for pending in receiver {
                applier.apply_and_complete(pending);
            }
            std::mem::forget(abort);
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Applies the waiting events under manual stepping; returns true if there were any.
    pub(crate) fn step_applier(&self) -> bool {
        let receiver = self.manual_events.lock();
        let Some(receiver) = receiver.as_ref() else { return false };
        let (applier, mut any) = (self.event_applier(), false);
        for pending in receiver.try_iter() {
            applier.apply_and_complete(pending);
            any = true;
        }
        any
    }

    fn event_applier(&self) -> EventApplier {
        EventApplier {
            shared: Arc::clone(&self.shared),
            wings: Arc::clone(self.wings()),
            logs: self.store.log_source(),
        }
    }

    /// Appends an event of the namespace, and waits until it is applied.
    pub(crate) async fn submit_event(
        &self,
        event: NamespaceEvent,
        changing: Option<ChangesGuard>,
    ) -> Result<Hlc, EngineError> {
        self.begin_submit_event(event, changing)?.wait().await
    }

    pub(crate) fn begin_submit_event(
        &self,
        event: NamespaceEvent,
        changing: Option<ChangesGuard>,
    ) -> Result<PendingStamp, EngineError> {
        let held = self.created_logs(&event)?;
        if let NamespaceEvent::TopicDeleted { id } = &event {
            self.shared.namespace.write().begin_deletion(*id);
        }
        let append = EventAppend {
            log: NAMESPACE_LOG,
            kind: KIND_NAMESPACE,
            payload: event.encode().into(),
            note: self.append_note(&event),
            makes_space: event.reclaims_space(),
            followers: None,
        };
        self.append_event(append, PendingChange::Namespace(event), held, changing)
    }

    /// Appends an event of a projection, and waits until it is applied. `changing` is the lock of
    /// [`EngineCore::lock_changes`], if the event was decided under it: it is released when the
    /// event is applied, even if the caller goes away.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn submit_projected(
        &self,
        projection: &dyn EventProjection,
        payload: Vec<u8>,
        changing: Option<ChangesGuard>,
    ) -> Result<Hlc, EngineError> {
        self.begin_submit_projected(projection, payload, changing)?.wait().await
    }

    /// Begins [`EngineCore::submit_projected`]: when this returns, the event's place among other
    /// events is fixed.
    ///
    /// # Errors
    /// The engine accepts no more events.
    pub fn begin_submit_projected(
        &self,
        projection: &dyn EventProjection,
        payload: Vec<u8>,
        changing: Option<ChangesGuard>,
    ) -> Result<PendingStamp, EngineError> {
        let (log, kind, payload) = (projection.log(), projection.kind(), Bytes::from(payload));
        let change = PendingChange::Projected(log, payload.clone());
        let (note, makes_space, followers) = (AppendNote::Event, false, None);
        let append = EventAppend { log, kind, payload, note, makes_space, followers };
        self.append_event(append, change, Vec::new(), changing)
    }

    /// Appends an event of a projection that decides a transaction, and directly behind it what
    /// follows from it.
    pub(crate) fn append_decision(
        &self,
        projection: &dyn EventProjection,
        payload: Vec<u8>,
        decision: Arc<DecisionStamp>,
        followers: EventFollowers,
    ) -> Result<PendingStamp, EngineError> {
        let (log, kind, payload) = (projection.log(), projection.kind(), Bytes::from(payload));
        let change = PendingChange::Projected(log, payload.clone());
        let (note, makes_space) = (AppendNote::Decision(decision), false);
        let followers = Some(followers);
        let append = EventAppend { log, kind, payload, note, makes_space, followers };
        self.append_event(append, change, Vec::new(), None)
    }

    /// [`EngineCore::submit_projected`], on a thread that may block.
    ///
    /// # Errors
    /// The disk fails.
    pub fn submit_projected_blocking(
        &self,
        projection: &dyn EventProjection,
        payload: Vec<u8>,
    ) -> Result<Hlc, EngineError> {
        self.wait_blocking(self.begin_submit_projected(projection, payload, None)?)
    }

    /// [`EngineCore::submit_event`], on a thread that may block.
    pub(crate) fn submit_event_blocking(&self, event: NamespaceEvent) -> Result<Hlc, EngineError> {
        self.wait_blocking(self.begin_submit_event(event, None)?)
    }

    fn wait_blocking(&self, applied: PendingStamp) -> Result<Hlc, EngineError> {
        if !self.is_manually_stepped() {
            return applied.wait_blocking();
        }
        while self.step() {}
        applied.result()
    }

    /// Appends an event, and hands it to the applier. `created` are the logs that it creates.
    fn append_event(
        &self,
        event: EventAppend,
        change: PendingChange,
        created: Vec<Arc<Log>>,
        changing: Option<ChangesGuard>,
    ) -> Result<PendingStamp, EngineError> {
        if let Some(why) = self.shared.apply_failure.get() {
            return Err(EngineError::Internal(Arc::clone(why)));
        }
        let Some(applier) = self.applier.lock().clone() else {
            return Err(EngineError::closing());
        };
        let EventAppend { log, kind, payload, note, makes_space, followers } = event;
        let mut appends = vec![event_append(log, kind, Payload::without_header(payload), note)];
        let (followers, followed) = followers.unzip();
        appends.extend(followers.into_iter().flatten());
        let (done, applied) = oneshot::channel();
        let log = self.store.log(log)?;
        let shared = Arc::clone(&self.shared);
        let applied_by = move |mut results: AppendResults<EngineError>| {
            let rest = results.split_off(1);
            let result = results.pop().expect("the event has a result");
            if let Some(followed) = followed {
                let _ = followed.send(rest);
            }
            match result {
                Ok(AppendReceipt { stamp, base, .. }) => {
                    let entry = log.entry_at(base).ok().flatten();
                    let position = entry.map_or(0, |entry| entry.position);
                    // The applier lives as long as the store.
                    drop(created);
                    let change_guard = changing;
                    let event = PendingEvent { change, stamp, position, done, change_guard };
                    let _ = applier.send(event);
                }
                Err(error) => {
                    if let PendingChange::Namespace(NamespaceEvent::TopicDeleted { id }) = &change {
                        shared.namespace.write().cancel_deletion(id);
                    }
                    let _ = done.send(Err(error.into()));
                }
            }
        };
        if makes_space {
            self.store.append_with_reserve(appends, Durability::Synced, applied_by);
        } else {
            self.store.append(appends, Durability::Synced, applied_by);
        }
        Ok(PendingStamp(applied))
    }

    /// The logs of the partitions that an event creates. An event in the journal has to be applied,
    /// so the logs are opened before it is appended.
    fn created_logs(&self, event: &NamespaceEvent) -> Result<Vec<Arc<Log>>, EngineError> {
        let (first, count) = match event {
            NamespaceEvent::TopicCreated { first_log, partitions, .. } => (*first_log, *partitions),
            NamespaceEvent::PartitionsAdded { first_log, more, .. } => (*first_log, *more),
            _ => return Ok(Vec::new()),
        };
        let load = || {
            let logs = (first..first + u64::from(count)).map(|log| self.store.log(LogId(log)));
            logs.collect::<Result<_, StorageError>>()
        };
        Ok(block_in_place(load)?)
    }

    /// The meaning of an event to the writer's thread. A caller that changes a topic holds
    /// `change_lock`.
    fn append_note(&self, event: &NamespaceEvent) -> AppendNote {
        let topic = |id| self.shared.namespace.read().topic_by_id(id).cloned();
        let logs = |topic: &Topic| topic.partitions.iter().map(|held| held.log.id).collect();
        let from = |first: u64, count: u32| (first..first + u64::from(count)).map(LogId).collect();
        let (logs, change) = match event {
            NamespaceEvent::TopicCreated { first_log, partitions, configs, .. } => {
                let config = TopicConfig::new(configs.clone());
                let rule =
                    config.ok().and_then(|config| UserTimeRule::from_config(&config, Hlc::ZERO));
                match rule {
                    Some(_) => (from(*first_log, *partitions), RuleChange::FromStamp),
                    None => return AppendNote::Event,
                }
            }
            NamespaceEvent::PartitionsAdded { id, first_log, more } => {
                match topic(id).and_then(|topic| topic.user_time().map(|rule| rule.since())) {
                    Some(since) => (from(*first_log, *more), RuleChange::Since(since)),
                    None => return AppendNote::Event,
                }
            }
            NamespaceEvent::TopicConfigured { id, configs } => {
                let (Some(topic), Ok(config)) = (topic(id), TopicConfig::new(configs.clone()))
                else {
                    return AppendNote::Event;
                };
                match (topic.user_time(), next_rule(topic.user_time(), &config, Hlc::ZERO)) {
                    (None, None) => return AppendNote::Event,
                    (Some(before), Some(rule)) if Arc::ptr_eq(before, &rule) => {
                        return AppendNote::Event;
                    }
                    (_, Some(_)) => (logs(&topic), RuleChange::FromStamp),
                    (Some(_), None) => (logs(&topic), RuleChange::Removed),
                }
            }
            NamespaceEvent::TopicDeleted { id } => match topic(id) {
                Some(topic) if topic.user_time().is_some() => (logs(&topic), RuleChange::Removed),
                _ => return AppendNote::Event,
            },
            _ => return AppendNote::Event,
        };
        AppendNote::Rules { logs, change }
    }

    /// Returns true if all events that `cut` admits have been applied.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn has_applied(&self, cut: Cut) -> Result<bool, StorageError> {
        let applied = Hlc::from_bits(self.shared.applied_stamp.load(Ordering::Acquire));
        let projected = self.wings().events.iter().map(|projection| projection.log());
        for log in std::iter::once(NAMESPACE_LOG).chain(projected) {
            let log = self.store.log(log)?;
            // The cut's part of the log has at most the stamps of the whole log.
            if log.tip().stamp > applied && tip_at(&log, cut)?.stamp > applied {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The entry of an event.
struct EventAppend {
    log: LogId,
    kind: u8,
    payload: Bytes,
    note: AppendNote,
    /// True if it leads to reclaimed space, and so is accepted on a full disk too.
    makes_space: bool,
    /// The appends directly behind it, and the receiver of their results.
    followers: Option<EventFollowers>,
}

/// The appends directly behind an event, and the receiver of their results.
type EventFollowers = (Vec<LogAppend<AppendNote>>, oneshot::Sender<AppendResults<EngineError>>);

/// Applies events, and completes the requests for them.
struct EventApplier {
    shared: Arc<EngineState>,
    wings: Arc<EngineWings>,
    logs: LogSource,
}

impl EventApplier {
    fn apply_and_complete(&self, pending: PendingEvent) {
        let PendingEvent { change, stamp, position, done, change_guard: changing } = pending;
        let shared = &self.shared;
        let held = shared.apply_lock.lock();
        let result = match shared.apply_failure.get() {
            Some(why) => Err(EngineError::Internal(Arc::clone(why))),
            None => self.apply(&change, AppliedPosition { position, stamp }),
        };
        match &result {
            Ok(()) => shared.applied_stamp.store(stamp.bits(), Ordering::Release),
            Err(error) => {
                let why: Arc<str> = format!("{error}; restart the service").into();
                if shared.apply_failure.set(why).is_ok() {
                    tracing::error!(%error, "an event cannot be applied; no more are taken");
                }
            }
        }
        drop(held);
        drop(changing);
        shared.frontier_advanced.notify_waiters();
        // The caller may have gone away; the change stays.
        let _ = done.send(result.map(|()| stamp));
    }

    fn apply(&self, change: &PendingChange, at: AppliedPosition) -> Result<(), EngineError> {
        match change {
            PendingChange::Namespace(event) => {
                let namespace = &self.shared.namespace;
                namespace
                    .write()
                    .apply(event, at.stamp, &self.logs)
                    .map_err(EngineError::Corrupt)?;
                self.shared.accounts.apply(event);
                if let Some(topic) = self.shared.deleted_topic_name(event, at.stamp) {
                    for projection in &self.wings.events {
                        self.project(&**projection, ProjectedEvent::TopicDeleted(&topic), at);
                    }
                }
            }
            PendingChange::Projected(log, payload) => {
                let projection = self.wings.of_log(*log).expect("a wing appended the event");
                self.project(projection, ProjectedEvent::Entry(payload), at);
            }
        }
        Ok(())
    }

    /// Applies an event to the catalog, if there is one. The event is in the journal, from which
    /// the next catalog is built.
    fn project(
        &self,
        projection: &dyn EventProjection,
        event: ProjectedEvent<'_>,
        at: AppliedPosition,
    ) {
        let catalog = self.shared.catalog.get().map_err(CatalogFillError::from);
        if let Err(error) = catalog.and_then(|catalog| projection.apply(&catalog, event, at)) {
            tracing::debug!(%error, "an event waits for the catalog that is being rebuilt");
        }
    }
}
