//! The status of the server, for `/healthz` and `/readyz`.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use compat_kafka::KafkaServer;
use compat_zk::ZkServer;
use engine::Engine;
use history_api::HistoryApiError;
use history_documents::HistoryErrorCode;
use parking_lot::Mutex;

use crate::http_connections::HttpConnections;
use crate::http_sessions::HttpSessions;
use crate::metrics::{CertificateEnds, DiskTrend, GroupLags};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerPhase {
    /// It opens its data directory.
    Starting,
    Serving,
    /// It stops, for this reason.
    Stopping(Arc<str>),
}

#[derive(Clone, Debug)]
pub(crate) struct ServerParts {
    pub(crate) data_dir: PathBuf,
    pub(crate) engine: Arc<Engine>,
    pub(crate) kafka: Arc<KafkaServer>,
    /// If ZooKeeper's clients are served.
    pub(crate) zookeeper: Option<Arc<ZkServer>>,
    pub(crate) disk_trend: Arc<DiskTrend>,
    pub(crate) group_lags: Arc<GroupLags>,
    pub(crate) certificates: Arc<CertificateEnds>,
}

#[derive(Debug)]
pub(crate) struct ServerStatus {
    phase: Mutex<ServerPhase>,
    parts: OnceLock<ServerParts>,
    http_connections: Arc<HttpConnections>,
    http_sessions: Arc<HttpSessions>,
}

/// The reason why the server is not healthy or not ready.
pub(crate) type UnhealthyReason = String;

impl ServerStatus {
    pub(crate) fn starting() -> Arc<ServerStatus> {
        Arc::new(ServerStatus {
            phase: Mutex::new(ServerPhase::Starting),
            parts: OnceLock::new(),
            http_connections: HttpConnections::new(),
            http_sessions: Arc::default(),
        })
    }

    pub(crate) fn serving(&self, server: ServerParts) {
        self.http_connections.register(server.engine.budgets());
        self.http_sessions.register(server.engine.budgets());
        let first = self.parts.set(server).is_ok();
        assert!(first, "a server starts once");
        *self.phase.lock() = ServerPhase::Serving;
    }

    /// The connections of operators, of all ports.
    pub(crate) fn http_connections(&self) -> &Arc<HttpConnections> {
        &self.http_connections
    }

    /// The sessions of browsers, of all ports.
    pub(crate) fn http_sessions(&self) -> &Arc<HttpSessions> {
        &self.http_sessions
    }

    pub(crate) fn stopping(&self, reason: &str) {
        *self.phase.lock() = ServerPhase::Stopping(reason.into());
    }

    /// The parts, once the server has started.
    pub(crate) fn parts(&self) -> Option<&ServerParts> {
        self.parts.get()
    }

    /// The parts, for a request that is refused until the server has started.
    pub(crate) fn started(&self) -> Result<&ServerParts, HistoryApiError> {
        let message = "the data directory is being opened";
        self.parts().ok_or_else(|| HistoryApiError::new(HistoryErrorCode::Starting, message))
    }

    /// `Ok` if the process is healthy. If not, a supervisor should restart it.
    pub(crate) fn health(&self) -> Result<(), UnhealthyReason> {
        match self.parts().and_then(|server| server.engine.stop_reason()) {
            Some(reason) => Err(format!("the store has stopped: {reason}")),
            None => Ok(()),
        }
    }

    /// `Ok` if clients should connect now. It may carry a warning.
    pub(crate) fn readiness(&self) -> Result<Option<String>, UnhealthyReason> {
        self.health()?;
        match &*self.phase.lock() {
            ServerPhase::Starting => {
                return Err("starting: the data directory is being opened".to_owned());
            }
            ServerPhase::Stopping(reason) => return Err(format!("stopping: {reason}")),
            ServerPhase::Serving => {}
        }
        let Some(server) = self.parts() else { return Ok(None) };
        let timekeeper = server.engine.timekeeper();
        match timekeeper.fence() {
            Some(fence) => Err(format!("writes are fenced: {fence}")),
            None => Ok(timekeeper.doubt().map(|doubt| doubt.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_starting_server_is_healthy_and_not_ready() {
        let status = ServerStatus::starting();
        assert_eq!(status.health(), Ok(()));
        assert!(status.readiness().unwrap_err().starts_with("starting"));
        status.stopping("SIGTERM");
        assert_eq!(status.readiness().unwrap_err(), "stopping: SIGTERM");
        assert_eq!(status.health(), Ok(()));
    }
}
