//! A connection: frames in, answers out, in the order of the requests.
//!
//! Requests of one connection take effect one after the other, as in Kafka. Produce requests alone
//! overlap: each takes its place in the journal's queue before the next is looked at, and their
//! answers wait for the disk together.
//!
//! Memory is bounded: a large frame's buffer grows as its bytes arrive, out of a budget that all
//! connections share; small frames have a budget of their own, so that large ones cannot keep them
//! out; and a connection whose client does not read is not read from. One small frame a connection
//! needs no budget: whoever waits for others can always be served.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::stream::{FuturesOrdered, StreamExt};
use kafka_protocol::messages::ApiKey;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::answer::Chunk;
use crate::core::Kafka;
use crate::extension;
use crate::file_run::{LoadError, load_first};
use crate::frame_memory::{FrameBuffer, LARGE_BYTES_MIN};
use crate::metrics::add;
use crate::routes::{BadRequest, Context, Served, header, route};
use crate::stream::Stream;
use crate::{apis, routes};

/// What is read at once while frames are small: they lie together in blocks of about this.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// How much more of the budget a large frame takes at once, in KiB.
const STEP_UNITS: u32 = 1 << 10;
/// Up to here a frame's buffer is made in one piece when the frame begins; the memory is touched
/// only as bytes arrive.
const WHOLE_BYTES_MAX: usize = 2 << 20;
/// How many produce requests of one connection may wait for the disk.
const PRODUCES_MAX: usize = 256;
/// A client that stops in the middle of a frame, or does not take its answer, is given this long.
const STALL_MAX: Duration = Duration::from_secs(60);
/// How long open requests may take to end when the service stops.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// The same for a request that may wait for long: a fetch at the end of a log, a join.
const NEWS_MAX: Duration = Duration::from_millis(200);

/// Accepts connections until `stop` turns true, then lets them end.
pub async fn serve(kafka: Arc<Kafka>, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    if let Ok(address) = listener.local_addr() {
        kafka.set_bound(address);
    }
    let by_ip: Arc<Mutex<HashMap<IpAddr, usize>>> = Arc::default();
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopping(&mut stop) => break,
        };
        while connections.try_join_next().is_some() {}
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, mostly: those who are here may end, and make room.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let Some(place) = Place::take(&kafka, &by_ip, peer.ip(), connections.len()) else {
            add(&kafka.metrics().connections_refused, 1);
            tracing::debug!(%peer, "too many connections; refused");
            continue;
        };
        let (kafka, stop) = (Arc::clone(&kafka), stop.clone());
        connections.spawn(async move {
            let _place = place;
            let local = stream.set_nodelay(true).and_then(|()| stream.local_addr());
            let run = async { Connection::run(kafka, stream, (peer, local?), stop).await };
            if let Err(error) = run.await {
                error.report(peer);
            }
        });
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
        connections.shutdown().await;
    }
}

/// Serves one connection that was made elsewhere, from `peer` to `local`, until either side or `stop`
/// ends it.
pub async fn serve_stream(
    kafka: Arc<Kafka>,
    stream: impl Stream,
    (peer, local): (SocketAddr, SocketAddr),
    stop: watch::Receiver<bool>,
) {
    if let Err(error) = Connection::run(kafka, stream, (peer, local), stop).await {
        error.report(peer);
    }
}

/// The service stops, and what a connection still had to do has had its time.
async fn ending(stop: &mut watch::Receiver<bool>, grace: Duration) {
    stopping(stop).await;
    tokio::time::sleep(grace).await;
}

async fn stopping(stop: &mut watch::Receiver<bool>) {
    // An error says that whoever could stop us is gone, which is an end as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// A connection's place among those that may be open.
struct Place {
    kafka: Arc<Kafka>,
    by_ip: Arc<Mutex<HashMap<IpAddr, usize>>>,
    ip: IpAddr,
}

impl Place {
    fn take(
        kafka: &Arc<Kafka>,
        by_ip: &Arc<Mutex<HashMap<IpAddr, usize>>>,
        ip: IpAddr,
        open: usize,
    ) -> Option<Place> {
        let mut counts = by_ip.lock();
        let count = counts.get(&ip).copied().unwrap_or(0);
        if open >= kafka.options.connections_max || count >= kafka.options.connections_per_ip_max {
            return None;
        }
        counts.insert(ip, count + 1);
        add(&kafka.metrics().connections_accepted, 1);
        add(&kafka.metrics().connections, 1);
        Some(Place { kafka: Arc::clone(kafka), by_ip: Arc::clone(by_ip), ip })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.kafka.metrics().connections.fetch_sub(1, Ordering::Relaxed);
        let mut counts = self.by_ip.lock();
        if let Some(count) = counts.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.ip);
            }
        }
    }
}

