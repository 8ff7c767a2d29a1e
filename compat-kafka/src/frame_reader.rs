//! Reads requests from a socket, within memory budgets: frames, and their headers.
//!
//! The buffer of a large frame grows as its bytes arrive, out of a budget that all connections
//! share. Small frames have a budget of their own, so that large ones cannot keep them out. One
//! small frame per connection needs no budget, so that a client with one request at a time is
//! always served. A frame that has begun must keep to the rate of
//! [`kafka_connections::TransferPace`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use kafka_connections::{LoginMemory, QuotaPermit, RequestQuotas, TransferPace, units};
use kafka_protocol::messages::{ApiKey, RequestHeader};
use kafka_protocol::protocol::Decodable;
use tokio::time::Instant;

use crate::conn::KafkaConnection;
use crate::connection_error::ConnectionError;
use crate::frame_buffer_pool::{FrameBuffer, LARGE_BYTES_MIN};
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::request::{BadRequest, RequestContext};
use crate::routes::is_served;
use crate::stream::ByteStream;
use crate::{apis, link};

/// The bytes that are read at once while frames are small. They share blocks of about this size.
const READ_BYTES: usize = 64 << 10;
/// The same before a login, at first.
const LOGIN_READ_BYTES: usize = 4 << 10;
/// The most budget that a large frame takes at once, in KiB.
const STEP_UNITS: u32 = 1 << 10;
/// Up to this length, a frame's buffer is allocated in one piece when the frame begins. Its memory
/// is touched only as bytes arrive.
const PREALLOCATED_BYTES_MAX: usize = 2 << 20;

/// Stands for the API key where a frame is a message of SASL without a header.
pub(crate) const BARE_MESSAGE: i16 = i16::MIN;
/// The version of the header of a flexible request.
const FLEXIBLE_HEADER: i16 = 2;

/// The frame of a request, with its share of the budget.
pub(crate) struct RequestFrame {
    pub(crate) bytes: Bytes,
    pub(crate) permit: Option<QuotaPermit>,
}

/// A request that has arrived, and is not served yet.
pub(crate) struct ReceivedRequest {
    pub(crate) kind: RequestKind,
    pub(crate) context: RequestContext,
    pub(crate) body: Bytes,
    /// The number of bytes of its frame.
    pub(crate) frame_bytes: usize,
    /// Its share of the budget.
    pub(crate) permit: Option<QuotaPermit>,
    /// True if it was not started when it arrived.
    pub(crate) is_queued: bool,
}

impl ReceivedRequest {
    /// The request waits for those in flight, or for the end of its client's throttling. That is no
    /// time of the server.
    pub(crate) fn queue(&mut self, muted_until: Option<Instant>) {
        self.is_queued = true;
        if let Some(until) = muted_until {
            self.context.received_at = self.context.received_at.max(until);
        }
    }

    /// The time since it arrived, for a request that is started now. The clock is read only if it
    /// was queued.
    pub(crate) fn queue_time(&self) -> Duration {
        if self.is_queued { self.context.received_at.elapsed() } else { Duration::ZERO }
    }
}

/// The kinds of requests, by what they wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// A produce request waits for the disk. Others may join it.
    Produce,
    /// A produce request over a link waits for the disk, on its own.
    LinkProduce,
    /// Another request may wait for news, for as long as its client says.
    Other,
}

impl RequestKind {
    fn of(context: &RequestContext, body: &Bytes) -> RequestKind {
        if context.api_key == ApiKey::Produce as i16 {
            RequestKind::Produce
        } else if link::is_produce(context, body) {
            RequestKind::LinkProduce
        } else {
            RequestKind::Other
        }
    }
}

