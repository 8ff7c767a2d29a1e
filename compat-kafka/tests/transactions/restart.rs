//! Transactions through the end of a server, orderly or not.

use std::sync::Arc;
use std::time::Duration;

use compat_kafka::KafkaOptions;
use engine::groups::{LastTransaction, StoredDecision, TransactionState};
use engine::{Isolation, Offset, TransactionEnd, WaitPolicy};
use hlc::{Cut, Hlc, Moment};
use kafka_protocol::ResponseError;
use kafka_transactions::TransactionOptions;
use storage::disk::MemoryDisk;
use storage::journal::{FRAME_BYTES, segment_start};
use storage::sorted_segment::is_index_name;
use testkit::kafka::TestKafkaServer;
use testkit::rng::SeededRng;

use super::fixture::{
    COMMITTED, Protocol, TransactionalProducer, UNCOMMITTED, create, read, server_on,
};

/// The first byte of the producer's id in a batch.
const PRODUCER_ID_AT: usize = 43;

#[tokio::test]
async fn an_open_transaction_goes_on_after_a_restart() {
    for protocol in [Protocol::V1, Protocol::V2] {
        let disk = MemoryDisk::new();
        let server = server_on(&disk).await;
        create(&server, "t", 2).await;
        let mut producer = TransactionalProducer::start(&server, protocol, "id").await;
        producer.must_send("t", 0, "before").await;
        producer.must_end(true).await;
        producer.must_send("t", 0, "a").await;
        producer.must_send("t", 1, "b").await;
        drop(server);
        let disk = disk.after_kill();
        let server = server_on(&disk).await;
        producer.reconnect(&server).await;
        let found = read(&mut producer.connection, "t", 0, COMMITTED).await;
        assert_eq!(found.values, ["before"], "{protocol:?}");
        producer.must_send("t", 0, "c").await;
        producer.must_end(true).await;
        let found = read(&mut producer.connection, "t", 0, COMMITTED).await;
        assert_eq!(found.values, ["before", "a", "c"], "{protocol:?}");
        let found = read(&mut producer.connection, "t", 1, COMMITTED).await;
        assert_eq!(found.values, ["b"], "{protocol:?}");
    }
}