/// Why a connection ended before its client ended it.
#[derive(Debug, thiserror::Error)]
enum ConnectionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Bad(#[from] BadRequest),
    #[error("the client announces a frame of {announced} bytes, and {max} are allowed")]
    TooLong { announced: i64, max: usize },
    #[error("the client stopped in the middle of a frame, or does not take its answer")]
    Stalled,
    #[error("there is no room for the client's request now")]
    NoRoom,
    #[error("an answer broke off at a payload that is not what was written")]
    Rotten,
    #[error("an answer broke off, for the journal cannot be read: {0}")]
    Disk(io::Error),
}

impl ConnectionError {
    fn report(&self, peer: SocketAddr) {
        match self {
            // A client that goes away is everyday life.
            ConnectionError::Io(error) => tracing::debug!(%peer, %error, "connection ended"),
            error => tracing::warn!(%peer, %error, "closing connection"),
        }
    }
}

/// A request's frame, with its share of the budget.
struct Frame {
    bytes: Bytes,
    share: Option<OwnedSemaphorePermit>,
}

/// Takes frames off a socket. Every await can be given up and taken up again.
#[derive(Default)]
struct Reader {
    buffer: BytesMut,
    /// The large frame that is arriving, if one is.
    large: Option<Large>,
    share: Option<OwnedSemaphorePermit>,
}

/// A frame that is read into memory of its own.
struct Large {
    memory: FrameBuffer,
    filled: usize,
    length: usize,
}

