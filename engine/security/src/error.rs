//! Errors of changes and reads of users, access control lists and quotas.

use engine_core::{EngineError, SeekError};

#[derive(Clone, Debug, thiserror::Error)]
pub enum SecurityError {
    /// There would be too much of it.
    #[error(
        "users, access control lists and quotas would take {bytes} bytes, and may take {max}; remove some, or raise limits.security-bytes-max"
    )]
    TooMuch { bytes: usize, max: usize },
    /// The moment cannot be read, or the change was not made.
    #[error(transparent)]
    Seek(#[from] SeekError),
}

impl From<EngineError> for SecurityError {
    fn from(error: EngineError) -> SecurityError {
        SecurityError::Seek(error.into())
    }
}
