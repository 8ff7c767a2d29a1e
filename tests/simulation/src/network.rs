//! The network between a client and the node: two lanes of chunks, each of which arrives when its
//! time has come.
//!
//! Chunks of one lane arrive in order, those of two connections in any order. A lane accepts any
//! number of bytes at once up to its capacity, and can be cut at any moment: then what was in
//! flight is lost.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use compat_kafka::ByteStream;
use parking_lot::Mutex;
use testkit::rng::SeededRng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The most bytes that are on their way in one lane.
const WINDOW: usize = 16 << 10;
/// The longest delay of a chunk.
const DELAY_MS_MAX: u64 = 6;

struct Lane {
    chunks: VecDeque<(Instant, Bytes)>,
    buffered_bytes: usize,
    is_closed: bool,
    is_reset: bool,
    rng: SeededRng,
}

struct SharedLane {
    lane: Mutex<Lane>,
    changed: Notify,
}

/// One end of a connection.
pub(crate) struct SimSocket {
    inbound: Arc<SharedLane>,
    outbound: Arc<SharedLane>,
}

/// Both ends of a new connection.
pub(crate) fn socket_pair(rng: &mut SeededRng) -> (SimSocket, SimSocket) {
    let mut lane = || {
        let rng = rng.fork();
        let lane = Lane {
            chunks: VecDeque::new(),
            buffered_bytes: 0,
            is_closed: false,
            is_reset: false,
            rng,
        };
        Arc::new(SharedLane { lane: Mutex::new(lane), changed: Notify::new() })
    };
    let (there, back) = (lane(), lane());
    let near = SimSocket { inbound: Arc::clone(&back), outbound: Arc::clone(&there) };
    (near, SimSocket { inbound: there, outbound: back })
}

impl Lane {
    fn enqueue(&mut self, bytes: Bytes) {
        let delay = Duration::from_millis(self.rng.between(0, DELAY_MS_MAX));
        let before = self.chunks.back().map_or_else(Instant::now, |(due, _)| *due);
        self.buffered_bytes += bytes.len();
        self.chunks.push_back((before.max(Instant::now() + delay), bytes));
    }

    /// `Ok` if a read can return now; if not, when it can, if that is known.
    fn is_readable(&self) -> Result<(), Option<Instant>> {
        match self.chunks.front() {
            _ if self.is_reset => Ok(()),
            Some((due, _)) if *due <= Instant::now() => Ok(()),
            Some((due, _)) => Err(Some(*due)),
            None if self.is_closed => Ok(()),
            None => Err(None),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.is_reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if self.is_readable().is_err() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let Some((_, chunk)) = self.chunks.front_mut() else { return Ok(0) };
        let count = chunk.len().min(buffer.len());
        chunk.copy_to_slice(&mut buffer[..count]);
        if chunk.is_empty() {
            self.chunks.pop_front();
        }
        self.buffered_bytes -= count;
        Ok(count)
    }

    fn write(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        if self.is_reset || self.is_closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        let room = WINDOW - self.buffered_bytes;
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Mostly all of it, and now and then a little.
        let most = if self.rng.one_in(8) { self.rng.between(1, 64) as usize } else { WINDOW };
        let count = offered.min(room).min(most);
        let mut bytes = BytesMut::with_capacity(count);
        for slice in slices {
            bytes.put_slice(&slice[..slice.len().min(count - bytes.len())]);
        }
        self.enqueue(bytes.freeze());
        Ok(count)
    }
}

impl SharedLane {
    async fn wait_until(&self, ready: impl Fn(&Lane) -> Result<(), Option<Instant>>) {
        loop {
            let changed = self.changed.notified();
            let due = match ready(&self.lane.lock()) {
                Ok(()) => return,
                Err(due) => due,
            };
            match due {
                Some(due) => drop(timeout_at(due, changed).await),
                None => changed.await,
            }
        }
    }

    fn change<T>(&self, act: impl FnOnce(&mut Lane) -> T) -> T {
        let done = act(&mut self.lane.lock());
        self.changed.notify_waiters();
        done
    }
}

/// Moves bytes between a socket and a stream, until either ends.
pub(crate) async fn pump(socket: &SimSocket, stream: DuplexStream) {
    let (mut read, mut write) = tokio::io::split(stream);
    let inbound = async {
        let mut buffer = [0; 4096];
        loop {
            match socket.try_read(&mut buffer) {
                Ok(0) => return io::Result::Ok(()),
                Ok(count) => write.write_all(&buffer[..count]).await?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    socket.readable().await?
                }
                Err(error) => return Err(error),
            }
        }
    };
    let outbound = async {
        let mut buffer = [0; 4096];
        loop {
            match read.read(&mut buffer).await? {
                0 => return io::Result::Ok(()),
                count => socket.send(&buffer[..count]).await?,
            }
        }
    };
    tokio::select! {
        biased;
        _ = inbound => {}
        _ = outbound => {}
    }
}

impl SimSocket {
    /// Cuts the connection: both sides see it broken, and what was in flight is lost.
    pub(crate) fn reset(&self) {
        for lane in [&self.inbound, &self.outbound] {
            lane.change(|lane| {
                lane.is_reset = true;
                lane.chunks.clear();
            });
        }
    }

    /// Sends all of it.
    pub(crate) async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            match self.try_write_vectored(&[io::IoSlice::new(left)]) {
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Receives exactly so many bytes.
    pub(crate) async fn receive(&self, count: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; count];
        let mut filled = 0;
        while filled < count {
            match self.try_read(&mut bytes[filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable().await?,
                Err(error) => return Err(error),
            }
        }
        Ok(bytes.into())
    }
}

impl ByteStream for SimSocket {
    async fn readable(&self) -> io::Result<()> {
        self.inbound.wait_until(Lane::is_readable).await;
        Ok(())
    }

    async fn writable(&self) -> io::Result<()> {
        let has_room = |lane: &Lane| {
            let is_ready = lane.is_reset || lane.is_closed || lane.buffered_bytes < WINDOW;
            if is_ready { Ok(()) } else { Err(None) }
        };
        self.outbound.wait_until(has_room).await;
        Ok(())
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inbound.change(|lane| lane.read(buffer))
    }

    fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        let mut read = [0; 4096];
        let room = buffer.capacity() - buffer.len();
        let count = self.try_read(&mut read[..room.min(4096)])?;
        buffer.put_slice(&read[..count]);
        Ok(count)
    }

    fn try_write_vectored(&self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.outbound.change(|lane| lane.write(slices))
    }
}

impl Drop for SimSocket {
    /// The other side reads what is in flight, then the end; what it writes is lost.
    fn drop(&mut self) {
        self.outbound.change(|lane| lane.is_closed = true);
        self.inbound.change(|lane| lane.is_closed = true);
    }
}
