//! The rate of something over the last seconds, and the delay until it is as low as allowed. Both
//! are computed as Kafka does it, so that clients are throttled for as long as there.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The window over which a rate is measured, in samples of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateOptions {
    /// The number of samples (`quota.window.num`).
    pub samples: u32,
    /// The length of a sample (`quota.window.size.seconds`).
    pub sample: Duration,
}

impl Default for RateOptions {
    fn default() -> RateOptions {
        RateOptions { samples: 11, sample: Duration::from_secs(1) }
    }
}

impl RateOptions {
    /// The most that a client may use at once: what it may use in all samples but the current one.
    pub(crate) fn burst(&self, rate_max: f64) -> f64 {
        rate_max * f64::from(self.samples.saturating_sub(1).max(1)) * self.sample.as_secs_f64()
    }
}

/// The use in one stretch of time.
#[derive(Clone, Copy, Debug)]
struct RateSample {
    begun: Instant,
    last: Instant,
    used: f64,
}

/// The use in the last samples.
#[derive(Debug, Default)]
pub(crate) struct RateWindow {
    samples: VecDeque<RateSample>,
}

impl RateWindow {
    /// Counts what is used now. A negative number takes back what was counted.
    pub(crate) fn record(&mut self, used: f64, now: Instant, options: &RateOptions) {
        self.remove_old(now, options);
        match self.samples.back_mut() {
            Some(current) if now.saturating_duration_since(current.begun) < options.sample => {
                current.used += used;
                current.last = now;
            }
            _ => self.samples.push_back(RateSample { begun: now, last: now, used }),
        }
    }

    /// The total use in all samples.
    pub(crate) fn used(&mut self, now: Instant, options: &RateOptions) -> f64 {
        self.remove_old(now, options);
        self.samples.iter().map(|sample| sample.used).sum()
    }

    /// The delay until the rate is no higher than `rate_max` a second; zero if it is not higher.
    pub(crate) fn delay(&mut self, rate_max: f64, now: Instant, options: &RateOptions) -> Duration {
        let used = self.used(now, options);
        let length = self.length(now, options).as_secs_f64();
        let excess = used / length - rate_max;
        whole_milliseconds(excess / rate_max * length)
    }

    /// True if nothing is left that counts.
    pub(crate) fn is_empty(&mut self, now: Instant, options: &RateOptions) -> bool {
        self.remove_old(now, options);
        self.samples.is_empty()
    }

    /// The length of the samples. Samples before the first one count as if they were there: the
    /// rate of a client that has just begun is not that of its first moment.
    fn length(&self, now: Instant, options: &RateOptions) -> Duration {
        let since = self.samples.front().map(|oldest| now.saturating_duration_since(oldest.begun));
        let elapsed = since.unwrap_or_default();
        let full = (elapsed.as_nanos() / options.sample.as_nanos().max(1)) as u32;
        let missing = options.samples.saturating_sub(1).saturating_sub(full);
        (elapsed + options.sample * missing).max(Duration::from_millis(1))
    }

    fn remove_old(&mut self, now: Instant, options: &RateOptions) {
        let age_max = options.sample * options.samples;
        let is_old = |sample: &RateSample| now.saturating_duration_since(sample.last) >= age_max;
        while self.samples.front().is_some_and(is_old) {
            self.samples.pop_front();
        }
    }
}

/// Tokens that come at a rate, up to a number, and are taken for what is used (KIP-599). It may owe
/// some.
#[derive(Debug, Default)]
pub(crate) struct TokenBucket {
    /// The number of tokens, and the time of that count; `None` if it is full.
    tokens: Option<(f64, Instant)>,
}

impl TokenBucket {
    pub(crate) fn take(&mut self, count: f64, rate: f64, now: Instant, options: &RateOptions) {
        self.tokens = Some((self.tokens(rate, now, options) - count, now));
    }

    /// The delay until the bucket owes no tokens.
    pub(crate) fn delay(&mut self, rate: f64, now: Instant, options: &RateOptions) -> Duration {
        whole_milliseconds(-self.tokens(rate, now, options) / rate)
    }

    /// True if the bucket is full.
    pub(crate) fn is_full(&self, rate: f64, now: Instant, options: &RateOptions) -> bool {
        self.tokens(rate, now, options) >= burst(rate, options)
    }

