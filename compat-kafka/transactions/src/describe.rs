//! Descriptions of transactional ids.

use std::collections::BTreeMap;

use engine::groups::LastTransaction;

use crate::coordinator::{TransactionCoordinator, TransactionSlot};
use crate::transactional_id::{ProducerIdAndEpoch, TransactionalId};

/// The state of a transactional id, in Kafka's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    Empty,
    Ongoing,
    PrepareCommit,
    PrepareAbort,
    CompleteCommit,
    CompleteAbort,
}

impl TransactionStatus {
    const ALL: [TransactionStatus; 6] = [
        TransactionStatus::Empty,
        TransactionStatus::Ongoing,
        TransactionStatus::PrepareCommit,
        TransactionStatus::PrepareAbort,
        TransactionStatus::CompleteCommit,
        TransactionStatus::CompleteAbort,
    ];

    fn of(state: &TransactionalId) -> TransactionStatus {
        match (&state.ongoing, state.is_busy, state.state.last) {
            (Some(_), ..) => TransactionStatus::Ongoing,
            (None, true, LastTransaction::Committed) => TransactionStatus::PrepareCommit,
            (None, true, LastTransaction::Aborted) => TransactionStatus::PrepareAbort,
            (None, false, LastTransaction::Committed) => TransactionStatus::CompleteCommit,
            (None, false, LastTransaction::Aborted) => TransactionStatus::CompleteAbort,
            (None, _, LastTransaction::None) => TransactionStatus::Empty,
        }
    }

    /// Its name on Kafka's wire.
    pub fn name(self) -> &'static str {
        match self {
            TransactionStatus::Empty => "Empty",
            TransactionStatus::Ongoing => "Ongoing",
            TransactionStatus::PrepareCommit => "PrepareCommit",
            TransactionStatus::PrepareAbort => "PrepareAbort",
            TransactionStatus::CompleteCommit => "CompleteCommit",
            TransactionStatus::CompleteAbort => "CompleteAbort",
        }
    }

    /// The state of that name.
    pub fn named(name: &str) -> Option<TransactionStatus> {
        TransactionStatus::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// A transactional id in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionOverview {
    pub id: String,
    pub producer: ProducerIdAndEpoch,
    pub status: TransactionStatus,
    /// The time for which its transaction has been open, in milliseconds.
    pub open_ms: Option<u64>,
}

/// A transactional id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionDescription {
    pub producer: ProducerIdAndEpoch,
    pub status: TransactionStatus,
    pub timeout_ms: u32,
    /// The start of its transaction, in milliseconds since 1970.
    pub began_ms: Option<u64>,
    /// The partitions of its transaction, by topic.
    pub partitions: BTreeMap<String, Vec<u32>>,
}

impl TransactionCoordinator {
    /// All transactional ids, by id.
    pub fn list(&self) -> Vec<TransactionOverview> {
        let now = self.engine().wall_now();
        let describe = |slot: &TransactionSlot| {
            let state = slot.state.lock();
            let began = state.ongoing.as_ref().map(|ongoing| ongoing.began);
            (state.state.epoch >= 0).then(|| TransactionOverview {
                id: slot.id.to_string(),
                producer: state.current(),
                status: TransactionStatus::of(&state),
                open_ms: began.map(|began| now.0.saturating_sub(began.0)),
            })
        };
        let mut descriptions: Vec<_> =
            self.slots().iter().filter_map(|slot| describe(slot)).collect();
        descriptions.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        descriptions
    }

    /// A transactional id, if there is one.
    pub fn describe(&self, id: &str) -> Option<TransactionDescription> {
        let slot = self.find(id)?;
        let state = slot.state.lock();
        if state.state.epoch < 0 {
            return None;
        }
        let mut partitions = BTreeMap::<String, Vec<u32>>::new();
        let namespace = self.engine().namespace();
        for enlisted in state.ongoing.iter().flat_map(|ongoing| ongoing.partitions.values()) {
            if let Some(name) = namespace.name_of(&enlisted.topic) {
                partitions.entry(name.to_string()).or_default().push(enlisted.partition.index);
            }
        }
        partitions.values_mut().for_each(|indexes| indexes.sort_unstable());
        Some(TransactionDescription {
            producer: state.current(),
            status: TransactionStatus::of(&state),
            timeout_ms: state.state.timeout_ms,
            began_ms: state.ongoing.as_ref().map(|ongoing| ongoing.began.0),
            partitions,
        })
    }
}
