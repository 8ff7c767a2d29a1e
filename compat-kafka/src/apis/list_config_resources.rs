//! ListConfigResources (74): the resources that have settings. In version 0 only subscriptions to
//! metrics of clients.

use std::sync::Arc;

use engine::groups::ResourceType;
use engine::security::{Operation, Resource};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_config_resources_response::ConfigResource;
use kafka_protocol::messages::{ListConfigResourcesRequest, ListConfigResourcesResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::describe_configs::resource;
use super::resource_configs::configured_names;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

const TYPES: [i8; 5] = [
    resource::TOPIC,
    resource::BROKER,
    resource::BROKER_LOGGER,
    resource::CLIENT_METRICS,
    resource::GROUP,
];

impl ApiHandler for ListConfigResourcesRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ListConfigResourcesResponse {
        let allowed = kafka.authorize(context, Operation::DescribeConfigs, Resource::CLUSTER);
        if let Err(error) = allowed {
            return ListConfigResourcesResponse::default().with_error_code(error.code());
        }
        let kinds = match (context.version, self.resource_types.is_empty()) {
            (0, _) => vec![resource::CLIENT_METRICS],
            (_, true) => TYPES.to_vec(),
            (_, false) => self.resource_types,
        };
        if kinds.iter().any(|kind| !TYPES.contains(kind)) {
            return ListConfigResourcesResponse::default()
                .with_error_code(ResponseError::UnsupportedVersion.code());
        }
        let types = TYPES.into_iter().filter(|kind| kinds.contains(kind));
        let resources = types.flat_map(|kind| {
            names(kafka, kind).into_iter().map(move |name| {
                ConfigResource::default()
                    .with_resource_name(StrBytes::from_string(name))
                    .with_resource_type(kind)
            })
        });
        ListConfigResourcesResponse::default().with_config_resources(resources.collect())
    }
}

fn names(kafka: &KafkaServer, kind: i8) -> Vec<String> {
    match kind {
        resource::TOPIC => {
            kafka.engine.topics().all().iter().map(|topic| topic.name.to_string()).collect()
        }
        resource::BROKER | resource::BROKER_LOGGER => vec![kafka.cluster.this_node().0.to_string()],
        resource::GROUP => {
            let names = configured_names(kafka, ResourceType::Group);
            names.unwrap_or_default().into_iter().collect()
        }
        resource::CLIENT_METRICS => {
            let names = configured_names(kafka, ResourceType::ClientMetrics);
            names.unwrap_or_default().into_iter().collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::resource_configs::alter_group;
    use super::*;
    use crate::apis::test_server::{ask, kafka, topic};

    fn listed(response: &ListConfigResourcesResponse) -> Vec<(i8, &str)> {
        let resources = response.config_resources.iter();
        resources.map(|resource| (resource.resource_type, &*resource.resource_name)).collect()
    }

    #[tokio::test]
    async fn what_has_settings_is_listed_by_type() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        topic(&kafka, "b", 1).await;
        // Only groups with settings of their own are listed.
        kafka.coordinators.groups.restore_without_members("plain");
        let override_config = |configs: &mut BTreeMap<String, String>| {
            configs.insert("consumer.session.timeout.ms".to_owned(), "50000".to_owned());
        };
        assert!(alter_group(&kafka, "g", override_config, false).await.is_ok());
        let request = |kinds: &[i8]| {
            ListConfigResourcesRequest::default().with_resource_types(kinds.to_vec())
        };
        let answer = ask(&kafka, 1, request(&[])).await;
        assert_eq!(listed(&answer), [(2, "a"), (2, "b"), (4, "1"), (8, "1"), (32, "g")]);
        let topics = ask(&kafka, 1, request(&[2, 16, 2])).await;
        assert_eq!(listed(&topics), [(2, "a"), (2, "b")]);
        let unknown = ask(&kafka, 1, request(&[2, 3])).await;
        assert_eq!(unknown.error_code, ResponseError::UnsupportedVersion.code());
        assert!(listed(&unknown).is_empty());
    }

    #[tokio::test]
    async fn version_0_knows_only_client_metrics() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let old = ask(&kafka, 0, ListConfigResourcesRequest::default()).await;
        assert_eq!((old.error_code, listed(&old)), (0, vec![]));
    }
}
