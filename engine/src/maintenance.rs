//! Maintenance of the engine: it applies retention, compacts, rolls segments that have been open
//! for long, and reclaims space.
//!
//! Each step can be called by itself, as tests do. A service runs [`Engine::maintenance_loop`].

mod compact;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hlc::{Cut, Hlc, SysTime};
use storage::{Log, LogId, LogThrottle, Offset, ReclaimStats};

use crate::compaction::CompactionSettings;
use crate::config::{TopicConfig, TopicDefaults};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::namespace::{Partition, Topic, TopicId};
use crate::partition_failures::MaintenanceRound;
use crate::retention::{RetentionDecision, RetentionLog, RetentionRules};

/// For how many partitions log starts advance under one lock of pins and topics, because others
/// wait for that lock.
const RETENTION_BATCH_MAX: usize = 64;
/// After how many disk failures a round stops.
const FAILURES_MAX: u32 = 8;

/// When maintenance runs, and what it may use.
#[derive(Clone, Copy, Debug)]
pub struct MaintenanceOptions {
    /// How often retention runs.
    pub retention_interval: Duration,
    /// How often compaction runs, and the age of the open segment is checked.
    pub compaction_interval: Duration,
    /// The minimum time that a segment of the journal stays open, whatever `segment.ms` a topic
    /// has: all topics share it, and each sealed segment costs some files.
    pub segment_age_min: Duration,
    /// How much memory compaction uses for the keys of one log.
    pub compaction_bytes_max: usize,
    /// How many bytes of offsets and groups, or of topics, one event restates; a larger item gets
    /// its own event.
    pub restated_bytes_max: usize,
}

impl Default for MaintenanceOptions {
    fn default() -> MaintenanceOptions {
        MaintenanceOptions {
            retention_interval: Duration::from_secs(300),
            compaction_interval: Duration::from_secs(15),
            segment_age_min: Duration::from_secs(60),
            compaction_bytes_max: 128 << 20,
            restated_bytes_max: 1 << 20,
        }
    }
}

impl RetentionLog for Log {
    fn start(&self) -> Offset {
        self.start()
    }

    fn end(&self) -> Offset {
        self.end()
    }

    fn offset_at(&self, cut: Cut) -> io::Result<Offset> {
        self.offset_at(cut)
    }

    fn bytes_to(&self, offset: Offset) -> io::Result<u64> {
        self.bytes_before(offset)
    }

    fn base_of(&self, offset: Offset) -> io::Result<Offset> {
        let holding = self.entry_at(offset)?.filter(|entry| entry.base <= offset);
        Ok(holding.map_or(offset, |entry| entry.base))
    }
}

impl Engine {
    /// Runs maintenance until the future is dropped. The tasks do not wait for each other: the
    /// compaction of a large log may take hours.
    pub async fn maintenance_loop(self: Arc<Engine>) {
        let options = self.options.maintenance;
        // One delay for all topics: they share the same files.
        let delay_ms = TopicConfig::default().number("file.delete.delay.ms", self.topic_defaults());
        let freeing_every = Duration::from_millis(delay_ms.max(0) as u64);
        tokio::join!(
            run_periodically(options.retention_interval, "apply retention", || self
                .apply_all_retention()),
            run_periodically(options.compaction_interval, "compact", || async {
                self.compact_due().await.map(drop)
            }),
            run_periodically(freeing_every, "reclaim space", || async {
                self.reclaim().await.map(drop)
            }),
        );
    }

    async fn apply_all_retention(self: &Arc<Engine>) -> Result<(), EngineError> {
        let records = self.apply_retention().await.map(drop);
        let groups = self.apply_group_retention().await.map(drop);
        let topics = self.remove_deleted_topics().await.map(drop);
        let logs = self.remove_logs().await.map(drop);
        records.and(groups).and(topics).and(logs)
    }

    /// Applies retention and removes expired pins; returns how many log starts advanced.
    ///
    /// # Errors
    /// The disk fails, or a partition cannot be read. The first error is returned; the other
    /// partitions are still processed.
    pub async fn apply_retention(self: &Arc<Engine>) -> Result<usize, EngineError> {
        if self.retention_time().is_some() {
            self.remove_expired_pins().await?;
        }
        let engine = Arc::clone(self);
        self.spawn_blocking(move || engine.apply_retention_blocking()).await
    }