/// The journal ends at any frame of a decision and its markers: the decision alone says what
/// becomes of the transaction, on every partition.
#[tokio::test]
async fn a_decision_whose_markers_a_crash_cut_off_is_completed() {
    let mut seen = [0; 2];
    for seed in 0..60 {
        let mut random = SeededRng::new(seed);
        let commits = random.below(2) == 0;
        let disk = MemoryDisk::new();
        let server = server_on(&disk).await;
        create(&server, "t", 3).await;
        let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
        for partition in 0..3 {
            producer.must_send("t", partition, "value").await;
        }
        // Writes from now on are not synced, and may be there in part.
        disk.arm(storage::disk::DiskFault::CrashAt(disk.operations() + 1));
        let ended = producer.end_request(commits);
        let _ =
            tokio::time::timeout(Duration::from_millis(500), producer.connection.ask(5, &ended))
                .await;
        drop(server);
        let disk = disk.after_crash(|choices| random.below(choices as u64) as usize);
        let server = server_on(&disk).await;
        producer.reconnect(&server).await;
        let answer = loop {
            let answer = producer.connection.ask(5, &ended).await.unwrap();
            if answer.error_code != ResponseError::ConcurrentTransactions.code() {
                break answer;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(answer.error_code, 0, "seed {seed}");
        let expected: &[&str] = if commits { &["value"] } else { &[] };
        for partition in 0..3 {
            let found = read(&mut producer.connection, "t", partition, COMMITTED).await;
            assert_eq!(found.values, expected, "seed {seed}, partition {partition}");
            assert_eq!(found.last_stable, 2, "seed {seed}, partition {partition}");
        }
        seen[usize::from(commits)] += 1;
    }
    assert!(seen.iter().all(|count| *count > 10));
}

/// A flipped bit takes the state of the producers at the end of the newest segment. The part that
/// is read back instead has the record of a transaction, and the marker behind it was deleted.
#[tokio::test]
async fn a_marker_that_was_deleted_is_not_written_again() {
    let disk = MemoryDisk::new();
    let server = server_on(&disk).await;
    create(&server, "t", 1).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
    producer.must_send("t", 0, "value").await;
    let maintenance = server.engine.core().maintenance();
    maintenance.roll_segment().await.unwrap();
    producer.must_end(true).await;
    maintenance.roll_segment().await.unwrap();
    maintenance.index_and_sort().await.unwrap();
    let topic = server.engine.topics().named("t").unwrap();
    server.engine.topics().delete_records(&topic, 0, -1).await.unwrap();
    drop(server);
    let server = server_on(&without_newest_state(&disk)).await;
    let partition = &server.engine.topics().named("t").unwrap().partitions[0];
    assert_eq!((partition.end(), partition.stable_end()), (Offset(2), Offset(2)));
}

/// The same, where the transaction is open, and compaction ended at its record.
#[tokio::test]
async fn an_open_transaction_in_a_compacted_log_stays_open() {
    let disk = MemoryDisk::new();
    let server = compacting_server_on(&disk).await;
    let mut other = TransactionalProducer::start(&server, Protocol::V2, "other").await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
    other.must_send("t", 0, "key=1").await;
    other.must_end(true).await;
    let open_from = producer.must_send("t", 0, "open=1").await;
    let maintenance = server.engine.core().maintenance();
    maintenance.roll_segment().await.unwrap();
    other.must_send("t", 0, "key=2").await;
    other.must_end(true).await;
    maintenance.roll_segment().await.unwrap();
    maintenance.index_and_sort().await.unwrap();
    server.clock.advance(Duration::from_millis(100));
    let compacted = maintenance.compact_due().await.unwrap();
    assert!(compacted > 0, "something is compacted");
    drop(server);
    let server = server_on(&without_newest_state(&disk)).await;
    let partition = &server.engine.topics().named("t").unwrap().partitions[0];
    assert_eq!(partition.stable_end(), Offset(open_from as u64));
    producer.reconnect(&server).await;
    let found = read(&mut producer.connection, "t", 0, COMMITTED).await;
    assert!(!found.values.contains(&"open=1".to_owned()), "{:?}", found.values);
    producer.must_end(true).await;
    let found = read(&mut producer.connection, "t", 0, COMMITTED).await;
    assert!(found.values.contains(&"open=1".to_owned()), "{:?}", found.values);
}

/// The same, where its producer's transaction before it was compacted together with its marker.
#[tokio::test]
async fn an_open_transaction_behind_a_compacted_one_of_its_producer_stays_open() {
    let disk = MemoryDisk::new();
    let server = compacting_server_on(&disk).await;
    let mut other = TransactionalProducer::start(&server, Protocol::V1, "other").await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V1, "id").await;
    producer.must_send("t", 0, "key=1").await;
    let maintenance = server.engine.core().maintenance();
    maintenance.roll_segment().await.unwrap();
    producer.must_end(true).await;
    other.must_send("t", 0, "key=2").await;
    other.must_end(true).await;
    maintenance.roll_segment().await.unwrap();
    maintenance.index_and_sort().await.unwrap();
    let open_from = producer.must_send("t", 0, "open=1").await;
    server.clock.advance(Duration::from_millis(100));
    let compacted = maintenance.compact_due().await.unwrap();
    assert!(compacted > 0, "something is compacted");
    drop(server);
    let server = server_on(&without_newest_state(&disk)).await;
    let partition = &server.engine.topics().named("t").unwrap().partitions[0];
    assert_eq!(partition.stable_end(), Offset(open_from as u64));
    producer.reconnect(&server).await;
    producer.must_end(false).await;
    let found = read(&mut producer.connection, "t", 0, COMMITTED).await;
    assert_eq!(found.values, ["key=2"]);
}

/// An aborted transaction in a compacted log, where the only saved state of the producers is lost.
#[tokio::test]
async fn an_aborted_transaction_in_a_compacted_log_stays_aborted() {
    let disk = MemoryDisk::new();
    let server = compacting_server_on(&disk).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
    producer.must_send("t", 0, "key=1").await;
    producer.must_end(true).await;
    producer.must_send("t", 0, "key=2").await;
    producer.must_end(false).await;
    let maintenance = server.engine.core().maintenance();
    maintenance.roll_segment().await.unwrap();
    maintenance.index_and_sort().await.unwrap();
    server.clock.advance(Duration::from_millis(100));
    maintenance.compact_due().await.unwrap();
    drop(server);
    let server = server_on(&without_newest_state(&disk)).await;
    producer.reconnect(&server).await;
    let found = read(&mut producer.connection, "t", 0, COMMITTED).await;
    assert_eq!(found.values, ["key=1"]);
}

/// A flipped bit in the newest entry of a transaction log is damage to that entry alone.
#[tokio::test]
async fn a_server_starts_with_a_corrupt_entry_of_a_transaction_log() {
    let disk = MemoryDisk::new();
    let server = server_on(&disk).await;
    create(&server, "t", 1).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
    producer.must_send("t", 0, "value").await;
    producer.must_end(true).await;
    let partition = Arc::clone(&server.engine.topics().named("t").unwrap().partitions[0]);
    let marker = partition.log.read(Offset(1), Offset(2), 1).unwrap()[0].read().unwrap();
    drop(partition);
    server.engine.close();
    drop(server);
    let disk = disk.after_kill();
    let names = disk.names();
    let journal = names.iter().find(|name| segment_start(name) == Some(0)).unwrap();
    let at = disk.bytes(journal).windows(marker.len()).position(|bytes| bytes == marker).unwrap();
    // The frame of the entry comes next.
    let entry = at.next_multiple_of(8) + (marker.len()).next_multiple_of(8) + FRAME_BYTES;
    disk.corrupt(journal, entry + 1, 1);
    let server = server_on(&disk).await;
    let partition = &server.engine.topics().named("t").unwrap().partitions[0];
    assert_eq!((partition.end(), partition.stable_end()), (Offset(2), Offset(2)));
}

/// A batch of a transaction that is damaged still counts for the sequence numbers of its producer.
#[tokio::test]
async fn a_producer_goes_on_behind_a_corrupt_batch_of_its_transaction() {
    let disk = MemoryDisk::new();
    let server = server_on(&disk).await;
    create(&server, "t", 1).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V1, "id").await;
    producer.must_send("t", 0, "first").await;
    producer.must_send("t", 0, "second").await;
    server.engine.close();
    drop(server);
    let disk = disk.after_kill();
    let names = disk.names();
    let journal = names.iter().find(|name| segment_start(name) == Some(0)).unwrap();
    let at = disk.bytes(journal).windows(6).position(|bytes| bytes == b"second").unwrap();
    disk.corrupt(journal, at, 1);
    let server = server_on(&disk).await;
    producer.reconnect(&server).await;
    producer.must_send("t", 0, "third").await;
}

