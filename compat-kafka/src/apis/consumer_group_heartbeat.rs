//! ConsumerGroupHeartbeat (68): a member of a group whose partitions the server assigns joins, is
//! alive, learns its assignment, or leaves (KIP-848).

use std::sync::Arc;
use std::time::Duration;

use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_groups::{
    AssignedPartitions, ConsumerHeartbeat, ConsumerHeartbeatAnswer, GroupError, PartitionSet,
};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::consumer_group_heartbeat_request::TopicPartitions as Owned;
use kafka_protocol::messages::consumer_group_heartbeat_response::{Assignment, TopicPartitions};
use kafka_protocol::messages::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicName,
};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use kafka_topics::{MomentRowQuota, MomentTopicError, ReadableTopic};
use uuid::Uuid;

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// From here on, clients make their own member ids (KIP-1082).
const CLIENT_MADE_ID: i16 = 1;

impl ApiHandler for ConsumerGroupHeartbeatRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ConsumerGroupHeartbeatResponse {
        let topics = self.subscribed_topic_names.as_deref().unwrap_or_default();
        if let Err(error) = authorize_member(kafka, context, &self.group_id, topics) {
            return ConsumerGroupHeartbeatResponse::default().with_error_code(error.code());
        }
        let group = self.group_id.to_string();
        match heartbeat(kafka, &group, self, context).await {
            Ok(answer) => to_response(answer),
            Err(error) => ConsumerGroupHeartbeatResponse::default()
                .with_error_code(group_error(error).code())
                .with_error_message(Some(StrBytes::from_string(error.to_string()))),
        }
    }
}

/// Fails if the client may not be a member of the group, or not know of a topic that it names.
pub(super) fn authorize_member(
    kafka: &KafkaServer,
    context: &RequestContext,
    group: &str,
    topics: &[TopicName],
) -> Result<(), ResponseError> {
    kafka.authorize(context, Operation::Read, Resource::group(group))?;
    let mut topics = topics.iter();
    topics.try_for_each(|name| kafka.authorize(context, Operation::Describe, Resource::topic(name)))
}

async fn heartbeat(
    kafka: &KafkaServer,
    group: &str,
    request: ConsumerGroupHeartbeatRequest,
    context: &RequestContext,
) -> Result<ConsumerHeartbeatAnswer, GroupError> {
    if context.version >= CLIENT_MADE_ID && request.member_id.is_empty() {
        return Err(GroupError::InvalidRequest);
    }
    prepare_moments(kafka, request.subscribed_topic_names.as_deref().unwrap_or_default()).await?;
    let text = |text: Option<StrBytes>| text.map(|text| text.to_string());
    let topics = request.subscribed_topic_names;
    let heartbeat = ConsumerHeartbeat {
        member_id: request.member_id.to_string(),
        member_epoch: request.member_epoch,
        instance_id: text(request.instance_id),
        rack: text(request.rack_id),
        rebalance_timeout: u64::try_from(request.rebalance_timeout_ms)
            .ok()
            .map(Duration::from_millis),
        topics: topics.map(|names| names.into_iter().map(|name| name.to_string()).collect()),
        regex: text(request.subscribed_topic_regex),
        assignor: text(request.server_assignor),
        owned: request.topic_partitions.map(owned),
        client_id: context.client_id.clone(),
        client_host: context.client_host(),
    };
    let may_describe =
        |topic: &str| kafka.is_authorized(context, Operation::Describe, Resource::topic(topic));
    kafka.groups_for(context).consumer_heartbeat(group, heartbeat, &may_describe).await
}

/// Waits for the moments that a member subscribes to, as a consumer of the classic protocol does
/// when it asks for their partitions. Moments that cannot be read are topics that do not exist.
pub(super) async fn prepare_moments(
    kafka: &KafkaServer,
    names: &[TopicName],
) -> Result<(), GroupError> {
    let mut rows = MomentRowQuota::default();
    for name in names {
        match kafka.topics.resolve_within_quota(name, &rows).await {
            Ok(Some(ReadableTopic::Past(view))) => {
                rows.take(view.partitions.len()).map_err(|_| GroupError::TooLarge)?;
            }
            Err(MomentTopicError::TooMany) => return Err(GroupError::TooLarge),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Partitions that cannot exist are left out.
fn owned(topics: Vec<Owned>) -> PartitionSet {
    let mut owned = PartitionSet::new();
    for topic in topics {
        let indexes = topic.partitions.into_iter().filter_map(|index| u32::try_from(index).ok());
        owned.entry(topic.topic_id.into_bytes()).or_default().extend(indexes);
    }
    owned
}

fn to_response(answer: ConsumerHeartbeatAnswer) -> ConsumerGroupHeartbeatResponse {
    ConsumerGroupHeartbeatResponse::default()
        .with_member_id(Some(StrBytes::from_string(answer.member_id)))
        .with_member_epoch(answer.member_epoch)
        .with_heartbeat_interval_ms(i32::try_from(answer.interval.as_millis()).unwrap_or(i32::MAX))
        .with_assignment(answer.assignment.as_ref().map(assignment))
}

fn assignment(partitions: &AssignedPartitions) -> Assignment {
    let topics = partitions.iter().map(|(id, indexes)| {
        TopicPartitions::default()
            .with_topic_id(Uuid::from_bytes(*id))
            .with_partitions(indexes.keys().map(|index| *index as i32).collect())
    });
    Assignment::default().with_topic_partitions(topics.collect())
}

#[cfg(test)]
mod tests;
