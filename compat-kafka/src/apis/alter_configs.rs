//! AlterConfigs (33), the old API: it replaces all settings of a topic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::check_topic_name;
use engine::security::Operation;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_configs_request::AlterConfigsResource;
use kafka_protocol::messages::alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{AlterConfigsRequest, AlterConfigsResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::describe_configs::{authorize_configs, resource};
use super::resource_configs::{alter_broker, alter_client_metrics, alter_group};
use super::support::{KafkaApiError, duplicates, error_fields, find_changeable_topic};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for AlterConfigsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> AlterConfigsResponse {
        let repeated = DuplicateResources::among(
            self.resources.iter().map(|r| (r.resource_type, &r.resource_name)),
        );
        let mut responses = Vec::with_capacity(self.resources.len());
        for resource in self.resources {
            let result = match repeated.check(resource.resource_type, &resource.resource_name) {
                Ok(()) => replace(kafka, context, &resource, self.validate_only).await,
                refused => refused,
            };
            let (code, message) = error_fields(&result);
            responses.push(
                AlterConfigsResourceResponse::default()
                    .with_error_code(code)
                    .with_error_message(message)
                    .with_resource_type(resource.resource_type)
                    .with_resource_name(resource.resource_name),
            );
        }
        AlterConfigsResponse::default().with_responses(responses)
    }
}

async fn replace(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), KafkaApiError> {
    check_keys(
        resource.configs.iter().map(|config| &config.name),
        resource.configs.iter().filter(|config| config.value.is_none()).map(|config| &config.name),
    )?;
    let (kind, name) = (resource.resource_type, &*resource.resource_name);
    authorize_configs(kafka, context, Operation::AlterConfigs, kind, name)?;
    let configs: BTreeMap<String, String> = resource
        .configs
        .iter()
        .filter_map(|config| Some((config.name.to_string(), config.value.as_ref()?.to_string())))
        .collect();
    alter(kafka, kind, name, |overrides| *overrides = configs, validate_only).await?;
    if !validate_only {
        record_alteration(kafka, context, kind, name, resource.configs.iter().map(|c| &*c.name));
    }
    Ok(())
}

/// Records a change of these settings. Their values are in the resource's history.
pub(super) fn record_alteration<'a>(
    kafka: &KafkaServer,
    context: &RequestContext,
    kind: i8,
    name: &str,
    settings: impl Iterator<Item = &'a str>,
) {
    let kind = match kind {
        resource::TOPIC => "TOPIC",
        resource::BROKER => "BROKER",
        resource::CLIENT_METRICS => "CLIENT_METRICS",
        resource::GROUP => "GROUP",
        _ => "RESOURCE",
    };
    let settings: Vec<&str> = settings.collect();
    kafka.record_change(context, format_args!("{kind} {name}: {}", settings.join(", ")));
}

/// The resources that a request names more than once.
pub(super) struct DuplicateResources(BTreeSet<(i8, StrBytes)>);

impl DuplicateResources {
    pub(super) fn among<'a>(
        resources: impl Iterator<Item = (i8, &'a StrBytes)>,
    ) -> DuplicateResources {
        DuplicateResources(duplicates(resources.map(|(kind, name)| (kind, name.clone()))))
    }

    pub(super) fn check(&self, kind: i8, name: &StrBytes) -> Result<(), KafkaApiError> {
        if self.0.contains(&(kind, name.clone())) {
            return bad_request("Each resource must appear at most once.");
        }
        Ok(())
    }
}

/// Refuses a duplicate key, and a key without the value that it needs.
pub(super) fn check_keys<'a>(
    keys: impl Iterator<Item = &'a StrBytes>,
    valueless: impl Iterator<Item = &'a StrBytes>,
) -> Result<(), KafkaApiError> {
    if !duplicates(keys).is_empty() {
        return bad_request("Error due to duplicate config keys");
    }
    let valueless: Vec<&str> = valueless.map(StrBytes::as_str).collect();
    if !valueless.is_empty() {
        return bad_request(format!("Null value not supported for : {}", valueless.join(", ")));
    }
    Ok(())
}

/// Changes the settings of a topic, a server, a group or a subscription; refuses any other kind of
/// resource.
pub(super) async fn alter(
    kafka: &Arc<KafkaServer>,
    kind: i8,
    name: &str,
    change: impl FnOnce(&mut BTreeMap<String, String>),
    validate_only: bool,
) -> Result<(), KafkaApiError> {
    match kind {
        resource::TOPIC if name.is_empty() => {
            bad_request("Default topic resources are not allowed.")
        }
        resource::TOPIC => {
            find_changeable_topic(kafka, name).map_err(|refused| match check_topic_name(name) {
                Err(invalid) if refused.error == ResponseError::UnknownTopicOrPartition => {
                    KafkaApiError::from(invalid)
                }
                _ => refused,
            })?;
            let change = |configs: &mut BTreeMap<String, String>| {
                change(configs);
                Ok(())
            };
            Ok(kafka.engine.topics().configure(name, change, validate_only).await?)
        }
        resource::BROKER => alter_broker(kafka, name, change, validate_only).await,
        resource::BROKER_LOGGER => {
            bad_request("Log levels cannot be changed while the broker runs.")
        }
        resource::CLIENT_METRICS => alter_client_metrics(kafka, name, change, validate_only).await,
        resource::GROUP => alter_group(kafka, name, change, validate_only).await,
        unknown => bad_request(format!("Unknown resource type {unknown}")),
    }
}

