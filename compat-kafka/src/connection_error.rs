//! The reasons that the server ends a connection.

use std::io;
use std::net::SocketAddr;

use admission::BudgetError;
use engine::StorageError;
use kafka_connections::MemoryBudgetError;

use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::request::BadRequest;

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
                let address = peer.ip().to_canonical().to_string();
                let audit = kafka.engine.security().audit();
                audit.record_login_failure(&address, "nothing", "requests come before a login");
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
