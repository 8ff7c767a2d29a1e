//! Keys, as `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write them: PKCS #8 and
//! SPKI, in PEM.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use ed25519_dalek::pkcs8::{DecodePrivateKey, DecodePublicKey};
use ed25519_dalek::{SigningKey, VerifyingKey};

/// No key file is longer; it may have comments around the key.
const FILE_BYTES_MAX: u64 = 16 << 10;

/// The reason a file has no usable key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Disk {
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// It holds no private key of the right kind.
    #[error(
        "{} holds no Ed25519 private key in PEM; make one with: openssl genpkey -algorithm ed25519",
        path.display()
    )]
    NoSigningKey { path: PathBuf },
    /// It holds no public key of the right kind.
    #[error(
        "{} holds no Ed25519 public key in PEM; make it from the private one with: openssl pkey -in KEY -pubout",
        path.display()
    )]
    NoPublicKey { path: PathBuf },
}

/// The private key in a file, and whether users other than its owner may read it.
///
/// # Errors
/// [`KeyError`].
pub fn read_signing_key(path: &Path) -> Result<(SigningKey, bool), KeyError> {
    let (text, mode) = read(path)?;
    let key = SigningKey::from_pkcs8_pem(trimmed(&text))
        .map_err(|_| KeyError::NoSigningKey { path: path.to_owned() })?;
    Ok((key, mode & 0o077 != 0))
}

/// The public key in a file.
///
/// # Errors
/// [`KeyError`].
pub fn read_public_key(path: &Path) -> Result<VerifyingKey, KeyError> {
    let (text, _) = read(path)?;
    VerifyingKey::from_public_key_pem(trimmed(&text))
        .map_err(|_| KeyError::NoPublicKey { path: path.to_owned() })
}

fn read(path: &Path) -> Result<(String, u32), KeyError> {
    let read = || {
        let file = File::open(path)?;
        let mode = file.metadata()?.permissions().mode();
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok((text, mode))
    };
    read().map_err(|source| KeyError::Disk { path: path.to_owned(), source })
}

fn trimmed(text: &str) -> &str {
    text.trim_start()
}
