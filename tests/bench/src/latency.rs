//! How long a record takes, at a fixed rate, from when it should have been sent to when it arrives.
//!
//! The loop is open: record *i* is due at start + *i*/rate whatever became of those before it, and its
//! latency counts from then. A broker that stalls for a second is thus charged for every record that
//! was due in that second, not for the one that happened to be under way (coordinated omission).
//! How late we ourselves were to send is reported beside; where that is large, the numbers tell of
//! this machine and not of the broker.
//!
//! Three threads: one sends at the due times, one takes the answers, one consumes.

use std::{
    num::NonZeroU64,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use kafka_protocol::messages::{ProduceRequest, TopicName};

use crate::{
    batch::{Batch, HEADER_BYTES, Header},
    connection::{Connection, Inbox, Outbox, PATIENCE, accepted},
    consume::{Fetcher, Fetching},
    histogram::Histogram,
    meter::{Meter, Usage},
    produce::now_ms,
    report::{Better, Report, mebibytes},
    sender::{Acks, place_of, produce_frame},
    size::ByteSize,
    target::Target,
    topic::Topic,
};

/// What is sent, how often and for how long.
#[derive(Args, Clone, Debug)]
pub(crate) struct LatencyWork {
    /// Records a second, each in a request of its own
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) rate: u32,

    /// Bytes in each record's value; 8 at least
    #[arg(long, default_value = "100")]
    pub(crate) size: ByteSize,

    /// Seconds to measure
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,

    /// Seconds at the same rate before them, not measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=3600))]
    pub(crate) warmup_seconds: u32,

    /// When the broker is to answer
    #[arg(long, value_enum, default_value_t = Acks::All)]
    pub(crate) acks: Acks,
}

/// When each record is due. The first `warmup_count` are not measured.
#[derive(Clone, Copy)]
struct Schedule {
    start: Instant,
    interval: Duration,
    warmup_count: u64,
    count: u64,
}

impl Schedule {
    fn due(&self, index: u64) -> Instant {
        self.start + Duration::from_nanos(self.interval.as_nanos() as u64 * index)
    }

    /// Records how long after its due time record `index` got somewhere.
    fn record(&self, histogram: &mut Histogram, index: u64, now: Instant) {
        if index >= self.warmup_count {
            histogram.record(now.saturating_duration_since(self.due(index)));
        }
    }

    /// Nothing is waited for after this.
    fn end(&self) -> Instant {
        self.due(self.count) + PATIENCE
    }
}

/// A request with one record, whose value begins with the record's index.
struct Template {
    frame: Vec<u8>,
    batch_at: usize,
    header: Header,
    records: Vec<u8>,
    value_at: usize,
}

impl Template {
    fn make(topic: &TopicName, work: &LatencyWork, version: i16) -> Result<Template> {
        let value = vec![b'.'; usize::try_from(work.size.0)?];
        let batch = Batch::single(&value, now_ms()?);
        let frame = produce_frame(topic, &[0], &batch.to_vec(), work.acks, version)?;
        let batch_at = place_of(&batch.header, &frame)?;
        // After the value comes one byte: no headers.
        let value_at = batch.records.len() - 1 - value.len();
        Ok(Template { frame, batch_at, header: batch.header, records: batch.records, value_at })
    }

    fn fill(&mut self, index: u64) -> Result<()> {
        self.records[self.value_at..self.value_at + 8].copy_from_slice(&index.to_be_bytes());
        self.header.stamp_time(now_ms()?, &self.records);
        let (header, rest) = self.frame[self.batch_at..].split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&self.header.0);
        rest[..self.records.len()].copy_from_slice(&self.records);
        Ok(())
    }
}

/// Sends each record when it is due. Returns how late each was handed to the socket.
fn send(mut outbox: Outbox, mut template: Template, schedule: Schedule) -> Result<Histogram> {
    // The kernel may else wake a sleeper 50 µs late.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut lateness = Histogram::new();
    for index in 0..schedule.count {
        template.fill(index)?;
        let wait = schedule.due(index).saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            thread::sleep(wait);
        }
        let now = Instant::now();
        ensure!(now < schedule.end(), "the broker takes records much too slowly. sent={index}");
        schedule.record(&mut lateness, index, now);
        outbox.send(&mut template.frame)?;
    }
    Ok(lateness)
}

fn take_answers(mut inbox: Inbox, version: i16, schedule: Schedule) -> Result<Histogram> {
    let mut latencies = Histogram::new();
    for index in 0..schedule.count {
        let (_, response) = inbox.next::<ProduceRequest>(version)?;
        schedule.record(&mut latencies, index, Instant::now());
        let partitions = response.responses.iter().flat_map(|topic| &topic.partition_responses);
        for partition in partitions {
            accepted(partition.error_code).context("produce")?;
        }
    }
    Ok(latencies)
}

/// Consumes until the last record is there, or `stop` is set.
fn consume(mut fetcher: Fetcher, schedule: Schedule, stop: &AtomicBool) -> Result<Histogram> {
    let mut latencies = Histogram::new();
    let mut next = 0;
    while next < schedule.count && !stop.load(Ordering::Relaxed) {
        ensure!(Instant::now() < schedule.end(), "records do not arrive. arrived={next}");
        let response = fetcher.fetch()?;
        let now = Instant::now();
        for data in response.responses.iter().flat_map(|topic| &topic.partitions) {
            fetcher.take(data, |batch| {
                for value in batch.values()? {
                    let index = value.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
                    ensure!(index == Some(next), "wanted record {next}, and got {index:?}");
                    schedule.record(&mut latencies, next, now);
                    next += 1;
                }
                Ok(())
            })?;
        }
    }
    Ok(latencies)
}

