//! Metadata (3): the broker and the topics. A moment of a topic looks like a topic.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use engine::security::{Operation, Resource};
use engine::{Topic, TopicId, check_topic_name};
use hlc::split_moment_topic;
use kafka_errors::engine_error;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::metadata_request::MetadataRequestTopic;
use kafka_protocol::messages::metadata_response::{
    MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use kafka_protocol::messages::{BrokerId, MetadataRequest, MetadataResponse, TopicName};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use kafka_topics::{MomentRowQuota, MomentTopicError, ReadableTopic, TOPICS_OF_KAFKA};
use uuid::Uuid;

use super::support::new_topic_id;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, NEVER_STRICT, RequestContext, ResponseResult, decode, encode};

const NOT_REQUESTED: i32 = i32::MIN;

/// Answers in the middle of a login, which ends with that. (Kafka answers each request so; of other
/// ones no client has been seen to send any.)
pub(crate) async fn refuse_in_login(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: Bytes,
) -> ResponseResult {
    let request = decode::<MetadataRequest>(&context, body)?;
    context.connection.authentication.abandon(kafka.engine.security()).await;
    let error = ResponseError::IllegalSaslState;
    let refuse = |requested: &MetadataRequestTopic| {
        error_topic(requested.name.as_deref().map(|name| &**name), requested.topic_id, error)
    };
    let topics = request.topics.iter().flatten().map(refuse).collect();
    let response = MetadataResponse::default().with_controller_id(BrokerId(-1)).with_topics(topics);
    encode::<MetadataRequest>(&context, &response).map(Some)
}

impl ApiHandler for MetadataRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 13 };

    async fn handle(self, kafka: &Arc<KafkaServer>, context: &RequestContext) -> MetadataResponse {
        let brokers = kafka.cluster.nodes(context).into_iter().map(|node| {
            MetadataResponseBroker::default()
                .with_node_id(node.id)
                .with_host(node.host)
                .with_port(node.port.into())
                .with_rack(node.rack)
        });
        let brokers = brokers.collect();
        let mut topics = Vec::new();
        let words = MetadataQuery { request: &self, context };
        let is_all = match &self.topics {
            None => true,
            Some(topics) => context.version == 0 && topics.is_empty(),
        };
        if is_all {
            let mut all_topics = kafka.engine.topics().all();
            all_topics.retain(|topic| {
                kafka.is_authorized(context, Operation::Describe, Resource::topic(&topic.name))
            });
            for topic in all_topics {
                topics.push(words.describe(kafka, &topic, topic.name.to_string(), topic.id));
            }
        }
        let (mut distinct, mut past) = (HashSet::new(), MomentRowQuota::default());
        for requested in self.topics.iter().flatten() {
            // Each topic once, as in Kafka, which takes them for a set.
            if !distinct.insert(name_or_id(requested)) {
                continue;
            }
            let described = match name_or_id(requested) {
                Ok(name) => words.by_name(kafka, name, &mut past).await,
                Err(id) => words.by_id(kafka, id, &mut past),
            };
            topics.push(described);
        }
        let operations = if self.include_cluster_authorized_operations {
            kafka.cluster_operations(context)
        } else {
            NOT_REQUESTED
        };
        MetadataResponse::default()
            .with_brokers(brokers)
            .with_cluster_id(Some(kafka.cluster.id()))
            .with_controller_id(kafka.cluster.controller())
            .with_topics(topics)
            .with_cluster_authorized_operations(operations)
    }
}

/// The name or id of a requested topic. Clients that ask by id may send an empty name too.
fn name_or_id(requested: &MetadataRequestTopic) -> Result<&TopicName, Uuid> {
    match &requested.name {
        Some(name) if requested.topic_id.is_nil() => Ok(name),
        _ => Err(requested.topic_id),
    }
}

fn moment_error_topic(
    name: Option<&str>,
    id: Uuid,
    refused: &MomentTopicError,
) -> MetadataResponseTopic {
    tracing::info!(topic = name, %id, %refused, "a moment cannot be read");
    self::error_topic(name, id, refused.error())
}

fn error_topic(name: Option<&str>, id: Uuid, error: ResponseError) -> MetadataResponseTopic {
    MetadataResponseTopic::default()
        .with_name(name.map(|name| TopicName(StrBytes::from_string(name.to_owned()))))
        .with_topic_id(id)
        .with_error_code(error.code())
        .with_topic_authorized_operations(NOT_REQUESTED)
}

/// The meaning of a request's fields, apart from the codec.
struct MetadataQuery<'a> {
    request: &'a MetadataRequest,
    context: &'a RequestContext,
}

