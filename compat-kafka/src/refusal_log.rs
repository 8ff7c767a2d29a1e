//! Warnings of what budgets refuse: the first at once, and then one a minute.

use std::time::Instant;

use admission::BudgetError;
use engine::LogThrottle;
use parking_lot::Mutex;

/// Limits how often refusals are logged: one client may cause thousands in a second.
#[derive(Debug)]
pub(crate) struct RefusalLog {
    message: &'static str,
    begun: Instant,
    throttle: Mutex<LogThrottle>,
}

impl RefusalLog {
    pub(crate) fn new(message: &'static str) -> RefusalLog {
        RefusalLog { message, begun: Instant::now(), throttle: Mutex::default() }
    }

    pub(crate) fn warn(&self, error: &BudgetError) {
        let refusals = self.throttle.lock().record_failure(self.begun.elapsed());
        if let Some(refusals) = refusals {
            tracing::warn!(%error, refusals, "{}", self.message);
        }
    }
}
