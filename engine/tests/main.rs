//! The engine from outside: histories, models beside them, and limits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod catalog;
mod compaction;
mod cuts;
mod diff;
mod files;
mod files_fuzz;
mod group_horizon;
mod group_moments;
mod groups;
mod manual_stepping;
mod namespace_horizon;
mod past;
mod pins;
mod retention;
mod security;
mod user_cuts;
mod views;
mod znode_budgets;
mod znode_quotas;
mod znodes;
