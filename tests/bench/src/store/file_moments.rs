//! F34: random writes of 32 KiB to one file of 64 MiB, which is then read whole at 500 moments. The
//! cost of a read must not depend on how much was written since, or before. The moments are read in
//! random order: otherwise what the page cache has gathered by then would favour the last of them.
//!
//! The history is sixteen times longer than what is kept of it in memory, so this reads from the
//! disk. The second pass finds in the page cache what fits there.
//!
//! `fragments` is the same with writes of 100 bytes at any byte of a file of 4 MiB, which is then
//! read in tens of thousands of pieces.

use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use hlc::Cut;
use testkit::rng::SeededRng;

use super::StorageContext;
use super::experiment::{ExperimentResults, PerformanceGoal, SeriesPoint};
use super::file_driver::FileDriver;
use super::plain_file::{BLOCK_BYTES, drop_page_cache};
use super::value_spread::ValueSpread;

/// Moments whose reads make one point.
const A_POINT: usize = 10;

/// A file, and how it is written.
struct FileShape {
    file_bytes: u64,
    write_bytes: u64,
    /// Writes begin at multiples of this.
    step_bytes: u64,
    writes: u64,
    moments: u64,
    tail_bytes: usize,
}

const BLOCKS: FileShape = FileShape {
    file_bytes: 64 << 20,
    write_bytes: 32 << 10,
    step_bytes: BLOCK_BYTES,
    writes: 500_000,
    moments: 500,
    tail_bytes: 64 << 20,
};

const FRAGMENTS: FileShape = FileShape {
    file_bytes: 4 << 20,
    write_bytes: 100,
    step_bytes: 1,
    writes: 200_000,
    moments: 100,
    tail_bytes: 4 << 20,
};

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    run_shape(bench, &BLOCKS)
}

pub(super) fn run_fragments(bench: &StorageContext) -> Result<ExperimentResults> {
    run_shape(bench, &FRAGMENTS)
}

fn run_shape(bench: &StorageContext, shape: &FileShape) -> Result<ExperimentResults> {
    let FileShape { write_bytes, step_bytes, .. } = *shape;
    let mut found = ExperimentResults::default();
    let scratch = bench.scratch("moments")?;
    // Fewer for a shorter run: in proportion to the history of the other experiments.
    let writes =
        (shape.writes * bench.entries / 10_000_000).clamp(2 * A_POINT as u64, shape.writes);
    let a_moment = writes.div_ceil(shape.moments);
    let is_whole = writes == shape.writes;
    let file_bytes = if is_whole { shape.file_bytes } else { shape.file_bytes.min(bench.bytes) };
    let driver = FileDriver::open(scratch.path(), shape.tail_bytes)?;
    // Every moment finds the file whole.
    let whole = 0..file_bytes / write_bytes;
    driver.write(whole.map(|nth| (nth * write_bytes, bench.source.piece(nth, write_bytes))))?;
    let mut random = SeededRng::new(1);
    let mut cuts = Vec::new();
    let began = Instant::now();
    for _ in 0..writes / a_moment {
        let mut write = |nth| -> (u64, Bytes) {
            let places = (file_bytes - write_bytes) / step_bytes + 1;
            (random.below(places) * step_bytes, bench.source.piece(nth, write_bytes))
        };
        let writes: Vec<(u64, Bytes)> = (0..a_moment).map(&mut write).collect();
        cuts.push((Cut::through(driver.write(writes.into_iter())?), cuts.len() as u64 * a_moment));
    }
    let rate = writes as f64 * write_bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
    let (last, _) = cuts[cuts.len() - 1];
    driver.wait_until_closed(last)?;
    found.notes.push(format!(
        "{writes} writes of {write_bytes} bytes, {a_moment} between moments, at {rate:.0} MB/s; the index holds {} KiB of memory",
        driver.index_bytes() >> 10
    ));
    drop_page_cache(scratch.path())?;
    for pass in ["first pass", "second pass"] {
        let rates = read(&driver, &cuts)?;
        add(&mut found, pass, &cuts, &rates);
    }
    driver.close();
    Ok(found)
}

/// MB/s of each moment, from the oldest on.
fn read(driver: &FileDriver, cuts: &[(Cut, u64)]) -> Result<Vec<f64>> {
    let mut random = SeededRng::new(2);
    let mut order: Vec<usize> = (0..cuts.len()).collect();
    order.sort_by_cached_key(|_| random.next_u64());
    let mut out = Vec::new();
    let mut rates = vec![0.0; cuts.len()];
    for nth in order {
        let began = Instant::now();
        let bytes = driver.read_at(cuts[nth].0, &mut out)?;
        rates[nth] = bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
    }
    Ok(rates)
}

fn add(found: &mut ExperimentResults, pass: &str, cuts: &[(Cut, u64)], rates: &[f64]) {
    for (cuts, rates) in cuts.chunks(A_POINT).zip(rates.chunks(A_POINT)) {
        let Some(rates) = ValueSpread::of(rates.to_vec()) else { continue };
        let (_, at) = cuts[0];
        let figures = vec![("MB/s", rates)];
        let series = pass.to_owned();
        found.points.push(SeriesPoint { series, at: at as f64, label: at.to_string(), figures });
    }
    // Tenths: a single read says little.
    let tenth = rates.len().div_ceil(10);
    let oldest = ValueSpread::of(rates[..tenth].to_vec());
    let newest = ValueSpread::of(rates[rates.len() - tenth..].to_vec());
    if let (Some(oldest), Some(newest)) = (oldest, newest) {
        let (oldest, newest) = (oldest.median(), newest.median());
        let goal = |what: &str, ratio: f64| {
            Some(PerformanceGoal::at_least(
                0.9,
                format!("{pass}, {what}"),
                ValueSpread::of(vec![ratio])?,
            ))
        };
        found.goals.extend(goal("newest tenth / oldest tenth", newest / oldest));
        found.goals.extend(goal("oldest tenth / newest tenth", oldest / newest));
    }
}
