//! Warnings of requests that a budget refuses: the first at once, and then one a minute. A client
//! may cause thousands a second.

use admission::BudgetError;
use parking_lot::Mutex;
use storage::LogThrottle;
use tokio::time::Instant;

/// Warnings of what a budget refuses.
#[derive(Debug)]
pub struct RefusalLog {
    message: &'static str,
    begun: Instant,
    throttle: Mutex<LogThrottle>,
}

impl RefusalLog {
    pub fn new(message: &'static str) -> RefusalLog {
        RefusalLog { message, begun: Instant::now(), throttle: Mutex::default() }
    }

    pub fn warn(&self, error: &BudgetError) {
        let refusals = self.throttle.lock().record_failure(self.begun.elapsed());
        if let Some(refusals) = refusals {
            tracing::warn!(%error, refusals, "{}", self.message);
        }
    }
}
