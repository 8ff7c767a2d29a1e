//! A connection: its two ends, the requests that it starts, and the responses that it writes. The
//! loop around them is in [`crate::connection_loop`].
//!
//! Memory is bounded. Requests and responses take room in budgets that all connections share
//! ([`kafka_connections::MemoryBudget`]). A client must keep to a minimum rate
//! ([`kafka_connections::TransferPace`]).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use engine::security::{Principal, Requester};
use futures_util::future::{AbortHandle, Abortable};
use kafka_connections::{ConnectionPlace, KafkaListener, RequestQuotas, TransferPace};
use kafka_protocol::messages::{ApiKey, RequestHeader};
use rdma::protocol::LINK_API_KEY;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::apis::metadata::refuse_in_login;
use crate::apis::sasl_authenticate::handle_bare;
use crate::connection_error::ConnectionError;
use crate::connection_loop::{ConnectionLoop, ReceivedRequest};
use crate::file_run::{LoadError, load_first};
use crate::frame_reader::RequestFrame;
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::request::{BadRequest, ConnectionState, RequestContext, ResponseFuture};
use crate::response::{KafkaResponse, ResponseChunk};
use crate::routes::header;
use crate::stream::ByteStream;
use crate::{link, routes};

/// The longest message of a client that has not logged in. Tokens of OAUTHBEARER may be longer.
const LOGIN_BYTES_MAX: usize = 64 << 10;
/// The longest time for the requests in flight to end when the service stops.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(5);

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

pub(crate) async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // An error means that the sender of `stop` is dropped, which is a stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}

pub(crate) struct KafkaConnection<S> {
    pub(crate) kafka: Arc<KafkaServer>,
    pub(crate) stream: S,
    ends: ConnectionEnds,
    pub(crate) state: Arc<ConnectionState>,
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
    pub(crate) fn frame_bytes_max(&self) -> usize {
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
    pub(crate) fn read_header(
        &self,
        frame: RequestFrame,
    ) -> Result<ReceivedRequest, ConnectionError> {
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
    pub(crate) fn start_request(
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

    pub(crate) async fn write_response(
        &self,
        answer: Option<KafkaResponse>,
    ) -> Result<(), ConnectionError> {
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
