//! Looks at a request's body before `kafka-protocol` decodes it.
//!
//! That crate reserves memory for as many elements as an array announces, before it has read one:
//! 57 bytes can ask for 500 GB, and the process aborts. [`check`] walks the body along the schemas
//! of [`table`], and refuses what cannot be there. Of a body that it lets pass, these hold:
//!
//! - every length and count, at every depth, is one that the body's own bytes bear out;
//! - decoding it from a `bytes::SizeWithUnit` asks for no more memory than [`memory_bytes_max`] of its
//!   length, not counting a few KiB for an error and its backtrace.
//!
//! Both hold whether or not the decoder then likes the rest: what a string holds, where a null may
//! stand, and bytes after the end are its affair. Nothing is copied and, but for an error's text,
//! nothing allocated; strings and records are stepped over unread.
//!
//! The decoder lets pass, and we do not: a varint with more than 32 bits, a tagged field that does
//! not end where its size says, and a null struct marked by another byte than -1. No client sends
//! those, and without them we and the decoder agree on where each field begins.

mod schema;
// Laid out by its generator.
#[rustfmt::skip]
mod table;
#[cfg(test)]
mod tests;
mod walk;

use walk::SchemaWalker;

/// A body that must not be decoded. The connection it came on has no frame to trust any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestBodyError {
    /// There is no such request, or not in this version.
    #[error("no schema for this request. api_key={api_key}, version={version}")]
    NoSchema { api_key: i16, version: i16 },
    /// A field cannot be what it announces.
    #[error("{violation}. field={field}, announced={announced}, left={left}")]
    Violation {
        violation: SchemaViolation,
        /// The way to it: `Fetch.topics[3].partitions`.
        field: String,
        /// The length, count, size, or bytes of memory.
        announced: i64,
        /// What is left of the body or, for [`SchemaViolation::Memory`], of the memory the body may take.
        left: usize,
    },
}

/// What is wrong with a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SchemaViolation {
    /// A value, or what a length announces, would reach beyond the body.
    #[error("longer than the bytes left")]
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
    /// All elements are there, but they would take too much memory, once decoded.
    #[error("more memory than a body of this size may take")]
    Memory,
}

/// What decoding may ask for, however short the body.
const MEMORY_BYTES_MIN: usize = 1 << 20;
/// And beyond that for each byte of the body. The most that a client could mean is 24, a list of
/// topic names of one byte each; an empty name may take 40.
const MEMORY_PER_BODY_BYTE: usize = 32;

/// The memory that decoding a body may ask for, in all.
fn memory_bytes_max(body_bytes: usize) -> usize {
    MEMORY_BYTES_MIN + MEMORY_PER_BODY_BYTE * body_bytes
}

/// Checks what follows the header in a frame.
pub(crate) fn check(api_key: i16, version: i16, body: &[u8]) -> Result<(), RequestBodyError> {
    let request = table::REQUESTS
        .binary_search_by_key(&api_key, |request| request.api_key)
        .map_err(|_| RequestBodyError::NoSchema { api_key, version })?;
    SchemaWalker::through(&table::REQUESTS[request], version, body).map(drop)
}

/// Checks the header, of version 1 or 2, that a frame starts with.
pub(crate) fn check_header(version: i16, frame: &[u8]) -> Result<(), RequestBodyError> {
    SchemaWalker::through(&table::HEADER, version, frame).map(drop)
}

impl RequestBodyError {
    fn violation(lie: SchemaViolation, announced: i64, left: usize) -> RequestBodyError {
        RequestBodyError::Violation { violation: lie, field: String::new(), announced, left }
    }

    /// The same, seen from the struct that the field stands in.
    fn in_struct(self, name: &str) -> RequestBodyError {
        self.map_path(|field| match field.as_bytes().first() {
            None | Some(b'[') => format!("{name}{field}"),
            Some(_) => format!("{name}.{field}"),
        })
    }

    /// The same, seen from the array that it stands in.
    fn in_element(self, index: usize) -> RequestBodyError {
        self.map_path(|field| match field {
            "" => format!("[{index}]"),
            _ => format!("[{index}].{field}"),
        })
    }

    fn map_path(self, way: impl FnOnce(&str) -> String) -> RequestBodyError {
        match self {
            RequestBodyError::Violation { violation: lie, field, announced, left } => {
                RequestBodyError::Violation { violation: lie, field: way(&field), announced, left }
            }
            no_schema => no_schema,
        }
    }
}
