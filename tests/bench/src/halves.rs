//! The two halves of a connection's socket, in the open or over TLS.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context, Result};
use rustls::ClientConnection;
use tls::{StoreFile, TlsClient, TlsClientOptions};

/// The most bytes that one read takes from the socket.
const READ_BYTES: usize = 256 << 10;

/// The TLS client of all connections, if they are over TLS; the command line says so once.
static TLS: OnceLock<TlsClient> = OnceLock::new();

/// From here on, connections are over TLS, with brokers whose certificates are signed by one in
/// `trusted`. Each shakes hands in full.
pub(crate) fn use_tls(trusted: &Path) -> Result<()> {
    let trust_store = StoreFile { path: trusted.to_owned(), ..StoreFile::default() };
    let client = TlsClient::new(&TlsClientOptions { trust_store, ..TlsClientOptions::default() })?;
    TLS.set(client.without_resumption()).ok().context("TLS is chosen once")
}

/// The halves of a connected socket.
pub(crate) fn split(mut stream: TcpStream, address: SocketAddr) -> Result<(ReadHalf, WriteHalf)> {
    let Some(client) = TLS.get() else {
        return Ok((ReadHalf::Plain(stream.try_clone()?), WriteHalf::Plain(stream)));
    };
    let mut connection = client.begin(&address.ip().to_string())?;
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).context("shake hands")?;
    }
    let connection = Arc::new(Mutex::new(connection));
    let read = TlsReadHalf {
        stream: stream.try_clone()?,
        connection: Arc::clone(&connection),
        received: vec![0; READ_BYTES],
        unread: 0..0,
    };
    let write = TlsWriteHalf { stream, connection, encrypted: Vec::new() };
    Ok((ReadHalf::Tls(read), WriteHalf::Tls(write)))
}

pub(crate) enum ReadHalf {
    Plain(TcpStream),
    Tls(TlsReadHalf),
}

pub(crate) struct TlsReadHalf {
    stream: TcpStream,
    connection: Arc<Mutex<ClientConnection>>,
    received: Vec<u8>,
    /// The range of it that is not decrypted.
    unread: std::ops::Range<usize>,
}

impl Read for ReadHalf {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ReadHalf::Plain(stream) => stream.read(buffer),
            ReadHalf::Tls(half) => half.read(buffer),
        }
    }
}

impl Read for TlsReadHalf {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut connection = self.connection.lock().expect("no holder panics");
            match connection.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if !self.unread.is_empty() {
                let taken = connection.read_tls(&mut &self.received[self.unread.clone()])?;
                self.unread.start += taken;
                connection.process_new_packets().map_err(io::Error::other)?;
                continue;
            }
            drop(connection);
            let count = self.stream.read(&mut self.received)?;
            if count == 0 {
                return Ok(0);
            }
            self.unread = 0..count;
        }
    }
}

pub(crate) enum WriteHalf {
    Plain(TcpStream),
    Tls(TlsWriteHalf),
}

pub(crate) struct TlsWriteHalf {
    stream: TcpStream,
    connection: Arc<Mutex<ClientConnection>>,
    encrypted: Vec<u8>,
}

impl Write for WriteHalf {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            WriteHalf::Plain(stream) => stream.write_vectored(slices),
            WriteHalf::Tls(half) => half.write(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TlsWriteHalf {
    fn write(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut connection = self.connection.lock().expect("no holder panics");
        let taken = connection.writer().write_vectored(slices)?;
        self.encrypted.clear();
        while connection.wants_write() {
            connection.write_tls(&mut self.encrypted)?;
        }
        drop(connection);
        self.stream.write_all(&self.encrypted)?;
        Ok(taken)
    }
}
