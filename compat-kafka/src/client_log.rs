//! Warnings that clients cause: the first at once, and then one a minute. One client may cause
//! thousands in a second.

use std::fmt;
use std::net::IpAddr;

use admission::Holder;
use engine::LogThrottles;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Warnings of what clients do wrong, each of a network by itself.
#[derive(Debug)]
pub(crate) struct ClientLog {
    begun: Instant,
    throttles: Mutex<LogThrottles<(Holder, &'static str)>>,
}

impl ClientLog {
    pub(crate) fn new() -> ClientLog {
        ClientLog { begun: Instant::now(), throttles: Mutex::default() }
    }

    /// Warns of an error; `times` in the warning counts the errors since the last one.
    pub(crate) fn warn(&self, peer: IpAddr, message: &'static str, error: impl fmt::Display) {
        let key = (Holder::address(peer), message);
        let times = self.throttles.lock().record_failure(key, self.begun.elapsed());
        match times {
            Some(times) => tracing::warn!(%peer, %error, times, "{message}"),
            None => tracing::debug!(%peer, %error, "{message}"),
        }
    }
}
