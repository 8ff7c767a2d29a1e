//! Producers, and their transactions.

use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddPartitionsToTxnRequest, DescribeProducersRequest,
    DescribeTransactionsRequest, EndTxnRequest, GroupId, InitProducerIdRequest,
    InitProducerIdResponse, ListTransactionsRequest, ProducerId, TransactionalId,
    TxnOffsetCommitRequest, WriteTxnMarkersRequest,
};

use super::*;

const X: Resource<'static> = Resource { kind: ResourceType::TransactionalId, name: "x" };
const G: Resource<'static> = Resource { kind: ResourceType::Group, name: "g" };

fn id() -> TransactionalId {
    TransactionalId(text("x"))
}

async fn init(test: &TestAuthorizer, id: Option<TransactionalId>) -> InitProducerIdResponse {
    let request = InitProducerIdRequest::default()
        .with_transactional_id(id)
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    test.ask(4, request).await
}

/// A producer of the transactional id, to whose transaction nobody may do anything any more.
async fn with_producer() -> (TestAuthorizer, ProducerId) {
    let test = TestAuthorizer::with_topic("t", 1).await;
    test.allow(Operation::Write, X).await;
    let producer = init(&test, Some(id())).await;
    assert_eq!((producer.error_code, producer.producer_epoch), (0, 0));
    test.revoke(Operation::Write, X).await;
    (test, producer.producer_id)
}

#[tokio::test]
async fn whoever_may_write_to_any_topic_gets_a_producer_id() {
    let test = TestAuthorizer::new();
    test.allow(Operation::Read, T).await;
    let refused = init(&test, None).await;
    assert_eq!((refused.error_code, refused.producer_id), (CLUSTER_DENIED, ProducerId(-1)));
    for (operation, resource) in
        [(Operation::Write, T), (Operation::IdempotentWrite, Resource::CLUSTER)]
    {
        test.allow(operation, resource).await;
        assert_eq!(init(&test, None).await.error_code, 0);
        test.revoke(operation, resource).await;
    }
    assert_eq!(init(&test, None).await.error_code, CLUSTER_DENIED);
}

#[tokio::test]
async fn a_transactional_id_is_for_whom_may_write_by_it() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    test.allow(Operation::IdempotentWrite, Resource::CLUSTER).await;
    test.allow(Operation::Describe, X).await;
    assert_eq!(init(&test, Some(id())).await.error_code, ID_DENIED);
    test.allow(Operation::Write, X).await;
    assert_eq!(init(&test, Some(id())).await.error_code, 0);
}

/// The errors of `t` and of `other`.
async fn add(test: &TestAuthorizer, producer: ProducerId) -> Vec<i16> {
    let topic = |name| {
        AddPartitionsToTxnTopic::default().with_name(topic_name(name)).with_partitions(vec![0])
    };
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(id())
        .with_v3_and_below_producer_id(producer)
        .with_v3_and_below_topics(vec![topic("t"), topic("other")]);
    let results = test.ask(3, request).await.results_by_topic_v3_and_below;
    results.iter().map(|topic| topic.results_by_partition[0].partition_error_code).collect()
}

#[tokio::test]
async fn partitions_are_added_if_the_client_may_write_to_all_of_them() {
    let (test, producer) = with_producer().await;
    test.allow(Operation::Write, T).await;
    assert_eq!(add(&test, producer).await, [ID_DENIED; 2]);
    test.allow(Operation::Write, X).await;
    let (not_attempted, unknown) =
        (ResponseError::OperationNotAttempted.code(), ResponseError::UnknownTopicOrPartition);
    assert_eq!(add(&test, producer).await, [not_attempted, TOPIC_DENIED]);
    test.allow(Operation::Write, Resource::topic("other")).await;
    assert_eq!(add(&test, producer).await, [not_attempted, unknown.code()]);
    test.topic("other", 1).await;
    assert_eq!(add(&test, producer).await, [0; 2]);
}

#[tokio::test]
async fn a_request_without_partitions_needs_the_transactional_id_too() {
    let (test, producer) = with_producer().await;
    let request = AddPartitionsToTxnRequest::default()
        .with_v3_and_below_transactional_id(id())
        .with_v3_and_below_producer_id(producer);
    assert!(test.ask(3, request).await.results_by_topic_v3_and_below.is_empty());
    assert!(test.kafka.coordinators.transactions.describe("x").unwrap().began_ms.is_none());
}

#[tokio::test]
async fn brokers_add_partitions_of_several_transactions() {
    let (test, producer) = with_producer().await;
    let topic =
        AddPartitionsToTxnTopic::default().with_name(topic_name("t")).with_partitions(vec![0]);
    let one = AddPartitionsToTxnTransaction::default()
        .with_transactional_id(id())
        .with_producer_id(producer)
        .with_topics(vec![topic]);
    let request = AddPartitionsToTxnRequest::default().with_transactions(vec![one]);
    test.allow(Operation::Write, X).await;
    test.allow(Operation::Write, T).await;
    for version in 4..=5 {
        let refused = test.ask(version, request.clone()).await;
        assert_eq!(refused.error_code, CLUSTER_DENIED);
        assert!(refused.results_by_transaction.is_empty());
    }
    test.revoke(Operation::Write, X).await;
    test.revoke(Operation::Write, T).await;
    test.allow(Operation::ClusterAction, Resource::CLUSTER).await;
    let added = test.ask(4, request).await;
    let topics = &added.results_by_transaction[0].topic_results;
    assert_eq!(topics[0].results_by_partition[0].partition_error_code, 0);
}

