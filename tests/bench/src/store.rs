//! `freezeframe-bench storage`: the storage crate compared with plain files on the same disk, in
//! one run.
//!
//! The experiments are those of the paper on FFFS (Song et al., "The Freeze-Frame File System",
//! SoCC 2016), by the rows that name them (`f28` is its figure 7a), and a few of our own. Compared
//! sides are measured in turn ([`rounds`]), and each point is the median of its rounds.

mod append_cost;
mod append_rate;
pub(crate) mod bench_directory;
mod child;
mod cut_read;
pub(crate) mod experiment;
mod file_driver;
mod file_moments;
mod file_overhead;
mod flush_size;
mod group_commit;
mod many_logs;
mod null_disk;
mod persistence;
pub(crate) mod plain_file;
pub(crate) mod results;
pub(crate) mod rounds;
mod seek;
mod start;
mod store_driver;
pub(crate) mod value_spread;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use self::bench_directory::BenchDirectory;
pub(crate) use self::child::{ChildWork, run as run_child};
use self::experiment::ExperimentResults;
use self::plain_file::ByteSource;
use self::rounds::RoundLimits;
use crate::pretouch::PretouchedMemory;
use crate::report::ReportFormat;
use crate::size::ByteSize;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StorageWork {
    /// The experiment
    #[arg(value_enum)]
    experiment: StorageChoice,

    /// The directory in which files are written and removed again: the disk to measure
    #[arg(long, default_value = ".")]
    dir: PathBuf,

    /// Rounds of one comparison go on for so long; at least three are made
    #[arg(long, default_value_t = 10)]
    seconds: u64,

    /// Bytes that one round moves; less of small entries where a round would take long
    #[arg(long, default_value = "256MiB")]
    bytes: ByteSize,

    /// Bytes that one round of `sustained` moves
    #[arg(long, default_value = "6GiB")]
    sustained_bytes: ByteSize,

    /// The length of the longest history, in entries
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    entries: u64,

    /// Write what was found, round by round, to this file as JSON
    #[arg(long)]
    results: Option<PathBuf>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum StorageChoice {
    /// Appending by size, beside write(2) (figure 7a)
    F28,
    /// The same with more bytes than the page cache takes ahead of the disk
    Sustained,
    /// First and second read of a cut, beside memcpy (figure 7a)
    F29,
    /// Persistence off, on, and synced (figure 9)
    F32,
    /// The disk by size of a flush, beside group commit (figure 10)
    F33,
    /// Durable group commit with 1000 logs beside one
    Group,
    /// The cost of an append by length of the log
    F14,
    /// Time and memory to open a long history
    Start,
    /// The cost of many earlier logs, each written to once
    Logs,
    /// Time to find a moment by length of the log
    Seek,
    /// A file with overwrites, read whole at 500 moments (figure 11)
    F34,
    /// The same with small writes, which leave the file in very many pieces
    Fragments,
    /// The cost of a file's history by size of a write (figure 12)
    F35,
    /// All of them
    All,
}

struct StorageExperiment {
    choice: StorageChoice,
    name: &'static str,
    run: fn(&StorageContext) -> Result<ExperimentResults>,
}

const EXPERIMENTS: [StorageExperiment; 13] = [
    StorageExperiment { choice: StorageChoice::F28, name: "f28", run: append_rate::run },
    StorageExperiment {
        choice: StorageChoice::Sustained,
        name: "sustained",
        run: append_rate::run_sustained,
    },
    StorageExperiment { choice: StorageChoice::F29, name: "f29", run: cut_read::run },
    StorageExperiment { choice: StorageChoice::F32, name: "f32", run: persistence::run },
    StorageExperiment { choice: StorageChoice::F33, name: "f33", run: flush_size::run },
    StorageExperiment { choice: StorageChoice::Group, name: "group", run: group_commit::run },
    StorageExperiment { choice: StorageChoice::F14, name: "f14", run: append_cost::run },
    StorageExperiment { choice: StorageChoice::Start, name: "start", run: start::run },
    StorageExperiment { choice: StorageChoice::Logs, name: "logs", run: many_logs::run },
    StorageExperiment { choice: StorageChoice::Seek, name: "seek", run: seek::run },
    StorageExperiment { choice: StorageChoice::F34, name: "f34", run: file_moments::run },
    StorageExperiment {
        choice: StorageChoice::Fragments,
        name: "fragments",
        run: file_moments::run_fragments,
    },
    StorageExperiment { choice: StorageChoice::F35, name: "f35", run: file_overhead::run },
];

const WARM_BYTES_MIN: u64 = 16 << 20;

/// The directory, the limits and the sizes of an experiment.
#[derive(Clone)]
struct StorageContext {
    directory: PathBuf,
    rounds: RoundLimits,
    bytes: u64,
    sustained_bytes: u64,
    entries: u64,
    source: ByteSource,
}

impl StorageContext {
    /// A new directory on the disk to measure.
    fn scratch(&self, name: &str) -> Result<BenchDirectory> {
        BenchDirectory::new(&self.directory, name)
    }

    /// Touches memory that the page cache will need ([`crate::pretouch`]), unless it is too little
    /// to matter.
    fn pretouch(&self, bytes: u64) -> PretouchedMemory {
        if bytes < WARM_BYTES_MIN {
            PretouchedMemory::empty()
        } else {
            PretouchedMemory::touch(bytes)
        }
    }

    /// Touches memory and frees it at once: a run that begins within two seconds is not charged for
    /// the hypervisor's work.
    fn warm_memory(&self, bytes: u64) {
        drop(self.pretouch(bytes));
    }
}

/// Runs the selected experiments. After each of them, the file of results has the results so far.
pub(crate) fn run(work: &StorageWork, format: ReportFormat) -> Result<()> {
    let bench = StorageContext {
        directory: work.dir.clone(),
        rounds: RoundLimits { discard: 1, least: 3, time: Duration::from_secs(work.seconds) },
        bytes: work.bytes.0,
        sustained_bytes: work.sustained_bytes.0,
        entries: work.entries,
        source: ByteSource::new(),
    };
    let mut results = Map::new();
    // Before any measurement: fail early if the path cannot be written.
    if let Some(path) = &work.results {
        write_results(path, work, &results)?;
    }
    let chosen = EXPERIMENTS
        .iter()
        .filter(|it| work.experiment == StorageChoice::All || work.experiment == it.choice);
    for experiment in chosen {
        eprintln!("{} …", experiment.name);
        let findings = (experiment.run)(&bench).with_context(|| experiment.name)?;
        let json = findings.json();
        match format {
            ReportFormat::JsonLines => println!("{}", json!({ experiment.name: json })),
            ReportFormat::Table => findings.show(experiment.name),
        }
        results.insert(experiment.name.to_owned(), json);
        if let Some(path) = &work.results {
            write_results(path, work, &results)?;
        }
    }
    Ok(())
}

fn write_results(path: &Path, work: &StorageWork, found: &Map<String, Value>) -> Result<()> {
    let parameters = json!({
        "seconds": work.seconds, "bytes": work.bytes.0,
        "sustained_bytes": work.sustained_bytes.0, "entries": work.entries,
    });
    results::write(path, &parameters, found)
}

/// 65536 is `64 KiB`.
fn size_label(bytes: u64) -> String {
    match bytes {
        mebi if mebi.is_multiple_of(1 << 20) => format!("{} MiB", mebi >> 20),
        kibi if kibi.is_multiple_of(1 << 10) => format!("{} KiB", kibi >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At the smallest scale: checks that they run to their end and find numbers.
    #[test]
    fn every_experiment_finds_figures_above_zero() {
        let scratch = BenchDirectory::new(&std::env::temp_dir(), "test").unwrap();
        let bench = StorageContext {
            directory: scratch.path().to_owned(),
            rounds: RoundLimits { discard: 0, least: 1, time: Duration::ZERO },
            bytes: 1 << 20,
            sustained_bytes: 2 << 20,
            entries: 3_000,
            source: ByteSource::new(),
        };
        // Some run in a process of their own, which a test cannot start.
        let alone = [StorageChoice::Start, StorageChoice::F35, StorageChoice::Logs];
        for experiment in EXPERIMENTS.iter().filter(|it| !alone.contains(&it.choice)) {
            let findings = (experiment.run)(&bench).unwrap();
            assert!(!findings.points.is_empty(), "{}", experiment.name);
            for finding in &findings.points {
                for (figure, spread) in &finding.figures {
                    let low = spread.low();
                    let place = (experiment.name, &finding.series, figure);
                    assert!(low.is_finite() && low >= 0.0, "{place:?}: {spread:?}");
                }
            }
        }
    }
}
