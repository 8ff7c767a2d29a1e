//! APIs that create, change and delete topics.

use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_topics_request::CreatableTopic;
use kafka_protocol::messages::create_topics_response::CreatableTopicResult;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use kafka_protocol::messages::delete_topics_request::DeleteTopicState;
use kafka_protocol::messages::delete_topics_response::DeletableTopicResult;
use kafka_protocol::messages::{
    CreatePartitionsRequest, CreateTopicsRequest, DeleteRecordsRequest, DeleteTopicsRequest,
};
use uuid::Uuid;

use super::*;

async fn create(test: &TestAuthorizer, version: i16, names: &[&str]) -> Vec<CreatableTopicResult> {
    let topic = |name: &&str| {
        CreatableTopic::default()
            .with_name(topic_name(name))
            .with_num_partitions(1)
            .with_replication_factor(1)
    };
    let topics = names.iter().map(topic).collect();
    test.ask(version, CreateTopicsRequest::default().with_topics(topics)).await.topics
}

#[tokio::test]
async fn a_topic_is_created_by_a_right_to_its_name_or_to_the_cluster() {
    let test = TestAuthorizer::new();
    test.allow(Operation::Create, T).await;
    let results = create(&test, 7, &["t", "other", "__cluster_metadata"]).await;
    let codes: Vec<(&str, i16)> =
        results.iter().map(|result| (&**result.name, result.error_code)).collect();
    let invalid = ResponseError::InvalidRequest.code();
    assert_eq!(codes, [("t", 0), ("__cluster_metadata", invalid), ("other", TOPIC_DENIED)]);
    assert!(test.kafka.engine.topics().named("t").is_some());
    assert!(test.kafka.engine.topics().named("other").is_none());
    test.allow(Operation::Create, Resource::CLUSTER).await;
    assert_eq!(create(&test, 7, &["other"]).await[0].error_code, 0);
}

#[tokio::test]
async fn a_new_topics_settings_are_told_to_whom_may_describe_them() {
    let test = TestAuthorizer::new();
    test.allow(Operation::Create, Resource::CLUSTER).await;
    for version in 2..=7 {
        let name = format!("plain{version}");
        let result = create(&test, version, &[&name]).await.remove(0);
        assert_eq!(result.error_code, 0);
        if version >= 5 {
            assert_eq!(result.topic_config_error_code, TOPIC_DENIED);
            assert_eq!((result.num_partitions, result.replication_factor), (-1, -1));
            assert_eq!(result.configs, Some(Vec::new()));
        }
    }
    test.allow(Operation::DescribeConfigs, T).await;
    let result = create(&test, 7, &["t"]).await.remove(0);
    assert_eq!((result.topic_config_error_code, result.num_partitions), (0, 1));
    assert!(!result.configs.unwrap().is_empty());
}

async fn delete(test: &TestAuthorizer, name: Option<&str>, id: Uuid) -> DeletableTopicResult {
    let state = DeleteTopicState::default().with_name(name.map(topic_name)).with_topic_id(id);
    let request = DeleteTopicsRequest::default().with_topics(vec![state]);
    test.ask(6, request).await.responses.remove(0)
}

#[tokio::test]
async fn a_topic_is_deleted_by_whom_may_and_named_to_whom_may_describe_it() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let (id, none) = (test.id("t"), Uuid::nil());
    let moment = test.moment("t").await;
    for name in ["t", "gone", &moment] {
        assert_eq!(delete(&test, Some(name), none).await.error_code, TOPIC_DENIED, "{name}");
    }
    for id in [id, test.id(&moment)] {
        let hidden = delete(&test, None, id).await;
        assert_eq!((hidden.error_code, hidden.name), (TOPIC_DENIED, None));
    }
    let unknown = ResponseError::UnknownTopicId.code();
    assert_eq!(delete(&test, None, Uuid::from_u128(7)).await.error_code, unknown);
    test.allow(Operation::Describe, T).await;
    assert_eq!(delete(&test, Some("t"), none).await.error_code, TOPIC_DENIED);
    let shown = delete(&test, None, id).await;
    assert_eq!((shown.error_code, shown.name), (TOPIC_DENIED, Some(topic_name("t"))));
    assert!(test.kafka.engine.topics().named("t").is_some());
    test.allow(Operation::Delete, T).await;
    let read_only = ResponseError::InvalidTopicException.code();
    assert_eq!(delete(&test, Some(&moment), none).await.error_code, read_only);
    assert_eq!(delete(&test, None, id).await.error_code, 0);
    assert!(test.kafka.engine.topics().named("t").is_none());
    test.topic("other", 1).await;
    assert_eq!(delete(&test, Some("other"), none).await.error_code, TOPIC_DENIED);
    test.allow(Operation::Delete, Resource::CLUSTER).await;
    assert_eq!(delete(&test, Some("other"), none).await.error_code, 0);
}

#[tokio::test]
async fn records_are_deleted_by_whom_may_delete_the_topic() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let moment = test.moment("t").await;
    let delete = async |name: &str| {
        let partition = DeleteRecordsPartition::default().with_offset(-1);
        let topic = DeleteRecordsTopic::default()
            .with_name(topic_name(name))
            .with_partitions(vec![partition]);
        let request = DeleteRecordsRequest::default().with_topics(vec![topic]);
        test.ask(2, request).await.topics[0].partitions[0].error_code
    };
    test.allow(Operation::Write, T).await;
    for name in ["t", "none", &moment] {
        assert_eq!(delete(name).await, TOPIC_DENIED, "{name}");
    }
    test.allow(Operation::Delete, T).await;
    assert_eq!(delete("t").await, 0);
    assert_eq!(delete(&moment).await, ResponseError::InvalidTopicException.code());
}

#[tokio::test]
async fn partitions_are_added_by_whom_may_alter_the_topic() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let add = async |name: &str| {
        let topic = CreatePartitionsTopic::default()
            .with_name(topic_name(name))
            .with_count(2)
            .with_assignments(None);
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]);
        test.ask(3, request).await.results[0].error_code
    };
    test.allow(Operation::Create, T).await;
    assert_eq!((add("t").await, add("none").await), (TOPIC_DENIED, TOPIC_DENIED));
    assert_eq!(test.kafka.engine.topics().named("t").unwrap().partitions.len(), 1);
    test.allow(Operation::Alter, T).await;
    assert_eq!((add("t").await, add("none").await), (0, TOPIC_DENIED));
    assert_eq!(test.kafka.engine.topics().named("t").unwrap().partitions.len(), 2);
}
