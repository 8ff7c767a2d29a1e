//! A socket that is read one record of TLS at a time, so that what follows the handshake stays in it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};
use tokio::net::TcpStream;

/// The bytes of a record's header: its type, a version, and in two bytes the length of what follows.
const HEADER_BYTES: usize = 5;

/// Reads no more than the header of a record, or the rest of it.
pub(crate) struct RecordStream {
    stream: Take<TcpStream>,
    place: RecordPlace,
}

/// Where in a record the next byte is.
enum RecordPlace {
    /// In its header, of which this was read.
    Header(Vec<u8>),
    Body,
}

impl RecordStream {
    pub(crate) fn new(stream: TcpStream) -> RecordStream {
        let stream = stream.take(HEADER_BYTES as u64);
        RecordStream { stream, place: RecordPlace::Header(Vec::new()) }
    }

    pub(crate) fn into_inner(self) -> TcpStream {
        self.stream.into_inner()
    }

    /// Moves past `read`, and allows what comes next.
    fn advance(&mut self, read: &[u8]) {
        if let RecordPlace::Header(header) = &mut self.place {
            header.extend_from_slice(read);
        }
        if self.stream.limit() > 0 {
            return;
        }
        let length = match &self.place {
            RecordPlace::Header(header) => u16::from_be_bytes([header[3], header[4]]),
            RecordPlace::Body => 0,
        };
        let (place, limit) = match length {
            // Take would end at once if nothing was allowed.
            0 => (RecordPlace::Header(Vec::new()), HEADER_BYTES as u64),
            length => (RecordPlace::Body, u64::from(length)),
        };
        self.place = place;
        self.stream.set_limit(limit);
    }
}

impl AsyncRead for RecordStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        self.advance(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RecordStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.stream.get_mut()).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.stream.get_mut()).poll_shutdown(context)
    }
}
