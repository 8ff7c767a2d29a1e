//! The real binary in a process of its own, used and killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod administration;
mod backup;
mod bank;
mod cli;
mod demo;
mod descriptors;
mod dynamic_settings;
mod export;
mod format;
mod full_disk;
mod groups_and_diff;
mod hostile;
mod http;
mod https;
mod import;
mod inspect;
mod kafka_sasl;
mod kafka_tls;
mod kill;
mod lifecycle;
mod logging;
mod maintenance;
mod monitoring;
mod mount;
mod mount_fuzz;
mod mount_moments;
mod mount_users;
mod papers;
mod past;
mod readme;
mod restore;
mod shares;
mod soak;
mod spellings;
mod terminal;
mod tree;
mod user_time;
mod zookeeper;
