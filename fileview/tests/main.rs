//! The tree of files over an engine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fixture;
mod tree_contents;
mod tree_names;
mod tree_znodes;
