//! Restating the namespace at a horizon, after which all earlier events can be removed; and
//! removing topics.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use hlc::{Cut, Hlc, MomentSelector};
use storage::{Log, LogId, LogSource, Offset};

use super::event::{NamespaceEvent, RestatedChange, RestatedPin, TopicChange, namespace_events};
use super::{Namespace, Topic, TopicId, TopicVersions, last_version};
use crate::log_history::earliest_bound;
use crate::log_transactions::partition_log_of;
use crate::numbering::{FIRST_PARTITION, is_outside_partitions};
use crate::seek_error::SeekError;

/// An upper bound of a change's or a pin's encoded size, without its strings.
const CHANGE_BYTES: usize = 64;
/// The largest encoded length prefix of a settings string.
const LENGTH_BYTES: usize = 3;

impl Namespace {
    /// If a removed topic may have been in `cut`: the bound of the first later cut in which none
    /// was.
    pub fn removed_in(&self, cut: Cut) -> Option<Hlc> {
        self.removed_topics.first_readable_after(cut)
    }

    /// The same for any time between two cuts.
    pub fn removed_between(&self, from: Cut, until: Cut) -> Option<Hlc> {
        self.removed_topics.first_readable_after_range(from, until)
    }

    /// The topic of that name in `cut`, which `selector` requested.
    ///
    /// # Errors
    /// It did not exist, or it may have been removed.
    pub(crate) fn require_topic_at(
        &self,
        name: &str,
        cut: Cut,
        selector: MomentSelector,
    ) -> Result<Arc<Topic>, SeekError> {
        // A name belongs to one topic at a time: if one is found, no removed topic had the name.
        self.topic_at(name, cut).ok_or_else(|| match self.removed_in(cut) {
            Some(earliest) => SeekError::BeforeNames { earliest },
            None => SeekError::NoTopic { topic: name.to_owned(), selector },
        })
    }

    /// All topics in `cut`, by name.
    ///
    /// # Errors
    /// A topic of the cut may have been removed.
    pub(crate) fn require_topics_at(&self, cut: Cut) -> Result<Vec<Arc<Topic>>, SeekError> {
        match self.removed_in(cut) {
            Some(earliest) => Err(SeekError::BeforeNames { earliest }),
            None => Ok(self.topics_at(cut)),
        }
    }

    /// Returns true if a topic exists, or existed and is not removed.
    pub(crate) fn contains_id(&self, id: &TopicId) -> bool {
        self.by_id.contains_key(id)
    }

    /// The number of versions of topics in memory.
    pub(crate) fn version_count(&self) -> usize {
        self.by_id.values().map(Vec::len).sum()
    }

    /// The deletions of topics with stamps above `from` and up to `to`, in order.
    pub(crate) fn deletions(&self, from: Hlc, to: Hlc) -> Vec<(Hlc, TopicId)> {
        let all =
            self.by_id.iter().filter_map(|(id, versions)| Some((last_version(versions)?.1?, *id)));
        let mut deletions: Vec<_> = all.filter(|(at, _)| *at > from && *at <= to).collect();
        deletions.sort_unstable();
        deletions
    }

    /// The logs that may still be read: the logs of known topics, the logs of later topics, and
    /// logs that were never a partition's. `None` if no topic was ever removed: then all logs.
    pub(crate) fn referenced_logs(&self) -> Option<ReferencedLogs> {
        self.removed_topics.spans().next()?;
        let versions = self.by_id.values().filter_map(|versions| Some(last_version(versions)?.0));
        let partitions = versions.flat_map(|topic| &topic.partitions);
        let logs = partitions.map(|partition| partition.log.id).collect();
        Some(ReferencedLogs { logs, next_log: self.next_log })
    }

    /// Returns true if a log is a partition's, or belongs to no partition and is used by itself.
    pub(crate) fn is_in_use(&self, log: LogId) -> bool {
        let log = partition_log_of(log).unwrap_or(log);
        let versions = self.by_id.values().filter_map(|versions| Some(last_version(versions)?.0));
        let mut partitions = versions.flat_map(|topic| &topic.partitions);
        is_outside_partitions(log) || partitions.any(|partition| partition.log.id == log)
    }

