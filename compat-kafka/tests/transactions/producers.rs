//! The producers that may write, and those that are fenced.

use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic,
};
use kafka_protocol::messages::{
    DescribeProducersRequest, DescribeTransactionsRequest, InitProducerIdRequest,
    ListTransactionsRequest, ProducerId, WriteTxnMarkersRequest,
};
use storage::disk::MemoryDisk;
use testkit::requests::{str_bytes, topic_name};

use super::fixture::{
    COMMITTED, Protocol, TransactionalProducer, create, read, server_on, transactional_id,
};

const BOTH: [Protocol; 2] = [Protocol::V1, Protocol::V2];

#[tokio::test]
async fn a_new_producer_fences_the_one_before_and_aborts_what_it_left_open() {
    for protocol in BOTH {
        let server = server_on(&MemoryDisk::new()).await;
        create(&server, "t", 1).await;
        let mut first = TransactionalProducer::start(&server, protocol, "id").await;
        first.must_send("t", 0, "lost").await;
        let mut second = TransactionalProducer::start(&server, protocol, "id").await;
        assert_eq!(second.producer.0, first.producer.0);
        assert!(second.producer.1 > first.producer.1);
        let (error, _) = first.send("t", 0, "fenced").await;
        assert_eq!(error, ResponseError::InvalidProducerEpoch.code());
        let ended = first.end(true).await.error_code;
        assert_eq!(ended, ResponseError::ProducerFenced.code());
        second.must_send("t", 0, "kept").await;
        second.must_end(true).await;
        let found = read(&mut second.connection, "t", 0, COMMITTED).await;
        assert_eq!(found.values, ["kept"], "{protocol:?}");
    }
}

#[tokio::test]
async fn the_end_of_a_transaction_that_is_sent_again_gets_the_same_answer() {
    for protocol in BOTH {
        let server = server_on(&MemoryDisk::new()).await;
        create(&server, "t", 1).await;
        let mut producer = TransactionalProducer::start(&server, protocol, "id").await;
        producer.must_send("t", 0, "a").await;
        let request = producer.end_request(true);
        let version = if protocol == Protocol::V1 { 4 } else { 5 };
        let first = producer.connection.ask(version, &request).await.unwrap();
        let again = producer.connection.ask(version, &request).await.unwrap();
        assert_eq!(first, again, "{protocol:?}");
        let other = request.clone().with_committed(false);
        let other = producer.connection.ask(version, &other).await.unwrap();
        assert_eq!(other.error_code, ResponseError::InvalidTxnState.code(), "{protocol:?}");
    }
}

#[tokio::test]
async fn what_does_not_belong_to_a_transaction_is_refused() {
    let server = server_on(&MemoryDisk::new()).await;
    create(&server, "t", 2).await;
    let mut v1 = TransactionalProducer::start(&server, Protocol::V1, "v1").await;
    v1.must_send("t", 0, "a").await;
    let batch = v1.batch(0, &["to a partition that was not added"]);
    let refused = v1.send_batch("t", 1, &batch).await.0;
    assert_eq!(refused, ResponseError::InvalidTxnState.code());
    v1.must_end(true).await;
    let late = v1.batch(1, &["late"]);
    let refused = v1.send_batch("t", 0, &late).await.0;
    assert_eq!(refused, ResponseError::InvalidTxnState.code());
    let mut v2 = TransactionalProducer::start(&server, Protocol::V2, "v2").await;
    let late = v2.batch(0, &["late"]);
    v2.must_send("t", 0, "a").await;
    v2.must_end(false).await;
    let refused = v2.send_batch("t", 1, &late).await.0;
    assert_eq!(refused, ResponseError::InvalidProducerEpoch.code());
    let foreign = v1.batch(0, &["of another id"]);
    let refused = v2.send_batch("t", 1, &foreign).await.0;
    assert_eq!(refused, ResponseError::InvalidProducerIdMapping.code());
    let request = v2.request("t", 1, &v2.batch(0, &["of no id"]));
    let answer = v2.connection.ask(12, &request.with_transactional_id(None)).await.unwrap();
    let refused = answer.responses[0].partition_responses[0].error_code;
    assert_eq!(refused, ResponseError::TransactionalIdAuthorizationFailed.code());
    let found = read(&mut v2.connection, "t", 1, COMMITTED).await;
    assert_eq!((found.values.len(), found.high_watermark), (0, 0), "nothing was written");
}

