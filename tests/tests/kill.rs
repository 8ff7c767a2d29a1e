//! kill −9 in a loop under load: nothing acknowledged is lost, what survives is dense, and every
//! cut that was taken reads the same in every later incarnation.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use client::history::PendingMomentPolicy;
use client::{Client, FetchOptions, NewTopic, OffsetSpec, Options, RequiredAcks};
use hlc::{Cut, Moment};
use kafka_records::{BatchBuilder, CompressionType, DecompressionLimit, records};
use testkit::directory::TestDirectory;
use testkit::process::TestServer;

const INCARNATIONS: usize = 6;
const WRITERS: usize = 4;
/// The fewest cuts that are taken in an incarnation.
const CUTS: usize = 20;
/// The time limit for that.
const PATIENCE: Duration = Duration::from_secs(60);
const PARTITIONS: i32 = 8;
const TOPIC: &str = "load";

/// The acknowledged records: partition, offset, value.
type AcknowledgedRecords = Vec<(i32, i64, String)>;

async fn connect(server: &TestServer) -> Client {
    Client::connect(&server.kafka.to_string(), Options::default())
        .await
        .expect("the server answers")
}

/// Writes until the server is gone; returns what was acknowledged.
async fn write(
    mut client: Client,
    writer: usize,
    life: usize,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
) -> AcknowledgedRecords {
    let mut acknowledged = Vec::new();
    for round in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let partition = (round + writer as i32) % PARTITIONS;
        let value = format!("{life}/{writer}/{round}");
        let mut batch = BatchBuilder::new(CompressionType::None);
        batch.record(1_700_000_000_000, None, Some(value.as_bytes()), &[]);
        let batches = BTreeMap::from([(partition, batch.build())]);
        let answer = tokio::time::timeout(
            Duration::from_secs(5),
            client.produce(TOPIC, RequiredAcks::All, batches),
        );
        match answer.await {
            Ok(Ok(placed)) => {
                acknowledged.push((partition, placed[0].base_offset, value));
                count.fetch_add(1, Ordering::Relaxed);
            }
            _ => break,
        }
    }
    acknowledged
}

async fn read_all(client: &mut Client) -> BTreeMap<(i32, i64), String> {
    let mut found = BTreeMap::new();
    for partition in 0..PARTITIONS {
        let ends = client.offsets(TOPIC, &[partition], OffsetSpec::Latest).await.expect("the end");
        let end = ends[&partition].expect("a log has an end");
        let mut next = 0;
        while next < end {
            let fetched = client
                .fetch(TOPIC, &[(partition, next)], &FetchOptions::default())
                .await
                .expect("a fetch");
            for part in fetched {
                for (header, bytes) in kafka_records::BatchIterator::new(&part.batches).flatten() {
                    let batch = Bytes::copy_from_slice(bytes);
                    let limit = DecompressionLimit { decompressed_bytes_max: 1 << 20 };
                    for record in records(&batch, limit).expect("a batch").flatten() {
                        let value = record.value.unwrap_or_default();
                        let value = String::from_utf8_lossy(&value).into_owned();
                        found.insert((partition, record.offset), value);
                    }
                    next = header.last_offset() + 1;
                }
            }
        }
    }
    found
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_and_no_cut_changes_when_the_process_is_killed_again_and_again()
 {
    tokio::task::LocalSet::new().run_until(run_incarnations()).await;
}

async fn run_incarnations() {
    let data = TestDirectory::new();
    let mut acknowledged: AcknowledgedRecords = Vec::new();
    let mut cuts: Vec<(Moment, String)> = Vec::new();
    for life in 0..INCARNATIONS {
        let server = TestServer::start(data.path(), &[]).expect("the server starts after a kill");
        let mut client = connect(&server).await;
        if life == 0 {
            let topic = NewTopic {
                name: TOPIC.to_owned(),
                partitions: Some(PARTITIONS),
                ..NewTopic::default()
            };
            client.create_topic(&topic).await.expect("the topic is made");
        }
        for (moment, hash) in &cuts {
            let cut = client.cut(moment, None, PendingMomentPolicy::Refuse, Duration::ZERO).await;
            assert_eq!(&cut.expect("a past cut").hash, hash, "at {moment} in incarnation {life}");
        }
        let found = read_all(&mut client).await;
        for (partition, offset, value) in &acknowledged {
            let there = found.get(&(*partition, *offset));
            assert_eq!(there, Some(value), "lost: {partition}/{offset} in incarnation {life}");
        }
        let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut writers = Vec::new();
        for writer in 0..WRITERS {
            let client = connect(&server).await;
            let (stop, count) = (Arc::clone(&stop), Arc::clone(&count));
            writers.push(tokio::task::spawn_local(write(client, writer, life, stop, count)));
        }
        // Cuts during the writes; the last one just before the end.
        let begun = Instant::now();
        let mut taken = 0;
        while taken < CUTS || count.load(Ordering::Relaxed) < 2 * WRITERS {
            assert!(begun.elapsed() < PATIENCE, "the load is real: {count:?}");
            taken += 1;
            let at = Moment::Sys(Cut::ALL);
            let cut = client
                .cut(&at, None, PendingMomentPolicy::Frontier, Duration::ZERO)
                .await
                .expect("a cut");
            assert!(cut.partitions.len() == PARTITIONS as usize);
            cuts.push((cut.at.parse().expect("a moment"), cut.hash));
        }
        server.kill().expect("it can be killed");
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            acknowledged.extend(writer.await.expect("a writer ends"));
        }
    }
    let status = {
        let server = TestServer::start(data.path(), &[]).expect("it starts once more");
        server.stop().expect("it can be stopped")
    };
    assert!(status.success(), "SIGTERM ends it with 0: {status}");
}
