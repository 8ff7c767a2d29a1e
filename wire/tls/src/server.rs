//! The server's side of TLS.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock};
use rustls::server::WebPkiClientVerifier;
use rustls::{ServerConfig, ServerConnection, SupportedCipherSuite, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
pub use tokio_rustls::server::TlsStream;
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::distinguished_name::subject_name;
use crate::error::TlsError;
use crate::kernel::probe_kernel_tls;
use crate::record_handshake::shake_hands;
use crate::socket::TlsSocket;
use crate::stores::{StoreFile, trusted};
use crate::suites;

/// The policy for client certificates (`ssl.client.auth`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAuthentication {
    /// Clients are not asked for one.
    None,
    /// Clients may show one.
    Want,
    /// Clients have to show one.
    #[default]
    Need,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    Tls12,
    Tls13,
}

impl TlsVersion {
    fn supported(self) -> &'static SupportedProtocolVersion {
        match self {
            TlsVersion::Tls12 => &rustls::version::TLS12,
            TlsVersion::Tls13 => &rustls::version::TLS13,
        }
    }
}

/// Options of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Its key and certificates.
    pub key_store: StoreFile,
    /// The authorities that it trusts to certify clients.
    pub trust_store: StoreFile,
    pub client_authentication: ClientAuthentication,
    /// None for all.
    pub versions: BTreeSet<TlsVersion>,
    /// By Java's names; none for all.
    pub cipher_suites: Vec<String>,
    /// True if the kernel is to make the records of [`TlsServer::accept_socket`], where it has TLS.
    pub in_kernel: bool,
}

impl TlsOptions {
    /// The suites of `cipher_suites`: the names of those that there are not, and the others.
    pub fn cipher_suites_by_support(&self) -> (Vec<&str>, Vec<SupportedCipherSuite>) {
        let (mut unknown, mut known) = (Vec::new(), Vec::new());
        for name in &self.cipher_suites {
            match suites::all().iter().find(|suite| suite_name(suite) == *name) {
                Some(suite) => known.push(*suite),
                None => unknown.push(&**name),
            }
        }
        (unknown, known)
    }
}

/// The attributes that change if a file is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileMark {
    changed: SystemTime,
    /// The time at which its contents, owner or mode changed: seconds and nanoseconds.
    status_changed: (i64, i64),
    inode: u64,
    bytes: u64,
}

fn mark_of(path: &Path) -> Option<FileMark> {
    let metadata = std::fs::metadata(path).ok()?;
    let status_changed = (metadata.ctime(), metadata.ctime_nsec());
    let (changed, inode) = (metadata.modified().ok()?, metadata.ino());
    Some(FileMark { changed, status_changed, inode, bytes: metadata.len() })
}

/// Speaks TLS with clients.
pub struct TlsServer {
    config: RwLock<Arc<ServerConfig>>,
    files: Mutex<ReadFiles>,
}

/// The files that a server has read.
#[derive(Debug)]
struct ReadFiles {
    options: TlsOptions,
    /// The files as they were read; `None` if the last attempt failed.
    marks: Option<Vec<Option<FileMark>>>,
}

/// Other options of a server, with their files read.
pub struct PreparedTls {
    files: ReadFiles,
    config: Arc<ServerConfig>,
}

impl PreparedTls {
    /// Reads the files of `options`.
    ///
    /// # Errors
    /// One cannot be used, or they do not fit together.
    pub fn new(options: TlsOptions) -> Result<PreparedTls, TlsError> {
        let marks = Some(marks_of(&options));
        let config = Arc::new(server_config(&options)?);
        Ok(PreparedTls { files: ReadFiles { options, marks }, config })
    }
}

impl fmt::Debug for PreparedTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").field("files", &self.files).finish_non_exhaustive()
    }
}

impl TlsServer {
    /// Reads the files of `options`.
    ///
    /// # Errors
    /// As [`PreparedTls::new`].
    pub fn new(options: TlsOptions) -> Result<TlsServer, TlsError> {
        let PreparedTls { files, config } = PreparedTls::new(options)?;
        Ok(TlsServer { config: RwLock::new(config), files: Mutex::new(files) })
    }

    /// True if these are its options.
    pub fn has_options(&self, options: &TlsOptions) -> bool {
        self.files.lock().options == *options
    }

    /// Changes to other options. Connections that are there go on as they are.
    pub fn replace(&self, prepared: PreparedTls) {
        let mut files = self.files.lock();
        *self.config.write() = prepared.config;
        *files = prepared.files;
    }

