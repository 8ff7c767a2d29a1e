//! F29: all logs are read at a cut that was not read before, and again at the same cut. From memory
//! this is compared with `memcpy`. From the disk, in the journal's order (*unsorted*) and sorted by
//! log (*sorted*), it is compared with O_DIRECT reads of the same files.
//!
//! A "read" finds where the cut lies in each log, reads up to there, and copies the bytes out.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Result;
use bytes::Bytes;
use hlc::Cut;

use super::experiment::{ExperimentResults, PerformanceGoal};
use super::plain_file::{BLOCK_BYTES, drop_page_cache};
use super::rounds::{ComparisonSide, RoundFigures, SideFigures, Stopwatch, run_interleaved};
use super::store_driver::{Durability, PayloadReader, StoreDriver};
use super::{StorageContext, size_label};

const SIZES: [u64; 4] = [1 << 10, 16 << 10, 64 << 10, 256 << 10];
const LOGS: u64 = 100;
/// The bytes that a reader of memory reads at once, and that `memcpy` copies.
const MEMORY_READ_BYTES: usize = 64 << 10;
/// The bytes that a consumer fetches at once by default.
const DISK_READ_BYTES: usize = 1 << 20;
/// Entries of one log are apart in the journal until they are sorted. Small ones are far apart for
/// their size, so fewer of them are read.
const DISK_ENTRIES_MAX: u64 = 64 << 10;
const SMALL_TAIL_BYTES: usize = 1 << 20;

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    for size in SIZES {
        let memory = from_memory(bench, size)?;
        let unfiled = from_disk(bench, size, "unsorted")?;
        let filed = from_disk(bench, size, "sorted")?;
        for (name, measured) in [("memory", memory), ("unsorted", unfiled), ("sorted", filed)] {
            found.goals.extend(goals(name, &measured, size));
            found.add(size as f64, &size_label(size), &measured);
        }
    }
    Ok(found)
}

/// For memory the CPU time counts too: on a busy machine it is more reliable.
fn goals(name: &str, sides: &[SideFigures], size: u64) -> Vec<PerformanceGoal> {
    let all = |figure| [0, 1, 2].map(|nth| sides[nth].figure(figure));
    let [Some(first), Some(second), Some(beside)] = all("MB/s") else { return Vec::new() };
    let mut goals = Vec::new();
    let mut goal = |is_asked: bool, bound, what: &str, ratio| {
        if is_asked {
            let what = format!("{}, {name}, {what}", size_label(size));
            goals.push(PerformanceGoal::at_least(bound, what, ratio));
        }
    };
    let (is_large, is_copied) = (size > 16 << 10, name == "memory" && size >= 64 << 10);
    goal(is_large, 0.96, "first pass / second", first.over(second));
    goal(is_copied, 0.6, "first pass / memcpy", first.over(beside));
    if let [Some(first), Some(second), Some(beside)] = all("CPU s/GB") {
        goal(is_copied, 0.96, "first pass / second, by CPU", second.over(first));
        goal(is_copied, 0.6, "first pass / memcpy, by CPU", beside.over(first));
    }
    goals
}

/// The appended entries, and cuts of them: none admits less than four fifths.
struct CutHistory {
    cuts: Vec<Cut>,
}

impl CutHistory {
    /// Every payload has its own memory, as those from the network.
    fn write(
        bench: &StorageContext,
        driver: &StoreDriver,
        size: u64,
        count: u64,
    ) -> Result<CutHistory> {
        let mut cuts = Vec::new();
        let step = (count / 100).max(1);
        for nth in 0..count {
            let payload = Bytes::copy_from_slice(&bench.source.piece(nth, size));
            driver.append(nth % LOGS, payload, Durability::Written, 1_000);
            if nth >= count * 4 / 5 && nth % step == 0 {
                driver.drain()?;
                cuts.push(Cut::through(driver.newest()));
            }
        }
        driver.drain()?;
        cuts.push(Cut::through(driver.newest()));
        Ok(CutHistory { cuts })
    }

    /// A different one for every round.
    fn cut(&self, round: usize) -> Cut {
        self.cuts[round % self.cuts.len()]
    }
}