/// A server with the topic `t`, which is compacted as soon as it can be.
async fn compacting_server_on(disk: &MemoryDisk) -> TestKafkaServer {
    let server = server_on(disk).await;
    let configs = [
        ("cleanup.policy", "compact"),
        ("min.cleanable.dirty.ratio", "0"),
        ("min.compaction.lag.ms", "0"),
    ];
    server.topic("t", &configs).await;
    server
}

/// The disk with a flipped bit in the state of the producers at the end of the newest sealed
/// segment, sorted or not.
fn without_newest_state(disk: &MemoryDisk) -> MemoryDisk {
    let disk = disk.after_kill();
    let names = disk.names();
    let indexes: Vec<_> =
        names.iter().filter(|name| is_index_name(name) && !name.starts_with("log-")).collect();
    let segment_of = |name: &str| name.split('.').next().map(str::to_owned);
    let newest = indexes.iter().map(|name| segment_of(name)).max().unwrap();
    for index in indexes.into_iter().filter(|name| segment_of(name) == newest) {
        // Its last block has the state.
        disk.corrupt(index, disk.bytes(index).len() - 4000, 1);
    }
    disk
}

/// A flipped bit makes the marker of a transaction that of another producer.
#[tokio::test]
async fn a_corrupt_marker_ends_its_transaction() {
    let disk = MemoryDisk::new();
    let server = server_on(&disk).await;
    create(&server, "t", 1).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
    producer.must_send("t", 0, "value").await;
    producer.must_end(true).await;
    let partition = Arc::clone(&server.engine.topics().named("t").unwrap().partitions[0]);
    let marker = &partition.log.read(Offset(1), Offset(2), 1).unwrap()[0];
    let marker = marker.read().unwrap();
    drop(partition);
    // All of it is known to be on stable storage.
    server.engine.close();
    drop(server);
    let disk = disk.after_kill();
    let names = disk.names();
    let journal = names.iter().find(|name| segment_start(name) == Some(0)).unwrap();
    let at = disk.bytes(journal).windows(marker.len()).position(|bytes| bytes == marker).unwrap();
    disk.corrupt(journal, at + PRODUCER_ID_AT, 1);
    let server = server_on(&disk).await;
    let partition = &server.engine.topics().named("t").unwrap().partitions[0];
    assert_eq!((partition.end(), partition.stable_end()), (Offset(2), Offset(2)));
}

