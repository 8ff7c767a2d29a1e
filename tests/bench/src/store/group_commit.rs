//! Durable group commit with 1,000 logs compared with one: a group is one write and one sync,
//! whatever logs it contains.

use anyhow::Result;

use super::experiment::{ExperimentResults, PerformanceGoal};
use super::rounds::{ComparisonSide, RoundFigures, Stopwatch, run_interleaved};
use super::store_driver::{Durability, StoreDriver};
use super::{StorageContext, size_label};

const SIZES: [u64; 2] = [1 << 10, 16 << 10];
const LOGS: u64 = 1000;
const IN_FLIGHT: usize = 1000;
const TAIL_BYTES: usize = 64 << 20;

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    for size in SIZES {
        let sides = vec![
            ComparisonSide::new("1 log", |_| append(bench, size, 1)),
            ComparisonSide::new("1000 logs", |_| append(bench, size, LOGS)),
        ];
        let measured = run_interleaved(bench.rounds, sides)?;
        found.add(size as f64, &size_label(size), &measured);
        if let [Some(one), Some(many)] = [0, 1].map(|nth| measured[nth].figure("appends/s")) {
            let what = format!("{}, 1000 logs / 1 log", size_label(size));
            found.goals.push(PerformanceGoal::at_least(0.8, what, many.over(one)));
        }
    }
    Ok(found)
}

fn append(bench: &StorageContext, size: u64, logs: u64) -> Result<RoundFigures> {
    let scratch = bench.scratch("logs")?;
    let driver = StoreDriver::open(scratch.path(), TAIL_BYTES)?;
    let bytes = bench.bytes / 2;
    let count = (bytes / size).max(1);
    let append = |nth: u64| {
        driver.append(nth % logs, bench.source.piece(nth, size), Durability::Synced, IN_FLIGHT);
    };
    // Logs are created at their first append, which is not measured here.
    (0..logs).for_each(append);
    driver.drain()?;
    bench.warm_memory(bytes);
    let before = driver.groups();
    let stopwatch = Stopwatch::start();
    (0..count).for_each(append);
    driver.drain()?;
    let groups = (driver.groups().groups - before.groups).max(1);
    let wall = stopwatch.wall().as_secs_f64();
    let round = RoundFigures::default()
        .with("appends/s", count as f64 / wall)
        .with_rate(&stopwatch, count * size)
        .with("groups/s", groups as f64 / wall)
        .with("appends a group", count as f64 / groups as f64);
    driver.close();
    Ok(round)
}
