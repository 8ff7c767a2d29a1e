//! Counts of durations, precise to one part in 128, from 1 ns to 584 years, in 60 KiB.
//!
//! As in HdrHistogram, a value's bucket is its highest 8 bits and their position, so each power of
//! two has 128 equal parts. A percentile is the upper end of its bucket, but never more than the
//! greatest value seen. It may be up to 0.8 % too large and is never too small.

use std::time::Duration;

use hdrhistogram::Histogram as Counts;

/// Digits of a value that are kept.
const DIGITS: u8 = 3;

pub(crate) struct Histogram {
    counts: Counts<u64>,
    max: Duration,
}

impl Histogram {
    pub(crate) fn new() -> Histogram {
        let counts = Counts::new(DIGITS).expect("so many digits can be kept");
        Histogram { counts, max: Duration::ZERO }
    }

    pub(crate) fn record(&mut self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.counts.record(nanos).expect("a histogram grows");
        self.max = self.max.max(value);
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        self.counts.add(&other.counts).expect("a histogram grows");
        self.max = self.max.max(other.max);
    }

    pub(crate) fn count(&self) -> u64 {
        self.counts.len()
    }

    pub(crate) fn max(&self) -> Duration {
        self.max
    }

    /// The least value such that `percent` of all values are no greater, up to a thousandth too
    /// large but never greater than the greatest. Zero if there are none.
    pub(crate) fn percentile(&self, percent: f64) -> Duration {
        // The rounding error of a product of fractions must not increase the rank.
        let nanos = self.counts.value_at_percentile(percent * (1.0 - 1e-12));
        Duration::from_nanos(nanos).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_a_sorted_list_within_the_precision() {
        let mut histogram = Histogram::new();
        let values: Vec<u64> = (1..=100_000).map(|i| i * 1_003).collect();
        values.iter().for_each(|nanos| histogram.record(Duration::from_nanos(*nanos)));
        for (percent, rank) in [(50.0, 50_000), (99.0, 99_000), (99.9, 99_900), (100.0, 100_000)] {
            let exact = values[rank - 1];
            let found = histogram.percentile(percent).as_nanos() as u64;
            assert!(found >= exact && found - exact <= exact / 1000, "p{percent} {found} {exact}");
        }
        assert_eq!(histogram.max(), Duration::from_nanos(100_000 * 1_003));
        assert_eq!(histogram.percentile(100.0), histogram.max());
    }

    #[test]
    fn one_slow_value_in_a_thousand_is_the_maximum_and_not_the_99th_percentile() {
        let mut histogram = Histogram::new();
        (0..999).for_each(|_| histogram.record(Duration::from_micros(10)));
        histogram.record(Duration::from_secs(1));
        assert!(histogram.percentile(99.0) < Duration::from_micros(11));
        assert!(histogram.percentile(99.9) < Duration::from_micros(11));
        assert_eq!(histogram.percentile(99.95), Duration::from_secs(1));
    }

    #[test]
    fn merging_is_recording_both() {
        let (mut one, mut two) = (Histogram::new(), Histogram::new());
        one.record(Duration::from_nanos(3));
        two.record(Duration::from_secs(9));
        one.merge(&two);
        assert_eq!((one.count(), one.max()), (2, Duration::from_secs(9)));
        assert_eq!(one.percentile(50.0), Duration::from_nanos(3));
    }

    #[test]
    fn an_empty_histogram_answers_zero() {
        assert_eq!(Histogram::new().percentile(99.0), Duration::ZERO);
    }
}
