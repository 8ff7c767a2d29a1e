//! Produce and fetch, also in sessions and through links.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::fetch_response::PartitionData;
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiKey, BrokerId, FetchRequest, FetchResponse, ProduceRequest, TransactionalId,
};
use kafka_records::{BatchBuilder, CompressionType};
use rdma::protocol::{CallBody, LINK_API_KEY, LinkAnswer, LinkCall, LinkRequest, ResponsePlace};
use uuid::Uuid;

use super::super::test_authorizer::bytes_of;
use super::*;
use crate::link;
use crate::response::UNBUDGETED_BYTES_MAX;

const BY_NAME: i16 = 12;
const BY_ID: i16 = 13;

fn batch() -> Bytes {
    BatchBuilder::new(CompressionType::None).record(1, None, Some(b"value"), &[]).build()
}

fn produce_to(topic: TopicProduceData, partitions: i32) -> ProduceRequest {
    let data =
        |index| PartitionProduceData::default().with_index(index).with_records(Some(batch()));
    let topic = topic.with_partition_data((0..partitions).map(data).collect());
    ProduceRequest::default().with_acks(-1).with_topic_data(vec![topic])
}

fn produce_by_name(name: &str) -> ProduceRequest {
    produce_to(TopicProduceData::default().with_name(topic_name(name)), 1)
}

async fn produced(test: &TestAuthorizer, version: i16, request: ProduceRequest) -> Vec<i16> {
    let response = test.ask(version, request).await;
    let partitions = &response.responses[0].partition_responses;
    partitions.iter().map(|partition| partition.error_code).collect()
}

async fn produced_by_name(test: &TestAuthorizer, name: &str) -> i16 {
    produced(test, BY_NAME, produce_by_name(name)).await[0]
}

async fn produced_by_id(test: &TestAuthorizer, id: Uuid) -> i16 {
    let request = produce_to(TopicProduceData::default().with_topic_id(id), 1);
    produced(test, BY_ID, request).await[0]
}

fn fetch(topic: FetchTopic) -> FetchRequest {
    let partition = FetchPartition::default().with_partition_max_bytes(1 << 20);
    let topic = topic.with_partitions(vec![partition]);
    FetchRequest::default().with_max_bytes(1 << 20).with_session_epoch(-1).with_topics(vec![topic])
}

fn fetch_by_name(name: &str) -> FetchRequest {
    fetch(FetchTopic::default().with_topic(topic_name(name)))
}

/// The only partition's error, and whether it has records.
fn outcome(response: &FetchResponse) -> (i16, bool) {
    let [topic] = &response.responses[..] else { panic!("{response:?}") };
    let [partition] = &topic.partitions[..] else { panic!("{topic:?}") };
    let has_records = |partition: &PartitionData| {
        partition.records.as_ref().is_some_and(|records| !records.is_empty())
    };
    (partition.error_code, has_records(partition))
}

async fn fetched_by_name(test: &TestAuthorizer, name: &str) -> (i16, bool) {
    outcome(&test.ask(BY_NAME, fetch_by_name(name)).await)
}

async fn fetched_by_id(test: &TestAuthorizer, id: Uuid) -> (i16, bool) {
    outcome(&test.ask(BY_ID, fetch(FetchTopic::default().with_topic_id(id))).await)
}

/// A topic with a record.
async fn topic_with_record() -> TestAuthorizer {
    let test = TestAuthorizer::with_topic("t", 1).await;
    test.allow(Operation::Write, T).await;
    assert_eq!(produced_by_name(&test, "t").await, 0);
    test.revoke(Operation::Write, T).await;
    test
}

#[tokio::test]
async fn a_topic_is_written_by_whom_a_rule_allows_to_as_long_as_it_does() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let id = test.id("t");
    for _ in 0..2 {
        test.allow(Operation::Read, T).await;
        assert_eq!(produced_by_name(&test, "t").await, TOPIC_DENIED);
        assert_eq!(produced_by_id(&test, id).await, TOPIC_DENIED);
        test.allow(Operation::Write, T).await;
        assert_eq!(produced_by_name(&test, "t").await, 0);
        assert_eq!(produced_by_id(&test, id).await, 0);
        test.revoke(Operation::Write, T).await;
    }
    assert_eq!(test.kafka.engine.topics().named("t").unwrap().partitions[0].end().0, 4);
}

