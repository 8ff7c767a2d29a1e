//! Transfers between the accounts of a bank, in transactions over 20 partitions, while the server
//! is killed again and again: every moment that was ever looked at has the same total, in which no
//! money is made or lost.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::history::{PendingMomentPolicy, moment_topic};
use client::{Client, FetchOptions, Isolation, NewTopic, OffsetSpec, Options};
use hlc::{Cut, Moment, MomentSelector};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    EndTxnRequest, InitProducerIdRequest, ProduceRequest, ProducerId, ResponseHeader,
    TransactionalId,
};
use kafka_protocol::protocol::{Decodable, HeaderVersion, Request};
use kafka_records::{
    BatchBuilder, BatchIterator, CommittedBatches, CompressionType, DecompressionLimit, records,
};
use testkit::directory::TestDirectory;
use testkit::process::TestServer;
use testkit::requests::{encode_frame, str_bytes, topic_name};
use testkit::rng::SeededRng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TOPIC: &str = "accounts";
/// One account each.
const ACCOUNTS: i32 = 20;
const TELLERS: u64 = 4;
const INCARNATIONS: u64 = 5;
/// The fewest transfers that are committed in each of them.
const TRANSFERS_MIN: u64 = 21;
/// The time limit for that.
const OPEN_MAX: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(20);
/// The total of all accounts is 0: an account begins with nothing, and may owe.
const TOTAL: i64 = 0;

async fn call<R: Request>(wire: &mut TcpStream, version: i16, request: &R) -> Option<R::Response> {
    let answered = async {
        wire.write_all(&encode_frame(version, request)).await.ok()?;
        let length = wire.read_u32().await.ok()?;
        let mut frame = vec![0; length as usize];
        wire.read_exact(&mut frame).await.ok()?;
        let mut frame = Bytes::from(frame);
        ResponseHeader::decode(&mut frame, R::Response::header_version(version)).ok()?;
        R::Response::decode(&mut frame, version).ok()
    };
    tokio::time::timeout(PATIENCE, answered).await.ok()?
}

/// One transfer: both accounts change by one record, in one transaction. `None` if the server is
/// gone.
async fn transfer(
    wire: &mut TcpStream,
    id: &TransactionalId,
    producer: &mut (ProducerId, i16),
    from: i32,
    to: i32,
    amount: i64,
    commits: bool,
) -> Option<()> {
    let change = |account: i32, amount: i64| {
        let mut batch = BatchBuilder::new(CompressionType::None);
        batch.producer(producer.0.0, producer.1, 0).transactional();
        batch.record(1_700_000_000_000, None, Some(amount.to_string().as_bytes()), &[]);
        PartitionProduceData::default().with_index(account).with_records(Some(batch.build()))
    };
    let topic = TopicProduceData::default()
        .with_name(topic_name(TOPIC))
        .with_partition_data(vec![change(from, -amount), change(to, amount)]);
    let request = ProduceRequest::default()
        .with_acks(-1)
        .with_timeout_ms(10_000)
        .with_transactional_id(Some(id.clone()))
        .with_topic_data(vec![topic]);
    let answer = call(wire, 12, &request).await?;
    for partition in &answer.responses[0].partition_responses {
        assert_eq!(partition.error_code, 0, "a transfer is taken");
    }
    let request = EndTxnRequest::default()
        .with_transactional_id(id.clone())
        .with_producer_id(producer.0)
        .with_producer_epoch(producer.1)
        .with_committed(commits);
    let answer = call(wire, 5, &request).await?;
    assert_eq!(answer.error_code, 0, "a transfer ends");
    *producer = (answer.producer_id, answer.producer_epoch);
    Some(())
}

/// Makes transfers until the server is gone; returns how many were committed.
async fn run_teller(
    kafka: SocketAddr,
    teller: u64,
    mut random: SeededRng,
    stop: Arc<AtomicBool>,
    all: Arc<AtomicU64>,
) -> u64 {
    let Ok(mut wire) = TcpStream::connect(kafka).await else { return 0 };
    let id = TransactionalId(str_bytes(&format!("teller-{teller}")));
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(id.clone()))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    let initialized = call(&mut wire, 4, &request).await.expect("the server has just started");
    assert_eq!(initialized.error_code, 0, "what a killed teller left open is aborted");
    let mut producer = (initialized.producer_id, initialized.producer_epoch);
    let mut committed = 0;
    while !stop.load(Ordering::Relaxed) {
        let from = random.below(ACCOUNTS as u64) as i32;
        let to = (from + 1 + random.below(ACCOUNTS as u64 - 1) as i32) % ACCOUNTS;
        let amount = random.between(1, 100) as i64;
        let commits = random.below(4) > 0;
        match transfer(&mut wire, &id, &mut producer, from, to, amount, commits).await {
            Some(()) => {
                committed += u64::from(commits);
                all.fetch_add(u64::from(commits), Ordering::Relaxed);
            }
            None => break,
        }
    }
    committed
}

