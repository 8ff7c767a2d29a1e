//! Budgets: limits that all clients share, and their largest holders.

use admission::BudgetUsage;
use engine::security::{Operation, Resource};
use history_documents::{BudgetDescription, BudgetHolder, BudgetsRequest, BudgetsResponse};

use crate::access::HistoryAccess;
use crate::context::HistoryContext;
use crate::error::HistoryApiError;

pub(crate) fn budgets(
    context: &HistoryContext,
    access: &HistoryAccess,
    BudgetsRequest {}: BudgetsRequest,
) -> Result<BudgetsResponse, HistoryApiError> {
    access.require(Operation::Describe, Resource::CLUSTER)?;
    let usages = context.engine.core().budgets().usages();
    Ok(BudgetsResponse { budgets: usages.into_iter().map(description).collect() })
}

fn description(usage: BudgetUsage) -> BudgetDescription {
    BudgetDescription {
        name: usage.name.to_owned(),
        unit: usage.unit.to_owned(),
        setting: usage.setting.map(str::to_owned),
        limit: usage.limit,
        used: usage.used,
        holders: usage.holders as u64,
        largest: usage
            .largest
            .map(|largest| BudgetHolder { name: largest.name, used: largest.used }),
        refused: usage.refused,
    }
}
