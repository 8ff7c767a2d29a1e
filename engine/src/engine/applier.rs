//! Changes of the namespace and of groups: appended like any other entry, applied in journal order,
//! and completed only after they are applied.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use hlc::{Cut, Hlc, UserTime};
use storage::{
    AbortOnPanic, AppendReceipt, AppendResults, Durability, Log, LogAppend, LogId, LogSource,
    Payload, StorageError,
};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::append::flatten;
use super::{Engine, EngineState};
use crate::append::AppendNote;
use crate::blocking::{block_in_place, tip_at};
use crate::config::TopicConfig;
use crate::error::EngineError;
use crate::namespace::event::{KIND_CATALOG, MetadataEvent};
use crate::namespace::{GROUPS_LOG, NAMESPACE_LOG, Topic};
use crate::user_time::{RuleChange, UserTimeRule, next_rule};

/// An event that waits to be applied.
pub(super) struct PendingEvent {
    event: MetadataEvent,
    stamp: Hlc,
    position: u64,
    done: oneshot::Sender<Result<Hlc, EngineError>>,
    change_guard: Option<OwnedMutexGuard<()>>,
}

impl Engine {
    pub(super) fn start_applier(&self) -> std::io::Result<()> {
        let (sender, receiver) = mpsc::channel::<PendingEvent>();
        *self.applier.lock() = Some(sender);
        if self.options.storage.manual_stepping {
            *self.manual_events.lock() = Some(receiver);
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let logs = self.store.log_source();
        let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn(move || {
            let abort = AbortOnPanic;
            for applying in receiver {
                apply_and_complete(&shared, applying, &logs);
            }
            std::mem::forget(abort);
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Applies the waiting events under manual stepping; whether there were any.
    pub(crate) fn step_applier(&self) -> bool {
        let receiver = self.manual_events.lock();
        let Some(receiver) = receiver.as_ref() else { return false };
        let (logs, mut any) = (self.store.log_source(), false);
        for applying in receiver.try_iter() {
            apply_and_complete(&self.shared, applying, &logs);
            any = true;
        }
        any
    }

    /// Appends an event, and waits until it is applied.
    pub(crate) async fn submit_event(
        &self,
        event: MetadataEvent,
        changing: Option<OwnedMutexGuard<()>>,
    ) -> Result<Hlc, EngineError> {
        let applied = self.begin_submit_event(event, changing)?.await;
        applied.unwrap_or(Err(EngineError::Stopping("it is being closed".into())))
    }

    pub(crate) fn begin_submit_event(
        &self,
        event: MetadataEvent,
        changing: Option<OwnedMutexGuard<()>>,
    ) -> Result<oneshot::Receiver<Result<Hlc, EngineError>>, EngineError> {
        if let Some(why) = self.shared.apply_failure.get() {
            return Err(EngineError::Internal(Arc::clone(why)));
        }
        let Some(applier) = self.applier.lock().clone() else {
            return Err(EngineError::Stopping("it is being closed".into()));
        };
        let log = if event.kind() == KIND_CATALOG { GROUPS_LOG } else { NAMESPACE_LOG };
        let note = self.append_note(&event);
        let append = LogAppend {
            log,
            kind: event.kind(),
            epoch: 0,
            count: 1,
            user: (UserTime(0), UserTime(0)),
            payload: Payload::without_header(event.encode().into()),
            crc_from: None,
            note,
        };
        let (done, applied) = oneshot::channel();
        let log = self.store.log(log)?;
        let held = self.created_logs(&event)?;
        let makes_space = event.reclaims_space();
        let applied_by = move |results: AppendResults<EngineError>| {
            let result = results.into_iter().next().expect("one append has one result");
            match result {
                Ok(AppendReceipt { stamp, base, .. }) => {
                    let entry = log.entry_at(base).ok().flatten();
                    let position = entry.map_or(0, |entry| entry.position);
                    // The applier lives as long as the store.
                    drop(held);
                    let _ = applier.send(PendingEvent {
                        event,
                        stamp,
                        position,
                        done,
                        change_guard: changing,
                    });
                }
                Err(error) => {
                    let _ = done.send(Err(flatten(error)));
                }
            }
        };
        if makes_space {
            self.store.append_with_reserve(vec![append], Durability::Synced, applied_by);
        } else {
            self.store.append(vec![append], Durability::Synced, applied_by);
        }
        Ok(applied)
    }

    /// The logs of the partitions that an event creates. An event in the journal has to be applied,
    /// so the logs are opened before it is appended.
    fn created_logs(&self, event: &MetadataEvent) -> Result<Vec<Arc<Log>>, EngineError> {
        let (first, count) = match event {
            MetadataEvent::TopicCreated { first_log, partitions, .. } => (*first_log, *partitions),
            MetadataEvent::PartitionsAdded { first_log, more, .. } => (*first_log, *more),
            _ => return Ok(Vec::new()),
        };
        let load = || {
            let logs = (first..first + u64::from(count)).map(|log| self.store.log(LogId(log)));
            logs.collect::<Result<_, StorageError>>()
        };
        Ok(block_in_place(load)?)
    }

    /// What an event means to the writer's thread. A caller that changes a topic holds
    /// `change_lock`.
    fn append_note(&self, event: &MetadataEvent) -> AppendNote {
        let topic = |id| self.topic_by_id(id);
        let logs = |topic: &Topic| topic.partitions.iter().map(|held| held.log.id).collect();
        let from = |first: u64, count: u32| (first..first + u64::from(count)).map(LogId).collect();
        let (logs, change) = match event {
            MetadataEvent::TopicCreated { first_log, partitions, configs, .. } => {
                let config = TopicConfig::new(configs.clone());
                let rule =
                    config.ok().and_then(|config| UserTimeRule::from_config(&config, Hlc::ZERO));
                match rule {
                    Some(_) => (from(*first_log, *partitions), RuleChange::FromStamp),
                    None => return AppendNote::Event,
                }
            }
            MetadataEvent::PartitionsAdded { id, first_log, more } => {
                match topic(id).and_then(|topic| topic.user_time().map(|rule| rule.since())) {
                    Some(since) => (from(*first_log, *more), RuleChange::Since(since)),
                    None => return AppendNote::Event,
                }
            }
            MetadataEvent::TopicConfigured { id, configs } => {
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
            MetadataEvent::TopicDeleted { id } => match topic(id) {
                Some(topic) if topic.user_time().is_some() => (logs(&topic), RuleChange::Removed),
                _ => return AppendNote::Event,
            },
            _ => return AppendNote::Event,
        };
        AppendNote::Rules { logs, change }
    }

    /// Whether all events of the namespace and of groups that `cut` admits have been applied.
    pub(crate) fn has_applied(&self, cut: Cut) -> Result<bool, StorageError> {
        let applied = Hlc::from_bits(self.shared.applied_stamp.load(Ordering::Acquire));
        for log in [NAMESPACE_LOG, GROUPS_LOG] {
            let log = self.store.log(log)?;
            // The cut's part of the log has at most the stamps of the whole log.
            if log.tip().stamp > applied && tip_at(&log, cut)?.stamp > applied {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Applies an event, and completes the request for it.
fn apply_and_complete(shared: &EngineState, applying: PendingEvent, logs: &LogSource) {
    let PendingEvent { event, stamp, position, done, change_guard: changing } = applying;
    let held = shared.apply_lock.lock();
    let result = match shared.apply_failure.get() {
        Some(why) => Err(EngineError::Internal(Arc::clone(why))),
        None => apply(shared, &event, stamp, position, logs),
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

fn apply(
    shared: &EngineState,
    event: &MetadataEvent,
    stamp: Hlc,
    position: u64,
    logs: &LogSource,
) -> Result<(), EngineError> {
    shared.namespace.write().apply(event, stamp, logs).map_err(EngineError::Corrupt)?;
    let deleted = shared.deleted_topic_name(event, stamp);
    if event.kind() == KIND_CATALOG || deleted.is_some() {
        let groups = shared.groups();
        let applied =
            groups.and_then(|groups| groups.apply(event, stamp, position, deleted.as_deref()));
        // The event is in the journal, from which the next catalog is built.
        if let Err(error) = applied {
            tracing::debug!(%error, "an event waits for the catalog that is being rebuilt");
        }
    }
    Ok(())
}
