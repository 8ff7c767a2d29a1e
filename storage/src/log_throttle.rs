//! A failure that repeats is not logged each time: there may be thousands in a second, and the log
//! may be on the disk that fails.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// The least time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// The most keys of [`LogThrottles`] at a time.
const KEYS_MAX: usize = 1024;

/// Limits how often one kind of failure is logged: the first at once, and then one a minute, with
/// the number of failures since the last report. Times are steady times of one clock.
#[derive(Debug, Default)]
pub struct LogThrottle {
    unreported: u64,
    last_reported: Option<Duration>,
}

impl LogThrottle {
    /// Counts a failure. If it is to be logged: the number of failures since the last report, with
    /// this one.
    pub fn record_failure(&mut self, now: Duration) -> Option<u64> {
        self.unreported += 1;
        self.is_due(now).then(|| {
            self.last_reported = Some(now);
            std::mem::take(&mut self.unreported)
        })
    }

    /// Returns true if it is to be logged that the failures have ended: some were logged, a minute
    /// ago or longer. Alternating failures and successes are logged as little as failures alone.
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

/// A [`LogThrottle`] for each key, such as the address of a client. Where many fail at a time, the
/// rest share one.
#[derive(Debug)]
pub struct LogThrottles<K> {
    by_key: HashMap<K, LogThrottle>,
    rest: LogThrottle,
}

impl<K: Eq + Hash> LogThrottles<K> {
    /// As [`LogThrottle::record_failure`].
    pub fn record_failure(&mut self, key: K, now: Duration) -> Option<u64> {
        if self.by_key.len() >= KEYS_MAX && !self.by_key.contains_key(&key) {
            self.by_key.retain(|_, throttle| !throttle.is_due(now));
            if self.by_key.len() >= KEYS_MAX {
                return self.rest.record_failure(now);
            }
        }
        self.by_key.entry(key).or_default().record_failure(now)
    }
}

impl<K> Default for LogThrottles<K> {
    fn default() -> LogThrottles<K> {
        LogThrottles { by_key: HashMap::new(), rest: LogThrottle::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_said_once_a_minute_and_a_flood_of_keys_is_one() {
        let mut throttles = LogThrottles::default();
        let at = Duration::from_secs;
        let mut reports = |keys: std::ops::Range<usize>, now| {
            keys.filter(|key| throttles.record_failure(*key, at(now)).is_some()).count()
        };
        assert_eq!((reports(0..10, 1), reports(0..10, 2)), (10, 0));
        assert_eq!(reports(0..100_000, 3), KEYS_MAX - 10 + 1);
        assert_eq!(reports(0..10, 61), 10);
        assert_eq!(reports(200_000..200_010, 63), 10, "those that are due make room");
    }

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