#[tokio::test]
async fn who_may_write_to_no_topic_does_not_learn_which_there_are() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let moment = test.moment("t").await;
    assert_eq!(produced_by_name(&test, "none").await, TOPIC_DENIED);
    assert_eq!(produced_by_name(&test, &moment).await, TOPIC_DENIED);
    assert_eq!(produced_by_id(&test, test.id(&moment)).await, TOPIC_DENIED);
    let unknown = ResponseError::UnknownTopicId.code();
    assert_eq!(produced_by_id(&test, Uuid::from_u128(7)).await, unknown);
    test.allow(Operation::Write, T).await;
    let read_only = ResponseError::InvalidTopicException.code();
    assert_eq!(produced_by_name(&test, &moment).await, read_only);
    assert_eq!(produced_by_id(&test, test.id(&moment)).await, read_only);
}

#[tokio::test]
async fn a_transactional_id_without_a_right_to_it_refuses_all_of_a_request() {
    let test = TestAuthorizer::with_topic("t", 2).await;
    test.allow(Operation::Write, T).await;
    let id = Some(TransactionalId(text("x")));
    let topic = TopicProduceData::default().with_name(topic_name("t"));
    let request = produce_to(topic, 2).with_transactional_id(id);
    assert_eq!(produced(&test, BY_NAME, request.clone()).await, [ID_DENIED; 2]);
    test.allow(Operation::Write, Resource::transactional_id("x")).await;
    // The batch has no producer id.
    let invalid = ResponseError::InvalidRecord.code();
    assert_eq!(produced(&test, BY_NAME, request).await, [invalid; 2]);
}

#[tokio::test]
async fn a_client_that_wants_no_answer_learns_of_a_refusal_by_the_end_of_its_connection() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let id = Some(TransactionalId(text("x")));
    let plain = produce_by_name("t").with_acks(0);
    for request in [plain.clone(), plain.clone().with_transactional_id(id)] {
        let body = encoded(&request, BY_NAME);
        assert!(test.serve(ApiKey::Produce as i16, BY_NAME, body).await.is_err());
    }
    test.allow(Operation::Write, T).await;
    let body = encoded(&plain, BY_NAME);
    assert!(test.serve(ApiKey::Produce as i16, BY_NAME, body).await.unwrap().is_none());
}

#[tokio::test]
async fn a_topic_is_authorized_once_in_a_request_however_many_partitions_it_has() {
    let test = TestAuthorizer::with_topic("t", 5).await;
    let named = TopicProduceData::default().with_name(topic_name("t"));
    assert_eq!(produced(&test, BY_NAME, produce_to(named, 5)).await, [TOPIC_DENIED; 5]);
    assert_eq!(test.authorizations(), 1);
    let partition = |index| FetchPartition::default().with_partition(index);
    let topic = FetchTopic::default()
        .with_topic(topic_name("t"))
        .with_partitions((0..5).map(partition).collect());
    let request = FetchRequest::default().with_session_epoch(-1).with_topics(vec![topic]);
    assert_eq!(test.ask(BY_NAME, request).await.responses[0].partitions.len(), 5);
    assert_eq!(test.authorizations(), 2);
}

#[tokio::test]
async fn a_topic_and_its_past_are_read_by_whom_a_rule_allows_to() {
    let test = topic_with_record().await;
    let (moment, id) = (test.moment("t").await, test.id("t"));
    let denied = (TOPIC_DENIED, false);
    // A right to a longer name that begins with this one does not count.
    test.allow(Operation::Read, Resource::topic("t2")).await;
    test.allow(Operation::Read, Resource::topic(&moment)).await;
    for name in ["t", "none", &moment, "t@s1"] {
        assert_eq!(fetched_by_name(&test, name).await, denied, "{name}");
    }
    assert_eq!(fetched_by_id(&test, id).await, denied);
    assert_eq!(fetched_by_id(&test, test.id(&moment)).await, denied);
    let unknown = ResponseError::UnknownTopicId.code();
    assert_eq!(fetched_by_id(&test, Uuid::from_u128(7)).await, (unknown, false));
    test.allow(Operation::Read, T).await;
    assert_eq!(fetched_by_name(&test, "t").await, (0, true));
    assert_eq!(fetched_by_id(&test, id).await, (0, true));
    assert_eq!(fetched_by_name(&test, &moment).await.0, 0);
    assert_eq!(fetched_by_id(&test, test.id(&moment)).await.0, 0);
    test.revoke(Operation::Read, T).await;
    assert_eq!(fetched_by_name(&test, "t").await, denied);
    assert_eq!(fetched_by_id(&test, test.id(&moment)).await, denied);
}

