//! All transactional ids, connected to the journal, to time, and to the requests that wait.
//!
//! No lock is held over an await. The map's lock is released before a transactional id's is taken.
//! A task of its own sees a queued event through, because the client may go away.
//!
//! This file has the requests; `steps` has the steps of a transaction, and `expiry` what ends by
//! itself.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use admission::{BudgetGrant, Holder};
use engine::groups::{OffsetCommit, StoredTransaction, TransactionState};
use engine::{
    Durability, Engine, EngineError, Namespace, PendingAppends, PendingStamp, RecordBatch, Topic,
};
use hlc::{Hlc, split_moment_topic};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::budgets::TransactionBudgets;
use crate::error::TransactionError;
use crate::options::TransactionOptions;
use crate::transactional_id::{
    EndPlan, EndVersion, InitPlan, OffsetTopic, PendingOffset, ProducerIdAndEpoch, TransactionalId,
};

mod expiry;
mod steps;

/// The number of transactional ids that are looked at before others have their turn.
const IDS_PER_TURN: usize = 1000;
/// The memory of an offset in a transaction, besides its texts.
const OFFSET_BYTES: usize = 256;

/// A transactional id under its lock.
#[derive(Debug)]
pub(crate) struct TransactionSlot {
    pub(crate) id: Arc<str>,
    pub(crate) state: Mutex<TransactionalId>,
    /// Its memory, and the holder that is charged for it.
    grant: Mutex<BudgetGrant>,
}

impl TransactionSlot {
    pub(crate) fn new(
        id: &str,
        state: TransactionalId,
        grant: BudgetGrant,
    ) -> Arc<TransactionSlot> {
        let (state, grant) = (Mutex::new(state), Mutex::new(grant));
        Arc::new(TransactionSlot { id: id.into(), state, grant })
    }

    /// Charges an id that a restart found to the principal that initializes it.
    fn claim(&self, holder: &Holder) {
        let mut grant = self.grant.lock();
        if grant.is_restored() {
            grant.hand_over(holder);
        }
    }
}

/// All transactional ids. Its tasks end with it.
pub struct TransactionCoordinator {
    shared: Arc<CoordinatorState>,
}

impl Drop for TransactionCoordinator {
    fn drop(&mut self) {
        // They hold the state, and wait for an engine that may never go on.
        self.shared.tasks.lock().abort_all();
    }
}

/// By topic and partition, by how many open transactions an offset is to be committed.
type PendingOffsets = HashMap<(String, u32), usize>;

pub(crate) struct CoordinatorState {
    engine: Arc<Engine>,
    options: TransactionOptions,
    slots: RwLock<BTreeMap<Arc<str>, Arc<TransactionSlot>>>,
    /// The offsets that open transactions are to commit, by group.
    pending: Mutex<HashMap<String, PendingOffsets>>,
    budgets: TransactionBudgets,
    tasks: Mutex<JoinSet<()>>,
}

/// The way in which batches belong to a transaction.
#[derive(Clone, Debug)]
pub struct TransactionScope {
    pub transactional_id: String,
    /// True if a batch adds its partition to the transaction, and begins it if there is none
    /// (KIP-890).
    pub may_begin: bool,
    /// The account of the client.
    pub holder: Holder,
}

/// The next step to initialize a producer, after its transactional id is unlocked.
enum InitStep {
    /// The transactional id was removed: look it up again.
    FindAgain,
    NeedsProducerId,
    /// The abort of the open transaction is queued. The initialization comes after it.
    Aborting(oneshot::Receiver<Result<(), TransactionError>>),
    /// The initialization of this producer is queued.
    Saving(oneshot::Receiver<Result<(), TransactionError>>, ProducerIdAndEpoch),
}

impl TransactionCoordinator {
    /// Restores the transactional ids of the journal, completes what a crash interrupted, and
    /// spawns the tasks that watch over timeouts: it has to be called within a tokio runtime.
    ///
    /// # Errors
    /// The journal cannot be read, or refuses what is to be completed.
    pub fn open(
        engine: Arc<Engine>,
        options: TransactionOptions,
    ) -> Result<TransactionCoordinator, EngineError> {
        let stored = engine.groups().transactions()?;
        let decided = |producer: i64| {
            let decision_of = |transaction: &StoredTransaction| {
                transaction.decided.filter(|(_, decision)| decision.producer == producer)
            };
            let newest = stored.iter().filter_map(decision_of).max_by_key(|(stamp, _)| *stamp)?;
            Some((newest.0, newest.1.is_committed))
        };
        engine.complete_transaction_logs(decided)?;
        let budgets = TransactionBudgets::new(&options, engine.budgets());
        let shared = Arc::new(CoordinatorState {
            engine,
            options,
            slots: RwLock::default(),
            pending: Mutex::default(),
            budgets,
            tasks: Mutex::default(),
        });
        shared.restore(stored);
        shared
            .spawn(expiry::abort_timed_out(Arc::downgrade(&shared), shared.options.abort_interval));
        shared.spawn(expiry::remove_expired(
            Arc::downgrade(&shared),
            shared.options.removal_interval,
        ));
        Ok(TransactionCoordinator { shared })
    }

