//! Reads the document of keys.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper_util::rt::TokioIo;
use tls::{StoreFile, TlsClient, TlsClientOptions};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::key_set::{DOCUMENT_BYTES_MAX, KeySource};

/// The time limit of reading the keys.
const FETCH_MAX: Duration = Duration::from_secs(10);
/// The files in which systems keep the authorities that they trust.
const SYSTEM_TRUST: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Reads it, from `source`. `trust` are the authorities for a server over TLS; `None` for those of
/// the system.
pub(crate) async fn fetch(source: &KeySource, trust: Option<&Path>) -> Result<Bytes, String> {
    let fetching = async {
        match source {
            KeySource::File(path) => read_file(path).await,
            KeySource::Http { is_secure, host, port, path } => {
                let place = format!("{host}:{port}");
                let stream = TcpStream::connect(&place).await;
                let stream = stream.map_err(|error| format!("connect to {place}: {error}"))?;
                if !is_secure {
                    return get(stream, &place, path).await;
                }
                let name = host.trim_start_matches('[').trim_end_matches(']');
                let stream = tls_client(trust)?.connect(name, stream).await;
                let stream = stream.map_err(|error| format!("speak TLS with {place}: {error}"))?;
                get(stream, &place, path).await
            }
        }
    };
    match tokio::time::timeout(FETCH_MAX, fetching).await {
        Ok(fetched) => fetched,
        Err(_) => Err(format!("it takes longer than {FETCH_MAX:?}")),
    }
}

async fn read_file(path: &Path) -> Result<Bytes, String> {
    let path = path.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        let bytes = std::fs::metadata(&path)?.len();
        if bytes > DOCUMENT_BYTES_MAX as u64 {
            return Err(io::Error::other(format!("it is too long: {bytes} bytes")));
        }
        std::fs::read(&path).map(Bytes::from)
    });
    let read = reading.await.map_err(|error| error.to_string())?;
    read.map_err(|error| error.to_string())
}

fn tls_client(trust: Option<&Path>) -> Result<TlsClient, String> {
    let system = || SYSTEM_TRUST.map(PathBuf::from).into_iter().find(|path| path.exists());
    let path = trust.map(Path::to_owned).or_else(system);
    let path = path.ok_or(
        "this system has no list of authorities to trust: install ca-certificates, or name one with SSL_CERT_FILE",
    )?;
    let trust_store = StoreFile { path, ..StoreFile::default() };
    TlsClient::new(&TlsClientOptions { trust_store, key_store: StoreFile::default() })
        .map_err(|error| error.to_string())
}

/// `GET`, of one short document.
async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    place: &str,
    path: &str,
) -> Result<Bytes, String> {
    let failed = |error: &dyn std::error::Error| format!("ask {place}: {error}");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed(&error))?;
    let request = Request::get(path)
        .header("host", place)
        .header("accept", "application/json")
        .header("user-agent", concat!("freezeframe/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|error| failed(&error))?;
    let asking = async {
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        if !response.status().is_success() {
            return Err(format!("{place} answers with {}", response.status()));
        }
        let body = Limited::new(response.into_body(), DOCUMENT_BYTES_MAX).collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|error| failed(&*error))
    };
    let mut asking = std::pin::pin!(asking);
    let mut connection = std::pin::pin!(connection);
    tokio::select! {
        answered = &mut asking => answered,
        // It may end with the answer's last byte.
        _ = &mut connection => asking.await,
    }
}
