//! The free space of the data directory's disk over the last day, and how long it lasts.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

const SAMPLE_INTERVAL: Duration = Duration::from_secs(300);
/// The samples of a day.
const SAMPLES_MAX: usize = 288;
/// The least time between the first and the last sample of a trend.
const SPAN_MIN: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug)]
struct FreeSpaceSample {
    /// Since the start.
    at: Duration,
    free: u64,
}

/// Samples of the free space.
#[derive(Debug, Default)]
pub(crate) struct DiskTrend {
    samples: Mutex<VecDeque<FreeSpaceSample>>,
}

impl DiskTrend {
    /// Samples the disk of a directory from now on.
    pub(crate) async fn run(self: Arc<DiskTrend>, data_dir: PathBuf) {
        let begun = Instant::now();
        let mut ticks = interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let directory = data_dir.clone();
            let sampling =
                tokio::task::spawn_blocking(move || storage::disk::volume_bytes(&directory));
            match sampling.await {
                Ok(Ok(volume)) => self.record(begun.elapsed(), volume.usable),
                Ok(Err(error)) => tracing::debug!(%error, "the free space is not known"),
                // The runtime is shutting down.
                Err(_) => return,
            }
        }
    }

    fn record(&self, at: Duration, free: u64) {
        let mut samples = self.samples.lock();
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(FreeSpaceSample { at, free });
    }

    /// The days until `free` bytes are used up, if the disk fills as it did over the last day.
    /// `None` if it did not fill, or while less than an hour is known.
    pub(crate) fn days_left(&self, free: u64) -> Option<f64> {
        let samples = self.samples.lock();
        let span = samples.back()?.at.saturating_sub(samples.front()?.at);
        if span < SPAN_MIN {
            return None;
        }
        let lost = -free_space_slope(samples.iter());
        (lost > 0.0).then(|| free as f64 / lost / Duration::from_secs(86_400).as_secs_f64())
    }
}

/// The slope of the line with the least squares of distances, in bytes a second. Retention frees
/// space in steps, so two samples alone say little.
fn free_space_slope<'a>(
    samples: impl ExactSizeIterator<Item = &'a FreeSpaceSample> + Clone,
) -> f64 {
    let count = samples.len() as f64;
    let time = |sample: &FreeSpaceSample| sample.at.as_secs_f64();
    let mean_time = samples.clone().map(time).sum::<f64>() / count;
    let mean_free = samples.clone().map(|sample| sample.free as f64).sum::<f64>() / count;
    let (mut covariance, mut variance) = (0.0, 0.0);
    for sample in samples {
        let distance = time(sample) - mean_time;
        covariance += distance * (sample.free as f64 - mean_free);
        variance += distance * distance;
    }
    if variance > 0.0 { covariance / variance } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A trend of one sample each 5 minutes.
    fn trend(free: impl IntoIterator<Item = u64>) -> DiskTrend {
        let trend = DiskTrend::default();
        for (nth, free) in free.into_iter().enumerate() {
            trend.record(SAMPLE_INTERVAL * nth as u32, free);
        }
        trend
    }

    fn assert_near(days: Option<f64>, expected: f64) {
        let days = days.expect("it is known");
        assert!((days / expected - 1.0).abs() < 0.05, "{days} days, and not {expected}");
    }

    #[test]
    fn the_days_left_are_not_known_before_an_hour() {
        let filling = |samples: u64| trend((0..samples).map(|nth| 100 * GIB - nth * GIB));
        assert_eq!(DiskTrend::default().days_left(GIB), None);
        assert_eq!(filling(12).days_left(GIB), None);
        // 12 GiB an hour.
        assert_near(filling(13).days_left(288 * GIB), 1.0);
    }

    #[test]
    fn a_disk_that_does_not_fill_has_no_days_left() {
        assert_eq!(trend([GIB; 100]).days_left(GIB), None);
        assert_eq!(trend((0..100).map(|nth| nth * GIB)).days_left(GIB), None);
    }

    #[test]
    fn steps_of_retention_do_not_hide_the_trend() {
        // It loses 2 GiB a sample for 12 samples, and gets 18 of them back.
        let free = |nth: u64| 1000 * GIB - (nth / 12) * 6 * GIB - (nth % 12) * 2 * GIB;
        assert_near(trend((0..288).map(free)).days_left(144 * GIB), 1.0);
    }

    #[test]
    fn a_day_is_remembered() {
        let before = (0..1000).map(|nth| 2000 * GIB - nth * GIB);
        let after = [1000 * GIB; SAMPLES_MAX];
        assert_eq!(trend(before.chain(after)).days_left(1000 * GIB), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_disk_is_sampled_every_five_minutes() {
        let trend = Arc::new(DiskTrend::default());
        let sampling = tokio::spawn(Arc::clone(&trend).run(std::env::temp_dir()));
        while trend.samples.lock().len() < 3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let at: Vec<u64> = trend.samples.lock().iter().map(|sample| sample.at.as_secs()).collect();
        assert_eq!(at, [0, 300, 600]);
        sampling.abort();
    }
}
