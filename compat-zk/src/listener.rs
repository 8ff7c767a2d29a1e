//! Accepts connections, in the open or over TLS.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tls::{TlsServer, TlsStream};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::reader::serve_connection;
use crate::server::ZkServer;

/// The pause after a connection could not be accepted: mostly, descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The longest time that a client may take for the handshake of TLS.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// The first byte of a handshake of TLS. A request begins with 0, and a four-letter word with a
/// letter.
const TLS_HANDSHAKE: u8 = 0x16;

/// The security of a port's connections.
#[derive(Clone, Debug)]
pub enum ListenerSecurity {
    Plain,
    Tls(Arc<TlsServer>),
    /// By the first byte that the client sends: ZooKeeper's `client.portUnification`.
    Either(Arc<TlsServer>),
}

/// Serves all clients that connect, until `stop` becomes true.
pub async fn serve(
    server: Arc<ZkServer>,
    listener: TcpListener,
    security: ListenerSecurity,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, peer)) => {
                // Before the handshake, which costs more.
                let Some(connection) = server.admit(peer) else { continue };
                let (server, security) = (Arc::clone(&server), security.clone());
                connections.spawn(async move {
                    let connection = AdmittedConnection { server: &server, connection };
                    serve_socket(&server, &connection.connection, stream, &security).await;
                });
            }
            Err(error) => {
                server.refuse_connection(&error.to_string());
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // Sessions go on at the next start: their connections are cut, as by any server that goes away.
    connections.shutdown().await;
}

/// Serves a client on a stream in the open, until either side ends it.
pub async fn serve_stream(
    server: &Arc<ZkServer>,
    stream: impl AsyncRead + AsyncWrite,
    peer: SocketAddr,
) {
    let Some(connection) = server.admit(peer) else { return };
    let connection = AdmittedConnection { server, connection };
    serve_connection(server, &connection.connection, stream).await;
}

/// A connection that is dismissed at its end, whatever that is.
struct AdmittedConnection<'a> {
    server: &'a ZkServer,
    connection: Arc<Connection>,
}

impl Drop for AdmittedConnection<'_> {
    fn drop(&mut self) {
        // After a panic it has not ended yet, and might still set watches.
        self.connection.output.cut();
        self.server.dismiss(&self.connection);
    }
}

async fn serve_socket(
    server: &Arc<ZkServer>,
    connection: &Arc<Connection>,
    stream: TcpStream,
    security: &ListenerSecurity,
) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let begins_with_tls = async {
        match security {
            ListenerSecurity::Plain => Some(None),
            ListenerSecurity::Tls(tls) => Some(Some(tls)),
            ListenerSecurity::Either(tls) => {
                let begin = tokio::time::timeout(HANDSHAKE_MAX, begins_with_tls(&stream)).await;
                Some(begin.ok()?.ok()?.then_some(tls))
            }
        }
    };
    let Some(tls) = until_cut(connection, begins_with_tls).await.flatten() else { return };
    let Some(tls) = tls else { return serve_connection(server, connection, stream).await };
    let handshake = tokio::time::timeout(HANDSHAKE_MAX, shake_hands(connection, stream, tls));
    match until_cut(connection, handshake).await {
        Some(Ok(Ok(stream))) => serve_connection(server, connection, stream).await,
        Some(Ok(Err(error))) => server.count_failed_handshake(connection.peer, &error),
        Some(Err(slow)) => server.count_failed_handshake(connection.peer, &slow.into()),
        None => {}
    }
}

/// Waits for what comes before the connection is served; `None` if it is cut meanwhile, to make
/// room for others.
async fn until_cut<T>(connection: &Connection, step: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = connection.output.wait_for_end() => None,
        done = step => Some(done),
    }
}

async fn begins_with_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 1 && first[0] == TLS_HANDSHAKE)
}

/// Secures a connection. A client that shows a certificate has the identity in it.
async fn shake_hands(
    connection: &Connection,
    stream: TcpStream,
    tls: &TlsServer,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = tls.accept(stream).await?;
    connection.secured(tls::client_name(&stream)?)?;
    Ok(stream)
}