    /// The events that restate the namespace at `horizon` once the topics `forgotten` are removed.
    /// Each has at most `bytes_max`, or a single change.
    pub(crate) fn restate(
        &self,
        horizon: Hlc,
        forgotten: &HashSet<TopicId>,
        bytes_max: usize,
    ) -> Vec<NamespaceEvent> {
        let mut changes: Vec<(Hlc, TopicChange)> = Vec::new();
        for (id, versions) in self.by_id.iter().filter(|(id, _)| !forgotten.contains(*id)) {
            let until = versions.partition_point(|(stamp, _)| *stamp <= horizon);
            changes.extend(changes_of(*id, &versions[..until]));
        }
        // In the order in which they happened, because a name may have belonged to several topics
        // in turn.
        changes.sort_unstable_by_key(|(stamp, _)| *stamp);
        let mut spans = self.removed_topics.clone();
        spans.extend(forgotten.iter().filter_map(|id| lifetime_of(self.by_id.get(id)?)));
        let (mut events, mut chunk) = (Vec::new(), NamespaceRestatementChunk::default());
        let mut put = |bytes: usize, push: &mut dyn FnMut(&mut NamespaceRestatementChunk)| {
            if chunk.bytes > 0 && chunk.bytes + bytes > bytes_max {
                events.push(std::mem::take(&mut chunk));
            }
            chunk.bytes += bytes;
            push(&mut chunk);
        };
        for (stamp, change) in changes {
            let bytes = change_bytes_max(&change);
            let mut change = Some(RestatedChange { stamp: stamp.bits(), change });
            put(bytes, &mut |chunk| chunk.changes.extend(change.take()));
        }
        // A pin that was set after the horizon has its own event there.
        for pin in self.pins.restate(horizon) {
            let ids = pin.topics.as_ref().map_or(0, Vec::len);
            let bytes = pin.name.len() + ids * size_of::<TopicId>() + CHANGE_BYTES;
            let mut pin = Some(pin);
            put(bytes, &mut |chunk| chunk.pins.extend(pin.take()));
        }
        events.push(chunk);
        let last = events.len() - 1;
        let spans: Vec<(u64, u64)> = spans.spans().map(|(a, b)| (a.bits(), b.bits())).collect();
        let into_event = |(number, chunk): (usize, NamespaceRestatementChunk)| {
            NamespaceEvent::NamespaceRestated {
                horizon: Cut::through(horizon).bound().bits(),
                part: number as u32,
                next_log: self.next_log,
                producer_ids_below: self.producer_ids_below,
                changes: chunk.changes,
                pins: chunk.pins,
                forgotten: if number == last { spans.clone() } else { Vec::new() },
                is_last: number == last,
            }
        };
        events.into_iter().enumerate().map(into_event).collect()
    }

    /// Loads one event of a restatement, in order, into a namespace that is being rebuilt.
    pub(crate) fn load_restatement(
        &mut self,
        event: NamespaceEvent,
        log: &LogSource,
    ) -> Result<(), String> {
        let NamespaceEvent::NamespaceRestated {
            next_log,
            producer_ids_below,
            changes,
            pins,
            forgotten,
            ..
        } = event
        else {
            return Ok(());
        };
        for RestatedChange { stamp, change } in changes {
            self.apply(&NamespaceEvent::from(change), Hlc::from_bits(stamp), log)?;
        }
        self.pins.load_restatement(pins);
        self.next_log = self.next_log.max(next_log);
        self.producer_ids_below = self.producer_ids_below.max(producer_ids_below);
        let spans = forgotten.into_iter().map(|(a, b)| (Hlc::from_bits(a), Hlc::from_bits(b)));
        self.removed_topics.extend(spans);
        Ok(())
    }

    /// Removes deleted topics from memory.
    pub(crate) fn remove_topics(&mut self, ids: &HashSet<TopicId>) {
        for id in ids {
            let Some(versions) = self.by_id.remove(id) else { continue };
            self.removed_topics.extend(lifetime_of(&versions));
            let Some((topic, _)) = last_version(&versions) else { continue };
            let Some(of_name) = self.names.get_mut(&topic.name) else { continue };
            of_name.retain(|other| other != id);
            if of_name.is_empty() {
                self.names.remove(&topic.name);
            }
        }
        if self.by_id.capacity() > 4 * self.by_id.len().max(1024) {
            self.by_id.shrink_to(2 * self.by_id.len());
            self.names.shrink_to(2 * self.names.len());
        }
    }
}

