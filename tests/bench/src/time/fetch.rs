//! Reading a topic as of a moment: beside reading it as it is, and with many readers, each at a moment
//! of its own.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use kafka_protocol::messages::TopicName;
use kafka_protocol::protocol::StrBytes;

use super::Bench;
use crate::ballast::Ballast;
use crate::batch::Batch;
use crate::connection::{Connection, PATIENCE};
use crate::consume::{Fetcher, Fetching};
use crate::produce::now_ms;
use crate::sender::{Acks, Manner, Sender};
use crate::size::ByteSize;
use crate::store::{
    finding::{Findings, Goal},
    rounds::{Measured, Round, Side, Stopwatch, take_turns},
};
use crate::target::Target;
use crate::topic::{LATEST, Topic, offsets};

const PARTITIONS: u32 = 4;
const RECORD_BYTES: usize = 1 << 10;
const BATCH_BYTES: usize = 64 << 10;
const TO_REACH: f64 = 0.95;
/// The moments of the readers lie in the last half of so many steps.
const STEPS: u64 = 64;
/// How often one reader reads all in a round of a comparison.
const PASSES: usize = 4;
const READERS: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// A topic with records in it, and moments at which there were more and more of them.
struct Filled {
    topic: Topic,
    /// Milliseconds since 1970.
    moments: Vec<i64>,
}

fn fill(target: &Target, bytes: u64) -> Result<Filled> {
    let topic = Topic::create(target.address, PARTITIONS, BATCH_BYTES)?;
    let batch = Arc::new(Batch::filled(RECORD_BYTES, BATCH_BYTES, now_ms()?));
    let partitions: Vec<i32> = (0..PARTITIONS as i32).collect();
    let manner =
        Manner { acks: Acks::All, batches_per_request: 4, inflight_max: 5, idempotent: false };
    let mut sender = Sender::connect(target.address, &topic.name, &partitions, batch, manner)?;
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut moments = Vec::new();
    for _ in 0..STEPS {
        sender.send(bytes / STEPS, &Ballast::none(), deadline)?;
        let moment = now_ms()? + 1;
        // What is written in this millisecond belongs to it too: the next step begins after it.
        while now_ms()? <= moment {
            thread::yield_now();
        }
        moments.push(moment);
    }
    Ok(Filled { topic, moments })
}

impl Filled {
    fn named(&self, moment: &str) -> TopicName {
        TopicName(StrBytes::from_string(format!("{}{moment}", self.topic.name.0.as_str())))
    }

    fn as_of(&self, axis: char, moment: i64) -> TopicName {
        self.named(&format!(".__at.{axis}{moment}"))
    }
}

/// Reads a topic from its start to its end on one connection; how many bytes of values that was.
fn read(target: &Target, topic: &TopicName) -> Result<u64> {
    let mut connection = Connection::open(target.address)?;
    let ends = offsets(&mut connection, topic, PARTITIONS, LATEST)?;
    let ends = (0..PARTITIONS as i32).zip(ends).collect();
    let fetching = Fetching {
        fetch_max: ByteSize(50 << 20),
        partition_max: ByteSize(1 << 20),
        max_wait_ms: 500,
        check_crc: false,
    };
    let partitions: Vec<i32> = (0..PARTITIONS as i32).collect();
    let mut fetcher = Fetcher::connect(target.address, topic, &partitions, &fetching)?;
    let records = fetcher.read_to(&ends, Instant::now() + PATIENCE)?;
    Ok(records * RECORD_BYTES as u64)
}

/// Reads all topics at once, each with a reader of its own, as often as is said.
fn read_at_once(target: &Target, topics: &[TopicName], passes: usize) -> Result<Round> {
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
    let mut round = Round::default().with("MB/s", megabytes / stopwatch.wall().as_secs_f64());
    if let Some((after, before)) = broker_cpu().zip(before) {
        let used = after.since(before).total().as_secs_f64();
        round = round.with("broker CPU s/GB", used / gigabytes);
    }
    Ok(round.with("client CPU s/GB", stopwatch.cpu().as_secs_f64() / gigabytes))
}

/// The same bytes as they are, as of a moment of system time, and as of one of user time.
pub(crate) fn run(bench: &Bench) -> Result<Findings> {
    let target = bench.target()?;
    let filled = fill(&target, bench.bytes)?;
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
        Side::new(name, move |_| read_at_once(target, std::slice::from_ref(&topic), PASSES))
    });
    let measured = take_turns(bench.turns, sides.collect())?;
    let mut found = Findings::default();
    found.add(0.0, "", &measured);
    ratios(&measured, &mut found);
    Ok(found)
}

fn ratios(measured: &[Measured], found: &mut Findings) {
    let [present, moments @ ..] = measured else { return };
    for moment in moments {
        let rates = (moment.figure("MB/s"), present.figure("MB/s"));
        if let (Some(then), Some(now)) = rates {
            let what = format!("{} / as it is", moment.name);
            found.goals.push(Goal::at_least(TO_REACH, what, then.over(now)));
        }
        let costs = (moment.figure("broker CPU s/GB"), present.figure("broker CPU s/GB"));
        if let (Some(then), Some(now)) = costs
            && then.low() > 0.0
        {
            let what = format!("{} / as it is, by the broker's CPU", moment.name);
            found.goals.push(Goal::at_least(TO_REACH, what, now.over(then)));
        }
    }
}

/// F37: as many readers as moments, all at once.
pub(crate) fn run_parallel(bench: &Bench) -> Result<Findings> {
    let target = bench.target()?;
    let filled = fill(&target, bench.bytes)?;
    let late = &filled.moments[filled.moments.len() / 2..];
    let mut sides = Vec::new();
    for readers in READERS {
        let moments = (0..readers).map(|nth| late[late.len() - 1 - nth * late.len() / readers]);
        let topics: Vec<TopicName> = moments.map(|moment| filled.as_of('s', moment)).collect();
        let present = vec![filled.topic.name.clone(); readers];
        let target = &target;
        sides.push(Side::new("each at a moment of its own", move |_| {
            read_at_once(target, &topics, 1)
        }));
        sides.push(Side::new("all at the present", move |_| read_at_once(target, &present, 1)));
    }
    let measured = take_turns(bench.turns, sides)?;
    let mut found = Findings::default();
    for (readers, measured) in READERS.iter().zip(measured.chunks(2)) {
        found.add(*readers as f64, &readers.to_string(), measured);
        if let [then, now] = measured
            && let (Some(then), Some(now)) = (then.figure("MB/s"), now.figure("MB/s"))
        {
            let what = format!("{readers} readers, each at its moment / all at the present");
            found.goals.push(Goal::at_least(TO_REACH, what, then.over(now)));
        }
    }
    Ok(found)
}
