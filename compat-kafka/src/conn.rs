//! A connection: it reads frames and writes responses, in the order of the requests.
//!
//! Requests of one connection take effect one after the other, as in Kafka. Only produce requests
//! overlap, and keep their order: each is polled once before the next one starts, and so takes its
//! turn in front of it. Their responses wait for the disk together.
//!
//! Memory is bounded. Requests and responses take room in budgets that all connections share
//! ([`kafka_connections::MemoryBudget`]). A client must keep to a minimum rate ([`kafka_connections::TransferPace`]). A
//! connection whose client does not read is not read from. While a response is written, the
//! requests in flight go on, because they hold room that others wait for: in those budgets and in
//! the journal's queue.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use admission::BudgetError;
use bytes::Bytes;
use engine::StorageError;
use engine::security::{Principal, Requester};
use futures_util::future::{AbortHandle, Abortable};
use futures_util::stream::{FuturesOrdered, StreamExt};
use kafka_connections::{
    ConnectionPlace, KafkaListener, MemoryBudgetError, RequestQuotas, TransferPace,
};
use kafka_protocol::messages::{ApiKey, RequestHeader};
use rdma::protocol::LINK_API_KEY;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::apis::metadata::refuse_in_login;
use crate::apis::sasl_authenticate::handle_bare;
use crate::file_run::{LoadError, load_first};
use crate::frame_reader::{RequestFrame, RequestFrameReader};
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::request::{BadRequest, ConnectionState, RequestContext, ResponseFuture, ResponseResult};
use crate::response::{KafkaResponse, ResponseChunk};
use crate::routes::header;
use crate::stream::ByteStream;
use crate::{link, routes};

/// The most produce requests of one connection that may wait for the disk.
const PRODUCES_MAX: usize = 256;
/// The longest time that a client may take to authenticate.
const LOGIN_MAX: Duration = Duration::from_secs(30);
/// The time for which a connection stays after its login was refused, unless the client closes it.
const REFUSAL_LINGER: Duration = Duration::from_millis(200);
/// The longest message of a client that has not logged in. Tokens of OAUTHBEARER may be longer.
const LOGIN_BYTES_MAX: usize = 64 << 10;
/// The longest time for the requests in flight to end when the service stops.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(5);
/// The same for a request that may wait for long: a fetch at the end of a log, a join.
const LONG_POLL_DRAIN_MAX: Duration = Duration::from_millis(200);

/// Stands for the API key where a frame is a message of SASL without a header.
const BARE_MESSAGE: i16 = i16::MIN;

/// The two ends of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionEnds {
    /// The port that the client connected to.
    pub listener: Arc<KafkaListener>,
    /// The address of the client.
    pub peer: SocketAddr,
    /// The address of the server that the client connected to.
    pub local: SocketAddr,
    /// The principal of the client before SASL.
    pub principal: Principal,
}

/// Serves one connection that was made elsewhere, until either side or `stop` ends it.
pub async fn serve_stream(
    kafka: Arc<KafkaServer>,
    stream: impl ByteStream,
    ends: ConnectionEnds,
    stop: watch::Receiver<bool>,
) {
    let peer = ends.peer;
    if let Err(error) = KafkaConnection::run(Arc::clone(&kafka), stream, ends, None, stop).await {
        error.report(&kafka, peer);
    }
}

/// Waits until the service stops and the time to finish the requests in flight is over.
async fn wait_for_stop_and_grace(stop: &mut watch::Receiver<bool>, grace: Duration) {
    wait_for_stop(stop).await;
    tokio::time::sleep(grace).await;
}

/// Waits until then; for ever without a time.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

