//! A connection: its two ends, its budgets, and the responses that it writes.
//! [`crate::connection_loop`] has the loop around them, [`crate::serve`] the requests.
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
use tokio::sync::watch;
use tokio::time::Instant;

use crate::connection_error::ConnectionError;
use crate::connection_loop::ConnectionLoop;
use crate::file_run::{LoadError, load_leading_chunks};
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::request::ConnectionState;
use crate::response::{KafkaResponse, ResponseChunk};

use crate::stream::ByteStream;

/// The longest message of a client that has not logged in. Tokens of OAUTHBEARER may be longer.
const LOGIN_BYTES_MAX: usize = 64 << 10;
/// The longest time for the requests in flight to end when the service stops.
pub(crate) const DRAIN_MAX: Duration = Duration::from_secs(5);

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
    pub(crate) ends: ConnectionEnds,
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
            let count = chunks.iter().take_while(|chunk| chunk.is_in_memory()).count();
            if count > 0 {
                self.write_chunks(chunks.drain(..count).collect(), &mut pace).await?;
                continue;
            }
            match load_leading_chunks(&mut chunks, &self.kafka.loader).await {
                Ok(loaded) => {
                    self.write_chunks(vec![ResponseChunk::Loaded(loaded)], &mut pace).await?;
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
