//! The time to find a moment in one long history, by stamp and by user time: with an index cache
//! that holds all of it, and with the one that a server has by default.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use engine::Topic;
use hlc::{Cut, Hlc};
use testkit::rng::SeededRng;

use super::TimeContext;
use super::engine_driver::EngineDriver;
use crate::histogram::Histogram;
use crate::store::{
    experiment::{ExperimentResults, PerformanceGoal},
    rounds::{ComparisonSide, RoundFigures, RoundLimits, run_interleaved},
};

const LENGTHS: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const SEEKS: u64 = 20_000;
const TURNS: RoundLimits = RoundLimits { discard: 1, least: 5, time: Duration::ZERO };
const CACHE_DEFAULT: usize = 32 << 20;
const CACHE_AMPLE: usize = 2 << 30;
/// By stamp, to a batch by user time, and to a record in it.
const SIDES: usize = 3;
const REQUEST: u64 = 1_000;
const GOAL_NS: f64 = 10_000.0;

pub(crate) fn run(bench: &TimeContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    let scratch = bench.scratch("seek")?;
    let driver = EngineDriver::open(scratch.path(), CACHE_DEFAULT)?;
    let lengths: Vec<u64> = LENGTHS.into_iter().filter(|length| *length <= bench.entries).collect();
    for length in &lengths {
        let topic = driver.create(&name(*length), 1)?;
        for from in (0..*length).step_by(REQUEST as usize) {
            driver.append(&topic, (from..from + REQUEST).map(|time| (0, time)))?;
        }
    }
    driver.close();
    for (cache, what) in [(CACHE_AMPLE, "indexes in memory"), (CACHE_DEFAULT, "32 MiB of indexes")]
    {
        let driver = EngineDriver::open(scratch.path(), cache)?;
        measure(&mut found, what, &driver, &lengths)?;
        driver.close();
    }
    Ok(found)
}

fn name(length: u64) -> String {
    format!("history-{length}")
}

fn measure(
    found: &mut ExperimentResults,
    what: &str,
    driver: &EngineDriver,
    lengths: &[u64],
) -> Result<()> {
    let mut sides = Vec::new();
    for length in lengths {
        let topic = driver.topic(&name(*length))?;
        let (first, last) = driver.span(&topic)?;
        let (of_batch, of_record) = (Arc::clone(&topic), Arc::clone(&topic));
        sides.push(ComparisonSide::new(&format!("by stamp, {what}"), move |nth| {
            by_stamp(driver, &topic, first, last, nth as u64)
        }));
        sides.push(ComparisonSide::new(&format!("by user time, the batch, {what}"), move |nth| {
            seeks(nth as u64, |random| {
                driver.batch_by_user_time(&of_batch, random.below((*length).max(1)))
            })
        }));
        sides.push(ComparisonSide::new(&format!("by user time, the record, {what}"), move |nth| {
            seeks(nth as u64, |random| {
                driver.by_user_time(&of_record, random.below((*length).max(1)))
            })
        }));
    }
    let measured = run_interleaved(TURNS, sides)?;
    for (length, measured) in lengths.iter().zip(measured.chunks(SIDES)) {
        found.add(*length as f64, &length.to_string(), measured);
    }
    if what != "indexes in memory" {
        return Ok(());
    }
    for side in measured.iter().rev().take(SIDES) {
        if let Some(spread) = side.figure("p50 ns") {
            let what = format!("{}, the longest history, ns", side.name);
            found.goals.push(PerformanceGoal::at_most(GOAL_NS, what, spread.clone()));
        }
    }
    Ok(())
}

fn by_stamp(
    driver: &EngineDriver,
    topic: &Topic,
    first: Hlc,
    last: Hlc,
    seed: u64,
) -> Result<RoundFigures> {
    seeks(seed, |random| {
        let bits = first.bits() + random.below((last.bits() - first.bits()).max(1));
        driver.by_stamp(topic, Cut::below(Hlc::from_bits(bits)))
    })
}

fn seeks(seed: u64, mut seek: impl FnMut(&mut SeededRng) -> Result<u64>) -> Result<RoundFigures> {
    let mut random = SeededRng::new(seed);
    let mut histogram = Histogram::new();
    let began = Instant::now();
    for _ in 0..SEEKS {
        let before = Instant::now();
        std::hint::black_box(seek(&mut random)?);
        histogram.record(before.elapsed());
    }
    let mean = began.elapsed().as_nanos() as f64 / SEEKS as f64;
    let nanos = |percent| histogram.percentile(percent).as_nanos() as f64;
    let round = RoundFigures::default().with("mean ns", mean).with("p50 ns", nanos(50.0));
    Ok(round.with("p99 ns", nanos(99.0)))
}
