//! One transactional id: its producer, its epoch, and its open transaction.
//!
//! Pure: it reads no clock and does no I/O.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use engine::groups::{LastTransaction, OffsetCommit, StoredDecision, TransactionState};
use engine::{LogId, Partition, TopicId};
use hlc::SysTime;

use crate::budgets::{LAPSE_MIN, TransactionGrants};
use crate::error::TransactionError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProducerIdAndEpoch {
    pub id: i64,
    pub epoch: i16,
}

/// From this epoch on, a producer that asks for another one gets another id too. The last epoch is
/// left for fencing.
const EPOCH_EXHAUSTED: i16 = i16::MAX - 1;

/// A partition of an open transaction.
#[derive(Clone, Debug)]
pub(crate) struct EnlistedPartition {
    pub topic: TopicId,
    pub partition: Arc<Partition>,
    /// The time at which it was added, since the start of the service.
    pub added: Duration,
    /// True if it may have records of the transaction.
    pub has_batch: bool,
}

/// A group, a topic and a partition.
pub(crate) type OffsetKey = (String, String, u32);

/// The topic of an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffsetTopic {
    Present(TopicId),
    /// A moment's.
    Past,
}

/// An offset that a transaction commits.
#[derive(Clone, Debug)]
pub(crate) struct PendingOffset {
    pub commit: OffsetCommit,
    pub topic: OffsetTopic,
}

#[derive(Debug)]
pub(crate) struct OngoingTransaction {
    /// The time at which it began, by the wall clock, and since the start of the service.
    pub began: SysTime,
    pub began_steady: Duration,
    /// The partitions that were added to it.
    pub partitions: HashMap<LogId, EnlistedPartition>,
    /// The groups for which it may commit offsets.
    pub groups: HashSet<String>,
    /// The offsets that it commits.
    pub offsets: BTreeMap<OffsetKey, PendingOffset>,
    /// The bytes of its groups and offsets.
    pub offset_bytes: usize,
    /// Its part of the budgets.
    pub grants: TransactionGrants,
    /// The version of the protocol that it was begun with.
    pub version: EndVersion,
    /// True if it may take partitions and groups that were not added to it, because it is not known
    /// what was added: the service was restarted meanwhile.
    pub is_restored: bool,
}

#[derive(Debug)]
pub(crate) struct TransactionalId {
    /// The state that is stored of it.
    pub state: TransactionState,
    pub ongoing: Option<OngoingTransaction>,
    /// True if an event of it is on its way to the journal, or markers are missing.
    pub is_busy: bool,
    /// True if it was removed: then it must be looked up again.
    pub is_removed: bool,
    /// True if the service was restarted since its last transaction: a producer may have added
    /// partitions to one that is not known.
    pub is_restored: bool,
}

/// The plan to end the transaction of a producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EndPlan {
    /// It was done before.
    Done(ProducerIdAndEpoch),
    /// The id needs another producer id, because its epochs are used up.
    NeedsProducerId,
    /// To decide the transaction, and how the id goes on.
    Decide(StoredDecision, TransactionState),
    /// There is no transaction to abort; only the epoch goes on.
    Raise(TransactionState),
}

/// The plan to initialize a producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InitPlan {
    /// It was done before.
    Done(ProducerIdAndEpoch),
    /// The transactional id was removed: to look it up again.
    Removed,
    /// The id needs another producer id.
    NeedsProducerId,
    /// To abort the open transaction first, and how the id goes on then.
    AbortFirst(StoredDecision, TransactionState),
    Save(TransactionState),
}

/// The version of the protocol that ends a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndVersion {
    /// The epoch stays.
    V1,
    /// Each end raises the epoch (KIP-890).
    V2,
}

impl OngoingTransaction {
    /// Charges what it has.
    pub(crate) fn settle(&mut self) {
        self.grants.settle(self.partitions.len(), self.offset_bytes);
    }

    /// Forgets the partitions that were added long ago and not written to: they are not in the
    /// transaction any more, and a write to one is refused.
    pub(crate) fn lapse(&mut self, steady: Duration) {
        let stays = |partition: &EnlistedPartition| {
            partition.has_batch || steady.saturating_sub(partition.added) < LAPSE_MIN
        };
        self.partitions.retain(|_, partition| stays(partition));
        self.partitions.shrink_to_fit();
        self.settle();
    }
}

impl TransactionalId {
    /// A transactional id of a new producer.
    pub(crate) fn new(producer: i64, timeout_ms: u32) -> TransactionalId {
        let state = TransactionState {
            producer,
            epoch: -1,
            previous_producer: -1,
            last_epoch: -1,
            timeout_ms,
            last: LastTransaction::None,
            raised_epoch: false,
            updated_ms: 0,
        };
        TransactionalId::restored(state)
    }

