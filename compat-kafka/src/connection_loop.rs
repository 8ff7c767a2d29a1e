//! The loop of a connection: it reads requests, starts them, and writes their responses in order.
//!
//! Requests of one connection take effect one after the other, as in Kafka. Only produce requests
//! overlap, and keep their order: each is polled once before the next one starts, and so takes its
//! turn in front of it. Their responses wait for the disk together.
//!
//! A connection whose client does not read is not read from. While a response is written, the
//! requests in flight go on, because they hold room that others wait for: in the budgets of memory
//! and in the journal's queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use engine::{REQUEST_TARGET, span_text};
use futures_util::stream::{FuturesOrdered, StreamExt};
use kafka_connections::ConnectionPlace;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::conn::{DRAIN_MAX, KafkaConnection, wait_for_stop};
use crate::connection_error::ConnectionError;
use crate::frame_reader::{ReceivedRequest, RequestFrameReader, RequestKind};
use crate::metrics::add;
use crate::request::{BadRequest, RequestContext, ResponseFuture, ResponseResult};
use crate::response::KafkaResponse;
use crate::routes;
use crate::stream::ByteStream;

/// The most produce requests of one connection that may wait for the disk.
const PRODUCES_MAX: usize = 256;
/// The longest time that a client may take to authenticate.
const LOGIN_MAX: Duration = Duration::from_secs(30);
/// The time for which a connection stays after its login was refused, unless the client closes it.
const REFUSAL_LINGER: Duration = Duration::from_millis(200);
/// The longest time for a long poll to end then: a fetch at the end of a log, a join.
const LONG_POLL_DRAIN_MAX: Duration = Duration::from_millis(200);

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

/// The loop that serves a connection.
pub(crate) struct ConnectionLoop<'a, S> {
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
    pub(crate) fn new(
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
    pub(crate) async fn run(
        mut self,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), ConnectionError> {
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
                request = self.reader.next_request(connection, is_busy),
                    if matches!(wait, LoopWait::Frame) =>
                {
                    let Some(request) = request? else { return Ok(()) };
                    self.receive(request);
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
        if let Some(request) = &mut self.received {
            request.queue(muted_until);
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

    fn receive(&mut self, request: ReceivedRequest) {
        self.received = Some(request);
        if let Some(place) = &self.place {
            place.begin_request();
        }
        if self.login_deadline.is_none() {
            self.establish();
        }
    }

    async fn start(&mut self, request: ReceivedRequest) -> Result<(), ConnectionError> {
        self.connection.kafka.metrics().queue_time.record(request.queue_time());
        let kind = request.kind;
        if kind == RequestKind::Produce {
            self.reader.clear_stalled();
        } else {
            self.connection.state.request_quotas.mark_all_stalled();
        }
        let serving = self.serve(request)?;
        if let Some(served) = self.in_flight.start(kind, serving).await {
            self.send(served?).await?;
        }
        Ok(())
    }

    /// Serves a request. It holds its share of the budget for requests until its response is ready.
    /// The response then takes a share of the budget for responses.
    fn serve(&self, request: ReceivedRequest) -> Result<ResponseFuture, ConnectionError> {
        let ReceivedRequest { context, body, frame_bytes, permit, .. } = request;
        let is_only = self.in_flight.is_empty();
        let (api, version) = (context.api_key, context.version);
        let span = request_span(&context);
        let serving = self.connection.serve(context, body, frame_bytes)?;
        let kafka = Arc::clone(&self.connection.kafka);
        let responses = Arc::clone(&self.connection.state.response_quota);
        let answering = async move {
            let mut served = serving.await;
            drop(permit);
            match &mut served {
                Ok(Some(response)) => {
                    let granted = response.acquire_permit(&responses, is_only).await;
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
        };
        Ok(Box::pin(answering.instrument(span)))
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

/// The span of a request, from its start until its response may be written.
fn request_span(context: &RequestContext) -> Span {
    tracing::trace_span!(
        target: REQUEST_TARGET,
        "kafka",
        otel.name = %routes::name(context.api_key),
        otel.kind = "server",
        messaging.system = "kafka",
        messaging.client.id = span_text(&context.client_id),
        kafka.api.version = context.version,
        client.address = %context.peer.ip(),
        client.port = i64::from(context.peer.port()),
    )
}

/// Waits until the service stops and the time to finish the requests in flight is over.
async fn wait_for_stop_and_grace(stop: &mut watch::Receiver<bool>, grace: Duration) {
    wait_for_stop(stop).await;
    tokio::time::sleep(grace).await;
}

/// Sleeps until `time`; forever if it is `None`.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
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