    /// Reads the files again if one was replaced, or if that failed the last time; whether it did.
    /// Connections that are there go on as they are.
    ///
    /// # Errors
    /// As [`TlsServer::new`]: what was read before stays.
    pub fn reload_if_changed(&self) -> Result<bool, TlsError> {
        let mut files = self.files.lock();
        let marks = marks_of(&files.options);
        if files.marks.as_ref() == Some(&marks) {
            return Ok(false);
        }
        files.marks = None;
        *self.config.write() = Arc::new(server_config(&files.options)?);
        files.marks = Some(marks);
        Ok(true)
    }

    /// The expiry of the first of its own certificates to expire.
    ///
    /// # Errors
    /// The files cannot be used as they are now, so that earlier certificates are in use.
    pub fn certificates_end(&self) -> Result<Option<SystemTime>, TlsError> {
        let options = self.files.lock().options.clone();
        server_config(&options)?;
        let (certificates, _) = options.key_store.read_key()?;
        let ends = certificates.iter().filter_map(|certificate| end_of(certificate));
        Ok(ends.min())
    }

    /// Shakes hands with a client.
    ///
    /// # Errors
    /// The client speaks no TLS, or none of the versions and suites, or is not trusted, or went
    /// away.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let config = Arc::clone(&self.config.read());
        TlsAcceptor::from(config).accept(stream).await
    }

    /// [`TlsServer::accept`], for a socket that is read and written as it is ready.
    ///
    /// # Errors
    /// As [`TlsServer::accept`]; or the client's certificate names no principal.
    pub async fn accept_socket(&self, mut stream: TcpStream) -> io::Result<TlsSocket> {
        let config = Arc::clone(&self.config.read());
        let is_for_kernel = config.enable_secret_extraction;
        if !is_for_kernel {
            let accepted = TlsAcceptor::from(config).accept(stream).await?;
            let (stream, connection) = accepted.into_inner();
            return TlsSocket::new(stream, connection);
        }
        let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
        shake_hands(&mut stream, &mut connection).await?;
        TlsSocket::in_kernel(stream, connection)
    }
}

/// The name of the client by its certificate, if it showed one.
///
/// # Errors
/// The certificate does not say.
pub fn client_name<S>(stream: &TlsStream<S>) -> io::Result<Option<String>> {
    certified_name(stream.get_ref().1)
}

/// [`client_name`] of a connection.
pub(crate) fn certified_name(connection: &ServerConnection) -> io::Result<Option<String>> {
    let leaf = connection.peer_certificates().and_then(<[_]>::first);
    let no_name = || io::Error::other("the name in the client's certificate does not read");
    leaf.map(|certificate| subject_name(certificate).ok_or_else(no_name)).transpose()
}

/// The expiry of a certificate; `None` if it does not read.
fn end_of(certificate: &[u8]) -> Option<SystemTime> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let end = certificate.tbs_certificate().validity().not_after.to_unix_duration();
    Some(SystemTime::UNIX_EPOCH + end)
}

fn marks_of(options: &TlsOptions) -> Vec<Option<FileMark>> {
    let files = [&options.key_store, &options.trust_store];
    files.into_iter().map(|file| mark_of(&file.path)).collect()
}

fn server_config(options: &TlsOptions) -> Result<ServerConfig, TlsError> {
    if !options.key_store.is_named() {
        return Err(TlsError::NoKey);
    }
    let (certificates, key) = options.key_store.read_key()?;
    let mut provider = suites::provider();
    if !options.cipher_suites.is_empty() {
        let (_, suites) = options.cipher_suites_by_support();
        provider.cipher_suites = suites;
    }
    let provider = Arc::new(provider);
    let versions: Vec<_> = if options.versions.is_empty() {
        rustls::ALL_VERSIONS.to_vec()
    } else {
        options.versions.iter().map(|version| version.supported()).collect()
    };
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)?;
    let config = match options.client_authentication {
        ClientAuthentication::None => config.with_no_client_auth(),
        mode => {
            let roots = Arc::new(trusted(&options.trust_store)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
            let verifier = match mode {
                ClientAuthentication::Want => verifier.allow_unauthenticated(),
                _ => verifier,
            };
            let verifier = verifier.build().map_err(|error| TlsError::Trust(error.to_string()))?;
            config.with_client_cert_verifier(verifier)
        }
    };
    let mut config = config.with_single_cert(certificates, key)?;
    config.enable_secret_extraction = options.in_kernel && probe_kernel_tls().is_ok();
    Ok(config)
}

/// A suite's name, as Java has it.
fn suite_name(suite: &SupportedCipherSuite) -> String {
    // `TLS13_AES_…` is `TLS_AES_…` elsewhere.
    format!("{:?}", suite.suite()).replacen("TLS13_", "TLS_", 1)
}

/// The names of all cipher suites, with commas between.
pub fn all_cipher_suites() -> String {
    let names: Vec<_> = suites::all().iter().map(suite_name).collect();
    names.join(", ")
}