#[tokio::test]
async fn offsets_are_committed_in_a_transaction_by_whom_may_read_the_group_and_the_topic() {
    let (test, producer) = with_producer().await;
    let add = async || {
        let request = AddOffsetsToTxnRequest::default()
            .with_transactional_id(id())
            .with_producer_id(producer)
            .with_group_id(GroupId(text("g")));
        test.ask(3, request).await.error_code
    };
    let commit = async || {
        let topic = |name| {
            TxnOffsetCommitRequestTopic::default()
                .with_name(topic_name(name))
                .with_partitions(vec![TxnOffsetCommitRequestPartition::default()])
        };
        let request = TxnOffsetCommitRequest::default()
            .with_transactional_id(id())
            .with_producer_id(producer)
            .with_group_id(GroupId(text("g")))
            .with_generation_id(-1)
            .with_topics(vec![topic("t"), topic("none")]);
        let topics = test.ask(3, request).await.topics;
        topics.iter().map(|topic| topic.partitions[0].error_code).collect::<Vec<i16>>()
    };
    test.allow(Operation::Read, T).await;
    assert_eq!((add().await, commit().await), (ID_DENIED, vec![ID_DENIED; 2]));
    test.allow(Operation::Write, X).await;
    assert_eq!((add().await, commit().await), (GROUP_DENIED, vec![GROUP_DENIED; 2]));
    test.allow(Operation::Read, G).await;
    assert_eq!((add().await, commit().await), (0, vec![0, TOPIC_DENIED]));
    test.revoke(Operation::Read, T).await;
    assert_eq!(commit().await, [TOPIC_DENIED; 2]);
}

#[tokio::test]
async fn a_transaction_is_ended_by_whom_may_write_by_its_id() {
    let (test, producer) = with_producer().await;
    test.allow(Operation::Write, X).await;
    test.allow(Operation::Write, T).await;
    test.allow(Operation::Write, Resource::topic("other")).await;
    test.topic("other", 1).await;
    assert_eq!(add(&test, producer).await, [0; 2]);
    test.revoke(Operation::Write, X).await;
    let end = EndTxnRequest::default()
        .with_transactional_id(id())
        .with_producer_id(producer)
        .with_committed(true);
    assert_eq!(test.ask(3, end.clone()).await.error_code, ID_DENIED);
    assert!(test.kafka.coordinators.transactions.describe("x").unwrap().began_ms.is_some());
    test.allow(Operation::Write, X).await;
    assert_eq!(test.ask(3, end).await.error_code, 0);
}

#[tokio::test]
async fn markers_are_written_by_whom_may_alter_the_cluster_and_by_brokers() {
    let (test, producer) = with_producer().await;
    let topic = |name| {
        WritableTxnMarkerTopic::default()
            .with_name(topic_name(name))
            .with_partition_indexes(vec![0])
    };
    let marker = WritableTxnMarker::default()
        .with_producer_id(producer)
        .with_transaction_result(true)
        .with_topics(vec![topic("t"), topic("none")]);
    let request = WriteTxnMarkersRequest::default().with_markers(vec![marker]);
    let write = async || {
        let topics = test.ask(1, request.clone()).await.markers.remove(0).topics;
        topics.iter().map(|topic| topic.partitions[0].error_code).collect::<Vec<i16>>()
    };
    test.allow(Operation::Write, X).await;
    assert_eq!(write().await, [CLUSTER_DENIED; 2]);
    // Either right is enough. Then only the marker itself is refused.
    let refused = [ResponseError::InvalidTxnState, ResponseError::UnknownTopicOrPartition];
    for operation in [Operation::Alter, Operation::ClusterAction] {
        test.allow(operation, Resource::CLUSTER).await;
        assert_eq!(write().await, refused.map(|error| error.code()));
        test.revoke(operation, Resource::CLUSTER).await;
    }
    assert_eq!(write().await, [CLUSTER_DENIED; 2]);
}

#[tokio::test]
async fn transactions_are_shown_to_whom_may_describe_them_and_their_topics() {
    let (test, producer) = with_producer().await;
    for resource in [X, T, Resource::topic("other")] {
        test.allow(Operation::Write, resource).await;
    }
    test.topic("other", 1).await;
    assert_eq!(add(&test, producer).await, [0; 2]);
    for resource in [X, Resource::topic("other")] {
        test.revoke(Operation::Write, resource).await;
    }
    let describe = async || {
        let request = DescribeTransactionsRequest::default().with_transactional_ids(vec![id()]);
        let state = test.ask(0, request).await.transaction_states.remove(0);
        let topics = state.topics.iter().map(|topic| topic.topic.to_string());
        let status = state.transaction_state.to_string();
        (state.error_code, status, topics.collect::<Vec<String>>())
    };
    let list = async || {
        let listed = test.ask(2, ListTransactionsRequest::default()).await;
        (listed.error_code, listed.transaction_states.len())
    };
    assert_eq!(describe().await, (ID_DENIED, String::new(), Vec::new()));
    assert_eq!(list().await, (0, 0));
    test.allow(Operation::Describe, X).await;
    assert_eq!(describe().await, (0, "Ongoing".to_owned(), vec!["t".to_owned()]));
    assert_eq!(list().await, (0, 1));
}

#[tokio::test]
async fn producers_are_shown_to_whom_may_read_the_topic() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let describe = async |name: &str| {
        let topic =
            TopicRequest::default().with_name(topic_name(name)).with_partition_indexes(vec![0]);
        let request = DescribeProducersRequest::default().with_topics(vec![topic]);
        test.ask(0, request).await.topics[0].partitions[0].error_code
    };
    test.allow(Operation::Describe, T).await;
    assert_eq!((describe("t").await, describe("none").await), (TOPIC_DENIED, TOPIC_DENIED));
    test.allow(Operation::Read, T).await;
    assert_eq!((describe("t").await, describe("none").await), (0, TOPIC_DENIED));
}