/// Decides the transaction of a producer as the coordinator does, and writes no marker.
async fn decide(
    server: &TestKafkaServer,
    producer: &TransactionalProducer,
) -> (Hlc, TransactionEnd) {
    let groups = server.engine.groups();
    let stored = groups.transactions().unwrap().remove(0);
    let (id, epoch) = producer.producer;
    let decision = StoredDecision { producer: id, epoch, is_committed: true };
    let state = TransactionState { last: LastTransaction::Committed, ..stored.state };
    let decided =
        groups.begin_decide_transaction("id", (decision, state), Vec::new(), Vec::new()).unwrap();
    (decided.wait().await.unwrap().0, decision.end())
}

/// As where the disk is full at the start: the marker comes later.
#[tokio::test]
async fn a_commit_counts_in_every_cut_before_its_marker_is_there() {
    let disk = MemoryDisk::new();
    let server = server_on(&disk).await;
    create(&server, "t", 1).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V1, "id").await;
    producer.must_send("t", 0, "value").await;
    let (decided, end) = decide(&server, &producer).await;
    let moment = |cut| format!("t@{}", Moment::Sys(cut));
    let (before, after) = (moment(Cut::below(decided)), moment(Cut::through(decided)));
    let partition = Arc::clone(&server.engine.topics().named("t").unwrap().partitions[0]);
    partition.transactions.note_commit(end.producer, decided);
    let hash = async || {
        let cuts = server.engine.cuts().with_isolation(Isolation::Committed);
        cuts.at(Cut::through(decided), None, WaitPolicy::Refuse).await.unwrap().hash
    };
    let without_marker = hash().await;
    for has_marker in [false, true] {
        let connection = &mut producer.connection;
        assert!(read(connection, &before, 0, COMMITTED).await.values.is_empty(), "{has_marker}");
        let found = read(connection, &after, 0, COMMITTED).await;
        assert_eq!(found.values, ["value"], "{has_marker}");
        assert_eq!(hash().await, without_marker, "{has_marker}");
        let partitions = vec![Arc::clone(&partition)];
        assert!(server.engine.write_markers(end, decided, partitions).await.is_empty());
    }
}

