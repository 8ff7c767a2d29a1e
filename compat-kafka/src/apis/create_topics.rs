//! CreateTopics (19). There is one broker, so a topic has one replica of each partition.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::security::{Operation, Resource};
use engine::{Topic, TopicId, check_collision, check_topic_name};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};
use kafka_protocol::messages::{CreateTopicsRequest, CreateTopicsResponse, TopicName};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use uuid::Uuid;

use super::describe_configs::topic_settings;
use super::support::{
    CLUSTER_METADATA_TOPIC, KafkaApiError, check_replicas, duplicates, error_fields, new_topic_id,
    refuse_moment,
};
use crate::kafka_server::KafkaServer;
use crate::quotas::MutationQuota;
use crate::request::{ApiHandler, RequestContext};

/// The value that stands for the broker's default.
const DEFAULT: i32 = -1;
const REPLICATION_FACTOR: i16 = 1;
/// From here on clients know that they may create too much (KIP-599).
const STRICT_SINCE: i16 = 6;
/// Kafka's limit. Without it, a request that only validates could be answered with the settings of
/// millions of topics.
pub(super) const PARTITIONS_PER_REQUEST_MAX: usize = 10_000;
pub(super) const TOO_MANY_PARTITIONS: &str = "Excessively large number of partitions per request.";

impl ApiHandler for CreateTopicsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 2, max: 7 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> CreateTopicsResponse {
        let repeated = duplicates(self.topics.iter().map(|topic| topic.name.clone()));
        let names: BTreeSet<TopicName> =
            self.topics.iter().map(|topic| topic.name.clone()).collect();
        let creates_any = kafka.is_authorized(context, Operation::Create, Resource::CLUSTER);
        let is_denied = |topic: &CreatableTopic| {
            !creates_any
                && *topic.name != *CLUSTER_METADATA_TOPIC
                && !repeated.contains(&topic.name)
                && kafka
                    .authorize(context, Operation::Create, Resource::topic(&topic.name))
                    .is_err()
        };
        let (denied, topics): (Vec<_>, Vec<_>) = self.topics.into_iter().partition(is_denied);
        if partition_total(kafka, &topics) > PARTITIONS_PER_REQUEST_MAX {
            let too_many =
                || KafkaApiError::new(ResponseError::PolicyViolation, TOO_MANY_PARTITIONS);
            let results = names.into_iter().map(|name| error_result(name, too_many()));
            return CreateTopicsResponse::default().with_topics(results.collect());
        }
        let mut results = Vec::with_capacity(names.len());
        let quota = context.mutation_quota(STRICT_SINCE);
        for topic in topics.iter().filter(|topic| !repeated.contains(&topic.name)) {
            let creating = create(kafka, topic, self.validate_only, &quota);
            results.push(match creating.await {
                Ok(created) => show_permitted(kafka, context, created),
                Err(error) => error_result(topic.name.clone(), error),
            });
        }
        let refusal =
            || KafkaApiError::new(ResponseError::TopicAuthorizationFailed, "Authorization failed.");
        results.extend(denied.into_iter().map(|topic| error_result(topic.name, refusal())));
        let duplicate =
            || KafkaApiError::new(ResponseError::InvalidRequest, "Duplicate topic name.");
        results.extend(repeated.into_iter().map(|name| error_result(name, duplicate())));
        CreateTopicsResponse::default().with_topics(results)
    }
}

/// The number of partitions that a request creates, as far as a number can tell. A single topic
/// with too many is refused on its own.
fn partition_total(kafka: &KafkaServer, topics: &[CreatableTopic]) -> usize {
    let count = |topic: &CreatableTopic| match (topic.assignments.len(), topic.num_partitions) {
        (0, DEFAULT) => kafka.options.partitions as usize,
        (0, count) => usize::try_from(count).unwrap_or(0).min(PARTITIONS_PER_REQUEST_MAX + 1),
        (assigned, _) => assigned,
    };
    topics.iter().map(count).sum()
}

