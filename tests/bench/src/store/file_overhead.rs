//! F35: the cost of a file's history in memory and on the disk beyond the bytes written, by the
//! size of a write. It runs in a process of its own, which counts its memory before and after.
//!
//! The paper's files have pages: of 512, 1024 or 4096 bytes, and a write takes whole ones. Ours
//! have none, so there is one line where the paper has three.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testkit::rng::SeededRng;

use super::child::{self, ChildAction, ChildJob};
use super::experiment::{ExperimentResults, PerformanceGoal, SeriesPoint};
use super::file_driver::FileDriver;
use super::plain_file::ByteSource;
use super::value_spread::ValueSpread;
use super::{StorageContext, size_label};
use crate::process::Process;

const SIZES: [u64; 6] = [100, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// As much as in the paper.
const WRITTEN_BYTES: u64 = 128 << 20;
const FILE_BYTES: u64 = 64 << 20;
/// Payloads are not overhead, so hardly any are kept.
const TAIL_BYTES: usize = 1 << 20;
/// The smallest page in the paper: what a write of 100 bytes costs there.
const PAGE_BYTES: f64 = 512.0;
const FIGURES: [(&str, &str); 5] = [
    ("memory overhead %", "memory_percent"),
    ("disk overhead %", "disk_percent"),
    ("index overhead %", "index_percent"),
    ("memory B a write", "memory_bytes"),
    ("disk B a write", "disk_bytes"),
];

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    for (series, is_random) in [("random places", true), ("one after the other", false)] {
        for size in SIZES {
            let scratch = bench.scratch("overhead")?;
            let job =
                ChildJob { bytes: WRITTEN_BYTES.min(bench.bytes), size, is_random, entries: 0 };
            let measured = child::spawn(ChildAction::File, scratch.path(), job)?;
            let mut figures = Vec::new();
            for (name, key) in FIGURES {
                let value = measured[key].as_f64().context("a child's answer lacks a figure")?;
                figures.extend(ValueSpread::of(vec![value]).map(|spread| (name, spread)));
            }
            if size == SIZES[0] {
                let what = format!("{series}: memory of a write of 100 B beyond its bytes, in B");
                let memory = figures[3].1.clone();
                found.goals.push(PerformanceGoal::at_most(PAGE_BYTES - size as f64, what, memory));
            }
            let (at, label) = (size as f64, size_label(size));
            found.points.push(SeriesPoint { series: series.to_owned(), at, label, figures });
        }
    }
    Ok(found)
}

/// Writes to one file in this process, and prints what is left in memory and on the disk.
pub(super) fn measure(directory: &Path, job: ChildJob) -> Result<Value> {
    let source = ByteSource::new();
    let count = (job.bytes / job.size).max(1);
    let mut random = SeededRng::new(1);
    let place = |nth: u64, random: &mut SeededRng| {
        if job.is_random { random.below(FILE_BYTES - job.size) } else { nth * job.size }
    };
    let driver = FileDriver::open(directory, TAIL_BYTES)?;
    // One-time costs of the process are not the cost of a write.
    driver.write((0..1_000).map(|nth| (nth, source.piece(nth, job.size))))?;
    let this = Process::this();
    let (memory, disk) = (this.resident_bytes()?, bytes_of(directory)?);
    let write = |nth| (place(nth, &mut random), source.piece(nth, job.size));
    driver.write((0..count).map(write))?;
    let index = driver.index_bytes();
    let memory = this.resident_bytes()?.saturating_sub(memory) as f64;
    let written = (count * job.size) as f64;
    let disk = (bytes_of(directory)? - disk) as f64 - written;
    driver.close();
    Ok(json!({
        "memory_percent": 100.0 * memory / written, "disk_percent": 100.0 * disk / written,
        "index_percent": 100.0 * index as f64 / written,
        "memory_bytes": memory / count as f64, "disk_bytes": disk / count as f64,
    }))
}

fn bytes_of(directory: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}
