//! The broker to measure, and the output format: options of every measurement.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;

use crate::{
    connection::resolve, meter::broker_behind, process::Process, report::ReportFormat,
    size::ByteSize,
};

/// The broker to measure.
#[derive(Args, Clone, Debug)]
pub(crate) struct TargetArgs {
    /// The broker's address, HOST:PORT
    #[arg(long, short, default_value = "127.0.0.1:9092")]
    pub(crate) bootstrap: String,

    /// The broker's process, for CPU and memory; found by its listening port if not given
    #[arg(long)]
    pub(crate) pid: Option<u32>,
}

/// A broker's address, and its process if that is known.
#[derive(Clone)]
pub(crate) struct BrokerTarget {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    pub(crate) process: Option<Process>,
}

impl BrokerTarget {
    pub(crate) fn find(args: &TargetArgs) -> Result<BrokerTarget> {
        let address = resolve(&args.bootstrap)?;
        let process = broker_behind(address, args.pid);
        Ok(BrokerTarget { name: args.bootstrap.clone(), address, process })
    }
}

/// The format of the results.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct FormatArgs {
    /// Write one JSON object a line, for scripts
    #[arg(long, global = true)]
    json: bool,
}

impl FormatArgs {
    pub(crate) fn format(self) -> ReportFormat {
        if self.json { ReportFormat::JsonLines } else { ReportFormat::Table }
    }
}

/// The client whose way of filling batches and requests is followed.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientStyle {
    /// Batches of 1,000,000 bytes, one a request
    Librdkafka,
    /// Batches of 16 KiB, one for each partition in a request of at most 1 MiB
    Java,
}

impl ClientStyle {
    fn batch_bytes(self) -> u64 {
        match self {
            ClientStyle::Librdkafka => 1_000_000,
            ClientStyle::Java => 16_384,
        }
    }
}

/// The contents of a topic, and the way they get there.
#[derive(Args, Clone, Debug)]
pub(crate) struct TopicLoad {
    /// Bytes in each record's value
    #[arg(long, default_value = "1KiB")]
    pub(crate) size: ByteSize,

    /// Partitions of the topic
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) partitions: u32,

    #[command(flatten)]
    pub(crate) volume: TransferVolume,
}

/// The bytes to move, and their pieces.
#[derive(Args, Clone, Debug)]
pub(crate) struct TransferVolume {
    /// Bytes of values to move in the measured part of the run
    #[arg(long, default_value = "1GiB")]
    pub(crate) bytes: ByteSize,

    /// Bytes of values to move first, not measured: never more than --bytes, but a batch for each
    /// partition, or 0 for none
    #[arg(long, default_value = "256MiB")]
    warmup: ByteSize,

    /// The client whose batches are copied
    #[arg(long, value_enum, default_value_t = ClientStyle::Librdkafka)]
    like: ClientStyle,

    /// Bytes in a batch at most; one record at least
    #[arg(long)]
    batch: Option<ByteSize>,

    /// Batches in a request, each for another partition
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    per_request: Option<u32>,

    /// Connections, among which the partitions are dealt
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) connections: u32,

    /// Fail after this many seconds
    #[arg(long, default_value_t = 900)]
    seconds_max: u64,

    /// Seconds to leave the broker alone before its CPU is read for the second time
    #[arg(long, default_value_t = 1.0)]
    settle: f64,
}

const FIRST_BATCHES_BYTES_MAX: u64 = 1 << 30;

/// Java's `max.request.size`.
const JAVA_REQUEST_BYTES_MAX: u64 = 1 << 20;

impl TopicLoad {
    pub(crate) fn batch_bytes(&self) -> u64 {
        self.volume.batch.map_or_else(|| self.volume.like.batch_bytes(), |size| size.0)
    }

    pub(crate) fn batches_per_request(&self) -> u32 {
        let fitting = (JAVA_REQUEST_BYTES_MAX / self.batch_bytes().max(self.size.0).max(1)).max(1);
        self.volume.per_request.unwrap_or(match self.volume.like {
            ClientStyle::Librdkafka => 1,
            ClientStyle::Java => u32::try_from(fitting).unwrap_or(u32::MAX).min(self.partitions),
        })
    }

    /// As much as was requested, but at least a batch for each partition: a broker's first append
    /// to a partition creates files and syncs them, and is not like those that follow.
    pub(crate) fn warmup_bytes(&self) -> u64 {
        let asked = self.volume.warmup.0.min(self.volume.bytes.0);
        let every_partition = self.batch_bytes().max(self.size.0) * u64::from(self.partitions);
        if asked == 0 { 0 } else { asked.max(every_partition.min(FIRST_BATCHES_BYTES_MAX)) }
    }

    pub(crate) fn idle_time(&self) -> Duration {
        Duration::from_secs_f64(self.volume.settle.clamp(0.0, 60.0))
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs(self.volume.seconds_max)
    }

    /// The same over another number of connections.
    pub(crate) fn with_connections(&self, connections: u32) -> TopicLoad {
        TopicLoad { volume: TransferVolume { connections, ..self.volume.clone() }, ..self.clone() }
    }

    /// The partitions of each connection; they are shared if there are more connections.
    pub(crate) fn deal_partitions(&self) -> Vec<Vec<i32>> {
        let (connections, partitions) = (self.volume.connections as i32, self.partitions as i32);
        (0..connections)
            .map(|connection| {
                if connections <= partitions {
                    (connection..partitions).step_by(connections as usize).collect()
                } else {
                    vec![connection % partitions]
                }
            })
            .collect()
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} p={} batch={}", self.size, self.partitions, ByteSize(self.batch_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct LoadLine {
        #[command(flatten)]
        load: TopicLoad,
    }

    fn load(line: &[&str]) -> TopicLoad {
        LoadLine::parse_from([&["bench"], line].concat()).load
    }

    #[test]
    fn each_partition_is_dealt_to_one_connection_while_there_are_enough() {
        let dealt = load(&["--partitions", "5", "--connections", "2"]).deal_partitions();
        assert_eq!(dealt, [vec![0, 2, 4], vec![1, 3]]);
        let shared = load(&["--partitions", "2", "--connections", "3"]).deal_partitions();
        assert_eq!(shared, [vec![0], vec![1], vec![0]]);
    }

    #[test]
    fn warming_up_touches_every_partition_unless_there_is_none() {
        let warmup = |line: &[&str]| load(line).warmup_bytes();
        assert_eq!(warmup(&["--warmup", "1MiB", "--partitions", "100"]), 100_000_000);
        assert_eq!(warmup(&["--warmup", "64MiB", "--bytes", "8MiB"]), 8 << 20);
        assert_eq!(warmup(&["--warmup", "0", "--partitions", "100"]), 0);
    }

    #[test]
    fn requests_are_filled_as_the_client_named_fills_them() {
        let librdkafka = load(&["--partitions", "100"]);
        assert_eq!((librdkafka.batch_bytes(), librdkafka.batches_per_request()), (1_000_000, 1));
        let java = load(&["--partitions", "100", "--like", "java"]);
        assert_eq!((java.batch_bytes(), java.batches_per_request()), (16_384, 64));
        assert_eq!(load(&["--partitions", "3", "--like", "java"]).batches_per_request(), 3);
        assert_eq!(load(&["--like", "java", "--size", "4MiB"]).batches_per_request(), 1);
    }
}
