//! The budgets of groups, and the grants of each group.
//!
//! A group is charged to the principal that made it, with all its members. A restart does not know
//! it: then to the next one that joins it or commits for it.

use std::sync::Arc;

use admission::{Budget, BudgetGrant, BudgetKind, BudgetSpec, Holder};

use super::super::error::GroupError;
use super::super::options::Options;
use engine::RefusalLog;

/// The budgets of all groups.
pub(super) struct GroupBudgets {
    pub(super) groups: Arc<Budget>,
    pub(super) bytes: Arc<Budget>,
    log: RefusalLog,
}

/// The grants of one group.
#[derive(Debug)]
pub(super) struct GroupGrants {
    group: BudgetGrant,
    bytes: BudgetGrant,
}

impl GroupBudgets {
    pub(super) fn new(options: &Options) -> GroupBudgets {
        let budget = |name, unit, setting, limit: usize| {
            let spec = BudgetSpec { name, unit, setting: Some(setting), kind: BudgetKind::Kept };
            Budget::new(spec, limit as u64)
        };
        GroupBudgets {
            groups: budget("groups", "groups", "limits.groups-max", options.groups_max),
            bytes: budget(
                "group-bytes",
                "bytes of groups",
                "limits.groups-bytes",
                options.groups_bytes_max,
            ),
            log: RefusalLog::new("a group is refused"),
        }
    }

    /// Charges a new group of `bytes`.
    ///
    /// # Errors
    /// There is no room for it.
    pub(super) fn take(&self, holder: &Holder, bytes: usize) -> Result<GroupGrants, GroupError> {
        let group = self.groups.take(holder, 1).map_err(|error| {
            self.log.warn(&error);
            GroupError::TooManyGroups
        })?;
        let bytes = self.bytes.take(holder, bytes as u64).map_err(|error| {
            self.log.warn(&error);
            GroupError::TooManyBytes
        })?;
        Ok(GroupGrants { group, bytes })
    }

    /// Charges a group that a restart found.
    pub(super) fn restored(&self) -> GroupGrants {
        let holder = Holder::restored();
        let (group, bytes) = (&self.groups, &self.bytes);
        GroupGrants { group: group.take_always(&holder, 1), bytes: bytes.take_always(&holder, 0) }
    }

    /// Checks whether a group has room to grow by so many bytes. The bytes of a few concurrent
    /// requests may come on top.
    pub(super) fn check_growth(
        &self,
        grants: &GroupGrants,
        growth: usize,
    ) -> Result<(), GroupError> {
        if growth == 0 {
            return Ok(());
        }
        let checked = self.bytes.check(grants.bytes.holder(), growth as u64);
        checked.inspect_err(|error| self.log.warn(error)).map_err(|_| GroupError::TooManyBytes)
    }
}

impl GroupGrants {
    /// Charges a group that a restart found to the principal that uses it.
    pub(super) fn claim(&mut self, holder: &Holder) {
        if self.group.is_restored() {
            self.group.hand_over(holder);
            self.bytes.hand_over(holder);
        }
    }

    /// Charges the bytes that the group has.
    pub(super) fn settle(&mut self, bytes: usize) {
        self.bytes.resize_always(bytes as u64);
    }

    /// Gives back what a group that is gone had.
    pub(super) fn release(&mut self) {
        self.group.resize_always(0);
        self.bytes.resize_always(0);
    }
}
