//! Maintenance of an engine: when the spine and its wings are maintained.

use std::sync::Arc;
use std::time::Duration;

use engine_core::config::TopicConfig;
use engine_core::{CoreMaintenance, DynamicMaintenance, EngineError};
use storage::LogThrottle;
use tokio::sync::watch;
use tokio::time::Instant;

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
        let retention_interval = || core.options().maintenance.retention_interval;
        let compaction_interval = || core.dynamic_maintenance().compaction_interval;
        let reclaim_interval = || {
            // One delay for all topics: they share the same files.
            let config = TopicConfig::default();
            let delay_ms = config.number("file.delete.delay.ms", &core.topic_defaults());
            Duration::from_millis(delay_ms.max(0) as u64)
        };
        let changes = || core.watch_dynamic_maintenance();
        tokio::join!(
            run_periodically(retention_interval, changes(), "apply retention", || self
                .apply_all_retention()),
            run_periodically(compaction_interval, changes(), "compact", || async {
                core.maintenance().compact_due().await.map(drop)
            }),
            run_periodically(reclaim_interval, changes(), "reclaim space", || async {
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

/// Runs something periodically, for ever; a value from `changes` may change the interval. A failure
/// is retried the next time, and logged now and then.
async fn run_periodically<Doing: Future<Output = Result<(), EngineError>>>(
    interval: impl Fn() -> Duration,
    mut changes: watch::Receiver<DynamicMaintenance>,
    doing: &str,
    act: impl Fn() -> Doing,
) {
    let (mut failures, first) = (LogThrottle::default(), Instant::now());
    loop {
        let begun = Instant::now();
        let now = begun - first;
        match act().await {
            Ok(()) => _ = failures.record_success(|| now),
            Err(error) => {
                if let Some(failed) = failures.record_failure(now) {
                    tracing::error!(%error, failed, doing, "maintenance failed");
                }
            }
        }
        loop {
            let next = begun + interval().max(Duration::from_millis(1));
            tokio::select! {
                () = tokio::time::sleep_until(next) => break,
                Ok(()) = changes.changed() => {}
            }
        }
    }
}
