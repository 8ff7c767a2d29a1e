//! `freezeframe-bench` measures any broker that speaks Kafka's protocol: how fast it takes records and
//! gives them back, how long one record takes, how long a start takes, and what of CPU and memory each
//! costs. It knows the wire and `/proc`, and nothing of what is inside the broker; so Apache Kafka is
//! measured by the same means as Freezeframe, and beside it.
//!
//! One command is of another kind: `storage` measures the storage crate itself, beside plain files on
//! the same disk ([`store`]).
//!
//! It must not be what limits the run. Requests are made beforehand ([`sender`]), and answers are read
//! into the same buffer ([`connection`]); what it uses of CPU is reported with every result, and where
//! that is near one core a thread, the number is ours and not the broker's.

mod ballast;
mod batch;
mod compare;
mod connection;
mod consume;
mod files;
mod floor;
mod histogram;
mod latency;
mod meter;
mod process;
mod produce;
mod report;
mod sender;
mod size;
mod startup;
mod store;
mod sweep;
mod target;
mod time;
mod topic;
mod wave;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{
    compare::CompareWork,
    consume::ConsumeWork,
    files::FilesWork,
    floor::FloorWork,
    latency::LatencyWork,
    produce::ProduceWork,
    report::{Format, Report, median_of, show, show_all},
    startup::StartupWork,
    store::{ChildWork, StorageWork},
    sweep::SweepWork,
    target::{FormatArgs, Target, TargetArgs},
    time::TimeWork,
    wave::WaveWork,
};

const EXAMPLES: &str = "\
Examples:
  Large batches, as librdkafka sends them, durably:
    freezeframe-bench produce --bootstrap 127.0.0.1:9092 --size 1KiB --bytes 4GiB --acks all
  Small ones, as Java's client sends them by default:
    freezeframe-bench produce --like java --idempotent --partitions 100
  Reading a topic of 100 partitions from its start:
    freezeframe-bench consume --size 1KiB --bytes 4GiB --partitions 100
  End-to-end latency at 1000 records a second:
    freezeframe-bench latency --rate 1000 --size 100 --seconds 20 --acks all
  From the command to the first answer, from an empty directory, five times:
    freezeframe-bench startup --prepare 'rm -rf /tmp/data' --rounds 5 \\
        --command 'freezeframe serve --data-dir /tmp/data'
  The usual matrix, as lines of JSON:
    freezeframe-bench sweep --bytes 512MiB --json
  Ours beside Apache Kafka, in turn:
    freezeframe-bench compare --ours 127.0.0.1:9092 --theirs 127.0.0.1:9192 --rounds 5 \\
        produce --like java --bytes 1GiB
  Ours beside the least that a broker can do on the same disk:
    freezeframe-bench floor --listen 127.0.0.1:9292 --dir /tmp/floor &
    freezeframe-bench compare --ours 127.0.0.1:9092 --theirs 127.0.0.1:9292 produce
  The storage crate beside plain files, by the experiments of the paper on FFFS:
    freezeframe-bench storage all --dir /tmp --seconds 10 --results storage.json
  Cuts, seeks and reading of the past, inside of the engine and from a server:
    freezeframe-bench time all --bootstrap 127.0.0.1:9092 --dir /tmp --results time.json
  The wave of the paper's first figure, beside Kafka, with pictures:
    freezeframe-bench wave --bootstrap 127.0.0.1:9092 --kafka 127.0.0.1:9192 --out docs/wave

  A mount beside the disk's own file system:
    freezeframe-bench files all --mounted /mnt/frames/files --beside /tmp \\
        --read /mnt/frames/topics/orders/0.log --rounds 5

MB and GB are of values, in powers of ten. A broker's CPU is read when the last answer is there, and
again a moment later (\"settled\"). `client CPU` is what this program used.";

#[derive(Parser)]
#[command(name = "freezeframe-bench", version, after_help = EXAMPLES)]
#[command(
    about = "Measures Kafka-protocol brokers and our storage: throughput, CPU, memory, latency, start"
)]
struct Arguments {
    #[command(flatten)]
    format: FormatArgs,

    #[command(subcommand)]
    command: Subject,
}

