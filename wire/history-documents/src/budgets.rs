//! Budgets: limits that all clients share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A request for the budgets of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BudgetsRequest {}

/// The budgets of the server, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetsResponse {
    /// The budgets.
    pub budgets: Vec<BudgetDescription>,
}

/// The use of one budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetDescription {
    /// The name, such as `connections`.
    pub name: String,
    /// The unit, such as `connections` or `bytes`.
    pub unit: String,
    /// The setting that changes the limit; `None` if it is fixed.
    pub setting: Option<String>,
    /// The most that all clients hold together.
    pub limit: u64,
    /// The amount that all clients hold together.
    pub used: u64,
    /// The number of principals and addresses that hold something.
    pub holders: u64,
    /// The one that holds most; `None` if nobody holds anything.
    pub largest: Option<BudgetHolder>,
    /// The number of times that a client was refused, since the start.
    pub refused: u64,
}

/// A principal, or the address of clients that are not logged in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BudgetHolder {
    /// `User:alice`, or an address.
    pub name: String,
    /// The amount that it holds.
    pub used: u64,
}