pub(crate) async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender of `stop` is dropped, which is a stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The reason that the server ends a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectionError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the handshake of TLS failed: {0}")]
    Handshake(io::Error),
    #[error("request before authentication (API key {0})")]
    NotAuthenticated(i16),
    #[error("authentication took too long")]
    SlowLogin,
    #[error("session expired: re-authentication is overdue (connections.max.reauth.ms)")]
    SessionExpired,
    #[error("{0}")]
    BadRequest(#[from] BadRequest),
    #[error("the client announces a frame of {announced} bytes, and {max} are allowed")]
    TooLong { announced: i64, max: usize },
    #[error("the client sends its request too slowly (limits.stall-max, limits.rate-min)")]
    SlowSender,
    #[error("the client reads its response too slowly (limits.stall-max, limits.rate-min)")]
    SlowReader,
    #[error("evicted: other connections need the memory that this slow client holds")]
    Evicted,
    #[error("{0}")]
    MemoryBudget(#[from] MemoryBudgetError),
    #[error("no memory for a client that has not logged in: {0}")]
    LoginMemory(#[from] BudgetError),
    #[error("a response was cut off at a corrupt payload")]
    Corrupt,
    #[error("a response was cut off: its records were removed before the client had read them")]
    Removed,
    #[error("a response was cut off because the journal cannot be read: {0}")]
    Storage(StorageError),
}

impl ConnectionError {
    pub(crate) fn report(&self, kafka: &KafkaServer, peer: SocketAddr) {
        if let ConnectionError::SlowSender | ConnectionError::SlowReader = self {
            add(&kafka.metrics().connections_slow, 1);
        }
        if let ConnectionError::Handshake(_) = self {
            add(&kafka.metrics().handshakes_failed, 1);
        }
        match self {
            // There was a warning, unless there were too many.
            ConnectionError::Handshake(_) => tracing::debug!(%peer, error = %self, "no connection"),
            // Strangers may do that all the time: a warning now and then.
            ConnectionError::NotAuthenticated(_) => {
                let security = kafka.engine.security();
                security.record_login_failure("nothing", "requests come before a login");
                tracing::debug!(%peer, error = %self, "no connection");
            }
            // Clients disconnect all the time: this is no warning.
            ConnectionError::SlowLogin
            | ConnectionError::LoginMemory(_)
            | ConnectionError::SessionExpired => {
                tracing::debug!(%peer, error = %self, "connection ended");
            }
            ConnectionError::Io(error) => tracing::debug!(%peer, %error, "connection ended"),
            error => kafka.client_log.warn(peer.ip(), "closing connection", error),
        }
    }
}

pub(crate) struct KafkaConnection<S> {
    kafka: Arc<KafkaServer>,
    stream: S,
    ends: ConnectionEnds,
    state: Arc<ConnectionState>,
}

/// A request that has arrived, and is not served yet.
struct ReceivedRequest {
    kind: RequestKind,
    context: RequestContext,
    frame: RequestFrame,
    body: Bytes,
}

/// The wait of a request that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    /// A produce request waits for the disk. Others may join it.
    Produce,
    /// A produce request over a link waits for the disk, on its own.
    LinkProduce,
    /// Another request may wait for news, for as long as its client says.
    Other,
}

impl ReceivedRequest {
    fn new(context: RequestContext, frame: RequestFrame, body: Bytes) -> ReceivedRequest {
        let kind = if context.api_key == ApiKey::Produce as i16 {
            RequestKind::Produce
        } else if link::is_produce(&context, &body) {
            RequestKind::LinkProduce
        } else {
            RequestKind::Other
        };
        ReceivedRequest { kind, context, frame, body }
    }
}

/// The requests in flight, which are of one kind, and the responses that wait for their turn on the
/// socket.
struct RequestPipeline {
    kind: RequestKind,
    futures: FuturesOrdered<ResponseFuture>,
    ready: VecDeque<ResponseResult>,
}

impl RequestPipeline {
    fn new() -> RequestPipeline {
        let (futures, ready) = Default::default();
        RequestPipeline { kind: RequestKind::Other, futures, ready }
    }

    fn len(&self) -> usize {
        self.futures.len() + self.ready.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True if a request of this kind may start now.
    fn admits(&self, kind: RequestKind) -> bool {
        self.is_empty()
            || (self.kind == RequestKind::Produce && kind == self.kind && self.len() < PRODUCES_MAX)
    }

    /// True if requests are in flight that wait for the disk.
    fn waits_for_disk(&self) -> bool {
        !self.is_empty() && self.kind != RequestKind::Other
    }

    /// The time that the requests in flight have to finish when the service stops.
    fn drain_max(&self) -> Duration {
        if self.is_empty() {
            Duration::ZERO
        } else if self.waits_for_disk() {
            DRAIN_MAX
        } else {
            LONG_POLL_DRAIN_MAX
        }
    }

    /// Returns the next response when it is ready, or `None` if nothing is in flight.
    async fn next(&mut self) -> Option<ResponseResult> {
        match self.ready.pop_front() {
            Some(served) => Some(served),
            None => self.futures.next().await,
        }
    }

    /// Adds a request, and polls what is in flight once. Returns a response that may be sent now.
    async fn start(
        &mut self,
        kind: RequestKind,
        serving: ResponseFuture,
    ) -> Option<ResponseResult> {
        self.kind = kind;
        self.futures.push_back(serving);
        let polled = futures_util::poll!(self.futures.next());
        let std::task::Poll::Ready(Some(served)) = polled else { return None };
        if self.ready.is_empty() {
            return Some(served);
        }
        // Older responses go first.
        self.ready.push_back(served);
        None
    }

    /// Drives everything that is in flight until another response is ready.
    async fn advance(&mut self) {
        match self.futures.next().await {
            Some(served) => self.ready.push_back(served),
            None => std::future::pending().await,
        }
    }
}

impl<S: ByteStream> KafkaConnection<S> {
    pub(crate) async fn run(
        kafka: Arc<KafkaServer>,
        stream: S,
        ends: ConnectionEnds,
        place: Option<ConnectionPlace>,
        stop: watch::Receiver<bool>,
    ) -> Result<(), ConnectionError> {
        let peer = ends.peer;
        let (handle, registration) = AbortHandle::new_pair();
        let requests = Arc::new(RequestQuotas {
            large: kafka.admission.large_requests.quota(peer.ip(), handle.clone()),
            pipelined: kafka.admission.pipelined_requests.quota(peer.ip(), handle.clone()),
        });
        let answers = kafka.admission.responses.quota(peer.ip(), handle);
        let requester = Requester::new(ends.principal.clone(), peer.ip());
        let listener = Arc::clone(&ends.listener);
        let state = ConnectionState::new(listener, requester, requests, answers);
        let connection = KafkaConnection { kafka, stream, ends, state };
        let serving = ConnectionLoop::new(&connection, place).run(stop);
        Abortable::new(serving, registration).await.unwrap_or(Err(ConnectionError::Evicted))
    }

    /// The longest frame of the client.
    fn frame_bytes_max(&self) -> usize {
        let most = self.kafka.options.request_bytes_max;
        let authentication = &self.state.authentication;
        match authentication.options() {
            Some(sasl) if !authentication.is_done() => {
                let login_bytes_max = sasl.receive_bytes_max.min(most);
                if authentication.expects_token() {
                    login_bytes_max
                } else {
                    login_bytes_max.min(LOGIN_BYTES_MAX)
                }
            }
            _ => most,
        }
    }

    /// Decodes a request's header.
    fn read_header(&self, frame: RequestFrame) -> Result<ReceivedRequest, ConnectionError> {
        if self.state.authentication.expects_bare_message() {
            let body = frame.bytes.clone();
            let context = self.context(BARE_MESSAGE, 0, RequestHeader::default());
            return Ok(ReceivedRequest::new(context, frame, body));
        }
        let opened = header(frame.bytes.clone());
        if opened.is_err() {
            add(&self.kafka.metrics().bad_frames, 1);
        }
        let (api_key, version, header, body) = opened?;
        if api_key == BARE_MESSAGE {
            // It stands for messages without a header, and comes from no client.
            let reason = "there is no such API".to_owned();
            return Err(BadRequest { api: api_key, version, reason }.into());
        }
        self.kafka.metrics().count_request(api_key, frame.bytes.len() + 4);
        let context = self.context(api_key, version, header);
        Ok(ReceivedRequest::new(context, frame, body))
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
            quota: None,
        }
    }

    /// Refuses a request before authentication, and after the session has expired.
    fn check_login(&self, api_key: i16) -> Result<LoginCheck, ConnectionError> {
        let authentication = &self.state.authentication;
        let is_login = api_key == BARE_MESSAGE
            || api_key == ApiKey::SaslHandshake as i16
            || api_key == ApiKey::SaslAuthenticate as i16;
        if is_login || authentication.options().is_none() {
            return Ok(LoginCheck::Allowed);
        }
        if !authentication.is_done() && api_key != ApiKey::ApiVersions as i16 {
            if api_key == ApiKey::Metadata as i16 && authentication.is_under_way() {
                return Ok(LoginCheck::Interrupted);
            }
            return Err(ConnectionError::NotAuthenticated(api_key));
        }
        if authentication.is_expired() {
            return Err(ConnectionError::SessionExpired);
        }
        Ok(LoginCheck::Allowed)
    }

    /// Starts to serve a request, which holds its share of the budget until it is served. `is_only`
    /// says whether nothing else of the connection is in flight.
    fn start_request(
        &self,
        request: ReceivedRequest,
        is_only: bool,
    ) -> Result<ResponseFuture, ConnectionError> {
        let ReceivedRequest { context, frame, body, .. } = request;
        let (kafka, share) = (Arc::clone(&self.kafka), frame.permit);
        let frame_bytes = frame.bytes.len();
        drop(frame.bytes);
        let (api, version) = (context.api_key, context.version);
        let serving = match (self.check_login(api)?, api) {
            (LoginCheck::Interrupted, _) => {
                Box::pin(refuse_in_login(self.kafka.clone(), context, body)) as ResponseFuture
            }
            (LoginCheck::Allowed, LINK_API_KEY) => {
                Box::pin(link::handle(self.kafka.clone(), context, body))
            }
            (LoginCheck::Allowed, BARE_MESSAGE) => {
                Box::pin(handle_bare(self.kafka.clone(), context, body))
            }
            (LoginCheck::Allowed, _) => {
                routes::serve(self.kafka.clone(), context, body, frame_bytes)?
            }
        };
        let answers = Arc::clone(&self.state.response_quota);
        Ok(Box::pin(async move {
            let mut served = serving.await;
            drop(share);
            match &mut served {
                Ok(Some(answer)) => {
                    let granted = answer.acquire_permit(&answers, is_only).await;
                    granted.map_err(|error| BadRequest {
                        api,
                        version,
                        reason: error.to_string(),
                    })?;
                }
                Ok(None) => {}
                Err(_) => add(&kafka.metrics().bad_frames, 1),
            }
            served
        }))
    }

    async fn write_response(&self, answer: Option<KafkaResponse>) -> Result<(), ConnectionError> {
        let Some(mut answer) = answer else { return Ok(()) };
        add(&self.kafka.metrics().bytes_out, answer.len() as u64 + 4);
        let _room = answer.take_permit();
        let mut pace = TransferPace::new(self.kafka.options.transfer_limits);
        let mut chunks = answer.into_frame();
        while !chunks.is_empty() {
            match load_first(&mut chunks, &self.kafka.loader).await {
                Ok(Some(loaded)) => {
                    self.write_chunks(vec![ResponseChunk::Loaded(loaded)], &mut pace).await?
                }
                Ok(None) => {
                    let count = chunks.iter().take_while(|chunk| chunk.is_in_memory()).count();
                    self.write_chunks(chunks.drain(..count).collect(), &mut pace).await?;
                }
                Err(LoadError::Corrupt(corruption)) => {
                    // The beginning of the response may be out already. The client must not take
                    // that for a whole one.
                    self.kafka.record_corruption(&corruption);
                    return Err(ConnectionError::Corrupt);
                }
                Err(LoadError::Removed) => return Err(ConnectionError::Removed),
                Err(LoadError::Storage(error)) => return Err(ConnectionError::Storage(error)),
            }
        }
        self.state.response_quota.clear_stalled();
        Ok(())
    }

    /// Writes chunks that are in memory.
    async fn write_chunks(
        &self,
        chunks: Vec<ResponseChunk>,
        pace: &mut TransferPace,
    ) -> Result<(), ConnectionError> {
        let mut slices = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            match chunk {
                ResponseChunk::Encoded(bytes) | ResponseChunk::Payload(bytes) => {
                    slices.push(io::IoSlice::new(bytes));
                }
                ResponseChunk::Loaded(loaded) => {
                    slices.extend(loaded.slices().map(io::IoSlice::new))
                }
                ResponseChunk::File { .. } => unreachable!("what is in a file is loaded before"),
            }
        }
        self.write_all(&mut slices, pace).await?;
        for chunk in chunks {
            if let ResponseChunk::Loaded(loaded) = chunk {
                self.kafka.loader.recycle(loaded);
            }
        }
        Ok(())
    }

    async fn write_all(
        &self,
        slices: &mut [io::IoSlice<'_>],
        pace: &mut TransferPace,
    ) -> Result<(), ConnectionError> {
        const SLICES_MAX: usize = 256;
        let mut left = slices;
        // Removes empty slices, so that a write of zero bytes is not taken for the end of the
        // stream.
        io::IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            match self.stream.try_write_vectored(&left[..left.len().min(SLICES_MAX)]) {
                Ok(written) => {
                    pace.advance(written);
                    io::IoSlice::advance_slices(&mut left, written);
                }
                Err(error) => self.wait_for_reader(error, pace).await?,
            }
        }
        while let Err(error) = self.stream.try_flush() {
            self.wait_for_reader(error, pace).await?;
        }
        // Loading the next chunk is the server's work, so the client's pace does not count it.
        if pace.is_waiting() {
            pace.pause(Instant::now());
        }
        Ok(())
    }

    /// Waits until the client has read some, if that is why a write failed.
    async fn wait_for_reader(
        &self,
        error: io::Error,
        pace: &mut TransferPace,
    ) -> Result<(), ConnectionError> {
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(error.into());
        }
        self.state.response_quota.mark_all_stalled();
        let deadline = pace.wait(Instant::now());
        match tokio::time::timeout_at(deadline, self.stream.writable()).await {
            Ok(ready) => Ok(ready?),
            Err(_) => Err(ConnectionError::SlowReader),
        }
    }
}

