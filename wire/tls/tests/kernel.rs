//! A socket whose records the kernel makes, with a client that is all rustls'. Where the kernel has
//! no TLS, the server makes them itself, and the same has to hold; with
//! `FREEZEFRAME_NEEDS_KERNEL_TLS` that is a failure. `rdma/vm/test` runs this on a kernel that has
//! it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream as BlockingStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rustls::crypto::aws_lc_rs as rustls_aws_lc;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};
use tls::{
    ClientAuthentication, Secret, StoreFile, TlsOptions, TlsServer, TlsSocket, TlsVersion,
    probe_kernel_tls,
};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, spawn_blocking};

type Client = StreamOwned<ClientConnection, BlockingStream>;

/// The time limit of each step.
const PATIENCE: Duration = Duration::from_secs(60);

struct Server {
    tls: TlsServer,
    listener: TcpListener,
    client: Arc<ClientConfig>,
}

impl Server {
    async fn new(version: TlsVersion, suite: &str) -> Server {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key_store = StoreFile {
            pem_key: Secret::new(&certified.signing_key.serialize_pem()),
            pem_certificates: Secret::new(&certified.cert.pem()),
            ..StoreFile::default()
        };
        let tls = TlsServer::new(TlsOptions {
            key_store,
            client_authentication: ClientAuthentication::None,
            versions: [version].into(),
            cipher_suites: vec![suite.to_owned()],
            in_kernel: true,
            ..TlsOptions::default()
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Server { tls: tls.unwrap(), listener, client: client_config(certified.cert.der().clone()) }
    }

    /// A connection of a client that does `act`, and what becomes of that.
    async fn connected<T: Send + 'static>(
        &self,
        act: impl FnOnce(Client) -> T + Send + 'static,
    ) -> (TlsSocket, JoinHandle<T>) {
        let (address, config) = (self.listener.local_addr().unwrap(), Arc::clone(&self.client));
        let acting = spawn_blocking(move || act(connect(address, config)));
        let (stream, _) = self.listener.accept().await.unwrap();
        let socket = self.tls.accept_socket(stream).await.unwrap();
        let has_kernel = probe_kernel_tls();
        assert_eq!(socket.is_in_kernel(), has_kernel.is_ok());
        if std::env::var_os("FREEZEFRAME_NEEDS_KERNEL_TLS").is_some() {
            has_kernel.unwrap();
        }
        (socket, acting)
    }
}

fn client_config(trusted: CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted).unwrap();
    let config = ClientConfig::builder_with_provider(rustls_aws_lc::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

fn connect(address: SocketAddr, config: Arc<ClientConfig>) -> Client {
    let name = ServerName::try_from("localhost").unwrap();
    let stream = BlockingStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(ClientConnection::new(config, name).unwrap(), stream)
}

/// The next bytes; none once the client has ended.
async fn read_some(socket: &TlsSocket) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; 100_000];
    let reading = async {
        loop {
            socket.readable().await?;
            match socket.try_read(&mut buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    };
    let count = tokio::time::timeout(PATIENCE, reading).await.expect("it is read")?;
    buffer.truncate(count);
    Ok(buffer)
}

async fn write_all(socket: &TlsSocket, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() || socket.try_flush().is_err() {
        socket.writable().await?;
        let (first, second) = bytes.split_at(bytes.len() / 3);
        match socket.try_write_vectored(&[IoSlice::new(first), IoSlice::new(second)]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            written => bytes = &bytes[written?..],
        }
    }
    Ok(())
}

fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index % 251) as u8).collect()
}

/// Data that a client sends in one packet with the end of its handshake are there once the kernel
/// has the keys.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_with_the_end_of_the_handshake_is_not_lost() {
    let server = Server::new(TlsVersion::Tls13, "TLS_AES_128_GCM_SHA256").await;
    let (socket, client) = server
        .connected(|Client { mut conn, mut sock }| {
            while conn.wants_write() {
                conn.write_tls(&mut sock).unwrap();
            }
            while conn.is_handshaking() {
                conn.read_tls(&mut sock).unwrap();
                conn.process_new_packets().unwrap();
            }
            conn.writer().write_all(&pattern(30)).unwrap();
            let mut packet = Vec::new();
            while conn.wants_write() {
                conn.write_tls(&mut packet).unwrap();
            }
            sock.write_all(&packet).unwrap();
            let mut answer = vec![0; 300];
            StreamOwned::new(conn, sock).read_exact(&mut answer).unwrap();
        })
        .await;
    assert_eq!(read_some(&socket).await.unwrap(), pattern(30));
    write_all(&socket, &pattern(300)).await.unwrap();
    client.await.unwrap();
}

