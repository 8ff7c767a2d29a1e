//! The steps of a transaction: partitions and offsets that are added, the decision, its markers, and
//! what a restart finds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use admission::Holder;
use engine::groups::{
    OffsetCommit, StoredDecision, StoredTransaction, StoredTransactionOffset, TransactionState,
};
use engine::{RecordBatch, Topic, TransactionEnd};
use hlc::Hlc;
use parking_lot::MutexGuard;
use tokio::sync::oneshot;

use super::{
    CoordinatorState, TransactionScope, TransactionSlot, account, offset_bytes, offset_topic,
};
use crate::budgets::TransactionGrants;
use crate::error::TransactionError;
use crate::transactional_id::{
    EndVersion, EnlistedPartition, OngoingTransaction, PendingOffset, ProducerIdAndEpoch,
    TransactionalId,
};

/// The pause before a marker that could not be written is tried again.
const MARKER_RETRY: Duration = Duration::from_millis(200);
/// A new transactional id is no longer.
const ID_LENGTH_MAX: usize = 1024;

impl CoordinatorState {
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    pub(super) fn slots(&self) -> Vec<Arc<TransactionSlot>> {
        self.slots.read().values().cloned().collect()
    }

    pub(super) fn find(&self, id: &str) -> Result<Arc<TransactionSlot>, TransactionError> {
        let slot = self.slots.read().get(id).cloned();
        slot.ok_or(TransactionError::InvalidProducerIdMapping)
    }

    pub(super) async fn find_or_create(
        &self,
        id: &str,
        timeout_ms: u32,
        holder: &Holder,
    ) -> Result<Arc<TransactionSlot>, TransactionError> {
        if let Ok(slot) = self.find(id) {
            slot.claim(holder);
            return Ok(slot);
        }
        if id.len() > ID_LENGTH_MAX {
            return Err(TransactionError::IdTooLong { bytes: id.len(), most: ID_LENGTH_MAX });
        }
        let producer = self.engine.new_producer_id().await?;
        let mut slots = self.slots.write();
        if let Some(slot) = slots.get(id) {
            return Ok(Arc::clone(slot));
        }
        let grant = self.budgets.take_id(id, holder)?;
        let slot = TransactionSlot::new(id, TransactionalId::new(producer, timeout_ms), grant);
        slots.insert(Arc::clone(&slot.id), Arc::clone(&slot));
        Ok(slot)
    }

    /// Checks that a batch belongs to the transaction, and adds its partition.
    pub(super) fn enlist(
        &self,
        state: &mut TransactionalId,
        scope: &TransactionScope,
        topic: &Arc<Topic>,
        index: u32,
        batch: &RecordBatch,
    ) -> Result<(), TransactionError> {
        let producer = batch.producer.ok_or(TransactionError::InvalidState)?;
        state.check(ProducerIdAndEpoch { id: producer.id, epoch: producer.epoch })?;
        let log = topic.partitions[index as usize].log.id;
        if let Some(ongoing) = &mut state.ongoing
            && let Some(partition) = ongoing.partitions.get_mut(&log)
        {
            partition.has_batch = true;
            ongoing.grants.claim(&scope.holder);
            return Ok(());
        }
        if !scope.may_begin && !state.may_have_added(|_| false) {
            return Err(TransactionError::InvalidState);
        }
        let grants = self.budgets.take(account(state, &scope.holder), 1, 0)?;
        let ongoing = self.begin(state, scope.may_begin, grants);
        self.add_partition(ongoing, topic, index).has_batch = true;
        Ok(())
    }

