//! A socket that speaks TLS, and reports when it is ready. Reads and writes take `&self`, so that
//! one can be awaited while the other is.
//!
//! Where the kernel does not encrypt, encrypted bytes that did not go out wait here: they go out
//! before anything else is taken, or by [`TlsSocket::try_flush`].

use std::io::{self, BufRead, IoSlice, Write};

use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use rustls::{ProtocolVersion, ServerConnection};
use tokio::net::TcpStream;

use crate::kernel::{self, KernelRecords};
use crate::server::certified_name;

/// The most bytes that one read takes from the socket.
const READ_BYTES: usize = 64 << 10;
/// The most bytes that are encrypted before they go out: few, because each client that does not
/// read holds as much; with what TLS adds, no more than the kernel sends as one packet between
/// processes of a machine, 65,483 bytes. A little over that costs a second packet, which wakes the
/// client once more.
const WRITE_BYTES_MAX: usize = (64 << 10) - 256;

/// The server's end of a connection after the handshake.
pub struct TlsSocket {
    stream: TcpStream,
    /// The name of the client by its certificate.
    client_name: Option<String>,
    records: Records,
}

/// TLS records: by rustls in this process, or by the kernel.
enum Records {
    Process(Box<Mutex<SocketState>>),
    Kernel(KernelRecords),
}

struct SocketState {
    connection: ServerConnection,
    /// Bytes from the socket that are not decrypted. The buffer has no memory while it is empty.
    received: BytesMut,
    /// True after a protocol error of the other side. rustls then returns it from each call.
    has_failed: bool,
}

