//! Extractors from outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod plugins;
