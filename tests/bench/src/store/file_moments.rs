//! F34: random writes of 32 KiB to one file of 64 MiB, which is then read whole at 500 moments. What a
//! read costs must not depend on how much was written since, or before. The moments are asked for in
//! no order: else what the page cache has gathered by then would favour the last of them.
//!
//! The history is sixteen times longer than what is kept in memory of it, so this reads from the disk;
//! the second pass finds in the page cache what fits there.

use std::time::Instant;

use anyhow::Result;
use bytes::Bytes;
use hlc::Cut;

use super::Bench;
use super::file_rig::FileRig;
use super::finding::{Finding, Findings, Goal};
use super::plain::{BLOCK_BYTES, Random, forget_cached};
use super::spread::Spread;

const FILE_BYTES: u64 = 64 << 20;
const WRITE_BYTES: u64 = 32 << 10;
const WRITES: u64 = 500_000;
const MOMENTS: u64 = 500;
/// Moments whose reads make one point.
const A_POINT: usize = 10;
const TAIL_BYTES: usize = 64 << 20;

pub(super) fn run(bench: &Bench) -> Result<Findings> {
    let mut found = Findings::default();
    let scratch = bench.scratch("moments")?;
    // Fewer for a shorter run: in proportion to the history of the other experiments.
    let writes = (WRITES * bench.entries / 10_000_000).clamp(2 * A_POINT as u64, WRITES);
    let a_moment = writes.div_ceil(MOMENTS);
    let file_bytes = if writes == WRITES { FILE_BYTES } else { FILE_BYTES.min(bench.bytes) };
    let rig = FileRig::open(scratch.path(), TAIL_BYTES)?;
    // Every moment finds the file whole.
    let whole = 0..file_bytes / WRITE_BYTES;
    rig.write(whole.map(|nth| (nth * WRITE_BYTES, bench.source.piece(nth, WRITE_BYTES))))?;
    let mut random = Random(1);
    let mut cuts = Vec::new();
    let began = Instant::now();
    for _ in 0..writes / a_moment {
        let mut write = |nth| -> (u64, Bytes) {
            let blocks = (file_bytes - WRITE_BYTES) / BLOCK_BYTES + 1;
            (random.below(blocks) * BLOCK_BYTES, bench.source.piece(nth, WRITE_BYTES))
        };
        let writes: Vec<(u64, Bytes)> = (0..a_moment).map(&mut write).collect();
        cuts.push((Cut::through(rig.write(writes.into_iter())?), cuts.len() as u64 * a_moment));
    }
    let rate = writes as f64 * WRITE_BYTES as f64 / 1e6 / began.elapsed().as_secs_f64();
    let (last, _) = cuts[cuts.len() - 1];
    rig.settle(last)?;
    found.notes.push(format!(
        "{writes} writes of 32 KiB, {a_moment} between moments, at {rate:.0} MB/s; the index holds {} KiB of memory",
        rig.index_bytes() >> 10
    ));
    forget_cached(scratch.path())?;
    for pass in ["first pass", "second pass"] {
        let rates = read(&rig, &cuts)?;
        add(&mut found, pass, &cuts, &rates);
    }
    rig.close();
    Ok(found)
}

/// MB/s of each moment, from the oldest on.
fn read(rig: &FileRig, cuts: &[(Cut, u64)]) -> Result<Vec<f64>> {
    let mut random = Random(2);
    let mut order: Vec<usize> = (0..cuts.len()).collect();
    order.sort_by_cached_key(|_| random.next());
    let mut out = Vec::new();
    let mut rates = vec![0.0; cuts.len()];
    for nth in order {
        let began = Instant::now();
        let bytes = rig.read_at(cuts[nth].0, &mut out)?;
        rates[nth] = bytes as f64 / 1e6 / began.elapsed().as_secs_f64();
    }
    Ok(rates)
}

fn add(found: &mut Findings, pass: &str, cuts: &[(Cut, u64)], rates: &[f64]) {
    for (cuts, rates) in cuts.chunks(A_POINT).zip(rates.chunks(A_POINT)) {
        let Some(rates) = Spread::of(rates.to_vec()) else { continue };
        let (_, at) = cuts[0];
        let figures = vec![("MB/s", rates)];
        let series = pass.to_owned();
        found.findings.push(Finding { series, at: at as f64, label: at.to_string(), figures });
    }
    // Tenths: a single read says little.
    let tenth = rates.len().div_ceil(10);
    let oldest = Spread::of(rates[..tenth].to_vec());
    let newest = Spread::of(rates[rates.len() - tenth..].to_vec());
    if let (Some(oldest), Some(newest)) = (oldest, newest) {
        let (oldest, newest) = (oldest.median(), newest.median());
        let goal = |what: &str, ratio: f64| {
            Some(Goal::at_least(0.9, format!("{pass}, {what}"), Spread::of(vec![ratio])?))
        };
        found.goals.extend(goal("newest tenth / oldest tenth", newest / oldest));
        found.goals.extend(goal("oldest tenth / newest tenth", oldest / newest));
    }
}
