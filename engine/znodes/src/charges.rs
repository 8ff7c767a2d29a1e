//! Charges for znodes: for their number, and for their bytes, each to the holder that set them
//! last.

use std::sync::Arc;
use std::time::Duration;

use admission::{Budget, BudgetError, BudgetKind, BudgetSpec, Holder};
use engine_core::EngineCore;
use parking_lot::Mutex;
use storage::LogThrottle;

use crate::acl::AclEntry;
use crate::meta::ZnodeMeta;
use crate::path::key_of;
use crate::quota::path_of_stats;

/// The usage of a quota, which the server itself keeps up to date, counts as so many bytes of data.
/// No client stores more there.
pub(crate) const STATS_BYTES: u64 = 1024;

const ZNODES: BudgetSpec = BudgetSpec {
    name: "znodes",
    unit: "znodes",
    setting: Some("zookeeper.znodes-max"),
    kind: BudgetKind::Kept,
};
const ZNODE_BYTES: BudgetSpec = BudgetSpec {
    name: "znode-bytes",
    unit: "bytes",
    setting: Some("zookeeper.znode-bytes-max"),
    kind: BudgetKind::Kept,
};

/// The charge of a holder for a znode, or for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ZnodeCharge {
    pub(crate) holder: Holder,
    pub(crate) znodes: u64,
    pub(crate) bytes: u64,
}

impl ZnodeCharge {
    /// Its path, its data, and its list.
    pub(crate) fn new(holder: &Holder, path: &str, meta: &ZnodeMeta) -> ZnodeCharge {
        let data = charged_data_bytes(path, meta.data_length as u64);
        let bytes = key_of(path).len() as u64 + data + acl_bytes(&meta.acl);
        ZnodeCharge { holder: holder.clone(), znodes: 1, bytes }
    }
}

pub(crate) fn acl_bytes(acl: &[AclEntry]) -> u64 {
    acl.iter().map(|entry| entry.id.bytes() as u64).sum()
}

/// The bytes that the data at a path counts.
pub(crate) fn charged_data_bytes(path: &str, length: u64) -> u64 {
    if path_of_stats(path).is_some() { STATS_BYTES } else { length }
}

/// A change of what is charged for a znode, so that it can be undone. `None` where there is no
/// znode.
#[derive(Debug)]
pub(crate) struct ChargeChange {
    pub(crate) before: Option<ZnodeCharge>,
    pub(crate) after: Option<ZnodeCharge>,
}

/// The limits of [`ZnodeBudgets`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZnodeLimits {
    pub(crate) znodes_max: u64,
    pub(crate) bytes_max: u64,
}

/// The budgets for the number of znodes, and for their bytes.
#[derive(Debug)]
pub(crate) struct ZnodeBudgets {
    znodes: Arc<Budget>,
    bytes: Arc<Budget>,
    refusals: Mutex<LogThrottle>,
}

impl ZnodeBudgets {
    /// The budgets of an engine that has znodes for `restored` already.
    pub(crate) fn new(
        core: &EngineCore,
        limits: ZnodeLimits,
        restored: &ZnodeCharge,
    ) -> ZnodeBudgets {
        let znodes = core.budgets().budget(ZNODES, limits.znodes_max);
        let bytes = core.budgets().budget(ZNODE_BYTES, limits.bytes_max);
        let budgets = ZnodeBudgets { znodes, bytes, refusals: Mutex::default() };
        budgets.charge_always(restored);
        budgets
    }

    /// Charges a change.
    ///
    /// # Errors
    /// The new holder has its share, or there is no room. Nothing is charged.
    pub(crate) fn change(&self, change: &ChargeChange) -> Result<(), BudgetError> {
        // Only the growth needs room.
        if let ChargeChange { before: Some(before), after: Some(after) } = change
            && before.holder == after.holder
        {
            return match after.bytes.checked_sub(before.bytes) {
                Some(added) => self.bytes.charge(&after.holder, added),
                None => {
                    self.bytes.release(&after.holder, before.bytes - after.bytes);
                    Ok(())
                }
            };
        }
        if let Some(before) = &change.before {
            self.release(before);
        }
        let charged = change.after.as_ref().map_or(Ok(()), |after| self.charge(after));
        if let (Err(_), Some(before)) = (&charged, &change.before) {
            self.charge_always(before);
        }
        charged
    }

    /// Undoes a change that was charged.
    pub(crate) fn undo(&self, change: &ChargeChange) {
        if let Some(after) = &change.after {
            self.release(after);
        }
        if let Some(before) = &change.before {
            self.charge_always(before);
        }
    }

    /// Says that a change is refused, unless the log has had enough of it.
    pub(crate) fn report(&self, error: &BudgetError, now: Duration) {
        if let Some(changes) = self.refusals.lock().record_failure(now) {
            tracing::warn!(changes, "ZooKeeper clients cannot store more: {error}");
        }
    }

    fn charge(&self, charge: &ZnodeCharge) -> Result<(), BudgetError> {
        self.znodes.charge(&charge.holder, charge.znodes)?;
        let charged = self.bytes.charge(&charge.holder, charge.bytes);
        if charged.is_err() {
            self.znodes.release(&charge.holder, charge.znodes);
        }
        charged
    }

    fn charge_always(&self, charge: &ZnodeCharge) {
        self.znodes.charge_always(&charge.holder, charge.znodes);
        self.bytes.charge_always(&charge.holder, charge.bytes);
    }

    fn release(&self, charge: &ZnodeCharge) {
        self.znodes.release(&charge.holder, charge.znodes);
        self.bytes.release(&charge.holder, charge.bytes);
    }
}
