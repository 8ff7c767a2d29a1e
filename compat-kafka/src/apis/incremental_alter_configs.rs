//! IncrementalAlterConfigs (44): changes single settings. For each resource, all of them change or
//! none.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::security::Operation;
use engine::{TopicConfig, topic_config_keys};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig,
};
use kafka_protocol::messages::incremental_alter_configs_response::AlterConfigsResourceResponse;
use kafka_protocol::messages::{IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::alter_configs::{DuplicateResources, alter, check_keys, record_alteration};
use super::describe_configs::{authorize_configs, resource};
use super::support::{KafkaApiError, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for IncrementalAlterConfigsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> IncrementalAlterConfigsResponse {
        let repeated = DuplicateResources::among(
            self.resources.iter().map(|r| (r.resource_type, &r.resource_name)),
        );
        let mut responses = Vec::with_capacity(self.resources.len());
        for resource in self.resources {
            let result = match repeated.check(resource.resource_type, &resource.resource_name) {
                Ok(()) => change(kafka, context, &resource, self.validate_only).await,
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
        IncrementalAlterConfigsResponse::default().with_responses(responses)
    }
}

/// The operation on a setting.
enum AlterConfigOperation {
    Set(String),
    /// Restores the broker's value.
    Delete,
    Append(String),
    Subtract(String),
}

/// The type of settings to which something can be appended, by Kafka's name.
const LIST: &str = "LIST";

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

async fn change(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    resource: &AlterConfigsResource,
    validate_only: bool,
) -> Result<(), KafkaApiError> {
    let valueless =
        |config: &&AlterableConfig| config.value.is_none() && config.config_operation != DELETE;
    check_keys(
        resource.configs.iter().map(|config| &config.name),
        resource.configs.iter().filter(valueless).map(|config| &config.name),
    )?;
    let (kind, name) = (resource.resource_type, &*resource.resource_name);
    authorize_configs(kafka, context, Operation::AlterConfigs, kind, name)?;
    let broker = kafka.settings.options.load();
    let is_list = |key: &str| match kind {
        resource::BROKER => broker.setting(key).is_some_and(|setting| setting.type_name == LIST),
        resource::TOPIC => is_list_of_topics(key),
        // As in Kafka, whatever their type is.
        _ => false,
    };
    let operations = match kind {
        resource::TOPIC | resource::GROUP | resource::CLIENT_METRICS | resource::BROKER => {
            let decode = |config| operation(config, is_list);
            resource.configs.iter().map(decode).collect::<Result<Vec<_>, _>>()?
        }
        // Refused as a whole, so no operation is decoded.
        _ => Vec::new(),
    };
    let defaults = kafka.engine.topic_defaults();
    let in_force = |key: &str| match kind {
        resource::BROKER => {
            broker.setting(key).and_then(|setting| setting.value.clone()).unwrap_or_default()
        }
        _ => TopicConfig::default().value(key, &defaults).to_owned(),
    };
    let apply = |configs: &mut BTreeMap<String, String>| {
        for (key, operation) in operations {
            operation.apply(key, configs, in_force);
        }
    };
    alter(kafka, kind, name, apply, validate_only).await?;
    if !validate_only {
        record_alteration(kafka, context, kind, name, resource.configs.iter().map(|c| &*c.name));
    }
    Ok(())
}

fn operation(
    config: &AlterableConfig,
    is_list: impl Fn(&str) -> bool,
) -> Result<(&str, AlterConfigOperation), KafkaApiError> {
    let key = &*config.name;
    let value = config.value.as_ref().map(StrBytes::to_string).unwrap_or_default();
    let list = |word: &str, operation| {
        if is_list(key) {
            return Ok(operation);
        }
        let message = format!("Can't {word} to key {key} because its type is not LIST.");
        Err(KafkaApiError::new(ResponseError::InvalidConfig, message))
    };
    let operation = match config.config_operation {
        SET => AlterConfigOperation::Set(value),
        DELETE => AlterConfigOperation::Delete,
        APPEND => list("APPEND", AlterConfigOperation::Append(value))?,
        SUBTRACT => list("SUBTRACT", AlterConfigOperation::Subtract(value))?,
        unknown => {
            let message = format!("Unknown operations type {unknown}");
            return Err(KafkaApiError::new(ResponseError::InvalidRequest, message));
        }
    };
    Ok((key, operation))
}

fn is_list_of_topics(key: &str) -> bool {
    topic_config_keys().any(|(name, _, kind)| name == key && kind.name() == LIST)
}

impl AlterConfigOperation {
    /// Appends to or subtracts from the list that is `in_force`. (If none is set there, Kafka
    /// starts from its own default, even if the operator has set another one.)
    fn apply(
        self,
        key: &str,
        configs: &mut BTreeMap<String, String>,
        in_force: impl Fn(&str) -> String,
    ) {
        let words = |configs: &BTreeMap<String, String>| -> Vec<String> {
            let value = configs.get(key).cloned().unwrap_or_else(|| in_force(key));
            split(&value).map(str::to_owned).collect()
        };
        let value = match self {
            AlterConfigOperation::Delete => {
                configs.remove(key);
                return;
            }
            AlterConfigOperation::Set(value) => value,
            AlterConfigOperation::Append(added) => {
                let mut words = words(configs);
                for word in split(&added) {
                    if !words.iter().any(|have| have == word) {
                        words.push(word.to_owned());
                    }
                }
                words.join(",")
            }
            AlterConfigOperation::Subtract(removed) => {
                let mut words = words(configs);
                words.retain(|word| !split(&removed).any(|removed_word| removed_word == word));
                words.join(",")
            }
        };
        configs.insert(key.to_owned(), value);
    }
}

fn split(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apis::test_server::{ask, kafka, text, topic};

    type Change<'a> = (&'a str, i8, Option<&'a str>);

    fn alter_resource(kind: i8, name: &str, changes: &[Change<'_>]) -> AlterConfigsResource {
        let configs = changes.iter().map(|(name, operation, value)| {
            AlterableConfig::default()
                .with_name(text(name))
                .with_config_operation(*operation)
                .with_value(value.map(text))
        });
        AlterConfigsResource::default()
            .with_resource_type(kind)
            .with_resource_name(text(name))
            .with_configs(configs.collect())
    }

    async fn alter_one(kafka: &Arc<KafkaServer>, resource: AlterConfigsResource) -> (i16, String) {
        let request = IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
        let response = ask(kafka, 1, request).await.responses.remove(0);
        (response.error_code, response.error_message.map_or(String::new(), |m| m.to_string()))
    }

    async fn done(kafka: &Arc<KafkaServer>, changes: &[Change<'_>]) {
        let answer = alter_one(kafka, alter_resource(resource::TOPIC, "a", changes)).await;
        assert_eq!(answer, (0, String::new()));
    }

    fn set(kafka: &KafkaServer, key: &str) -> Option<String> {
        kafka.engine.topics().named("a").unwrap().config.overrides().get(key).cloned()
    }

    #[tokio::test]
    async fn a_setting_changes_and_the_others_stay() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        done(&kafka, &[("retention.ms", SET, Some("1")), ("segment.ms", SET, Some("2"))]).await;
        done(&kafka, &[("retention.ms", DELETE, None), ("flush.ms", DELETE, None)]).await;
        assert_eq!(set(&kafka, "retention.ms"), None);
        assert_eq!(set(&kafka, "segment.ms").as_deref(), Some("2"));
    }

    #[tokio::test]
    async fn words_are_added_to_the_list_in_force_and_taken_from_it() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let policy = || set(&kafka, "cleanup.policy");
        done(&kafka, &[("cleanup.policy", APPEND, Some("compact"))]).await;
        assert_eq!(policy().as_deref(), Some("delete,compact"));
        done(&kafka, &[("cleanup.policy", APPEND, Some("compact,delete"))]).await;
        assert_eq!(policy().as_deref(), Some("delete,compact"));
        done(&kafka, &[("cleanup.policy", SUBTRACT, Some("delete"))]).await;
        assert_eq!(policy().as_deref(), Some("compact"));
        let throttled = "leader.replication.throttled.replicas";
        done(&kafka, &[(throttled, APPEND, Some("0:1,1:1"))]).await;
        done(&kafka, &[(throttled, SUBTRACT, Some("0:1,5:5"))]).await;
        assert_eq!(set(&kafka, throttled).as_deref(), Some("1:1"));
    }

    #[tokio::test]
    async fn what_is_refused_changes_nothing_and_says_why() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let (invalid, config) = (ResponseError::InvalidRequest, ResponseError::InvalidConfig);
        let retention = ("retention.ms", SET, Some("1"));
        let topic = |changes: &[Change<'_>]| alter_resource(resource::TOPIC, "a", changes);
        for (resource, error, words) in [
            (topic(&[retention, ("no.such", SET, Some("1"))]), config, "Unknown topic config name"),
            (topic(&[retention, ("segment.ms", SET, Some("x"))]), config, "Invalid value x"),
            (topic(&[retention, ("segment.ms", APPEND, Some("1"))]), config, "not LIST"),
            (topic(&[("no.such", SUBTRACT, Some("1"))]), config, "not LIST"),
            (topic(&[("metrics", APPEND, Some("1"))]), config, "not LIST"),
            (topic(&[("cleanup.policy", SET, Some("compact,,delete"))]), config, "a list of"),
            (
                alter_resource(resource::GROUP, "g", &[("metrics", APPEND, Some("1"))]),
                config,
                "not LIST",
            ),
            (
                alter_resource(resource::CLIENT_METRICS, "new", &[("match", APPEND, Some("1"))]),
                config,
                "not LIST",
            ),
            (
                alter_resource(resource::CLIENT_METRICS, "new", &[("metrics", SET, Some("a,,b"))]),
                config,
                "must not be empty",
            ),
            (
                alter_resource(resource::CLIENT_METRICS, "new", &[("interval.ms", SET, Some("x"))]),
                config,
                "Not a number",
            ),
            (
                alter_resource(resource::CLIENT_METRICS, "new", &[("interval.ms", SET, Some("9"))]),
                invalid,
                "between 100 and 3600000",
            ),
            (
                alter_resource(resource::TOPIC, "a/b", &[retention]),
                ResponseError::InvalidTopicException,
                "a/b",
            ),
            (topic(&[("cleanup.policy", APPEND, Some("shred"))]), config, "shred"),
            (topic(&[retention, retention]), invalid, "duplicate config keys"),
            (topic(&[("retention.ms", SET, None)]), invalid, "Null value"),
            (topic(&[("retention.ms", 4, Some("1"))]), invalid, "Unknown operation"),
            (alter_resource(resource::TOPIC, "", &[retention]), invalid, "Default topic"),
            (
                alter_resource(resource::TOPIC, "b", &[retention]),
                ResponseError::UnknownTopicOrPartition,
                "does not exist",
            ),
            (
                alter_resource(resource::TOPIC, "a@s5", &[retention]),
                ResponseError::InvalidTopicException,
                "read-only",
            ),
            (
                alter_resource(
                    resource::BROKER,
                    "1",
                    &[("log.cleaner.threads", APPEND, Some("2"))],
                ),
                config,
                "not LIST",
            ),
            (alter_resource(resource::BROKER, "7", &[retention]), invalid, "expected 1"),
            (alter_resource(resource::BROKER, "1", &[retention]), invalid, "cannot be changed"),
            (
                alter_resource(resource::BROKER_LOGGER, "1", &[("kafka", SET, Some("DEBUG"))]),
                invalid,
                "levels",
            ),
            (alter_resource(3, "1", &[retention]), invalid, "Unknown resource type 3"),
        ] {
            let (code, message) = alter_one(&kafka, resource.clone()).await;
            assert_eq!(code, error.code(), "{resource:?}");
            assert!(message.contains(words), "{message}");
        }
        assert!(kafka.engine.topics().named("a").unwrap().config.overrides().is_empty());
    }

    #[tokio::test]
    async fn both_versions_answer_each_resource_and_validation_changes_nothing() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        for version in 0..=1 {
            let request = IncrementalAlterConfigsRequest::default()
                .with_resources(vec![
                    alter_resource(resource::TOPIC, "a", &[("retention.ms", SET, Some("1"))]),
                    alter_resource(resource::TOPIC, "b", &[]),
                    alter_resource(resource::TOPIC, "b", &[]),
                ])
                .with_validate_only(true);
            let responses = ask(&kafka, version, request).await.responses;
            let codes: Vec<i16> = responses.iter().map(|response| response.error_code).collect();
            let invalid = ResponseError::InvalidRequest.code();
            assert_eq!(codes, [0, invalid, invalid]);
        }
        assert_eq!(set(&kafka, "retention.ms"), None);
    }
}
