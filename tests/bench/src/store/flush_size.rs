//! F33: what the disk itself gives by the size of a flush, beside group commit, which makes large
//! flushes of small appends when enough of them wait.

use anyhow::Result;

use super::finding::{Findings, Goal};
use super::plain::{PlainFile, Through};
use super::rig::{Durability, Rig};
use super::rounds::{Round, Side, Stopwatch, take_turns};
use super::{Bench, size_label};

const FLUSHES: [u64; 4] = [128 << 10, 512 << 10, 2 << 20, 8 << 20];
const APPEND_BYTES: u64 = 16 << 10;
/// The smallest flushes take longest for each byte.
const FLUSH_COUNT_MAX: u64 = 256;
const TAIL_BYTES: usize = 16 << 20;

pub(super) fn run(bench: &Bench) -> Result<Findings> {
    let mut found = Findings::default();
    for flush in FLUSHES {
        let sides = vec![
            Side::new("write(2) + fdatasync", |_| plain(bench, flush, Through::PageCache)),
            Side::new("O_DIRECT + fdatasync", |_| plain(bench, flush, Through::Direct)),
            Side::new("store, one appender", |_| store(bench, flush, flush, 1)),
            Side::new("store, appenders of 16 KiB", |_| {
                // While one half is synced the other gathers.
                store(bench, flush, APPEND_BYTES, 2 * (flush / APPEND_BYTES) as usize)
            }),
        ];
        let measured = take_turns(bench.turns, sides)?;
        found.add(flush as f64, &size_label(flush), &measured);
        let rate = |nth: usize| measured[nth].figure("MB/s");
        if let (Some(file), Some(group)) = (rate(0), rate(3)) {
            let what = format!("{}, group commit / write(2) + fdatasync", size_label(flush));
            found.goals.push(Goal::at_least(0.8, what, group.over(file)));
        }
    }
    Ok(found)
}

fn bytes(bench: &Bench, flush: u64) -> u64 {
    (bench.bytes / flush).clamp(1, FLUSH_COUNT_MAX) * flush
}

fn round(stopwatch: &Stopwatch, bytes: u64, flushes: u64) -> Round {
    let flushes = flushes.max(1) as f64;
    Round::default()
        .moved(stopwatch, bytes)
        .with("flushes/s", flushes / stopwatch.wall().as_secs_f64())
        .with("KiB a flush", bytes as f64 / 1024.0 / flushes)
}

fn plain(bench: &Bench, flush: u64, through: Through) -> Result<Round> {
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

fn store(bench: &Bench, flush: u64, size: u64, in_flight: usize) -> Result<Round> {
    let scratch = bench.scratch("group")?;
    let rig = Rig::open(scratch.path(), TAIL_BYTES)?;
    let bytes = bytes(bench, flush);
    bench.warm_memory(bytes);
    let before = rig.groups().syncs;
    let stopwatch = Stopwatch::start();
    for nth in 0..bytes / size {
        rig.append(1, bench.source.piece(nth, size), Durability::Synced, in_flight);
    }
    rig.drain()?;
    let round = round(&stopwatch, bytes, rig.groups().syncs - before);
    rig.close();
    Ok(round)
}
