//! Kafka's record batches (magic 2): the bytes inside Produce and Fetch, and nothing around them.
//!
//! This crate knows the 61-byte header, the records after it and their codecs. It does not know
//! requests, topics or permissions.
//!
//! It exists because batches are stored unchanged: the original bytes go to disk and back, and what
//! we need from them (validation, offsets, timestamps) is read in place. No length or count from
//! the wire is trusted before it is checked against the available bytes, and nothing decompresses
//! past a [`DecompressionLimit`].
//!
//! | to | call |
//! | --- | --- |
//! | validate a produced batch | [`check`] |
//! | validate a batch from another log | [`check_sparse`] |
//! | cover offsets that have no records | [`offset_gap`] |
//! | iterate over the batches of a Fetch response | [`BatchIterator`] |
//! | leave out what was aborted | [`CommittedBatches`] |
//! | read the records of a batch | [`records`] |
//! | read the fields of each record, in place | [`for_each_record`] |
//! | read only the times of its records | [`times`], [`time_range`] |
//! | find the records without a key | [`keyless_records`] |
//! | drop records from a batch | [`rewrite`] |
//! | build a batch | [`BatchBuilder`] |

#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod batches;
mod builder;
mod check;
mod codec;
mod committed;
mod cursor;
mod decompress;
mod error;
mod gap;
mod header;
mod keyless;
mod record_ref;
mod records;
mod rewrite;

pub use batches::BatchIterator;
pub use builder::BatchBuilder;
pub use check::{check, check_sparse};
pub use codec::CompressionType;
pub use committed::CommittedBatches;
pub use decompress::{DecompressionLimit, decompress};
pub use error::BatchError;
pub use gap::offset_gap;
pub use header::{BatchHeader, HEADER_BYTES, set_crc};
pub use keyless::{KeylessRecords, keyless_records};
pub use record_ref::{RecordHeaders, RecordRef, for_each_record};
pub use records::{KafkaRecord, RecordIterator, records, time_range, times};
pub use rewrite::{BatchRewriteResult, RecordKey, rewrite};