/// Takes frames from a socket. Every await is cancel-safe: it can be dropped and repeated.
pub(crate) struct RequestFrameReader {
    buffer: BytesMut,
    /// The large frame that is arriving, if any.
    large: Option<LargeFrame>,
    permit: Option<QuotaPermit>,
    quotas: Arc<RequestQuotas>,
    /// The pace of the frame that is arriving.
    pace: TransferPace,
    /// True if any frame has arrived.
    has_begun: bool,
    /// The longest frame.
    bytes_max: usize,
    /// The account of what arrives before a login, until that is over.
    login_memory: Option<LoginMemory>,
}

/// A frame that is read into a buffer of its own.
struct LargeFrame {
    memory: FrameBuffer,
    filled: usize,
    length: usize,
}

impl RequestFrameReader {
    pub(crate) fn new(kafka: &KafkaServer, quotas: Arc<RequestQuotas>) -> RequestFrameReader {
        RequestFrameReader {
            buffer: BytesMut::new(),
            large: None,
            permit: None,
            quotas,
            pace: TransferPace::new(kafka.options.transfer_limits),
            has_begun: false,
            bytes_max: kafka.options.request_bytes_max,
            login_memory: None,
        }
    }

    /// From now on, the longest frame has `bytes_max`.
    pub(crate) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Charges the bytes that arrive to `memory` until the client has logged in.
    pub(crate) fn begin_login(&mut self, memory: LoginMemory) {
        self.login_memory = Some(memory);
    }

    pub(crate) fn end_login(&mut self) {
        self.login_memory = None;
    }

    /// The server stops reading for a while. That time does not count against the client.
    pub(crate) fn pause(&mut self) {
        if self.pace.is_waiting() {
            self.pace.pause(Instant::now());
        }
    }

    /// No received request waits for its client or for news any more.
    pub(crate) fn clear_stalled(&self) {
        self.quotas.clear_stalled();
        if self.large.is_some() {
            self.mark_stalled();
        }
    }

    /// The budget of the large frame that is arriving waits for its client.
    fn mark_stalled(&self) {
        self.quotas.large.mark_stalled(self.permit.as_ref().map_or(0, QuotaPermit::units));
    }

    /// Returns the next request, or `None` as [`RequestFrameReader::next`] does.
    pub(crate) async fn next_request<S: ByteStream>(
        &mut self,
        connection: &KafkaConnection<S>,
        busy: bool,
    ) -> Result<Option<ReceivedRequest>, ConnectionError> {
        let frame = self.next(&connection.kafka, &connection.stream, busy).await?;
        frame.map(|frame| connection.read_header(frame)).transpose()
    }