impl std::fmt::Debug for TlsSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsSocket").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl TlsSocket {
    /// The socket below, to see in which state it is.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// A connection after its handshake.
    ///
    /// # Errors
    /// The client's certificate names no principal.
    pub(crate) fn new(
        stream: TcpStream,
        mut connection: ServerConnection,
    ) -> io::Result<TlsSocket> {
        let client_name = certified_name(&connection)?;
        connection.set_buffer_limit(Some(WRITE_BYTES_MAX));
        let state = SocketState { connection, received: BytesMut::new(), has_failed: false };
        Ok(TlsSocket {
            stream,
            client_name,
            records: Records::Process(Box::new(Mutex::new(state))),
        })
    }

    /// [`TlsSocket::new`], with the kernel's TLS if it has that. The bytes that the client sent
    /// after the handshake are still in the socket.
    ///
    /// # Errors
    /// As [`TlsSocket::new`]; or the kernel does not take the keys.
    pub(crate) fn in_kernel(
        stream: TcpStream,
        connection: ServerConnection,
    ) -> io::Result<TlsSocket> {
        if connection.wants_write() || kernel::attach(&stream).is_err() {
            return TlsSocket::new(stream, connection);
        }
        let client_name = certified_name(&connection)?;
        let records = Records::Kernel(KernelRecords::take_over(&stream, connection)?);
        Ok(TlsSocket { stream, client_name, records })
    }

    /// The name of the client by its certificate, if it showed one.
    pub fn client_name(&self) -> Option<&str> {
        self.client_name.as_deref()
    }

    /// True if the kernel makes the records.
    pub fn is_in_kernel(&self) -> bool {
        matches!(self.records, Records::Kernel(_))
    }

    /// Waits until there may be something to read, or the other side has ended. Cancel-safe.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn readable(&self) -> io::Result<()> {
        let Records::Process(state) = &self.records else { return self.stream.readable().await };
        let has_more = state.lock().has_more();
        if has_more {
            // Readiness of a socket takes turns with other tasks; so does this.
            tokio::task::coop::consume_budget().await;
            return Ok(());
        }
        self.stream.readable().await
    }

    /// Waits until a write is possible, or the other side has ended. Cancel-safe.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    /// Reads what has arrived, up to the length of `buffer`; 0 once the other side has ended.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; or the connection is broken, or the other side breaks
    /// the rules.
    pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let state = match &self.records {
            Records::Process(state) => state,
            Records::Kernel(records) => return records.try_read(&self.stream, buffer),
        };
        let mut filled = 0;
        self.read_each(state, buffer.len(), &mut |piece| {
            buffer[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        })
    }

    /// [`TlsSocket::try_read`], into the spare capacity of `buffer`.
    ///
    /// # Errors
    /// As [`TlsSocket::try_read`].
    pub fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        let state = match &self.records {
            Records::Process(state) => state,
            Records::Kernel(records) => return records.try_read_buf(&self.stream, buffer),
        };
        let room = buffer.capacity() - buffer.len();
        self.read_each(state, room, &mut |piece| buffer.extend_from_slice(piece))
    }

    /// Gives `take` up to `room` bytes. It reads the socket once more at most after the first of
    /// them, so that a fast client does not hold the thread.
    fn read_each(
        &self,
        state: &Mutex<SocketState>,
        room: usize,
        take: &mut dyn FnMut(&[u8]),
    ) -> io::Result<usize> {
        let mut state = state.lock();
        let mut copied = 0;
        while copied < room {
            match state.connection.reader().fill_buf() {
                Ok([]) => return Ok(copied),
                Ok(piece) => {
                    let count = piece.len().min(room - copied);
                    take(&piece[..count]);
                    state.connection.reader().consume(count);
                    copied += count;
                    continue;
                }
                // The other side ended without saying so in TLS. Frames say where they end.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(copied),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error),
            }
            if copied > 0 && state.received.is_empty() {
                return Ok(copied);
            }
            match state.receive(&self.stream) {
                Ok(()) => {}
                // Bytes that came before an error come first. The error comes again.
                Err(_) if copied > 0 || state.has_plaintext() => {
                    if copied > 0 {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(copied)
    }

    /// Takes as much of `slices` as may be encrypted now. The rest goes out with the next call, or
    /// by [`TlsSocket::try_flush`].
    ///
    /// # Errors
    /// `WouldBlock` if earlier bytes still wait; or the connection is broken.
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = match &self.records {
            Records::Process(state) => state.lock(),
            Records::Kernel(records) => return records.try_write_vectored(&self.stream, slices),
        };
        state.flush(&self.stream)?;
        let written = state.connection.writer().write_vectored(slices)?;
        state.check_queued(written)?;
        match state.flush(&self.stream) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            Ok(()) | Err(_) => Ok(written),
        }
    }

    /// Sends what waits here.
    ///
    /// # Errors
    /// `WouldBlock` if some of it still waits; or the connection is broken.
    pub fn try_flush(&self) -> io::Result<()> {
        match &self.records {
            Records::Process(state) => state.lock().flush(&self.stream),
            Records::Kernel(_) => Ok(()),
        }
    }
}

impl Drop for TlsSocket {
    /// Tells the other side that this was all, if that can be done at once.
    fn drop(&mut self) {
        match &mut self.records {
            Records::Process(state) => {
                let state = state.get_mut();
                state.connection.send_close_notify();
                let _ = state.flush(&self.stream);
            }
            Records::Kernel(records) => records.close(&self.stream),
        }
    }
}

impl SocketState {
    /// True if there is more to read without the socket, or an error.
    fn has_more(&mut self) -> bool {
        let is_empty = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.has_failed
            || !self.received.is_empty()
            || !self.connection.reader().fill_buf().is_err_and(is_empty)
    }

    fn has_plaintext(&mut self) -> bool {
        self.connection.reader().fill_buf().is_ok_and(|plaintext| !plaintext.is_empty())
    }

    /// Checks that rustls has queued the `accepted` bytes. With TLS 1.2 it drops bytes silently
    /// once a key has encrypted as many records as it may; TLS 1.3 changes keys.
    fn check_queued(&mut self, accepted: usize) -> io::Result<()> {
        if self.connection.protocol_version() != Some(ProtocolVersion::TLSv1_2) {
            return Ok(());
        }
        let state = self.connection.process_new_packets();
        let queued = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if queued.tls_bytes_to_write() < accepted {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the connection has sent as much as TLS 1.2 may with one key",
            ));
        }
        Ok(())
    }

    /// Decrypts some more.
    fn receive(&mut self, stream: &TcpStream) -> io::Result<()> {
        if self.has_failed {
            return self.process();
        }
        if self.received.is_empty() {
            self.received.reserve(READ_BYTES);
            match stream.try_read_buf(&mut self.received) {
                Ok(_) => {}
                Err(error) => {
                    self.received = BytesMut::new();
                    return Err(error);
                }
            }
        }
        // Nothing stands for the end.
        let count = self.connection.read_tls(&mut &self.received[..])?;
        self.received.advance(count);
        if self.received.is_empty() {
            self.received = BytesMut::new();
        }
        let processed = self.process();
        self.has_failed = processed.is_err();
        // Answers of TLS itself, or why it ends.
        match self.flush(stream) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Ok(()) | Err(_) => {}
        }
        processed
    }

    fn process(&mut self) -> io::Result<()> {
        let processed = self.connection.process_new_packets();
        processed.map(drop).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    fn flush(&mut self, stream: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut SocketWriter(stream))?;
        }
        Ok(())
    }
}

/// Writes to a socket without waiting.
struct SocketWriter<'a>(&'a TcpStream);

impl Write for SocketWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