    fn apply_retention_blocking(&self) -> Result<usize, EngineError> {
        // While the clock cannot be trusted, nothing expires by age. Retention by size needs no
        // clock.
        let now = self.retention_time().unwrap_or(SysTime(0));
        // Scanning all partitions may take long, and blocks nobody.
        let (mut due, mut round) = (Vec::new(), self.failures.start_round("apply retention"));
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
            let Some(held) = self.lock_changes_blocking() else { break };
            given_up += self.advance_due_log_starts(due, &mut round)?;
            drop(held);
        }
        round.finish()?;
        Ok(given_up)
    }

    /// Advances the log starts that are due in some partitions, by the current pins and settings.
    fn advance_due_log_starts(
        &self,
        due: &[(TopicId, Arc<Partition>)],
        round: &mut MaintenanceRound<'_>,
    ) -> Result<usize, EngineError> {
        let now = self.retention_time().unwrap_or(SysTime(0));
        let mut starts = Vec::new();
        for (id, partition) in due {
            let Some((topic, rules)) = self.retention_rules_of(id) else { continue };
            let start = self.new_log_start(&topic, &rules, partition, now);
            if let Some(Some(start)) = round.record(&topic.name, partition, start) {
                starts.push((partition.log.id, start));
            }
        }
        Ok(self.advance_log_starts(&starts)?)
    }

    /// The log start that the rules demand, if it is above the current one.
    fn new_log_start(
        &self,
        topic: &Topic,
        rules: &RetentionRules,
        partition: &Partition,
        now: SysTime,
    ) -> Result<Option<Offset>, EngineError> {
        let Some(RetentionDecision { start, reason: why }) = rules.decide(&*partition.log, now)?
        else {
            return Ok(None);
        };
        if self.pin_hold_on(&topic.id, partition)?.is_some() {
            return Ok(None);
        }
        let (topic, partition) = (&*topic.name, partition.index);
        tracing::debug!(topic, partition, start = start.0, ?why, "log start advances");
        Ok(Some(start))
    }

    /// Advances all log starts at once. If that fails, advances each by itself.
    fn advance_log_starts(&self, starts: &[(LogId, Offset)]) -> io::Result<usize> {
        if starts.is_empty() || self.store.advance_log_start(starts).is_ok() {
            return Ok(starts.len());
        }
        let (mut failed, mut first) = (0, None);
        for start in starts {
            let Err(error) = self.store.advance_log_start(&[*start]) else { continue };
            // Corruption concerns one partition. A disk that fails often fails for all.
            failed += u32::from(!is_corruption(&error));
            first.get_or_insert(error);
            if failed >= FAILURES_MAX {
                break;
            }
        }
        first.map_or(Ok(starts.len()), Err)
    }

    /// Reclaims the space of what was removed before the last call.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn reclaim(self: &Arc<Engine>) -> Result<ReclaimStats, EngineError> {
        let engine = Arc::clone(self);
        self.spawn_blocking(move || Ok(engine.store.reclaim()?)).await
    }

    /// Compacts the partitions that are due, and rolls the open segment if it is due; returns how
    /// many partitions were compacted.
    ///
    /// # Errors
    /// The disk fails, or a partition cannot be compacted. The first error is returned; the other
    /// partitions are still processed.
    pub async fn compact_due(self: &Arc<Engine>) -> Result<usize, EngineError> {
        // Otherwise an expired pin could be valid again over what is compacted now, if the clock
        // goes back a little.
        if self.retention_time().is_some() {
            self.remove_expired_pins().await?;
        }
        let engine = Arc::clone(self);
        self.spawn_blocking(move || {
            engine.roll_old_segment();
            let (mut count, mut round) = (0, engine.failures.start_round("compact"));
            for topic in engine.topics() {
                for partition in &topic.partitions {
                    let compacted = engine.compact_if_due(&topic, partition);
                    let compacted = round.record(&topic.name, partition, compacted);
                    count += usize::from(compacted == Some(true));
                }
            }
            round.finish()?;
            Ok(count)
        })
        .await
    }

    /// Rolls the open segment, whatever its age.
    ///
    /// # Errors
    /// The store has stopped.
    pub async fn roll_segment(self: &Arc<Engine>) -> Result<(), EngineError> {
        let engine = Arc::clone(self);
        self.spawn_blocking(move || {
            engine.store.roll_segment();
            // The sync comes after everything that was queued before it, and after the roll.
            Ok(engine.store.sync()?)
        })
        .await
    }

    /// Indexes and sorts rolled segments. Called where no background thread does it.
    ///
    /// # Errors
    /// The disk fails. What was not done is tried again.
    pub async fn run_maintenance(self: &Arc<Engine>) -> Result<(), EngineError> {
        let engine = Arc::clone(self);
        self.spawn_blocking(move || Ok(engine.store.run_maintenance()?)).await
    }

    /// Rolls the open segment once it has been open for longer than any topic allows.
    fn roll_old_segment(&self) {
        let (defaults, topics) = (self.topic_defaults(), self.topics());
        let longest = topics.iter().map(|topic| open_age_max(&topic.config, defaults)).min();
        let (Some(longest), Some(since)) = (longest, self.store.open_since()) else { return };
        let open = Duration::from_millis(self.wall_now().0.saturating_sub(since.time().0));
        let is_old = open >= longest.max(self.options.maintenance.segment_age_min);
        let waits = |topic: &Arc<Topic>| is_compaction_overdue(topic, defaults, since, open);
        if is_old || topics.iter().any(waits) {
            self.store.roll_segment();
        }
    }
}

/// Runs something periodically, for ever. A failure is retried at the next tick, and logged now and then.
async fn run_periodically<Doing: Future<Output = Result<(), EngineError>>>(
    period: Duration,
    doing: &str,
    act: impl Fn() -> Doing,
) {
    let mut ticks = tokio::time::interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut failures, mut begun) = (LogThrottle::default(), None);
    loop {
        let tick = ticks.tick().await;
        let now = tick - *begun.get_or_insert(tick);
        match act().await {
            Ok(()) => _ = failures.record_success(|| now),
            Err(error) => {
                if let Some(failed) = failures.record_failure(now) {
                    tracing::error!(%error, failed, doing, "maintenance failed");
                }
            }
        }
    }
}

fn is_corruption(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Whether records that should be compacted by now are in a segment that has been open since then.
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

/// How long a topic's records may stay in the open segment. Records leave it before they must be
/// compacted.
fn open_age_max(config: &TopicConfig, defaults: &TopicDefaults) -> Duration {
    let age = Duration::from_millis(config.number("segment.ms", defaults).max(0) as u64);
    CompactionSettings::of(config, defaults).map_or(age, |settings| age.min(settings.max_lag))
}
