//! Batches on their way to the disk.

use std::sync::Arc;

use storage::{AppendError, AppendReceipt, AppendResults, Durability};
use tokio::sync::oneshot;

use super::Engine;
use crate::append::RecordBatch;
use crate::error::EngineError;
use crate::namespace::Topic;

/// The unit in which bytes on their way are counted.
pub(crate) const IN_FLIGHT_UNIT: usize = 1024;

impl Engine {
    /// Appends batches, each to a partition, in order; one result each.
    pub async fn append(
        &self,
        batches: Vec<(Arc<Topic>, u32, RecordBatch)>,
        durability: Durability,
    ) -> Vec<Result<AppendReceipt, EngineError>> {
        self.begin_append(batches, durability).await.results().await
    }

    /// Waits until there is room for batches on their way to the disk, and queues them: from then on
    /// they come before everything that is queued later, whoever goes away.
    pub async fn begin_append(
        &self,
        batches: Vec<(Arc<Topic>, u32, RecordBatch)>,
        durability: Durability,
    ) -> PendingAppends {
        let bytes: usize = batches.iter().map(|(.., batch)| batch.payload.len()).sum();
        let most = self.options.in_flight_bytes_max / IN_FLIGHT_UNIT;
        let units = (bytes / IN_FLIGHT_UNIT + 1).min(most.max(1)) as u32;
        let flight = Arc::clone(&self.in_flight).acquire_many_owned(units);
        let permit = flight.await.expect("never closed");
        let count = batches.len();
        let defaults = &self.options.topic_defaults;
        // They hold their logs until the store does: one that nobody holds may be forgotten.
        let (topics, appends): (Vec<Arc<Topic>>, _) = batches
            .into_iter()
            .map(|(topic, partition, batch)| {
                let append_time = topic.config.is_log_append_time(defaults);
                let held = &topic.partitions[partition as usize];
                let append = batch.into_append(&topic, held, append_time);
                (topic, append)
            })
            .unzip();
        let (sender, receiver) = oneshot::channel();
        self.store.append(appends, durability, move |results: AppendResults<EngineError>| {
            // The room is the journal's to give back: a client that went away has not emptied it.
            drop(permit);
            let _ = sender.send(results);
        });
        drop(topics);
        PendingAppends { receiver, count }
    }
}

/// Batches that are on their way to the disk.
#[derive(Debug)]
pub struct PendingAppends {
    receiver: oneshot::Receiver<AppendResults<EngineError>>,
    count: usize,
}

impl PendingAppends {
    /// One result for each batch, once all are known.
    pub async fn results(self) -> Vec<Result<AppendReceipt, EngineError>> {
        match self.receiver.await {
            Ok(results) => results.into_iter().map(|result| result.map_err(flatten)).collect(),
            Err(_) => {
                vec![Err(EngineError::Stopping("it is being closed".into())); self.count]
            }
        }
    }
}

pub(crate) fn flatten(error: AppendError<EngineError>) -> EngineError {
    match error {
        AppendError::Refused(refusal) => refusal,
        AppendError::Time(error) => EngineError::Fenced(error.to_string()),
        AppendError::Disk(why) | AppendError::Index(why) => EngineError::Disk(why),
        AppendError::Stopped(why) => EngineError::Stopping(why),
    }
}
