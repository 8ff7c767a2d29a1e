//! The latency of a record at a fixed rate, from when it should have been sent to when it arrives.
//!
//! The loop is open: record *i* is due at start + *i*/rate whatever became of those before it, and
//! its latency counts from then. A broker that stalls for a second is thus charged for every record
//! that was due in that second, not for the one that happened to be in flight (coordinated
//! omission). Our own delay in sending is reported too. If that is large, the numbers describe this
//! machine and not the broker.
//!
//! Three threads: one sends at the due times, one reads the responses, one consumes.

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
use kafka_records::{BatchHeader, HEADER_BYTES};

use crate::{
    batch::{BenchBatch, header_bytes},
    connection::{BenchConnection, RequestWriter, ResponseReader, TIMEOUT, check_error_code},
    consume::{BenchFetcher, FetchArgs},
    histogram::Histogram,
    meter::{RunUsage, UsageMeter},
    produce::now_ms,
    report::{BenchReport, FigureDirection, mebibytes},
    sender::{BenchAcks, find_batch, produce_frame},
    size::ByteSize,
    target::BrokerTarget,
    topic::BenchTopic,
};

/// The records to send, their rate, and the duration.
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

    /// The acknowledgement to ask the broker for
    #[arg(long, value_enum, default_value_t = BenchAcks::All)]
    pub(crate) acks: BenchAcks,
}

/// The times at which records are due. The first `warmup_count` are not measured.
#[derive(Clone, Copy)]
struct SendSchedule {
    start: Instant,
    interval: Duration,
    warmup_count: u64,
    count: u64,
}

impl SendSchedule {
    fn due(&self, index: u64) -> Instant {
        self.start + Duration::from_nanos(self.interval.as_nanos() as u64 * index)
    }

    /// Adds the time from the due time of record `index` to `now`.
    fn record(&self, histogram: &mut Histogram, index: u64, now: Instant) {
        if index >= self.warmup_count {
            histogram.record(now.saturating_duration_since(self.due(index)));
        }
    }

    /// Every wait ends here.
    fn end(&self) -> Instant {
        self.due(self.count) + TIMEOUT
    }
}

/// A request with one record, whose value begins with the record's index.
struct RequestTemplate {
    frame: Vec<u8>,
    batch_at: usize,
    header: BatchHeader,
    records: Vec<u8>,
    value_at: usize,
}

impl RequestTemplate {
    fn make(topic: &TopicName, work: &LatencyWork, version: i16) -> Result<RequestTemplate> {
        let value = vec![b'.'; usize::try_from(work.size.0)?];
        let batch = BenchBatch::single(&value, now_ms()?);
        let frame = produce_frame(topic, &[0], &batch.to_vec(), work.acks, version)?;
        let batch_at = find_batch(&header_bytes(&batch.header, &batch.records), &frame)?;
        // After the value comes one byte: no headers.
        let value_at = batch.records.len() - 1 - value.len();
        Ok(RequestTemplate {
            frame,
            batch_at,
            header: batch.header,
            records: batch.records.into(),
            value_at,
        })
    }

    fn fill(&mut self, index: u64) -> Result<()> {
        self.records[self.value_at..self.value_at + 8].copy_from_slice(&index.to_be_bytes());
        let now = now_ms()?;
        let header = BatchHeader { base_timestamp: now, max_timestamp: now, ..self.header };
        let (start, rest) = self.frame[self.batch_at..].split_at_mut(HEADER_BYTES);
        start.copy_from_slice(&header_bytes(&header, &self.records));
        rest[..self.records.len()].copy_from_slice(&self.records);
        Ok(())
    }
}

