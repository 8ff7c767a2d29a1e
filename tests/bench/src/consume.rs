//! The rate at which a broker returns stored records, and its cost.
//!
//! Each connection has one Fetch in flight, as librdkafka and Java have for each broker. It asks
//! for all its partitions each time, and rotates the first one. The records are checked: each batch
//! whole, and each offset once.

use std::{collections::BTreeMap, net::SocketAddr, thread, time::Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use kafka_protocol::messages::{
    FetchRequest, FetchResponse, TopicName,
    fetch_request::{FetchPartition, FetchTopic},
    fetch_response::PartitionData,
};

use crate::{
    batch::{BatchCheck, batches},
    connection::{BenchConnection, TIMEOUT, check_error_code},
    meter::UsageMeter,
    produce::{BenchProducers, ProduceWork, topic_for},
    report::{BenchReport, FigureDirection},
    sender::BenchAcks,
    size::ByteSize,
    target::{BrokerTarget, TopicLoad},
    topic::BenchTopic,
};

/// The topic to consume, and the fetches.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConsumeWork {
    #[command(flatten)]
    pub(crate) load: TopicLoad,

    #[command(flatten)]
    pub(crate) fetching: FetchArgs,
}

/// The size of fetches. The defaults are librdkafka's, and Java's.
#[derive(Args, Clone, Debug)]
pub(crate) struct FetchArgs {
    /// Bytes in an answer at most
    #[arg(long, default_value = "50MiB")]
    pub(crate) fetch_max: ByteSize,

    /// Bytes of one partition in an answer at most
    #[arg(long, default_value = "1MiB")]
    pub(crate) partition_max: ByteSize,

    /// Milliseconds that the broker may wait for records
    #[arg(long, default_value_t = 500)]
    pub(crate) max_wait_ms: i32,

    /// Compute each batch's check sum too, as consumers by default do
    #[arg(long)]
    pub(crate) check_crc: bool,
}

/// A consumer on one connection.
pub(crate) struct BenchFetcher {
    connection: BenchConnection,
    version: i16,
    topic: TopicName,
    fetching: FetchArgs,
    /// Kafka's number: 0 is all records, 1 the committed ones.
    isolation: i8,
    /// The next offset of each partition; the first entry is asked for first.
    next_offsets: Vec<(i32, i64)>,
}

/// The totals of all fetches.
#[derive(Clone, Copy, Debug, Default)]
struct FetchTotals {
    records: u64,
    wire_bytes: u64,
    requests: u64,
}

impl BenchFetcher {
    pub(crate) fn connect(
        address: SocketAddr,
        topic: &TopicName,
        partitions: &[i32],
        fetching: &FetchArgs,
    ) -> Result<BenchFetcher> {
        let connection = BenchConnection::open(address)?;
        let version = connection.version::<FetchRequest>(4..=12)?;
        let wanted = partitions.iter().map(|partition| (*partition, 0)).collect();
        Ok(BenchFetcher {
            connection,
            version,
            topic: topic.clone(),
            fetching: fetching.clone(),
            isolation: 0,
            next_offsets: wanted,
        })
    }

    /// Asks for committed records only.
    pub(crate) fn only_committed(mut self) -> BenchFetcher {
        self.isolation = 1;
        self
    }

    pub(crate) fn rewind(&mut self) {
        self.next_offsets.iter_mut().for_each(|(_, offset)| *offset = 0);
    }

    /// Fetches every partition once.
    pub(crate) fn fetch(&mut self) -> Result<FetchResponse> {
        let partition_max_bytes = i32::try_from(self.fetching.partition_max.0)?;
        let partitions = self.next_offsets.iter().map(|(partition, offset)| {
            FetchPartition::default()
                .with_partition(*partition)
                .with_fetch_offset(*offset)
                .with_partition_max_bytes(partition_max_bytes)
        });
        let topic = FetchTopic::default()
            .with_topic(self.topic.clone())
            .with_partitions(partitions.collect());
        let request = FetchRequest::default()
            .with_max_wait_ms(self.fetching.max_wait_ms)
            .with_isolation_level(self.isolation)
            .with_min_bytes(1)
            .with_max_bytes(i32::try_from(self.fetching.fetch_max.0)?)
            .with_topics(vec![topic]);
        self.next_offsets.rotate_left(1);
        let response = self.connection.call(&request, self.version)?;
        check_error_code(response.error_code).context("fetch")?;
        Ok(response)
    }

