//! Offsets that are committed with a transaction.

use compat_kafka::KafkaOptions;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::{
    DeleteGroupsRequest, GroupId, OffsetCommitRequest, OffsetFetchRequest, ProducerId,
    TxnOffsetCommitRequest,
};
use kafka_transactions::TransactionOptions;
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaConnection, TestKafkaServer};
use testkit::requests::{str_bytes, topic_name};

use super::fixture::{Protocol, TransactionalProducer, create, server_on, transactional_id};

fn group() -> GroupId {
    GroupId(str_bytes("g"))
}

/// The offset of the group for partition 0 of `t`, and its error.
async fn committed(connection: &mut TestKafkaConnection, require_stable: bool) -> (i64, i16) {
    let topic = OffsetFetchRequestTopics::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![0]);
    let asked =
        OffsetFetchRequestGroup::default().with_group_id(group()).with_topics(Some(vec![topic]));
    let request =
        OffsetFetchRequest::default().with_groups(vec![asked]).with_require_stable(require_stable);
    let answer = connection.ask(8, &request).await.unwrap();
    let partition = &answer.groups[0].topics[0].partitions[0];
    (partition.committed_offset, partition.error_code)
}

async fn add_offset(producer: &mut TransactionalProducer, offset: i64) -> i16 {
    let version = if producer.protocol == Protocol::V1 { 3 } else { 5 };
    let partition = TxnOffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(offset)
        .with_committed_leader_epoch(-1);
    let topic = TxnOffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = TxnOffsetCommitRequest::default()
        .with_transactional_id(transactional_id(&producer.id))
        .with_group_id(group())
        .with_producer_id(ProducerId(producer.producer.0))
        .with_producer_epoch(producer.producer.1)
        .with_generation_id(-1)
        .with_topics(vec![topic]);
    let answer = producer.connection.ask(version, &request).await.unwrap();
    answer.topics[0].partitions[0].error_code
}

/// Commits an offset without a transaction.
async fn commit(connection: &mut TestKafkaConnection, offset: i64) {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(0)
        .with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request = OffsetCommitRequest::default()
        .with_group_id(group())
        .with_generation_id_or_member_epoch(-1)
        .with_topics(vec![topic]);
    let answer = connection.ask(8, &request).await.unwrap();
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
}

/// Restarts the server: what follows is decided by what the journal says.
async fn restart(
    server: TestKafkaServer,
    disk: &mut MemoryDisk,
    producers: &mut [&mut TransactionalProducer],
) -> TestKafkaServer {
    server.engine.close();
    *disk = disk.after_kill();
    let server = server_on(disk).await;
    for producer in producers {
        producer.reconnect(&server).await;
    }
    server
}

async fn add_group(producer: &mut TransactionalProducer, group: GroupId) -> i16 {
    let request = AddOffsetsToTxnRequest::default()
        .with_transactional_id(transactional_id(&producer.id))
        .with_producer_id(ProducerId(producer.producer.0))
        .with_producer_epoch(producer.producer.1)
        .with_group_id(group);
    producer.connection.ask(3, &request).await.unwrap().error_code
}

#[tokio::test]
async fn offsets_are_committed_with_their_transaction_or_not_at_all() {
    for protocol in [Protocol::V1, Protocol::V2] {
        let mut disk = MemoryDisk::new();
        let mut server = server_on(&disk).await;
        create(&server, "t", 1).await;
        let mut producer = TransactionalProducer::start(&server, protocol, "id").await;
        if protocol == Protocol::V1 {
            let refused = add_offset(&mut producer, 1).await;
            assert_eq!(refused, ResponseError::InvalidTxnState.code(), "the group was not added");
        }
        let unstable = ResponseError::UnstableOffsetCommit.code();
        let mut last = -1;
        for (offset, commits, restarts) in [
            (5, true, false),
            (7, false, false),
            (9, true, true),
            (11, false, true),
            (13, true, false),
        ] {
            if protocol == Protocol::V1 {
                assert_eq!(add_group(&mut producer, group()).await, 0);
            }
            assert_eq!(add_offset(&mut producer, offset).await, 0);
            if restarts {
                server.engine.close();
                disk = disk.after_kill();
                server = server_on(&disk).await;
                producer.reconnect(&server).await;
            }
            let connection = &mut producer.connection;
            assert_eq!(committed(connection, true).await, (-1, unstable), "{protocol:?} {offset}");
            assert_eq!(committed(connection, false).await, (last, 0), "{protocol:?} {offset}");
            producer.must_end(commits).await;
            last = if commits { offset } else { last };
            let connection = &mut producer.connection;
            assert_eq!(committed(connection, true).await, (last, 0), "{protocol:?} {offset}");
        }
    }
}

