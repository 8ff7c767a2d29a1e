//! Records that move by a link (F25, F30), beside clients that have none. Each test runs over TCP
//! everywhere, and by RDMA where the machine has a device; `rdma/vm/test` runs them where it has
//! none. With FREEZEFRAME_NEEDS_RDMA set, a machine without a device is a failure.
//!
//! Run it in one thread: some tests count what the process has of its devices.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cuts;
mod faults;
mod fixture;
mod records;