#[tokio::test]
async fn partitions_that_are_never_written_to_lapse_for_others() {
    let transactions = TransactionOptions {
        abort_interval: Duration::from_millis(5),
        enlisted_max: 3,
        ..TransactionOptions::default()
    };
    let options = KafkaOptions { transactions, ..KafkaOptions::default() };
    let disk = std::sync::Arc::new(MemoryDisk::new());
    let server = TestKafkaServer::start(disk, options, 64 << 20).await;
    create(&server, "t", 5).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V1, "id").await;
    assert_eq!(producer.init(600_000).await.error_code, 0);
    producer.must_send("t", 0, "kept").await;
    for partition in [1, 2] {
        assert_eq!(producer.add_partition("t", partition).await, 0);
    }
    let full = ResponseError::CoordinatorNotAvailable.code();
    assert_eq!(producer.add_partition("t", 3).await, full);
    server.clock.advance(Duration::from_secs(121));
    while producer.add_partition("t", 3).await == full {
        tokio::task::yield_now().await;
    }
    let batch = producer.batch(0, &["late"]);
    let lapsed = producer.send_batch("t", 1, &batch).await.0;
    assert_eq!(lapsed, ResponseError::InvalidTxnState.code());
    producer.must_send("t", 0, "too").await;
    producer.must_end(true).await;
    let found = read(&mut producer.connection, "t", 0, COMMITTED).await;
    assert_eq!(found.values, ["kept", "too"]);
    assert!(read(&mut producer.connection, "t", 1, UNCOMMITTED).await.values.is_empty());
}

#[tokio::test]
async fn a_transaction_that_is_open_for_too_long_is_aborted_and_its_producer_fenced() {
    for protocol in [Protocol::V1, Protocol::V2] {
        time_out(protocol).await;
    }
}

async fn time_out(protocol: Protocol) {
    let transactions = TransactionOptions {
        abort_interval: Duration::from_millis(5),
        ..TransactionOptions::default()
    };
    let options = KafkaOptions { transactions, ..KafkaOptions::default() };
    let disk = std::sync::Arc::new(MemoryDisk::new());
    let server = TestKafkaServer::start(disk, options, 64 << 20).await;
    create(&server, "t", 1).await;
    let mut producer = TransactionalProducer::start(&server, protocol, "id").await;
    producer.must_send("t", 0, "lost").await;
    server.clock.advance(Duration::from_millis(60_001));
    while read(&mut producer.connection, "t", 0, COMMITTED).await.last_stable < 2 {
        tokio::task::yield_now().await;
    }
    // The markers can be read a moment before the coordinator knows it; a client retries that.
    let error = loop {
        let (error, _) = producer.send("t", 0, "late").await;
        let retriable = match protocol {
            Protocol::V1 => ResponseError::NotEnoughReplicas,
            Protocol::V2 => ResponseError::ConcurrentTransactions,
        };
        if error != retriable.code() {
            break error;
        }
    };
    assert_eq!(error, ResponseError::InvalidProducerEpoch.code());
    let (commit, abort) = match protocol {
        Protocol::V1 => {
            (ResponseError::ProducerFenced.code(), ResponseError::ProducerFenced.code())
        }
        // It learns that its transaction is aborted, and its next epoch.
        Protocol::V2 => (ResponseError::InvalidTxnState.code(), 0),
    };
    assert_eq!(producer.end(true).await.error_code, commit);
    assert!(read(&mut producer.connection, "t", 0, COMMITTED).await.values.is_empty());
    assert_eq!(producer.end(false).await.error_code, abort);
    if protocol == Protocol::V2 {
        producer.must_send("t", 0, "kept").await;
        producer.must_end(true).await;
        assert_eq!(read(&mut producer.connection, "t", 0, COMMITTED).await.values, ["kept"]);
    }
}