    /// Initializes a producer: gives it an id and an epoch that fence all earlier producers of the
    /// transactional id, and aborts what they left open.
    pub async fn init_producer(
        &self,
        id: &str,
        timeout_ms: i32,
        expected: Option<ProducerIdAndEpoch>,
        holder: &Holder,
    ) -> Result<ProducerIdAndEpoch, TransactionError> {
        if id.is_empty() {
            return Err(TransactionError::EmptyId);
        }
        let timeout_ms = u32::try_from(timeout_ms).ok().filter(|timeout| *timeout > 0);
        let is_short =
            |timeout: &u32| u128::from(*timeout) <= self.shared.options.timeout_max.as_millis();
        let timeout_ms = timeout_ms.filter(is_short).ok_or(TransactionError::InvalidTimeout)?;
        let mut spare = None;
        loop {
            let slot = self.shared.find_or_create(id, timeout_ms, holder).await?;
            let step = {
                let mut state = slot.state.lock();
                let now = self.shared.engine.wall_now();
                match state.plan_init(timeout_ms, expected, spare, now)? {
                    InitPlan::Done(producer) => return Ok(producer),
                    InitPlan::Removed => InitStep::FindAgain,
                    InitPlan::NeedsProducerId => InitStep::NeedsProducerId,
                    InitPlan::AbortFirst(decision, next) => {
                        let queued = self.shared.decide(&slot, &mut state, decision, next)?;
                        InitStep::Aborting(queued)
                    }
                    InitPlan::Save(next) => {
                        let producer = producer_of(&next);
                        let queued = self.shared.save(&slot, &mut state, next)?;
                        InitStep::Saving(queued, producer)
                    }
                }
            };
            match step {
                InitStep::FindAgain => tokio::task::yield_now().await,
                InitStep::NeedsProducerId => {
                    spare = Some(self.shared.engine.new_producer_id().await?);
                }
                InitStep::Aborting(queued) => receive(queued).await?,
                InitStep::Saving(queued, producer) => {
                    receive(queued).await?;
                    // Return the producer that was decided for this request: by now another one may
                    // have come.
                    return Ok(producer);
                }
            }
        }
    }

    /// Ends the transaction of a producer; returns with what it goes on.
    pub async fn end(
        &self,
        id: &str,
        producer: ProducerIdAndEpoch,
        is_committed: bool,
        version: EndVersion,
    ) -> Result<ProducerIdAndEpoch, TransactionError> {
        let mut spare = None;
        loop {
            let slot = self.shared.find(id)?;
            let waiting = {
                let mut state = slot.state.lock();
                let now = self.shared.engine.wall_now();
                match state.plan_end(producer, is_committed, version, spare, now)? {
                    EndPlan::Done(producer) => return Ok(producer),
                    EndPlan::NeedsProducerId => None,
                    EndPlan::Decide(decision, next) => {
                        let producer = producer_of(&next);
                        Some((self.shared.decide(&slot, &mut state, decision, next)?, producer))
                    }
                    EndPlan::Raise(next) => {
                        let producer = producer_of(&next);
                        Some((self.shared.save(&slot, &mut state, next)?, producer))
                    }
                }
            };
            match waiting {
                None => spare = Some(self.shared.engine.new_producer_id().await?),
                Some((waiting, producer)) => {
                    receive(waiting).await?;
                    return Ok(producer);
                }
            }
        }
    }

