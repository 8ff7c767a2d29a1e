//! A disk that returns other bytes than were written: no consumer ever sees them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use compat_kafka::KafkaOptions;
use kafka_records::{BatchBuilder, BatchIterator, CompressionType};
use storage::disk::{Disk, MemoryDisk};
use testkit::kafka::{START, TestKafkaConnection, TestKafkaServer, one_record_batch};

const CORRUPT_MESSAGE: i16 = 2;
const MIB: usize = 1 << 20;

/// All reads go to the disk.
async fn without_memory() -> (MemoryDisk, TestKafkaServer) {
    let disk = MemoryDisk::new();
    let server = TestKafkaServer::start(Arc::new(disk.clone()), KafkaOptions::default(), 0).await;
    server.topic("t", &[("max.message.bytes", "8000000")]).await;
    (disk, server)
}

/// The only place where `bytes` are stored.
fn find_bytes(disk: &MemoryDisk, bytes: &[u8]) -> (String, usize) {
    let names = disk.list().expect("a list");
    let journal = names.into_iter().find(|name| name.ends_with(".journal")).expect("a journal");
    let stored = disk.bytes(&journal);
    let at = stored.windows(bytes.len()).position(|window| window == bytes).expect("it is there");
    (journal, at)
}

/// Flips a bit of the byte `ahead` after the only place where `bytes` are stored.
fn corrupt(disk: &MemoryDisk, bytes: &[u8], ahead: usize) {
    let (journal, at) = find_bytes(disk, bytes);
    disk.corrupt(&journal, at + ahead, 1);
}

/// Produces `value 0` and so on.
async fn produce_six(wire: &mut TestKafkaConnection) {
    for number in 0..6 {
        let value = format!("value {number}");
        assert_eq!(wire.produce("t", one_record_batch(value.as_bytes())).await, (0, number));
    }
}

fn counts(batches: &Bytes) -> Vec<i64> {
    BatchIterator::new(batches).map(|batch| batch.expect("a sound batch").0.base_offset).collect()
}

