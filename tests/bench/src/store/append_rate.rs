//! F28: how fast bytes are appended, by the size of an append, compared with plain files.
//!
//! Two times are taken: when the last append (or `write(2)`) returns, and when all of it is on
//! stable storage. The second compares like with like: large groups bypass the page cache, and are
//! on the disk when they are acknowledged, while plain writes are only in memory then.

use anyhow::Result;

use super::experiment::{ExperimentResults, PerformanceGoal};
use super::plain_file::{BLOCK_BYTES, PlainFile, WritePath};
use super::rounds::{
    ComparisonSide, RoundFigures, RoundLimits, SideFigures, Stopwatch, run_interleaved,
};
use super::store_driver::{Durability, StoreDriver};
use super::{StorageContext, size_label};

const SIZES: [u64; 7] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SUSTAINED_SIZES: [u64; 1] = [1 << 20];
/// The most bytes on their way to the writer: two groups.
const IN_FLIGHT_BYTES: u64 = 32 << 20;
const IN_FLIGHT_MAX: u64 = 4096;
const TAIL_BYTES: usize = 64 << 20;

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    for size in SIZES {
        let mut sides = vec![
            ComparisonSide::new("write(2)", |_| plain(bench, size, WritePath::PageCache)),
            ComparisonSide::new("store, written", |_| store(bench, size, Durability::Written)),
            ComparisonSide::new("store, synced", |_| store(bench, size, Durability::Synced)),
        ];
        if size.is_multiple_of(BLOCK_BYTES) {
            sides.push(ComparisonSide::new("O_DIRECT", |_| plain(bench, size, WritePath::Direct)));
        }
        let measured = run_interleaved(bench.rounds, sides)?;
        found.add(size as f64, &size_label(size), &measured);
        found.goals.extend(goals(&measured, size));
    }
    Ok(found)
}

/// The same with more bytes than the kernel lets a writer be ahead of the disk: the rate of
/// `write(2)` when it cannot defer the work.
pub(super) fn run_sustained(bench: &StorageContext) -> Result<ExperimentResults> {
    let long = StorageContext { bytes: bench.sustained_bytes, ..bench.clone() };
    let mut found = ExperimentResults::default();
    for size in SUSTAINED_SIZES {
        let sides = vec![
            ComparisonSide::new("write(2)", |_| plain(&long, size, WritePath::PageCache)),
            ComparisonSide::new("store, written", |_| store(&long, size, Durability::Written)),
            ComparisonSide::new("store, synced", |_| store(&long, size, Durability::Synced)),
        ];
        let measured = run_interleaved(RoundLimits { discard: 0, ..bench.rounds }, sides)?;
        found.add(size as f64, &size_label(size), &measured);
        found.goals.extend(goals(&measured, size));
    }
    Ok(found)
}

fn goals(measured: &[SideFigures], size: u64) -> Vec<PerformanceGoal> {
    let [file, written, synced, ..] = measured else { return Vec::new() };
    let (answered, stable) = ("MB/s", "MB/s with the last sync");
    let goal = |what: &str, side: &SideFigures, mine: &str, theirs: &str| {
        let ratio = side.figure(mine)?.over(file.figure(theirs)?);
        Some(PerformanceGoal::at_least(0.8, format!("{}, {what}", size_label(size)), ratio))
    };
    [
        goal("written / write(2)", written, answered, answered),
        goal("written + sync / write(2) + fdatasync", written, stable, stable),
        goal("every append synced / write(2) + fdatasync", synced, stable, stable),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn count(bench: &StorageContext, size: u64) -> u64 {
    (bench.bytes / size).max(1)
}

fn plain(bench: &StorageContext, size: u64, through: WritePath) -> Result<RoundFigures> {
    let scratch = bench.scratch("plain")?;
    let mut file = PlainFile::create(scratch.path(), through)?;
    let count = count(bench, size);
    let memory = bench.pretouch(count * size);
    let stopwatch = Stopwatch::start();
    for nth in 0..count {
        memory.release_for(size);
        file.write(&bench.source.piece(nth, size))?;
    }
    let round = RoundFigures::default().with_rate(&stopwatch, count * size);
    file.sync()?;
    Ok(round.with_synced_rate(&stopwatch, count * size))
}

fn store(bench: &StorageContext, size: u64, how: Durability) -> Result<RoundFigures> {
    let scratch = bench.scratch("store")?;
    append_and_close(bench, StoreDriver::open(scratch.path(), TAIL_BYTES)?, size, how)
}

/// Appends to one log, from one thread, with many appends in flight.
pub(super) fn append_and_close(
    bench: &StorageContext,
    driver: StoreDriver,
    size: u64,
    how: Durability,
) -> Result<RoundFigures> {
    let count = count(bench, size);
    let in_flight = (IN_FLIGHT_BYTES / size).clamp(2, IN_FLIGHT_MAX) as usize;
    let memory = bench.pretouch(count * size);
    let stopwatch = Stopwatch::start();
    for nth in 0..count {
        memory.release_for(size);
        driver.append(1, bench.source.piece(nth, size), how, in_flight);
    }
    driver.drain()?;
    let round = RoundFigures::default().with_rate(&stopwatch, count * size);
    driver.close();
    Ok(round.with_synced_rate(&stopwatch, count * size))
}
