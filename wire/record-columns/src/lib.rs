//! Records of a topic as Arrow columns, and Arrow's two formats around them.
//!
//! This crate knows the schema of records and how a record becomes a row of it. It does not know
//! batches, requests, or where the records come from.
//!
//! | column | type | |
//! | --- | --- | --- |
//! | `partition` | int32 | |
//! | `offset` | int64 | |
//! | `timestamp` | timestamp(ms, UTC) | as stored: -1 in a record without a time |
//! | `key` | binary, nullable | null and empty differ |
//! | `value` | binary, nullable | null and empty differ: null is a tombstone |
//! | `headers` | list of (`key` utf8, `value` binary, nullable) | in their order, with duplicates |
//!
//! Kafka's header keys are text, but a client can write any bytes. In a key that is not UTF-8, each
//! byte that is not part of a character becomes `\xHH`, as in Python's `backslashreplace`. Distinct
//! keys stay distinct, and [`RecordColumns::escaped_header_keys`] counts them. Such a key
//! cannot be told from one that has the characters `\xHH` itself.
//!
//! | to | call |
//! | --- | --- |
//! | collect records into a batch of rows | [`RecordColumns`] |
//! | write a stream, for pipes and responses | [`ArrowStreamWriter`] |
//! | write a file with an index of its batches at its end | [`ArrowFileWriter`] |
//!
//! A reader takes a stream without the mark at its end as complete if it ends between two batches:
//! check the number of rows in another way. No reader opens a file without its index.

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod columns;
mod schema;

pub use arrow_ipc::writer::{FileWriter as ArrowFileWriter, StreamWriter as ArrowStreamWriter};
pub use columns::{ColumnsFull, RecordColumns};
pub use schema::record_schema;
