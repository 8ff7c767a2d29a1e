//! How the server is: what `/healthz` and `/readyz` say.

use std::sync::{Arc, OnceLock};

use compat_kafka::Kafka;
use engine::Engine;
use parking_lot::Mutex;

/// How far the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It opens its data directory.
    Starting,
    /// It answers.
    Serving,
    /// It ends, and why.
    Stopping(Arc<str>),
}

/// The parts, once they are there.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) engine: Arc<Engine>,
    pub(crate) kafka: Arc<Kafka>,
}

/// How the server is.
#[derive(Debug)]
pub(crate) struct Status {
    phase: Mutex<Phase>,
    parts: OnceLock<Parts>,
}

/// Why not.
pub(crate) type Why = String;

impl Status {
    pub(crate) fn starting() -> Arc<Status> {
        Arc::new(Status { phase: Mutex::new(Phase::Starting), parts: OnceLock::new() })
    }

    pub(crate) fn serving(&self, parts: Parts) {
        let first = self.parts.set(parts).is_ok();
        assert!(first, "a server starts once");
        *self.phase.lock() = Phase::Serving;
    }

    pub(crate) fn stopping(&self, why: &str) {
        *self.phase.lock() = Phase::Stopping(why.into());
    }

    /// The parts, once they are there.
    pub(crate) fn parts(&self) -> Option<&Parts> {
        self.parts.get()
    }

    /// Whether the process is of use at all; a supervisor that reads otherwise should start another.
    pub(crate) fn health(&self) -> Result<(), Why> {
        match self.parts().and_then(|parts| parts.engine.stopped()) {
            Some(why) => Err(format!("the store has stopped: {why}")),
            None => Ok(()),
        }
    }

    /// Whether clients should come now, and what is to be known all the same, if anything.
    pub(crate) fn readiness(&self) -> Result<Option<String>, Why> {
        self.health()?;
        match &*self.phase.lock() {
            Phase::Starting => {
                return Err("starting: the data directory is being opened".to_owned());
            }
            Phase::Stopping(why) => return Err(format!("stopping: {why}")),
            Phase::Serving => {}
        }
        let Some(parts) = self.parts() else { return Ok(None) };
        let timekeeper = parts.engine.timekeeper();
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
    fn one_that_starts_lives_and_is_not_ready() {
        let status = Status::starting();
        assert_eq!(status.health(), Ok(()));
        assert!(status.readiness().unwrap_err().starts_with("starting"));
        status.stopping("SIGTERM");
        assert_eq!(status.readiness().unwrap_err(), "stopping: SIGTERM");
        assert_eq!(status.health(), Ok(()));
    }
}
