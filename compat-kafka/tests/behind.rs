//! Consumers that are behind the tail in memory: they share what is read from the files.

mod rig;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use compat_kafka::KafkaOptions;
use kafka_records::BatchIterator;
use rig::{TestKafkaConnection, TestKafkaServer, batch, fetch};
use storage::disk::{Disk, DiskFile, MemoryDisk};

const MIB: usize = 1 << 20;

/// A disk that counts the bytes that are read from the journal's files. It has no page cache.
#[derive(Clone, Default)]
struct ReadCountingDisk {
    inner: MemoryDisk,
    read_bytes: Arc<AtomicU64>,
}

struct ReadCountingFile {
    inner: Arc<dyn DiskFile>,
    read_bytes: Arc<AtomicU64>,
}

impl ReadCountingDisk {
    fn counting(&self, name: &str, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        if !name.ends_with(".journal") {
            return inner;
        }
        Arc::new(ReadCountingFile { inner, read_bytes: Arc::clone(&self.read_bytes) })
    }

    fn read_bytes(&self) -> usize {
        self.read_bytes.load(Ordering::Relaxed) as usize
    }
}

impl Disk for ReadCountingDisk {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.counting(name, self.inner.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.counting(name, self.inner.create(name)?))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.inner.sync_directory()
    }
}

impl DiskFile for ReadCountingFile {
    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let read = self.inner.read_at(buffer, position)?;
        self.read_bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn write_at(&self, slices: &mut [io::IoSlice<'_>], position: u64) -> io::Result<()> {
        self.inner.write_at(slices, position)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.inner.truncate(length)
    }

    fn punch_hole(&self, range: Range<u64>) -> io::Result<()> {
        self.inner.punch_hole(range)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// A broker with this much memory for the newest batches and for the block cache.
async fn broker(memory_bytes: usize) -> (ReadCountingDisk, TestKafkaServer) {
    let disk = ReadCountingDisk::default();
    let rig =
        TestKafkaServer::start(Arc::new(disk.clone()), KafkaOptions::default(), memory_bytes).await;
    rig.topic("t", &[("max.message.bytes", "8000000")]).await;
    (disk, rig)
}

/// A batch that differs from all others.
fn numbered(number: usize, bytes: usize) -> Bytes {
    let mut state = number as u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    batch(&(0..bytes).map(|_| next()).collect::<Vec<u8>>())
}

/// The part of a batch that does not depend on where the service put it.
fn content(batch: &[u8]) -> &[u8] {
    &batch[21..]
}

/// The error code, and the batches that an ordinary consumer gets at a time.
async fn fetch_some(wire: &mut TestKafkaConnection, offset: usize) -> (i16, Bytes) {
    let mut request = fetch("t", offset as i64, Duration::ZERO);
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
    let (disk, rig) = broker(48 * MIB).await;
    let mut producer = rig.connect().await;
    let mut produced = Vec::new();
    for number in 0..80 {
        produced.push(numbered(number, 900_000 + number * 1000));
        assert_eq!(producer.produce("t", produced[number].clone()).await, (0, number as i64));
    }
    let old = &produced[..8];
    let before = disk.read_bytes();
    let mut consumers = Vec::new();
    for _ in 0..10 {
        let (mut wire, old) = (rig.connect().await, old.to_vec());
        consumers.push(tokio::spawn(async move { read_all(&mut wire, &old, 0).await }));
    }
    for consumer in consumers {
        consumer.await.expect("it read all");
    }
    let read = disk.read_bytes() - before;
    let sent: usize = old.iter().map(Bytes::len).sum();
    // Whole blocks, and one ahead of them.
    assert!(read <= sent + 3 * MIB, "{read} bytes were read, and ten times {sent} sent");
    let stats = rig.engine.data_cache().stats();
    assert!(stats.hits.load(Ordering::Relaxed) > stats.loads.load(Ordering::Relaxed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_grows_under_its_readers_is_read_as_it_was_written() {
    let (_, rig) = broker(8 * MIB).await;
    let (mut producer, mut behind) = (rig.connect().await, rig.connect().await);
    let mut produced = Vec::new();
    for number in 0..400 {
        // Long ones, and short ones that share a block.
        let bytes = [300_000, 700, 90_000, 20, 1_200_000, 5000, 130_000, 64_000][number % 8];
        produced.push(numbered(number, bytes + number));
        assert_eq!(producer.produce("t", produced[number].clone()).await, (0, number as i64));
        if number % 20 == 19 {
            // What left memory just now is after the blocks that were read the last time.
            let from = (number * 7919) % (number - 10);
            let until = (from + 60).min(produced.len());
            read_all(&mut behind, &produced[..until], from).await;
        }
    }
    read_all(&mut behind, &produced, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_compared_once_is_served_from_memory_and_what_was_not_never() {
    let (disk, rig) = broker(48 * MIB).await;
    let mut producer = rig.connect().await;
    let mut produced = Vec::new();
    for number in 0..80 {
        produced.push(numbered(number, 1_000_000));
        assert_eq!(producer.produce("t", produced[number].clone()).await, (0, number as i64));
    }
    let mut wire = rig.connect().await;
    read_all(&mut wire, &produced[..8], 0).await;
    let journal = {
        let names = disk.inner.list().expect("a list");
        names.into_iter().find(|name| name.ends_with(".journal")).expect("a journal")
    };
    let stored = disk.inner.bytes(&journal);
    let place = |number: usize| {
        let bytes = &content(&produced[number])[100..200];
        stored.windows(100).position(|window| window == bytes).expect("it is there")
    };
    // The first batch lies in blocks that were read, and the other in none.
    disk.inner.corrupt(&journal, place(0), 1);
    disk.inner.corrupt(&journal, place(20), 1);
    read_all(&mut wire, &produced[..2], 0).await;
    read_all(&mut wire, &produced[..20], 18).await;
    let (error, batches) = fetch_some(&mut wire, 20).await;
    assert_eq!((error, batches.len()), (2, 0), "CORRUPT_MESSAGE");
    read_all(&mut wire, &produced[..24], 21).await;
}
