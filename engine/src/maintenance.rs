//! Maintenance of an engine: when the spine and its wings are maintained.

use std::sync::Arc;
use std::time::Duration;

use engine_core::config::TopicConfig;
use engine_core::{CoreMaintenance, EngineError};
use storage::LogThrottle;

use crate::engine::Engine;

impl Engine {
    /// Maintenance of topics and of the store, step by step.
    pub fn maintenance(&self) -> CoreMaintenance<'_> {
        self.core().maintenance()
    }

    /// Runs maintenance until the future is dropped. The tasks do not wait for each other: the
    /// compaction of a large log may take hours.
    pub async fn run_maintenance(self: Arc<Engine>) {
        let core = self.core();
        let options = core.options().maintenance;
        // One delay for all topics: they share the same files.
        let delay_ms = TopicConfig::default().number("file.delete.delay.ms", core.topic_defaults());
        let freeing_every = Duration::from_millis(delay_ms.max(0) as u64);
        tokio::join!(
            run_periodically(options.retention_interval, "apply retention", || self
                .apply_all_retention()),
            run_periodically(options.compaction_interval, "compact", || async {
                core.maintenance().compact_due().await.map(drop)
            }),
            run_periodically(freeing_every, "reclaim space", || async {
                core.maintenance().reclaim().await.map(drop)
            }),
        );
    }

    async fn apply_all_retention(&self) -> Result<(), EngineError> {
        let maintenance = self.maintenance();
        let records = maintenance.apply_retention().await.map(drop);
        let groups = self.groups().apply_retention().await.map(drop);
        let znodes = self.znodes().apply_retention().await.map(drop);
        let topics = maintenance.remove_deleted_topics().await.map(drop);
        let logs = maintenance.remove_logs().await.map(drop);
        records.and(groups).and(znodes).and(topics).and(logs)
    }
}

/// Runs something periodically, for ever. A failure is retried at the next tick, and logged now and
/// then.
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
