//! Errors of the files and options of TLS.

use std::path::PathBuf;

/// The reason why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the file with its key and certificate is not named")]
    NoKey,
    #[error("the file with the certificates that others are trusted by is not named")]
    NoTrust,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("a trusted certificate cannot be used: {0}")]
    Trust(String),
    #[error("the key, its certificates, versions and cipher suites do not fit together: {0}")]
    Mismatch(#[from] rustls::Error),
}

/// A file that cannot be used, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", path.display())]
pub struct StoreError {
    pub(crate) path: PathBuf,
    pub(crate) why: String,
}
