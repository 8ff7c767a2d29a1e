//! Counts of durations, precise to one part in 128, from 1 ns to 584 years, in 60 KiB.
//!
//! As in HdrHistogram, a value's bucket is its highest 8 bits and their position, so each power of
//! two has 128 equal parts. A percentile is the upper end of its bucket, but never more than the
//! greatest value seen. It may be up to 0.8 % too large and is never too small.

use std::time::Duration;

const SUBBUCKET_BITS: u32 = 7;
const SUBBUCKETS: usize = 1 << SUBBUCKET_BITS;
const BUCKET_COUNT: usize = (64 - SUBBUCKET_BITS as usize + 1) * SUBBUCKETS;

/// How often each duration was seen.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    max: u64,
}

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram { counts: vec![0; BUCKET_COUNT], total: 0, max: 0 }
    }

    pub(crate) fn record(&mut self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
        self.max = self.max.max(nanos);
    }

    pub(crate) fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(mine, theirs)| *mine += theirs);
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    pub(crate) fn count(&self) -> u64 {
        self.total
    }

    pub(crate) fn max(&self) -> Duration {
        Duration::from_nanos(self.max)
    }

    /// The least value such that `percent` of all values are no greater. Zero if there are none.
    pub(crate) fn percentile(&self, percent: f64) -> Duration {
        // The rounding error of a product of fractions must not increase the rank.
        let rank = (percent * self.total as f64 / 100.0 - 1e-6).ceil() as u64;
        let rank = rank.clamp(1, self.total.max(1));
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        Duration::from_nanos(bucket.map_or(0, |bucket| upper_end(bucket).min(self.max)))
    }
}

fn bucket(nanos: u64) -> usize {
    let above = (64 - nanos.leading_zeros()).saturating_sub(SUBBUCKET_BITS + 1);
    above as usize * SUBBUCKETS + (nanos >> above) as usize
}

/// The greatest value that [`bucket`] sends to `bucket`.
fn upper_end(bucket: usize) -> u64 {
    if bucket < 2 * SUBBUCKETS {
        return bucket as u64;
    }
    let above = bucket / SUBBUCKETS - 1;
    let part = (bucket - above * SUBBUCKETS) as u64;
    (part << above) | ((1 << above) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_lies_in_a_bucket_that_ends_at_most_one_part_in_128_above_it() {
        let powers = (0..64).flat_map(|bit| {
            [
                (1_u64 << bit).wrapping_sub(1),
                1 << bit,
                (1 << bit) + 1,
                (1_u64 << bit).wrapping_mul(3),
            ]
        });
        for value in powers.chain([u64::MAX, 999_999_937]) {
            let index = bucket(value);
            assert!(index < BUCKET_COUNT);
            let end = upper_end(index);
            assert!(end >= value && end - value <= value / 128, "{value} in ..={end}");
            assert!(index == 0 || upper_end(index - 1) < value, "{value}");
        }
    }

    #[test]
    fn percentiles_are_those_of_a_sorted_list_within_the_precision() {
        let mut histogram = Histogram::new();
        let values: Vec<u64> = (1..=100_000).map(|i| i * 1_003).collect();
        values.iter().for_each(|nanos| histogram.record(Duration::from_nanos(*nanos)));
        for (percent, rank) in [(50.0, 50_000), (99.0, 99_000), (99.9, 99_900), (100.0, 100_000)] {
            let exact = values[rank - 1];
            let found = histogram.percentile(percent).as_nanos() as u64;
            assert!(found >= exact && found - exact <= exact / 128, "p{percent} {found} {exact}");
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
        two.record(Duration::from_nanos(9));
        one.merge(&two);
        assert_eq!((one.count(), one.max()), (2, Duration::from_nanos(9)));
        assert_eq!(one.percentile(50.0), Duration::from_nanos(3));
    }

    #[test]
    fn an_empty_histogram_answers_zero() {
        assert_eq!(Histogram::new().percentile(99.0), Duration::ZERO);
    }
}
