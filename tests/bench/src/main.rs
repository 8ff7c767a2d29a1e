//! `freezeframe-bench` measures any broker that speaks Kafka's protocol: how fast it accepts and
//! returns records, how long one record takes, how long a start takes, and the CPU and memory that
//! each costs. It uses only the wire protocol and `/proc`, so Apache Kafka is measured in the same
//! way as Freezeframe.
//!
//! The command `storage` is different: it measures the storage crate itself, compared with plain
//! files on the same disk ([`store`]).
//!
//! The program must not be what limits the run. Requests are prepared in advance ([`sender`]), and
//! responses are read into the same buffer ([`connection`]). Its own CPU time is reported with
//! every result. If that is near one core per thread, the number is the program's limit and not the
//! broker's.

#![forbid(unsafe_code)]

mod batch;
mod compare;
mod connect;
mod connection;
mod consume;
mod files;
mod floor;
mod groups;
mod halves;
mod histogram;
mod latency;
mod links;
mod meter;
mod pretouch;
mod process;
mod produce;
mod quiet;
mod report;
mod sender;
mod size;
mod startup;
mod store;
mod sweep;
mod target;
mod time;
mod topic;
mod transactions;
mod wave;
mod zookeeper;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{
    compare::CompareWork,
    connect::ConnectWork,
    consume::ConsumeWork,
    files::FilesWork,
    floor::FloorWork,
    groups::GroupsWork,
    latency::LatencyWork,
    links::LinksWork,
    produce::ProduceWork,
    quiet::QuietWork,
    report::{BenchReport, ReportFormat, median_of, show, show_all},
    startup::StartupWork,
    store::{ChildWork, StorageWork},
    sweep::SweepWork,
    target::{BrokerTarget, FormatArgs, TargetArgs},
    time::TimeWork,
    transactions::TransactionsWork,
    wave::WaveWork,
    zookeeper::ZookeeperWork,
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
  A quiet client beside fifty noisy ones that have a quota:
    freezeframe-bench produce --client-id noisy --connections 50 --partitions 50 --like java &
    freezeframe-bench latency --client-id quiet
  The usual matrix, as lines of JSON:
    freezeframe-bench sweep --bytes 512MiB --json
  Ours beside Apache Kafka, in turn:
    freezeframe-bench compare --ours 127.0.0.1:9092 --theirs 127.0.0.1:9192 --rounds 5 \\
        produce --like java --bytes 1GiB
  Handshakes of TLS, beside Apache Kafka:
    freezeframe-bench compare --ours 127.0.0.1:9093 --theirs 127.0.0.1:9193 \
        --tls-trust authority.pem connect
  Transactions, beside Apache Kafka:
    freezeframe-bench compare --ours 127.0.0.1:9092 --theirs 127.0.0.1:9192 \
        transactions --producers 8 --partitions 20
  Members of a group, beside Apache Kafka:
    freezeframe-bench compare --ours 127.0.0.1:9092 --theirs 127.0.0.1:9192 \\
        groups --members 10000 --groups 10 --connections 1000 --interval 5 --seconds 10
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

  Records over RDMA and over TCP, on a machine with two RDMA ports:
    freezeframe-bench links --bootstrap 10.10.0.1:9092

  Znodes, beside Apache ZooKeeper:
    freezeframe-bench zookeeper --ours 127.0.0.1:2181 --theirs 127.0.0.1:2281

MB and GB are of values, in powers of ten. A broker's CPU is read when the last answer is there, and
again a moment later (\"settled\"). `client CPU` is what this program used.";

#[derive(Parser)]
#[command(name = "freezeframe-bench", version, after_help = EXAMPLES)]
#[command(
    about = "Measures Kafka-protocol brokers and our storage: throughput, CPU, memory, latency, start"
)]
struct BenchArguments {
    /// Connect over TLS to brokers whose certificates are signed by one in this file, PEM or
    /// PKCS#12 (all commands of Kafka's protocol but links)
    #[arg(long, global = true, value_name = "FILE")]
    tls_trust: Option<PathBuf>,

