//! A limit on the bytes that a command moves in a second.

use std::time::{Duration, Instant};

use crate::byte_size::split_byte_size;

/// The most that may be moved at once after a pause, as time at the rate.
const BURST: Duration = Duration::from_millis(500);

/// Holds a command back, so that it moves no more than its rate over time.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    bytes_per_second: Option<u64>,
    /// The time at which everything so far has been moved at the rate.
    due: Instant,
}

impl RateLimiter {
    /// `None` is no limit.
    pub(crate) fn new(bytes_per_second: Option<u64>) -> RateLimiter {
        RateLimiter { bytes_per_second, due: Instant::now() }
    }

    /// The rate.
    pub(crate) fn bytes_per_second(&self) -> Option<u64> {
        self.bytes_per_second
    }

    /// Waits for as long as moving `bytes` takes at the rate.
    pub(crate) async fn admit(&mut self, bytes: u64) {
        let pause = self.pause(bytes, Instant::now());
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
    }

    fn pause(&mut self, bytes: u64, now: Instant) -> Duration {
        let Some(rate) = self.bytes_per_second else { return Duration::ZERO };
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        self.due = self.due.max(earliest) + Duration::from_secs_f64(bytes as f64 / rate as f64);
        self.due.saturating_duration_since(now)
    }
}

/// Parses bytes a second: a size, and `/s` or not.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    let hint = || "give bytes a second, such as 20MB or 64MiB/s".to_owned();
    let text = text.trim();
    let (number, unit_bytes) = split_byte_size(text.strip_suffix("/s").unwrap_or(text));
    let number: u64 = number.parse().map_err(|_| hint())?;
    number.checked_mul(unit_bytes).filter(|rate| *rate > 0).ok_or_else(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_holds_over_time_and_a_pause_saves_up_little() {
        let mut limiter = RateLimiter::new(Some(1000));
        let start = limiter.due;
        assert_eq!(limiter.pause(1000, start), Duration::from_secs(1));
        assert_eq!(limiter.pause(500, start + Duration::from_secs(1)), Duration::from_millis(500));
        // Half a second of a long pause counts.
        let later = start + Duration::from_secs(100);
        assert_eq!(limiter.pause(1000, later), Duration::from_millis(500));
        assert_eq!(limiter.pause(1000, later), Duration::from_millis(1500));
        assert_eq!(RateLimiter::new(None).pause(u64::MAX, later), Duration::ZERO);
    }

    #[test]
    fn rates_are_numbers_with_units() {
        for (text, rate) in [
            ("5", 5),
            ("20MB", 20_000_000),
            ("64MiB/s", 64 << 20),
            ("1 GB", 1_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(parse_rate(text), Ok(rate), "{text}");
        }
        for text in ["", "0", "MB", "-1MB", "1.5MB", "1 TB", "99999999999GiB"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
