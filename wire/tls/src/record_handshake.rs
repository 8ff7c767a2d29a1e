//! A handshake that reads one record of TLS at a time, and none behind its last, so that what the
//! client sends after it stays in the socket.

use std::io;

use rustls::ServerConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The bytes of a record's header: its type, a version, and in two bytes the length of what
/// follows.
const HEADER_BYTES: usize = 5;

/// Shakes hands with a client. Nothing waits to be sent then.
///
/// # Errors
/// The client breaks the protocol, and gets an alert if that can be sent at once; or it is gone.
pub(crate) async fn shake_hands(
    stream: &mut TcpStream,
    connection: &mut ServerConnection,
) -> io::Result<()> {
    let (mut header, mut body) = ([0; HEADER_BYTES], Vec::new());
    loop {
        stream.write_all(&unsent(connection)?).await?;
        if !connection.is_handshaking() {
            return Ok(());
        }
        stream.read_exact(&mut header).await?;
        // This already refuses all but records of TLS.
        take(stream, connection, &header)?;
        body.resize(usize::from(u16::from_be_bytes([header[3], header[4]])), 0);
        stream.read_exact(&mut body).await?;
        take(stream, connection, &body)?;
    }
}

fn take(stream: &TcpStream, connection: &mut ServerConnection, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        if connection.read_tls(&mut bytes)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = connection.process_new_packets() {
            let _ = stream.try_write(&unsent(connection)?);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
    }
    Ok(())
}

fn unsent(connection: &mut ServerConnection) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut bytes)?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::ServerConfig;
    use rustls::crypto::aws_lc_rs as rustls_aws_lc;
    use rustls::server::ResolvesServerCertUsingSni;
    use tokio::net::TcpListener;

    use super::*;

    /// A record with the alert `close_notify`, which in a handshake is a warning like others.
    const WARNING: [u8; 7] = [21, 3, 3, 0, 2, 1, 0];

    /// The error after a client that sends `bytes`, and nothing else.
    async fn shake_hands_with(bytes: &[u8]) -> io::Error {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it has one");
        let mut client = TcpStream::connect(address).await.expect("it listens");
        client.write_all(bytes).await.expect("it reads");
        let (mut stream, _) = listener.accept().await.expect("it came");
        let config = ServerConfig::builder_with_provider(rustls_aws_lc::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("it has versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        let mut connection = ServerConnection::new(Arc::new(config)).expect("it is valid");
        let ended = shake_hands(&mut stream, &mut connection);
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        ended.expect("it ends").expect_err("there was no handshake")
    }

    #[tokio::test]
    async fn a_client_that_only_warns_is_not_heard_for_ever() {
        let error = shake_hands_with(&WARNING.repeat(10)).await;
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }

    #[tokio::test]
    async fn what_is_no_record_is_refused_before_more_is_awaited() {
        for bytes in ["GET /", "\x16\x03\x01\u{7f}\u{7f}"] {
            let error = shake_hands_with(bytes.as_bytes()).await;
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
        }
    }
}
