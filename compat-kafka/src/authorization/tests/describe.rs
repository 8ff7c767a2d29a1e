//! APIs that describe topics and the cluster.

use kafka_protocol::messages::describe_topic_partitions_request::TopicRequest;
use kafka_protocol::messages::list_offsets_request::{ListOffsetsPartition, ListOffsetsTopic};
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::MetadataResponseTopic;
use kafka_protocol::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use kafka_protocol::messages::{
    DescribeClusterRequest, DescribeLogDirsRequest, DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse, ListOffsetsRequest, ListPartitionReassignmentsRequest,
    MetadataRequest, OffsetForLeaderEpochRequest, TopicName,
};
use uuid::Uuid;

use super::*;

const UNKNOWN_NAME: i16 = 3;

#[tokio::test]
async fn offsets_are_told_to_whom_may_describe_the_topic() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let moment = test.moment("t").await;
    let list = async |name: &str, times: usize| {
        let partition = ListOffsetsPartition::default().with_timestamp(-2);
        let topic = ListOffsetsTopic::default()
            .with_name(topic_name(name))
            .with_partitions(vec![partition; times]);
        let request = ListOffsetsRequest::default().with_topics(vec![topic]);
        test.ask(7, request).await.topics[0].partitions[0].error_code
    };
    for name in ["t", "none", &moment] {
        assert_eq!(list(name, 1).await, TOPIC_DENIED, "{name}");
    }
    assert_eq!(list("t", 2).await, TOPIC_DENIED);
    // A client that may read may describe.
    test.allow(Operation::Read, T).await;
    assert_eq!((list("t", 1).await, list(&moment, 1).await), (0, 0));
    assert_eq!(list("t", 2).await, ResponseError::InvalidRequest.code());
    assert_eq!(list("none", 1).await, TOPIC_DENIED);
}

#[tokio::test]
async fn ends_of_epochs_are_told_to_whom_may_describe_the_topic_and_to_brokers() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let end = async |name: &str| {
        let topic = OffsetForLeaderTopic::default()
            .with_topic(topic_name(name))
            .with_partitions(vec![OffsetForLeaderPartition::default()]);
        let request = OffsetForLeaderEpochRequest::default().with_topics(vec![topic]);
        let partition = test.ask(4, request).await.topics[0].partitions[0].clone();
        (partition.error_code, partition.end_offset)
    };
    assert_eq!((end("t").await, end("none").await), ((TOPIC_DENIED, -1), (TOPIC_DENIED, -1)));
    test.allow(Operation::Describe, T).await;
    assert_eq!((end("t").await, end("none").await), ((0, 0), (TOPIC_DENIED, -1)));
    test.revoke(Operation::Describe, T).await;
    test.allow(Operation::ClusterAction, Resource::CLUSTER).await;
    assert_eq!((end("t").await, end("none").await), ((0, 0), (UNKNOWN_NAME, -1)));
}

async fn all_names(test: &TestAuthorizer) -> Vec<String> {
    let all = test.ask(12, MetadataRequest::default().with_topics(None)).await.topics;
    let name = |topic: &MetadataResponseTopic| topic.name.as_ref().unwrap().to_string();
    all.iter().map(name).collect()
}

fn metadata(asked: MetadataRequestTopic) -> MetadataRequest {
    MetadataRequest::default()
        .with_topics(Some(vec![asked]))
        .with_allow_auto_topic_creation(false)
        .with_include_topic_authorized_operations(true)
}

fn metadata_by_name(name: &str) -> MetadataRequest {
    metadata(MetadataRequestTopic::default().with_name(Some(topic_name(name))))
}

async fn by_name(test: &TestAuthorizer, name: &str) -> MetadataResponseTopic {
    test.ask(12, metadata_by_name(name)).await.topics.remove(0)
}

async fn by_id(test: &TestAuthorizer, id: Uuid) -> MetadataResponseTopic {
    let asked = MetadataRequestTopic::default().with_name(None).with_topic_id(id);
    test.ask(12, metadata(asked)).await.topics.remove(0)
}

#[tokio::test]
async fn metadata_has_the_topics_that_the_client_may_describe() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    test.topic("secret", 1).await;
    let (moment, id) = (test.moment("t").await, test.id("t"));
    assert!(all_names(&test).await.is_empty());
    for name in ["t", "none", &moment, "t@s1"] {
        let topic = by_name(&test, name).await;
        assert_eq!(topic.error_code, TOPIC_DENIED, "{name}");
        assert_eq!((topic.topic_id, topic.partitions.len()), (Uuid::nil(), 0));
    }
    for id in [id, test.id(&moment)] {
        let topic = by_id(&test, id).await;
        assert_eq!((topic.error_code, topic.name), (TOPIC_DENIED, None));
        assert_eq!(topic.partitions.len(), 0);
    }
    let unknown = ResponseError::UnknownTopicId.code();
    assert_eq!(by_id(&test, Uuid::from_u128(7)).await.error_code, unknown);
    test.allow(Operation::Describe, T).await;
    assert_eq!(all_names(&test).await, ["t"]);
    for name in ["t", &moment] {
        let topic = by_name(&test, name).await;
        assert_eq!((topic.error_code, topic.partitions.len()), (0, 1));
        assert_eq!(topic.topic_authorized_operations, 1 << Operation::Describe.code());
        let same = by_id(&test, topic.topic_id).await;
        assert_eq!((same.error_code, same.partitions.len()), (0, 1));
        assert!(same.name.is_some_and(|name| name.starts_with('t')));
    }
    assert_eq!(by_name(&test, "none").await.error_code, TOPIC_DENIED);
}

