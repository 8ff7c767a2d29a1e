//! What a connection asks of the stream that it runs over: a socket, or what a simulation has for one.

use std::io;

use bytes::BytesMut;
use tokio::net::TcpStream;

/// A stream of bytes, each way, that says when it can go on. Reads and writes take `&self`, so that one
/// can be waited for while the other is.
pub trait ByteStream: Send + Sync + 'static {
    /// Waits until something can be read, or the other side has ended.
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Waits until something can be written, or the other side has ended.
    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send;

    /// Reads what is there, up to the length of `buffer`; 0 once the other side has ended.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there yet; or the connection is broken.
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// [`ByteStream::try_read`], into the room that `buffer` has behind what it holds.
    ///
    /// # Errors
    /// As [`ByteStream::try_read`].
    fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize>;

    /// Writes as much of `slices` as is taken now.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is; or the connection is broken.
    fn try_write_vectored(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize>;
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
}
