//! Two brokers, the same measurement, in turn: A B A B …; then the medians, and their ratios.
//!
//! This machine's speed changes from minute to minute, and so do numbers taken an hour apart.
//! Measured in turn, both brokers see the same conditions.

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use crate::{
    connect::{self, ConnectWork},
    consume::{self, ConsumeWork},
    groups::{self, GroupsWork},
    latency::{self, LatencyWork},
    produce::{self, ProduceWork},
    report::{
        BenchReport, FigureDirection, ReportFigure, ReportFormat, align_right, key, median_of,
        number, table,
    },
    sweep::write_back,
    target::{BrokerTarget, TargetArgs},
    transactions::{self, TransactionsWork},
};

/// The two brokers.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompareWork {
    /// The first broker's address, HOST:PORT
    #[arg(long)]
    ours: String,

    /// The other broker's address, HOST:PORT
    #[arg(long)]
    theirs: String,

    /// The first broker's process; found by its listening port if not given
    #[arg(long)]
    ours_pid: Option<u32>,

    /// The other broker's process; found by its listening port if not given
    #[arg(long)]
    theirs_pid: Option<u32>,

    /// Rounds of each measurement
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Rounds before them that do not count, in which a server may warm up
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=10))]
    discard: u32,

    #[command(subcommand)]
    measurement: CompareMeasurement,
}

#[derive(Subcommand, Clone, Debug)]
enum CompareMeasurement {
    /// The rate at which records are taken
    Produce(ProduceWork),
    /// The rate at which records are returned
    Consume(ConsumeWork),
    /// The latency of a record at a fixed rate
    Latency(LatencyWork),
    /// The time until many members of a group have their shares
    Groups(GroupsWork),
    /// The number of transactions that end in a second
    Transactions(TransactionsWork),
    /// The number of connections that are opened in a second
    Connect(ConnectWork),
}

impl CompareMeasurement {
    fn run(&self, target: &BrokerTarget) -> Result<BenchReport> {
        match self {
            CompareMeasurement::Produce(work) => produce::run(target, work),
            CompareMeasurement::Consume(work) => consume::run(target, work),
            CompareMeasurement::Latency(work) => latency::run(target, work),
            CompareMeasurement::Groups(work) => groups::run(target, work),
            CompareMeasurement::Transactions(work) => transactions::run(target, work),
            CompareMeasurement::Connect(work) => connect::run(target, work),
        }
    }
}

/// Measures both in turn, and prints the comparison.
pub(crate) fn run(work: &CompareWork, format: ReportFormat) -> Result<()> {
    let find = |bootstrap: &str, pid| {
        BrokerTarget::find(&TargetArgs { bootstrap: bootstrap.to_owned(), pid })
    };
    let targets = [find(&work.ours, work.ours_pid)?, find(&work.theirs, work.theirs_pid)?];
    ensure!(targets[0].address != targets[1].address, "both addresses are the same");
    let mut reports = [Vec::new(), Vec::new()];
    for round in 0..work.discard + work.rounds {
        for (target, reports) in targets.iter().zip(&mut reports) {
            eprintln!("round {} of {}: {}", round + 1, work.discard + work.rounds, target.name);
            write_back();
            let report = work.measurement.run(target)?;
            if round < work.discard {
                continue;
            }
            if format == ReportFormat::JsonLines {
                println!("{}", report.json());
            }
            reports.push(report);
        }
    }
    let [ours, theirs] = &reports;
    show(&compare(ours, theirs), &targets, work.rounds, ours.first(), format);
    Ok(())
}

/// One figure of both.
#[derive(Debug, PartialEq)]
struct FigureComparison {
    name: String,
    ours: f64,
    theirs: f64,
    /// Ours as a share of theirs, if theirs is not 0.
    ratio: Option<f64>,
    verdict: &'static str,
}

