//! `freezeframe-bench time`: the cost of going back in time.
//!
//! Cuts across many partitions, seeks in long histories, reading a moment compared with reading the
//! present, and many readers at as many moments (figure 2 of the paper on FFFS). Two of them use
//! the engine itself, the others a running server.

mod cut;
mod engine_driver;
mod fetch;
mod seek;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Map, json};

use crate::report::ReportFormat;
use crate::size::ByteSize;
use crate::store::{
    bench_directory::BenchDirectory, experiment::ExperimentResults, results, rounds::RoundLimits,
};
use crate::target::{BrokerTarget, TargetArgs};

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TimeWork {
    /// The experiment
    #[arg(value_enum)]
    experiment: TimeChoice,

    #[command(flatten)]
    target: TargetArgs,

    /// The directory in which files are written and removed again
    #[arg(long, default_value = ".")]
    dir: PathBuf,

    /// Rounds of one comparison go on for so long; at least five are made
    #[arg(long, default_value_t = 10)]
    seconds: u64,

    /// The most partitions that are cut across
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=100_000))]
    partitions: u64,

    /// The length of the longest history, in batches
    #[arg(long, default_value_t = 10_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    entries: u64,

    /// Bytes of values in the topic that is read
    #[arg(long, default_value = "256MiB")]
    bytes: ByteSize,

    /// Write what was found, round by round, to this file as JSON
    #[arg(long)]
    results: Option<PathBuf>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum TimeChoice {
    /// A cut across many partitions, inside of the engine
    Cut,
    /// The same, from a server
    CutServer,
    /// Time to find a moment, by stamp and by user time, by length of the history
    SeekUser,
    /// Reading a topic as of a moment, beside reading it as it is
    Moment,
    /// Readers at as many moments, at once (figure 2)
    F37,
    /// All of them
    All,
}

struct TimeExperiment {
    choice: TimeChoice,
    name: &'static str,
    run: fn(&TimeContext) -> Result<ExperimentResults>,
}

const EXPERIMENTS: [TimeExperiment; 5] = [
    TimeExperiment { choice: TimeChoice::Cut, name: "cut", run: cut::run },
    TimeExperiment { choice: TimeChoice::CutServer, name: "cut_server", run: cut::run_server },
    TimeExperiment { choice: TimeChoice::SeekUser, name: "seek_user", run: seek::run },
    TimeExperiment { choice: TimeChoice::Moment, name: "moment", run: fetch::run },
    TimeExperiment { choice: TimeChoice::F37, name: "f37", run: fetch::run_parallel },
];

/// The directory, the broker and the sizes of an experiment.
struct TimeContext {
    directory: PathBuf,
    target: TargetArgs,
    rounds: RoundLimits,
    partitions: u64,
    entries: u64,
    bytes: u64,
}

impl TimeContext {
    fn scratch(&self, name: &str) -> Result<BenchDirectory> {
        BenchDirectory::new(&self.directory, name)
    }

    fn target(&self) -> Result<BrokerTarget> {
        BrokerTarget::find(&self.target)
    }
}

/// Runs the selected experiments. After each of them, the file of results has the results so far.
pub(crate) fn run(work: &TimeWork, format: ReportFormat) -> Result<()> {
    let bench = TimeContext {
        directory: work.dir.clone(),
        target: work.target.clone(),
        rounds: RoundLimits { discard: 1, least: 5, time: Duration::from_secs(work.seconds) },
        partitions: work.partitions,
        entries: work.entries,
        bytes: work.bytes.0,
    };
    let parameters = json!({
        "seconds": work.seconds, "partitions": work.partitions, "entries": work.entries,
        "bytes": work.bytes.0,
    });
    let mut found = Map::new();
    let chosen = EXPERIMENTS
        .iter()
        .filter(|it| work.experiment == TimeChoice::All || work.experiment == it.choice);
    for experiment in chosen {
        eprintln!("{} …", experiment.name);
        let findings = (experiment.run)(&bench).with_context(|| experiment.name)?;
        let json = findings.json();
        match format {
            ReportFormat::JsonLines => println!("{}", json!({ experiment.name: json })),
            ReportFormat::Table => findings.show(experiment.name),
        }
        found.insert(experiment.name.to_owned(), json);
        if let Some(path) = &work.results {
            results::write(path, &parameters, &found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At the smallest scale, against the real server: checks that they run to their end and find
    /// numbers.
    #[test]
    fn every_experiment_finds_figures_above_zero() {
        let scratch = BenchDirectory::new(&std::env::temp_dir(), "time").unwrap();
        let directory = ::testkit::directory::TestDirectory::new();
        let server = ::testkit::process::TestServer::start(directory.path(), &[]).unwrap();
        let bench = TimeContext {
            directory: scratch.path().to_owned(),
            target: TargetArgs { bootstrap: server.kafka.to_string(), pid: Some(server.pid()) },
            rounds: RoundLimits { discard: 0, least: 1, time: Duration::ZERO },
            partitions: 100,
            entries: 1_000,
            bytes: 4 << 20,
        };
        for experiment in &EXPERIMENTS {
            let findings = (experiment.run)(&bench).unwrap();
            assert!(!findings.points.is_empty(), "{}", experiment.name);
            for finding in &findings.points {
                for (figure, spread) in &finding.figures {
                    let place = (experiment.name, &finding.series, figure);
                    assert!(spread.low().is_finite() && spread.low() >= 0.0, "{place:?}");
                }
            }
        }
    }
}
