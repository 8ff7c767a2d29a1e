//! The periodic tasks: retention, compaction, reclaiming, and the like.

use storage::AbortOnPanic;
use tokio::task::JoinSet;

/// Periodic tasks. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceTasks(JoinSet<()>);

impl MaintenanceTasks {
    /// Runs a task, and aborts the process if it panics. Without it, nothing would be removed until
    /// the disk is full.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(async {
            let abort = AbortOnPanic;
            task.await;
            drop(abort);
        });
    }

    /// Ends them, and waits until they have ended.
    pub(crate) async fn shutdown(&mut self) {
        self.0.shutdown().await;
    }
}
