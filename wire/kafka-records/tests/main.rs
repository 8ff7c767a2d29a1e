//! Record batches from outside: hostile ones, those of Java, and those that are rewritten.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod hostile;
mod java;
mod rewrite;