/// The sum of each account as of a moment, of committed transfers.
async fn balances(client: &mut Client, moment: Moment) -> BTreeMap<i32, i64> {
    let topic = moment_topic(TOPIC, &MomentSelector::At(moment));
    let accounts: Vec<i32> = (0..ACCOUNTS).collect();
    let ends = client.offsets(&topic, &accounts, OffsetSpec::LatestStable).await.expect("the ends");
    let mut found = BTreeMap::new();
    for (account, end) in ends {
        let (mut next, mut balance) = (0, 0);
        while next < end.unwrap_or(0) {
            let options =
                FetchOptions { isolation: Isolation::Committed, ..FetchOptions::default() };
            let fetched =
                client.fetch(&topic, &[(account, next)], &options).await.expect("a fetch");
            let mut committed = CommittedBatches::new(fetched[0].aborted.iter().copied());
            for batch in BatchIterator::new(&fetched[0].batches) {
                let (header, batch) = batch.expect("a batch");
                let batch = fetched[0].batches.slice_ref(batch);
                next = header.last_offset() + 1;
                if committed.admits(&header, &batch) {
                    balance += batch_sum(&batch);
                }
            }
        }
        found.insert(account, balance);
    }
    found
}

fn batch_sum(batch: &Bytes) -> i64 {
    let limit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };
    let amounts = records(batch, limit).expect("records").map(|record| {
        let value = record.expect("a record").value.expect("an amount");
        std::str::from_utf8(&value).expect("text").parse::<i64>().expect("a number")
    });
    amounts.sum()
}

#[tokio::test]
async fn every_moment_of_the_bank_has_the_same_total_when_the_server_is_killed_again_and_again() {
    tokio::task::LocalSet::new().run_until(run_bank()).await;
}

async fn run_bank() {
    let data = TestDirectory::new();
    let mut random = SeededRng::new(20);
    let mut looked_at: Vec<(Moment, String, BTreeMap<i32, i64>)> = Vec::new();
    let mut committed = 0;
    for life in 0..INCARNATIONS {
        let server = TestServer::start(data.path(), &[]).expect("the server starts after a kill");
        let address = server.kafka.to_string();
        let mut client = Client::connect(&address, Options::default()).await.expect("it answers");
        if life == 0 {
            let topic = NewTopic {
                name: TOPIC.to_owned(),
                partitions: Some(ACCOUNTS),
                ..NewTopic::default()
            };
            client.create_topic(&topic).await.expect("the topic is made");
        }
        // Whatever the kill has cut off: each moment shows what it showed.
        for (moment, hash, balances_then) in &looked_at {
            let cut = client.cut(moment, None, PendingMomentPolicy::Refuse, Duration::ZERO).await;
            assert_eq!(&cut.expect("a past cut").hash, hash, "at {moment} in incarnation {life}");
            let now = balances(&mut client, *moment).await;
            assert_eq!(&now, balances_then, "at {moment} in incarnation {life}");
        }
        let (stop, all) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let tellers: Vec<_> = (0..TELLERS)
            .map(|teller| {
                let (stop, all) = (Arc::clone(&stop), Arc::clone(&all));
                tokio::task::spawn_local(run_teller(server.kafka, teller, random.fork(), stop, all))
            })
            .collect();
        let begun = Instant::now();
        let mut cuts = 0;
        while cuts < 12 || all.load(Ordering::Relaxed) < TRANSFERS_MIN {
            assert!(begun.elapsed() < OPEN_MAX, "the bank is open");
            cuts += 1;
            let at = Moment::Sys(Cut::ALL);
            let patience = Duration::from_secs(5);
            let cut = client.cut(&at, None, PendingMomentPolicy::Frontier, patience).await;
            let cut = cut.expect("a cut");
            let moment = cut.at.parse().expect("a moment");
            let balances = balances(&mut client, moment).await;
            assert_eq!(balances.values().sum::<i64>(), TOTAL, "at {moment}: {balances:?}");
            looked_at.push((moment, cut.hash, balances));
        }
        server.kill().expect("it can be killed");
        stop.store(true, Ordering::Relaxed);
        for teller in tellers {
            committed += teller.await.expect("a teller ends");
        }
    }
    assert!(committed >= TRANSFERS_MIN * INCARNATIONS, "the bank was open: {committed} transfers");
    let moved = looked_at.last().is_some_and(|(.., last)| last.values().any(|sum| *sum != 0));
    assert!(moved, "money has moved");
}
