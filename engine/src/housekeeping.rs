//! What the engine does by itself: it gives up what retention says, compacts, seals what lies open for
//! long, and gives back space.
//!
//! Each step can be called by itself, and a test does; a service runs [`Engine::keep_house`].

mod compacting;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hlc::{Cut, Hlc, SysTime};
use storage::{Freed, Log, LogId, Offset};

use crate::compaction::CompactionSettings;
use crate::config::{TopicConfig, TopicDefaults};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::namespace::{Partition, Topic, TopicId};
use crate::retention::{GiveUp, History, Rules};
use crate::troubles::Round;

/// Of so many partitions horizons move under one hold of pins and topics, which others wait for.
const GIVEN_UP_AT_ONCE: usize = 64;
/// After how many failures of the disk a round goes no further.
const FAILURES_MAX: u32 = 8;

/// When the engine looks after what it keeps.
#[derive(Clone, Copy, Debug)]
pub struct HousekeepingOptions {
    /// How often is looked for what retention gives up.
    pub retention_every: Duration,
    /// How often is looked for what is to be compacted, or has lain open for long.
    pub compaction_every: Duration,
    /// How long a segment of the journal stays open at the least, whatever `segment.ms` a topic has: all
    /// topics share it, and each sealed one costs some files.
    pub segment_age_min: Duration,
    /// How much memory compaction takes for the keys of one log.
    pub compaction_bytes_max: usize,
    /// How many bytes of offsets and groups, or of topics, are restated by one event; a larger one has its
    /// own.
    pub restated_bytes_max: usize,
}

impl Default for HousekeepingOptions {
    fn default() -> HousekeepingOptions {
        HousekeepingOptions {
            retention_every: Duration::from_secs(300),
            compaction_every: Duration::from_secs(15),
            segment_age_min: Duration::from_secs(60),
            compaction_bytes_max: 128 << 20,
            restated_bytes_max: 1 << 20,
        }
    }
}

impl History for Log {
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
    /// Looks after what is kept, until it is dropped. Nothing that is done waits for another: a large
    /// log may be compacted for hours.
    pub async fn keep_house(self: Arc<Engine>) {
        let options = self.options.housekeeping;
        // One for all topics: their space lies in the same files.
        let delay_ms = TopicConfig::default().number("file.delete.delay.ms", self.topic_defaults());
        let freeing_every = Duration::from_millis(delay_ms.max(0) as u64);
        tokio::join!(
            every(options.retention_every, "give up what is old", || self.give_up_all()),
            every(options.compaction_every, "compact", || async {
                self.compact_due().await.map(drop)
            }),
            every(freeing_every, "give back space", || async { self.free().await.map(drop) }),
        );
    }

    async fn give_up_all(self: &Arc<Engine>) -> Result<(), EngineError> {
        let records = self.give_up_old().await.map(drop);
        let groups = self.give_up_old_groups().await.map(drop);
        let topics = self.forget_topics().await.map(drop);
        let logs = self.forget_logs().await.map(drop);
        records.and(groups).and(topics).and(logs)
    }

    /// Gives up what retention says, and removes pins that have expired; how many partitions begin
    /// later now.
    ///
    /// # Errors
    /// The disk fails, or one of the partitions cannot be looked into: the first that was met. It ends
    /// nothing for the others.
    pub async fn give_up_old(self: &Arc<Engine>) -> Result<usize, EngineError> {
        if self.time_to_give_up().is_some() {
            self.remove_expired_pins().await?;
        }
        let engine = Arc::clone(self);
        self.on_a_thread(move || engine.give_up_now()).await
    }

    fn give_up_now(&self) -> Result<usize, EngineError> {
        // A clock that cannot be trusted makes nothing old. How large a partition is asks no clock.
        let now = self.time_to_give_up().unwrap_or(SysTime(0));
        // The look at all that there is may take long, and holds nobody up.
        let (mut due, mut round) = (Vec::new(), self.troubles.round("give up what is old"));
        for (topic, rules) in self.retention_rules() {
            for partition in &topic.partitions {
                let start = self.new_start(&topic, &rules, partition, now);
                if let Some(Some(_)) = round.done(&topic.name, partition, start) {
                    due.push((topic.id, Arc::clone(partition)));
                }
            }
        }
        let mut given_up = 0;
        for due in due.chunks(GIVEN_UP_AT_ONCE) {
            // Pins stay as they are from the decision until the horizon is on stable storage.
            let Some(held) = self.hold_changes_here() else { break };
            given_up += self.give_up_due(due, &mut round)?;
            drop(held);
        }
        round.end()?;
        Ok(given_up)
    }

    /// Gives up what is due of some partitions, by the pins and settings of now.
    fn give_up_due(
        &self,
        due: &[(TopicId, Arc<Partition>)],
        round: &mut Round<'_>,
    ) -> Result<usize, EngineError> {
        let now = self.time_to_give_up().unwrap_or(SysTime(0));
        let mut starts = Vec::new();
        for (id, partition) in due {
            let Some((topic, rules)) = self.retention_rules_of(id) else { continue };
            let start = self.new_start(&topic, &rules, partition, now);
            if let Some(Some(start)) = round.done(&topic.name, partition, start) {
                starts.push((partition.log.id, start));
            }
        }
        Ok(self.give_up_each(&starts)?)
    }

