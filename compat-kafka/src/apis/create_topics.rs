//! CreateTopics (19). There is one broker, so a topic has one replica of each partition.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use engine::security::{Operation, Resource};
use engine::{EngineError, Topic, TopicId, check_collision, check_topic_name};
use hlc::split_moment_topic;
use kafka_errors::{engine_error, error_message};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_topics_request::{CreatableReplicaAssignment, CreatableTopic};
use kafka_protocol::messages::create_topics_response::{
    CreatableTopicConfigs, CreatableTopicResult,
};
use kafka_protocol::messages::{BrokerId, CreateTopicsRequest, CreateTopicsResponse, TopicName};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use uuid::Uuid;

use super::describe_configs::topic_settings;
use crate::core::KafkaServer;
use crate::quotas::{MutationQuota, TooManyMutations};
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
/// The name of an internal topic of Kafka, which nobody may create.
pub(super) const CLUSTER_METADATA_TOPIC: &str = "__cluster_metadata";

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
                && !kafka.is_authorized(context, Operation::Create, Resource::topic(&topic.name))
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
        quota.charge(partitions as usize, creating).await??
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

/// Checks that a partition's replicas can be `brokers`: there is only this broker.
pub(super) fn check_replicas(
    kafka: &KafkaServer,
    brokers: &[BrokerId],
) -> Result<(), KafkaApiError> {
    let refuse = |fault: String| {
        let message = format!("The manual partition assignment includes {fault}");
        Err(KafkaApiError::new(ResponseError::InvalidReplicaAssignment, message))
    };
    let unknown = brokers.iter().filter(|broker| !kafka.cluster.contains(**broker)).min();
    if let Some(broker) = unknown {
        return refuse(format!("broker {}, but no such broker is registered.", broker.0));
    }
    match brokers.len() {
        0 => refuse("an empty replica list.".to_owned()),
        1 => Ok(()),
        _ => refuse(format!("the broker {} more than once.", brokers[0].0)),
    }
}

fn settings(kafka: &KafkaServer, topic: &Topic) -> Vec<CreatableTopicConfigs> {
    topic_settings(&topic.config, &kafka.engine.topic_defaults(), &kafka.dynamic.load())
        .map(|setting| {
            CreatableTopicConfigs::default()
                .with_name(StrBytes::from_static_str(setting.name))
                .with_value(Some(StrBytes::from_string(setting.value.to_owned())))
                .with_config_source(setting.source)
        })
        .collect()
}

/// An id for a new topic. As in Kafka, none whose text begins with a dash, which tools would take
/// for an option.
pub(super) fn new_topic_id(kafka: &KafkaServer) -> TopicId {
    /// A dash in Kafka's base 64, whose first digit is the first six bits.
    const DASH: u8 = 62;
    loop {
        let id = (kafka.options.new_id)();
        if id[0] >> 2 != DASH {
            return id;
        }
    }
}

/// The reason why an operation failed: Kafka's error, and a message for people.
#[derive(Clone, Debug)]
pub(super) struct KafkaApiError {
    pub(super) error: ResponseError,
    message: String,
}

impl fmt::Display for KafkaApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl KafkaApiError {
    pub(super) fn new(error: ResponseError, message: impl Into<String>) -> KafkaApiError {
        KafkaApiError { error, message: message.into() }
    }
}

impl From<ResponseError> for KafkaApiError {
    fn from(error: ResponseError) -> KafkaApiError {
        KafkaApiError::new(error, error_message(error).to_string())
    }
}

impl From<TooManyMutations> for KafkaApiError {
    fn from(_: TooManyMutations) -> KafkaApiError {
        ResponseError::ThrottlingQuotaExceeded.into()
    }
}

impl From<EngineError> for KafkaApiError {
    fn from(error: EngineError) -> KafkaApiError {
        // Kafka's messages are sentences, and some tools match them.
        let mut message = error.to_string();
        if let Some(first) = message.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        KafkaApiError::new(engine_error(&error), message)
    }
}

/// [`KafkaServer::authorize`], with a message for people.
pub(super) fn authorize(
    kafka: &KafkaServer,
    context: &RequestContext,
    operation: Operation,
    resource: Resource<'_>,
) -> Result<(), KafkaApiError> {
    let allowed = kafka.authorize(context, operation, resource);
    allowed.map_err(|error| KafkaApiError::new(error, error_message(error).to_string()))
}

/// The error code and message, as in a response.
pub(super) fn error_fields(result: &Result<(), KafkaApiError>) -> (i16, Option<StrBytes>) {
    match result {
        Ok(()) => (0, None),
        Err(KafkaApiError { error, message }) => {
            (error.code(), Some(StrBytes::from_string(message.clone())))
        }
    }
}

/// Refuses to change a topic whose name contains a moment: the past is read-only.
pub(super) fn refuse_moment(name: &str) -> Result<(), KafkaApiError> {
    match split_moment_topic(name) {
        Some((topic, _)) => Err(KafkaApiError::new(
            ResponseError::InvalidTopicException,
            format!("'{name}' is a moment of the topic '{topic}', and the past is read-only."),
        )),
        None => Ok(()),
    }
}

