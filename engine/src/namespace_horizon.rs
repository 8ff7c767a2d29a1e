//! Removing deleted topics of which no records are left.
//!
//! Every version of every topic is in memory, and is rebuilt from log 0 at each start: without a
//! horizon, both would grow with each topic that ever existed. So the log start of log 0 advances
//! once enough of the log is about topics that can be removed. Before that, the rest of the state
//! at that moment, the *horizon*, is restated at the log's end, durably.
//!
//! A topic can be removed once
//! - it was deleted longer ago than
//!   [`EngineOptions::deleted_topic_retention`](crate::EngineOptions): until then cuts can still
//!   show that it existed, whether it ever had a record or not;
//! - all of its records were removed;
//! - no pin names it, or has it in its cut;
//! - its deletion is not needed to rebuild committed offsets: they were restated since, or no
//!   offset that is still known was ever committed for it. Otherwise a rebuilt catalog needs the
//!   deletion to end them.
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
use storage::{Log, LogSource, Offset};

use crate::engine::{Engine, EventReader};
use crate::error::EngineError;
use crate::namespace::event::MetadataEvent;
use crate::namespace::{NAMESPACE_LOG, Namespace, ReferencedLogs, Topic, TopicId};
use crate::retention::has_elapsed;
use crate::seek::earliest_bound;

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
    events: Vec<MetadataEvent>,
    /// The new log start.
    start: Offset,
}

/// A topic that may be removed.
struct RemovableTopic {
    id: TopicId,
    name: Arc<str>,
    deleted: Hlc,
}

impl Engine {
    /// Removes deleted topics of which no records are left, if that is worth it; returns how many.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn remove_deleted_topics(self: &Arc<Engine>) -> Result<usize, EngineError> {
        let engine = Arc::clone(self);
        self.spawn_blocking(move || engine.remove_deleted_topics_blocking()).await
    }

    fn remove_deleted_topics_blocking(&self) -> Result<usize, EngineError> {
        // Planning may take long, and blocks nobody.
        if self.plan_namespace_truncation()?.is_none() {
            return Ok(0);
        }
        // While the lock is held, no pin is set over a topic that is removed, and no topic is
        // created or deleted.
        let Some(held) = self.lock_changes_blocking() else { return Ok(0) };
        let Some(NamespaceTruncationPlan { topics, horizon, events, start }) =
            self.plan_namespace_truncation()?
        else {
            return Ok(0);
        };
        for event in events {
            self.submit_event_blocking(event)?;
        }
        // A catalog on disk that lacks a deletion below the new log start would be rebuilt at the
        // next start.
        self.shared.groups()?.catalog().flush();
        self.store.advance_log_start(&[(NAMESPACE_LOG, start)])?;
        self.shared.namespace.write().remove_topics(&topics);
        drop(held);
        tracing::info!(%horizon, start = start.0, topics = topics.len(), "removed deleted topics");
        Ok(topics.len())
    }

    fn plan_namespace_truncation(&self) -> Result<Option<NamespaceTruncationPlan>, EngineError> {
        let mut ended = self.removable_topics();
        if self.truncation_bytes(&ended)?.is_none() {
            return Ok(None);
        }
        let restated_to = self.groups_log.horizon().lost_to;
        if ended.iter().any(|topic| topic.deleted > restated_to) {
            let known = self.shared.groups()?.topics_with_versions()?;
            ended.retain(|topic| topic.deleted <= restated_to || !known.contains(&*topic.name));
        }
        let Some((horizon, start, bytes)) = self.truncation_bytes(&ended)? else { return Ok(None) };
        let topics = ended.into_iter().map(|topic| topic.id).collect();
        let bytes_max = self.options.maintenance.restated_bytes_max;
        let events = self.shared.namespace.read().restate(horizon, &topics, bytes_max);
        let restated: usize = events.iter().map(|event| event.encode().len()).sum();
        let is_worth_it = restated as u64 <= bytes / RESTATED_SHARE_DIVISOR;
        Ok(is_worth_it.then_some(NamespaceTruncationPlan { topics, horizon, events, start }))
    }

    /// The topics that were deleted long enough ago, have no records left, and that no pin shows.
    fn removable_topics(&self) -> Vec<RemovableTopic> {
        // While the clock cannot be trusted, nothing expires by age.
        let Some(now) = self.retention_time() else { return Vec::new() };
        let (kept, frontier) = (self.options.deleted_topic_retention, self.frontier());
        let is_empty =
            |topic: &Topic| topic.partitions.iter().all(|held| held.start() >= held.end());
        let namespace = self.shared.namespace.read();
        let ended = |(topic, deleted): (&Arc<Topic>, Option<Hlc>)| {
            let deleted =
                deleted.filter(|at| has_elapsed(at.time(), kept, now) && *at <= frontier)?;
            let goes =
                is_empty(topic) && !namespace.pins.shows_topic(&topic.id, topic.created, deleted);
            let Topic { id, name, .. } = &**topic;
            goes.then(|| RemovableTopic { id: *id, name: Arc::clone(name), deleted })
        };
        namespace.topics_including_deleted().filter_map(ended).collect()
    }

    /// The horizon of the removal, the new log start, and the bytes below it; `None` if it is not
    /// worth it.
    fn truncation_bytes(
        &self,
        ended: &[RemovableTopic],
    ) -> Result<Option<(Hlc, Offset, u64)>, EngineError> {
        let Some(horizon) = ended.iter().map(|topic| topic.deleted).max() else { return Ok(None) };
        let log = self.store.log(NAMESPACE_LOG)?;
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
    pub async fn remove_logs(self: &Arc<Engine>) -> Result<usize, EngineError> {
        let engine = Arc::clone(self);
        self.spawn_blocking(move || {
            let known = engine.shared.namespace.read().referenced_logs();
            let forget =
                |known: ReferencedLogs| engine.store.remove_logs(&|log| known.contains(log));
            Ok(known.map_or(Ok(0), forget)?)
        })
        .await
    }

    /// How many versions of topics are in memory, and how many bytes of namespace events are
    /// retained.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn namespace_size(&self) -> Result<(usize, u64), EngineError> {
        let versions = self.shared.namespace.read().version_count();
        Ok((versions, self.store.log(NAMESPACE_LOG)?.bytes()?))
    }
}

/// Loads the restatement for the current log start into an empty namespace.
pub(crate) fn load_restatement(
    namespace: &mut Namespace,
    log: &Arc<Log>,
    logs: &LogSource,
) -> Result<(), String> {
    if log.start() == Offset(0) {
        return Ok(());
    }
    let kept_from = earliest_bound(&log.horizon());
    let (mut whole, mut begun) = (None, Vec::new());
    for event in EventReader::new(Arc::clone(log), log.start()) {
        let (event, ..) = event?;
        let MetadataEvent::NamespaceRestated { horizon, part, is_last, .. } = event else {
            continue;
        };
        if Hlc::from_bits(horizon) != kept_from {
            continue;
        }
        if part == 0 {
            begun.clear();
        }
        if part as usize != begun.len() {
            return Err(format!("a part of what was restated is missing. horizon={kept_from}"));
        }
        begun.push(event);
        if is_last {
            whole = Some(std::mem::take(&mut begun));
        }
    }
    let Some(restated) = whole else {
        return Err(format!(
            "the log start of topics advanced without a restatement. horizon={kept_from}"
        ));
    };
    restated.into_iter().try_for_each(|event| namespace.load_restatement(event, logs))
}
