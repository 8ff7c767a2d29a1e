//! F28: how fast bytes are appended, by the size of an append, beside plain files.
//!
//! Two times are taken: when the last append (or `write(2)`) is answered, and when all of it is on
//! stable storage. The second compares like with like: large groups go around the page cache, and
//! are on the disk when they are answered, while plain writes are in memory then.

use anyhow::Result;

use super::finding::{Findings, Goal};
use super::plain::{BLOCK_BYTES, PlainFile, Through};
use super::rig::{Durability, Rig};
use super::rounds::{Measured, Round, Side, Stopwatch, Turns, take_turns};
use super::{Bench, size_label};

const SIZES: [u64; 7] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SUSTAINED_SIZES: [u64; 1] = [1 << 20];
/// What may be on its way to the writer: two groups.
const IN_FLIGHT_BYTES: u64 = 32 << 20;
const IN_FLIGHT_MAX: u64 = 4096;
const TAIL_BYTES: usize = 64 << 20;

pub(super) fn run(bench: &Bench) -> Result<Findings> {
    let mut found = Findings::default();
    for size in SIZES {
        let mut sides = vec![
            Side::new("write(2)", |_| plain(bench, size, Through::PageCache)),
            Side::new("store, written", |_| store(bench, size, Durability::Written)),
            Side::new("store, synced", |_| store(bench, size, Durability::Synced)),
        ];
        if size.is_multiple_of(BLOCK_BYTES) {
            sides.push(Side::new("O_DIRECT", |_| plain(bench, size, Through::Direct)));
        }
        let measured = take_turns(bench.turns, sides)?;
        found.add(size as f64, &size_label(size), &measured);
        found.goals.extend(goals(&measured, size));
    }
    Ok(found)
}

/// The same with more bytes than the kernel lets a writer be ahead of the disk: what `write(2)` gives
/// when it cannot leave the work for later.
pub(super) fn run_sustained(bench: &Bench) -> Result<Findings> {
    let long = Bench { bytes: bench.sustained_bytes, ..bench.clone() };
    let mut found = Findings::default();
    for size in SUSTAINED_SIZES {
        let sides = vec![
            Side::new("write(2)", |_| plain(&long, size, Through::PageCache)),
            Side::new("store, written", |_| store(&long, size, Durability::Written)),
            Side::new("store, synced", |_| store(&long, size, Durability::Synced)),
        ];
        let measured = take_turns(Turns { discard: 0, ..bench.turns }, sides)?;
        found.add(size as f64, &size_label(size), &measured);
        found.goals.extend(goals(&measured, size));
    }
    Ok(found)
}

fn goals(measured: &[Measured], size: u64) -> Vec<Goal> {
    let [file, written, synced, ..] = measured else { return Vec::new() };
    let (answered, stable) = ("MB/s", "MB/s with the last sync");
    let goal = |what: &str, side: &Measured, mine: &str, theirs: &str| {
        let ratio = side.figure(mine)?.over(file.figure(theirs)?);
        Some(Goal::at_least(0.8, format!("{}, {what}", size_label(size)), ratio))
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

fn count(bench: &Bench, size: u64) -> u64 {
    (bench.bytes / size).max(1)
}

fn plain(bench: &Bench, size: u64, through: Through) -> Result<Round> {
    let scratch = bench.scratch("plain")?;
    let mut file = PlainFile::create(scratch.path(), through)?;
    let count = count(bench, size);
    let memory = bench.memory(count * size);
    let stopwatch = Stopwatch::start();
    for nth in 0..count {
        memory.make_room(size);
        file.write(&bench.source.piece(nth, size))?;
    }
    let round = Round::default().moved(&stopwatch, count * size);
    file.sync()?;
    Ok(round.synced(&stopwatch, count * size))
}

fn store(bench: &Bench, size: u64, how: Durability) -> Result<Round> {
    let scratch = bench.scratch("store")?;
    append_and_close(bench, Rig::open(scratch.path(), TAIL_BYTES)?, size, how)
}

/// Appends to one log, from one thread, with many on their way.
pub(super) fn append_and_close(
    bench: &Bench,
    rig: Rig,
    size: u64,
    how: Durability,
) -> Result<Round> {
    let count = count(bench, size);
    let in_flight = (IN_FLIGHT_BYTES / size).clamp(2, IN_FLIGHT_MAX) as usize;
    let memory = bench.memory(count * size);
    let stopwatch = Stopwatch::start();
    for nth in 0..count {
        memory.make_room(size);
        rig.append(1, bench.source.piece(nth, size), how, in_flight);
    }
    rig.drain()?;
    let round = Round::default().moved(&stopwatch, count * size);
    rig.close();
    Ok(round.synced(&stopwatch, count * size))
}
