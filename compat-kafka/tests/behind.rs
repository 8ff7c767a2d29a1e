//! Consumers that are behind the tail in memory: they share what is read from the files.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use compat_kafka::KafkaOptions;
use kafka_records::BatchIterator;
use storage::disk::{Disk, MemoryDisk};
use testkit::disks::{DiskHook, HookedDisk};
use testkit::kafka::{TestKafkaConnection, TestKafkaServer, one_record_batch};
use testkit::requests::fetch_request;
use testkit::rng::SeededRng;

const MIB: usize = 1 << 20;

/// Counts the bytes that are read from the journal's files.
#[derive(Default)]
struct ReadCounter(AtomicU64);

impl DiskHook for ReadCounter {
    fn after_read(&self, name: &str, bytes: usize) {
        if name.ends_with(".journal") {
            self.0.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

impl ReadCounter {
    fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed) as usize
    }
}

/// A broker with this much memory for the newest batches and for the block cache.
async fn broker(memory_bytes: usize) -> (HookedDisk<ReadCounter>, TestKafkaServer) {
    let disk = HookedDisk::new(MemoryDisk::new(), Arc::new(ReadCounter::default()));
    let server =
        TestKafkaServer::start(Arc::new(disk.clone()), KafkaOptions::default(), memory_bytes).await;
    server.topic("t", &[("max.message.bytes", "8000000")]).await;
    (disk, server)
}

/// A batch that differs from all others.
fn numbered(number: usize, bytes: usize) -> Bytes {
    one_record_batch(&SeededRng::new(number as u64).bytes(bytes))
}

/// The part of a batch that does not depend on where the service put it.
fn content(batch: &[u8]) -> &[u8] {
    &batch[21..]
}

/// The error code, and the batches that an ordinary consumer gets at a time.
async fn fetch_some(wire: &mut TestKafkaConnection, offset: usize) -> (i16, Bytes) {
    let mut request = fetch_request("t", 0, offset as i64, Duration::ZERO);
    request.topics[0].partitions[0].partition_max_bytes = MIB as i32;
    let answer = wire.ask(12, &request).await.expect("an answer");
    let answer = answer.responses[0].partitions[0].clone();
    (answer.error_code, answer.records.unwrap_or_default())
}

/// Reads from `from` on up to the last of `produced`, and compares each batch.
async fn read_all(wire: &mut TestKafkaConnection, produced: &[Bytes], from: usize) {
    let mut next = from;
    while next < produced.len() {
        let (error, batches) = fetch_some(wire, next).await;
        assert_eq!(error, 0);
        for found in BatchIterator::new(&batches).take(produced.len() - next) {
            let (header, bytes) = found.expect("a sound batch");
            assert_eq!(header.base_offset, next as i64);
            assert!(content(bytes) == content(&produced[next]), "batch {next}");
            next += 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_consumers_of_the_same_old_batches_read_the_disk_once() {
    let (disk, server) = broker(48 * MIB).await;
    let mut producer = server.connect().await;
    let mut produced = Vec::new();
    for number in 0..80 {
        produced.push(numbered(number, 900_000 + number * 1000));
        assert_eq!(producer.produce("t", produced[number].clone()).await, (0, number as i64));
    }
    let old = &produced[..8];
    let before = disk.hook.bytes();
    let mut consumers = Vec::new();
    for _ in 0..10 {
        let (mut wire, old) = (server.connect().await, old.to_vec());
        consumers.push(tokio::spawn(async move { read_all(&mut wire, &old, 0).await }));
    }
    for consumer in consumers {
        consumer.await.expect("it read all");
    }
    let read = disk.hook.bytes() - before;
    let sent: usize = old.iter().map(Bytes::len).sum();
    // Whole blocks, and one ahead of them.
    assert!(read <= sent + 3 * MIB, "{read} bytes were read, and ten times {sent} sent");
    let stats = server.engine.data_cache().stats();
    assert!(stats.hits.load(Ordering::Relaxed) > stats.loads.load(Ordering::Relaxed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_grows_under_its_readers_is_read_as_it_was_written() {
    let (_, server) = broker(8 * MIB).await;
    let (mut producer, mut behind) = (server.connect().await, server.connect().await);
    let mut produced = Vec::new();
    for number in 0..400 {
        // Long ones, and short ones that share a block.
        let bytes = [300_000, 700, 90_000, 20, 1_200_000, 5000, 130_000, 64_000][number % 8];
        produced.push(numbered(number, bytes + number));
        assert_eq!(producer.produce("t", produced[number].clone()).await, (0, number as i64));
        if number % 20 == 19 {
            // The bytes that left memory just now are after the blocks that were read the last
            // time.
            let from = (number * 7919) % (number - 10);
            let until = (from + 60).min(produced.len());
            read_all(&mut behind, &produced[..until], from).await;
        }
    }
    read_all(&mut behind, &produced, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_compared_once_is_served_from_memory_and_what_was_not_never() {
    let (disk, server) = broker(48 * MIB).await;
    let mut producer = server.connect().await;
    let mut produced = Vec::new();
    for number in 0..80 {
        produced.push(numbered(number, 1_000_000));
        assert_eq!(producer.produce("t", produced[number].clone()).await, (0, number as i64));
    }
    let mut wire = server.connect().await;
    read_all(&mut wire, &produced[..8], 0).await;
    let journal = {
        let names = Disk::list(&disk.memory).expect("a list");
        names.into_iter().find(|name| name.ends_with(".journal")).expect("a journal")
    };
    let stored = disk.memory.bytes(&journal);
    let place = |number: usize| {
        let bytes = &content(&produced[number])[100..200];
        stored.windows(100).position(|window| window == bytes).expect("it is there")
    };
    // The first batch lies in blocks that were read, and the other in none.
    disk.memory.corrupt(&journal, place(0), 1);
    disk.memory.corrupt(&journal, place(20), 1);
    read_all(&mut wire, &produced[..2], 0).await;
    read_all(&mut wire, &produced[..20], 18).await;
    let (error, batches) = fetch_some(&mut wire, 20).await;
    assert_eq!((error, batches.len()), (2, 0), "CORRUPT_MESSAGE");
    read_all(&mut wire, &produced[..24], 21).await;
}