    /// Checks the batches of one partition, and moves past them. Passes each batch to `see`.
    pub(crate) fn check_partition(
        &mut self,
        data: &PartitionData,
        mut see: impl FnMut(&crate::batch::FetchedBatch<'_>) -> Result<()>,
    ) -> Result<()> {
        let partition = data.partition_index;
        check_error_code(data.error_code)
            .with_context(|| format!("fetch partition {partition}"))?;
        let check =
            if self.fetching.check_crc { BatchCheck::FramingAndCrc } else { BatchCheck::Framing };
        let wanted = self.next_offsets.iter_mut().find(|(index, _)| *index == partition);
        let (_, wanted) = wanted.context("the broker sent a partition that was not asked for")?;
        for batch in batches(data.records.as_deref().unwrap_or_default(), check) {
            let batch = batch?;
            ensure!(
                batch.header.base_offset == *wanted,
                "offsets are not in turn. partition={partition}, wanted={wanted}, got={}",
                batch.header.base_offset
            );
            *wanted = batch.header.last_offset() + 1;
            see(&batch)?;
        }
        Ok(())
    }

    /// Reads until every partition has been read up to its end in `ends`, or `records_max` were
    /// seen.
    fn read(
        &mut self,
        ends: &BTreeMap<i32, i64>,
        records_max: u64,
        deadline: Instant,
    ) -> Result<FetchTotals> {
        let mut fetched = FetchTotals::default();
        let mut last_progress = Instant::now();
        while fetched.records < records_max && !self.has_reached(ends) {
            ensure!(Instant::now() < deadline, "the run takes too long. read={fetched:?}");
            let before = fetched.records;
            let response = self.fetch()?;
            fetched.requests += 1;
            for data in response.responses.iter().flat_map(|topic| &topic.partitions) {
                fetched.wire_bytes += data.records.as_ref().map_or(0, |it| it.len() as u64);
                self.check_partition(data, |batch| {
                    fetched.records += batch.record_count();
                    Ok(())
                })?;
            }
            if fetched.records > before {
                last_progress = Instant::now();
            }
            ensure!(last_progress.elapsed() < TIMEOUT, "no records come. read={fetched:?}");
        }
        Ok(fetched)
    }

    /// Reads up to the ends of all partitions; returns the number of records.
    pub(crate) fn read_to(&mut self, ends: &BTreeMap<i32, i64>, deadline: Instant) -> Result<u64> {
        Ok(self.read(ends, u64::MAX, deadline)?.records)
    }

    /// Reads up to the ends of all partitions; returns the bytes of batches.
    pub(crate) fn read_bytes_to(
        &mut self,
        ends: &BTreeMap<i32, i64>,
        deadline: Instant,
    ) -> Result<u64> {
        Ok(self.read(ends, u64::MAX, deadline)?.wire_bytes)
    }

    fn has_reached(&self, ends: &BTreeMap<i32, i64>) -> bool {
        self.next_offsets
            .iter()
            .all(|(partition, next)| *next >= *ends.get(partition).unwrap_or(&0))
    }
}

/// Reads with all fetchers at once.
fn read_all(
    fetchers: &mut [BenchFetcher],
    ends: &BTreeMap<i32, i64>,
    records_max: u64,
    deadline: Instant,
) -> Result<FetchTotals> {
    let share = records_max.div_ceil(fetchers.len() as u64);
    thread::scope(|scope| {
        let runs: Vec<_> = fetchers
            .iter_mut()
            .map(|fetcher| scope.spawn(move || fetcher.read(ends, share, deadline)))
            .collect();
        runs.into_iter().try_fold(FetchTotals::default(), |sum, run| {
            let fetched = run.join().map_err(|_| anyhow!("a consumer panicked"))??;
            Ok(FetchTotals {
                records: sum.records + fetched.records,
                wire_bytes: sum.wire_bytes + fetched.wire_bytes,
                requests: sum.requests + fetched.requests,
            })
        })
    })
}

/// Fills a topic of its own, and measures reading it.
pub(crate) fn run(target: &BrokerTarget, work: &ConsumeWork) -> Result<BenchReport> {
    let topic = topic_for(target, &work.load)?;
    let filling = ProduceWork {
        load: work.load.with_connections(1),
        acks: BenchAcks::All,
        inflight: 5,
        idempotent: false,
        cold_memory: true,
    };
    let mut producers = BenchProducers::connect(target, &topic, &filling)?;
    producers.send(work.load.volume.bytes.0).context("fill the topic")?;
    let ends = producers.ends();
    drop(producers);
    run_in(&topic, &ends, target, work)
}

/// Measures reading `topic` from its start up to `ends`.
pub(crate) fn run_in(
    topic: &BenchTopic,
    ends: &BTreeMap<i32, i64>,
    target: &BrokerTarget,
    work: &ConsumeWork,
) -> Result<BenchReport> {
    let load = &work.load;
    // If connections outnumber partitions, each would read all of its partition.
    let load = load.with_connections(load.volume.connections.min(load.partitions));
    let deadline = load.deadline();
    let connect = |partitions: Vec<i32>| {
        BenchFetcher::connect(target.address, &topic.name, &partitions, &work.fetching)
    };
    let mut fetchers: Vec<BenchFetcher> =
        load.deal_partitions().into_iter().map(connect).collect::<Result<_>>()?;
    let warmup_records = load.warmup_bytes() / load.size.0.max(1);
    read_all(&mut fetchers, ends, warmup_records, deadline).context("warm up")?;
    fetchers.iter_mut().for_each(BenchFetcher::rewind);

    let meter = UsageMeter::start(target.process)?;
    let fetched = read_all(&mut fetchers, ends, u64::MAX, deadline)?;
    let usage = meter.stop(load.idle_time())?;

    let mut report = BenchReport::new("consume", load.describe(), &target.name);
    report.add_transfer(&usage, fetched.records * load.size.0, fetched.requests);
    report.add(
        FigureDirection::Neither,
        "bytes a request",
        fetched.wire_bytes as f64 / fetched.requests.max(1) as f64,
    );
    Ok(report)
}
