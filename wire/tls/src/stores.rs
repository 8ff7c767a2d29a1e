//! Files with keys and certificates: PEM, or PKCS#12 as OpenSSL and Java write it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use p12_keystore::{KeyStore, KeyStoreEntry, Pkcs12ImportPolicy};
use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::der::SecretDocument;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::error::{StoreError, TlsError};

/// The longest file that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// A Java keystore of the format that came before PKCS#12 begins with this; of another one with the
/// second.
const JKS: [[u8; 4]; 2] = [[0xfe, 0xed, 0xfe, 0xed], [0xce, 0xce, 0xce, 0xce]];
const ENCRYPTED_KEY: [&str; 2] =
    ["-----BEGIN ENCRYPTED PRIVATE KEY-----", "-----END ENCRYPTED PRIVATE KEY-----"];

/// A password, or a key in PEM: a text that is not shown, and zeroed in the end.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: &str) -> Secret {
        Secret(Zeroizing::new(text.to_owned()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text itself. It must not be logged.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The text of a file, without the end of its last line.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(path: &Path) -> io::Result<Secret> {
        let text = Zeroizing::new(std::fs::read_to_string(path)?);
        Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Keys or certificates, in a file whose format is found by its content, or in PEM without a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreFile {
    /// Its path. An empty path stands for no file.
    pub path: PathBuf,
    /// Of a PKCS#12 file, or of an encrypted key in PEM.
    pub password: Secret,
    /// Of an encrypted key in PEM, if it is not `password`.
    pub key_password: Secret,
    /// A key in PEM, if there is no file.
    pub pem_key: Secret,
    /// Certificates in PEM, if there is no file.
    pub pem_certificates: Secret,
}

enum StoreContent {
    Pem(Zeroizing<Vec<u8>>),
    Pkcs12(Box<KeyStore>),
}

impl StoreFile {
    /// Reads the store from a file, instead of the given PEM.
    pub fn set_path(&mut self, path: &Path) {
        self.path = path.to_owned();
        if !path.as_os_str().is_empty() {
            (self.pem_key, self.pem_certificates) = Default::default();
        }
    }

    /// Takes a key in PEM, in the place of a file.
    pub fn set_pem_key(&mut self, text: &str) {
        self.pem_key = Secret::new(text);
        self.path = PathBuf::new();
    }

    /// Takes certificates in PEM, in the place of a file.
    pub fn set_pem_certificates(&mut self, text: &str) {
        self.pem_certificates = Secret::new(text);
        self.path = PathBuf::new();
    }

    pub(crate) fn is_named(&self) -> bool {
        let is_pem = !self.pem_key.is_empty() || !self.pem_certificates.is_empty();
        is_pem || !self.path.as_os_str().is_empty()
    }

    /// The key of a server, and its certificates, its own first.
    pub(crate) fn read_key(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), StoreError> {
        if self.path.as_os_str().is_empty() {
            let certificates = if self.pem_certificates.is_empty() {
                &self.pem_key
            } else {
                &self.pem_certificates
            };
            let certificates = self.certificates_of_pem(certificates.0.as_bytes())?;
            let key = self.key_of_pem(self.pem_key.0.as_bytes())?;
            if certificates.is_empty() {
                return Err(self.error("it has no certificate"));
            }
            return Ok((certificates, key));
        }
        let (certificates, key) = match self.read()? {
            StoreContent::Pem(text) => (self.certificates_of_pem(&text)?, self.key_of_pem(&text)?),
            StoreContent::Pkcs12(store) => {
                let (_, chain) = store.private_key_chain().ok_or_else(|| {
                    self.error("it has no private key together with its certificate")
                })?;
                let der = |certificate: &p12_keystore::Certificate| {
                    CertificateDer::from(certificate.as_der().to_vec())
                };
                let key = PrivateKeyDer::Pkcs8(chain.key().as_der().to_vec().into());
                (chain.certs().iter().map(der).collect(), key)
            }
        };
        if certificates.is_empty() {
            return Err(self.error("it has no certificate"));
        }
        Ok((certificates, key))
    }

    /// The certificates of the trusted authorities.
    pub(crate) fn read_trusted(&self) -> Result<Vec<CertificateDer<'static>>, StoreError> {
        let certificates: Vec<_> = match self.read()? {
            StoreContent::Pem(text) => self.certificates_of_pem(&text)?,
            StoreContent::Pkcs12(store) => {
                let trusted = store.entries().filter_map(|(_, entry)| match entry {
                    KeyStoreEntry::Certificate(certificate) => Some(certificate),
                    // As in Java: of who has a key here, their own.
                    KeyStoreEntry::PrivateKeyChain(chain) => chain.certs().first(),
                    KeyStoreEntry::Secret(_) => None,
                });
                trusted
                    .map(|certificate| CertificateDer::from(certificate.as_der().to_vec()))
                    .collect()
            }
        };
        if certificates.is_empty() {
            return Err(self.error("it has no certificate"));
        }
        Ok(certificates)
    }

    fn read(&self) -> Result<StoreContent, StoreError> {
        if self.path.as_os_str().is_empty() {
            return Ok(StoreContent::Pem(Zeroizing::new(
                self.pem_certificates.0.as_bytes().to_vec(),
            )));
        }
        // It may be a pipe or a device, which says no length.
        let file = File::open(&self.path).map_err(|error| self.error(error))?;
        let mut bytes = Zeroizing::new(Vec::new());
        let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
        if read.map_err(|error| self.error(error))? as u64 > FILE_BYTES_MAX {
            return Err(self.error("it is longer than 16 MiB"));
        }
        if JKS.iter().any(|magic| bytes.starts_with(magic)) {
            return Err(self.error(
                "it has Java's old format. Make it PKCS#12: keytool -importkeystore -srckeystore OLD \
                 -destkeystore NEW -deststoretype pkcs12",
            ));
        }
        if bytes.windows(11).any(|bytes| bytes == b"-----BEGIN ") {
            return Ok(StoreContent::Pem(bytes));
        }
        let store = KeyStore::from_pkcs12(&bytes, &self.password.0, Pkcs12ImportPolicy::Relaxed);
        match store {
            Ok(store) => Ok(StoreContent::Pkcs12(Box::new(store))),
            Err(error) => Err(self.error(format!(
                "it is neither PEM nor a PKCS#12 file that opens with the password given: {error}"
            ))),
        }
    }

    fn certificates_of_pem(&self, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, StoreError> {
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
        certificates.map_err(|error| self.error(format!("a certificate does not read: {error}")))
    }

    fn key_of_pem(&self, text: &[u8]) -> Result<PrivateKeyDer<'static>, StoreError> {
        let Some(encrypted) = encrypted_key(text) else {
            return PrivateKeyDer::from_pem_slice(text)
                .map_err(|error| self.error(format!("it has no private key that reads: {error}")));
        };
        let failed = |why: String| self.error(format!("its private key does not read: {why}"));
        let (_, document) =
            SecretDocument::from_pem(encrypted).map_err(|error| failed(error.to_string()))?;
        let info = EncryptedPrivateKeyInfoRef::try_from(document.as_bytes())
            .map_err(|error| failed(error.to_string()))?;
        let password =
            if self.key_password.is_empty() { &self.password } else { &self.key_password };
        let key = info.decrypt(password.0.as_bytes()).map_err(|_| {
            failed("the password given is wrong, or it is encrypted in an unknown way".to_owned())
        })?;
        Ok(PrivateKeyDer::Pkcs8(key.as_bytes().to_vec().into()))
    }

    fn error(&self, why: impl fmt::Display) -> StoreError {
        let path = if self.path.as_os_str().is_empty() {
            PathBuf::from("the key and certificates that are given in PEM")
        } else {
            self.path.clone()
        };
        StoreError { path, why: why.to_string() }
    }
}

/// The certificates of a trust store, for checking others.
pub(crate) fn trusted(store: &StoreFile) -> Result<RootCertStore, TlsError> {
    if !store.is_named() {
        return Err(TlsError::NoTrust);
    }
    let mut roots = RootCertStore::empty();
    for certificate in store.read_trusted()? {
        roots.add(certificate).map_err(|error| TlsError::Trust(error.to_string()))?;
    }
    Ok(roots)
}

/// The encrypted key in a PEM file, with its lines of begin and end.
fn encrypted_key(text: &[u8]) -> Option<&str> {
    let find = |text: &[u8], word: &str| {
        text.windows(word.len()).position(|bytes| bytes == word.as_bytes())
    };
    let [begin, end] = ENCRYPTED_KEY;
    let from = find(text, begin)?;
    let length = find(&text[from..], end)? + end.len();
    // The text around it may be in any encoding.
    std::str::from_utf8(&text[from..from + length]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by OpenSSL 3: `fixture.pem` has an encrypted key, `fixture.p12` the same; the password
    /// is `secret`.
    fn fixture(name: &str, password: &str) -> StoreFile {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fixtures");
        let password = Secret::new(password);
        StoreFile { path: directory.join(name), password, ..StoreFile::default() }
    }

    #[test]
    fn a_key_is_the_same_from_pem_and_from_pkcs12() {
        let (of_pem, key_of_pem) = fixture("fixture.pem", "secret").read_key().unwrap();
        let (of_pkcs12, key_of_pkcs12) = fixture("fixture.p12", "secret").read_key().unwrap();
        assert_eq!(of_pem, of_pkcs12);
        assert_eq!(key_of_pem.secret_der(), key_of_pkcs12.secret_der());
        for name in ["fixture.pem", "fixture.p12"] {
            assert_eq!(fixture(name, "secret").read_trusted().unwrap(), of_pem);
            let error = fixture(name, "wrong").read_key().unwrap_err().to_string();
            assert!(error.contains("password given"), "{error}");
        }
    }

    #[test]
    fn pem_needs_no_file_and_its_key_may_have_a_password_of_its_own() {
        let file = fixture("fixture.pem", "secret");
        let text = std::fs::read_to_string(&file.path).unwrap();
        let inline = StoreFile {
            password: Secret::new("of the store"),
            key_password: Secret::new("secret"),
            pem_key: Secret::new(&text),
            ..StoreFile::default()
        };
        let (certificates, key) = inline.read_key().unwrap();
        let (of_file, key_of_file) = file.read_key().unwrap();
        assert_eq!(certificates, of_file);
        assert_eq!(key.secret_der(), key_of_file.secret_der());
        assert!(!format!("{inline:?}").contains("BEGIN"));
    }

    #[test]
    fn a_password_is_never_shown() {
        assert!(!format!("{:?}", fixture("fixture.pem", "secret")).contains("secret"));
    }
}