#[tokio::test]
async fn a_request_for_a_topic_creates_it_for_whom_may_create_it() {
    let test = TestAuthorizer::new();
    test.allow(Operation::Describe, T).await;
    let ask = async |name: &str| {
        let request = metadata_by_name(name).with_allow_auto_topic_creation(true);
        test.ask(12, request).await.topics.remove(0).error_code
    };
    assert_eq!(by_name(&test, "t").await.error_code, UNKNOWN_NAME);
    assert_eq!(ask("t").await, TOPIC_DENIED);
    assert!(test.kafka.engine.topics().named("t").is_none());
    test.allow(Operation::Create, T).await;
    assert_eq!(ask("t").await, 0);
    test.allow(Operation::Create, Resource::CLUSTER).await;
    // A client that may create a topic may still not know if it is there.
    assert_eq!(ask("other").await, TOPIC_DENIED);
    assert!(test.kafka.engine.topics().named("other").is_none());
    test.allow(Operation::Describe, Resource::topic("other")).await;
    assert_eq!(ask("other").await, 0);
    assert!(test.kafka.engine.topics().named("other").is_some());
}

#[tokio::test]
async fn what_the_client_may_do_to_the_cluster_is_told_to_whom_may_describe_it() {
    let test = TestAuthorizer::new();
    let metadata = MetadataRequest::default().with_include_cluster_authorized_operations(true);
    let cluster =
        DescribeClusterRequest::default().with_include_cluster_authorized_operations(true);
    let operations = async || {
        let of_cluster = test.ask(1, cluster.clone()).await.cluster_authorized_operations;
        (test.ask(10, metadata.clone()).await.cluster_authorized_operations, of_cluster)
    };
    test.allow(Operation::Create, Resource::CLUSTER).await;
    assert_eq!(operations().await, (0, 0));
    test.allow(Operation::Describe, Resource::CLUSTER).await;
    let both = 1 << Operation::Create.code() | 1 << Operation::Describe.code();
    assert_eq!(operations().await, (both, both));
}

/// Name, error, operations.
fn described(response: &DescribeTopicPartitionsResponse) -> Vec<(&str, i16, i32)> {
    let topics = response.topics.iter();
    topics
        .map(|topic| {
            let name: &str = topic.name.as_ref().unwrap();
            (name, topic.error_code, topic.topic_authorized_operations)
        })
        .collect()
}

#[tokio::test]
async fn pages_of_partitions_have_the_topics_that_the_client_may_describe() {
    let test = TestAuthorizer::with_topic("t", 2).await;
    test.topic("a", 2).await;
    test.allow(Operation::Describe, T).await;
    let request = |names: &[&str]| {
        let topic = |name: &&str| TopicRequest::default().with_name(topic_name(name));
        DescribeTopicPartitionsRequest::default()
            .with_topics(names.iter().map(topic).collect())
            .with_response_partition_limit(2)
            .with_cursor(None)
    };
    let describe = 1 << Operation::Describe.code();
    assert_eq!(described(&test.ask(0, request(&[])).await), [("t", 0, describe)]);
    let moment = test.moment("t").await;
    let named = test.ask(0, request(&["a", "none", "t", &moment])).await;
    let denied = |name| (name, TOPIC_DENIED, i32::MIN);
    assert_eq!(described(&named), [("t", 0, describe), denied("a"), denied("none")]);
    assert_eq!(named.next_cursor.unwrap().topic_name, topic_name(&moment));
    // The past cannot be written.
    test.allow(Operation::Write, T).await;
    let past = test.ask(0, request(&[&moment])).await;
    assert_eq!(described(&past), [(&*moment, 0, describe)]);
}

#[tokio::test]
async fn the_cluster_is_described_to_whom_may() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let sizes = || DescribeLogDirsRequest::default().with_topics(None);
    let moves = || ListPartitionReassignmentsRequest::default().with_topics(None);
    for version in 1..=4 {
        let refused = test.ask(version, sizes()).await;
        assert!(refused.results.is_empty());
        assert_eq!(refused.error_code, if version >= 3 { CLUSTER_DENIED } else { 0 });
    }
    let refused = test.ask(0, moves()).await;
    assert_eq!(refused.error_code, CLUSTER_DENIED);
    assert_eq!(refused.error_message.as_deref(), Some("Cluster authorization failed."));
    test.allow(Operation::Describe, Resource::CLUSTER).await;
    let told = test.ask(4, sizes()).await;
    assert_eq!((told.error_code, told.results.len()), (0, 1));
    assert_eq!(told.results[0].topics[0].name, TopicName(text("t")));
    assert_eq!(test.ask(0, moves()).await.error_code, 0);
}