struct Measured {
    lateness: Histogram,
    acks: Histogram,
    arrivals: Histogram,
    usage: Usage,
}

/// Measures it in a topic of its own.
pub(crate) fn run(target: &Target, work: &LatencyWork) -> Result<Report> {
    ensure!(work.size.0 >= 8, "a record holds its number: --size must be 8 at least");
    let topic = Topic::create(target.address, 1, usize::try_from(work.size.0 + 128)?)?;
    let measured = measure(target, work, &topic)?;
    let acks = work.acks.name();
    let workload = format!("{} at {}/s acks={acks}", work.size, work.rate);
    let mut report = Report::new("latency", workload, &target.name);
    report.add_latencies("end-to-end", &measured.arrivals);
    report.add_latencies("ack", &measured.acks);
    report.add(Better::Neither, "sent late p99 ms", p99_millis(&measured.lateness));
    report.add(Better::Neither, "records", measured.arrivals.count() as f64);
    if let Some(broker) = &measured.usage.broker {
        let share = broker.cpu.total().as_secs_f64() / measured.usage.wall.as_secs_f64();
        report.add(Better::Lower, "broker CPU %", share * 100.0);
        report.add(Better::Lower, "peak RSS MiB", mebibytes(broker.resident_peak_bytes));
    }
    Ok(report)
}

fn p99_millis(histogram: &Histogram) -> f64 {
    crate::report::millis(histogram.percentile(99.0))
}

fn measure(target: &Target, work: &LatencyWork, topic: &Topic) -> Result<Measured> {
    let connection = Connection::open(target.address)?;
    let version = connection.version::<ProduceRequest>(3..=10)?;
    let template = Template::make(&topic.name, work, version)?;
    let fetching = Fetching {
        fetch_max: ByteSize(50 << 20),
        partition_max: ByteSize(1 << 20),
        max_wait_ms: 500,
        check_crc: false,
    };
    let fetcher = Fetcher::connect(target.address, &topic.name, &[0], &fetching)?;
    let rate = u64::from(work.rate);
    let schedule = Schedule {
        start: Instant::now() + Duration::from_millis(100),
        interval: Duration::from_secs(1) / work.rate,
        warmup_count: rate * u64::from(work.warmup_seconds),
        count: rate * u64::from(work.warmup_seconds + work.seconds),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let Connection { outbox, inbox, .. } = connection;

    // Each thread says on this when it is done, so that the first failure is seen at once.
    let (done, dones) = mpsc::channel();
    let sending = spawn(&done, move || send(outbox, template, schedule));
    let answering = spawn(&done, move || take_answers(inbox, version, schedule));
    let until = stop.clone();
    let consuming = spawn(&done, move || consume(fetcher, schedule, &until));
    drop(done);
    thread::sleep(schedule.due(schedule.warmup_count).saturating_duration_since(Instant::now()));
    let meter = Meter::start(target.process)?;
    let failed = dones.iter().take(3).any(|succeeded| !succeeded);
    let usage = meter.stop(Duration::ZERO)?;
    stop.store(true, Ordering::Relaxed);
    if failed {
        // The others may wait long for what will not come: hear the one that knows why.
        thread::sleep(Duration::from_millis(100));
        let ended = [answering, sending, consuming].into_iter().filter(|it| it.is_finished());
        for thread in ended {
            join(thread)?;
        }
        return Err(anyhow!("the run failed"));
    }
    Ok(Measured {
        lateness: join(sending)?,
        acks: join(answering)?,
        arrivals: join(consuming)?,
        usage,
    })
}

type Running = thread::JoinHandle<Result<Histogram>>;

fn spawn(
    done: &mpsc::Sender<bool>,
    work: impl FnOnce() -> Result<Histogram> + Send + 'static,
) -> Running {
    let done = done.clone();
    thread::spawn(move || {
        let result = work();
        let _ = done.send(result.is_ok());
        result
    })
}

fn join(thread: Running) -> Result<Histogram> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Check, take_batch};
    use kafka_protocol::protocol::StrBytes;

    #[test]
    fn a_filled_template_carries_its_number_and_a_right_check_sum() {
        let topic = TopicName(StrBytes::from_static_str("t"));
        let work = LatencyWork {
            rate: 1,
            size: ByteSize(100),
            seconds: 1,
            warmup_seconds: 0,
            acks: Acks::All,
        };
        let mut template = Template::make(&topic, &work, 9).unwrap();
        for index in [0, 1, 0x0102_0304_0506_0708] {
            template.fill(index).unwrap();
            let mut rest = &template.frame[template.batch_at..];
            let batch = take_batch(&mut rest, Check::FramingAndCrc).unwrap().unwrap();
            let values = batch.values().unwrap();
            assert_eq!(values[0].len(), 100);
            assert_eq!(values[0][..8], index.to_be_bytes());
        }
    }

    #[test]
    fn a_record_that_was_due_long_ago_is_charged_for_the_wait() {
        let start = Instant::now();
        let interval = Duration::from_millis(1);
        let schedule = Schedule { start, interval, warmup_count: 1, count: 1001 };
        let stall_ends = start + Duration::from_secs(1);
        let mut histogram = Histogram::new();
        (0..1001).for_each(|index| schedule.record(&mut histogram, index, stall_ends));
        assert_eq!(histogram.count(), 1000);
        let median = histogram.percentile(50.0);
        assert!(median > Duration::from_millis(490) && median < Duration::from_millis(510));
    }
}
