//! The part of transactions in the budgets that all clients share.
//!
//! A transactional id is charged to the principal that initialized it first. A restart does not
//! know it: then the next one that initializes it. The contents of an open transaction are charged
//! to the principal that began it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use admission::{
    Budget, BudgetError, BudgetGrant, BudgetKind, BudgetRegistry, BudgetSource, BudgetSpec,
    BudgetUsage, Holder,
};
use parking_lot::Mutex;

use crate::coordinator::TransactionSlot;
use crate::options::TransactionOptions;
use engine::RefusalLog;

/// The memory of a transactional id besides its text: its slot and its text with the counts and the
/// allocator's share, and an entry of the map with the room that its nodes leave free.
const ID_BYTES: usize = size_of::<TransactionSlot>() + 128;
/// A partition that was added and not written to for so long may lapse: as long as stock producers
/// try to write it (`delivery.timeout.ms`).
pub(crate) const LAPSE_MIN: Duration = Duration::from_secs(120);
/// The most holders whose partitions are to lapse that are noted at a time.
const REFUSED_MAX: usize = 1000;

/// The budgets of all transactions.
#[derive(Debug)]
pub(crate) struct TransactionBudgets {
    ids: Arc<Budget>,
    partitions: Arc<Budget>,
    offset_bytes: Arc<Budget>,
    /// The holders that were refused partitions since this was taken last.
    refused: Mutex<HashSet<Holder>>,
    log: RefusalLog,
}

/// The amounts that an open transaction takes of the budgets.
#[derive(Debug)]
pub(crate) struct TransactionGrants {
    partitions: BudgetGrant,
    offset_bytes: BudgetGrant,
}

/// The holders whose partitions lapse if they were not written to.
#[derive(Debug)]
pub(crate) struct LapsingHolders {
    refused: HashSet<Holder>,
    /// If partitions are short, holders that have more than this lapse too.
    share: Option<u64>,
    partitions: Arc<Budget>,
}

impl TransactionBudgets {
    pub(crate) fn new(options: &TransactionOptions, registry: &BudgetRegistry) -> Self {
        let budget = |name, unit, setting, limit: usize| {
            let spec = BudgetSpec { name, unit, setting: Some(setting), kind: BudgetKind::Kept };
            registry.budget(spec, limit as u64)
        };
        TransactionBudgets {
            ids: budget(
                "transactional-ids",
                "bytes of transactional ids",
                "limits.transactional-ids-bytes",
                options.ids_bytes_max,
            ),
            partitions: budget(
                "transaction-partitions",
                "partitions of open transactions",
                "limits.transaction-partitions-max",
                options.enlisted_max,
            ),
            offset_bytes: budget(
                "transaction-offsets",
                "bytes of offsets in open transactions",
                "limits.transaction-offsets-bytes",
                options.offsets_bytes_max,
            ),
            refused: Mutex::default(),
            log: RefusalLog::new("a transaction is refused"),
        }
    }