fn pass(driver: &StoreDriver, cut: Cut, request_bytes: usize) -> Result<RoundFigures> {
    let mut reader = PayloadReader::default();
    let mut bytes = 0;
    let stopwatch = Stopwatch::start();
    for log in 0..LOGS {
        bytes += driver.read_cut(log, cut, request_bytes, &mut reader)?;
    }
    Ok(RoundFigures::default().with_rate(&stopwatch, bytes))
}

fn from_memory(bench: &StorageContext, size: u64) -> Result<Vec<SideFigures>> {
    let scratch = bench.scratch("memory")?;
    let count = (bench.bytes / size).max(LOGS);
    let overhead = 1 << 10;
    let driver = StoreDriver::open(scratch.path(), ((size + overhead) * count) as usize)?;
    let history = CutHistory::write(bench, &driver, size, count)?;
    // As much memory as the entries take, so that caches help neither.
    let plain: Vec<u8> =
        bench.source.bytes().iter().copied().cycle().take((size * count) as usize).collect();
    let sides = vec![
        ComparisonSide::new("memory, first pass", |nth| {
            pass(&driver, history.cut(nth), MEMORY_READ_BYTES)
        }),
        ComparisonSide::new("memory, second pass", |nth| {
            pass(&driver, history.cut(nth), MEMORY_READ_BYTES)
        }),
        ComparisonSide::new("memcpy", |_| Ok(copy(&plain))),
    ];
    let measured = run_interleaved(bench.rounds, sides)?;
    driver.close();
    Ok(measured)
}

fn copy(bytes: &[u8]) -> RoundFigures {
    let mut out = vec![0; MEMORY_READ_BYTES];
    let stopwatch = Stopwatch::start();
    for piece in bytes.chunks(MEMORY_READ_BYTES) {
        out[..piece.len()].copy_from_slice(piece);
        std::hint::black_box(&out);
    }
    RoundFigures::default().with_rate(&stopwatch, bytes.len() as u64)
}

fn from_disk(bench: &StorageContext, size: u64, name: &str) -> Result<Vec<SideFigures>> {
    let scratch = bench.scratch(name)?;
    let count = (bench.bytes / size).clamp(LOGS, DISK_ENTRIES_MAX);
    let driver = StoreDriver::open_unsorted(scratch.path(), SMALL_TAIL_BYTES)?;
    let history = CutHistory::write(bench, &driver, size, count)?;
    if name == "sorted" {
        driver.sort_segments()?;
    }
    driver.close();
    // Every first pass is that of a store that was just opened; the second follows it. The page
    // cache helps neither, so the difference is what the store itself has cached.
    let opened = std::cell::RefCell::new(None);
    let sides = vec![
        ComparisonSide::new(&format!("{name}, first pass"), |nth| {
            drop(opened.take());
            let driver = StoreDriver::open_unsorted(scratch.path(), SMALL_TAIL_BYTES)?;
            drop_page_cache(scratch.path())?;
            let round = pass(&driver, history.cut(nth), DISK_READ_BYTES)?;
            opened.replace(Some(driver));
            Ok(round)
        }),
        ComparisonSide::new(&format!("{name}, second pass"), |nth| {
            let opened = opened.borrow();
            let driver = opened.as_ref().expect("the first pass opened a store");
            drop_page_cache(scratch.path())?;
            pass(driver, history.cut(nth), DISK_READ_BYTES)
        }),
        ComparisonSide::new(&format!("{name}, O_DIRECT reads of its files"), |_| {
            read_files(scratch.path())
        }),
    ];
    run_interleaved(bench.rounds, sides)
}

/// The store's files from start to end, bypassing the page cache.
fn read_files(directory: &Path) -> Result<RoundFigures> {
    let block = BLOCK_BYTES as usize;
    let mut memory = vec![0; DISK_READ_BYTES + block];
    let from = memory.as_ptr().align_offset(block);
    let buffer = &mut memory[from..from + DISK_READ_BYTES];
    let mut bytes = 0;
    let stopwatch = Stopwatch::start();
    for entry in std::fs::read_dir(directory)? {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let file: File =
            std::fs::OpenOptions::new().read(true).custom_flags(direct).open(entry?.path())?;
        let mut at = 0;
        loop {
            let read = file.read_at(buffer, at)?;
            at += read as u64;
            if read < buffer.len() {
                break;
            }
        }
        bytes += at;
    }
    Ok(RoundFigures::default().with_rate(&stopwatch, bytes))
}