/// The login of a client that sends a request.
enum LoginCheck {
    Allowed,
    /// The request comes in the middle of a login.
    Interrupted,
}

/// The loop that serves a connection.
struct ConnectionLoop<'a, S> {
    connection: &'a KafkaConnection<S>,
    reader: RequestFrameReader,
    place: Option<ConnectionPlace>,
    /// The time until which the client has to log in; `None` once it has, or need not.
    login_deadline: Option<Instant>,
    in_flight: RequestPipeline,
    /// The request that is started next.
    received: Option<ReceivedRequest>,
}

/// The wait of a connection, beside that for its requests in flight.
enum LoopWait {
    Frame,
    /// Nothing: the next request may not join those in flight, or has no memory.
    InFlight,
    /// The client is throttled.
    Muted {
        until: Instant,
    },
}

impl<'a, S: ByteStream> ConnectionLoop<'a, S> {
    fn new(
        connection: &'a KafkaConnection<S>,
        place: Option<ConnectionPlace>,
    ) -> ConnectionLoop<'a, S> {
        let quotas = Arc::clone(&connection.state.request_quotas);
        let mut reader = RequestFrameReader::new(&connection.kafka, quotas);
        let logs_in = connection.state.authentication.options().is_some();
        if let Some(place) = &place
            && logs_in
        {
            reader.begin_login(place.login_memory());
        }
        reader.limit(connection.frame_bytes_max());
        let login_deadline = logs_in.then(|| Instant::now() + LOGIN_MAX);
        let in_flight = RequestPipeline::new();
        ConnectionLoop { connection, reader, place, login_deadline, in_flight, received: None }
    }

    /// Serves the client until either side or `stop` ends the connection.
    async fn run(mut self, mut stop: watch::Receiver<bool>) -> Result<(), ConnectionError> {
        let connection = self.connection;
        loop {
            if self.in_flight.is_empty() && connection.state.authentication.has_failed() {
                self.wait_for_close().await;
                return Ok(());
            }
            let muted_until = connection.state.mute.end();
            if let Some(request) = self.take_next_request(muted_until) {
                self.start(request).await?;
                continue;
            }
            let wait = self.begin_wait(muted_until);
            let is_busy = !self.in_flight.is_empty();
            let drain_max = self.in_flight.drain_max();
            let next_check = self.next_client_check(&wait);
            tokio::select! {
                biased;
                Some(served) = self.in_flight.next(), if is_busy => self.send(served?).await?,
                frame = self.reader.next(&connection.kafka, &connection.stream, is_busy),
                    if matches!(wait, LoopWait::Frame) =>
                {
                    let Some(frame) = frame? else { return Ok(()) };
                    self.receive(frame)?;
                }
                () = sleep_until(next_check) => {
                    if connection.stream.is_ended() && !self.in_flight.waits_for_disk() {
                        if matches!(wait, LoopWait::Muted { .. }) {
                            return Ok(());
                        }
                        // The client is gone: drop the pending long poll, keep its later requests.
                        self.in_flight = RequestPipeline::new();
                        self.advance_login();
                    }
                }
                () = wait_for_stop_and_grace(&mut stop, drain_max) => return Ok(()),
                () = sleep_until(self.login_deadline) => return Err(ConnectionError::SlowLogin),
            }
        }
    }

    /// Takes the request that has arrived, if it may start now.
    fn take_next_request(&mut self, muted_until: Option<Instant>) -> Option<ReceivedRequest> {
        if muted_until.is_some() {
            return None;
        }
        self.received.take_if(|request| self.in_flight.admits(request.kind))
    }

    /// Decides what to wait for, and tells the budgets.
    fn begin_wait(&mut self, muted_until: Option<Instant>) -> LoopWait {
        let quotas = &self.connection.state.request_quotas;
        let is_busy = !self.in_flight.is_empty();
        if let Some(place) = &self.place
            && !is_busy
            && self.received.is_none()
        {
            place.mark_idle();
        }
        if let Some(until) = muted_until {
            self.reader.pause();
            if !is_busy && self.received.is_some() {
                // Others may need the memory before its request is served.
                quotas.mark_all_stalled();
            }
            return LoopWait::Muted { until };
        }
        // Before a login requests are served one after the other.
        let reads_ahead =
            self.login_deadline.is_none() && self.received.is_none() && !quotas.are_exhausted();
        if !is_busy || reads_ahead {
            return LoopWait::Frame;
        }
        self.reader.pause();
        LoopWait::InFlight
    }

    /// The time to look whether the client is still there, if no read or write would show it soon.
    fn next_client_check(&self, wait: &LoopWait) -> Option<Instant> {
        let interval = self.connection.kafka.options.muted_look_interval;
        match wait {
            LoopWait::Muted { until } => Some((*until).min(Instant::now() + interval)),
            LoopWait::InFlight if !self.in_flight.waits_for_disk() => {
                Some(Instant::now() + interval)
            }
            LoopWait::InFlight | LoopWait::Frame => None,
        }
    }

    fn receive(&mut self, frame: RequestFrame) -> Result<(), ConnectionError> {
        self.received = Some(self.connection.read_header(frame)?);
        if let Some(place) = &self.place {
            place.begin_request();
        }
        if self.login_deadline.is_none() {
            self.establish();
        }
        Ok(())
    }

    async fn start(&mut self, request: ReceivedRequest) -> Result<(), ConnectionError> {
        let kind = request.kind;
        if kind == RequestKind::Produce {
            self.reader.clear_stalled();
        } else {
            self.connection.state.request_quotas.mark_all_stalled();
        }
        let serving = self.connection.start_request(request, self.in_flight.is_empty())?;
        if let Some(served) = self.in_flight.start(kind, serving).await {
            self.send(served?).await?;
        }
        Ok(())
    }

    /// Writes a response. The requests in flight go on meanwhile, and nothing is read.
    async fn send(&mut self, answer: Option<KafkaResponse>) -> Result<(), ConnectionError> {
        // Before the response is written: a client that has its answer is no connection without a
        // login any more.
        self.advance_login();
        if self.in_flight.is_empty() {
            self.reader.clear_stalled();
        }
        self.reader.pause();
        let mut sending = std::pin::pin!(self.connection.write_response(answer));
        loop {
            tokio::select! {
                biased;
                sent = &mut sending => return sent,
                () = self.in_flight.advance() => {}
            }
        }
    }

    /// Takes account of a login that has gone on or ended.
    fn advance_login(&mut self) {
        if self.login_deadline.is_none() {
            return;
        }
        self.reader.limit(self.connection.frame_bytes_max());
        if self.connection.state.authentication.is_done() {
            self.login_deadline = None;
            self.reader.end_login();
            self.establish();
        }
    }

    /// The client has logged in where it has to, and sent a request: its place is its principal's.
    fn establish(&mut self) {
        if let Some(place) = &mut self.place
            && place.is_early()
        {
            let security = self.connection.kafka.engine.security();
            place.establish(security.holder(&self.connection.state.requester()));
        }
    }

    /// Waits for a while after a refused login. A client that reads the end of the connection with
    /// the answer may lose the answer, as kafka-python does over TLS. It closes first once it has
    /// read it.
    async fn wait_for_close(&mut self) {
        let closing = self.reader.next(&self.connection.kafka, &self.connection.stream, false);
        let _ = tokio::time::timeout(REFUSAL_LINGER, closing).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn response(nth: i16) -> ResponseResult {
        Err(BadRequest { api: 0, version: nth, reason: String::new() })
    }

    /// A client reads slowly: while a response is written to it, the next one becomes ready.
    #[tokio::test]
    async fn a_request_that_is_served_at_once_does_not_overtake_a_response_that_waits() {
        let mut in_flight = RequestPipeline::new();
        let (written, waits_for_disk) = oneshot::channel();
        let first = Box::pin(async { waits_for_disk.await.expect("it is written") });
        assert!(in_flight.start(RequestKind::Produce, first).await.is_none());
        written.send(response(1)).expect("it waits");
        in_flight.advance().await;
        let second = Box::pin(std::future::ready(response(2)));
        assert!(in_flight.start(RequestKind::Produce, second).await.is_none());
        for nth in [1, 2] {
            let next = in_flight.next().await.expect("a response").expect_err("a refusal");
            assert_eq!(next.version, nth);
        }
        let third = Box::pin(std::future::ready(response(3)));
        assert!(in_flight.start(RequestKind::Produce, third).await.is_some(), "nothing waits");
    }
}