fn bad_request(message: impl Into<String>) -> Result<(), KafkaApiError> {
    Err(KafkaApiError::new(ResponseError::InvalidRequest, message))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::alter_configs_request::AlterableConfig;

    use super::*;
    use crate::apis::test_server::{ask, kafka, text, topic};

    fn alter_resource(
        kind: i8,
        name: &str,
        configs: &[(&str, Option<&str>)],
    ) -> AlterConfigsResource {
        let configs = configs.iter().map(|(name, value)| {
            AlterableConfig::default().with_name(text(name)).with_value(value.map(text))
        });
        AlterConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(name))
            .with_configs(configs.collect())
    }

    fn request(resources: Vec<AlterConfigsResource>) -> AlterConfigsRequest {
        AlterConfigsRequest::default().with_resources(resources)
    }

    fn set(kafka: &KafkaServer, name: &str) -> Vec<(String, String)> {
        kafka.engine.topics().named(name).unwrap().config.overrides().clone().into_iter().collect()
    }

    #[tokio::test]
    async fn what_is_not_named_is_set_no_more() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        for version in 0..=2 {
            for (key, value) in [("retention.ms", "1"), ("segment.ms", "2")] {
                let request =
                    request(vec![alter_resource(resource::TOPIC, "a", &[(key, Some(value))])]);
                let responses = ask(&kafka, version, request).await.responses;
                assert_eq!((responses[0].error_code, &responses[0].error_message), (0, &None));
                assert_eq!(set(&kafka, "a"), [(key.to_owned(), value.to_owned())]);
            }
        }
        ask(&kafka, 2, request(vec![alter_resource(resource::TOPIC, "a", &[])])).await;
        assert!(set(&kafka, "a").is_empty());
    }

    #[tokio::test]
    async fn what_is_refused_or_only_validated_changes_nothing() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let one_config = [("retention.ms", Some("1"))];
        let invalid = ResponseError::InvalidRequest;
        for (resource, error) in [
            (
                alter_resource(resource::TOPIC, "a", &[("no.such", Some("1"))]),
                ResponseError::InvalidConfig,
            ),
            (
                alter_resource(resource::TOPIC, "a", &[one_config[0], ("segment.ms", Some("x"))]),
                ResponseError::InvalidConfig,
            ),
            (alter_resource(resource::TOPIC, "a", &[one_config[0], one_config[0]]), invalid),
            (alter_resource(resource::TOPIC, "a", &[("retention.ms", None)]), invalid),
            (alter_resource(resource::TOPIC, "", &one_config), invalid),
            (
                alter_resource(resource::TOPIC, "b", &one_config),
                ResponseError::UnknownTopicOrPartition,
            ),
            (
                alter_resource(resource::TOPIC, "a@s5", &one_config),
                ResponseError::InvalidTopicException,
            ),
            (alter_resource(resource::BROKER, "1", &[("log.retention.ms", Some("1"))]), invalid),
            (alter_resource(resource::BROKER, "", &[("log.retention.ms", Some("1"))]), invalid),
            (alter_resource(resource::BROKER, "2", &[]), invalid),
            (alter_resource(resource::BROKER_LOGGER, "1", &[]), invalid),
            (alter_resource(resource::GROUP, "", &[]), invalid),
            (
                alter_resource(resource::GROUP, "g", &[("no.such", Some("1"))]),
                ResponseError::InvalidConfig,
            ),
            (alter_resource(resource::CLIENT_METRICS, "", &[]), invalid),
            (alter_resource(resource::CLIENT_METRICS, "m", &[("no.such", Some("1"))]), invalid),
            (alter_resource(99, "g", &[]), invalid),
        ] {
            let response =
                ask(&kafka, 2, request(vec![resource.clone()])).await.responses.remove(0);
            assert_eq!(response.error_code, error.code(), "{resource:?}");
            assert!(response.error_message.is_some());
        }
        let tried = request(vec![alter_resource(resource::TOPIC, "a", &one_config)])
            .with_validate_only(true);
        assert_eq!(ask(&kafka, 2, tried).await.responses[0].error_code, 0);
        assert!(set(&kafka, "a").is_empty());
    }

    #[tokio::test]
    async fn a_resource_that_comes_twice_is_refused_each_time() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        topic(&kafka, "b", 1).await;
        let alteration =
            |name| alter_resource(resource::TOPIC, name, &[("retention.ms", Some("1"))]);
        let responses =
            ask(&kafka, 2, request(vec![alteration("a"), alteration("b"), alteration("a")]))
                .await
                .responses;
        let codes: Vec<i16> = responses.iter().map(|response| response.error_code).collect();
        let invalid = ResponseError::InvalidRequest.code();
        assert_eq!(codes, [invalid, 0, invalid]);
        assert!(set(&kafka, "a").is_empty());
    }
}