    fn tokens(&self, rate: f64, now: Instant, options: &RateOptions) -> f64 {
        let most = burst(rate, options);
        match self.tokens {
            None => most,
            Some((tokens, since)) => {
                let new = rate * now.saturating_duration_since(since).as_secs_f64();
                most.min(tokens + new)
            }
        }
    }
}

/// Rounds to the nearest millisecond, as Kafka does it: a client that waits for less does not wait.
/// A negative time is no time.
fn whole_milliseconds(seconds: f64) -> Duration {
    Duration::from_millis((seconds * 1000.0).round() as u64)
}

fn burst(rate: f64, options: &RateOptions) -> f64 {
    rate * f64::from(options.samples) * options.sample.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPTIONS: RateOptions = RateOptions { samples: 11, sample: Duration::from_secs(1) };

    #[test]
    fn a_burst_is_free_and_what_is_beyond_takes_its_time() {
        let (mut window, now) = (RateWindow::default(), Instant::now());
        window.record(1000.0, now, &OPTIONS);
        // 10 samples are missing: 1000 in 10 s are 100 a second.
        assert_eq!(window.delay(100.0, now, &OPTIONS), Duration::ZERO);
        window.record(50.0, now, &OPTIONS);
        // 105 a second in 10 s, 5 % too fast: 5 % of 10 s.
        assert_eq!(window.delay(100.0, now, &OPTIONS), Duration::from_millis(500));
        window.record(-50.0, now, &OPTIONS);
        assert_eq!(window.delay(100.0, now, &OPTIONS), Duration::ZERO);
    }

    #[test]
    fn what_is_old_does_not_count() {
        let (mut window, begun) = (RateWindow::default(), Instant::now());
        let at = |ms| begun + Duration::from_millis(ms);
        window.record(5000.0, at(0), &OPTIONS);
        window.record(10.0, at(10_500), &OPTIONS);
        assert!(window.delay(100.0, at(10_999), &OPTIONS) > Duration::from_secs(30));
        assert_eq!(window.delay(100.0, at(11_000), &OPTIONS), Duration::ZERO);
        assert!(!window.is_empty(at(11_000), &OPTIONS));
        assert!(window.is_empty(at(21_500), &OPTIONS));
    }

    #[test]
    fn a_bucket_may_owe_what_one_taker_took_and_is_full_again_in_time() {
        let (mut bucket, begun) = (TokenBucket::default(), Instant::now());
        let at = |ms| begun + Duration::from_millis(ms);
        // 2 a second: 22 are there.
        bucket.take(22.0, 2.0, at(0), &OPTIONS);
        assert_eq!(bucket.delay(2.0, at(0), &OPTIONS), Duration::ZERO);
        bucket.take(5.0, 2.0, at(0), &OPTIONS);
        assert_eq!(bucket.delay(2.0, at(0), &OPTIONS), Duration::from_millis(2500));
        assert_eq!(bucket.delay(2.0, at(2000), &OPTIONS), Duration::from_millis(500));
        assert_eq!(bucket.delay(2.0, at(2500), &OPTIONS), Duration::ZERO);
        assert!(!bucket.is_full(2.0, at(13_400), &OPTIONS));
        assert!(bucket.is_full(2.0, at(13_500), &OPTIONS));
    }

    proptest! {
        /// A client that uses something whenever it is not delayed uses no more than the rate over
        /// a long time, but for the burst, what it used last, and, as a sample is forgotten as a
        /// whole, one of all samples.
        #[test]
        fn over_a_long_time_the_rate_is_kept(
            rate in 1.0..1e6f64,
            uses in prop::collection::vec((0.001..4.0f64, 0..500u64), 200..400),
        ) {
            let (mut window, begun) = (RateWindow::default(), Instant::now());
            let (mut now, mut used, mut last) = (begun, 0.0, 0.0f64);
            for (share, pause) in uses {
                let amount = share * rate;
                window.record(amount, now, &OPTIONS);
                used += amount;
                last = last.max(amount);
                now += window.delay(rate, now, &OPTIONS) + Duration::from_millis(pause);
            }
            let allowed = rate * (now - begun).as_secs_f64() + OPTIONS.burst(rate) + last;
            let allowed = allowed * f64::from(OPTIONS.samples) / f64::from(OPTIONS.samples - 1);
            prop_assert!(used <= allowed, "{used} of {allowed}");
        }
    }
}
