//! Latencies counted in fixed buckets, for histograms of metrics.
//!
//! A record is two additions of atomics: no lock, no allocation, and no reading of a clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets, in microseconds. Each bucket includes its bound.
const BOUNDS_MICROS: [u64; 17] = [
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000,
];
/// One more than there are bounds: the last bucket has none.
const BUCKETS: usize = BOUNDS_MICROS.len() + 1;

/// A copy of a [`LatencyHistogram`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    buckets: [u64; BUCKETS],
    sum_nanos: u64,
}

impl LatencyCounts {
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    /// The upper bound of each bucket in seconds, and the number of latencies that are in it and
    /// in none before it.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let seconds = |micros| Duration::from_micros(micros).as_secs_f64();
        let bounds = BOUNDS_MICROS.into_iter().map(seconds).chain([f64::INFINITY]);
        bounds.zip(self.buckets)
    }
}

/// Counts of latencies that any thread adds to.
#[derive(Debug, Default)]
pub struct LatencyHistogram {
    buckets: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl LatencyHistogram {
    pub fn record(&self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_MICROS.partition_point(|bound| bound * 1_000 < nanos);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        if nanos > 0 {
            self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
        }
    }

    /// A copy. What is recorded meanwhile may be in a bucket and not in the sum.
    pub fn counts(&self) -> LatencyCounts {
        LatencyCounts {
            buckets: std::array::from_fn(|nth| self.buckets[nth].load(Ordering::Relaxed)),
            sum_nanos: self.sum_nanos.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_includes_its_bound_and_the_last_has_none() {
        let histogram = LatencyHistogram::default();
        let latencies = [0, 50_000, 50_001, 10_000_000_000, 10_000_000_001, u64::MAX / 4];
        for nanos in latencies {
            histogram.record(Duration::from_nanos(nanos));
        }
        let counts = histogram.counts();
        let filled: Vec<_> = counts.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.000_05, 2), (0.000_1, 1), (10.0, 1), (f64::INFINITY, 2)]);
        assert_eq!(
            (counts.count(), counts.sum()),
            (6, Duration::from_nanos(latencies.iter().sum()))
        );
    }
}
