//! `freezeframe-bench storage`: the storage crate beside plain files on the same disk, in one run.
//!
//! The experiments are those of the paper on FFFS (Song et al., "The Freeze-Frame File System", SoCC
//! 2016), by the rows that name them (`f28` is its figure 7a), and a few of our own. What is compared is
//! measured in turn ([`rounds`]), and each point is the median of its rounds.

mod append_cost;
mod append_rate;
mod child;
mod cut_read;
mod file_moments;
mod file_overhead;
mod file_rig;
pub(crate) mod finding;
mod flush_size;
mod group_commit;
mod many_logs;
mod null_disk;
mod persistence;
pub(crate) mod plain;
pub(crate) mod results;
mod rig;
pub(crate) mod rounds;
pub(crate) mod scratch;
mod seek;
pub(crate) mod spread;
mod start;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

pub(crate) use self::child::{ChildWork, run as run_child};
use self::finding::Findings;
use self::plain::Source;
use self::rounds::Turns;
use self::scratch::Scratch;
use crate::ballast::Ballast;
use crate::report::Format;
use crate::size::ByteSize;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StorageWork {
    /// Which experiment
    #[arg(value_enum)]
    experiment: Choice,

    /// Where files are written and removed again: the disk to measure
    #[arg(long, default_value = ".")]
    dir: PathBuf,

    /// Rounds of one comparison go on for so long; at least three are made
    #[arg(long, default_value_t = 10)]
    seconds: u64,

    /// How much one round moves; less of small entries where a round would take long
    #[arg(long, default_value = "256MiB")]
    bytes: ByteSize,

    /// How much one round of `sustained` moves
    #[arg(long, default_value = "6GiB")]
    sustained_bytes: ByteSize,

    /// How long the longest history is, in entries
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    entries: u64,

    /// Write what was found, round by round, to this file as JSON
    #[arg(long)]
    results: Option<PathBuf>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
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
    /// What it costs that there were many logs, each written to once
    Logs,
    /// Time to find a moment by length of the log
    Seek,
    /// A file with overwrites, read whole at 500 moments (figure 11)
    F34,
    /// The same with small writes, which leave the file in very many pieces
    Fragments,
    /// What a file's history costs by size of a write (figure 12)
    F35,
    /// All of them
    All,
}

struct Experiment {
    choice: Choice,
    name: &'static str,
    run: fn(&Bench) -> Result<Findings>,
}

const EXPERIMENTS: [Experiment; 13] = [
    Experiment { choice: Choice::F28, name: "f28", run: append_rate::run },
    Experiment { choice: Choice::Sustained, name: "sustained", run: append_rate::run_sustained },
    Experiment { choice: Choice::F29, name: "f29", run: cut_read::run },
    Experiment { choice: Choice::F32, name: "f32", run: persistence::run },
    Experiment { choice: Choice::F33, name: "f33", run: flush_size::run },
    Experiment { choice: Choice::Group, name: "group", run: group_commit::run },
    Experiment { choice: Choice::F14, name: "f14", run: append_cost::run },
    Experiment { choice: Choice::Start, name: "start", run: start::run },
    Experiment { choice: Choice::Logs, name: "logs", run: many_logs::run },
    Experiment { choice: Choice::Seek, name: "seek", run: seek::run },
    Experiment { choice: Choice::F34, name: "f34", run: file_moments::run },
    Experiment { choice: Choice::Fragments, name: "fragments", run: file_moments::run_fragments },
    Experiment { choice: Choice::F35, name: "f35", run: file_overhead::run },
];

const WARM_BYTES_MIN: u64 = 16 << 20;

/// What an experiment works with.
#[derive(Clone)]
struct Bench {
    directory: PathBuf,
    turns: Turns,
    bytes: u64,
    sustained_bytes: u64,
    entries: u64,
    source: Source,
}

impl Bench {
    /// A new directory on the disk to measure.
    fn scratch(&self, name: &str) -> Result<Scratch> {
        Scratch::new(&self.directory, name)
    }

    /// Touches memory that the page cache will want ([`crate::ballast`]), unless that is so little
    /// that nobody will measure it.
    fn memory(&self, bytes: u64) -> Ballast {
        if bytes < WARM_BYTES_MIN { Ballast::none() } else { Ballast::touch(bytes) }
    }

    /// Touches memory and gives it back at once: a run that begins within two seconds is not charged
    /// for the hypervisor's work.
    fn warm_memory(&self, bytes: u64) {
        drop(self.memory(bytes));
    }
}

/// Runs the experiments that were asked for. What was found so far is in the file of results after
/// each of them.
pub(crate) fn run(work: &StorageWork, format: Format) -> Result<()> {
    let bench = Bench {
        directory: work.dir.clone(),
        turns: Turns { discard: 1, least: 3, time: Duration::from_secs(work.seconds) },
        bytes: work.bytes.0,
        sustained_bytes: work.sustained_bytes.0,
        entries: work.entries,
        source: Source::new(),
    };
    let mut results = Map::new();
    // Before anything is measured: a path that cannot be written is better known now.
    if let Some(path) = &work.results {
        write_results(path, work, &results)?;
    }
    let chosen = EXPERIMENTS
        .iter()
        .filter(|it| work.experiment == Choice::All || work.experiment == it.choice);
    for experiment in chosen {
        eprintln!("{} …", experiment.name);
        let findings = (experiment.run)(&bench).with_context(|| experiment.name)?;
        let json = findings.json();
        match format {
            Format::JsonLines => println!("{}", json!({ experiment.name: json })),
            Format::Table => findings.show(experiment.name),
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

    /// At the smallest scale: that they run to their end and find numbers.
    #[test]
    fn every_experiment_finds_figures_above_zero() {
        let scratch = Scratch::new(&std::env::temp_dir(), "test").unwrap();
        let bench = Bench {
            directory: scratch.path().to_owned(),
            turns: Turns { discard: 0, least: 1, time: Duration::ZERO },
            bytes: 1 << 20,
            sustained_bytes: 2 << 20,
            entries: 3_000,
            source: Source::new(),
        };
        // Some are measured in a process of its own, which a test has not.
        let alone = [Choice::Start, Choice::F35, Choice::Logs];
        for experiment in EXPERIMENTS.iter().filter(|it| !alone.contains(&it.choice)) {
            let findings = (experiment.run)(&bench).unwrap();
            assert!(!findings.findings.is_empty(), "{}", experiment.name);
            for finding in &findings.findings {
                for (figure, spread) in &finding.figures {
                    let low = spread.low();
                    let place = (experiment.name, &finding.series, figure);
                    assert!(low.is_finite() && low >= 0.0, "{place:?}: {spread:?}");
                }
            }
        }
    }
}