impl Reader {
    /// The next frame; `None` when the client has ended the connection between two frames, or was
    /// idle for too long. A connection that is `busy` serving is not idle.
    async fn next(
        &mut self,
        kafka: &Kafka,
        stream: &impl Stream,
        busy: bool,
    ) -> Result<Option<Frame>, ConnectionError> {
        loop {
            if busy {
                self.count_small(kafka).await?;
            }
            if let Some(bytes) = self.whole(kafka)? {
                return Ok(Some(Frame { bytes, share: self.share.take() }));
            }
            self.make_room(kafka).await?;
            let idle = self.large.is_none() && self.buffer.is_empty();
            let limit = match (idle, busy) {
                (false, _) => STALL_MAX,
                (true, false) => kafka.options.idle_max,
                // It waits for us. The time that it may be idle begins with its answer.
                (true, true) => Duration::MAX,
            };
            match tokio::time::timeout(limit, stream.readable()).await {
                Ok(ready) => ready?,
                Err(_) if idle => return Ok(None),
                Err(_) => return Err(ConnectionError::Stalled),
            }
            let read = match &mut self.large {
                Some(large) => {
                    let room = large.memory.as_mut_slice();
                    let until = room.len().min(large.length);
                    stream.try_read(&mut room[large.filled..until])
                }
                None => stream.try_read_buf(&mut self.buffer),
            };
            match read {
                Ok(0) if idle => return Ok(None),
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(count) => {
                    if let Some(large) = &mut self.large {
                        large.filled += count;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Has a small frame that is here take its share of the budget, once there is room.
    async fn count_small(&mut self, kafka: &Kafka) -> Result<(), ConnectionError> {
        if self.large.is_some() || self.share.is_some() {
            return Ok(());
        }
        let Some(length) = self.announced(kafka)? else { return Ok(()) };
        if self.buffer.len() < 4 + length {
            return Ok(());
        }
        let units = length.div_ceil(1 << 10) as u32;
        let share = Arc::clone(&kafka.pipelined).acquire_many_owned(units).await;
        self.share = Some(share.map_err(|_| ConnectionError::NoRoom)?);
        Ok(())
    }

    /// The frame at the front, if all of it is here. Begins a large one.
    fn whole(&mut self, kafka: &Kafka) -> Result<Option<Bytes>, ConnectionError> {
        if let Some(large) = self.large.take_if(|large| large.filled == large.length) {
            return Ok(Some(large.memory.share(large.length)));
        }
        if self.large.is_some() {
            return Ok(None);
        }
        let Some(length) = self.announced(kafka)? else { return Ok(None) };
        if self.buffer.len() >= 4 + length {
            self.buffer.advance(4);
            return Ok(Some(self.buffer.split_to(length).freeze()));
        }
        if length >= LARGE_BYTES_MIN {
            self.buffer.advance(4);
            let mut memory = kafka.frames.take(length.min(WHOLE_BYTES_MAX));
            let filled = self.buffer.len();
            memory.as_mut_slice()[..filled].copy_from_slice(&self.buffer);
            self.buffer.clear();
            self.large = Some(Large { memory, filled, length });
        }
        Ok(None)
    }

    /// The length that the frame at the front announces, if that much of it is here.
    fn announced(&self, kafka: &Kafka) -> Result<Option<usize>, ConnectionError> {
        let Some(length) = self.buffer.get(..4) else { return Ok(None) };
        let announced = i32::from_be_bytes(length.try_into().expect("four bytes are four bytes"));
        let max = kafka.options.request_bytes_max;
        match usize::try_from(announced) {
            Ok(length) if length <= max => Ok(Some(length)),
            _ => Err(ConnectionError::TooLong { announced: announced.into(), max }),
        }
    }

    /// Room for more of what is arriving. What a frame takes beyond a small one comes out of the
    /// budget, as its bytes arrive.
    async fn make_room(&mut self, kafka: &Kafka) -> Result<(), ConnectionError> {
        let Some(large) = &self.large else {
            if self.buffer.capacity() - self.buffer.len() < READ_BYTES / 4 {
                self.buffer.reserve(READ_BYTES);
            }
            return Ok(());
        };
        let held = large.filled.min(large.memory.as_ref().len());
        let full = large.filled == large.memory.as_ref().len();
        // What has arrived is doubled at most.
        let wanted = if full { large.length.min(2 * held) } else { held };
        let units = (wanted.max(LARGE_BYTES_MIN) >> 10) as u32;
        let have = self.share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits) as u32;
        if units > have {
            // A step at a time, so that the budget is not asked for every few bytes.
            let step = (units - have).max(STEP_UNITS);
            let budget = Arc::clone(&kafka.arriving).acquire_many_owned(step);
            let share = match tokio::time::timeout(STALL_MAX, budget).await {
                Ok(Ok(share)) => share,
                _ => return Err(ConnectionError::NoRoom),
            };
            match &mut self.share {
                Some(held) => held.merge(share),
                none => *none = Some(share),
            }
        }
        if let Some(large) = self.large.as_mut().filter(|_| full) {
            let mut memory = kafka.frames.take(wanted);
            memory.as_mut_slice()[..large.filled]
                .copy_from_slice(&large.memory.as_ref()[..large.filled]);
            large.memory = memory;
        }
        Ok(())
    }
}

struct Connection<S> {
    kafka: Arc<Kafka>,
    stream: S,
    peer: SocketAddr,
    local: SocketAddr,
    gate: Arc<tokio::sync::Mutex<()>>,
}

type InFlight = FuturesOrdered<std::pin::Pin<Box<dyn Future<Output = Served> + Send>>>;

impl<S: Stream> Connection<S> {
    async fn run(
        kafka: Arc<Kafka>,
        stream: S,
        (peer, local): (SocketAddr, SocketAddr),
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), ConnectionError> {
        let connection = Connection { kafka, stream, peer, local, gate: Arc::default() };
        let mut reader = Reader::default();
        let mut in_flight = InFlight::new();
        let mut waiting: Option<(Context, Frame, Bytes)> = None;
        // What is in flight are produce requests, which others of their kind may join.
        let mut produces = true;
        loop {
            if let Some((context, ..)) = &waiting {
                let produce = context.api_key == ApiKey::Produce as i16;
                let joins = produces && produce && in_flight.len() < PRODUCES_MAX;
                if in_flight.is_empty() || joins {
                    let (context, frame, body) = waiting.take().expect("it was just looked at");
                    produces = produce;
                    in_flight.push_back(connection.begin(context, frame, body)?);
                    // Takes its place in the journal's queue now, before any later request.
                    if let Some(served) = poll_once(&mut in_flight).await {
                        connection.answer(served?).await?;
                    }
                    continue;
                }
            }
            // What waits for the disk is waited for; what waits for news is not.
            let grace = match (in_flight.is_empty() && waiting.is_none(), produces) {
                (true, _) => Duration::ZERO,
                (false, true) => DRAIN_MAX,
                (false, false) => NEWS_MAX,
            };
            let busy = !in_flight.is_empty();
            tokio::select! {
                biased;
                Some(served) = in_flight.next(), if busy => {
                    connection.answer(served?).await?;
                }
                frame = reader.next(&connection.kafka, &connection.stream, busy), if waiting.is_none() => {
                    match frame? {
                        Some(frame) => waiting = Some(connection.open(frame)?),
                        None => return Ok(()),
                    }
                }
                () = ending(&mut stop, grace) => return Ok(()),
            }
        }
    }

    /// Reads a request's header.
    fn open(&self, frame: Frame) -> Result<(Context, Frame, Bytes), ConnectionError> {
        let opened = header(frame.bytes.clone());
        if opened.is_err() {
            add(&self.kafka.metrics().bad_frames, 1);
        }
        let (api_key, version, header, body) = opened?;
        self.kafka.metrics().count_request(api_key, frame.bytes.len() + 4);
        let context = Context {
            api_key,
            version,
            correlation_id: header.correlation_id,
            client_id: header.client_id.map(|id| id.to_string()).unwrap_or_default(),
            peer: self.peer,
            local: self.local,
            gate: Arc::clone(&self.gate),
        };
        Ok((context, frame, body))
    }

    /// Begins to serve a request; it holds its share of the budget until it is answered.
    fn begin(
        &self,
        context: Context,
        frame: Frame,
        body: Bytes,
    ) -> Result<routes::ServedFuture, ConnectionError> {
        let (kafka, share) = (Arc::clone(&self.kafka), frame.share);
        drop(frame.bytes);
        let (api, version) = (context.api_key, context.version);
        if api == extension::API_KEY {
            return Ok(Box::pin(async move {
                let _share = share;
                extension::serve(&kafka, &context, body).await
            }));
        }
        if api == ApiKey::ApiVersions as i16 && version > apis::api_versions::SERVED.max {
            return Ok(Box::pin(async move { apis::api_versions::refuse(&context) }));
        }
        let row = route(api).filter(|row| row.served.min <= version && version <= row.served.max);
        let Some(row) = row else {
            add(&kafka.metrics().bad_frames, 1);
            let reason = "this API is not served in this version".to_owned();
            return Err(BadRequest { api, version, reason }.into());
        };
        Ok(Box::pin(async move {
            let served = row.call(Arc::clone(&kafka), context, body).await;
            if served.is_err() {
                add(&kafka.metrics().bad_frames, 1);
            }
            drop(share);
            served
        }))
    }

    async fn answer(&self, answer: Option<crate::answer::Answer>) -> Result<(), ConnectionError> {
        let Some(answer) = answer else { return Ok(()) };
        add(&self.kafka.metrics().bytes_out, answer.len() as u64 + 4);
        let mut chunks = answer.into_frame();
        while !chunks.is_empty() {
            match load_first(&mut chunks, &self.kafka.loader).await {
                Ok(Some(loaded)) => self.write_chunks(vec![Chunk::Loaded(loaded)]).await?,
                Ok(None) => {
                    let in_memory = |chunk: &&Chunk| !matches!(chunk, Chunk::File { .. });
                    let count = chunks.iter().take_while(in_memory).count();
                    self.write_chunks(chunks.drain(..count).collect()).await?;
                }
                Err(LoadError::Rotten(rotten)) => {
                    // Its beginning may be out already: the client must not take it for an answer.
                    self.kafka.found_rotten(&rotten);
                    return Err(ConnectionError::Rotten);
                }
                Err(LoadError::Io(error)) => return Err(ConnectionError::Disk(error)),
            }
        }
        Ok(())
    }

    /// Writes chunks that are in memory.
    async fn write_chunks(&self, chunks: Vec<Chunk>) -> Result<(), ConnectionError> {
        let mut slices = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            match chunk {
                Chunk::Bytes(bytes) => slices.push(io::IoSlice::new(bytes)),
                Chunk::Loaded(loaded) => slices.extend(loaded.slices().map(io::IoSlice::new)),
                Chunk::File { .. } => unreachable!("what is in a file is loaded before"),
            }
        }
        self.write_all(&mut slices).await?;
        for chunk in chunks {
            if let Chunk::Loaded(loaded) = chunk {
                self.kafka.loader.put(loaded);
            }
        }
        Ok(())
    }

    async fn write_all(&self, slices: &mut [io::IoSlice<'_>]) -> Result<(), ConnectionError> {
        const SLICES_MAX: usize = 256;
        let mut left = slices;
        // Takes away what is empty, so that a write of nothing is not taken for an end.
        io::IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match self.stream.try_write_vectored(&left[..left.len().min(SLICES_MAX)]) {
                Ok(written) => io::IoSlice::advance_slices(&mut left, written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match tokio::time::timeout(STALL_MAX, self.stream.writable()).await {
                        Ok(ready) => ready?,
                        Err(_) => return Err(ConnectionError::Stalled),
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Polls what is in flight once, and takes an answer if one is ready.
async fn poll_once(in_flight: &mut InFlight) -> Option<Served> {
    std::future::poll_fn(|context| {
        use futures_util::Stream;
        match std::pin::Pin::new(&mut *in_flight).poll_next(context) {
            std::task::Poll::Ready(served) => std::task::Poll::Ready(served),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        }
    })
    .await
}
