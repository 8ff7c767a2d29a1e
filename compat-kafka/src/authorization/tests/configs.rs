//! Settings.

use kafka_protocol::messages::alter_configs_request;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::incremental_alter_configs_request as incremental;
use kafka_protocol::messages::{
    AlterConfigsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
};

use super::*;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const CLIENT_METRICS: i8 = 16;
const GROUP: i8 = 32;

/// A resource, the error of a refusal, and what a rule is about that allows it.
const RESOURCES: [(i8, &str, i16, Resource<'static>); 5] = [
    (TOPIC, "t", TOPIC_DENIED, T),
    (GROUP, "g", GROUP_DENIED, Resource { kind: ResourceType::Group, name: "g" }),
    (BROKER, "1", CLUSTER_DENIED, Resource::CLUSTER),
    (BROKER_LOGGER, "1", CLUSTER_DENIED, Resource::CLUSTER),
    (CLIENT_METRICS, "m", CLUSTER_DENIED, Resource::CLUSTER),
];

async fn describe(test: &TestAuthorizer, kind: i8, name: &str) -> (i16, usize) {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(None);
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let result = test.ask(4, request).await.results.remove(0);
    (result.error_code, result.configs.len())
}

#[tokio::test]
async fn settings_are_told_to_whom_may_describe_them() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    let moment = test.moment("t").await;
    test.allow(Operation::Read, T).await;
    for (kind, name, error, rule) in RESOURCES {
        assert_eq!(describe(&test, kind, name).await, (error, 0), "{kind}");
        test.allow(Operation::DescribeConfigs, rule).await;
        assert_eq!(describe(&test, kind, name).await.0, 0, "{kind}");
        test.revoke(Operation::DescribeConfigs, rule).await;
    }
    for name in ["none", &moment] {
        assert_eq!(describe(&test, TOPIC, name).await, (TOPIC_DENIED, 0), "{name}");
    }
    test.allow(Operation::DescribeConfigs, T).await;
    assert_eq!(describe(&test, TOPIC, &moment).await.0, 0);
}

async fn replace(test: &TestAuthorizer, kind: i8, name: &str) -> i16 {
    let resource = alter_configs_request::AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name));
    let request = AlterConfigsRequest::default().with_resources(vec![resource]);
    test.ask(2, request).await.responses[0].error_code
}

async fn change(test: &TestAuthorizer, kind: i8, name: &str, key: &str) -> i16 {
    let config = incremental::AlterableConfig::default()
        .with_name(text(key))
        .with_value(Some(text("60000")));
    let resource = incremental::AlterConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configs(vec![config]);
    let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
    test.ask(1, request).await.responses[0].error_code
}

#[tokio::test]
async fn settings_are_changed_by_whom_may_alter_them() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    test.allow(Operation::Alter, T).await;
    test.allow(Operation::DescribeConfigs, T).await;
    for (kind, name, error, rule) in RESOURCES {
        assert_eq!(replace(&test, kind, name).await, error, "{kind}");
        // Only a client that may alter a setting learns what is wrong with it.
        assert_eq!(change(&test, kind, name, "no.such").await, error, "{kind}");
        test.allow(Operation::AlterConfigs, rule).await;
        assert_ne!(replace(&test, kind, name).await, error, "{kind}");
        assert_ne!(change(&test, kind, name, "no.such").await, error, "{kind}");
        test.revoke(Operation::AlterConfigs, rule).await;
    }
    let set = || test.kafka.engine.topics().named("t").unwrap().config.overrides().len();
    assert_eq!((change(&test, TOPIC, "t", "retention.ms").await, set()), (TOPIC_DENIED, 0));
    test.allow(Operation::AlterConfigs, T).await;
    assert_eq!((change(&test, TOPIC, "t", "retention.ms").await, set()), (0, 1));
    assert_eq!((replace(&test, TOPIC, "t").await, set()), (0, 0));
    assert_eq!(replace(&test, TOPIC, "none").await, TOPIC_DENIED);
}

#[tokio::test]
async fn resources_with_settings_are_listed_for_whom_may_describe_the_clusters() {
    let test = TestAuthorizer::with_topic("t", 1).await;
    test.allow(Operation::Describe, Resource::CLUSTER).await;
    for version in 0..=1 {
        let refused = test.ask(version, ListConfigResourcesRequest::default()).await;
        assert_eq!((refused.error_code, refused.config_resources.len()), (CLUSTER_DENIED, 0));
    }
    test.allow(Operation::DescribeConfigs, Resource::CLUSTER).await;
    let listed = test.ask(1, ListConfigResourcesRequest::default()).await;
    assert_eq!((listed.error_code, listed.config_resources.len()), (0, 3));
}
