//! Failures of single partitions in rounds that continue despite them. Each is logged once.

use std::collections::HashMap;

use parking_lot::Mutex;
use storage::LogId;

use crate::error::EngineError;
use crate::namespace::Partition;

/// The last failure of each log, by activity. It is not logged again until it differs, or the
/// partition succeeded in between.
#[derive(Debug, Default)]
pub(crate) struct PartitionFailures {
    reported: Mutex<HashMap<(LogId, &'static str), String>>,
}

impl PartitionFailures {
    /// Begins a round that does `doing` to one partition after the other.
    pub(crate) fn start_round(&self, doing: &'static str) -> MaintenanceRound<'_> {
        MaintenanceRound { failures: self, task: doing, first: None }
    }

    /// Records a failure; returns true if it is new.
    fn record_if_new(&self, log: LogId, doing: &'static str, error: &EngineError) -> bool {
        let error = error.to_string();
        let mut reported = self.reported.lock();
        let is_news = reported.get(&(log, doing)) != Some(&error);
        reported.insert((log, doing), error);
        is_news
    }
}

/// A round in which the failure of one partition does not end the others.
pub(crate) struct MaintenanceRound<'a> {
    failures: &'a PartitionFailures,
    task: &'static str,
    first: Option<EngineError>,
}

impl MaintenanceRound<'_> {
    /// Records the result for a partition; `None` if it failed.
    pub(crate) fn record<T>(
        &mut self,
        topic: &str,
        partition: &Partition,
        result: Result<T, EngineError>,
    ) -> Option<T> {
        let (log, doing) = (partition.log.id, self.task);
        match result {
            Ok(value) => {
                self.failures.reported.lock().remove(&(log, doing));
                Some(value)
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
    /// The first failure of the round.
    pub(crate) fn finish(self) -> Result<(), EngineError> {
        self.first.map_or(Ok(()), Err)
    }
}