    /// Adds partitions to the transaction of a producer, which begins with that if there is none.
    pub fn add_partitions(
        &self,
        id: &str,
        producer: ProducerIdAndEpoch,
        partitions: &[(Arc<Topic>, u32)],
        holder: &Holder,
    ) -> Result<(), TransactionError> {
        let slot = self.shared.find(id)?;
        let mut state = slot.state.lock();
        state.check(producer)?;
        let have = state.ongoing.as_ref().map(|ongoing| &ongoing.partitions);
        let is_new = |(topic, index): &&(Arc<Topic>, u32)| {
            have.is_none_or(|have| !have.contains_key(&topic.partitions[*index as usize].log.id))
        };
        let new = partitions.iter().filter(is_new).count();
        let grants = self.shared.budgets.take(account(&state, holder), new, 0)?;
        let ongoing = self.shared.begin(&mut state, false, grants);
        for (topic, index) in partitions {
            self.shared.add_partition(ongoing, topic, *index);
        }
        ongoing.settle();
        Ok(())
    }

    /// Returns for each of these partitions if it is in the transaction of a producer.
    pub fn verify_partitions(
        &self,
        id: &str,
        producer: ProducerIdAndEpoch,
        partitions: &[(Arc<Topic>, u32)],
    ) -> Result<Vec<bool>, TransactionError> {
        let slot = self.shared.find(id)?;
        let state = slot.state.lock();
        state.check(producer)?;
        let is_in = |(topic, index): &(Arc<Topic>, u32)| {
            let log = topic.partitions[*index as usize].log.id;
            state.may_have_added(|ongoing| ongoing.partitions.contains_key(&log))
        };
        Ok(partitions.iter().map(is_in).collect())
    }

    /// Adds a group to the transaction of a producer, which begins with that if there is none.
    pub fn add_group(
        &self,
        id: &str,
        producer: ProducerIdAndEpoch,
        group: &str,
        holder: &Holder,
    ) -> Result<(), TransactionError> {
        let slot = self.shared.find(id)?;
        let mut state = slot.state.lock();
        state.check(producer)?;
        if state.ongoing.as_ref().is_some_and(|ongoing| ongoing.groups.contains(group)) {
            return Ok(());
        }
        let bytes = OFFSET_BYTES + group.len();
        let grants = self.shared.budgets.take(account(&state, holder), 0, bytes)?;
        let ongoing = self.shared.begin(&mut state, false, grants);
        ongoing.groups.insert(group.to_owned());
        ongoing.offset_bytes += bytes;
        Ok(())
    }

    /// Adds offsets to the transaction of a producer: when this returns, their place is fixed.
    /// `offsets` gets the namespace, in which no deletion of a topic begins until they have their
    /// place; `None` if it returns none.
    pub fn begin_add_offsets(
        &self,
        scope: &TransactionScope,
        producer: ProducerIdAndEpoch,
        group: &str,
        offsets: impl FnOnce(&Namespace) -> Vec<OffsetCommit>,
    ) -> Result<Option<PendingStamp>, TransactionError> {
        let slot = self.shared.find(&scope.transactional_id)?;
        let mut state = slot.state.lock();
        state.check(producer)?;
        let is_added = state.may_have_added(|ongoing| ongoing.groups.contains(group));
        if !scope.may_begin && !is_added {
            return Err(TransactionError::InvalidState);
        }
        let namespace = self.shared.engine.namespace();
        let offsets = offsets(&namespace);
        if offsets.is_empty() {
            return Ok(None);
        }
        let bytes: usize = offsets.iter().map(|commit| offset_bytes(group, commit)).sum();
        let grants = self.shared.budgets.take(account(&state, &scope.holder), 0, bytes)?;
        let groups = self.shared.engine.groups();
        let queued = groups.begin_add_transaction_offsets(&slot.id, group, offsets.clone())?;
        let ongoing = self.shared.begin(&mut state, scope.may_begin, grants);
        for commit in offsets {
            if let Some(topic) = offset_topic(&namespace, &commit.topic, Hlc::MAX) {
                self.shared.add_offset(ongoing, group, PendingOffset { commit, topic });
            }
        }
        ongoing.settle();
        Ok(Some(queued))
    }