    /// Where a partition is to begin by the rules, if that is later than it does.
    fn new_start(
        &self,
        topic: &Topic,
        rules: &Rules,
        partition: &Partition,
        now: SysTime,
    ) -> Result<Option<Offset>, EngineError> {
        let Some(GiveUp { start, why }) = rules.decide(&*partition.log, now)? else {
            return Ok(None);
        };
        if self.holding(&topic.id, partition)?.is_some() {
            return Ok(None);
        }
        let (topic, partition) = (&*topic.name, partition.index);
        tracing::debug!(topic, partition, start = start.0, ?why, "gives up");
        Ok(Some(start))
    }

    /// Gives up all at once; or, where one of them cannot be, each of the others by itself.
    fn give_up_each(&self, starts: &[(LogId, Offset)]) -> io::Result<usize> {
        if starts.is_empty() || self.store.give_up(starts).is_ok() {
            return Ok(starts.len());
        }
        let (mut failed, mut first) = (0, None);
        for start in starts {
            let Err(error) = self.store.give_up(&[*start]) else { continue };
            // What is damaged is damaged for one. A disk that fails often, fails for all.
            failed += u32::from(!is_damage(&error));
            first.get_or_insert(error);
            if failed >= FAILURES_MAX {
                break;
            }
        }
        first.map_or(Ok(starts.len()), Err)
    }

    /// Gives back the space of what was given up before the last call.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn free(self: &Arc<Engine>) -> Result<Freed, EngineError> {
        let engine = Arc::clone(self);
        self.on_a_thread(move || Ok(engine.store.free()?)).await
    }

    /// Compacts the partitions that are due, and seals the open segment if it is; how many partitions
    /// were compacted.
    ///
    /// # Errors
    /// The disk fails, or one of the partitions cannot be compacted: the first that was met. It ends
    /// nothing for the others.
    pub async fn compact_due(self: &Arc<Engine>) -> Result<usize, EngineError> {
        // So that none stands again over what is compacted now, if the clock goes back a little.
        if self.time_to_give_up().is_some() {
            self.remove_expired_pins().await?;
        }
        let engine = Arc::clone(self);
        self.on_a_thread(move || {
            engine.seal_old();
            let (mut count, mut round) = (0, engine.troubles.round("compact"));
            for topic in engine.topics() {
                for partition in &topic.partitions {
                    let compacted = engine.compact_if_due(&topic, partition);
                    let compacted = round.done(&topic.name, partition, compacted);
                    count += usize::from(compacted == Some(true));
                }
            }
            round.end()?;
            Ok(count)
        })
        .await
    }

    /// Seals the open segment, whatever its age.
    ///
    /// # Errors
    /// The store has stopped.
    pub async fn seal(self: &Arc<Engine>) -> Result<(), EngineError> {
        let engine = Arc::clone(self);
        self.on_a_thread(move || {
            engine.store.seal();
            // Behind everything that was queued before it, and the sealing.
            Ok(engine.store.sync()?)
        })
        .await
    }

    /// Indexes and files what is sealed, where no thread does that by itself.
    ///
    /// # Errors
    /// The disk fails; what was not done is tried again.
    pub async fn tend(self: &Arc<Engine>) -> Result<(), EngineError> {
        let engine = Arc::clone(self);
        self.on_a_thread(move || Ok(engine.store.tend()?)).await
    }

    /// Seals the open segment once it has been open for longer than any topic allows.
    fn seal_old(&self) {
        let (defaults, topics) = (self.topic_defaults(), self.topics());
        let longest = topics.iter().map(|topic| open_at_most(&topic.config, defaults)).min();
        let (Some(longest), Some(since)) = (longest, self.store.open_since()) else { return };
        let open = Duration::from_millis(self.wall_now().0.saturating_sub(since.time().0));
        let is_old = open >= longest.max(self.options.housekeeping.segment_age_min);
        let waits = |topic: &Arc<Topic>| waits_for_compaction(topic, defaults, since, open);
        if is_old || topics.iter().any(waits) {
            self.store.seal();
        }
    }
}

/// Does something now and then, for ever. What fails is tried again at the next tick, and reported when
/// it fails in another way than before.
async fn every<Doing: Future<Output = Result<(), EngineError>>>(
    period: Duration,
    doing: &str,
    act: impl Fn() -> Doing,
) {
    let mut ticks = tokio::time::interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut said = None;
    loop {
        ticks.tick().await;
        let failed = act().await.err().map(|error| error.to_string());
        if failed != said
            && let Some(error) = &failed
        {
            tracing::error!(error, doing, "housekeeping failed");
        }
        said = failed;
    }
}

fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Whether records that should be compacted by now lie in a segment that is open since then. All topics share it, so
/// that a topic for which nothing was written since does not ask for the next one.
fn waits_for_compaction(
    topic: &Topic,
    defaults: &TopicDefaults,
    since: Hlc,
    open: Duration,
) -> bool {
    let settings = CompactionSettings::of(&topic.config, defaults);
    let is_late = settings.is_some_and(|settings| open >= settings.max_lag);
    is_late && topic.partitions.iter().any(|partition| partition.log.tip().stamp >= since)
}

/// How long a topic's records may lie in the open segment. What must be compacted has to leave it first.
fn open_at_most(config: &TopicConfig, defaults: &TopicDefaults) -> Duration {
    let age = Duration::from_millis(config.number("segment.ms", defaults).max(0) as u64);
    CompactionSettings::of(config, defaults).map_or(age, |settings| age.min(settings.max_lag))
}