    /// The client id in requests, by which brokers find quotas
    #[arg(long, global = true, value_name = "ID", default_value = connection::PROGRAM)]
    client_id: String,
    #[command(flatten)]
    format: FormatArgs,

    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// The rate at which records are taken, and its cost
    Produce(BrokerWork<ProduceWork>),
    /// The rate at which records are returned, and its cost; fills a topic first
    Consume(BrokerWork<ConsumeWork>),
    /// The latency of a record at a fixed rate, from when it was due
    Latency(BrokerWork<LatencyWork>),
    /// The number of transactions that end in a second, and their cost
    Transactions(BrokerWork<TransactionsWork>),
    /// The time until many members of a group have their shares, and the cost of their heartbeats
    Groups(BrokerWork<GroupsWork>),
    /// The number of connections that are opened in a second, and their cost; over TLS, each with a
    /// whole handshake
    Connect(BrokerWork<ConnectWork>),
    /// The start time of a server, and its cost when idle
    Startup(StartupWork),
    /// Record sizes by acks by partitions, produced and consumed
    Sweep(BrokerWork<SweepWork>),
    /// The same measurement of two brokers in turn
    Compare(CompareWork),
    /// The least that a broker can do, as a broker of its own to compare with
    Floor(FloorWork),
    /// Records over RDMA and over TCP, by size, beside bare one-sided transfers
    Links(LinksWork),
    /// A consumer of many partitions in which nothing happens, with and without a fetch session
    Quiet(QuietWork),
    /// A mounted directory beside one of an ordinary file system
    Files(FilesWork),
    /// The storage crate itself, beside plain files on the same disk
    Storage(StorageWork),
    /// The cost of going back in time: cuts, seeks, reading a moment
    Time(TimeWork),
    /// A wave in a tank, recorded by a hundred cameras and reassembled in several ways
    Wave(WaveWork),
    /// Znodes of one or two ZooKeeper servers: requests a second, CPU of each, latency
    Zookeeper(ZookeeperWork),
    /// Work that `storage` runs in a process of its own
    #[command(hide = true)]
    StorageChild(ChildWork),
}

/// Some work, and the broker to do it with.
#[derive(clap::Args)]
struct BrokerWork<Work: clap::Args> {
    #[command(flatten)]
    target: TargetArgs,

    #[command(flatten)]
    work: Work,
}

fn main() -> ExitCode {
    match run(BenchArguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: BenchArguments) -> Result<()> {
    let format = arguments.format.format();
    connection::set_client_id(&arguments.client_id);
    if let Some(trusted) = &arguments.tls_trust {
        halves::use_tls(trusted)?;
    }
    match arguments.command {
        BenchCommand::Produce(aimed) => run_one(&aimed, produce::run, format),
        BenchCommand::Consume(aimed) => run_one(&aimed, consume::run, format),
        BenchCommand::Latency(aimed) => run_one(&aimed, latency::run, format),
        BenchCommand::Transactions(aimed) => run_one(&aimed, transactions::run, format),
        BenchCommand::Groups(aimed) => run_one(&aimed, groups::run, format),
        BenchCommand::Connect(aimed) => run_one(&aimed, connect::run, format),
        BenchCommand::Startup(work) => show_starts(&startup::run(&work)?, format),
        BenchCommand::Sweep(aimed) => {
            show_all(&sweep::run(&BrokerTarget::find(&aimed.target)?, &aimed.work)?, format);
            Ok(())
        }
        BenchCommand::Compare(work) => compare::run(&work, format),
        BenchCommand::Floor(work) => floor::run(&work),
        BenchCommand::Links(work) => links::run(&work, format),
        BenchCommand::Quiet(work) => quiet::run(&work, format),
        BenchCommand::Files(work) => files::run(&work, format),
        BenchCommand::Storage(work) => store::run(&work, format),
        BenchCommand::Time(work) => time::run(&work, format),
        BenchCommand::Wave(work) => wave::run(&work, format),
        BenchCommand::Zookeeper(work) => work.run(),
        BenchCommand::StorageChild(work) => store::run_child(&work),
    }
}

fn run_one<Work: clap::Args>(
    aimed: &BrokerWork<Work>,
    run: fn(&BrokerTarget, &Work) -> Result<BenchReport>,
    format: ReportFormat,
) -> Result<()> {
    show(&run(&BrokerTarget::find(&aimed.target)?, &aimed.work)?, format);
    Ok(())
}

/// Every start for a script, the medians for a person.
fn show_starts(reports: &[BenchReport], format: ReportFormat) -> Result<()> {
    match format {
        ReportFormat::JsonLines => show_all(reports, format),
        ReportFormat::Table => median_of(reports).iter().for_each(|median| show(median, format)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound_and_reads_its_own_examples() {
        BenchArguments::command().debug_assert();
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
            "links --bootstrap a:1 --sizes 4KiB,1MiB --bytes 16MiB --rounds 3 --json",
            "quiet --bootstrap a:1 --partitions 100 --fetches 10 --rounds 1 --json",
            "compare --ours a:1 --theirs b:2 --rounds 5 latency --rate 10",
            "compare --ours a:1 --theirs b:2 --tls-trust f connect --connections 100 --threads 2",
        ] {
            let words = ["bench"].into_iter().chain(line.split(' '));
            assert!(BenchArguments::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
