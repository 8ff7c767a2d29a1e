//! How fast a broker takes records, and at what cost.

use std::{
    collections::BTreeMap,
    sync::Arc,
    thread,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, anyhow};
use clap::Args;

use crate::{
    ballast::Ballast,
    batch::Batch,
    histogram::Histogram,
    meter::Meter,
    report::{Better, Report, millis},
    sender::{Acks, Manner, Sender, Sent},
    target::{Load, Target},
    topic::Topic,
};

/// What is produced, and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProduceWork {
    #[command(flatten)]
    pub(crate) load: Load,

    /// When the broker is to answer
    #[arg(long, value_enum, default_value_t = Acks::All)]
    pub(crate) acks: Acks,

    /// Unanswered requests on a connection
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) inflight: u32,

    /// Send producer ids and sequence numbers, as Java clients do by default
    #[arg(long)]
    pub(crate) idempotent: bool,

    /// Do not touch the memory that the run will fill beforehand: on a virtual machine the broker may
    /// then be charged for what its host does
    #[arg(long)]
    pub(crate) cold_memory: bool,
}

impl ProduceWork {
    fn manner(&self) -> Manner {
        Manner {
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
pub(crate) struct Producers {
    senders: Vec<Sender>,
    ballast: Ballast,
    deadline: Instant,
}

impl Producers {
    pub(crate) fn connect(target: &Target, topic: &Topic, work: &ProduceWork) -> Result<Producers> {
        let load = &work.load;
        let batch = Arc::new(batch_of(load)?);
        let connect = |partitions: Vec<i32>| {
            Sender::connect(target.address, &topic.name, &partitions, batch.clone(), work.manner())
        };
        let senders = load.deal_partitions().into_iter().map(connect).collect::<Result<_>>()?;
        Ok(Producers { senders, ballast: Ballast::none(), deadline: load.deadline() })
    }

    /// Sends `payload_bytes`, each connection its share, and waits for every answer.
    pub(crate) fn send(&mut self, payload_bytes: u64) -> Result<Sent> {
        let share = payload_bytes.div_ceil(self.senders.len() as u64);
        let (deadline, ballast) = (self.deadline, &self.ballast);
        thread::scope(|scope| {
            let runs: Vec<_> = self
                .senders
                .iter_mut()
                .map(|sender| scope.spawn(move || sender.send(share, ballast, deadline)))
                .collect();
            runs.into_iter().try_fold(Sent::default(), |sum, run| {
                let sent = run.join().map_err(|_| anyhow!("a producer panicked"))??;
                Ok(Sent {
                    payload_bytes: sum.payload_bytes + sent.payload_bytes,
                    requests: sum.requests + sent.requests,
                    records: sum.records + sent.records,
                })
            })
        })
    }

    /// Where each partition ends, if nobody else has written to it.
    pub(crate) fn ends(&self) -> BTreeMap<i32, i64> {
        let mut ends = BTreeMap::new();
        for (partition, records) in self.senders.iter().flat_map(Sender::records_sent) {
            *ends.entry(partition).or_default() += records as i64;
        }
        ends
    }

    fn forget_waits(&mut self) {
        self.senders.iter_mut().for_each(|sender| sender.waits = Histogram::new());
    }

    fn waits(&self) -> Histogram {
        let mut waits = Histogram::new();
        self.senders.iter().for_each(|sender| waits.merge(&sender.waits));
        waits
    }
}

fn batch_of(load: &Load) -> Result<Batch> {
    let size = usize::try_from(load.size.0)?;
    let batch_bytes_max = usize::try_from(load.batch_bytes())?;
    Ok(Batch::filled(size, batch_bytes_max, now_ms()?))
}

pub(crate) fn now_ms() -> Result<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?;
    Ok(i64::try_from(since.as_millis())?)
}

/// A topic for `load`, which admits its batches.
pub(crate) fn topic_for(target: &Target, load: &Load) -> Result<Topic> {
    let batch_bytes = usize::try_from(load.batch_bytes().max(load.size.0 + 128))?;
    Topic::create(target.address, load.partitions, batch_bytes)
}

/// Measures it in a topic of its own.
pub(crate) fn run(target: &Target, work: &ProduceWork) -> Result<Report> {
    let topic = topic_for(target, &work.load)?;
    run_in(&topic, target, work).map(|(report, _)| report)
}

/// Measures it in `topic`, and says where each partition ends then.
pub(crate) fn run_in(
    topic: &Topic,
    target: &Target,
    work: &ProduceWork,
) -> Result<(Report, BTreeMap<i32, i64>)> {
    let mut producers = Producers::connect(target, topic, work)?;
    if !work.cold_memory {
        let bytes = work.load.warmup_bytes() + work.load.volume.bytes.0;
        producers.ballast = Ballast::touch(bytes + bytes / 4);
    }
    producers.send(work.load.warmup_bytes()).context("warm up")?;
    producers.forget_waits();

    let meter = Meter::start(target.process)?;
    let sent = producers.send(work.load.volume.bytes.0)?;
    let usage = meter.stop(work.load.settle())?;

    let mut report = Report::new("produce", work.describe(), &target.name);
    report.add_transfer(&usage, sent.payload_bytes, sent.requests);
    let waits = producers.waits();
    report.add(Better::Lower, "request p50 ms", millis(waits.percentile(50.0)));
    report.add(Better::Lower, "request p99 ms", millis(waits.percentile(99.0)));
    report.add(Better::Higher, "records/s", sent.records as f64 / usage.wall.as_secs_f64());
    Ok((report, producers.ends()))
}