    /// Charges a new transactional id.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn take_id(&self, id: &str, holder: &Holder) -> Result<BudgetGrant, BudgetError> {
        let grant = self.ids.take(holder, id_bytes(id));
        grant.inspect_err(|error| self.log.warn(error))
    }

    /// Charges a transactional id that a restart found.
    pub(crate) fn restored_id(&self, id: &str) -> BudgetGrant {
        self.ids.take_always(&Holder::restored(), id_bytes(id))
    }

    /// Charges an addition to an open transaction.
    ///
    /// # Errors
    /// There is no room for it.
    pub(crate) fn take(
        &self,
        holder: &Holder,
        partitions: usize,
        offset_bytes: usize,
    ) -> Result<TransactionGrants, BudgetError> {
        let partitions = self.partitions.take(holder, partitions as u64).inspect_err(|_| {
            let mut refused = self.refused.lock();
            if refused.len() < REFUSED_MAX {
                refused.insert(holder.clone());
            }
        });
        let offset_bytes = || self.offset_bytes.take(holder, offset_bytes as u64);
        let grants = partitions.and_then(|partitions| {
            Ok(TransactionGrants { partitions, offset_bytes: offset_bytes()? })
        });
        grants.inspect_err(|error| self.log.warn(error))
    }

    /// The grants of an open transaction that a restart found.
    pub(crate) fn restored(&self) -> TransactionGrants {
        let holder = Holder::restored();
        TransactionGrants {
            partitions: self.partitions.take_always(&holder, 0),
            offset_bytes: self.offset_bytes.take_always(&holder, 0),
        }
    }

    /// The holders whose partitions lapse now: those that were refused since the last call, and, if
    /// that was because more is taken than one holder can have, those that have more than their
    /// share.
    pub(crate) fn take_lapsing(&self) -> LapsingHolders {
        let refused = std::mem::take(&mut *self.refused.lock());
        let BudgetUsage { used, limit, holders, .. } = self.partitions.usage();
        let is_short = 4 * used > 3 * limit && !refused.is_empty();
        let share = is_short.then(|| limit / holders.max(1) as u64);
        LapsingHolders { refused, share, partitions: Arc::clone(&self.partitions) }
    }
}

impl TransactionGrants {
    pub(crate) fn holder(&self) -> &Holder {
        self.partitions.holder()
    }

    /// Charges what a restart found to the principal that uses it.
    pub(crate) fn claim(&mut self, holder: &Holder) {
        if self.partitions.is_restored() {
            self.partitions.hand_over(holder);
            self.offset_bytes.hand_over(holder);
        }
    }

    /// Adds grants for the same transaction.
    pub(crate) fn absorb(&mut self, grants: TransactionGrants) {
        self.claim(grants.holder());
        self.partitions.absorb(grants.partitions);
        self.offset_bytes.absorb(grants.offset_bytes);
    }

    /// Charges what the transaction has: what was taken for more of it is free again.
    pub(crate) fn settle(&mut self, partitions: usize, offset_bytes: usize) {
        self.partitions.resize_always(partitions as u64);
        self.offset_bytes.resize_always(offset_bytes as u64);
    }
}

impl LapsingHolders {
    pub(crate) fn contains(&self, holder: &Holder) -> bool {
        let is_above = |share| self.partitions.held(holder) > share;
        self.refused.contains(holder) || self.share.is_some_and(is_above)
    }
}

/// The memory of a transactional id.
fn id_bytes(id: &str) -> u64 {
    (ID_BYTES + id.len()) as u64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use testkit::allocations::{CountingAllocator, allocated_bytes};

    use super::*;
    use crate::transactional_id::TransactionalId;

    #[global_allocator]
    static ALLOCATOR: CountingAllocator = CountingAllocator;

    #[test]
    fn an_id_is_charged_for_the_memory_that_it_takes() {
        let options = TransactionOptions::default();
        let budgets = TransactionBudgets::new(&options, &BudgetRegistry::default());
        let holder = Holder::principal("User:alice", false);
        for length in [8, 100, 1000] {
            let id = |nth: usize| format!("{nth:0>length$}");
            let ids: Vec<String> = (0..1000).map(id).collect();
            let (slots, allocated) = allocated_bytes(|| {
                let mut slots = BTreeMap::new();
                for id in &ids {
                    let grant = budgets.take_id(id, &holder).unwrap();
                    let state = TransactionalId::new(0, 1000);
                    let slot = TransactionSlot::new(id, state, grant);
                    slots.insert(Arc::clone(&slot.id), slot);
                }
                slots
            });
            let charged = budgets.ids.used() as usize;
            // The account of the first one takes some bytes too.
            assert!(allocated <= charged + 1000, "{length}: {allocated} {charged}");
            assert!(charged < 2 * allocated, "{length}: {allocated} {charged}");
            drop(slots);
        }
    }
}