#[tokio::test]
async fn a_producer_that_goes_on_after_an_error_keeps_its_id_and_a_fenced_one_does_not() {
    let server = server_on(&MemoryDisk::new()).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V1, "id").await;
    let (id, epoch) = producer.producer;
    let request = InitProducerIdRequest::default()
        .with_transactional_id(Some(transactional_id("id")))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(id))
        .with_producer_epoch(epoch);
    let raised = producer.connection.ask(5, &request).await.unwrap();
    assert_eq!((raised.producer_id.0, raised.producer_epoch), (id, epoch + 1));
    let again = producer.connection.ask(5, &request).await.unwrap();
    assert_eq!(again, raised, "a retry gets the same answer");
    let other = TransactionalProducer::start(&server, Protocol::V1, "id").await;
    assert_eq!(other.producer, (id, epoch + 2));
    let fenced = producer.connection.ask(5, &request).await.unwrap();
    assert_eq!(fenced.error_code, ResponseError::ProducerFenced.code());
    let timeouts = [(0, 50), (-1, 50), (900_001, 50), (900_000, 0)];
    for (timeout_ms, error) in timeouts {
        assert_eq!(producer.init(timeout_ms).await.error_code, error, "{timeout_ms}");
    }
}

#[tokio::test]
async fn an_operator_sees_open_transactions_and_aborts_them() {
    let server = server_on(&MemoryDisk::new()).await;
    create(&server, "t", 2).await;
    let mut producer = TransactionalProducer::start(&server, Protocol::V2, "open").await;
    let mut other = TransactionalProducer::start(&server, Protocol::V2, "done").await;
    other.must_send("t", 0, "a").await;
    other.must_end(true).await;
    producer.must_send("t", 0, "b").await;
    producer.must_send("t", 1, "c").await;
    let ids = ["open", "done", "unknown"].map(transactional_id).to_vec();
    let request = DescribeTransactionsRequest::default().with_transactional_ids(ids);
    let described = producer.connection.ask(0, &request).await.unwrap().transaction_states;
    let states: Vec<_> =
        described.iter().map(|one| (one.error_code, one.transaction_state.as_str())).collect();
    let unknown = ResponseError::TransactionalIdNotFound.code();
    assert_eq!(states, [(0, "Ongoing"), (0, "CompleteCommit"), (unknown, "")]);
    assert_eq!(described[0].topics[0].partitions, [0, 1]);
    let list = ListTransactionsRequest::default()
        .with_duration_filter(-1)
        .with_state_filters(vec![str_bytes("Ongoing"), str_bytes("Strange")]);
    let listed = producer.connection.ask(2, &list).await.unwrap();
    assert_eq!(listed.unknown_state_filters, [str_bytes("Strange")]);
    assert_eq!(listed.transaction_states.len(), 1);
    let list =
        list.with_state_filters(Vec::new()).with_transactional_id_pattern(Some(str_bytes("d.*")));
    let listed = producer.connection.ask(2, &list).await.unwrap();
    assert_eq!(listed.transaction_states[0].transactional_id, transactional_id("done"));
    let named = TopicRequest::default().with_name(topic_name("t")).with_partition_indexes(vec![1]);
    let request = DescribeProducersRequest::default().with_topics(vec![named]);
    let found = producer.connection.ask(0, &request).await.unwrap();
    let found = &found.topics[0].partitions[0].active_producers[0];
    assert_eq!(found.producer_id.0, producer.producer.0);
    assert_eq!(found.current_txn_start_offset, 0);
    // One partition is named, and the whole transaction is aborted.
    let topic = WritableTxnMarkerTopic::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(vec![1]);
    let marker = WritableTxnMarker::default()
        .with_producer_id(found.producer_id)
        .with_producer_epoch(found.producer_epoch as i16)
        .with_topics(vec![topic]);
    let commit = marker.clone().with_transaction_result(true);
    let request = WriteTxnMarkersRequest::default().with_markers(vec![commit, marker]);
    let answer = producer.connection.ask(1, &request).await.unwrap();
    let codes: Vec<i16> =
        answer.markers.iter().map(|marker| marker.topics[0].partitions[0].error_code).collect();
    assert_eq!(codes, [ResponseError::InvalidTxnState.code(), 0]);
    for partition in [0, 1] {
        let found = read(&mut producer.connection, "t", partition, COMMITTED).await;
        assert_eq!(found.last_stable, found.high_watermark);
        assert!(!found.values.contains(&"b".to_owned()) && !found.values.contains(&"c".to_owned()));
    }
    let ended = producer.end(true).await.error_code;
    assert_eq!(ended, ResponseError::InvalidTxnState.code());
}