    /// Returns the next frame, or `None` if the client ended the connection between two frames or
    /// was idle for too long. A connection that is `busy` serving is not idle.
    pub(crate) async fn next(
        &mut self,
        kafka: &KafkaServer,
        stream: &impl ByteStream,
        busy: bool,
    ) -> Result<Option<RequestFrame>, ConnectionError> {
        loop {
            if busy {
                self.charge_small_frame().await?;
            }
            if let Some(bytes) = self.take_frame(kafka)? {
                self.pace = TransferPace::new(kafka.options.transfer_limits);
                self.has_begun = true;
                return Ok(Some(RequestFrame { bytes, permit: self.permit.take() }));
            }
            self.reserve(kafka).await?;
            let idle = self.large.is_none() && self.buffer.is_empty();
            match self.read_timeout(kafka, idle, busy) {
                None => stream.readable().await?,
                Some(limit) => match tokio::time::timeout(limit, stream.readable()).await {
                    Ok(ready) => ready?,
                    Err(_) if idle => return Ok(None),
                    Err(_) => return Err(ConnectionError::SlowSender),
                },
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
                    self.pace.advance(count);
                    if let Some(large) = &mut self.large {
                        large.filled += count;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The time for which the client may let the server wait for its next byte; `None` if it may
    /// for ever.
    fn read_timeout(&mut self, kafka: &KafkaServer, idle: bool, busy: bool) -> Option<Duration> {
        if !idle {
            let now = Instant::now();
            Some(self.pace.wait(now) - now)
        } else if busy {
            // The client waits for a response. Its idle time begins with that response.
            None
        } else if self.has_begun {
            Some(kafka.options.idle_max)
        } else {
            // Clients connect when they have a request, and send it at once.
            Some(kafka.options.idle_max.min(kafka.options.transfer_limits.stall_max))
        }
    }

    /// Charges a small frame that has arrived to the budget, once there is room.
    async fn charge_small_frame(&mut self) -> Result<(), ConnectionError> {
        if self.large.is_some() || self.permit.is_some() {
            return Ok(());
        }
        let Some(length) = self.announced_length()? else { return Ok(()) };
        if self.buffer.len() < 4 + length {
            return Ok(());
        }
        let units = units(length);
        let share = match self.quotas.pipelined.try_take(units) {
            Some(share) => share,
            None => {
                self.pause();
                self.quotas.pipelined.take(units).await?
            }
        };
        self.permit = Some(share);
        Ok(())
    }

    /// Takes the frame at the front, if all of it has arrived. Begins a large one.
    fn take_frame(&mut self, kafka: &KafkaServer) -> Result<Option<Bytes>, ConnectionError> {
        if let Some(large) = self.large.take_if(|large| large.filled == large.length) {
            return Ok(Some(large.memory.into_bytes(large.length)));
        }
        if self.large.is_some() {
            return Ok(None);
        }
        let Some(length) = self.announced_length()? else { return Ok(None) };
        if self.buffer.len() >= 4 + length {
            self.buffer.advance(4);
            return Ok(Some(self.buffer.split_to(length).freeze()));
        }
        if length >= LARGE_BYTES_MIN {
            self.buffer.advance(4);
            let mut memory = kafka.frame_buffers.take(length.min(PREALLOCATED_BYTES_MAX));
            let filled = self.buffer.len();
            memory.as_mut_slice()[..filled].copy_from_slice(&self.buffer);
            self.buffer.clear();
            self.large = Some(LargeFrame { memory, filled, length });
            self.mark_stalled();
        }
        Ok(None)
    }

    /// The length that the frame at the front announces, if its length field has arrived.
    fn announced_length(&self) -> Result<Option<usize>, ConnectionError> {
        let Some(length) = self.buffer.get(..4) else { return Ok(None) };
        let announced = i32::from_be_bytes(length.try_into().expect("four bytes are four bytes"));
        let max = self.bytes_max;
        match usize::try_from(announced) {
            Ok(length) if length <= max => Ok(Some(length)),
            _ => Err(ConnectionError::TooLong { announced: announced.into(), max }),
        }
    }

    /// Makes room for more of the frame that is arriving. The room that a frame needs beyond a
    /// small one comes out of the budget as its bytes arrive.
    async fn reserve(&mut self, kafka: &KafkaServer) -> Result<(), ConnectionError> {
        let Some(large) = &self.large else {
            // Before a login the buffer at most doubles what has arrived.
            let step = match &self.login_memory {
                Some(_) => self.buffer.len().clamp(LOGIN_READ_BYTES, READ_BYTES),
                None => READ_BYTES,
            };
            if self.buffer.capacity() - self.buffer.len() < step / 4 {
                self.buffer.reserve(step);
            }
            if let Some(memory) = &mut self.login_memory {
                memory.grow_to(self.buffer.capacity())?;
            }
            return Ok(());
        };
        if let Some(memory) = &mut self.login_memory {
            memory.grow_to(self.buffer.capacity() + large.memory.as_ref().len())?;
        }
        let held = large.filled.min(large.memory.as_ref().len());
        let full = large.filled == large.memory.as_ref().len();
        // The buffer at most doubles what has arrived.
        let wanted = if full { large.length.min(2 * held) } else { held };
        let needed = units(wanted.max(LARGE_BYTES_MIN));
        let have = self.permit.as_ref().map_or(0, QuotaPermit::units);
        if needed > have {
            // At least as much again as it has, so that the budget is not used for every few bytes.
            let step = (needed - have).max(have.min(STEP_UNITS)).min(units(large.length) - have);
            let share = match self.quotas.large.try_take(step) {
                Some(share) => share,
                None => {
                    self.pause();
                    self.quotas.large.take(step).await?
                }
            };
            match &mut self.permit {
                Some(held) => held.merge(share),
                none => *none = Some(share),
            }
            self.mark_stalled();
        }
        if full && let Some(large) = &mut self.large {
            let mut memory = kafka.frame_buffers.take(wanted);
            memory.as_mut_slice()[..large.filled]
                .copy_from_slice(&large.memory.as_ref()[..large.filled]);
            large.memory = memory;
        }
        Ok(())
    }
}

impl<S: ByteStream> KafkaConnection<S> {
    /// Decodes a request's header.
    fn read_header(&self, frame: RequestFrame) -> Result<ReceivedRequest, ConnectionError> {
        let RequestFrame { bytes, permit } = frame;
        let frame_bytes = bytes.len();
        if self.state.authentication.expects_bare_message() {
            let (kind, context) =
                (RequestKind::Other, self.context(BARE_MESSAGE, 0, RequestHeader::default()));
            let body = bytes;
            return Ok(ReceivedRequest {
                kind,
                context,
                body,
                frame_bytes,
                permit,
                is_queued: false,
            });
        }
        let split = split_header(bytes);
        if split.is_err() {
            add(&self.kafka.metrics().bad_frames, 1);
        }
        let (api_key, version, header, body) = split?;
        if api_key == BARE_MESSAGE {
            // It stands for messages without a header, and comes from no client.
            let reason = "there is no such API".to_owned();
            return Err(BadRequest { api: api_key, version, reason }.into());
        }
        self.kafka.metrics().count_request(api_key, frame_bytes + 4);
        let context = self.context(api_key, version, header);
        let kind = RequestKind::of(&context, &body);
        Ok(ReceivedRequest { kind, context, body, frame_bytes, permit, is_queued: false })
    }

    fn context(&self, api_key: i16, version: i16, header: RequestHeader) -> RequestContext {
        RequestContext {
            api_key,
            version,
            correlation_id: header.correlation_id,
            client_id: header.client_id.map(|id| id.to_string()).unwrap_or_default(),
            peer: self.ends.peer,
            local: self.ends.local,
            connection: Arc::clone(&self.state),
            received_at: Instant::now(),
            quota: None,
        }
    }
}

/// Splits a frame into its header and its body.
pub(crate) fn split_header(
    mut frame: Bytes,
) -> Result<(i16, i16, RequestHeader, Bytes), BadRequest> {
    let (Some(api), Some(version)) = (i16_at(&frame, 0), i16_at(&frame, 2)) else {
        let reason = format!("a request has a header of 8 bytes and more. bytes={}", frame.len());
        return Err(BadRequest { api: -1, version: -1, reason });
    };
    let bad = |reason| BadRequest { api, version, reason };
    let header_version = match ApiKey::try_from(api) {
        Ok(ApiKey::ApiVersions) if version > apis::api_versions::SERVED_VERSIONS.max => {
            FLEXIBLE_HEADER
        }
        Ok(key)
            if version >= 0 && (key.valid_versions().max >= version || is_served(api, version)) =>
        {
            key.request_header_version(version)
        }
        // The codec does not know it, so it is new, and flexible.
        Err(_) if is_served(api, version) => FLEXIBLE_HEADER,
        // An extension API key, or an unknown one: the fields that all header versions share come
        // first.
        _ => 1,
    };
    kafka_guard::check_header(header_version, &frame).map_err(|error| bad(error.to_string()))?;
    let header = RequestHeader::decode(&mut frame, header_version)
        .map_err(|error| bad(format!("the request's header cannot be decoded: {error:#}")))?;
    Ok((api, version, header, frame))
}

fn i16_at(bytes: &Bytes, at: usize) -> Option<i16> {
    Some(i16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}
