//! Removing deleted topics of which no records are left.
//!
//! Every version of every topic is in memory, and is rebuilt from log 0 at each start: without a
//! horizon, both would grow with each topic that ever existed. So the log start of log 0 advances
//! once enough of the log is about topics that can be removed. Before that, the rest of the state
//! at that moment, the *horizon*, is restated at the log's end, durably.
//!
//! A topic can be removed once
//! - it was deleted longer ago than
//!   [`CoreOptions::deleted_topic_retention`](crate::CoreOptions): until then cuts can still
//!   show that it existed, whether it ever had a record or not;
//! - all of its records were removed;
//! - no pin names it, or has it in its cut;
//! - its deletion is not needed to rebuild a projection: its state was restated since, or holds
//!   nothing of the topic. Otherwise a rebuilt catalog needs the deletion, for example to end
//!   committed offsets.
//!
//! Invariants:
//! - The horizon is the stamp of the newest deletion of a removed topic. It is the last entry below
//!   the log start, so the log start identifies the restatement that belongs to it. It never falls.
//! - The restatement and the entries from the log start on rebuild all versions with their original
//!   stamps: moments before the horizon read as they did. Only removed topics are missing. A cut
//!   that may miss one is an error ([`Namespace::removed_in`]) if a query asks for all topics, or
//!   for an unknown name.
//! - Of several complete restatements of one horizon the last counts: the log start advances and
//!   topics are removed only after it. An earlier one says no less, but may name a topic whose log
//!   was removed since. Incomplete restatements, and those of other horizons, are skipped.
//! - Topics are removed from memory only after the new log start is on stable storage. So an answer
//!   that was refused because of it is not given after a crash either.
//! - Allocated numbers of logs and of producers are never allocated again.

use std::collections::HashSet;
use std::sync::Arc;

use hlc::{Cut, Hlc};
use storage::Offset;

use crate::error::EngineError;
use crate::maintenance::CoreMaintenance;
use crate::namespace::event::NamespaceEvent;
use crate::namespace::{ReferencedLogs, Topic, TopicId};
use crate::numbering::NAMESPACE_LOG;
use crate::retention::has_elapsed;

/// Advancing the log start is worth it from so many bytes on, however small a share of the log they
/// are.
const TRUNCATION_BYTES_MIN: u64 = 1 << 20;
/// Or from this share of the log on.
const TRUNCATION_SHARE_DIVISOR: u64 = 4;
/// The restatement is at most this share of what is removed. So the log grows to at most about
/// twice of what happened since the horizon.
const RESTATED_SHARE_DIVISOR: u64 = 2;

/// The range of log 0 that is to be removed.
struct NamespaceTruncationPlan {
    topics: HashSet<TopicId>,
    /// The moment that is restated, and the restatement.
    horizon: Hlc,
    events: Vec<NamespaceEvent>,
    /// The new log start.
    start: Offset,
}

/// A topic that may be removed.
struct RemovableTopic {
    id: TopicId,
    name: Arc<str>,
    deleted: Hlc,
}

