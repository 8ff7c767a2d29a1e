//! Certificates for TLS, signed by an authority of the test's own.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::directory::TestDirectory;

/// A certificate and its key.
pub struct SignedKey {
    /// In PEM.
    pub certificate: String,
    pub key: KeyPair,
}

impl SignedKey {
    /// The certificate and the key.
    pub fn pem(&self) -> String {
        self.certificate.clone() + &self.key.serialize_pem()
    }
}

/// The authority that signs the certificates of a test.
pub struct TestAuthority(CertifiedIssuer<'static, KeyPair>);

impl Default for TestAuthority {
    fn default() -> TestAuthority {
        TestAuthority::new()
    }
}

impl TestAuthority {
    pub fn new() -> TestAuthority {
        let mut params = CertificateParams::new([]).expect("it has no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        TestAuthority(CertifiedIssuer::self_signed(params, key).expect("it signs itself"))
    }

    /// A certificate for `localhost`.
    pub fn sign(&self, common_name: &str) -> SignedKey {
        self.sign_params(common_name, CertificateParams::new(["localhost".to_owned()]))
    }

    /// A certificate for `localhost` that ends after `time`.
    pub fn sign_for(&self, common_name: &str, time: Duration) -> SignedKey {
        let params = CertificateParams::new(["localhost".to_owned()]).map(|mut params| {
            params.not_after = (SystemTime::now() + time).into();
            params
        });
        self.sign_params(common_name, params)
    }

    fn sign_params(
        &self,
        common_name: &str,
        params: Result<CertificateParams, rcgen::Error>,
    ) -> SignedKey {
        let mut params = params.expect("a name");
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("it signs").pem();
        SignedKey { certificate, key }
    }

    /// Its own certificate, in PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Its own certificate, in DER.
    pub fn der(&self) -> Vec<u8> {
        self.0.der().to_vec()
    }
}

/// An authority, and a directory with its certificate (`trust.pem`), and with the key and
/// certificate of a server (`server.pem`).
pub struct CertificateDirectory {
    pub authority: TestAuthority,
    directory: TestDirectory,
}

impl Default for CertificateDirectory {
    fn default() -> CertificateDirectory {
        CertificateDirectory::new()
    }
}

impl CertificateDirectory {
    pub fn new() -> CertificateDirectory {
        let (authority, directory) = (TestAuthority::new(), TestDirectory::new());
        let fixture = CertificateDirectory { authority, directory };
        fixture.write("trust.pem", &fixture.authority.pem());
        fixture.write("server.pem", &fixture.authority.sign("first").pem());
        fixture
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.file(name), text).expect("written");
    }

    /// `SETTING=PATH`, of a file in the directory.
    pub fn setting(&self, setting: &str, name: &str) -> String {
        format!("{setting}={}", self.file(name).display())
    }

    /// Replaces a file as a whole.
    pub fn replace(&self, name: &str, text: &str) {
        self.write("new", text);
        std::fs::rename(self.file("new"), self.file(name)).expect("renamed");
    }
}
