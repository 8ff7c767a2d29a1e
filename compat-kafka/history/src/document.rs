//! The text of response documents.

use std::fmt;

use history_documents::HistoryErrorCode;
use serde::Serialize;

use crate::error::HistoryApiError;

/// The usual length of a document.
const DOCUMENT_BYTES: usize = 256;

/// The text of a response document.
///
/// # Errors
/// A document cannot be written as JSON. None of ours has such a field.
pub(crate) fn document_text(document: &impl Serialize) -> Result<String, HistoryApiError> {
    long_document_text(document, DOCUMENT_BYTES)
}

/// [`document_text`] of a document with this approximate length.
///
/// # Errors
/// As [`document_text`].
pub(crate) fn long_document_text(
    document: &impl Serialize,
    bytes: usize,
) -> Result<String, HistoryApiError> {
    let internal = |error: &dyn fmt::Display| {
        HistoryApiError::new(HistoryErrorCode::Internal, format!("not written as JSON: {error}"))
    };
    let mut text = Vec::with_capacity(bytes);
    serde_json::to_writer(&mut text, document).map_err(|error| internal(&error))?;
    String::from_utf8(text).map_err(|error| internal(&error))
}
