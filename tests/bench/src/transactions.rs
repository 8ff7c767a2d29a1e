//! Transactions: how many in a second, and what one costs the broker. Each producer has one at a
//! time, as stock clients do: requests with a batch for each partition, then the end.
//!
//! With `--outside`, the same requests are sent outside of transactions. With `--open`, many other
//! producers keep a transaction open meanwhile. With `--read`, all is read in the end, committed
//! records only and all of them by turns.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    EndTxnRequest, FindCoordinatorRequest, InitProducerIdRequest, ProduceRequest, ProducerId,
    TopicName, TransactionalId,
};
use kafka_protocol::protocol::StrBytes;
use kafka_records::{BatchBuilder, CompressionType};

use crate::connection::{BenchConnection, check_error_code};
use crate::consume::{BenchFetcher, FetchArgs};
use crate::histogram::Histogram;
use crate::meter::UsageMeter;
use crate::report::{BenchReport, FigureDirection, mebibytes};
use crate::size::ByteSize;
use crate::target::BrokerTarget;
use crate::topic::{BenchTopic, LATEST, offsets};

/// From these versions on, partitions are added with their first batch, and each end raises the
/// epoch (KIP-890). Later versions of Produce name topics by id.
const PRODUCE: i16 = 12;
const END: i16 = 5;

#[derive(Args, Clone, Debug)]
pub(crate) struct TransactionsWork {
    /// Producers, each with a connection and a transactional id of its own
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    producers: u32,

    /// Partitions that each transaction writes to
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    partitions: u32,

    /// Produce requests in each transaction, one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: u32,

    /// Records in each partition's batch
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    records: u32,

    /// Bytes in each record's value
    #[arg(long, default_value = "100")]
    size: ByteSize,

    /// Seconds to measure
    #[arg(long, default_value_t = 5)]
    seconds: u64,

    /// Send the same outside of transactions
    #[arg(long)]
    outside: bool,

    /// Other producers, each of which keeps a transaction open meanwhile
    #[arg(long, default_value_t = 0)]
    open: u32,

    /// Read all of it in the end: all records, and committed ones only, by turns
    #[arg(long)]
    read: bool,
}

/// Producers that keep transactions open are made on so many connections.
const OPENING_CONNECTIONS: u32 = 64;
/// The number of times that all is read, either way.
const READ_ROUNDS: u32 = 5;
/// The longest timeout of a transaction that brokers take by default.
const OPEN_MS: i32 = 900_000;

/// A producer, and what it has measured.
struct BenchProducer {
    connection: BenchConnection,
    id: TransactionalId,
    topic: TopicName,
    producer: (i64, i16),
    sequence: i32,
    work: TransactionsWork,
    ends: Histogram,
    count: u64,
}

impl BenchProducer {
    fn connect(
        address: SocketAddr,
        topic: &TopicName,
        id: String,
        work: &TransactionsWork,
    ) -> Result<BenchProducer> {
        let connection = BenchConnection::open(address)?;
        BenchProducer::begin(connection, topic, id, work, 60_000)
    }

    /// A producer on a connection.
    fn begin(
        mut connection: BenchConnection,
        topic: &TopicName,
        id: String,
        work: &TransactionsWork,
        timeout_ms: i32,
    ) -> Result<BenchProducer> {
        let id = TransactionalId(StrBytes::from_string(id));
        // Kafka makes the topic of its coordinator with the first request for one.
        let coordinator = FindCoordinatorRequest::default().with_key(id.0.clone()).with_key_type(1);
        let request = InitProducerIdRequest::default()
            .with_transactional_id((!work.outside).then(|| id.clone()))
            .with_transaction_timeout_ms(timeout_ms)
            .with_producer_id(ProducerId(-1))
            .with_producer_epoch(-1);
        let version = connection.version::<InitProducerIdRequest>(3..=5)?;
        // The coordinator of a broker that has just started may not be there yet.
        let deadline = Instant::now() + Duration::from_secs(30);
        let found = loop {
            connection.call(&coordinator, 3)?;
            let found = connection.call(&request, version)?;
            if found.error_code == 0 || Instant::now() > deadline {
                break found;
            }
            thread::sleep(Duration::from_millis(50));
        };
        check_error_code(found.error_code).context("initialize a producer")?;
        Ok(BenchProducer {
            connection,
            id,
            topic: topic.clone(),
            producer: (found.producer_id.0, found.producer_epoch),
            sequence: 0,
            work: work.clone(),
            ends: Histogram::new(),
            count: 0,
        })
    }