/// The logs that may still be read.
pub(crate) struct ReferencedLogs {
    logs: HashSet<LogId>,
    next_log: u64,
}

impl ReferencedLogs {
    pub(crate) fn contains(&self, log: LogId) -> bool {
        // All other numbers are not of partitions so far: logs of events and files, and logs that
        // are allocated later. A transaction log goes with its partition's.
        let log = partition_log_of(log).unwrap_or(log);
        let was_given_out = (FIRST_PARTITION..self.next_log).contains(&log.0);
        !was_given_out || self.logs.contains(&log)
    }
}

/// The content of one event.
#[derive(Default)]
struct NamespaceRestatementChunk {
    changes: Vec<RestatedChange>,
    pins: Vec<RestatedPin>,
    bytes: usize,
}

/// The span from creation to deletion, of a deleted topic.
fn lifetime_of(versions: &TopicVersions) -> Option<(Hlc, Hlc)> {
    Some((versions.first()?.0, last_version(versions)?.1?))
}

/// The changes that lead from each version of a topic to the next.
fn changes_of(
    id: TopicId,
    versions: &[(Hlc, Option<Arc<Topic>>)],
) -> impl Iterator<Item = (Hlc, TopicChange)> {
    let before = std::iter::once(None).chain(versions.iter().map(|(_, topic)| topic.as_deref()));
    before.zip(versions).map(move |(before, (stamp, after))| {
        let change = match (before, after.as_deref()) {
            (_, None) => TopicChange::Deleted { id },
            (None, Some(after)) => TopicChange::Created {
                name: after.name.to_string(),
                id,
                first_log: first_log(after, 0),
                partitions: after.partitions.len() as u32,
                configs: after.config.overrides().clone(),
            },
            (Some(before), Some(after)) if after.partitions.len() > before.partitions.len() => {
                let count = before.partitions.len();
                let more = (after.partitions.len() - count) as u32;
                TopicChange::PartitionsAdded { id, first_log: first_log(after, count), more }
            }
            (_, Some(after)) => {
                TopicChange::Configured { id, configs: after.config.overrides().clone() }
            }
        };
        (*stamp, change)
    })
}

fn first_log(topic: &Topic, index: usize) -> u64 {
    topic.partitions.get(index).map_or(0, |partition| partition.log.id.0)
}

/// An upper bound of a change's encoded size.
fn change_bytes_max(change: &TopicChange) -> usize {
    let texts = match change {
        TopicChange::Created { name, configs, .. } => name.len() + config_bytes_max(configs),
        TopicChange::Configured { configs, .. } => config_bytes_max(configs),
        TopicChange::Deleted { .. } | TopicChange::PartitionsAdded { .. } => 0,
    };
    texts + CHANGE_BYTES
}

fn config_bytes_max(configs: &BTreeMap<String, String>) -> usize {
    configs.iter().map(|(key, value)| key.len() + value.len() + 2 * LENGTH_BYTES).sum()
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
    for event in namespace_events(Arc::clone(log), log.start()) {
        let (event, ..) = event?;
        let NamespaceEvent::NamespaceRestated { horizon, part, is_last, .. } = event else {
            continue;
        };
        if Hlc::from_bits(horizon) != kept_from {
            continue;
        }
        if part == 0 {
            begun.clear();
        }
        if part as usize != begun.len() {
            return Err(format!(
                "a part of the restatement for the horizon {kept_from} is missing"
            ));
        }
        begun.push(event);
        if is_last {
            whole = Some(std::mem::take(&mut begun));
        }
    }
    let Some(restated) = whole else {
        return Err(format!(
            "the log start of topics advanced without a restatement for the horizon {kept_from}"
        ));
    };
    restated.into_iter().try_for_each(|event| namespace.load_restatement(event, logs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_logs_that_partitions_had_are_not_known() {
        let mut namespace = Namespace::new();
        assert!(namespace.referenced_logs().is_none(), "nothing was removed");
        namespace.next_log = 10;
        namespace.removed_topics.extend([(Hlc::from_bits(1), Hlc::from_bits(2))]);
        let known = namespace.referenced_logs().unwrap();
        for log in [0, 1, 10, 11, 1 << 48, u64::MAX] {
            assert!(known.contains(LogId(log)), "{log}");
        }
        for log in 2..10 {
            assert!(!known.contains(LogId(log)), "{log}");
        }
    }
}