async fn fetch(wire: &mut TestKafkaConnection, offset: i64) -> (i16, Vec<i64>) {
    let (error, batches) = wire.fetch("t", offset).await.expect("an answer");
    (error, counts(&batches))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_batch_is_never_served_and_a_consumer_that_seeks_past_it_goes_on() {
    let (disk, server) = without_memory().await;
    let mut wire = server.connect().await;
    produce_six(&mut wire).await;
    assert_eq!(fetch(&mut wire, 0).await, (0, vec![0, 1, 2, 3, 4, 5]));
    corrupt(&disk, b"value 2", 6);
    corrupt(&disk, b"value 4", 0);
    let found = || server.kafka.metrics().corrupt_reads.load(Ordering::Relaxed);
    assert_eq!(found(), 0, "nobody has read them");
    // On one connection: corruption that is found before anything was sent ends no connection.
    assert_eq!(fetch(&mut wire, 0).await, (0, vec![0, 1]), "what stands before it is served");
    assert_eq!(found(), 1);
    for _ in 0..3 {
        assert_eq!(fetch(&mut wire, 2).await, (CORRUPT_MESSAGE, vec![]));
    }
    assert_eq!(found(), 4);
    assert_eq!(fetch(&mut wire, 3).await, (0, vec![3]));
    assert_eq!(fetch(&mut wire, 4).await, (CORRUPT_MESSAGE, vec![]));
    assert_eq!(fetch(&mut wire, 5).await, (0, vec![5]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_batch_is_compared_in_pieces_and_a_corrupt_one_ends_its_response_in_the_middle() {
    let (disk, server) = without_memory().await;
    let mut wire = server.connect().await;
    let value = |mark: &str| [mark.as_bytes(), &vec![b'x'; 3 * MIB]].concat();
    assert_eq!(wire.produce("t", one_record_batch(&value("good"))).await, (0, 0));
    assert_eq!(wire.produce("t", one_record_batch(&value("rotten"))).await, (0, 1));
    assert_eq!(wire.produce("t", one_record_batch(b"last")).await, (0, 2));
    assert_eq!(fetch(&mut wire, 0).await, (0, vec![0, 1, 2]));
    corrupt(&disk, b"rotten", 3 * MIB);
    let broken = wire.fetch("t", 0).await.expect_err("the answer breaks off");
    assert_eq!(broken.kind(), std::io::ErrorKind::UnexpectedEof);
    let mut wire = server.connect().await;
    assert_eq!(fetch(&mut wire, 0).await, (0, vec![0]));
    assert_eq!(fetch(&mut wire, 1).await, (CORRUPT_MESSAGE, vec![]));
    assert_eq!(fetch(&mut wire, 2).await, (0, vec![2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_shortened_file_still_has_is_served_and_the_rest_is_corrupt_on_one_connection() {
    let (disk, server) = without_memory().await;
    let mut wire = server.connect().await;
    produce_six(&mut wire).await;
    let (journal, at) = find_bytes(&disk, b"value 3");
    disk.truncate_file(&journal, at + 2);
    assert_eq!(fetch(&mut wire, 0).await, (0, vec![0, 1, 2]), "what is whole");
    for _ in 0..3 {
        for offset in 3..6 {
            assert_eq!(fetch(&mut wire, offset).await, (CORRUPT_MESSAGE, vec![]));
        }
    }
    assert_eq!(fetch(&mut wire, 2).await, (0, vec![2]));
    assert!(server.kafka.metrics().corrupt_reads.load(Ordering::Relaxed) >= 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_sector_costs_the_batch_that_lies_in_it_until_the_disk_reads_it_again() {
    let (disk, server) = without_memory().await;
    server.topic("u", &[]).await;
    let mut wire = server.connect().await;
    produce_six(&mut wire).await;
    assert_eq!(wire.produce("u", one_record_batch(b"of another topic")).await, (0, 0));
    assert_eq!(wire.produce("t", one_record_batch(b"value 6")).await, (0, 6));
    let (journal, at) = find_bytes(&disk, b"value 2");
    disk.set_unreadable(&journal, Some(at as u64..at as u64 + 7));
    assert_eq!(fetch(&mut wire, 0).await, (0, vec![0, 1]), "what stands before it");
    assert_eq!(fetch(&mut wire, 2).await, (CORRUPT_MESSAGE, vec![]));
    assert_eq!(fetch(&mut wire, 3).await, (0, vec![3, 4, 5, 6]), "what stands behind it");
    disk.set_unreadable(&journal, None);
    assert_eq!(fetch(&mut wire, 2).await, (0, vec![2, 3, 4, 5, 6]), "the disk has it again");
    // Corruption in data that was not requested has no effect.
    let (_, at) = find_bytes(&disk, b"of another topic");
    disk.set_unreadable(&journal, Some(at as u64..at as u64 + 7));
    assert_eq!(fetch(&mut wire, 3).await, (0, vec![3, 4, 5, 6]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_batch_at_the_edge_of_a_moment_is_refused_too() {
    let (disk, server) = without_memory().await;
    let mut wire = server.connect().await;
    let mut edge = BatchBuilder::new(CompressionType::None);
    edge.record(START as i64 - 10, None, Some(b"seen"), &[]);
    edge.record(START as i64, None, Some(b"not seen"), &[]);
    assert_eq!(wire.produce("t", edge.build()).await, (0, 0));
    server.clock.advance(std::time::Duration::from_secs(1));
    let moment = format!("t.__at.u{START}");
    let (error, batches) = wire.fetch(&moment, 0).await.expect("an answer");
    assert_eq!((error, counts(&batches)), (0, vec![0]));
    let (journal, at) = find_bytes(&disk, b"seen");
    disk.set_unreadable(&journal, Some(at as u64..at as u64 + 1));
    let (error, batches) = wire.fetch(&moment, 0).await.expect("an answer");
    assert_eq!((error, counts(&batches)), (CORRUPT_MESSAGE, vec![]));
    disk.set_unreadable(&journal, None);
    corrupt(&disk, b"seen", 0);
    let (error, batches) = wire.fetch(&moment, 0).await.expect("an answer");
    assert_eq!((error, counts(&batches)), (CORRUPT_MESSAGE, vec![]));
}