impl CoreMaintenance<'_> {
    /// Removes deleted topics of which no records are left, if that is worth it; returns how many.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn remove_deleted_topics(self) -> Result<usize, EngineError> {
        let core = Arc::clone(self.core);
        self.core.spawn_blocking(move || core.maintenance().remove_deleted_topics_blocking()).await
    }

    fn remove_deleted_topics_blocking(self) -> Result<usize, EngineError> {
        // Planning may take long, and blocks nobody.
        if self.plan_namespace_truncation()?.is_none() {
            return Ok(0);
        }
        // While the lock is held, no pin is set over a topic that is removed, and no topic is
        // created or deleted.
        let Some(lock) = self.core.lock_changes_blocking() else { return Ok(0) };
        let Some(NamespaceTruncationPlan { topics, horizon, events, start }) =
            self.plan_namespace_truncation()?
        else {
            return Ok(0);
        };
        for event in events {
            self.core.submit_event_blocking(event)?;
        }
        // A catalog on disk that lacks a deletion below the new log start would be rebuilt at the
        // next start.
        self.core.shared.catalog.get()?.flush();
        self.core.store.advance_log_start(&[(NAMESPACE_LOG, start)])?;
        self.core.shared.namespace.write().remove_topics(&topics);
        drop(lock);
        tracing::info!(%horizon, start = start.0, topics = topics.len(), "removed deleted topics");
        Ok(topics.len())
    }

    fn plan_namespace_truncation(self) -> Result<Option<NamespaceTruncationPlan>, EngineError> {
        let mut ended = self.removable_topics();
        if self.truncation_bytes(&ended)?.is_none() {
            return Ok(None);
        }
        for projection in &self.core.wings().events {
            let restated_to = self.core.store.log(projection.log())?.horizon().lost_to;
            if ended.iter().any(|topic| topic.deleted > restated_to) {
                let in_use = projection.topics_in_use(&self.core.shared.catalog.get()?)?;
                ended
                    .retain(|topic| topic.deleted <= restated_to || !in_use.contains(&*topic.name));
            }
        }
        let Some((horizon, start, bytes)) = self.truncation_bytes(&ended)? else { return Ok(None) };
        let topics = ended.into_iter().map(|topic| topic.id).collect();
        let bytes_max = self.core.options.maintenance.restated_bytes_max;
        let events = self.core.shared.namespace.read().restate(horizon, &topics, bytes_max);
        let restated: usize = events.iter().map(|event| event.encode().len()).sum();
        let is_worth_it = restated as u64 <= bytes / RESTATED_SHARE_DIVISOR;
        Ok(is_worth_it.then_some(NamespaceTruncationPlan { topics, horizon, events, start }))
    }

    /// The topics that were deleted long enough ago, have no records left, and that no pin shows.
    fn removable_topics(self) -> Vec<RemovableTopic> {
        // While the clock cannot be trusted, nothing expires by age.
        let Some(now) = self.core.retention_time() else { return Vec::new() };
        let (retention, frontier) =
            (self.core.options.deleted_topic_retention, self.core.frontier());
        let is_empty = |topic: &Topic| {
            topic.partitions.iter().all(|partition| partition.start() >= partition.end())
        };
        let namespace = self.core.shared.namespace.read();
        let ended = |(topic, deleted): (&Arc<Topic>, Option<Hlc>)| {
            let deleted =
                deleted.filter(|at| has_elapsed(at.time(), retention, now) && *at <= frontier)?;
            let is_removable =
                is_empty(topic) && !namespace.pins.shows_topic(&topic.id, topic.created, deleted);
            let Topic { id, name, .. } = &**topic;
            is_removable.then(|| RemovableTopic { id: *id, name: Arc::clone(name), deleted })
        };
        namespace.topics_including_deleted().filter_map(ended).collect()
    }

    /// The horizon of the removal, the new log start, and the bytes below it; `None` if it is not
    /// worth it.
    fn truncation_bytes(
        self,
        ended: &[RemovableTopic],
    ) -> Result<Option<(Hlc, Offset, u64)>, EngineError> {
        let Some(horizon) = ended.iter().map(|topic| topic.deleted).max() else { return Ok(None) };
        let log = self.core.store.log(NAMESPACE_LOG)?;
        let start = log.tip_at(Cut::through(horizon))?.end;
        // A topic that was retained for longer is removed together with the next ones.
        if start <= log.start() {
            return Ok(None);
        }
        let going = log.bytes_between(log.start(), start)?;
        let is_worth_it = going >= TRUNCATION_BYTES_MIN
            || going >= log.bytes()?.div_ceil(TRUNCATION_SHARE_DIVISOR);
        Ok(is_worth_it.then_some((horizon, start, going)))
    }

    /// Makes the store remove the logs of removed topics; returns how many.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn remove_logs(self) -> Result<usize, EngineError> {
        let core = Arc::clone(self.core);
        self.core
            .spawn_blocking(move || {
                let referenced = core.shared.namespace.read().referenced_logs();
                let forget = |referenced: ReferencedLogs| {
                    core.store.remove_logs(&|log| referenced.contains(log))
                };
                Ok(referenced.map_or(Ok(0), forget)?)
            })
            .await
    }

    /// The number of versions of topics in memory, and the bytes of namespace events that are
    /// retained.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn namespace_size(self) -> Result<(usize, u64), EngineError> {
        let versions = self.core.shared.namespace.read().version_count();
        Ok((versions, self.core.store.log(NAMESPACE_LOG)?.bytes()?))
    }
}