/// Leaves out the settings of a new topic, unless the client may describe them.
fn show_permitted(
    kafka: &KafkaServer,
    context: &RequestContext,
    created: CreatableTopicResult,
) -> CreatableTopicResult {
    let topic = Resource::topic(&created.name);
    if kafka.is_authorized(context, Operation::DescribeConfigs, topic) {
        return created;
    }
    CreatableTopicResult::default()
        .with_name(created.name)
        .with_topic_id(created.topic_id)
        .with_error_message(None)
        .with_topic_config_error_code(ResponseError::TopicAuthorizationFailed.code())
        .with_num_partitions(-1)
        .with_replication_factor(-1)
        .with_configs(Some(Vec::new()))
}

fn error_result(name: TopicName, error: KafkaApiError) -> CreatableTopicResult {
    let (code, message) = error_fields(&Err(error));
    CreatableTopicResult::default()
        .with_name(name)
        .with_error_code(code)
        .with_error_message(message)
}

/// Creates a topic that an application needs, unless it exists.
pub(super) async fn create_internal(
    kafka: &KafkaServer,
    topic: &CreatableTopic,
    quota: &MutationQuota<'_>,
) -> Result<(), KafkaApiError> {
    match create(kafka, topic, false, quota).await {
        Err(error) if error.error == ResponseError::TopicAlreadyExists => Ok(()),
        created => created.map(drop),
    }
}

async fn create(
    kafka: &KafkaServer,
    requested: &CreatableTopic,
    validate_only: bool,
    quota: &MutationQuota<'_>,
) -> Result<CreatableTopicResult, KafkaApiError> {
    let name = &*requested.name;
    check_new_name(kafka, name)?;
    let configs = configs(requested)?;
    let partitions = partition_count(kafka, requested)?;
    // A topic that was only validated has no id.
    let id = if validate_only { TopicId::default() } else { new_topic_id(kafka) };
    let holder = kafka.engine.security().holder(&quota.requester);
    let topics = kafka.engine.topics().on_behalf_of(&holder);
    let creating = topics.create(name, partitions, configs, id, validate_only);
    let topic = if validate_only {
        creating.await?
    } else {
        let topic = quota.charge(partitions as usize, creating).await??;
        let resource = format_args!("TOPIC {name} with {partitions} partitions");
        kafka.record_change_by(&quota.requester, "CreateTopics", resource);
        topic
    };
    Ok(CreatableTopicResult::default()
        .with_name(requested.name.clone())
        .with_topic_id(Uuid::from_bytes(id))
        .with_error_message(None)
        .with_num_partitions(partitions as i32)
        .with_replication_factor(REPLICATION_FACTOR)
        .with_configs(Some(settings(kafka, &topic))))
}

fn check_new_name(kafka: &KafkaServer, name: &str) -> Result<(), KafkaApiError> {
    if name == CLUSTER_METADATA_TOPIC {
        return Err(KafkaApiError::new(
            ResponseError::InvalidRequest,
            format!("Creation of internal topic {name} is prohibited."),
        ));
    }
    refuse_moment(name)?;
    check_topic_name(name)?;
    if kafka.engine.topics().named(name).is_some() {
        return Err(KafkaApiError::new(
            ResponseError::TopicAlreadyExists,
            format!("Topic '{name}' already exists."),
        ));
    }
    Ok(check_collision(&kafka.engine.namespace(), name)?)
}

fn configs(topic: &CreatableTopic) -> Result<BTreeMap<String, String>, KafkaApiError> {
    let nulls: Vec<&str> = topic
        .configs
        .iter()
        .filter(|config| config.value.is_none())
        .map(|config| &*config.name)
        .collect();
    if !nulls.is_empty() {
        return Err(KafkaApiError::new(
            ResponseError::InvalidConfig,
            format!("Null value not supported for topic configs: {}", nulls.join(",")),
        ));
    }
    let pair = |name: &StrBytes, value: &StrBytes| (name.to_string(), value.to_string());
    Ok(topic
        .configs
        .iter()
        .filter_map(|config| Some(pair(&config.name, config.value.as_ref()?)))
        .collect())
}

