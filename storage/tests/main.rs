//! The crate from outside: real files, crashes, faults, and models beside it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod check;
mod corruption;
mod crash;
mod faults;
mod golden;
mod hostile;
mod journal;
mod later;
mod latest;
mod loading;
mod log_removal;
mod manual_stepping;
mod merge;
mod model;
mod opening;
mod promises;
mod replace;
mod sealed;
mod verify;
