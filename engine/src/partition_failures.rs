//! What went wrong with single partitions in rounds that go on all the same: each is named once.

use std::collections::HashMap;

use parking_lot::Mutex;
use storage::LogId;

use crate::error::EngineError;
use crate::namespace::Partition;

/// What was said of each log, by what was being done: not said again until it is another, or was well
/// in between.
#[derive(Debug, Default)]
pub(crate) struct PartitionFailures {
    reported: Mutex<HashMap<(LogId, &'static str), String>>,
}

impl PartitionFailures {
    /// A round that does `doing` to one partition after the other.
    pub(crate) fn start_round(&self, doing: &'static str) -> MaintenanceRound<'_> {
        MaintenanceRound { failures: self, task: doing, first: None }
    }

    /// Whether it is news.
    fn record_if_new(&self, log: LogId, doing: &'static str, error: &EngineError) -> bool {
        let error = error.to_string();
        let mut said = self.reported.lock();
        let is_news = said.get(&(log, doing)) != Some(&error);
        said.insert((log, doing), error);
        is_news
    }
}

/// A round that no partition ends for the others.
pub(crate) struct MaintenanceRound<'a> {
    failures: &'a PartitionFailures,
    task: &'static str,
    first: Option<EngineError>,
}

impl MaintenanceRound<'_> {
    /// What was done to a partition; `None` if it could not be.
    pub(crate) fn record<T>(
        &mut self,
        topic: &str,
        partition: &Partition,
        done: Result<T, EngineError>,
    ) -> Option<T> {
        let (log, doing) = (partition.log.id, self.task);
        match done {
            Ok(done) => {
                self.failures.reported.lock().remove(&(log, doing));
                Some(done)
            }
            Err(error) => {
                if self.failures.record_if_new(log, doing, &error) {
                    let partition = partition.index;
                    tracing::error!(%error, topic, partition, doing, "a partition is skipped");
                }
                self.first.get_or_insert(error);
                None
            }
        }
    }

    /// # Errors
    /// The first that there was.
    pub(crate) fn finish(self) -> Result<(), EngineError> {
        self.first.map_or(Ok(()), Err)
    }
}
