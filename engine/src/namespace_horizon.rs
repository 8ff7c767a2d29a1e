//! Forgetting topics of which nothing is kept.
//!
//! Every version of every topic is held in memory, and is rebuilt from log 0 at each start: without a horizon,
//! both would grow with each topic that ever was. So the beginning of log 0 is given up once enough of it is
//! about topics that can be forgotten. The rest of the state at that moment, the *horizon*, is first
//! restated at the log's end, durably.
//!
//! A topic can be forgotten once
//! - it was deleted longer ago than [`EngineOptions::deleted_topic_retention`](crate::EngineOptions): until
//!   then cuts can still show that it was there, whether it ever had a record or not;
//! - all of its records were given up;
//! - no pin names it, or has it in its cut;
//! - its deletion is not needed to rebuild committed offsets: they were restated since, or none that is still
//!   known was ever committed for it. Otherwise a rebuilt catalog needs the deletion to end them.
//!
//! What holds true of it:
//! - The horizon is the stamp of the newest deletion of a topic that is forgotten. It is the last entry that
//!   was given up, so the log's start tells which restatement belongs to it. It never falls.
//! - The restatement and the entries from the log's start on rebuild all versions with their original stamps:
//!   moments before the horizon read as they did. Only forgotten topics are missing. A cut that may miss one
//!   is an error ([`Namespace::removed_in`]) when all topics are asked for, or one by an unknown name.
//! - Of several complete restatements of one horizon the last counts: the log is given up and topics are
//!   forgotten only after it. An earlier one says no less, but may name a topic whose log was forgotten since.
//!   Incomplete ones, and those of other horizons, are skipped.
//! - Nothing is forgotten in memory before the log's start is on stable storage. So an answer that was
//!   refused for it is not given after a crash either.
//! - Numbers of logs and of producers that were given out are not given out again.

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

/// So many bytes are worth the effort, however small a part of the log they are.
const TRUNCATION_BYTES_MIN: u64 = 1 << 20;
/// Or this part of the log.
const TRUNCATION_SHARE_DIVISOR: u64 = 4;
/// What is written anew is at most this part of what goes: so the log grows to at most about twice of what
/// happened since the horizon.
const RESTATED_SHARE_DIVISOR: u64 = 2;

/// What of log 0 is to go.
struct NamespaceTruncationPlan {
    topics: HashSet<TopicId>,
    /// The moment that is restated, and what there is to say.
    horizon: Hlc,
    events: Vec<MetadataEvent>,
    /// The first offset that stays.
    start: Offset,
}

/// A topic that may be forgotten.
struct RemovableTopic {
    id: TopicId,
    name: Arc<str>,
    deleted: Hlc,
}

impl Engine {
    /// Forgets topics that were deleted and of which nothing is kept, if that is worth the effort; how many.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn remove_deleted_topics(self: &Arc<Engine>) -> Result<usize, EngineError> {
        let engine = Arc::clone(self);
        self.spawn_blocking(move || engine.remove_deleted_topics_blocking()).await
    }

    fn remove_deleted_topics_blocking(&self) -> Result<usize, EngineError> {
        // The look may take long, and holds nobody up.
        if self.plan_namespace_truncation()?.is_none() {
            return Ok(0);
        }
        // No pin is set over a topic while it is forgotten, and none is made or deleted.
        let Some(held) = self.lock_changes_blocking() else { return Ok(0) };
        let Some(NamespaceTruncationPlan { topics, horizon, events, start }) =
            self.plan_namespace_truncation()?
        else {
            return Ok(0);
        };
        for event in events {
            self.submit_event_blocking(event)?;
        }
        // One that has not seen a deletion that the log has no more would be made anew at the next start.
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

    /// The topics that were deleted long ago, of which no record is kept and that no pin shows.
    fn removable_topics(&self) -> Vec<RemovableTopic> {
        // By a clock that cannot be trusted nothing is long ago.
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

    /// The horizon by which topics are forgotten, the first offset that stays then, and how many bytes go; if
    /// those are worth the effort.
    fn truncation_bytes(
        &self,
        ended: &[RemovableTopic],
    ) -> Result<Option<(Hlc, Offset, u64)>, EngineError> {
        let Some(horizon) = ended.iter().map(|topic| topic.deleted).max() else { return Ok(None) };
        let log = self.store.log(NAMESPACE_LOG)?;
        let start = log.tip_at(Cut::through(horizon))?.end;
        // One that was kept for longer than others goes with the next of them.
        if start <= log.start() {
            return Ok(None);
        }
        let going = log.bytes_between(log.start(), start)?;
        let is_worth_it = going >= TRUNCATION_BYTES_MIN
            || going >= log.bytes()?.div_ceil(TRUNCATION_SHARE_DIVISOR);
        Ok(is_worth_it.then_some((horizon, start, going)))
    }

    /// Lets the store forget the logs of topics that are forgotten; how many it forgot.
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

    /// How many versions of topics are in memory, and how many bytes of events of the namespace are kept.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn namespace_size(&self) -> Result<(usize, u64), EngineError> {
        let versions = self.shared.namespace.read().version_count();
        Ok((versions, self.store.log(NAMESPACE_LOG)?.bytes()?))
    }
}

/// Begins a namespace with what was restated for the start that its log has.
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