    fn run(mut self, from: Instant, until: Instant) -> Result<BenchProducer> {
        let value = vec![b'x'; usize::try_from(self.work.size.0)?];
        while Instant::now() < until {
            let counts = Instant::now() >= from;
            for _ in 0..self.work.requests {
                self.produce(&value)?;
            }
            let begin = Instant::now();
            if !self.work.outside {
                self.end()?;
            }
            if counts {
                self.ends.record(begin.elapsed());
                self.count += 1;
            }
        }
        Ok(self)
    }

    fn produce(&mut self, value: &[u8]) -> Result<()> {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as i64;
        let mut batch = BatchBuilder::new(CompressionType::None);
        batch.producer(self.producer.0, self.producer.1, self.sequence);
        if !self.work.outside {
            batch.transactional();
        }
        for _ in 0..self.work.records {
            batch.record(now_ms, None, Some(value), &[]);
        }
        let batch = batch.build();
        let data = |index| {
            PartitionProduceData::default().with_index(index).with_records(Some(batch.clone()))
        };
        let mut left: Vec<i32> = (0..self.work.partitions as i32).collect();
        while !left.is_empty() {
            let topic = TopicProduceData::default()
                .with_name(self.topic.clone())
                .with_partition_data(left.iter().copied().map(data).collect());
            let request = ProduceRequest::default()
                .with_acks(-1)
                .with_timeout_ms(30_000)
                .with_transactional_id((!self.work.outside).then(|| self.id.clone()))
                .with_topic_data(vec![topic]);
            let response = self.connection.call(&request, PRODUCE)?;
            left.clear();
            for one in response.responses.iter().flat_map(|topic| &topic.partition_responses) {
                if is_early(one.error_code) {
                    left.push(one.index);
                } else {
                    check_error_code(one.error_code).context("produce")?;
                }
            }
        }
        self.sequence += self.work.records as i32;
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let request = EndTxnRequest::default()
            .with_transactional_id(self.id.clone())
            .with_producer_id(ProducerId(self.producer.0))
            .with_producer_epoch(self.producer.1)
            .with_committed(true);
        let response = loop {
            let response = self.connection.call(&request, END)?;
            if !is_early(response.error_code) {
                break response;
            }
        };
        check_error_code(response.error_code).context("end a transaction")?;
        self.producer = (response.producer_id.0, response.producer_epoch);
        self.sequence = 0;
        Ok(())
    }
}

/// True if a request is to be sent again, because the last transaction is not complete: Kafka
/// answers an end before it has written the markers.
fn is_early(code: i16) -> bool {
    code == ResponseError::ConcurrentTransactions.code()
}

