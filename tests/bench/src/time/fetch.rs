//! Reading a topic as of a moment: compared with reading the present, and with many readers, each
//! at a moment of its own.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;

use super::TimeContext;
use crate::batch::BenchBatch;
use crate::connection::{BenchConnection, TIMEOUT};
use crate::consume::{BenchFetcher, FetchArgs};
use crate::pretouch::PretouchedMemory;
use crate::produce::now_ms;
use crate::sender::{BatchSender, BenchAcks, SendOptions};
use crate::size::ByteSize;
use crate::store::{
    experiment::{ExperimentResults, PerformanceGoal},
    rounds::{ComparisonSide, RoundFigures, SideFigures, Stopwatch, run_interleaved},
};
use crate::target::BrokerTarget;
use crate::topic::{BenchTopic, LATEST, offsets};

const PARTITIONS: u32 = 4;
const RECORD_BYTES: usize = 1 << 10;
const BATCH_BYTES: usize = 64 << 10;
const TO_REACH: f64 = 0.95;
/// The moments of the readers lie in the last half of so many steps.
const STEPS: u64 = 64;
/// The number of times that one reader reads all in a round of a comparison.
const PASSES: usize = 4;
const READERS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// A topic with records in it, and moments at which there were more and more of them.
struct HistoryTopic {
    topic: BenchTopic,
    /// Milliseconds since 1970.
    moments: Vec<i64>,
}

fn create_history_topic(target: &BrokerTarget, bytes: u64) -> Result<HistoryTopic> {
    let topic = BenchTopic::create(target.address, PARTITIONS, BATCH_BYTES)?;
    let batch = Arc::new(BenchBatch::filled(RECORD_BYTES, BATCH_BYTES, now_ms()?));
    let partitions: Vec<i32> = (0..PARTITIONS as i32).collect();
    let manner = SendOptions {
        acks: BenchAcks::All,
        batches_per_request: 4,
        inflight_max: 5,
        idempotent: false,
    };
    let mut sender = BatchSender::connect(target.address, &topic.name, &partitions, batch, manner)?;
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut moments = Vec::new();
    for _ in 0..STEPS {
        sender.send(bytes / STEPS, &PretouchedMemory::empty(), deadline)?;
        let moment = now_ms()? + 1;
        // Writes in this millisecond belong to it too: the next step begins after it.
        while now_ms()? <= moment {
            thread::yield_now();
        }
        moments.push(moment);
    }
    Ok(HistoryTopic { topic, moments })
}

impl HistoryTopic {
    fn name_at(&self, moment: &str) -> TopicName {
        TopicName(StrBytes::from_string(format!("{}{moment}", self.topic.name.0.as_str())))
    }

    fn as_of(&self, axis: char, moment: i64) -> TopicName {
        self.name_at(&format!(".__at.{axis}{moment}"))
    }
}

/// Reads a topic from its start to its end on one connection; returns the bytes of values.
fn read(target: &BrokerTarget, topic: &TopicName) -> Result<u64> {
    let mut connection = BenchConnection::open(target.address)?;
    let ends = offsets(&mut connection, topic, PARTITIONS, LATEST)?;
    let ends = (0..PARTITIONS as i32).zip(ends).collect();
    let fetching = FetchArgs {
        fetch_max: ByteSize(50 << 20),
        partition_max: ByteSize(1 << 20),
        max_wait_ms: 500,
        check_crc: false,
    };
    let partitions: Vec<i32> = (0..PARTITIONS as i32).collect();
    let mut fetcher = BenchFetcher::connect(target.address, topic, &partitions, &fetching)?;
    let records = fetcher.read_to(&ends, Instant::now() + TIMEOUT)?;
    Ok(records * RECORD_BYTES as u64)
}