/// A client that has been there resumes its session: it speaks first, right behind a shorter
/// handshake.
#[tokio::test(flavor = "multi_thread")]
async fn clients_come_again() {
    for (version, suite) in [
        (TlsVersion::Tls13, "TLS_AES_128_GCM_SHA256"),
        (TlsVersion::Tls12, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    ] {
        let server = Server::new(version, suite).await;
        for turn in 0..20 {
            let (socket, client) = server
                .connected(move |mut client| {
                    // The end of the handshake goes out first, and then what is said at once: it
                    // arrives while the server takes its turn, before or after the kernel has the
                    // keys.
                    while client.conn.is_handshaking() {
                        client.conn.complete_io(&mut client.sock).unwrap();
                    }
                    client.write_all(&pattern(30)).unwrap();
                    let mut answer = vec![0; 300];
                    client.read_exact(&mut answer).unwrap();
                    client.conn.handshake_kind()
                })
                .await;
            assert_eq!(read_some(&socket).await.unwrap(), pattern(30), "{suite}, turn {turn}");
            write_all(&socket, &pattern(300)).await.unwrap();
            let resumed = client.await.unwrap() == Some(HandshakeKind::Resumed);
            assert_eq!(resumed, turn > 0, "{suite}, turn {turn}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_arrives_both_ways_and_each_side_says_that_it_was_all() {
    let suites = [
        (TlsVersion::Tls13, "TLS_AES_128_GCM_SHA256"),
        (TlsVersion::Tls13, "TLS_AES_256_GCM_SHA384"),
        (TlsVersion::Tls13, "TLS_CHACHA20_POLY1305_SHA256"),
        (TlsVersion::Tls12, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        (TlsVersion::Tls12, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
        (TlsVersion::Tls12, "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ];
    for (version, suite) in suites {
        let server = Server::new(version, suite).await;
        let (socket, client) = server
            .connected(move |mut client| {
                // The first goes out with the end of the handshake.
                client.write_all(&pattern(1)).unwrap();
                let mut answer = vec![0; 1_000_000];
                client.read_exact(&mut answer).unwrap();
                assert_eq!(answer, pattern(answer.len()), "{suite}");
                client.write_all(&answer).unwrap();
                client.conn.send_close_notify();
                client.flush().unwrap();
                // An end that was not said is an error here.
                client.read(&mut [0]).unwrap()
            })
            .await;
        assert_eq!(read_some(&socket).await.unwrap(), pattern(1), "{suite}");
        write_all(&socket, &pattern(1_000_000)).await.unwrap();
        let mut received = Vec::new();
        while received.len() < 1_000_000 {
            received.extend(read_some(&socket).await.unwrap());
        }
        assert!(received == pattern(1_000_000), "{suite}");
        assert_eq!(read_some(&socket).await.unwrap(), [], "{suite}");
        assert_eq!(read_some(&socket).await.unwrap(), [], "{suite}: and so it stays");
        drop(socket);
        assert_eq!(client.await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_changes_keys_is_followed_or_told_so() {
    let server = Server::new(TlsVersion::Tls13, "TLS_AES_256_GCM_SHA384").await;
    let (go, may_go) = mpsc::channel();
    let (socket, client) = server
        .connected(move |mut client| {
            client.write_all(b"one").unwrap();
            client.flush().unwrap();
            may_go.recv().unwrap();
            client.conn.refresh_traffic_keys().unwrap();
            let _ = client.write_all(b"two");
            let _ = client.read(&mut [0]);
        })
        .await;
    assert_eq!(read_some(&socket).await.unwrap(), b"one");
    go.send(()).unwrap();
    let next = read_some(&socket).await;
    if socket.is_in_kernel() {
        let error = next.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert!(error.to_string().contains("changes keys"), "{error}");
    } else {
        assert_eq!(next.unwrap(), b"two");
    }
    drop(socket);
    client.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_was_changed_on_the_way_is_an_error() {
    let server = Server::new(TlsVersion::Tls13, "TLS_AES_128_GCM_SHA256").await;
    let (socket, client) = server
        .connected(|mut client| {
            client.write_all(b"one").unwrap();
            client.flush().unwrap();
            // A record of data that nobody sealed.
            let forged = [&[23, 3, 3, 0, 40][..], &[7; 40]].concat();
            client.sock.write_all(&forged).unwrap();
            let _ = client.read(&mut [0]);
        })
        .await;
    assert_eq!(read_some(&socket).await.unwrap(), b"one");
    assert_eq!(read_some(&socket).await.unwrap_err().kind(), ErrorKind::InvalidData);
    drop(socket);
    client.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_without_a_word_has_ended() {
    let server = Server::new(TlsVersion::Tls13, "TLS_AES_128_GCM_SHA256").await;
    let (go, may_go) = mpsc::channel();
    let (socket, client) = server
        .connected(move |mut client| {
            client.write_all(b"one").unwrap();
            client.flush().unwrap();
            may_go.recv().unwrap();
            client.sock.shutdown(Shutdown::Write).unwrap();
            client
        })
        .await;
    assert_eq!(read_some(&socket).await.unwrap(), b"one");
    go.send(()).unwrap();
    let _client = client.await.unwrap();
    assert_eq!(read_some(&socket).await.unwrap(), []);
}