    /// A transactional id as it was stored.
    pub(crate) fn restored(state: TransactionState) -> TransactionalId {
        let (is_busy, is_removed, is_restored) = (false, false, true);
        TransactionalId { state, ongoing: None, is_busy, is_removed, is_restored }
    }

    pub(crate) fn current(&self) -> ProducerIdAndEpoch {
        ProducerIdAndEpoch { id: self.state.producer, epoch: self.state.epoch }
    }

    fn is_exhausted(&self) -> bool {
        self.state.epoch >= EPOCH_EXHAUSTED
    }

    /// Checks that this is the current producer, and that its last request is done.
    pub(crate) fn check(&self, producer: ProducerIdAndEpoch) -> Result<(), TransactionError> {
        if producer.id != self.state.producer {
            return Err(TransactionError::InvalidProducerIdMapping);
        }
        if producer.epoch != self.state.epoch {
            return Err(TransactionError::Fenced);
        }
        if self.is_removed {
            return Err(TransactionError::InvalidProducerIdMapping);
        }
        if self.is_busy { Err(TransactionError::Concurrent) } else { Ok(()) }
    }

    /// The open transaction, which begins now if there is none. It gets the room that was taken for
    /// it.
    pub(crate) fn begin(
        &mut self,
        now: SysTime,
        steady: Duration,
        version: EndVersion,
        grants: TransactionGrants,
    ) -> &mut OngoingTransaction {
        match &mut self.ongoing {
            Some(ongoing) => {
                ongoing.grants.absorb(grants);
                ongoing
            }
            ongoing => ongoing.insert(OngoingTransaction {
                began: now,
                began_steady: steady,
                partitions: HashMap::new(),
                groups: HashSet::new(),
                offsets: BTreeMap::new(),
                offset_bytes: 0,
                grants,
                version,
                is_restored: self.is_restored,
            }),
        }
    }

    /// True if something was added to the open transaction, as far as that can be known after a
    /// restart.
    pub(crate) fn may_have_added(&self, is_added: impl Fn(&OngoingTransaction) -> bool) -> bool {
        match &self.ongoing {
            Some(ongoing) => ongoing.is_restored || is_added(ongoing),
            None => self.is_restored,
        }
    }

    /// Plans the end of the transaction of a producer. `spare` is a producer id to go on with, if
    /// one is needed.
    ///
    /// The rules are those of Kafka's `TransactionCoordinator`, where `PREPARE_*` is to be busy.
    pub(crate) fn plan_end(
        &self,
        producer: ProducerIdAndEpoch,
        is_committed: bool,
        version: EndVersion,
        spare: Option<i64>,
        now: SysTime,
    ) -> Result<EndPlan, TransactionError> {
        match version {
            EndVersion::V1 => self.plan_end_v1(producer, is_committed, now),
            EndVersion::V2 => self.plan_end_v2(producer, is_committed, spare, now),
        }
    }

    fn plan_end_v1(
        &self,
        producer: ProducerIdAndEpoch,
        is_committed: bool,
        now: SysTime,
    ) -> Result<EndPlan, TransactionError> {
        self.check(producer)?;
        let is_done = self.state.last == last(is_committed);
        if self.ongoing.is_some() || (self.is_restored && !is_done) {
            let decision = self.decision(is_committed, self.state.epoch);
            let state = TransactionState {
                last: last(is_committed),
                raised_epoch: false,
                updated_ms: now.0,
                ..self.state.clone()
            };
            return Ok(EndPlan::Decide(decision, state));
        }
        if is_done {
            Ok(EndPlan::Done(self.current()))
        } else {
            Err(TransactionError::InvalidState)
        }
    }

