//! The time to find a moment in a log, by the log's length: in the incarnation that wrote it, and
//! after a restart.

use std::time::{Duration, Instant};

use anyhow::Result;
use hlc::{Cut, Hlc};
use testkit::rng::SeededRng;

use super::StorageContext;
use super::experiment::ExperimentResults;
use super::rounds::{ComparisonSide, RoundFigures, RoundLimits, run_interleaved};
use super::store_driver::{Durability, StoreDriver};
use crate::histogram::Histogram;

const LENGTHS: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const SEEKS: u64 = 20_000;
const TURNS: RoundLimits = RoundLimits { discard: 1, least: 5, time: Duration::ZERO };
const TAIL_BYTES: usize = 16 << 20;

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    let scratch = bench.scratch("seek")?;
    let driver = StoreDriver::open(scratch.path(), TAIL_BYTES)?;
    let lengths: Vec<u64> = LENGTHS.into_iter().filter(|length| *length <= bench.entries).collect();
    for length in &lengths {
        for request in 0..length / 1_000 {
            let piece = |nth| (*length, bench.source.piece(request + nth, 16));
            driver.append_all((0..1_000).map(piece), Durability::Written, 8_000);
        }
    }
    driver.drain()?;
    measure(&mut found, "as written", &driver, &lengths)?;
    driver.close();
    let driver = StoreDriver::open(scratch.path(), TAIL_BYTES)?;
    measure(&mut found, "after a restart", &driver, &lengths)?;
    driver.close();
    Ok(found)
}

fn measure(
    found: &mut ExperimentResults,
    series: &str,
    driver: &StoreDriver,
    lengths: &[u64],
) -> Result<()> {
    let mut sides = Vec::new();
    for length in lengths {
        let (first, last) = driver.span(*length)?;
        sides.push(ComparisonSide::new(series, move |nth| {
            seek(driver, *length, first, last, nth as u64)
        }));
    }
    let measured = run_interleaved(TURNS, sides)?;
    for (length, measured) in lengths.iter().zip(measured) {
        found.add(*length as f64, &length.to_string(), &[measured]);
    }
    Ok(())
}

/// Random moments between the first entry and the last.
fn seek(driver: &StoreDriver, log: u64, first: Hlc, last: Hlc, seed: u64) -> Result<RoundFigures> {
    let mut random = SeededRng::new(seed);
    let mut histogram = Histogram::new();
    let began = Instant::now();
    for _ in 0..SEEKS {
        let bits = first.bits() + random.below((last.bits() - first.bits()).max(1));
        let cut = Cut::below(Hlc::from_bits(bits));
        let before = Instant::now();
        std::hint::black_box(driver.offset_at(log, cut)?);
        histogram.record(before.elapsed());
    }
    let mean = began.elapsed().as_nanos() as f64 / SEEKS as f64;
    let nanos = |percent| histogram.percentile(percent).as_nanos() as f64;
    let round = RoundFigures::default().with("mean ns", mean).with("p50 ns", nanos(50.0));
    Ok(round.with("p99 ns", nanos(99.0)))
}
