//! Kafka's record batches (magic 2): the bytes inside Produce and Fetch, and nothing around them.
//!
//! This crate knows the 61-byte header, the records behind it and the codecs that pack them. It
//! does not know requests, topics or who is allowed to send what.
//!
//! It exists because batches are stored as they came: the original bytes go to disk and back, and
//! what we need from them — a verdict, offsets, timestamps — is read in place. Nothing here
//! believes a length or a count from the wire before it has been held against the bytes that are
//! really there, and nothing decompresses past a [`DecompressionLimit`].
//!
//! | to | call |
//! | --- | --- |
//! | judge a produced batch | [`check`] |
//! | walk the batches of a Fetch response | [`BatchIterator`] |
//! | read the records of a batch | [`records`] |
//! | look at the parts of each record, in place | [`for_each_record`] |
//! | learn only when its records happened | [`times`], [`time_range`] |
//! | learn which records have no key | [`keyless_records`] |
//! | drop records from a batch | [`rewrite`] |
//! | make a batch | [`BatchBuilder`] |

#![forbid(unsafe_code)]

mod batches;
mod builder;
mod check;
mod codec;
mod cursor;
mod decompress;
mod error;
mod header;
mod keyless;
mod record_ref;
mod records;
mod rewrite;
mod times;

pub use batches::BatchIterator;
pub use builder::BatchBuilder;
pub use check::check;
pub use codec::CompressionType;
pub use decompress::DecompressionLimit;
pub use error::BatchError;
pub use header::{BatchHeader, HEADER_BYTES, set_crc};
pub use keyless::{KeylessRecords, keyless_records};
pub use record_ref::{RecordHeaders, RecordRef, for_each_record};
pub use records::{KafkaRecord, RecordIterator, records};
pub use rewrite::{BatchRewriteResult, RecordKey, rewrite};
pub use times::{time_range, times};