#[tokio::test]
async fn groups_of_open_transactions_are_bounded_by_their_bytes_and_give_them_back() {
    let transactions = TransactionOptions { offsets_bytes_max: 2700, ..Default::default() };
    let options = KafkaOptions { transactions, ..KafkaOptions::default() };
    let disk = std::sync::Arc::new(MemoryDisk::new());
    let server = TestKafkaServer::start(disk, options, 64 << 20).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V1, "id").await;
    let long = |nth: u32| GroupId(str_bytes(&format!("{nth}{}", "g".repeat(700))));
    for _ in 0..2 {
        assert_eq!(add_group(&mut producer, long(0)).await, 0);
        assert_eq!(add_group(&mut producer, long(1)).await, 0);
        assert_eq!(add_group(&mut producer, long(1)).await, 0);
        let refused = ResponseError::CoordinatorNotAvailable.code();
        assert_eq!(add_group(&mut producer, long(2)).await, refused);
        producer.must_end(false).await;
    }
}

/// As in Kafka, the order is that in which offsets were accepted.
#[tokio::test]
async fn a_commit_that_came_later_outlives_the_end_of_a_transaction() {
    for restarts in [false, true] {
        let mut disk = MemoryDisk::new();
        let mut server = server_on(&disk).await;
        create(&server, "t", 1).await;
        let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
        assert_eq!(add_offset(&mut producer, 5).await, 0);
        commit(&mut producer.connection, 9).await;
        if restarts {
            server = restart(server, &mut disk, &mut [&mut producer]).await;
        }
        producer.must_end(true).await;
        assert_eq!(committed(&mut producer.connection, true).await, (9, 0));
        assert_eq!(add_offset(&mut producer, 7).await, 0);
        producer.must_end(true).await;
        assert_eq!(committed(&mut producer.connection, true).await, (7, 0), "a later one counts");
        drop(server);
    }
}

#[tokio::test]
async fn the_offset_of_the_transaction_that_added_it_last_stays() {
    for (first_ends_first, restarts) in [(true, false), (false, false), (true, true), (false, true)]
    {
        let mut disk = MemoryDisk::new();
        let mut server = server_on(&disk).await;
        create(&server, "t", 1).await;
        let mut first = TransactionalProducer::start(&server, Protocol::V2, "first").await;
        let mut second = TransactionalProducer::start(&server, Protocol::V2, "second").await;
        assert_eq!(add_offset(&mut first, 5).await, 0);
        assert_eq!(add_offset(&mut second, 9).await, 0);
        let (one, other) =
            if first_ends_first { (&mut first, &mut second) } else { (&mut second, &mut first) };
        one.must_end(true).await;
        if restarts {
            server = restart(server, &mut disk, &mut [&mut *one, &mut *other]).await;
        }
        other.must_end(true).await;
        assert_eq!(committed(&mut other.connection, true).await, (9, 0), "{first_ends_first}");
        drop(server);
    }
}

#[tokio::test]
async fn the_end_of_a_transaction_revives_no_deleted_group() {
    for restarts in [false, true] {
        let mut disk = MemoryDisk::new();
        let mut server = server_on(&disk).await;
        create(&server, "t", 1).await;
        let mut producer = TransactionalProducer::start(&server, Protocol::V2, "id").await;
        assert_eq!(add_offset(&mut producer, 5).await, 0);
        let request = DeleteGroupsRequest::default().with_groups_names(vec![group()]);
        let deleted = producer.connection.ask(2, &request).await.unwrap();
        assert_eq!(deleted.results[0].error_code, 0);
        if restarts {
            server = restart(server, &mut disk, &mut [&mut producer]).await;
        }
        producer.must_end(true).await;
        assert_eq!(committed(&mut producer.connection, true).await, (-1, 0));
        drop(server);
    }
}
