//! F33: the rate of the disk itself by the size of a flush, compared with group commit, which makes
//! large flushes of small appends when enough of them wait.

use anyhow::Result;

use super::experiment::{ExperimentResults, PerformanceGoal};
use super::plain_file::{PlainFile, WritePath};
use super::rounds::{ComparisonSide, RoundFigures, Stopwatch, run_interleaved};
use super::store_driver::{Durability, StoreDriver};
use super::{StorageContext, size_label};

const FLUSHES: [u64; 4] = [128 << 10, 512 << 10, 2 << 20, 8 << 20];
const APPEND_BYTES: u64 = 16 << 10;
/// The smallest flushes take longest for each byte.
const FLUSH_COUNT_MAX: u64 = 256;
const TAIL_BYTES: usize = 16 << 20;

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    for flush in FLUSHES {
        let sides = vec![
            ComparisonSide::new("write(2) + fdatasync", |_| {
                plain(bench, flush, WritePath::PageCache)
            }),
            ComparisonSide::new("O_DIRECT + fdatasync", |_| plain(bench, flush, WritePath::Direct)),
            ComparisonSide::new("store, one appender", |_| store(bench, flush, flush, 1)),
            ComparisonSide::new("store, appenders of 16 KiB", |_| {
                // While one half is synced the other gathers.
                store(bench, flush, APPEND_BYTES, 2 * (flush / APPEND_BYTES) as usize)
            }),
        ];
        let measured = run_interleaved(bench.rounds, sides)?;
        found.add(flush as f64, &size_label(flush), &measured);
        let rate = |nth: usize| measured[nth].figure("MB/s");
        if let (Some(file), Some(group)) = (rate(0), rate(3)) {
            let what = format!("{}, group commit / write(2) + fdatasync", size_label(flush));
            found.goals.push(PerformanceGoal::at_least(0.8, what, group.over(file)));
        }
    }
    Ok(found)
}

fn bytes(bench: &StorageContext, flush: u64) -> u64 {
    (bench.bytes / flush).clamp(1, FLUSH_COUNT_MAX) * flush
}

fn round(stopwatch: &Stopwatch, bytes: u64, flushes: u64) -> RoundFigures {
    let flushes = flushes.max(1) as f64;
    RoundFigures::default()
        .with_rate(stopwatch, bytes)
        .with("flushes/s", flushes / stopwatch.wall().as_secs_f64())
        .with("KiB a flush", bytes as f64 / 1024.0 / flushes)
}

fn plain(bench: &StorageContext, flush: u64, through: WritePath) -> Result<RoundFigures> {
    let scratch = bench.scratch("flush")?;
    let mut file = PlainFile::create(scratch.path(), through)?;
    let bytes = bytes(bench, flush);
    bench.warm_memory(bytes);
    let stopwatch = Stopwatch::start();
    for nth in 0..bytes / flush {
        file.write(&bench.source.piece(nth, flush))?;
        file.sync()?;
    }
    Ok(round(&stopwatch, bytes, bytes / flush))
}

fn store(bench: &StorageContext, flush: u64, size: u64, in_flight: usize) -> Result<RoundFigures> {
    let scratch = bench.scratch("group")?;
    let driver = StoreDriver::open(scratch.path(), TAIL_BYTES)?;
    let bytes = bytes(bench, flush);
    bench.warm_memory(bytes);
    let before = driver.groups().syncs;
    let stopwatch = Stopwatch::start();
    for nth in 0..bytes / size {
        driver.append(1, bench.source.piece(nth, size), Durability::Synced, in_flight);
    }
    driver.drain()?;
    let round = round(&stopwatch, bytes, driver.groups().syncs - before);
    driver.close();
    Ok(round)
}