fn partition_count(kafka: &KafkaServer, topic: &CreatableTopic) -> Result<u32, KafkaApiError> {
    if !topic.assignments.is_empty() {
        return assigned_count(kafka, topic);
    }
    let factor = topic.replication_factor;
    if factor < DEFAULT as i16 || factor == 0 {
        return Err(KafkaApiError::new(
            ResponseError::InvalidReplicationFactor,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ));
    }
    let count = match topic.num_partitions {
        DEFAULT => kafka.options.partitions,
        count => u32::try_from(count).ok().filter(|count| *count > 0).ok_or_else(|| {
            KafkaApiError::new(
                ResponseError::InvalidPartitions,
                "Number of partitions was set to an invalid non-positive value.",
            )
        })?,
    };
    if factor > REPLICATION_FACTOR {
        return Err(KafkaApiError::new(
            ResponseError::InvalidReplicationFactor,
            format!(
                "Unable to replicate the partition {factor} time(s): The target replication factor \
                 of {factor} cannot be reached because only 1 broker(s) are registered or some \
                 brokers have all their log directories cordoned."
            ),
        ));
    }
    Ok(count)
}

/// The number of partitions in a manual assignment.
fn assigned_count(kafka: &KafkaServer, topic: &CreatableTopic) -> Result<u32, KafkaApiError> {
    for (is_set, field) in [
        (i32::from(topic.replication_factor) != DEFAULT, "replication factor"),
        (topic.num_partitions != DEFAULT, "numPartitions"),
    ] {
        if is_set {
            return Err(KafkaApiError::new(
                ResponseError::InvalidRequest,
                format!(
                    "A manual partition assignment was specified, but {field} was not set to -1."
                ),
            ));
        }
    }
    let mut indexes = BTreeSet::new();
    for CreatableReplicaAssignment { partition_index, broker_ids, .. } in &topic.assignments {
        if !indexes.insert(*partition_index) {
            return Err(KafkaApiError::new(
                ResponseError::InvalidReplicaAssignment,
                format!(
                    "Found multiple manual partition assignments for partition {partition_index}"
                ),
            ));
        }
        check_replicas(kafka, broker_ids)?;
    }
    if !indexes.iter().copied().eq(0..indexes.len() as i32) {
        return Err(KafkaApiError::new(
            ResponseError::InvalidReplicaAssignment,
            "partitions should be a consecutive 0-based integer sequence",
        ));
    }
    Ok(indexes.len() as u32)
}

