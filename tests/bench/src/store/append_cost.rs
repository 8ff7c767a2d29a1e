//! F14: the cost of an append, by the number of entries in its log. It must not grow.
//!
//! Each length has as many logs as it takes to append the same number of entries everywhere while
//! none grows by more than a tenth.

use std::cell::Cell;

use anyhow::Result;

use super::StorageContext;
use super::experiment::{ExperimentResults, PerformanceGoal};
use super::rounds::{ComparisonSide, RoundFigures, RoundLimits, Stopwatch, run_interleaved};
use super::store_driver::{Durability, StoreDriver};

const LENGTHS: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
const APPEND_BYTES: u64 = 16;
/// The number of appends in a request.
const REQUEST: u64 = 100;
const ROUNDS: u64 = 10;
const IN_FLIGHT: usize = 2_000;
const TAIL_BYTES: usize = 16 << 20;

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    let scratch = bench.scratch("length")?;
    let driver = StoreDriver::open(scratch.path(), TAIL_BYTES)?;
    let lengths: Vec<u64> =
        LENGTHS.into_iter().filter(|length| *length <= bench.entries.max(LENGTHS[0])).collect();
    let per_round = (bench.entries / 200).clamp(REQUEST, 20_000);
    let sets: Vec<SameLengthLogs> =
        lengths.iter().map(|length| SameLengthLogs::new(*length, per_round)).collect();
    for set in &sets {
        set.fill(bench, &driver)?;
    }
    let turns =
        RoundLimits { discard: 1, least: ROUNDS as usize - 1, time: std::time::Duration::ZERO };
    let sides = sets
        .iter()
        .map(|set| ComparisonSide::new("append", |_| set.append(bench, &driver, per_round)))
        .collect();
    let measured = run_interleaved(turns, sides)?;
    for (set, measured) in sets.iter().zip(&measured) {
        found.add(set.length as f64, &set.length.to_string(), std::slice::from_ref(measured));
    }
    let cost = |nth: usize| measured.get(nth).and_then(|it| it.figure("CPU ns an append"));
    if let (Some(first), Some(last)) = (cost(0), cost(measured.len() - 1)) {
        let what = "CPU of an append to the longest log / to the shortest".to_owned();
        found.goals.push(PerformanceGoal::at_most(1.1, what, last.over(first)));
    }
    driver.close();
    Ok(found)
}

struct SameLengthLogs {
    length: u64,
    logs: u64,
    /// The number of requests so far: each goes to the next log.
    requests: Cell<u64>,
}

impl SameLengthLogs {
    fn new(length: u64, per_round: u64) -> SameLengthLogs {
        let logs = (per_round * ROUNDS).div_ceil(length / 10).max(1);
        SameLengthLogs { length, logs, requests: Cell::new(0) }
    }

    fn log(&self, nth: u64) -> u64 {
        self.length * 10_000 + nth % self.logs
    }

    fn fill(&self, bench: &StorageContext, driver: &StoreDriver) -> Result<()> {
        for nth in 0..self.logs {
            for request in 0..self.length / 1_000 {
                let piece = |at| (self.log(nth), bench.source.piece(request + at, APPEND_BYTES));
                driver.append_all((0..1_000).map(piece), Durability::Written, 4_000);
            }
        }
        driver.drain()
    }

    fn append(
        &self,
        bench: &StorageContext,
        driver: &StoreDriver,
        count: u64,
    ) -> Result<RoundFigures> {
        let requests = count / REQUEST;
        let stopwatch = Stopwatch::start();
        for _ in 0..requests {
            let request = self.requests.replace(self.requests.get() + 1);
            let piece = |at| (self.log(request), bench.source.piece(request + at, APPEND_BYTES));
            driver.append_all((0..REQUEST).map(piece), Durability::Written, IN_FLIGHT);
        }
        driver.drain()?;
        let each = |time: std::time::Duration| time.as_nanos() as f64 / (requests * REQUEST) as f64;
        let (wall, cpu) = (stopwatch.wall(), stopwatch.cpu());
        Ok(RoundFigures::default()
            .with("CPU ns an append", each(cpu))
            .with("ns an append", each(wall)))
    }
}
