//! M5: the cost of very many logs in the history, as general files create them: each is written to
//! once. A start, memory, and the index of a segment must not grow with how many there ever were.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use hlc::Cut;
use serde_json::{Value, json};

use super::StorageContext;
use super::child::{ChildAction, ChildJob, spawn};
use super::experiment::{ExperimentResults, PerformanceGoal, SeriesPoint};
use super::plain_file::ByteSource;
use super::rounds::Stopwatch;
use super::store_driver::{Durability, StoreDriver};
use super::value_spread::ValueSpread;
use crate::process::Process;
use crate::report::{mebibytes, millis};

const ENTRY_BYTES: u64 = 128;
const TAIL_BYTES: usize = 16 << 20;
const IN_FLIGHT: usize = 8_000;
const REQUEST: u64 = 1_000;
/// The number of logs that are looked up.
const LOOKUPS: u64 = 2_000;
const OPENS: usize = 3;
const FIGURES: [(&str, &str); 5] = [
    ("write CPU us a log", "write_us"),
    ("index bytes a log", "index_bytes"),
    ("open ms", "open_ms"),
    ("RSS MiB", "resident_mib"),
    ("us to find a log", "found_us"),
];

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    let largest = bench.entries / 10 / REQUEST * REQUEST;
    let mut index_bytes = Vec::new();
    for logs in [largest / 100, largest / 10, largest] {
        let logs = logs / REQUEST * REQUEST;
        if logs == 0 {
            continue;
        }
        let figures = one(bench, logs)?;
        index_bytes.push(figures[1].1.median());
        if logs == largest {
            let what = |figure: &str| format!("{logs} logs: {figure}");
            found.goals.push(PerformanceGoal::at_most(
                1000.0,
                what("ms to open"),
                figures[2].1.clone(),
            ));
            found.goals.push(PerformanceGoal::at_most(
                64.0,
                what("MiB resident"),
                figures[3].1.clone(),
            ));
            let growth =
                index_bytes.last().zip(index_bytes.first()).map(|(last, first)| last / first);
            let growth = growth.and_then(|growth| ValueSpread::of(vec![growth]));
            let what = what("index bytes a log / with a hundredth of them");
            found.goals.extend(growth.map(|growth| PerformanceGoal::at_most(1.25, what, growth)));
        }
        found.points.push(SeriesPoint {
            series: "each written to once".to_owned(),
            at: logs as f64,
            label: logs.to_string(),
            figures,
        });
    }
    Ok(found)
}

fn one(bench: &StorageContext, logs: u64) -> Result<Vec<(&'static str, ValueSpread)>> {
    let scratch = bench.scratch("logs")?;
    let job = ChildJob { entries: logs, ..ChildJob::default() };
    let wrote = spawn(ChildAction::Scatter, scratch.path(), job)?;
    let mut said = vec![wrote];
    for _ in 0..OPENS {
        said.push(spawn(ChildAction::Gather, scratch.path(), job)?);
    }
    let figures = FIGURES.iter().map(|(name, key)| {
        let values = said.iter().filter_map(|said| said[*key].as_f64()).collect();
        let spread = ValueSpread::of(values).context("a child's answer lacks a figure")?;
        Ok((*name, spread))
    });
    figures.collect()
}

/// Writes one entry to each of `logs` logs.
pub(super) fn scatter(directory: &Path, logs: u64) -> Result<Value> {
    let source = ByteSource::new();
    let driver = StoreDriver::open(directory, TAIL_BYTES)?;
    let stopwatch = Stopwatch::start();
    for request in 0..logs / REQUEST {
        let piece = |nth| (request * REQUEST + nth, source.piece(request + nth, ENTRY_BYTES));
        driver.append_all((0..REQUEST).map(piece), Durability::Written, IN_FLIGHT);
    }
    driver.drain()?;
    driver.sort_segments()?;
    let cpu = stopwatch.cpu();
    driver.close();
    let mut index_bytes = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.ends_with(".index") || name.ends_with(".latest") {
            index_bytes += entry.metadata()?.len();
        }
    }
    Ok(json!({
        "write_us": millis(cpu) * 1e3 / logs as f64,
        "index_bytes": index_bytes as f64 / logs as f64,
    }))
}

/// Opens them, and looks some up.
pub(super) fn gather(directory: &Path, logs: u64) -> Result<Value> {
    let this = Process::this();
    let before = this.resident_bytes()?;
    let stopwatch = Stopwatch::start();
    let driver = StoreDriver::open(directory, TAIL_BYTES)?;
    let opened = stopwatch.wall();
    let stopwatch = Stopwatch::start();
    let mut entries = 0;
    for nth in 0..LOOKUPS {
        // Anywhere, and never the same twice in a row.
        entries += driver.offset_at(nth * 7_919 % logs, Cut::ALL)?;
    }
    let found = stopwatch.wall();
    ensure!(entries == LOOKUPS, "logs are missing: found {entries} of {LOOKUPS}");
    let resident = this.resident_bytes()?;
    driver.close();
    Ok(json!({
        "open_ms": millis(opened),
        "found_us": millis(found) * 1e3 / LOOKUPS as f64,
        "resident_mib": mebibytes(resident.saturating_sub(before)),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::bench_directory::BenchDirectory;

    #[test]
    fn what_was_scattered_is_gathered() {
        let scratch = BenchDirectory::new(&std::env::temp_dir(), "logs").unwrap();
        let wrote = scatter(scratch.path(), 2 * REQUEST).unwrap();
        assert!(wrote["index_bytes"].as_f64().unwrap() >= 104.0 + 136.0, "{wrote}");
        let found = gather(scratch.path(), 2 * REQUEST).unwrap();
        assert!(found["found_us"].as_f64().unwrap() > 0.0, "{found}");
        gather(scratch.path(), 3 * REQUEST).unwrap_err();
    }
}
