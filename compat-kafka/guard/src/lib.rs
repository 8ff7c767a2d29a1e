//! Checks a request's body before `kafka-protocol` decodes it.
//!
//! That crate reserves memory for as many elements as an array announces, before it has read one:
//! 57 bytes can ask for 500 GB, and the process aborts. [`check`] walks the body along the schemas
//! of `table`, and refuses impossible lengths and counts. Of a body that it accepts, these hold:
//!
//! - every length and count, at every depth, fits the body's own bytes;
//! - decoding it from a `bytes::SizeWithUnit` asks for no more memory than [`memory_bytes_max`] of
//!   its length, not counting a few KiB for an error and its backtrace.
//!
//! Both hold whether or not the decoder accepts the rest. The content of strings, the place of
//! nulls, and bytes after the end are left to the decoder. Nothing is copied and, except for an
//! error's text, nothing allocated. Strings and records are skipped unread.
//!
//! The decoder accepts some things that this refuses: a varint with more than 32 bits, a tagged
//! field that does not end where its size says, and a null struct marked by another byte than -1.
//! No client sends those. Without them, the guard and the decoder agree on where each field begins.

#![forbid(unsafe_code)]

mod schema;
// Formatted by its generator.
#[rustfmt::skip]
mod table;
#[cfg(test)]
mod tests;
mod walk;

use walk::SchemaWalker;

/// A body that must not be decoded. Its connection has no trustworthy frames any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestBodyError {
    /// There is no such request, or not in this version.
    #[error("no schema for this request. api_key={api_key}, version={version}")]
    NoSchema { api_key: i16, version: i16 },
    /// A field cannot be what it announces.
    #[error("{violation}. field={field}, announced={announced}, left={left}")]
    Violation {
        violation: SchemaViolation,
        /// The path of the field: `Fetch.topics[3].partitions`.
        field: String,
        /// The length, count, size, or bytes of memory.
        announced: i64,
        /// The rest of the body or, for [`SchemaViolation::Memory`], of the memory that the body
        /// may take.
        left: usize,
    },
}

/// The fault in a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SchemaViolation {
    /// A value, or its announced length, would reach beyond the body, or a string has more than
    /// 32,767 bytes.
    #[error("longer than the bytes left, or than a string may be")]
    Length,
    /// Even the smallest elements would not fit.
    #[error("more elements than the bytes left can hold")]
    Count,
    #[error("negative, but not a null")]
    Negative,
    #[error("varint of more than 32 bits")]
    Varint,
    #[error("neither a struct nor a null")]
    Presence,
    /// The field ended before the size of its tag did.
    #[error("tagged field shorter than its size")]
    TagSize,
    /// All elements are there, but they would take too much memory once decoded.
    #[error("more memory than a body of this size may take")]
    Memory,
}

/// The memory that decoding may ask for, however short the body is.
const MEMORY_BYTES_MIN: usize = 1 << 20;
/// The additional memory for each byte of the body. The most that a client could need is 24, for a
/// list of topic names of one byte each. An empty name may take 40.
const MEMORY_PER_BODY_BYTE: usize = 32;
/// The most, however long the body is: half a million partitions, or two million names. Records and
/// strings are not counted, which share the memory of the body.
const MEMORY_BYTES_MAX: usize = 64 << 20;

/// The total memory that decoding a body may ask for.
pub fn memory_bytes_max(body_bytes: usize) -> usize {
    let bytes_of_body =
        MEMORY_BYTES_MIN.saturating_add(MEMORY_PER_BODY_BYTE.saturating_mul(body_bytes));
    bytes_of_body.min(MEMORY_BYTES_MAX)
}

/// Checks what follows the header in a frame. Returns how much memory decoding it takes.
pub fn check(api_key: i16, version: i16, body: &[u8]) -> Result<usize, RequestBodyError> {
    let request = table::REQUESTS
        .binary_search_by_key(&api_key, |request| request.api_key)
        .map_err(|_| RequestBodyError::NoSchema { api_key, version })?;
    SchemaWalker::through(&table::REQUESTS[request], version, body).map(|walk| walk.memory_bytes)
}

/// Checks the header, of version 1 or 2, at the start of a frame.
pub fn check_header(version: i16, frame: &[u8]) -> Result<(), RequestBodyError> {
    SchemaWalker::through(&table::HEADER, version, frame).map(drop)
}

impl RequestBodyError {
    fn violation(violation: SchemaViolation, announced: i64, left: usize) -> RequestBodyError {
        RequestBodyError::Violation { violation, field: String::new(), announced, left }
    }

    /// Prefixes the path with the struct's field.
    fn in_struct(self, name: &str) -> RequestBodyError {
        self.map_path(|field| match field.as_bytes().first() {
            None | Some(b'[') => format!("{name}{field}"),
            Some(_) => format!("{name}.{field}"),
        })
    }

    /// Prefixes the path with the array index.
    fn in_element(self, index: usize) -> RequestBodyError {
        self.map_path(|field| match field {
            "" => format!("[{index}]"),
            _ => format!("[{index}].{field}"),
        })
    }

    fn map_path(self, map: impl FnOnce(&str) -> String) -> RequestBodyError {
        match self {
            RequestBodyError::Violation { violation, field, announced, left } => {
                RequestBodyError::Violation { violation, field: map(&field), announced, left }
            }
            no_schema => no_schema,
        }
    }
}
