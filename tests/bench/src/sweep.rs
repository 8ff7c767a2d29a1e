//! Record sizes by acks by partitions: the usual questions, in one table.

use anyhow::Result;
use clap::Args;

use crate::{
    consume::{self, ConsumeWork, FetchArgs},
    produce::{self, ProduceWork, topic_for},
    report::BenchReport,
    sender::BenchAcks,
    size::ByteSize,
    target::{BrokerTarget, TopicLoad, TransferVolume},
};

/// The sides of the matrix, and what is the same in all of it.
#[derive(Args, Clone, Debug)]
pub(crate) struct SweepWork {
    /// Bytes in a record's value
    #[arg(long, value_delimiter = ',', default_value = "100,1KiB,16KiB,100KiB,1MiB")]
    sizes: Vec<ByteSize>,

    /// The acknowledgements to ask the broker for
    #[arg(long, value_enum, value_delimiter = ',', default_value = "1,all")]
    acks: Vec<BenchAcks>,

    /// Partitions of the topic
    #[arg(long, value_delimiter = ',', default_value = "1,100",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    partitions: Vec<u32>,

    /// Unanswered requests on a connection
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    inflight: u32,

    /// Send producer ids and sequence numbers
    #[arg(long)]
    idempotent: bool,

    #[command(flatten)]
    fetching: FetchArgs,

    #[command(flatten)]
    volume: TransferVolume,
}

/// Measures each cell once. Then consumes the records that were produced with the last of `acks`.
pub(crate) fn run(target: &BrokerTarget, work: &SweepWork) -> Result<Vec<BenchReport>> {
    let mut reports = Vec::new();
    for partitions in &work.partitions {
        for size in &work.sizes {
            let load =
                TopicLoad { size: *size, partitions: *partitions, volume: work.volume.clone() };
            run_load(target, work, &load, &mut reports)?;
        }
    }
    Ok(reports)
}

fn run_load(
    target: &BrokerTarget,
    work: &SweepWork,
    load: &TopicLoad,
    reports: &mut Vec<BenchReport>,
) -> Result<()> {
    for (index, acks) in work.acks.iter().enumerate() {
        eprintln!("{}: {} acks={}", target.name, load.describe(), acks.name());
        write_back();
        let produce = ProduceWork {
            load: load.clone(),
            acks: *acks,
            inflight: work.inflight,
            idempotent: work.idempotent,
            cold_memory: false,
        };
        let topic = topic_for(target, load)?;
        let (report, ends) = produce::run_in(&topic, target, &produce)?;
        reports.push(report);
        if index + 1 == work.acks.len() {
            let consume = ConsumeWork { load: load.clone(), fetching: work.fetching.clone() };
            reports.push(consume::run_in(&topic, &ends, target, &consume)?);
        }
    }
    Ok(())
}

/// Makes the kernel write what the last run left, so that the next does not pay for it.
pub(crate) fn write_back() {
    rustix::fs::sync();
}
