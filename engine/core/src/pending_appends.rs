//! Appends on their way to the store: their room in flight, and how a batch becomes an append.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use admission::{BudgetKind, BudgetQueue, BudgetRegistry, BudgetSpec, Holder, QueueGrant};
use hlc::Hlc;
use storage::{AppendReceipt, AppendResults, Durability, LogAppend, LogId, Payload};
use tokio::sync::oneshot;

use crate::append::{AppendNote, BatchNote, RecordBatch, WingAppend, event_append};
use crate::engine_core::EngineCore;
use crate::error::EngineError;
use crate::namespace::{Partition, Topic};
use crate::numbering::KIND_RECORDS;
use crate::producers::ProducerOrigin;
use crate::user_time::NO_TIMES;

const FLIGHT: BudgetSpec = BudgetSpec {
    name: "flight-bytes",
    unit: "bytes",
    setting: Some("limits.flight-bytes"),
    kind: BudgetKind::Kept,
};
/// Bytes that each write takes in flight besides its own.
const OVERHEAD: usize = 1024;

/// The bytes of appends in flight to the disk. Holders take turns, whatever they write.
#[derive(Clone, Debug)]
pub struct AppendBudget(Arc<BudgetQueue>);

impl AppendBudget {
    pub(crate) fn new(bytes_max: usize, budgets: &BudgetRegistry) -> AppendBudget {
        AppendBudget(BudgetQueue::new(budgets.budget(FLIGHT, bytes_max as u64)))
    }

    /// Waits until there is room for `bytes`. The grant is dropped once they are on the disk. More
    /// than half of what there is counts as half.
    pub async fn acquire(&self, holder: &Holder, bytes: usize) -> QueueGrant {
        self.0.take(holder, (bytes + OVERHEAD) as u64).await
    }
}

impl EngineCore {
    /// Appends batches of the server's own, each to a partition, in order. Returns one result for
    /// each.
    pub async fn append(
        &self,
        batches: Vec<(Arc<Topic>, u32, RecordBatch)>,
        durability: Durability,
    ) -> Vec<Result<AppendReceipt, EngineError>> {
        self.begin_append(&Holder::server(), batches, durability).await.results().await
    }

    /// Waits until `holder` has room in flight, and queues the batches. From then on they come
    /// before everything that is queued later, even if the caller goes away.
    pub async fn begin_append(
        &self,
        holder: &Holder,
        batches: Vec<(Arc<Topic>, u32, RecordBatch)>,
        durability: Durability,
    ) -> PendingAppends {
        let bytes: usize = batches.iter().map(|(.., batch)| batch.payload.len()).sum();
        let flight = self.append_budget.acquire(holder, bytes).await;
        self.queue_append(flight, batches, durability)
    }

    /// [`EngineCore::begin_append`] with the room that was acquired for it
    /// ([`AppendBudget::acquire`]).
    pub fn queue_append(
        &self,
        flight: QueueGrant,
        batches: Vec<(Arc<Topic>, u32, RecordBatch)>,
        durability: Durability,
    ) -> PendingAppends {
        let count = batches.len();
        let defaults = &self.topic_defaults();
        let allocated_below = self.producer_ids_below.load(Ordering::Relaxed);
        // The topics hold their logs until the store does: the store may remove a log that nothing
        // holds.
        let (topics, appends): (Vec<Arc<Topic>>, _) = batches
            .into_iter()
            .map(|(topic, partition, batch)| {
                let append_time = topic.config.is_log_append_time(defaults);
                let held = &topic.partitions[partition as usize];
                let append = batch.into_append(&topic, held, append_time, allocated_below);
                (topic, append)
            })
            .unzip();
        let (sender, receiver) = oneshot::channel();
        self.store.append(appends, durability, move |results: AppendResults<EngineError>| {
            // The journal releases the grant: a client that went away has not freed the room.
            drop(flight);
            let _ = sender.send(results);
        });
        drop(topics);
        PendingAppends { receiver, count }
    }

    /// Queues an append of a wing, and syncs it before `done` is called, on the writer's thread and
    /// in the order of the log. The caller limits how much is in flight.
    pub fn append_wing(
        &self,
        log: LogId,
        kind: u8,
        payload: Payload,
        wing: Arc<dyn WingAppend>,
        done: impl FnOnce(Result<AppendReceipt, EngineError>) + Send + 'static,
    ) {
        let append = event_append(log, kind, payload, AppendNote::Wing(wing));
        self.store.append(vec![append], Durability::Synced, move |mut results| {
            done(results.pop().expect("one append, one result").map_err(EngineError::from));
        });
    }

    /// Appends an event that concerns no state of the spine, and waits until it is on stable
    /// storage.
    ///
    /// # Errors
    /// The disk refuses it.
    pub fn append_event_blocking(
        &self,
        log: LogId,
        kind: u8,
        payload: Vec<u8>,
    ) -> Result<AppendReceipt, EngineError> {
        let payload = Payload::without_header(payload.into());
        let append = event_append(log, kind, payload, AppendNote::Event);
        let (sender, receiver) = std::sync::mpsc::channel();
        self.store.append(vec![append], Durability::Synced, move |mut results| {
            let _ = sender.send(results.pop().expect("one append, one result"));
        });
        if self.is_manually_stepped() {
            while self.step() {}
        }
        Ok(receiver.recv().map_err(|_| EngineError::closing())??)
    }
}

impl RecordBatch {
    /// An append to a partition of `topic`. `append_time` says whether its records get the time of
    /// the append. Ids of producers below `allocated_below` were allocated by this service.
    fn into_append(
        self,
        topic: &Topic,
        partition: &Partition,
        append_time: bool,
        allocated_below: i64,
    ) -> LogAppend<AppendNote> {
        let rule = topic.user_time();
        let is_transactional = self.producer.is_some_and(|producer| producer.is_transactional);
        let origin = self.producer.zip(self.holder).map(|(producer, holder)| ProducerOrigin {
            holder,
            is_allocated: (0..allocated_below).contains(&producer.id),
        });
        let append_time = append_time && self.expected_base.is_none();
        let has_times = self.times != NO_TIMES;
        let note = BatchNote {
            producer: self.producer,
            expected_base: self.expected_base,
            origin,
            transactions: is_transactional.then(|| Arc::clone(&partition.transactions)),
            append_time,
            append_time_is_user_time: append_time && rule.is_none_or(|rule| rule.is_timestamp()),
            rule_since: rule.map_or(Hlc::ZERO, |rule| rule.since()),
            strict_user_time_max: rule
                .filter(|rule| rule.is_strict() && has_times)
                .map(|_| partition.log.tip().user_time_max),
        };
        LogAppend {
            log: partition.log.id,
            kind: KIND_RECORDS,
            epoch: partition.leader_epoch(),
            count: self.count,
            user: self.times,
            payload: self.payload,
            crc_from: None,
            note: AppendNote::Records(note),
        }
    }
}

/// Batches in flight to the disk.
#[derive(Debug)]
pub struct PendingAppends {
    receiver: oneshot::Receiver<AppendResults<EngineError>>,
    count: usize,
}

impl PendingAppends {
    /// One result for each batch, once all are written or have failed.
    pub async fn results(self) -> Vec<Result<AppendReceipt, EngineError>> {
        match self.receiver.await {
            Ok(results) => {
                results.into_iter().map(|result| result.map_err(EngineError::from)).collect()
            }
            Err(_) => {
                vec![Err(EngineError::closing()); self.count]
            }
        }
    }
}