fn settings(kafka: &KafkaServer, topic: &Topic) -> Vec<CreatableTopicConfigs> {
    topic_settings(&topic.config, &kafka.engine.topic_defaults(), &kafka.settings.options.load())
        .map(|setting| {
            CreatableTopicConfigs::default()
                .with_name(StrBytes::from_static_str(setting.name))
                .with_value(Some(StrBytes::from_string(setting.value.to_owned())))
                .with_config_source(setting.source)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::{CoreOptions, EngineOptions};
    use kafka_errors::engine_error;
    use kafka_protocol::messages::create_topics_request::CreatableTopicConfig;
    use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
    use kafka_protocol::messages::{BrokerId, MetadataRequest};

    use super::*;
    use crate::apis::test_server::*;
    use crate::options::KafkaOptions;

    /// Both pass the first check before either is created.
    #[tokio::test]
    async fn of_two_colliding_names_at_once_one_is_created() {
        let kafka = kafka();
        let request = |name| {
            let topic = CreatableTopic::default()
                .with_name(TopicName(StrBytes::from_static_str(name)))
                .with_num_partitions(1)
                .with_replication_factor(1);
            CreateTopicsRequest::default().with_topics(vec![topic])
        };
        let changing = kafka.engine.lock_changes().await;
        let mut first = Box::pin(ask(&kafka, 5, request("a.b")));
        let mut second = Box::pin(ask(&kafka, 5, request("a_b")));
        for creating in [&mut first, &mut second] {
            let outcome = tokio::time::timeout(Duration::ZERO, creating).await;
            assert!(outcome.is_err(), "it waits");
        }
        drop(changing);
        let codes = [first.await, second.await].map(|answer| answer.topics[0].error_code);
        assert_eq!(codes, [0, ResponseError::InvalidTopicException.code()]);
        assert_eq!(kafka.engine.topics().count(), 1);
    }

    fn new(name: &str, partitions: i32, factor: i16) -> CreatableTopic {
        CreatableTopic::default()
            .with_name(self::name(name))
            .with_num_partitions(partitions)
            .with_replication_factor(factor)
    }

    fn config(name: &str, value: Option<&str>) -> CreatableTopicConfig {
        CreatableTopicConfig::default().with_name(text(name)).with_value(value.map(text))
    }

    fn assigned(topics: &[(i32, &[i32])]) -> CreatableTopic {
        let assignments = topics.iter().map(|(index, brokers)| {
            CreatableReplicaAssignment::default()
                .with_partition_index(*index)
                .with_broker_ids(brokers.iter().map(|id| BrokerId(*id)).collect())
        });
        new("assigned", -1, -1).with_assignments(assignments.collect())
    }

    async fn create_one(kafka: &Arc<KafkaServer>, topic: CreatableTopic) -> CreatableTopicResult {
        let request = CreateTopicsRequest::default().with_topics(vec![topic]);
        ask(kafka, 7, request).await.topics.remove(0)
    }

    #[tokio::test]
    async fn a_topic_that_was_created_is_there_as_it_was_answered() {
        let kafka = kafka();
        let topic = new("orders", -1, -1).with_configs(vec![config("segment.ms", Some("60000"))]);
        let result = create_one(&kafka, topic).await;
        assert_eq!((result.error_code, result.error_message), (0, None));
        assert_eq!((result.num_partitions, result.replication_factor), (3, 1));
        let topic = kafka.engine.topics().named("orders").unwrap();
        assert_eq!(Uuid::from_bytes(topic.id), result.topic_id);
        assert_eq!(topic.partitions.len(), 3);
        let configs = result.configs.unwrap();
        let source = |name: &str| {
            let config = configs.iter().find(|config| &*config.name == name).unwrap();
            (config.value.clone().unwrap().to_string(), config.config_source)
        };
        assert_eq!(source("segment.ms"), ("60000".to_owned(), 1));
        assert_eq!(source("retention.ms"), ("5000".to_owned(), 4));
        assert_eq!(source("cleanup.policy"), ("delete".to_owned(), 5));
    }

    #[tokio::test]
    async fn every_version_can_be_answered() {
        let kafka = kafka();
        for version in 2..=7 {
            let topics = vec![new(&format!("t{version}"), 1, 1), new("bad name", 1, 1)];
            let request = CreateTopicsRequest::default().with_topics(topics);
            let codes: Vec<i16> =
                ask(&kafka, version, request).await.topics.iter().map(|t| t.error_code).collect();
            assert_eq!(codes, [0, ResponseError::InvalidTopicException.code()], "{version}");
        }
    }

    #[tokio::test]
    async fn what_is_only_validated_is_not_made() {
        let kafka = kafka();
        let request = CreateTopicsRequest::default()
            .with_topics(vec![new("orders", 4, 1), new("bad", 0, 1)])
            .with_validate_only(true);
        let results = ask(&kafka, 7, request).await.topics;
        assert_eq!((results[0].error_code, results[0].num_partitions), (0, 4));
        assert_eq!(results[0].topic_id, Uuid::nil());
        assert_eq!(results[1].error_code, ResponseError::InvalidPartitions.code());
        assert!(kafka.engine.topics().all().is_empty());
    }

    #[tokio::test]
    async fn a_name_that_comes_twice_is_made_by_neither_and_answered_once() {
        let kafka = kafka();
        let topics = vec![new("a", 1, 1), new("b", 1, 1), new("a", 2, 1)];
        let results =
            ask(&kafka, 7, CreateTopicsRequest::default().with_topics(topics)).await.topics;
        let answers: Vec<(&str, i16)> = results.iter().map(|r| (&**r.name, r.error_code)).collect();
        assert_eq!(answers, [("b", 0), ("a", ResponseError::InvalidRequest.code())]);
        assert!(kafka.engine.topics().named("a").is_none());
    }

    #[tokio::test]
    async fn what_cannot_be_made_says_why() {
        let kafka = kafka();
        topic(&kafka, "there", 1).await;
        topic(&kafka, "a.b", 1).await;
        let configured = |configs| new("configured", 1, 1).with_configs(configs);
        for (topic, error, words) in [
            (new("there", 1, 1), ResponseError::TopicAlreadyExists, "already exists"),
            (new("a_b", 1, 1), ResponseError::InvalidTopicException, "collides with"),
            (new("there@s5", 1, 1), ResponseError::InvalidTopicException, "read-only"),
            (new("there.__at.s5", 1, 1), ResponseError::InvalidTopicException, "read-only"),
            (new("", 1, 1), ResponseError::InvalidTopicException, "empty"),
            (new("__cluster_metadata", 1, 1), ResponseError::InvalidRequest, "prohibited"),
            (new("x", 0, 1), ResponseError::InvalidPartitions, "non-positive"),
            (new("x", -2, 1), ResponseError::InvalidPartitions, "non-positive"),
            (new("x", 10_001, 1), ResponseError::PolicyViolation, TOO_MANY_PARTITIONS),
            (new("x", 1, 0), ResponseError::InvalidReplicationFactor, "larger than 0"),
            (new("x", 1, -2), ResponseError::InvalidReplicationFactor, "larger than 0"),
            (new("x", 1, 3), ResponseError::InvalidReplicationFactor, "only 1 broker(s)"),
            (
                configured(vec![config("retention.days", Some("1"))]),
                ResponseError::InvalidConfig,
                "Unknown topic config name: retention.days",
            ),
            (
                configured(vec![config("retention.ms", Some("soon"))]),
                ResponseError::InvalidConfig,
                "Invalid value soon for configuration retention.ms",
            ),
            (
                configured(vec![config("retention.ms", None)]),
                ResponseError::InvalidConfig,
                "Null value not supported for topic configs: retention.ms",
            ),
        ] {
            let result = create_one(&kafka, topic.clone()).await;
            assert_eq!(result.error_code, error.code(), "{topic:?}");
            let message = result.error_message.unwrap();
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(kafka.engine.topics().all().len(), 2);
    }

    #[tokio::test]
    async fn a_manual_assignment_names_this_node_only_and_leaves_no_gap() {
        let kafka = kafka();
        for (assignments, words) in [
            (assigned(&[(0, &[1]), (2, &[1])]), "consecutive"),
            (assigned(&[(1, &[1])]), "consecutive"),
            (assigned(&[(0, &[1]), (0, &[1])]), "Found multiple"),
            (assigned(&[(0, &[])]), "empty replica list"),
            (assigned(&[(0, &[1, 2])]), "broker 2, but no such broker"),
            (assigned(&[(0, &[1, 1])]), "broker 1 more than once"),
        ] {
            let result = create_one(&kafka, assignments).await;
            assert_eq!(
                result.error_code,
                ResponseError::InvalidReplicaAssignment.code(),
                "{words}"
            );
            assert!(result.error_message.unwrap().contains(words), "{words}");
        }
        let counted = assigned(&[(0, &[1])]).with_num_partitions(1);
        assert_eq!(
            create_one(&kafka, counted).await.error_code,
            ResponseError::InvalidRequest.code()
        );
        let result = create_one(&kafka, assigned(&[(1, &[1]), (0, &[1])])).await;
        assert_eq!((result.error_code, result.num_partitions), (0, 2));
    }

    #[tokio::test]
    async fn topics_and_partitions_are_bounded_and_who_deletes_some_makes_room() {
        let limits = EngineOptions {
            core: CoreOptions { topics_max: 3, all_partitions_max: 6, ..CoreOptions::default() },
            ..EngineOptions::default()
        };
        let kafka = kafka_over(limits, KafkaOptions::default());
        topic(&kafka, "a", 1).await;
        topic(&kafka, "b", 2).await;
        let created = async |name: &str, partitions| {
            let topic = CreatableTopic::default()
                .with_name(self::name(name))
                .with_num_partitions(partitions)
                .with_replication_factor(1);
            let request = CreateTopicsRequest::default().with_topics(vec![topic]);
            let result = ask(&kafka, 7, request).await.topics.remove(0);
            (result.error_code, result.error_message.map(|message| message.to_string()))
        };
        let violated = ResponseError::PolicyViolation.code();
        let message = "127.0.0.1 holds 0 of 6 partitions, 3 are taken, and 4 more do not fit; free some, or raise limits.all-partitions-max";
        assert_eq!(created("c", 4).await, (violated, Some(message.to_owned())));
        assert_eq!(created("c", 2).await.0, 0);
        let message = "127.0.0.1 holds 1 of 3 topics, and all are taken; free some, or raise limits.topics-max";
        assert_eq!(created("d", 1).await, (violated, Some(message.to_owned())));
        let added = kafka.engine.topics().add_partitions("a", 3, false).await;
        assert_eq!(engine_error(&added.unwrap_err()), ResponseError::PolicyViolation);
        // This includes topics that are created on request.
        let topic = MetadataRequestTopic::default().with_name(Some(name("d")));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![topic]))
            .with_allow_auto_topic_creation(true);
        let metadata = ask(&kafka, 12, request).await;
        assert_eq!(metadata.topics[0].error_code, violated);
        let b = kafka.engine.topics().named("b").unwrap().id;
        kafka.engine.topics().delete(b).await.unwrap();
        assert_eq!(created("d", 3).await.0, 0);
    }

    #[tokio::test]
    async fn a_request_for_very_many_partitions_makes_none() {
        let kafka = kafka();
        let topics = ["a", "b"].map(|topic| {
            CreatableTopic::default()
                .with_name(name(topic))
                .with_num_partitions(5001)
                .with_replication_factor(1)
        });
        let request = CreateTopicsRequest::default().with_topics(topics.into());
        for result in ask(&kafka, 7, request).await.topics {
            assert_eq!(result.error_code, ResponseError::PolicyViolation.code());
            assert_eq!(result.error_message.as_deref(), Some(TOO_MANY_PARTITIONS));
        }
        assert!(kafka.engine.topics().all().is_empty());
    }

    /// Kafka's messages, which tools show.
    #[tokio::test]
    async fn names_that_cannot_be_are_refused_in_kafka_s_words() {
        let kafka = kafka();
        let long = "x".repeat(250);
        for (name, message) in [
            ("", "the empty string is not allowed".to_owned()),
            (".", "'.' is not allowed".to_owned()),
            ("..", "'..' is not allowed".to_owned()),
            (long.as_str(), format!("the length of '{long}' is longer than the max allowed length 249")),
            ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'".to_owned()),
        ] {
            let topic = CreatableTopic::default()
                .with_name(self::name(name))
                .with_num_partitions(1)
                .with_replication_factor(1);
            let request = CreateTopicsRequest::default().with_topics(vec![topic]);
            let result = ask(&kafka, 7, request).await.topics.remove(0);
            assert_eq!(result.error_code, ResponseError::InvalidTopicException.code());
            assert_eq!(&*result.error_message.unwrap(), format!("Topic name is invalid: {message}"));
        }
    }

    /// As in Kafka: a client that deleted a topic sees that it is gone, even by a request that
    /// creates it again.
    #[tokio::test]
    async fn a_deleted_topic_that_metadata_creates_again_is_not_there_for_that_request() {
        let kafka = kafka();
        assert_eq!(create_by_metadata(&kafka, "a").await, 0);
        let id = kafka.engine.topics().named("a").unwrap().id;
        kafka.engine.topics().delete(id).await.unwrap();
        let code = create_by_metadata(&kafka, "a").await;
        assert_eq!(code, ResponseError::UnknownTopicOrPartition.code());
        assert_eq!(create_by_metadata(&kafka, "a").await, 0);
    }

    /// A consumer of Kafka's own topics would read an empty one for good.
    #[tokio::test]
    async fn metadata_creates_no_topic_of_kafka() {
        let kafka = kafka();
        let code = create_by_metadata(&kafka, "__consumer_offsets").await;
        assert_eq!(code, ResponseError::UnknownTopicOrPartition.code());
        assert!(kafka.engine.topics().named("__consumer_offsets").is_none());
    }

    async fn create_by_metadata(kafka: &Arc<KafkaServer>, topic: &'static str) -> i16 {
        let topic = MetadataRequestTopic::default().with_name(Some(name(topic)));
        let request = MetadataRequest::default()
            .with_topics(Some(vec![topic]))
            .with_allow_auto_topic_creation(true);
        ask(kafka, 12, request).await.topics.remove(0).error_code
    }
}
