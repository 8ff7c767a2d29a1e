//! F17, M5: the cost of opening a long history of small batches: after a crash and after a clean
//! stop, with the files in the page cache and without.

use anyhow::{Context, Result, ensure};

use super::StorageContext;
use super::child::{ChildAction, ChildJob, LOGS, spawn};
use super::experiment::{ExperimentResults, PerformanceGoal, SeriesPoint};
use super::plain_file::drop_page_cache;
use super::value_spread::ValueSpread;

const OPENS: usize = 3;
const FIGURES: [(&str, &str); 5] = [
    ("open ms", "open_ms"),
    ("open CPU ms", "open_cpu_ms"),
    ("ms to answer of every log", "answered_ms"),
    ("RSS MiB", "resident_mib"),
    ("RSS MiB after answering", "answering_mib"),
];

pub(super) fn run(bench: &StorageContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    let largest = bench.entries / LOGS * LOGS;
    for entries in [largest / 100, largest / 10, largest] {
        if entries >= LOGS {
            let is_largest = entries == largest;
            one(bench, entries / LOGS * LOGS, is_largest, &mut found)?;
        }
    }
    Ok(found)
}

fn one(
    bench: &StorageContext,
    entries: u64,
    is_largest: bool,
    found: &mut ExperimentResults,
) -> Result<()> {
    let scratch = bench.scratch("start")?;
    spawn(ChildAction::Write, scratch.path(), ChildJob { entries, ..ChildJob::default() })?;
    for (series, count, is_cold) in [
        ("after a crash", 1, false),
        ("clean", OPENS, false),
        ("clean, files not cached", OPENS, true),
    ] {
        let mut values = vec![Vec::new(); FIGURES.len()];
        for _ in 0..count {
            if is_cold {
                drop_page_cache(scratch.path())?;
            }
            let opened = spawn(ChildAction::Open, scratch.path(), ChildJob::default())?;
            ensure!(opened["entries"] == entries, "entries are missing: {opened}, wrote {entries}");
            for ((_, key), values) in FIGURES.iter().zip(&mut values) {
                values.push(opened[key].as_f64().context("a child's answer lacks a figure")?);
            }
        }
        let figures: Vec<(&'static str, ValueSpread)> = FIGURES
            .iter()
            .zip(values)
            .filter_map(|((name, _), values)| Some((*name, ValueSpread::of(values)?)))
            .collect();
        if is_largest {
            let what = format!("{entries} entries, {series}: ms to open");
            found.goals.push(PerformanceGoal::at_most(1000.0, what, figures[0].1.clone()));
        }
        let label = entries.to_string();
        let at = entries as f64;
        found.points.push(SeriesPoint { series: series.to_owned(), at, label, figures });
    }
    Ok(())
}