/// Has many producers open a transaction each, with one record. Returns how long that took.
fn open_many(address: SocketAddr, work: &TransactionsWork) -> Result<Duration> {
    let topic = BenchTopic::create(address, 1, 1 << 20)?;
    let work = TransactionsWork { partitions: 1, records: 1, outside: false, ..work.clone() };
    let value = vec![b'x'; usize::try_from(work.size.0)?];
    let begin = Instant::now();
    let open = |nth: u32| -> Result<()> {
        let mut connection = BenchConnection::open(address)?;
        for id in (nth..work.open).step_by(OPENING_CONNECTIONS as usize) {
            let id = format!("{}-open-{id}", *topic.name);
            let mut producer = BenchProducer::begin(connection, &topic.name, id, &work, OPEN_MS)?;
            producer.produce(&value)?;
            connection = producer.connection;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let connections = OPENING_CONNECTIONS.min(work.open);
        let runs: Vec<_> = (0..connections).map(|nth| scope.spawn(move || open(nth))).collect();
        runs.into_iter().try_for_each(|run| run.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    Ok(begin.elapsed())
}

/// Reads the topic to its ends, all records and committed ones only by turns.
fn read_both(target: &BrokerTarget, topic: &BenchTopic, report: &mut BenchReport) -> Result<()> {
    let mut connection = BenchConnection::open(target.address)?;
    let ends = offsets(&mut connection, &topic.name, topic.partition_count, LATEST)?;
    let ends: BTreeMap<i32, i64> = (0..).zip(ends).collect();
    let partitions: Vec<i32> = ends.keys().copied().collect();
    let fetching = FetchArgs {
        fetch_max: ByteSize(50 << 20),
        partition_max: ByteSize(1 << 20),
        max_wait_ms: 500,
        check_crc: false,
    };
    let connect = || BenchFetcher::connect(target.address, &topic.name, &partitions, &fetching);
    let mut ways = [("plain", connect()?), ("committed", connect()?.only_committed())];
    let mut costs = [(0.0, 0.0); 2];
    // The first round warms up.
    for round in 0..=READ_ROUNDS {
        for (way, (_, fetcher)) in ways.iter_mut().enumerate() {
            fetcher.rewind();
            let meter = UsageMeter::start(target.process)?;
            let bytes = fetcher.read_bytes_to(&ends, Instant::now() + Duration::from_secs(120))?;
            let usage = meter.stop(Duration::ZERO)?;
            if let (true, Some(broker)) = (round > 0, &usage.broker) {
                costs[way].0 += broker.cpu.total().as_secs_f64();
                costs[way].1 += bytes as f64 / 1e9;
            }
        }
    }
    let each = costs.map(|(seconds, gigabytes)| seconds / gigabytes.max(1e-9));
    for ((name, _), cost) in ways.iter().zip(each) {
        report.add(FigureDirection::Lower, &format!("{name} read CPU s/GB"), cost);
    }
    report.add(FigureDirection::Lower, "committed by plain", each[1] / each[0].max(1e-9));
    Ok(())
}

/// Measures it in a topic of its own.
pub(crate) fn run(target: &BrokerTarget, work: &TransactionsWork) -> Result<BenchReport> {
    let opening = if work.open > 0 { Some(open_many(target.address, work)?) } else { None };
    let topic = BenchTopic::create(target.address, work.partitions, 1 << 20)?;
    let mut producers = Vec::new();
    for nth in 0..work.producers {
        let id = format!("{}-{nth}", *topic.name);
        producers.push(BenchProducer::connect(target.address, &topic.name, id, work)?);
    }
    // A fifth of the time warms up.
    let from = Instant::now() + Duration::from_millis(work.seconds * 200);
    let until = from + Duration::from_secs(work.seconds);
    let threads: Vec<_> = producers
        .into_iter()
        .map(|producer| thread::spawn(move || producer.run(from, until)))
        .collect();
    thread::sleep(from.saturating_duration_since(Instant::now()));
    let meter = UsageMeter::start(target.process)?;
    let (mut ends, mut count) = (Histogram::new(), 0);
    let mut failed = None;
    for thread in threads {
        match thread.join().map_err(|_| anyhow!("a thread panicked"))? {
            Ok(producer) => {
                ends.merge(&producer.ends);
                count += producer.count;
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let usage = meter.stop(Duration::ZERO)?;
    if let Some(error) = failed {
        return Err(error);
    }
    ensure!(count > 0, "no transaction ended in {} s", work.seconds);
    let (producers, partitions) = (work.producers, work.partitions);
    let kind = if work.outside { "rounds outside of transactions" } else { "transactions" };
    let workload = format!(
        "{kind} of {producers} producers, {} requests x {partitions} partitions x {} x {}",
        work.requests, work.records, work.size
    );
    let mut report = BenchReport::new("transactions", workload, &target.name);
    let seconds = work.seconds as f64;
    report.add(
        FigureDirection::Higher,
        if work.outside { "rounds/s" } else { "transactions/s" },
        count as f64 / seconds,
    );
    if !work.outside {
        report.add_latencies("end", &ends);
    }
    if let Some(broker) = &usage.broker {
        let us = broker.cpu.total().as_secs_f64() * 1e6 / count as f64;
        report.add(FigureDirection::Lower, "broker CPU us each", us);
        report.add(FigureDirection::Lower, "peak RSS MiB", mebibytes(broker.resident_peak_bytes));
    }
    if let Some(opening) = opening {
        let rate = f64::from(work.open) / opening.as_secs_f64();
        report.add(FigureDirection::Higher, "transactions opened/s", rate);
    }
    if work.read {
        read_both(target, &topic, &mut report)?;
    }
    Ok(report)
}
