//! The rate at which a broker accepts records, and its cost.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow};
use clap::Args;

use crate::{
    batch::BenchBatch,
    histogram::Histogram,
    meter::UsageMeter,
    pretouch::PretouchedMemory,
    report::{BenchReport, FigureDirection, millis},
    sender::{BatchSender, BenchAcks, SendOptions, SendTotals},
    target::{BrokerTarget, TopicLoad},
    topic::BenchTopic,
};

/// The records to produce, and the requests.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProduceWork {
    #[command(flatten)]
    pub(crate) load: TopicLoad,

    /// The acknowledgement to ask the broker for
    #[arg(long, value_enum, default_value_t = BenchAcks::All)]
    pub(crate) acks: BenchAcks,

    /// Unanswered requests on a connection
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) inflight: u32,

    /// Send producer ids and sequence numbers, as Java clients do by default
    #[arg(long)]
    pub(crate) idempotent: bool,

    /// Do not touch the memory that the run will fill beforehand: on a virtual machine the broker
    /// may then be charged for what its host does
    #[arg(long)]
    pub(crate) cold_memory: bool,
}

impl ProduceWork {
    fn send_options(&self) -> SendOptions {
        SendOptions {
            acks: self.acks,
            batches_per_request: self.load.batches_per_request(),
            inflight_max: self.inflight as usize,
            idempotent: self.idempotent,
        }
    }

    fn describe(&self) -> String {
        let (connections, idempotent) = (self.load.volume.connections, self.idempotent);
        let mut text = format!("{} acks={}", self.load.describe(), self.acks.name());
        if self.load.batches_per_request() > 1 {
            text += &format!(" x{}", self.load.batches_per_request());
        }
        if connections > 1 {
            text += &format!(" conns={connections}");
        }
        if idempotent {
            text += " idempotent";
        }
        text
    }
}

/// The producers of one run, all on the same topic.
pub(crate) struct BenchProducers {
    senders: Vec<BatchSender>,
    memory: PretouchedMemory,
    deadline: Instant,
}

impl BenchProducers {
    pub(crate) fn connect(
        target: &BrokerTarget,
        topic: &BenchTopic,
        work: &ProduceWork,
    ) -> Result<BenchProducers> {
        let load = &work.load;
        let batch = Arc::new(batch_of(load)?);
        let connect = |partitions: Vec<i32>| {
            BatchSender::connect(
                target.address,
                &topic.name,
                &partitions,
                batch.clone(),
                work.send_options(),
            )
        };
        let senders = load.deal_partitions().into_iter().map(connect).collect::<Result<_>>()?;
        Ok(BenchProducers { senders, memory: PretouchedMemory::empty(), deadline: load.deadline() })
    }

    /// Sends `payload_bytes`, each connection its share, and waits for every response.
    pub(crate) fn send(&mut self, payload_bytes: u64) -> Result<SendTotals> {
        let share = payload_bytes.div_ceil(self.senders.len() as u64);
        let (deadline, ballast) = (self.deadline, &self.memory);
        thread::scope(|scope| {
            let runs: Vec<_> = self
                .senders
                .iter_mut()
                .map(|sender| scope.spawn(move || sender.send(share, ballast, deadline)))
                .collect();
            runs.into_iter().try_fold(SendTotals::default(), |sum, run| {
                let sent = run.join().map_err(|_| anyhow!("a producer panicked"))??;
                Ok(SendTotals {
                    payload_bytes: sum.payload_bytes + sent.payload_bytes,
                    requests: sum.requests + sent.requests,
                    records: sum.records + sent.records,
                })
            })
        })
    }

    /// The end of each partition, if there are no other writers.
    pub(crate) fn ends(&self) -> BTreeMap<i32, i64> {
        let mut ends = BTreeMap::new();
        for (partition, records) in self.senders.iter().flat_map(BatchSender::records_sent) {
            *ends.entry(partition).or_default() += records as i64;
        }
        ends
    }

    fn reset_waits(&mut self) {
        self.senders.iter_mut().for_each(|sender| sender.response_times = Histogram::new());
    }

    fn waits(&self) -> Histogram {
        let mut waits = Histogram::new();
        self.senders.iter().for_each(|sender| waits.merge(&sender.response_times));
        waits
    }
}

fn batch_of(load: &TopicLoad) -> Result<BenchBatch> {
    let size = usize::try_from(load.size.0)?;
    let batch_bytes_max = usize::try_from(load.batch_bytes())?;
    Ok(BenchBatch::filled(size, batch_bytes_max, now_ms()?))
}

pub(crate) fn now_ms() -> Result<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?;
    Ok(i64::try_from(since.as_millis())?)
}

/// Creates a topic for `load`, which accepts its batches.
pub(crate) fn topic_for(target: &BrokerTarget, load: &TopicLoad) -> Result<BenchTopic> {
    let batch_bytes = usize::try_from(load.batch_bytes().max(load.size.0 + 128))?;
    BenchTopic::create(target.address, load.partitions, batch_bytes)
}

/// Measures it in a topic of its own.
pub(crate) fn run(target: &BrokerTarget, work: &ProduceWork) -> Result<BenchReport> {
    let topic = topic_for(target, &work.load)?;
    run_in(&topic, target, work).map(|(report, _)| report)
}

/// Measures it in `topic`, and returns the end of each partition.
pub(crate) fn run_in(
    topic: &BenchTopic,
    target: &BrokerTarget,
    work: &ProduceWork,
) -> Result<(BenchReport, BTreeMap<i32, i64>)> {
    let mut producers = BenchProducers::connect(target, topic, work)?;
    if !work.cold_memory {
        let bytes = work.load.warmup_bytes() + work.load.volume.bytes.0;
        producers.memory = PretouchedMemory::touch(bytes + bytes / 4);
    }
    producers.send(work.load.warmup_bytes()).context("warm up")?;
    producers.reset_waits();

    let meter = UsageMeter::start(target.process)?;
    let sent = producers.send(work.load.volume.bytes.0)?;
    let usage = meter.stop(work.load.idle_time())?;

    let mut report = BenchReport::new("produce", work.describe(), &target.name);
    report.add_transfer(&usage, sent.payload_bytes, sent.requests);
    let waits = producers.waits();
    report.add(FigureDirection::Lower, "request p50 ms", millis(waits.percentile(50.0)));
    report.add(FigureDirection::Lower, "request p99 ms", millis(waits.percentile(99.0)));
    report.add(
        FigureDirection::Higher,
        "records/s",
        sent.records as f64 / usage.wall.as_secs_f64(),
    );
    Ok((report, producers.ends()))
}