/// Compares the medians of those figures that all reports have.
fn compare(ours: &[BenchReport], theirs: &[BenchReport]) -> Vec<FigureComparison> {
    let (Some(median_ours), Some(median_theirs)) = (median_of(ours), median_of(theirs)) else {
        return Vec::new();
    };
    let compared = |mine: &ReportFigure| {
        let other = median_theirs.figure(&mine.name)?;
        let all = |reports: &[BenchReport]| -> Vec<f64> {
            reports.iter().filter_map(|report| report.figure(&mine.name)).collect()
        };
        Some(FigureComparison {
            name: mine.name.clone(),
            ours: mine.value,
            theirs: other,
            ratio: (other != 0.0).then(|| mine.value / other),
            verdict: verdict(mine.better, &all(ours), &all(theirs)),
        })
    };
    median_ours.figures.iter().filter_map(compared).collect()
}

/// The side whose worst run is better than the best run of the other. Otherwise chance may have
/// decided, and there is no winner.
fn verdict(better: FigureDirection, ours: &[f64], theirs: &[f64]) -> &'static str {
    let least = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (higher, lower) = match better {
        FigureDirection::Higher => ("ours", "theirs"),
        FigureDirection::Lower => ("theirs", "ours"),
        FigureDirection::Neither => return "",
    };
    if least(ours) > most(theirs) {
        higher
    } else if most(ours) < least(theirs) {
        lower
    } else {
        "even"
    }
}

fn show(
    compared: &[FigureComparison],
    targets: &[BrokerTarget; 2],
    rounds: u32,
    example: Option<&BenchReport>,
    format: ReportFormat,
) {
    let [ours, theirs] = targets;
    let (kind, workload) = example.map_or(("", ""), |report| (report.kind, &report.workload));
    if format == ReportFormat::JsonLines {
        let figures: Map<String, Value> = compared.iter().map(FigureComparison::json).collect();
        let line = json!({
            "kind": "compare", "of": kind, "workload": workload, "rounds": rounds,
            "ours": ours.name, "theirs": theirs.name, "figures": figures,
        });
        return println!("{line}");
    }
    let header = ["", &ours.name, &theirs.name, "ratio", "better"].map(str::to_owned);
    let mut table = table(header.to_vec());
    for figure in compared {
        let ratio = figure.ratio.map_or_else(|| "-".to_owned(), number);
        let (ours, theirs) = (number(figure.ours), number(figure.theirs));
        table.add_row([figure.name.clone(), ours, theirs, ratio, figure.verdict.to_owned()]);
    }
    align_right(&mut table, 1..);
    println!("{kind}: {workload}, medians of {rounds} rounds\n{table}");
}

impl FigureComparison {
    fn json(&self) -> (String, Value) {
        let values = json!({
            "ours": self.ours, "theirs": self.theirs, "ratio": self.ratio, "better": self.verdict,
        });
        (key(&self.name), values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_side_is_better_only_if_its_worst_run_beats_the_others_best() {
        assert_eq!(verdict(FigureDirection::Lower, &[1.0, 2.0], &[3.0, 9.0]), "ours");
        assert_eq!(verdict(FigureDirection::Higher, &[1.0, 2.0], &[3.0, 9.0]), "theirs");
        assert_eq!(verdict(FigureDirection::Lower, &[1.0, 4.0], &[3.0, 9.0]), "even");
        assert_eq!(verdict(FigureDirection::Neither, &[1.0], &[3.0]), "");
    }

    #[test]
    fn medians_are_compared_and_their_ratio_is_ours_to_theirs() {
        let report = |value| {
            let mut report = BenchReport::new("produce", "w".into(), "t");
            report.add(FigureDirection::Lower, "cost", value);
            report
        };
        let compared = compare(&[1.0, 5.0, 2.0].map(report), &[8.0, 4.0, 9.0].map(report));
        let cost = FigureComparison {
            name: "cost".into(),
            ours: 2.0,
            theirs: 8.0,
            ratio: Some(0.25),
            verdict: "even",
        };
        assert_eq!(compared, [cost]);
        assert!(compare(&[], &[]).is_empty());
    }
}