/// Sends each record when it is due. Returns how late each was handed to the socket.
fn send(
    mut outbox: RequestWriter,
    mut template: RequestTemplate,
    schedule: SendSchedule,
) -> Result<Histogram> {
    // Otherwise the kernel may wake a sleeper 50 µs late.
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

fn take_answers(
    mut inbox: ResponseReader,
    version: i16,
    schedule: SendSchedule,
) -> Result<Histogram> {
    let mut latencies = Histogram::new();
    for index in 0..schedule.count {
        let (_, response) = inbox.next_response::<ProduceRequest>(version)?;
        schedule.record(&mut latencies, index, Instant::now());
        let partitions = response.responses.iter().flat_map(|topic| &topic.partition_responses);
        for partition in partitions {
            check_error_code(partition.error_code).context("produce")?;
        }
    }
    Ok(latencies)
}

/// Consumes until the last record has arrived, or `stop` is set.
fn consume(
    mut fetcher: BenchFetcher,
    schedule: SendSchedule,
    stop: &AtomicBool,
) -> Result<Histogram> {
    let mut latencies = Histogram::new();
    let mut next = 0;
    while next < schedule.count && !stop.load(Ordering::Relaxed) {
        ensure!(Instant::now() < schedule.end(), "records do not arrive. arrived={next}");
        let response = fetcher.fetch()?;
        let now = Instant::now();
        for data in response.responses.iter().flat_map(|topic| &topic.partitions) {
            fetcher.check_partition(data, |batch| {
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

struct LatencyHistograms {
    lateness: Histogram,
    acks: Histogram,
    arrivals: Histogram,
    usage: RunUsage,
}

/// Measures it in a topic of its own.
pub(crate) fn run(target: &BrokerTarget, work: &LatencyWork) -> Result<BenchReport> {
    ensure!(work.size.0 >= 8, "a record holds its number: --size must be 8 at least");
    let topic = BenchTopic::create(target.address, 1, usize::try_from(work.size.0 + 128)?)?;
    let measured = measure(target, work, &topic)?;
    let acks = work.acks.name();
    let workload = format!("{} at {}/s acks={acks}", work.size, work.rate);
    let mut report = BenchReport::new("latency", workload, &target.name);
    report.add_latencies("end-to-end", &measured.arrivals);
    report.add_latencies("ack", &measured.acks);
    report.add(FigureDirection::Neither, "sent late p99 ms", p99_millis(&measured.lateness));
    report.add(FigureDirection::Neither, "records", measured.arrivals.count() as f64);
    if let Some(broker) = &measured.usage.broker {
        let share = broker.cpu.total().as_secs_f64() / measured.usage.wall.as_secs_f64();
        report.add(FigureDirection::Lower, "broker CPU %", share * 100.0);
        report.add(FigureDirection::Lower, "peak RSS MiB", mebibytes(broker.resident_peak_bytes));
    }
    Ok(report)
}

fn p99_millis(histogram: &Histogram) -> f64 {
    crate::report::millis(histogram.percentile(99.0))
}

fn measure(
    target: &BrokerTarget,
    work: &LatencyWork,
    topic: &BenchTopic,
) -> Result<LatencyHistograms> {
    let connection = BenchConnection::open(target.address)?;
    let version = connection.version::<ProduceRequest>(3..=10)?;
    let template = RequestTemplate::make(&topic.name, work, version)?;
    let fetching = FetchArgs {
        fetch_max: ByteSize(50 << 20),
        partition_max: ByteSize(1 << 20),
        max_wait_ms: 500,
        check_crc: false,
    };
    let fetcher = BenchFetcher::connect(target.address, &topic.name, &[0], &fetching)?;
    let rate = u64::from(work.rate);
    let schedule = SendSchedule {
        start: Instant::now() + Duration::from_millis(100),
        interval: Duration::from_secs(1) / work.rate,
        warmup_count: rate * u64::from(work.warmup_seconds),
        count: rate * u64::from(work.warmup_seconds + work.seconds),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let BenchConnection { writer: outbox, reader: inbox, .. } = connection;

    // Each thread reports its end on this channel, so that the first failure is seen at once.
    let (done, dones) = mpsc::channel();
    let sending = spawn(&done, move || send(outbox, template, schedule));
    let answering = spawn(&done, move || take_answers(inbox, version, schedule));
    let until = stop.clone();
    let consuming = spawn(&done, move || consume(fetcher, schedule, &until));
    drop(done);
    thread::sleep(schedule.due(schedule.warmup_count).saturating_duration_since(Instant::now()));
    let meter = UsageMeter::start(target.process)?;
    let failed = dones.iter().take(3).any(|succeeded| !succeeded);
    let usage = meter.stop(Duration::ZERO)?;
    stop.store(true, Ordering::Relaxed);
    if failed {
        // The others may wait long for records that never arrive, so the thread that knows the
        // cause reports first.
        thread::sleep(Duration::from_millis(100));
        let ended = [answering, sending, consuming].into_iter().filter(|it| it.is_finished());
        for thread in ended {
            join(thread)?;
        }
        return Err(anyhow!("the run failed"));
    }
    Ok(LatencyHistograms {
        lateness: join(sending)?,
        acks: join(answering)?,
        arrivals: join(consuming)?,
        usage,
    })
}

type HistogramThread = thread::JoinHandle<Result<Histogram>>;

fn spawn(
    done: &mpsc::Sender<bool>,
    work: impl FnOnce() -> Result<Histogram> + Send + 'static,
) -> HistogramThread {
    let done = done.clone();
    thread::spawn(move || {
        let result = work();
        let _ = done.send(result.is_ok());
        result
    })
}

fn join(thread: HistogramThread) -> Result<Histogram> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{BatchCheck, batches};
    use kafka_protocol::protocol::StrBytes;

    #[test]
    fn a_filled_template_carries_its_number_and_a_right_check_sum() {
        let topic = TopicName(StrBytes::from_static_str("t"));
        let work = LatencyWork {
            rate: 1,
            size: ByteSize(100),
            seconds: 1,
            warmup_seconds: 0,
            acks: BenchAcks::All,
        };
        let mut template = RequestTemplate::make(&topic, &work, 9).unwrap();
        for index in [0, 1, 0x0102_0304_0506_0708] {
            template.fill(index).unwrap();
            let rest = &template.frame[template.batch_at..];
            let batch = batches(rest, BatchCheck::FramingAndCrc).next().unwrap().unwrap();
            let values = batch.values().unwrap();
            assert_eq!(values[0].len(), 100);
            assert_eq!(values[0][..8], index.to_be_bytes());
        }
    }

    #[test]
    fn a_record_that_was_due_long_ago_is_charged_for_the_wait() {
        let start = Instant::now();
        let interval = Duration::from_millis(1);
        let schedule = SendSchedule { start, interval, warmup_count: 1, count: 1001 };
        let stall_ends = start + Duration::from_secs(1);
        let mut histogram = Histogram::new();
        (0..1001).for_each(|index| schedule.record(&mut histogram, index, stall_ends));
        assert_eq!(histogram.count(), 1000);
        let median = histogram.percentile(50.0);
        assert!(median > Duration::from_millis(490) && median < Duration::from_millis(510));
    }
}
