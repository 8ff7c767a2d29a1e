//! Accepts connections, within limits, and shakes hands: a connection is served in [`crate::conn`].
//!
//! When as many are open as may be, others make room
//! ([`kafka_connections::ConnectionTable`]): neither a stranger nor a user who opens that many keeps
//! others out.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::LogThrottle;
use engine::security::Principal;
use futures_util::future::{AbortHandle, Abortable};
use kafka_connections::{
    ConnectionPlace, ConnectionRoute, FullLimit, KafkaListener, OpenLimits, PlaceSource,
};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use crate::conn::{ConnectionEnds, DRAIN_MAX, KafkaConnection, wait_for_stop};
use crate::connection_error::ConnectionError;
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::quotas::{RateWindow, record_connection};

/// The most refused connections that a listener holds open for a while before it closes them.
const HELD_CONNECTIONS_MAX: usize = 1000;
/// The pause after `accept` fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The longest time that a client may take for the TLS handshake.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// The approximate size of the buffers of a TLS handshake, in bytes.
const HANDSHAKE_BYTES: usize = 16 << 10;
/// The most connections that are ended to make room for one.
const EVICTIONS_MAX: usize = 3;
/// The longest wait for an ended connection to make room.
const EVICTION_MAX: Duration = Duration::from_millis(100);

/// Accepts connections to `socket` until `stop` turns true, then lets them finish.
pub async fn serve(
    kafka: Arc<KafkaServer>,
    socket: TcpListener,
    listener: Arc<KafkaListener>,
    mut stop: watch::Receiver<bool>,
) {
    let mut connections = tokio::task::JoinSet::new();
    let mut warnings = AcceptWarnings::new("connections are not accepted");
    let handshake_warnings = Arc::new(Mutex::new(AcceptWarnings::new(
        "handshakes of TLS fail: the clients speak no TLS, or do not trust this server, or are not trusted",
    )));
    let rates = &kafka.options.quota_rates.clients;
    let held = Arc::new(Semaphore::new(HELD_CONNECTIONS_MAX));
    let (mut own_rate, mut accepts_from) = (RateWindow::default(), Instant::now());
    loop {
        let accepted = tokio::select! {
            accepted = accept(&socket, accepts_from) => accepted,
            () = wait_for_stop(&mut stop) => break,
        };
        while connections.try_join_next().is_some() {}
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Mostly the process is out of descriptors. Open connections may end meanwhile and
                // free some.
                warnings.warn(&error.to_string());
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let security = kafka.engine.security();
        let delay = kafka.admission.connection_rates.record_address(security, peer.ip(), rates);
        if !delay.is_zero() {
            add(&kafka.metrics().connections_refused, 1);
            tracing::debug!(%peer, "too many connections lately; refused");
            warnings.warn("too many come from an address (connection_creation_rate)");
            // Its client would try again at once.
            if let Ok(permit) = Arc::clone(&held).try_acquire_owned() {
                connections.spawn(hold_connection(stream, delay, permit, stop.clone()));
            }
            continue;
        }
        let (of_all, own) = rates_max(&kafka, &listener);
        let pause = kafka.admission.connection_rates.record(of_all, rates);
        accepts_from = Instant::now() + pause.max(record_connection(&mut own_rate, own, rates));
        let route = ConnectionRoute { from: peer.ip(), to: Arc::clone(&listener) };
        let (handle, registration) = AbortHandle::new_pair();
        let place = match take_place(&kafka, &route, handle, &mut warnings).await {
            Ok(place) => place,
            Err(full) => {
                add(&kafka.metrics().connections_refused, 1);
                tracing::debug!(%peer, %full, "too many connections; refused");
                warnings.warn(&full.to_string());
                continue;
            }
        };
        let counted = ConnectionGauge::new(&kafka);
        let (kafka, listener, stop) = (Arc::clone(&kafka), Arc::clone(&listener), stop.clone());
        let handshake_warnings = Arc::clone(&handshake_warnings);
        let serving = async move {
            let _counted = counted;
            let served = serve_socket(&kafka, &listener, stream, place, peer, stop).await;
            if let Err(error) = served {
                if let ConnectionError::Handshake(error) = &error {
                    handshake_warnings.lock().warn(&error.to_string());
                }
                error.report(&kafka, peer);
            }
        };
        let serving = Abortable::new(serving, registration);
        connections.spawn(async move {
            let _ended_or_made_room = serving.await;
        });
    }
    drop(socket);
    let drained = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
        connections.shutdown().await;
    }
}