    fn plan_end_v2(
        &self,
        producer: ProducerIdAndEpoch,
        is_committed: bool,
        spare: Option<i64>,
        now: SysTime,
    ) -> Result<EndPlan, TransactionError> {
        let state = &self.state;
        if self.is_removed {
            return Err(TransactionError::InvalidProducerIdMapping);
        }
        if self.is_busy {
            return Err(TransactionError::Concurrent);
        }
        // The client did not get the response to a request that was done.
        let is_retry_with_id = state.previous_producer == producer.id
            && producer.epoch == EPOCH_EXHAUSTED
            && state.epoch == 0;
        let is_retry = is_retry_with_id
            || (state.producer == producer.id
                && state.raised_epoch
                && producer.epoch.checked_add(1) == Some(state.epoch));
        if producer.id != state.producer && !is_retry_with_id {
            return Err(TransactionError::InvalidProducerIdMapping);
        }
        let has_ended = self.ongoing.is_none() && state.last != LastTransaction::None;
        if producer.epoch != state.epoch && !(is_retry && has_ended) {
            return Err(TransactionError::Fenced);
        }
        if is_retry {
            return if state.last == last(is_committed) {
                Ok(EndPlan::Done(self.current()))
            } else {
                Err(TransactionError::InvalidState)
            };
        }
        let is_ongoing = self.ongoing.is_some();
        if !is_ongoing && is_committed {
            return Err(TransactionError::InvalidState);
        }
        let mut next = TransactionState {
            last: last(is_committed),
            raised_epoch: true,
            updated_ms: now.0,
            last_epoch: state.epoch,
            ..state.clone()
        };
        let marker_epoch = state.epoch.saturating_add(1);
        if self.is_exhausted() {
            let Some(spare) = spare else { return Ok(EndPlan::NeedsProducerId) };
            (next.producer, next.epoch, next.previous_producer) = (spare, 0, state.producer);
        } else {
            next.epoch = marker_epoch;
        }
        Ok(if is_ongoing {
            EndPlan::Decide(self.decision(is_committed, marker_epoch), next)
        } else {
            EndPlan::Raise(next)
        })
    }

    fn decision(&self, is_committed: bool, epoch: i16) -> StoredDecision {
        StoredDecision { producer: self.state.producer, epoch, is_committed }
    }

    /// The abort of the open transaction that fences its producer. A producer of the second version
    /// learns of its next epoch when it aborts the transaction itself.
    pub(crate) fn plan_fence(&self, now: SysTime) -> (StoredDecision, TransactionState) {
        let epoch = self.state.epoch.saturating_add(1);
        let ongoing = self.ongoing.as_ref();
        let raised_epoch = ongoing.is_some_and(|ongoing| ongoing.version == EndVersion::V2);
        let state = TransactionState {
            epoch,
            last_epoch: -1,
            last: LastTransaction::Aborted,
            raised_epoch,
            updated_ms: now.0,
            ..self.state.clone()
        };
        (self.decision(false, epoch), state)
    }

    /// Plans the initialization of a producer. `expected` is what the producer had before, if it
    /// goes on after an error (KIP-360).
    pub(crate) fn plan_init(
        &self,
        timeout_ms: u32,
        expected: Option<ProducerIdAndEpoch>,
        spare: Option<i64>,
        now: SysTime,
    ) -> Result<InitPlan, TransactionError> {
        let state = &self.state;
        if self.is_removed {
            return Ok(InitPlan::Removed);
        }
        if self.is_busy {
            return Err(TransactionError::Concurrent);
        }
        let is_new = state.epoch < 0;
        let is_valid = |expected: ProducerIdAndEpoch| {
            is_new
                || expected.id == state.producer
                || (expected.id == state.previous_producer && expected.epoch >= EPOCH_EXHAUSTED)
        };
        if !expected.is_none_or(is_valid) {
            return Err(TransactionError::Fenced);
        }
        if self.ongoing.is_some() {
            // A producer that was fenced must not abort what its successor does.
            if expected.is_some_and(|expected| expected != self.current()) {
                return Err(TransactionError::Fenced);
            }
            let (decision, state) = self.plan_fence(now);
            return Ok(InitPlan::AbortFirst(decision, state));
        }
        let mut next = TransactionState {
            timeout_ms,
            last: LastTransaction::None,
            raised_epoch: false,
            updated_ms: now.0,
            ..state.clone()
        };
        let expected_epoch = expected.map(|expected| expected.epoch);
        if self.is_exhausted() && expected_epoch.is_none_or(|expected| expected == state.epoch) {
            let Some(spare) = spare else { return Ok(InitPlan::NeedsProducerId) };
            (next.previous_producer, next.producer, next.epoch) = (state.producer, spare, 0);
            next.last_epoch = expected_epoch.map_or(-1, |_| state.epoch);
            return Ok(InitPlan::Save(next));
        }
        match expected_epoch {
            None => next.last_epoch = -1,
            Some(_) if is_new => next.last_epoch = state.epoch,
            Some(expected) if expected == state.epoch => next.last_epoch = state.epoch,
            // The client did not get the response.
            Some(expected) if expected == state.last_epoch && !is_new => {
                return Ok(InitPlan::Done(self.current()));
            }
            Some(_) => return Err(TransactionError::Fenced),
        }
        next.epoch = state.epoch.saturating_add(1);
        Ok(InitPlan::Save(next))
    }
}

fn last(is_committed: bool) -> LastTransaction {
    if is_committed { LastTransaction::Committed } else { LastTransaction::Aborted }
}
