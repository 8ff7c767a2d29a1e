//! The events of transactions. The decisions behind them are made elsewhere: here the events get
//! their place.

use std::sync::Arc;

use engine_core::blocking::block_in_place;
use engine_core::namespace::Partition;
use engine_core::{EndingTransaction, EngineError, PendingStamp, TransactionDecision};
use hlc::Cut;

use crate::event::{GroupEvent, OffsetCommit};
use crate::group_projection::GroupProjection;
use crate::groups::Groups;
use crate::stored_transaction::StoredTransaction;
use crate::transaction_state::{StoredDecision, TransactionState};

/// Offsets to commit, by group.
pub type GroupedOffsets = Vec<(String, Vec<OffsetCommit>)>;

impl Groups {
    /// Saves a transactional id: when this returns, the place of the change is fixed.
    ///
    /// # Errors
    /// The engine accepts no more events.
    pub fn begin_save_transaction(
        &self,
        id: &str,
        state: TransactionState,
    ) -> Result<PendingStamp, EngineError> {
        self.begin_submit(GroupEvent::TransactionSaved { id: id.to_owned(), state })
    }

    /// Adds offsets to an open transaction: when this returns, their place is fixed.
    ///
    /// # Errors
    /// The engine accepts no more events.
    pub fn begin_add_transaction_offsets(
        &self,
        id: &str,
        group: &str,
        offsets: Vec<OffsetCommit>,
    ) -> Result<PendingStamp, EngineError> {
        let (id, group) = (id.to_owned(), group.to_owned());
        self.begin_submit(GroupEvent::TransactionOffsetsAdded { id, group, offsets })
    }

    /// Decides a transaction: when this returns, the place of the decision and of its markers is
    /// fixed. `partitions` are those in which it may have records.
    ///
    /// # Errors
    /// The engine accepts no more events.
    pub fn begin_decide_transaction(
        &self,
        id: &str,
        (decision, state): (StoredDecision, TransactionState),
        offsets: GroupedOffsets,
        partitions: Vec<Arc<Partition>>,
    ) -> Result<EndingTransaction, EngineError> {
        let id = id.to_owned();
        let event = GroupEvent::TransactionDecided { id, decision, state, offsets }.encode();
        let (projection, end) = (&GroupProjection, decision.end());
        self.core.begin_decision(TransactionDecision { projection, event, end, partitions })
    }

    /// Removes transactional ids.
    ///
    /// # Errors
    /// The engine accepts no more events.
    pub fn begin_expire_transactions(&self, ids: Vec<String>) -> Result<PendingStamp, EngineError> {
        self.begin_submit(GroupEvent::TransactionalIdsExpired { ids })
    }

    /// All transactional ids.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn transactions(&self) -> Result<Vec<StoredTransaction>, EngineError> {
        block_in_place(|| Ok(self.catalog()?.transactions(Cut::ALL)?))
    }
}
