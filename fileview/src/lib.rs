//! A log seen as files: the paths, and the contents.
//!
//! This crate knows the grammar `TOPIC/PARTITION@MOMENT`. It also renders batches of records as
//! bytes for a reader: unchanged, one value a line, or one JSON object a line for each record.
//! These modules do no I/O. They do not know where batches come from: a server's socket or its
//! disk.
//!
//! [`tree`] shows everything that a server holds as one tree of files, now and as of any moment. It
//! works on the engine and needs no mount.
//!
//! A cut by system time is a prefix of a partition. The caller that fetches the batches applies it.
//! A cut by user time is in general not a prefix. This crate renders its exact set of records
//! ([`RecordSelection`]).

#![forbid(unsafe_code)]

// The test fixtures import the crate by its name.
#[cfg(test)]
extern crate self as fileview;

pub mod fuse;
mod jsonl;
mod name;
mod path;
mod render;
mod selection;
mod template;
pub mod tree;

pub use jsonl::{LineError, RecordLine};
pub use name::{PARTITION_MAX, TOPIC_NAME_BYTES_MAX, TopicNameError, check_topic};
pub use path::{PathError, ViewPath};
pub use render::{
    BatchFacts, RecordLayout, RecordRenderer, RenderError, RenderProgress, ViewFormat,
};
pub use selection::RecordSelection;
pub use template::{RecordTemplate, TemplateError};
