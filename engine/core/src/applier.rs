//! Changes of the namespace and of groups: appended like any other entry, applied in journal order once
//! they are visible, and completed only after they are applied.
//!
//! The applier applies published entries, whoever appended them. A request for a change waits until its
//! stamp is applied, and has no part in that.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use hlc::{Cut, Hlc};
use parking_lot::Mutex;
use storage::catalog::AppliedPosition;
use storage::{
    AbortOnPanic, AppendReceipt, AppendResults, Durability, Entry, Log, LogAppend, LogId,
    LogSource, Payload, StorageError,
};
use tokio::sync::oneshot;

use crate::active_rules::RuleChange;
use crate::append::{AppendNote, event_append};
use crate::blocking::{block_in_place, tip_at};
use crate::config::TopicConfig;
use crate::engine_core::{ChangesGuard, EngineCore, EngineState};
use crate::error::EngineError;
use crate::marker::DecisionStamp;
use crate::namespace::event::NamespaceEvent;
use crate::namespace::{Topic, TopicId};
use crate::numbering::{KIND_NAMESPACE, NAMESPACE_LOG};
use crate::projection::{CatalogFillError, EngineWings, EventProjection, ProjectedEvent};
use crate::user_time::{UserTimeRule, next_rule};

/// An event that is visible.
pub(crate) struct PublishedEvent {
    pub(crate) log: LogId,
    pub(crate) payload: Bytes,
    pub(crate) at: AppliedPosition,
}

/// The position of an event, as a catalog records it.
pub(crate) fn applied_position(entry: &Entry) -> AppliedPosition {
    AppliedPosition { position: entry.position, stamp: entry.stamp }
}

/// The way of events from the writer's thread to the applier.
pub(crate) struct EventSender {
    /// The events of the group that is being published.
    group: Vec<PublishedEvent>,
    applier: mpsc::Sender<ApplierTask>,
}

impl EventSender {
    pub(crate) fn new(applier: mpsc::Sender<ApplierTask>) -> EventSender {
        EventSender { group: Vec::new(), applier }
    }

    pub(crate) fn add(&mut self, event: PublishedEvent) {
        self.group.push(event);
    }

    /// Sends what was added: it is visible now.
    pub(crate) fn send(&mut self) {
        for event in self.group.drain(..) {
            // The applier ends with the engine. The next start applies what is left.
            let _ = self.applier.send(ApplierTask::Apply(event));
        }
    }
}

/// A task of the applier.
pub(crate) enum ApplierTask {
    Apply(PublishedEvent),
    End,
}

/// A request whose event is visible, and waits until it is applied.
struct EventWaiter {
    stamp: Hlc,
    done: oneshot::Sender<Result<Hlc, EngineError>>,
    change_guard: Option<ChangesGuard>,
}

/// The requests that wait until their events are applied, by stamp.
#[derive(Default)]
pub(crate) struct EventWaiters(Mutex<VecDeque<EventWaiter>>);

impl EngineState {
    /// Completes a request now or once its event is applied.
    fn complete_when_applied(&self, waiter: EventWaiter) {
        let mut waiters = self.event_waiters.0.lock();
        let result = if self.applied_stamp() >= waiter.stamp {
            Ok(waiter.stamp)
        } else if let Some(why) = self.apply_failure.get() {
            Err(EngineError::Internal(Arc::clone(why)))
        } else {
            return waiters.push_back(waiter);
        };
        drop(waiters);
        drop(waiter.change_guard);
        let _ = waiter.done.send(result);
    }

    /// The stamp of the last event that is applied.
    pub(crate) fn applied_stamp(&self) -> Hlc {
        Hlc::from_bits(self.applied_stamp.load(Ordering::Acquire))
    }

