//! Admission: the share of common resources that one client may hold.
//!
//! A [`Budget`] is a limit that all clients share, such as the number of connections, with an
//! account for each [`Holder`]: a principal, or the network of a client that is not logged in.
//! [`BudgetRegistry`] lists the budgets of a server. In a [`BudgetQueue`] holders wait for room, in
//! turns. A [`SessionTable`] holds the sessions of clients, and finds the one that makes room.
//!
//! The rules of a budget:
//! 1. While there is room, a holder may have more than its share, which is the limit divided by the
//!    number of holders.
//! 2. A small reserve is for privileged holders (`super.users`) and for those that hold nothing.
//! 3. A full budget of the kind [`BudgetKind::Yielding`] tells who gives way: the holder with the
//!    most, which is never below its share. In a budget of the kind [`BudgetKind::Kept`] nobody can
//!    give way, because what was promised stays. So nobody takes more than three times what it
//!    leaves free: there is always room for one more holder.

#![forbid(unsafe_code)]

mod budget;
mod holder;
mod queue;
mod registry;
mod session_table;

pub use budget::{Budget, BudgetError, BudgetGrant, BudgetKind, BudgetSpec};
pub use holder::{Holder, network_of};
pub use queue::{BudgetQueue, QueueGrant};
pub use registry::{BudgetRegistry, BudgetSource, BudgetUsage, LargestHolder};
pub use session_table::SessionTable;
