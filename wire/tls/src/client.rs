//! The client's side of TLS.

use std::fmt;
use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::TlsError;
use crate::stores::{StoreFile, trusted};
use crate::suites;

/// Options of a client.
#[derive(Clone, Debug, Default)]
pub struct TlsClientOptions {
    /// The authorities that it trusts to certify servers.
    pub trust_store: StoreFile,
    /// Its own key and certificates, if servers ask who it is.
    pub key_store: StoreFile,
}

/// Speaks TLS with servers, and checks that they are who they were called as.
#[derive(Clone)]
pub struct TlsClient(Arc<ClientConfig>);

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").finish_non_exhaustive()
    }
}

impl TlsClient {
    /// Reads the files of `options`.
    ///
    /// # Errors
    /// One cannot be used, or they do not fit together.
    pub fn new(options: &TlsClientOptions) -> Result<TlsClient, TlsError> {
        let roots: RootCertStore = trusted(&options.trust_store)?;
        let provider = Arc::new(suites::provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let config = if options.key_store.is_named() {
            let (certificates, key) = options.key_store.read_key()?;
            config.with_client_auth_cert(certificates, key)?
        } else {
            config.with_no_client_auth()
        };
        Ok(TlsClient(Arc::new(config)))
    }

    /// The same, where no connection goes on from an earlier one: each shakes hands in full.
    #[must_use]
    pub fn without_resumption(&self) -> TlsClient {
        let mut config = ClientConfig::clone(&self.0);
        config.resumption = Resumption::disabled();
        TlsClient(Arc::new(config))
    }

    /// A connection to the server at `host`, before its handshake, for a caller that moves the
    /// bytes itself.
    ///
    /// # Errors
    /// `host` is neither a name nor an address.
    pub fn begin(&self, host: &str) -> io::Result<ClientConnection> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)
    }

    /// Shakes hands with the server at `host`, a name or an address.
    ///
    /// # Errors
    /// It speaks no TLS, is not trusted, or is somebody else; or `host` is no name.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> io::Result<TlsStream<S>> {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(&self.0)).connect(name, stream).await
    }
}