    /// Notes that events are applied up to a stamp, or that none will be any more. Returns the requests
    /// that waited for that.
    fn take_applied(&self, applied: Option<Hlc>) -> Vec<EventWaiter> {
        let mut waiters = self.event_waiters.0.lock();
        let count = match applied {
            Some(stamp) => {
                self.applied_stamp.store(stamp.bits(), Ordering::Release);
                waiters.partition_point(|waiter| waiter.stamp <= stamp)
            }
            None => waiters.len(),
        };
        waiters.drain(..count).collect()
    }
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
        let receiver = self.published_events.lock().take().expect("an engine starts once");
        self.accepts_events.store(true, Ordering::Release);
        if self.options.storage.manual_stepping {
            *self.manual_events.lock() = Some(receiver);
            return Ok(());
        }
        let applier = self.event_applier();
        let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn(move || {
            let abort = AbortOnPanic;
            while let Ok(ApplierTask::Apply(event)) = receiver.recv() {
                applier.apply_and_complete(&event);
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
        while let Ok(ApplierTask::Apply(event)) = receiver.try_recv() {
            applier.apply_and_complete(&event);
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
        let deleted = match event {
            NamespaceEvent::TopicDeleted { id } => Some(id),
            _ => None,
        };
        self.append_event(append, deleted, held, changing)
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
        let (note, makes_space, followers) = (AppendNote::Event, false, None);
        let append = EventAppend { log, kind, payload, note, makes_space, followers };
        self.append_event(append, None, Vec::new(), changing)
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
        let (note, makes_space) = (AppendNote::Decision(decision), false);
        let followers = Some(followers);
        let append = EventAppend { log, kind, payload, note, makes_space, followers };
        self.append_event(append, None, Vec::new(), None)
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

    /// Appends an event. `deleted` is the topic that it deletes, and `created` are the logs that it
    /// creates.
    fn append_event(
        &self,
        event: EventAppend,
        deleted: Option<TopicId>,
        created: Vec<Arc<Log>>,
        changing: Option<ChangesGuard>,
    ) -> Result<PendingStamp, EngineError> {
        if let Some(why) = self.shared.apply_failure.get() {
            return Err(EngineError::Internal(Arc::clone(why)));
        }
        if !self.accepts_events.load(Ordering::Acquire) {
            return Err(EngineError::closing());
        }
        let EventAppend { log, kind, payload, note, makes_space, followers } = event;
        let mut appends = vec![event_append(log, kind, Payload::without_header(payload), note)];
        let (followers, followed) = followers.unzip();
        appends.extend(followers.into_iter().flatten());
        let (done, applied) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        let applied_by = move |mut results: AppendResults<EngineError>| {
            let rest = results.split_off(1);
            let result = results.pop().expect("the event has a result");
            if let Some(followed) = followed {
                let _ = followed.send(rest);
            }
            match result {
                Ok(AppendReceipt { stamp, .. }) => {
                    // The applier lives as long as the store.
                    drop(created);
                    let change_guard = changing;
                    shared.complete_when_applied(EventWaiter { stamp, done, change_guard });
                }
                Err(error) => {
                    if let Some(id) = deleted {
                        shared.namespace.write().cancel_deletion(&id);
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
        let applied = self.shared.applied_stamp();
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
    fn apply_and_complete(&self, event: &PublishedEvent) {
        let (shared, stamp) = (&self.shared, event.at.stamp);
        let held = shared.apply_lock.lock();
        let result = match shared.apply_failure.get() {
            Some(why) => Err(EngineError::Internal(Arc::clone(why))),
            None => self.apply(event),
        };
        if let Err(error) = &result {
            let why: Arc<str> = format!("{error}; restart the service").into();
            if shared.apply_failure.set(why).is_ok() {
                tracing::error!(%error, "an event cannot be applied; no more are taken");
            }
        }
        let mut waiters = shared.take_applied(result.is_ok().then_some(stamp));
        drop(held);
        waiters.iter_mut().for_each(|waiter| drop(waiter.change_guard.take()));
        shared.frontier_advanced.notify_waiters();
        for EventWaiter { stamp, done, .. } in waiters {
            // The caller may have gone away; the change stays.
            let _ = done.send(result.clone().map(|()| stamp));
        }
    }

    fn apply(&self, published: &PublishedEvent) -> Result<(), EngineError> {
        let PublishedEvent { log, payload, at } = published;
        if *log != NAMESPACE_LOG {
            let projection = self.wings.of_log(*log).expect("a wing has this log");
            self.project(projection, ProjectedEvent::Entry(payload), *at);
            return Ok(());
        }
        let event = NamespaceEvent::decode(payload).map_err(EngineError::Corrupt)?;
        let namespace = &self.shared.namespace;
        namespace.write().apply(&event, at.stamp, &self.logs).map_err(EngineError::Corrupt)?;
        self.shared.accounts.apply(&event);
        if let Some(topic) = self.shared.deleted_topic_name(&event, at.stamp) {
            for projection in &self.wings.events {
                self.project(&**projection, ProjectedEvent::TopicDeleted(&topic), *at);
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