/// Takes a place. If none is free, others make room.
async fn take_place(
    kafka: &Arc<KafkaServer>,
    route: &ConnectionRoute,
    handle: AbortHandle,
    warnings: &mut AcceptWarnings,
) -> Result<ConnectionPlace, FullLimit> {
    let table = &kafka.admission.connections;
    let mut source = PlaceSource::Free;
    for _ in 0..EVICTIONS_MAX {
        let closed = table.closed();
        let limits = open_limits(kafka, route);
        let full = match table.open(route, handle.clone(), limits, source) {
            Ok(place) => return Ok(place),
            Err(full) => full,
        };
        if !table.end_one(route, &full) {
            return Err(full);
        }
        warnings.warn("as many are open as may be; others make room");
        let _ = tokio::time::timeout(EVICTION_MAX, closed).await;
        source = PlaceSource::Vacated;
    }
    table.open(route, handle, open_limits(kafka, route), source)
}

fn open_limits(kafka: &KafkaServer, route: &ConnectionRoute) -> OpenLimits {
    let options = kafka.settings.options.load();
    let of_address = options.connections_per_ip_overrides.get(&route.from.to_canonical());
    let of_listener = options.listener_limits.get(&route.to.key);
    OpenLimits {
        all: options.limits.max,
        of_address: of_address.copied().unwrap_or(options.connections_per_ip_max),
        of_listener: of_listener.map_or(usize::MAX, |own| own.max),
    }
}

/// The most connections a second (`max.connection.creation.rate`), of all listeners and of this
/// one.
fn rates_max(kafka: &KafkaServer, listener: &KafkaListener) -> (Option<u32>, Option<u32>) {
    let options = kafka.settings.options.load();
    let own = options.listener_limits.get(&listener.key);
    (options.limits.rate_max, own.and_then(|own| own.rate_max))
}

/// Accepts a connection, from then on.
async fn accept(socket: &TcpListener, from: Instant) -> io::Result<(TcpStream, SocketAddr)> {
    if from > Instant::now() {
        tokio::time::sleep_until(from).await;
    }
    socket.accept().await
}

/// Closes a connection that is refused after a while.
async fn hold_connection(
    stream: TcpStream,
    delay: Duration,
    permit: OwnedSemaphorePermit,
    mut stop: watch::Receiver<bool>,
) {
    tokio::select! {
        () = tokio::time::sleep(delay) => {}
        () = wait_for_stop(&mut stop) => {}
    }
    drop((stream, permit));
}

/// Serves one connection, after the handshake of TLS if that is spoken there.
async fn serve_socket(
    kafka: &Arc<KafkaServer>,
    listener: &Arc<KafkaListener>,
    stream: TcpStream,
    place: ConnectionPlace,
    peer: SocketAddr,
    mut stop: watch::Receiver<bool>,
) -> Result<(), ConnectionError> {
    stream.set_nodelay(true)?;
    let principal = Principal::anonymous();
    let (listener, local) = (Arc::clone(listener), stream.local_addr()?);
    let mut ends = ConnectionEnds { listener, peer, local, principal };
    let kafka = Arc::clone(kafka);
    let Some(tls) = &ends.listener.tls else {
        return KafkaConnection::run(kafka, stream, ends, Some(place), stop).await;
    };
    let mut memory = place.login_memory();
    memory.grow_to(HANDSHAKE_BYTES)?;
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(HANDSHAKE_MAX, tls.accept_socket(stream)) => accepted,
        () = wait_for_stop(&mut stop) => return Ok(()),
    };
    let accepted = accepted.unwrap_or_else(|slow| Err(slow.into()));
    let stream = accepted.map_err(ConnectionError::Handshake)?;
    drop(memory);
    if let Some(name) = stream.client_name() {
        ends.principal = Principal::user(&ends.listener.principal_rules.apply(name));
    }
    KafkaConnection::run(kafka, stream, ends, Some(place), stop).await
}

/// Warns of connections that fail before they are served. It limits the warnings, because there may
/// be thousands in a second.
struct AcceptWarnings {
    what: &'static str,
    begun: Instant,
    throttle: LogThrottle,
}

impl AcceptWarnings {
    fn new(what: &'static str) -> AcceptWarnings {
        AcceptWarnings { what, begun: Instant::now(), throttle: LogThrottle::default() }
    }

    fn warn(&mut self, why: &str) {
        if let Some(connections) = self.throttle.record_failure(self.begun.elapsed()) {
            tracing::warn!(why, connections, "{}", self.what);
        }
    }
}

/// Counts a connection in the metrics, until it is dropped.
struct ConnectionGauge(Arc<KafkaServer>);

impl ConnectionGauge {
    fn new(kafka: &Arc<KafkaServer>) -> ConnectionGauge {
        add(&kafka.metrics().connections_accepted, 1);
        add(&kafka.metrics().connections, 1);
        ConnectionGauge(Arc::clone(kafka))
    }
}

impl Drop for ConnectionGauge {
    fn drop(&mut self) {
        self.0.metrics().connections.fetch_sub(1, Ordering::Relaxed);
    }
}