impl MetadataQuery<'_> {
    fn describe(
        &self,
        kafka: &KafkaServer,
        topic: &Topic,
        name: String,
        id: TopicId,
    ) -> MetadataResponseTopic {
        let partitions = topic
            .partitions
            .iter()
            .map(|partition| {
                let leadership = kafka.cluster.leadership(partition);
                MetadataResponsePartition::default()
                    .with_partition_index(partition.index as i32)
                    .with_leader_id(leadership.leader)
                    .with_leader_epoch(leadership.epoch)
                    .with_replica_nodes(leadership.replicas)
                    .with_isr_nodes(leadership.in_sync)
            })
            .collect();
        let operations = if self.request.include_topic_authorized_operations {
            kafka.authorized_operations(self.context, Resource::topic(&name))
        } else {
            NOT_REQUESTED
        };
        MetadataResponseTopic::default()
            .with_name(Some(TopicName(StrBytes::from_string(name))))
            .with_topic_id(Uuid::from_bytes(id))
            .with_partitions(partitions)
            .with_topic_authorized_operations(operations)
    }

    fn by_id(
        &self,
        kafka: &Arc<KafkaServer>,
        id: Uuid,
        past: &mut MomentRowQuota,
    ) -> MetadataResponseTopic {
        let topic = kafka.topics.by_id(id.as_bytes());
        if let Some(topic) = &topic
            && let Err(error) = self.authorize(kafka, &topic.topic().name)
        {
            // Its name stays a secret.
            return error_topic(None, id, error);
        }
        match topic {
            Some(ReadableTopic::Present(topic)) => {
                self.describe(kafka, &topic, topic.name.to_string(), topic.id)
            }
            Some(ReadableTopic::Past(view)) => {
                if let Err(refusal) = past.take(view.partitions.len()) {
                    return moment_error_topic(None, id, &refusal);
                }
                let name = format!("{}{}{}", view.topic.name, hlc::TOPIC_MARK, view.selector);
                self.describe(kafka, &view.topic, name, *id.as_bytes())
            }
            None => error_topic(None, id, ResponseError::UnknownTopicId),
        }
    }

    async fn by_name(
        &self,
        kafka: &Arc<KafkaServer>,
        name: &TopicName,
        past: &mut MomentRowQuota,
    ) -> MetadataResponseTopic {
        // Before it is looked up: whether it exists is a secret.
        if let Err(error) = self.authorize(kafka, name) {
            return error_topic(Some(name), Uuid::nil(), error);
        }
        match kafka.topics.resolve_within_quota(name, past).await {
            Ok(Some(ReadableTopic::Present(topic))) => {
                self.describe(kafka, &topic, name.to_string(), topic.id)
            }
            Ok(Some(ReadableTopic::Past(view))) => {
                if let Err(refusal) = past.take(view.partitions.len()) {
                    return moment_error_topic(Some(name), Uuid::nil(), &refusal);
                }
                let id = kafka.topics.moment_id(name);
                self.describe(kafka, &view.topic, name.to_string(), id)
            }
            Ok(None) => {
                let creates = kafka.options.auto_create_topics
                    && (self.context.version < 4 || self.request.allow_auto_topic_creation);
                self.create(kafka, name, creates).await
            }
            Err(refusal) => moment_error_topic(Some(name), Uuid::nil(), &refusal),
        }
    }
}

impl MetadataQuery<'_> {
    fn authorize(&self, kafka: &KafkaServer, name: &str) -> Result<(), ResponseError> {
        kafka.authorize(self.context, Operation::Describe, Resource::topic(name))
    }

    fn may_create(&self, kafka: &KafkaServer, name: &str) -> bool {
        [Resource::CLUSTER, Resource::topic(name)]
            .into_iter()
            .any(|resource| kafka.is_authorized(self.context, Operation::Create, resource))
    }

    async fn create(
        &self,
        kafka: &Arc<KafkaServer>,
        name: &str,
        creates: bool,
    ) -> MetadataResponseTopic {
        if creates && !self.may_create(kafka, name) {
            let error = ResponseError::TopicAuthorizationFailed;
            return error_topic(Some(name), Uuid::nil(), error);
        }
        if let Err(error) = check_topic_name(name) {
            return error_topic(Some(name), Uuid::nil(), engine_error(&error));
        }
        // Here the state of groups and transactions is in no topic, and one of that name would be
        // empty.
        let is_creatable = split_moment_topic(name).is_none() && !TOPICS_OF_KAFKA.contains(&name);
        if !creates || !is_creatable {
            return error_topic(Some(name), Uuid::nil(), ResponseError::UnknownTopicOrPartition);
        }
        // Kafka answers UNKNOWN_TOPIC_OR_PARTITION for a topic that this request creates, and
        // clients retry. Here the topic exists at once. Only for a name that was deleted before,
        // the answer is Kafka's, so that a client that polls until its deletion is done sees it.
        // A topic deleted long ago has no client that still polls.
        let was_deleted = kafka.engine.topics().has_current_or_past(name);
        let id = new_topic_id(kafka);
        let partitions = kafka.options.partitions;
        let holder = kafka.holder(self.context);
        let topics = kafka.engine.topics().on_behalf_of(&holder);
        let creating = topics.create(name, partitions, BTreeMap::new(), id, false);
        let quota = self.context.mutation_quota(NEVER_STRICT);
        let Ok(created) = quota.charge(partitions as usize, creating).await else {
            let error = ResponseError::ThrottlingQuotaExceeded;
            return error_topic(Some(name), Uuid::nil(), error);
        };
        if created.is_ok() {
            let resource = format_args!("TOPIC {name} with {partitions} partitions");
            kafka.record_change_by(&quota.requester, "CreateTopics", resource);
        }
        // Another request may have created it first: then it exists, as wanted.
        match kafka.engine.topics().named(name) {
            Some(topic) if was_deleted && topic.id == id => {
                error_topic(Some(name), Uuid::nil(), ResponseError::UnknownTopicOrPartition)
            }
            Some(topic) => self.describe(kafka, &topic, name.to_owned(), topic.id),
            None => {
                let code = created.err().map_or(ResponseError::LeaderNotAvailable, |error| {
                    let (log, peer) = (&kafka.client_log, self.context.peer.ip());
                    log.warn(
                        peer,
                        "a topic was not created",
                        format_args!("{error}. topic={name}"),
                    );
                    engine_error(&error)
                });
                error_topic(Some(name), Uuid::nil(), code)
            }
        }
    }
}
