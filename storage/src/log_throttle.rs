//! A failure that repeats is not logged each time: there may be thousands in a second, and the log may be
//! on the disk that fails.

use std::time::Duration;

/// The least time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// Limits how often one kind of failure is logged: the first at once, and then one a minute, with the
/// number of failures since the last report. Times are steady times of one clock.
#[derive(Debug, Default)]
pub struct LogThrottle {
    unreported: u64,
    last_reported: Option<Duration>,
}

impl LogThrottle {
    /// Counts a failure. If it is to be logged: the number of failures since the last report, with this one.
    pub fn record_failure(&mut self, now: Duration) -> Option<u64> {
        self.unreported += 1;
        self.is_due(now).then(|| {
            self.last_reported = Some(now);
            std::mem::take(&mut self.unreported)
        })
    }

    /// Whether to log that the failures have ended: some were logged, a minute ago or longer. What fails
    /// and succeeds in turns is logged as little as what fails always.
    pub fn record_success(&mut self, now: impl FnOnce() -> Duration) -> bool {
        let has_ended = self.last_reported.is_some() && self.is_due(now());
        if has_ended {
            *self = LogThrottle::default();
        }
        has_ended
    }

    fn is_due(&self, now: Duration) -> bool {
        self.last_reported.is_none_or(|reported| now.saturating_sub(reported) >= REPORT_INTERVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_refusals_are_said_once_a_minute_and_counted() {
        let mut throttle = LogThrottle::default();
        let at = Duration::from_secs;
        let reports = (0..1000).filter_map(|_| throttle.record_failure(at(5)));
        assert_eq!(reports.collect::<Vec<_>>(), [1]);
        assert!(!throttle.record_success(|| at(64)), "too early");
        assert_eq!(throttle.record_failure(at(65)), Some(1000));
        assert!(throttle.record_success(|| at(125)));
        assert!(!throttle.record_success(|| at(185)), "it was said");
        assert_eq!(throttle.record_failure(at(126)), Some(1), "a new failure");
    }
}
