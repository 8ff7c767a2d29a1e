//! Reporting that the disk refuses writes: not once for each of them, because there may be thousands in a
//! second, and the report may be written to the same disk.

use std::time::Duration;

/// The least time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The writes that were refused since the disk last accepted one.
#[derive(Debug, Default)]
pub(crate) struct RefusalReporter {
    count: u64,
    last_reported: Option<Duration>,
}

impl RefusalReporter {
    /// Records a write that was refused because of `why`, at the steady time `now`.
    pub(crate) fn record_refusal(&mut self, why: &str, now: Duration) {
        self.count += 1;
        if self.last_reported.is_none_or(|said| now.saturating_sub(said) >= REPORT_INTERVAL) {
            self.last_reported = Some(now);
            tracing::error!(
                error = why,
                refused = self.count,
                "the disk refused a write; it was taken back whole"
            );
        }
    }

    /// Records a write that succeeded. A full disk may still accept one now and then.
    pub(crate) fn record_success(&mut self, now: impl FnOnce() -> Duration) {
        if self.last_reported.is_some_and(|said| now().saturating_sub(said) >= REPORT_INTERVAL) {
            tracing::info!(refused = self.count, "the disk takes writes again");
            *self = RefusalReporter::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_refusals_are_said_once_a_minute_and_counted() {
        let mut refusals = RefusalReporter::default();
        let at = Duration::from_secs;
        for _ in 0..1000 {
            refusals.record_refusal("full", at(5));
        }
        assert_eq!((refusals.count, refusals.last_reported), (1000, Some(at(5))));
        refusals.record_success(|| at(64));
        refusals.record_refusal("full", at(65));
        assert_eq!((refusals.count, refusals.last_reported), (1001, Some(at(65))));
        refusals.record_success(|| at(125));
        assert_eq!((refusals.count, refusals.last_reported), (0, None));
    }
}
