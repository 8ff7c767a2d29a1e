//! A cut across many partitions: at a moment that was not read yet, and at the same again.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use client::{Client, history::PendingMomentPolicy};
use hlc::{Cut, Hlc, Moment, SysTime};
use testkit::rng::SeededRng;

use super::TimeContext;
use super::engine_driver::EngineDriver;
use crate::batch::BenchBatch;
use crate::histogram::Histogram;
use crate::pretouch::PretouchedMemory;
use crate::process::Process;
use crate::produce::now_ms;
use crate::sender::{BatchSender, BenchAcks, SendOptions};
use crate::store::{
    experiment::{ExperimentResults, PerformanceGoal},
    rounds::{ComparisonSide, RoundFigures, Stopwatch, run_interleaved},
};
use crate::topic::BenchTopic;

const GOAL_MS: f64 = 5.0;
/// Batches of each partition.
const BATCHES: u64 = 10;
const TOPIC_PARTITIONS: u64 = 1_000;
/// Moments in a round.
const MOMENTS: u64 = 20;

pub(crate) fn run(bench: &TimeContext) -> Result<ExperimentResults> {
    let mut found = ExperimentResults::default();
    for partitions in [100, 1_000, 10_000, bench.partitions] {
        if partitions <= bench.partitions
            && found.points.iter().all(|it| it.at != partitions as f64)
        {
            inside(bench, partitions, &mut found)?;
        }
    }
    Ok(found)
}

fn inside(bench: &TimeContext, partitions: u64, found: &mut ExperimentResults) -> Result<()> {
    let scratch = bench.scratch("cut")?;
    let driver = EngineDriver::open(scratch.path(), 32 << 20)?;
    let (first, last) = fill(&driver, partitions)?;
    let measure = |driver: &EngineDriver,
                   name: &str,
                   found: &mut ExperimentResults|
     -> Result<()> {
        let round = |seed: u64| moments(first, last, seed).collect::<Vec<Cut>>();
        let cut = |moment: &Cut| {
            let held = driver.cut(*moment)?;
            ensure!(held as u64 == partitions, "a cut lacks partitions. held={held}");
            Ok(())
        };
        let sides = vec![
            ComparisonSide::new(&format!("{name}, first"), |nth| timed(&round(nth as u64), cut)),
            ComparisonSide::new(&format!("{name}, again"), |nth| {
                let round = &round(nth as u64)[..1];
                round.iter().try_for_each(cut)?;
                timed(&vec![round[0]; MOMENTS as usize], cut)
            }),
        ];
        let measured = run_interleaved(bench.rounds, sides)?;
        found.add(partitions as f64, &partitions.to_string(), &measured);
        goals(partitions, &measured, found);
        Ok(())
    };
    measure(&driver, "in the process that wrote", found)?;
    driver.close();
    let driver = EngineDriver::open(scratch.path(), 32 << 20)?;
    measure(&driver, "after a restart", found)?;
    driver.close();
    Ok(())
}

/// Creates topics whose partitions all have some batches, written round by round; returns the
/// moments before and after.
fn fill(driver: &EngineDriver, partitions: u64) -> Result<(Hlc, Hlc)> {
    let mut topics = Vec::new();
    for nth in 0..partitions.div_ceil(TOPIC_PARTITIONS) {
        let rest = (partitions - nth * TOPIC_PARTITIONS).min(TOPIC_PARTITIONS);
        topics.push(driver.create(&format!("topic-{nth}"), rest as u32)?);
    }
    let first = driver.now();
    for round in 0..BATCHES {
        for topic in &topics {
            let all = 0..topic.partitions.len() as u32;
            driver.append(topic, all.map(|partition| (partition, round)))?;
        }
    }
    Ok((first, driver.now()))
}

/// Random moments that were not read yet.
fn moments(first: Hlc, last: Hlc, seed: u64) -> impl Iterator<Item = Cut> {
    let mut random = SeededRng::new(seed);
    let moment =
        move |_| first.bits() + random.below(last.bits().saturating_sub(first.bits()).max(1));
    (0..MOMENTS).map(moment).map(|bits| Cut::below(Hlc::from_bits(bits)))
}