#[tokio::test]
async fn a_rule_that_is_taken_back_ends_a_fetch_that_waits_for_memory() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    test.allow(Operation::Write, T).await;
    let value = vec![7; 2 * UNBUDGETED_BYTES_MAX];
    let batch =
        BatchBuilder::new(CompressionType::None).record(1, None, Some(&value[..]), &[]).build();
    let data = PartitionProduceData::default().with_records(Some(batch));
    let topic =
        TopicProduceData::default().with_name(topic_name("t")).with_partition_data(vec![data]);
    let request = ProduceRequest::default().with_acks(-1).with_topic_data(vec![topic]);
    assert_eq!(produced(&test, BY_NAME, request).await, [0]);
    for epoch in [-1, 0] {
        test.allow(Operation::Read, T).await;
        let quota = Arc::clone(&test.context(0, 0).connection.response_quota);
        let all = quota.try_take(quota.units_max()).unwrap();
        let fetch = fetch_by_name("t").with_session_epoch(epoch);
        let mut fetching = Box::pin(test.ask(BY_NAME, fetch));
        let begun = tokio::time::timeout(Duration::ZERO, &mut fetching).await;
        assert!(begun.is_err(), "it waits for room");
        test.revoke(Operation::Read, T).await;
        drop(all);
        assert_eq!(outcome(&fetching.await), (TOPIC_DENIED, false), "epoch {epoch}");
    }
}

#[tokio::test]
async fn a_rule_that_is_taken_back_ends_what_a_session_reads() {
    for version in [BY_NAME, BY_ID] {
        let test = topic_with_record().await;
        test.allow(Operation::Read, T).await;
        let mut topic = FetchTopic::default();
        if version == BY_ID {
            topic.topic_id = test.id("t");
        } else {
            topic.topic = topic_name("t");
        }
        let opened = test.ask(version, fetch(topic).with_session_epoch(0)).await;
        assert_eq!(outcome(&opened), (0, true));
        let next = |epoch| {
            FetchRequest::default()
                .with_max_bytes(1 << 20)
                .with_session_id(opened.session_id)
                .with_session_epoch(epoch)
        };
        assert_ne!(opened.session_id, 0);
        assert_eq!(outcome(&test.ask(version, next(1)).await), (0, true));
        test.revoke(Operation::Read, T).await;
        assert_eq!(outcome(&test.ask(version, next(2)).await), (TOPIC_DENIED, false));
        assert_eq!(outcome(&test.ask(version, next(3)).await), (TOPIC_DENIED, false));
        test.allow(Operation::Read, T).await;
        assert_eq!(outcome(&test.ask(version, next(4)).await), (0, true));
    }
}

#[tokio::test]
async fn who_says_that_it_is_a_broker_needs_a_brokers_right() {
    let test = topic_with_record().await;
    test.allow(Operation::Read, T).await;
    let request = fetch_by_name("t").with_replica_id(BrokerId(2));
    assert_eq!(outcome(&test.ask(BY_NAME, request.clone()).await), (TOPIC_DENIED, false));
    test.allow(Operation::ClusterAction, Resource::CLUSTER).await;
    assert_eq!(outcome(&test.ask(BY_NAME, request).await), (0, true));
}

/// The response to a request that comes through a link, without its header.
async fn call(test: &TestAuthorizer, api: ApiKey, body: Bytes) -> Bytes {
    let call = LinkCall {
        api_key: api as i16,
        version: BY_NAME,
        request: CallBody::Inline(body),
        response: ResponsePlace::Inline,
    };
    let mut request = BytesMut::new();
    LinkRequest::Call(call).encode(test.kafka.engine.last_stamp().bits(), &mut request);
    let context = test.context(LINK_API_KEY, 0);
    let answer = link::handle(test.kafka.clone(), context, request.freeze()).await;
    let answer = bytes_of(answer.unwrap().unwrap()).slice(size_of::<i32>()..);
    let (_, LinkAnswer::Inline(response)) = LinkAnswer::decode(answer).unwrap() else {
        panic!("the response is in the answer")
    };
    response
}

#[tokio::test]
async fn no_link_leads_around() {
    use kafka_protocol::messages::{ProduceResponse, ResponseHeader};
    use kafka_protocol::protocol::{Decodable, HeaderVersion};
    let test = topic_with_record().await;
    for (code, has_records) in [(TOPIC_DENIED, false), (0, true)] {
        let mut response = call(&test, ApiKey::Fetch, encoded(&fetch_by_name("t"), BY_NAME)).await;
        ResponseHeader::decode(&mut response, FetchResponse::header_version(BY_NAME)).unwrap();
        let response = FetchResponse::decode(&mut response, BY_NAME).unwrap();
        assert_eq!(outcome(&response), (code, has_records));
        let body = encoded(&produce_by_name("t"), BY_NAME);
        let mut response = call(&test, ApiKey::Produce, body).await;
        ResponseHeader::decode(&mut response, ProduceResponse::header_version(BY_NAME)).unwrap();
        let response = ProduceResponse::decode(&mut response, BY_NAME).unwrap();
        assert_eq!(response.responses[0].partition_responses[0].error_code, code);
        test.allow(Operation::Read, T).await;
        test.allow(Operation::Write, T).await;
    }
}
