//! The budgets of a server, as operators see them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::budget::{Budget, BudgetSpec};
use crate::holder::Holder;

/// The use of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetUsage {
    pub name: &'static str,
    /// The unit, such as `connections` or `bytes`.
    pub unit: &'static str,
    /// The setting that changes the limit, if there is one.
    pub setting: Option<&'static str>,
    pub limit: u64,
    pub used: u64,
    /// The number of holders.
    pub holders: usize,
    pub largest: Option<LargestHolder>,
    /// The number of times that a holder was refused, or another one had to make room for it, since
    /// the start.
    pub refused: u64,
}

impl BudgetUsage {
    /// The use of a budget without accounts: the sums of its parts by holder.
    pub fn of_parts<'a>(
        spec: &BudgetSpec,
        limit: u64,
        refused: u64,
        parts: impl Iterator<Item = (&'a Holder, u64)>,
    ) -> BudgetUsage {
        let mut by_holder = HashMap::<&Holder, u64>::new();
        for (holder, amount) in parts.filter(|(_, amount)| *amount > 0) {
            *by_holder.entry(holder).or_default() += amount;
        }
        let largest = by_holder.iter().max_by_key(|(_, amount)| **amount);
        BudgetUsage {
            name: spec.name,
            unit: spec.unit,
            setting: spec.setting,
            limit,
            used: by_holder.values().sum(),
            holders: by_holder.len(),
            largest: largest.map(|(holder, used)| LargestHolder {
                name: holder.name().to_owned(),
                used: *used,
            }),
            refused,
        }
    }
}

/// The holder with the most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargestHolder {
    pub name: String,
    pub used: u64,
}

/// Something that is listed among the budgets.
pub trait BudgetSource: Send + Sync {
    fn usage(&self) -> BudgetUsage;
}

/// All budgets of a server.
#[derive(Default)]
pub struct BudgetRegistry {
    sources: Mutex<Vec<Arc<dyn BudgetSource>>>,
}

impl BudgetRegistry {
    /// A new budget, which is listed.
    pub fn budget(&self, spec: BudgetSpec, limit: u64) -> Arc<Budget> {
        let budget = Budget::new(spec, limit);
        self.register(Arc::clone(&budget) as Arc<dyn BudgetSource>);
        budget
    }

    /// Lists a budget from now on. One with the same name is replaced.
    pub fn register(&self, source: Arc<dyn BudgetSource>) {
        let name = source.usage().name;
        let mut sources = self.sources.lock();
        sources.retain(|other| other.usage().name != name);
        sources.push(source);
    }

    /// The use of all budgets, by name.
    pub fn usages(&self) -> Vec<BudgetUsage> {
        let sources = self.sources.lock().clone();
        let mut usages: Vec<_> = sources.iter().map(|source| source.usage()).collect();
        usages.sort_unstable_by_key(|usage| usage.name);
        usages
    }
}

impl std::fmt::Debug for BudgetRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.usages()).finish()
    }
}