fn timed<T>(asked: &[T], mut ask: impl FnMut(&T) -> Result<()>) -> Result<RoundFigures> {
    let mut histogram = Histogram::new();
    let stopwatch = Stopwatch::start();
    for moment in asked {
        let before = Instant::now();
        ask(moment)?;
        histogram.record(before.elapsed());
    }
    let cpu = stopwatch.cpu().as_secs_f64() * 1e3 / asked.len() as f64;
    Ok(times(&histogram).with("CPU ms", cpu))
}

fn times(histogram: &Histogram) -> RoundFigures {
    let ms = |percent| histogram.percentile(percent).as_secs_f64() * 1e3;
    RoundFigures::default().with("p50 ms", ms(50.0)).with("max ms", ms(100.0))
}

fn goals(
    partitions: u64,
    measured: &[crate::store::rounds::SideFigures],
    found: &mut ExperimentResults,
) {
    if partitions != 10_000 {
        return;
    }
    for side in measured {
        if let Some(spread) = side.figure("p50 ms") {
            let what = format!("{}, ms for {partitions} partitions", side.name);
            found.goals.push(PerformanceGoal::at_most(GOAL_MS, what, spread.clone()));
        }
    }
}

/// The same through the server's extension API, with the project's client.
pub(crate) fn run_server(bench: &TimeContext) -> Result<ExperimentResults> {
    let target = bench.target()?;
    let topics = (0..bench.partitions.div_ceil(TOPIC_PARTITIONS)).map(|nth| {
        let rest = (bench.partitions - nth * TOPIC_PARTITIONS).min(TOPIC_PARTITIONS);
        BenchTopic::create(target.address, rest as u32, 0)
    });
    let topics: Vec<BenchTopic> = topics.collect::<Result<_>>()?;
    // The topics themselves must be in each cut: moments are after the last creation.
    let first = now_ms()? + 1;
    let batch = Arc::new(BenchBatch::filled(16, 128, first));
    let manner = SendOptions {
        acks: BenchAcks::Leader,
        batches_per_request: 100,
        inflight_max: 5,
        idempotent: false,
    };
    let deadline = Instant::now() + Duration::from_secs(300);
    for topic in &topics {
        let partitions: Vec<i32> = (0..topic.partition_count as i32).collect();
        let mut sender =
            BatchSender::connect(target.address, &topic.name, &partitions, batch.clone(), manner)?;
        let bytes = batch.payload_bytes * BATCHES * u64::from(topic.partition_count);
        sender.send(bytes, &PretouchedMemory::empty(), deadline)?;
    }
    let (first, last) = (stamp(first), stamp(now_ms()?));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let address = target.address.to_string();
    let connected = Client::connect(&address, client::Options::default());
    let connected = Cell::new(Some(runtime.block_on(connected)?));
    let cut = |moment: &Cut| {
        let mut client = connected.take().expect("one asks at a time");
        let moment = Moment::Sys(*moment);
        let answer = client.cut(&moment, None, PendingMomentPolicy::Wait, Duration::from_secs(5));
        let answer = runtime.block_on(answer)?;
        connected.set(Some(client));
        let held = answer.partitions.len() as u64;
        ensure!(held >= bench.partitions, "a cut lacks partitions. held={held}");
        Ok(())
    };
    let cpu = |process: Option<Process>| {
        process.and_then(|it| it.cpu().ok()).unwrap_or_default().total().as_secs_f64()
    };
    let round = |asked: &[Cut]| {
        let before = cpu(target.process);
        let round = timed(asked, cut)?;
        let used = (cpu(target.process) - before) * 1e3 / asked.len() as f64;
        Ok(round.with("server CPU ms", used))
    };
    let sides = vec![
        ComparisonSide::new("server, first", |nth| {
            round(&moments(first, last, 1_000 + nth as u64).collect::<Vec<Cut>>())
        }),
        ComparisonSide::new("server, again", |nth| {
            let moment: Cut =
                moments(first, last, 1_000 + nth as u64).next().expect("there are some");
            cut(&moment)?;
            round(&vec![moment; MOMENTS as usize])
        }),
    ];
    let measured = run_interleaved(bench.rounds, sides)?;
    let mut found = ExperimentResults::default();
    found.add(bench.partitions as f64, &bench.partitions.to_string(), &measured);
    goals(bench.partitions, &measured, &mut found);
    Ok(found)
}

fn stamp(ms: i64) -> Hlc {
    Cut::before(SysTime(ms as u64)).bound()
}
