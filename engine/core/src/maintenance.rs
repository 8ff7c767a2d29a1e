//! Maintenance of the engine: it applies retention, compacts, rolls segments that have been open
//! for long, and reclaims space.
//!
//! Each step can be called by itself, as tests do. A service runs `Engine::run_maintenance`.

mod compact;

use std::sync::Arc;
use std::time::Duration;

use hlc::{Cut, Hlc, SysTime};
use storage::backup::BackupPoint;
use storage::{Log, LogId, Offset, ReclaimStats, StorageError};

use crate::compaction::CompactionSettings;
use crate::config::{TopicConfig, TopicDefaults};
use crate::engine_core::EngineCore;
use crate::error::EngineError;
use crate::namespace::{Partition, Topic, TopicId};
use crate::partition_failures::MaintenanceRound;
use crate::retention::{RetentionDecision, RetentionLog, RetentionRules};

/// The number of partitions whose log starts advance under one lock of pins and topics, because
/// others wait for that lock.
const RETENTION_BATCH_MAX: usize = 64;
/// The number of disk failures after which a round stops.
const FAILURES_MAX: u32 = 8;

impl RetentionLog for Log {
    fn start(&self) -> Offset {
        self.start()
    }

    fn end(&self) -> Offset {
        self.end()
    }

    fn offset_at(&self, cut: Cut) -> Result<Offset, StorageError> {
        self.offset_at(cut)
    }

    fn bytes_to(&self, offset: Offset) -> Result<u64, StorageError> {
        self.bytes_before(offset)
    }

    fn base_of(&self, offset: Offset) -> Result<Offset, StorageError> {
        let holding = self.entry_at(offset)?.filter(|entry| entry.base <= offset);
        Ok(holding.map_or(offset, |entry| entry.base))
    }
}

/// Maintenance of topics and of the store.
#[derive(Clone, Copy, Debug)]
pub struct CoreMaintenance<'a> {
    pub(crate) core: &'a Arc<EngineCore>,
}

impl EngineCore {
    /// Maintenance of topics and of the store.
    pub fn maintenance(self: &Arc<EngineCore>) -> CoreMaintenance<'_> {
        CoreMaintenance { core: self }
    }
}

impl CoreMaintenance<'_> {
    /// Begins a backup: see [`storage::Store::begin_backup`]. It waits for the disk.
    ///
    /// # Errors
    /// The store has stopped, or is closing.
    pub fn begin_backup(self) -> Result<BackupPoint, StorageError> {
        self.core.store.begin_backup()
    }

    /// The age of the oldest backup in progress.
    pub fn backup_age(self) -> Option<Duration> {
        let begun = self.core.store.oldest_backup()?;
        Some(Duration::from_millis(self.core.wall_now().0.saturating_sub(begun.0)))
    }

    /// The bytes of files that are kept for backups alone. It looks at the disk.
    pub fn backup_held_bytes(self) -> u64 {
        self.core.store.backup_held_bytes()
    }

    /// Filters `logs` to those that are in use.
    pub fn logs_in_use(self, logs: impl IntoIterator<Item = LogId>) -> Vec<LogId> {
        let namespace = self.core.shared.namespace.read();
        logs.into_iter().filter(|log| namespace.is_in_use(*log)).collect()
    }

    /// Every existing or deleted topic whose records can ever be removed, with its rules. A removed
    /// topic has no records.
    pub fn retention_rules(self) -> Vec<(Arc<Topic>, RetentionRules)> {
        let (defaults, retention) =
            (self.core.topic_defaults(), self.core.options.deleted_topic_retention);
        let namespace = self.core.shared.namespace.read();
        namespace
            .topics_including_deleted()
            .map(|(topic, deleted)| {
                (
                    Arc::clone(topic),
                    RetentionRules::new(&topic.config, &defaults, deleted, retention),
                )
            })
            .filter(|(_, rules)| *rules != RetentionRules::default())
            .collect()
    }

    /// The same for one topic; `None` if it was removed meanwhile.
    pub(crate) fn retention_rules_of(self, id: &TopicId) -> Option<(Arc<Topic>, RetentionRules)> {
        let (defaults, retention) =
            (self.core.topic_defaults(), self.core.options.deleted_topic_retention);
        let namespace = self.core.shared.namespace.read();
        let (topic, deleted) = namespace.topic_including_deleted(id)?;
        Some((Arc::clone(topic), RetentionRules::new(&topic.config, &defaults, deleted, retention)))
    }
}