/// Reads all topics at once, each with its own reader, `passes` times.
fn read_at_once(
    target: &BrokerTarget,
    topics: &[TopicName],
    passes: usize,
) -> Result<RoundFigures> {
    let broker_cpu = || target.process.and_then(|process| process.cpu().ok());
    let (stopwatch, before) = (Stopwatch::start(), broker_cpu());
    let pass =
        |topic| -> Result<u64> { (0..passes).try_fold(0, |sum, _| Ok(sum + read(target, topic)?)) };
    let bytes = thread::scope(|scope| {
        let runs: Vec<_> = topics.iter().map(|topic| scope.spawn(move || pass(topic))).collect();
        runs.into_iter().try_fold(0, |sum, run| {
            Ok::<u64, anyhow::Error>(sum + run.join().map_err(|_| anyhow!("a reader panicked"))??)
        })
    })?;
    let (megabytes, gigabytes) = (bytes as f64 / 1e6, bytes as f64 / 1e9);
    let mut round =
        RoundFigures::default().with("MB/s", megabytes / stopwatch.wall().as_secs_f64());
    if let Some((after, before)) = broker_cpu().zip(before) {
        let used = after.since(before).total().as_secs_f64();
        round = round.with("broker CPU s/GB", used / gigabytes);
    }
    Ok(round.with("client CPU s/GB", stopwatch.cpu().as_secs_f64() / gigabytes))
}

/// The same bytes at present, as of a moment of system time, and as of one of user time.
pub(crate) fn run(bench: &TimeContext) -> Result<ExperimentResults> {
    let target = bench.target()?;
    let filled = create_history_topic(&target, bench.bytes)?;
    let end = filled.moments.last().copied().unwrap_or_default();
    let present = filled.topic.name.clone();
    let names = [
        ("as it is", present.clone()),
        ("as of a moment of system time", filled.as_of('s', end)),
        ("as of a moment of user time", filled.as_of('u', end)),
    ];
    for (name, topic) in &names {
        let (all, held) = (read(&target, &present)?, read(&target, topic)?);
        ensure!(all == held, "{name}, the topic holds other bytes. now={all}, then={held}");
    }
    let target = &target;
    let sides = names.into_iter().map(|(name, topic)| {
        ComparisonSide::new(name, move |_| {
            read_at_once(target, std::slice::from_ref(&topic), PASSES)
        })
    });
    let measured = run_interleaved(bench.rounds, sides.collect())?;
    let mut found = ExperimentResults::default();
    found.add(0.0, "", &measured);
    ratios(&measured, &mut found);
    Ok(found)
}

fn ratios(measured: &[SideFigures], found: &mut ExperimentResults) {
    let [present, moments @ ..] = measured else { return };
    for moment in moments {
        let rates = (moment.figure("MB/s"), present.figure("MB/s"));
        if let (Some(then), Some(now)) = rates {
            let what = format!("{} / as it is", moment.name);
            found.goals.push(PerformanceGoal::at_least(TO_REACH, what, then.over(now)));
        }
        let costs = (moment.figure("broker CPU s/GB"), present.figure("broker CPU s/GB"));
        if let (Some(then), Some(now)) = costs
            && then.low() > 0.0
        {
            let what = format!("{} / as it is, by the broker's CPU", moment.name);
            found.goals.push(PerformanceGoal::at_least(TO_REACH, what, now.over(then)));
        }
    }
}

/// F37: as many readers as moments, all at once.
pub(crate) fn run_parallel(bench: &TimeContext) -> Result<ExperimentResults> {
    let target = bench.target()?;
    let filled = create_history_topic(&target, bench.bytes)?;
    let late = &filled.moments[filled.moments.len() / 2..];
    let mut sides = Vec::new();
    for readers in READERS {
        let moments = (0..readers).map(|nth| late[late.len() - 1 - nth * late.len() / readers]);
        let topics: Vec<TopicName> = moments.map(|moment| filled.as_of('s', moment)).collect();
        let present = vec![filled.topic.name.clone(); readers];
        let target = &target;
        sides.push(ComparisonSide::new("each at a moment of its own", move |_| {
            read_at_once(target, &topics, 1)
        }));
        sides.push(ComparisonSide::new("all at the present", move |_| {
            read_at_once(target, &present, 1)
        }));
    }
    let measured = run_interleaved(bench.rounds, sides)?;
    let mut found = ExperimentResults::default();
    for (readers, measured) in READERS.iter().zip(measured.chunks(2)) {
        found.add(*readers as f64, &readers.to_string(), measured);
        if let [then, now] = measured
            && let (Some(then), Some(now)) = (then.figure("MB/s"), now.figure("MB/s"))
        {
            let what = format!("{readers} readers, each at its moment / all at the present");
            found.goals.push(PerformanceGoal::at_least(TO_REACH, what, then.over(now)));
        }
    }
    Ok(found)
}
