//! A server of the Kafka protocol in the same process, and clients that speak it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answer_sizes;
mod behind;
mod compaction;
mod compressed;
mod connections;
mod corruption;
mod fetch_sessions;
mod hang;
mod lost_moment;
mod maintenance;
mod panics;
mod pinned;
mod quotas;
mod share_groups;
mod slow;
mod streams_groups;
mod transactions;
mod user_time;