#[derive(Subcommand)]
enum Subject {
    /// How fast records are taken, and at what cost
    Produce(Aimed<ProduceWork>),
    /// How fast records are given back, and at what cost; fills a topic first
    Consume(Aimed<ConsumeWork>),
    /// How long a record takes at a fixed rate, from when it was due
    Latency(Aimed<LatencyWork>),
    /// How long a server takes to start, and what it costs when idle
    Startup(StartupWork),
    /// Record sizes by acks by partitions, produced and consumed
    Sweep(Aimed<SweepWork>),
    /// The same measurement of two brokers in turn
    Compare(CompareWork),
    /// The least that a broker can do, as a broker of its own to compare with
    Floor(FloorWork),
    /// A mounted directory beside one of an ordinary file system
    Files(FilesWork),
    /// The storage crate itself, beside plain files on the same disk
    Storage(StorageWork),
    /// What it costs to go back in time: cuts, seeks, reading a moment
    Time(TimeWork),
    /// A wave in a tank, filmed by a hundred cameras and put together again in several ways
    Wave(WaveWork),
    /// What `storage` has a process of its own do
    #[command(hide = true)]
    StorageChild(ChildWork),
}

/// Some work, and the broker to do it with.
#[derive(clap::Args)]
struct Aimed<Work: clap::Args> {
    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    work: Work,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<()> {
    let format = arguments.format.format();
    match arguments.command {
        Subject::Produce(aimed) => one(&aimed, produce::run, format),
        Subject::Consume(aimed) => one(&aimed, consume::run, format),
        Subject::Latency(aimed) => one(&aimed, latency::run, format),
        Subject::Startup(work) => starts(&startup::run(&work)?, format),
        Subject::Sweep(aimed) => {
            show_all(&sweep::run(&Target::find(&aimed.target)?, &aimed.work)?, format);
            Ok(())
        }
        Subject::Compare(work) => compare::run(&work, format),
        Subject::Floor(work) => floor::run(&work),
        Subject::Files(work) => files::run(&work, format),
        Subject::Storage(work) => store::run(&work, format),
        Subject::Time(work) => time::run(&work, format),
        Subject::Wave(work) => wave::run(&work, format),
        Subject::StorageChild(work) => store::run_child(&work),
    }
}

fn one<Work: clap::Args>(
    aimed: &Aimed<Work>,
    run: fn(&Target, &Work) -> Result<Report>,
    format: Format,
) -> Result<()> {
    show(&run(&Target::find(&aimed.target)?, &aimed.work)?, format);
    Ok(())
}

/// Every start for a script, the medians for a person.
fn starts(reports: &[Report], format: Format) -> Result<()> {
    match format {
        Format::JsonLines => show_all(reports, format),
        Format::Table => median_of(reports).iter().for_each(|median| show(median, format)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound_and_reads_its_own_examples() {
        Arguments::command().debug_assert();
        for line in [
            "produce --bootstrap 127.0.0.1:9092 --size 1024 --bytes 4GiB --acks all --json",
            "produce --partitions 100 --batch 1000000 --inflight 5 --connections 1 --acks 1",
            "consume --size 1KiB --bytes 4GiB --partitions 100 --check-crc",
            "latency --rate 1000 --size 100 --seconds 20 --acks all",
            "startup --command x --rounds 5",
            "sweep --sizes 100,1KiB --acks 1,all --partitions 1,100 --json",
            "storage all --dir /tmp --seconds 10 --results storage.json",
            "storage f28 --bytes 64MiB --json",
            "time all --bootstrap a:1 --dir /tmp --results time.json",
            "time cut --partitions 10000 --json",
            "wave --bootstrap a:1 --kafka b:2 --out docs/wave",
            "floor --listen 127.0.0.1:9192 --dir /tmp/floor --durability os",
            "files all --mounted /mnt/frames/files --beside /tmp --read /mnt/frames/topics/t/0.log",
            "compare --ours a:1 --theirs b:2 --rounds 5 latency --rate 10",
        ] {
            let words = ["bench"].into_iter().chain(line.split(' '));
            assert!(Arguments::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