    /// Begins a transaction with the room that was taken for it, unless one is open. Returns the
    /// open one.
    pub(super) fn begin<'a>(
        &self,
        state: &'a mut TransactionalId,
        is_v2: bool,
        grants: TransactionGrants,
    ) -> &'a mut OngoingTransaction {
        let version = if is_v2 { EndVersion::V2 } else { EndVersion::V1 };
        let steady = self.engine.timekeeper().steady_now();
        state.begin(self.engine.wall_now(), steady, version, grants)
    }

    pub(super) fn add_partition<'a>(
        &self,
        ongoing: &'a mut OngoingTransaction,
        topic: &Topic,
        index: u32,
    ) -> &'a mut EnlistedPartition {
        let partition = &topic.partitions[index as usize];
        let added = self.engine.timekeeper().steady_now();
        ongoing.partitions.entry(partition.log.id).or_insert_with(|| {
            let partition = Arc::clone(partition);
            EnlistedPartition { topic: topic.id, partition, added, has_batch: false }
        })
    }

    pub(super) fn add_offset(
        &self,
        ongoing: &mut OngoingTransaction,
        group: &str,
        offset: PendingOffset,
    ) {
        let commit = &offset.commit;
        let bytes = offset_bytes(group, commit);
        let key = (group.to_owned(), commit.topic.clone(), commit.partition);
        match ongoing.offsets.insert(key.clone(), offset) {
            None => {
                let (group, topic, partition) = key;
                let mut pending = self.pending.lock();
                let offsets = pending.entry(group).or_default();
                *offsets.entry((topic, partition)).or_default() += 1;
            }
            Some(before) => ongoing.offset_bytes -= offset_bytes(group, &before.commit),
        }
        ongoing.offset_bytes += bytes;
    }

    /// Forgets the open transaction.
    fn close_ongoing(&self, state: &mut TransactionalId) {
        state.is_restored = false;
        let Some(ongoing) = state.ongoing.take() else { return };
        let mut pending = self.pending.lock();
        for (group, topic, partition) in ongoing.offsets.into_keys() {
            let Some(offsets) = pending.get_mut(&group) else { continue };
            if let Entry::Occupied(mut count) = offsets.entry((topic, partition)) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            if offsets.is_empty() {
                pending.remove(&group);
            }
        }
    }

    /// Queues a new state of a transactional id without an open transaction.
    pub(super) fn save(
        self: &Arc<Self>,
        slot: &Arc<TransactionSlot>,
        state: &mut MutexGuard<'_, TransactionalId>,
        next: TransactionState,
    ) -> Result<oneshot::Receiver<Result<(), TransactionError>>, TransactionError> {
        let queued = self.engine.groups().begin_save_transaction(&slot.id, next.clone())?;
        state.is_busy = true;
        let (shared, slot) = (Arc::clone(self), Arc::clone(slot));
        let (sender, receiver) = oneshot::channel();
        self.spawn(async move {
            let result = queued.wait().await;
            let mut state = slot.state.lock();
            state.is_busy = false;
            if result.is_ok() {
                shared.close_ongoing(&mut state);
                state.state = next;
            }
            drop(state);
            let _ = sender.send(result.map(drop).map_err(TransactionError::from));
        });
        Ok(receiver)
    }

    /// Queues a decision.
    pub(super) fn decide(
        self: &Arc<Self>,
        slot: &Arc<TransactionSlot>,
        state: &mut MutexGuard<'_, TransactionalId>,
        decision: StoredDecision,
        next: TransactionState,
    ) -> Result<oneshot::Receiver<Result<(), TransactionError>>, TransactionError> {
        let (mut offsets, mut partitions) = (Vec::<(String, Vec<OffsetCommit>)>::new(), Vec::new());
        // Borrowed until the decision is queued: no deletion of a topic begins meanwhile.
        let namespace = self.engine.namespace();
        if let Some(ongoing) = &state.ongoing {
            let written = ongoing.partitions.values().filter(|partition| partition.has_batch);
            partitions.extend(written.map(|enlisted| Arc::clone(&enlisted.partition)));
        }
        if decision.is_committed
            && let Some(ongoing) = &state.ongoing
        {
            for ((group, ..), PendingOffset { commit, topic }) in &ongoing.offsets {
                // Its topic may be gone since it was added, or another one.
                if offset_topic(&namespace, &commit.topic, Hlc::MAX) != Some(*topic) {
                    continue;
                }
                match offsets.last_mut() {
                    Some((last, commits)) if last == group => commits.push(commit.clone()),
                    _ => offsets.push((group.clone(), vec![commit.clone()])),
                }
            }
        }
        partitions.sort_unstable_by_key(|partition| partition.log.id);
        let groups = self.engine.groups();
        let ending = groups.begin_decide_transaction(
            &slot.id,
            (decision, next.clone()),
            offsets,
            partitions,
        )?;
        drop(namespace);
        state.is_busy = true;
        let (shared, slot) = (Arc::clone(self), Arc::clone(slot));
        let (sender, receiver) = oneshot::channel::<Result<(), TransactionError>>();
        self.spawn(async move {
            let (decided, missing) = match ending.wait().await {
                Ok(result) => result,
                Err(error) => {
                    slot.state.lock().is_busy = false;
                    let _ = sender.send(Err(error.into()));
                    return;
                }
            };
            {
                let mut state = slot.state.lock();
                shared.close_ongoing(&mut state);
                state.state = next;
                state.is_busy = !missing.is_empty();
            }
            let _: Result<(), _> = sender.send(Ok(()));
            shared.write_markers(&slot, decision.end(), decided, missing).await;
        });
        Ok(receiver)
    }

    /// Writes markers until all are there.
    async fn write_markers(
        &self,
        slot: &TransactionSlot,
        end: TransactionEnd,
        decided: Hlc,
        mut missing: Vec<Arc<engine::Partition>>,
    ) {
        while !missing.is_empty() {
            tracing::warn!(
                id = &*slot.id,
                missing = missing.len(),
                "markers are missing; written again"
            );
            missing = self.engine.write_markers(end, decided, missing).await;
            if missing.is_empty() {
                slot.state.lock().is_busy = false;
            } else if self.engine.stop_reason().is_some() {
                return;
            } else {
                tokio::time::sleep(MARKER_RETRY).await;
            }
        }
    }

    /// Restores all transactional ids, and completes their markers.
    pub(super) fn restore(self: &Arc<Self>, stored: Vec<StoredTransaction>) {
        let mut by_producer = HashMap::new();
        let mut restored = Vec::with_capacity(stored.len());
        for StoredTransaction { id, state, decided, offsets, has_superseded } in stored {
            if let Some((_, decision)) = &decided {
                by_producer.insert(decision.producer, restored.len());
            }
            by_producer.insert(state.producer, restored.len());
            let is_v2 = state.raised_epoch;
            let mut transactional = TransactionalId::restored(state);
            if has_superseded {
                self.begin(&mut transactional, is_v2, self.budgets.restored());
            }
            for StoredTransactionOffset { group, added, commit } in offsets {
                let ongoing = self.begin(&mut transactional, is_v2, self.budgets.restored());
                let topic = offset_topic(&self.engine.namespace(), &commit.topic, added);
                if let Some(topic) = topic {
                    self.add_offset(ongoing, &group, PendingOffset { commit, topic });
                }
                ongoing.settle();
            }
            restored.push((id, transactional, decided, Vec::new()));
        }
        let topics = self.topic_ids();
        for (partition, producer, open) in self.engine.open_transactions() {
            let transaction = by_producer.get(&producer).map(|nth| &mut restored[*nth]);
            let Some((_, transactional, decided, missing)) = transaction else {
                tracing::error!(producer, "an open transaction belongs to no transactional id");
                continue;
            };
            let was_decided = decided.as_ref().is_some_and(|(stamp, decision)| {
                decision.producer == producer && open.stamp < *stamp
            });
            if was_decided {
                missing.push(partition);
                continue;
            }
            let is_v2 = transactional.state.raised_epoch;
            let ongoing = self.begin(transactional, is_v2, self.budgets.restored());
            ongoing.began = ongoing.began.min(open.stamp.time());
            let topic = topics.get(&partition.log.id).copied().unwrap_or_default();
            let added = ongoing.began_steady;
            let enlisted = EnlistedPartition { topic, partition, added, has_batch: true };
            ongoing.partitions.insert(enlisted.partition.log.id, enlisted);
            ongoing.settle();
        }
        for (id, mut state, decided, missing) in restored {
            // Before anyone reads or writes.
            let missing = match &decided {
                Some((decided, decision)) if !missing.is_empty() => {
                    self.engine.write_markers_blocking(decision.end(), *decided, missing)
                }
                _ => missing,
            };
            state.is_busy = !missing.is_empty();
            let slot = TransactionSlot::new(&id, state, self.budgets.restored_id(&id));
            self.slots.write().insert(Arc::clone(&slot.id), Arc::clone(&slot));
            if missing.is_empty() {
                continue;
            }
            let Some((decided, decision)) = decided else { continue };
            let shared = Arc::clone(self);
            self.spawn(async move {
                shared.write_markers(&slot, decision.end(), decided, missing).await;
            });
        }
    }

    /// The topic of each partition's log.
    fn topic_ids(&self) -> HashMap<engine::LogId, engine::TopicId> {
        let topics = self.engine.topics().all();
        let partitions_of = |topic: Arc<Topic>| {
            let id = topic.id;
            topic.partitions.iter().map(move |partition| (partition.log.id, id)).collect::<Vec<_>>()
        };
        topics.into_iter().flat_map(partitions_of).collect()
    }
}