impl CoreMaintenance<'_> {
    /// Applies retention and removes expired pins; returns how many log starts advanced.
    ///
    /// # Errors
    /// The disk fails, or a partition cannot be read. The first error is returned; the other
    /// partitions are still processed.
    pub async fn apply_retention(self) -> Result<usize, EngineError> {
        if self.core.retention_time().is_some() {
            self.core.pins().remove_expired().await?;
        }
        let core = Arc::clone(self.core);
        self.core.spawn_blocking(move || core.maintenance().apply_retention_blocking()).await
    }

    fn apply_retention_blocking(self) -> Result<usize, EngineError> {
        // While the clock cannot be trusted, nothing expires by age. Retention by size needs no
        // clock.
        let now = self.core.retention_time().unwrap_or(SysTime(0));
        // Scanning all partitions may take long, and blocks nobody.
        let (mut due, mut round) = (Vec::new(), self.core.failures.start_round("apply retention"));
        for (topic, rules) in self.retention_rules() {
            for partition in &topic.partitions {
                let start = self.new_log_start(&topic, &rules, partition, now);
                if let Some(Some(_)) = round.record(&topic.name, partition, start) {
                    due.push((topic.id, Arc::clone(partition)));
                }
            }
        }
        let mut given_up = 0;
        for due in due.chunks(RETENTION_BATCH_MAX) {
            // Pins do not change between the decision and the moment at which the horizon is on
            // stable storage.
            let Some(lock) = self.core.lock_changes_blocking() else { break };
            given_up += self.advance_due_log_starts(due, &mut round)?;
            drop(lock);
        }
        round.finish()?;
        Ok(given_up)
    }

    /// Advances the log starts that are due in some partitions, by the current pins and settings.
    fn advance_due_log_starts(
        self,
        due: &[(TopicId, Arc<Partition>)],
        round: &mut MaintenanceRound<'_>,
    ) -> Result<usize, EngineError> {
        let now = self.core.retention_time().unwrap_or(SysTime(0));
        let mut starts = Vec::new();
        for (id, partition) in due {
            let Some((topic, rules)) = self.retention_rules_of(id) else { continue };
            let start = self.new_log_start(&topic, &rules, partition, now);
            let Some(Some(start)) = round.record(&topic.name, partition, start) else { continue };
            let ended = self.core.transaction_log_start(partition, start);
            if let Some(ended) = round.record(&topic.name, partition, ended) {
                starts.push([(partition.log.id, start), ended]);
            }
        }
        self.advance_log_starts(&starts)?;
        Ok(starts.len())
    }

    /// The log start that the rules demand, if it is above the current one.
    fn new_log_start(
        self,
        topic: &Topic,
        rules: &RetentionRules,
        partition: &Partition,
        now: SysTime,
    ) -> Result<Option<Offset>, EngineError> {
        let Some(RetentionDecision { start, reason: why }) = rules.decide(&*partition.log, now)?
        else {
            return Ok(None);
        };
        if self.core.pins().hold_on(&topic.id, partition)?.is_some() {
            return Ok(None);
        }
        let (topic, partition) = (&*topic.name, partition.index);
        tracing::debug!(topic, partition, start = start.0, ?why, "log start advances");
        Ok(Some(start))
    }

    /// Advances all log starts at once, each with that of its transaction log. If that fails,
    /// advances each pair by itself.
    fn advance_log_starts(self, starts: &[[(LogId, Offset); 2]]) -> Result<(), StorageError> {
        if starts.is_empty() || self.core.store.advance_log_start(starts.as_flattened()).is_ok() {
            return Ok(());
        }
        let (mut failed, mut first) = (0, None);
        for start in starts {
            let Err(error) = self.core.store.advance_log_start(start) else { continue };
            // Corruption concerns one partition. A disk that fails often fails for all.
            failed += u32::from(!error.is_corruption());
            first.get_or_insert(error);
            if failed >= FAILURES_MAX {
                break;
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Reclaims the space of what was removed before the last call.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn reclaim(self) -> Result<ReclaimStats, EngineError> {
        let core = Arc::clone(self.core);
        self.core.spawn_blocking(move || Ok(core.store.reclaim()?)).await
    }

    /// Compacts the partitions that are due, and rolls the open segment if it is due; returns how
    /// many partitions were compacted.
    ///
    /// # Errors
    /// The disk fails, or a partition cannot be compacted. The first error is returned; the other
    /// partitions are still processed.
    pub async fn compact_due(self) -> Result<usize, EngineError> {
        // Otherwise an expired pin could be valid again over what is compacted now, if the clock
        // goes back a little.
        if self.core.retention_time().is_some() {
            self.core.pins().remove_expired().await?;
        }
        let core = Arc::clone(self.core);
        self.core
            .spawn_blocking(move || {
                let maintenance = core.maintenance();
                // Records that must be compacted by now do not wait for the next round.
                let indexed = match maintenance.roll_old_segment() {
                    SegmentRoll::ForCompaction => maintenance.index_rolled_segment(),
                    SegmentRoll::Old | SegmentRoll::None => Ok(()),
                };
                let (mut count, mut round) = (0, core.failures.start_round("compact"));
                for topic in core.topics().all() {
                    for partition in &topic.partitions {
                        let compacted = maintenance.compact_if_due(&topic, partition);
                        let compacted = round.record(&topic.name, partition, compacted);
                        count += usize::from(compacted == Some(true));
                    }
                }
                round.finish()?;
                indexed?;
                Ok(count)
            })
            .await
    }

    /// Waits until the open segment is rolled, and indexes it.
    fn index_rolled_segment(self) -> Result<(), StorageError> {
        self.core.store.sync()?;
        self.core.store.run_maintenance()
    }

    /// Rolls the open segment, whatever its age.
    ///
    /// # Errors
    /// The store has stopped.
    pub async fn roll_segment(self) -> Result<(), EngineError> {
        let core = Arc::clone(self.core);
        self.core
            .spawn_blocking(move || {
                core.store.roll_segment();
                // The sync comes after everything that was queued before it, and after the roll.
                Ok(core.store.sync()?)
            })
            .await
    }

    /// Indexes and sorts rolled segments. Called where no background thread does it.
    ///
    /// # Errors
    /// The disk fails. The next call tries the rest again.
    pub async fn index_and_sort(self) -> Result<(), EngineError> {
        let core = Arc::clone(self.core);
        self.core.spawn_blocking(move || Ok(core.store.run_maintenance()?)).await
    }

    /// Rolls the open segment once it has been open for longer than any topic allows.
    fn roll_old_segment(self) -> SegmentRoll {
        let (defaults, topics) = (self.core.topic_defaults(), self.core.topics().all());
        let longest = topics.iter().map(|topic| open_age_max(&topic.config, &defaults)).min();
        let (Some(longest), Some(since)) = (longest, self.core.store.open_since()) else {
            return SegmentRoll::None;
        };
        let open = Duration::from_millis(self.core.wall_now().0.saturating_sub(since.time().0));
        let is_old = open >= longest.max(self.core.options.maintenance.segment_age_min);
        let waits = |topic: &Arc<Topic>| is_compaction_overdue(topic, &defaults, since, open);
        let roll = if topics.iter().any(waits) {
            SegmentRoll::ForCompaction
        } else if is_old {
            SegmentRoll::Old
        } else {
            return SegmentRoll::None;
        };
        self.core.store.roll_segment();
        roll
    }
}

/// The reason that the open segment was rolled.
enum SegmentRoll {
    None,
    /// It was open for longer than any topic allows.
    Old,
    /// It holds records that must be compacted by now.
    ForCompaction,
}

/// Returns true if records that should be compacted by now are in a segment that has been open
/// since then.
///
/// All topics share the open segment. So a topic without new writes does not demand another roll.
fn is_compaction_overdue(
    topic: &Topic,
    defaults: &TopicDefaults,
    since: Hlc,
    open: Duration,
) -> bool {
    let settings = CompactionSettings::of(&topic.config, defaults);
    let is_late = settings.is_some_and(|settings| open >= settings.max_lag);
    is_late && topic.partitions.iter().any(|partition| partition.log.tip().stamp >= since)
}

/// The longest time that a topic's records may stay in the open segment. Records leave it before
/// they must be compacted.
fn open_age_max(config: &TopicConfig, defaults: &TopicDefaults) -> Duration {
    let age = Duration::from_millis(config.number("segment.ms", defaults).max(0) as u64);
    CompactionSettings::of(config, defaults).map_or(age, |settings| age.min(settings.max_lag))
}