/// Looks up a topic that is to be changed.
pub(super) fn find_changeable_topic(
    kafka: &KafkaServer,
    name: &str,
) -> Result<Arc<Topic>, KafkaApiError> {
    refuse_moment(name)?;
    kafka.engine.topics().named(name).ok_or_else(|| {
        KafkaApiError::new(
            ResponseError::UnknownTopicOrPartition,
            format!("The topic '{name}' does not exist."),
        )
    })
}

/// The values that occur more than once.
pub(super) fn duplicates<T: Clone + Eq + Hash + Ord>(
    values: impl Iterator<Item = T>,
) -> BTreeSet<T> {
    let mut distinct = HashSet::new();
    values.filter(|value| !distinct.insert(value.clone())).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use bytes::BytesMut;
    use engine::{
        CoreOptions, Durability, Engine, EngineOptions, Payload, PayloadHeader, RecordBatch,
        TopicDefaults,
    };
    use hlc::UserTime;
    use kafka_protocol::messages::MetadataRequest;
    use kafka_protocol::messages::create_topics_request::CreatableTopicConfig;
    use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
    use kafka_protocol::protocol::{Decodable, Encodable};
    use kafka_records::HEADER_BYTES;
    use storage::disk::MemoryDisk;

    use super::*;
    use crate::core::KafkaOptions;
    use kafka_format::KafkaFormat;

    /// A server on an engine in memory, whose operator has set `retention.ms`.
    pub(in crate::apis) fn kafka_with(options: KafkaOptions) -> Arc<KafkaServer> {
        kafka_over(EngineOptions::default(), options)
    }

    fn kafka_over(engine: EngineOptions, options: KafkaOptions) -> Arc<KafkaServer> {
        let defaults = TopicDefaults::from([("retention.ms".to_owned(), "5000".to_owned())]);
        let engine = Engine::open(
            Arc::new(MemoryDisk::new()),
            EngineOptions {
                core: CoreOptions { topic_defaults: defaults, ..engine.core },
                ..engine
            },
            Arc::new(hlc::OsClock),
            Arc::new(KafkaFormat { decompressed_bytes_max: 1 << 20 }),
        );
        KafkaServer::new(Arc::new(engine.unwrap()), options).unwrap()
    }

    pub(in crate::apis) fn kafka() -> Arc<KafkaServer> {
        kafka_with(KafkaOptions { partitions: 3, ..KafkaOptions::default() })
    }

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

    pub(in crate::apis) async fn topic(kafka: &Arc<KafkaServer>, name: &str, partitions: u32) {
        let id = new_topic_id(kafka);
        kafka.engine.topics().create(name, partitions, BTreeMap::new(), id, false).await.unwrap();
    }

    /// A topic of one partition with so many records, of which only the count is real.
    pub(in crate::apis) async fn topic_with_records(
        kafka: &Arc<KafkaServer>,
        name: &str,
        records: u32,
    ) {
        topic(kafka, name, 1).await;
        let batch = RecordBatch {
            payload: Payload {
                header: PayloadHeader::new(&[0; HEADER_BYTES]),
                rest: vec![0; 100].into(),
            },
            count: records,
            times: (UserTime(0), UserTime(0)),
            producer: None,
            holder: None,
        };
        let topic = kafka.engine.topics().named(name).unwrap();
        let appended = kafka.engine.append(vec![(topic, 0, batch)], Durability::Synced).await;
        assert!(appended[0].is_ok(), "{appended:?}");
    }

    /// Sends a request, and decodes the response as a client of that version does.
    pub(in crate::apis) async fn ask<R: ApiHandler>(
        kafka: &Arc<KafkaServer>,
        version: i16,
        request: R,
    ) -> R::Response {
        let context = RequestContext {
            api_key: R::KEY,
            version,
            correlation_id: 1,
            client_id: "test".to_owned(),
            peer: ([127, 0, 0, 1], 50_000).into(),
            local: ([127, 0, 0, 1], 9092).into(),
            connection: crate::request::ConnectionState::for_test(),
            quota: None,
        };
        let mut bytes = BytesMut::new();
        request.handle(kafka, &context).await.encode(&mut bytes, version).unwrap();
        let mut bytes = bytes.freeze();
        let response = R::Response::decode(&mut bytes, version).unwrap();
        assert!(bytes.is_empty());
        response
    }

    pub(in crate::apis) fn name(name: &str) -> TopicName {
        TopicName(text(name))
    }

    pub(in crate::apis) fn text(text: &str) -> StrBytes {
        StrBytes::from_string(text.to_owned())
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
        let metadata = async || {
            let topic = MetadataRequestTopic::default().with_name(Some(name("a")));
            let request = MetadataRequest::default()
                .with_topics(Some(vec![topic]))
                .with_allow_auto_topic_creation(true);
            ask(&kafka, 12, request).await.topics.remove(0).error_code
        };
        assert_eq!(metadata().await, 0);
        let id = kafka.engine.topics().named("a").unwrap().id;
        kafka.engine.topics().delete(id).await.unwrap();
        assert_eq!(metadata().await, ResponseError::UnknownTopicOrPartition.code());
        assert_eq!(metadata().await, 0);
    }
}