    /// Appends the batches of one transaction. The result has an error for each batch that does not
    /// belong to it; the others are appended, in order.
    pub async fn append(
        &self,
        scope: &TransactionScope,
        batches: Vec<(Arc<Topic>, u32, RecordBatch)>,
        durability: Durability,
    ) -> (Vec<Option<TransactionError>>, PendingAppends) {
        let engine = &self.shared.engine;
        let bytes: usize = batches.iter().map(|(.., batch)| batch.payload.len()).sum();
        let flight = engine.append_budget().acquire(&scope.holder, bytes).await;
        let prepare = |(topic, index, _): &(Arc<Topic>, u32, RecordBatch)| {
            engine.prepare_transactions(&topic.partitions[*index as usize])
        };
        let slot = match batches.iter().try_for_each(prepare) {
            Ok(()) => self.shared.find(&scope.transactional_id),
            Err(error) => Err(error.into()),
        };
        // Held until the batches are queued.
        let mut state = slot.as_ref().map(|slot| slot.state.lock()).map_err(Clone::clone);
        let (mut errors, mut queued) = (Vec::with_capacity(batches.len()), Vec::new());
        for (topic, index, batch) in batches {
            let enlisted = match &mut state {
                Ok(state) => self.shared.enlist(state, scope, &topic, index, &batch),
                Err(error) => Err(error.clone()),
            };
            match enlisted {
                Ok(()) => queued.push((topic, index, batch)),
                Err(_) => drop(batch),
            }
            errors.push(enlisted.err());
        }
        let pending = engine.queue_append(flight, queued, durability);
        drop(state);
        (errors, pending)
    }

    /// The offsets of a group that open transactions may still commit (KIP-447): topics and
    /// partitions.
    pub fn pending_offsets(&self, group: &str) -> HashSet<(String, u32)> {
        let pending = self.shared.pending.lock();
        pending.get(group).map(|offsets| offsets.keys().cloned().collect()).unwrap_or_default()
    }

    /// Finds the transactional ids of producers, by producer id.
    pub async fn of_producers(&self, producers: &HashSet<i64>) -> HashMap<i64, String> {
        let mut ids = HashMap::new();
        for (nth, slot) in self.shared.slots().into_iter().enumerate() {
            let_others_run(nth).await;
            let producer = slot.state.lock().state.producer;
            if producers.contains(&producer) {
                ids.insert(producer, slot.id.to_string());
            }
        }
        ids
    }

    /// Aborts the open transaction of a producer for an operator.
    pub async fn abort(
        &self,
        id: &str,
        producer: ProducerIdAndEpoch,
    ) -> Result<(), TransactionError> {
        let slot = &self.shared.find(id)?;
        let waiting = {
            let mut state = slot.state.lock();
            state.check(producer)?;
            if state.ongoing.is_none() {
                return Err(TransactionError::InvalidState);
            }
            let (decision, next) = state.plan_fence(self.shared.engine.wall_now());
            self.shared.decide(slot, &mut state, decision, next)?
        };
        receive(waiting).await
    }

    pub(crate) fn slots(&self) -> Vec<Arc<TransactionSlot>> {
        self.shared.slots()
    }

    pub(crate) fn find(&self, id: &str) -> Option<Arc<TransactionSlot>> {
        self.shared.slots.read().get(id).cloned()
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.engine
    }
}

/// Lets others run after each [`IDS_PER_TURN`] of a walk over all transactional ids.
async fn let_others_run(nth: usize) {
    if nth % IDS_PER_TURN == IDS_PER_TURN - 1 {
        tokio::task::yield_now().await;
    }
}

fn producer_of(state: &TransactionState) -> ProducerIdAndEpoch {
    ProducerIdAndEpoch { id: state.producer, epoch: state.epoch }
}

async fn receive(
    waiting: oneshot::Receiver<Result<(), TransactionError>>,
) -> Result<(), TransactionError> {
    waiting
        .await
        .unwrap_or_else(|_| Err(EngineError::Stopping("the service is stopping".into()).into()))
}

/// The topic of an offset that was added at `added`; `None` if it is gone, or about to go.
fn offset_topic(namespace: &Namespace, name: &str, added: Hlc) -> Option<OffsetTopic> {
    match namespace.topic(name) {
        Some(topic) => {
            let accepts_offsets = topic.created < added && namespace.accepts_offsets(&topic.id);
            accepts_offsets.then_some(OffsetTopic::Present(topic.id))
        }
        None => split_moment_topic(name).map(|_| OffsetTopic::Past),
    }
}

/// The account of a transaction: that of its first request, or of this one if it has none yet.
fn account<'a>(state: &'a TransactionalId, holder: &'a Holder) -> &'a Holder {
    let ongoing = state.ongoing.as_ref().map(|ongoing| ongoing.grants.holder());
    ongoing.filter(|began| !began.is_restored()).unwrap_or(holder)
}

fn offset_bytes(group: &str, commit: &OffsetCommit) -> usize {
    OFFSET_BYTES + 2 * (group.len() + commit.topic.len()) + commit.metadata.len()
}
