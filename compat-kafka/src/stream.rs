//! The byte stream of a connection: a socket, one that speaks TLS, or the simulation's replacement
//! for one.

use std::io;

use bytes::BytesMut;
use futures_util::FutureExt;
use tls::TlsSocket;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A stream of bytes in both directions that reports when it is ready. Reads and writes take
/// `&self`, so that one can be awaited while the other is.
pub trait ByteStream: Send + Sync + 'static {
    /// Waits until there is something to read, or the other side has ended.
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits until a write is possible, or the other side has ended.
    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Reads what has arrived, up to the length of `buffer`; 0 once the other side has ended.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing has arrived; or the connection is broken.
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// [`ByteStream::try_read`], into the spare capacity of `buffer`.
    ///
    /// # Errors
    ///
    /// As [`ByteStream::try_read`].
    fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize>;

    /// Writes as much of `slices` as the stream accepts now.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it accepts nothing; or the connection is broken.
    fn try_write_vectored(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize>;

    /// True if the other side is known to have ended, though what it sent may not be read yet.
    fn is_ended(&self) -> bool {
        false
    }

    /// Sends what was accepted and waits in the stream itself.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if some of it still waits; or the connection is broken.
    fn try_flush(&self) -> io::Result<()> {
        Ok(())
    }
}

impl ByteStream for TcpStream {
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send {
        TcpStream::readable(self)
    }

    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send {
        TcpStream::writable(self)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        TcpStream::try_read(self, buffer)
    }

    fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        TcpStream::try_read_buf(self, buffer)
    }

    fn try_write_vectored(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        TcpStream::try_write_vectored(self, slices)
    }

    fn is_ended(&self) -> bool {
        has_ended(self)
    }
}

impl ByteStream for TlsSocket {
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send {
        TlsSocket::readable(self)
    }

    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send {
        TlsSocket::writable(self)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        TlsSocket::try_read(self, buffer)
    }

    fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        TlsSocket::try_read_buf(self, buffer)
    }

    fn is_ended(&self) -> bool {
        has_ended(self.socket())
    }

    fn try_write_vectored(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        TlsSocket::try_write_vectored(self, slices)
    }

    fn try_flush(&self) -> io::Result<()> {
        TlsSocket::try_flush(self)
    }
}

fn has_ended(socket: &TcpStream) -> bool {
    let ready = socket.ready(Interest::READABLE).now_or_never();
    ready.is_some_and(|ready| ready.map_or(true, |ready| ready.is_read_closed()))
}
