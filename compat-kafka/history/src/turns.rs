//! Turns at long work on the past, so that it leaves cores to producers and consumers.
//!
//! The number of answers that are made at a time is half the number of cores. The others wait, and
//! principals take turns: one with many requests delays another by one answer at most. A request
//! takes its turn after it has waited for its moment.

use std::sync::Arc;
use std::thread::available_parallelism;

use admission::{BudgetKind, BudgetQueue, BudgetRegistry, BudgetSpec, Holder, QueueGrant};

const TURNS: BudgetSpec = BudgetSpec {
    name: "history-turns",
    unit: "answers about the past at a time",
    setting: None,
    kind: BudgetKind::Kept,
};

#[derive(Clone, Debug)]
pub(crate) struct HistoryTurns(Arc<BudgetQueue>);

impl HistoryTurns {
    /// Lists its budget in `budgets`.
    pub(crate) fn new(budgets: &BudgetRegistry) -> HistoryTurns {
        let cores = available_parallelism().map_or(1, usize::from);
        let budget = budgets.budget(TURNS, (cores / 2).max(1) as u64);
        HistoryTurns(BudgetQueue::new(budget))
    }

    /// Waits for a turn, which ends when the grant is dropped.
    pub(crate) async fn take(&self, holder: &Holder) -> QueueGrant {
        self.0.take(holder, 1).await
    }
}
