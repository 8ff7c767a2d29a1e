//! ShareGroupHeartbeat (76): a member of a share group joins, is alive, learns its partitions, or
//! leaves (KIP-932).

use std::sync::Arc;

use kafka_errors::group_error;
use kafka_groups::{GroupError, PartitionSet, ShareHeartbeat, ShareHeartbeatAnswer};
use kafka_protocol::messages::share_group_heartbeat_response::{Assignment, TopicPartitions};
use kafka_protocol::messages::{ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use uuid::Uuid;

use super::consumer_group_heartbeat::{authorize_member, prepare_moments};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for ShareGroupHeartbeatRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ShareGroupHeartbeatResponse {
        let topics = self.subscribed_topic_names.as_deref().unwrap_or_default();
        if let Err(error) = authorize_member(kafka, context, &self.group_id, topics) {
            return ShareGroupHeartbeatResponse::default().with_error_code(error.code());
        }
        let group = self.group_id.to_string();
        match heartbeat(kafka, &group, self, context).await {
            Ok(answer) => to_response(answer),
            Err(error) => ShareGroupHeartbeatResponse::default()
                .with_error_code(group_error(error).code())
                .with_error_message(Some(StrBytes::from_string(message(&group, error)))),
        }
    }
}

fn message(group: &str, error: GroupError) -> String {
    match error {
        GroupError::GroupIdNotFound | GroupError::OtherGroupType => {
            format!("Group {group} is not a share group.")
        }
        error => error.to_string(),
    }
}

async fn heartbeat(
    kafka: &KafkaServer,
    group: &str,
    request: ShareGroupHeartbeatRequest,
    context: &RequestContext,
) -> Result<ShareHeartbeatAnswer, GroupError> {
    prepare_moments(kafka, request.subscribed_topic_names.as_deref().unwrap_or_default()).await?;
    let topics = request.subscribed_topic_names;
    let heartbeat = ShareHeartbeat {
        member_id: request.member_id.to_string(),
        member_epoch: request.member_epoch,
        rack: request.rack_id.map(|rack| rack.to_string()),
        topics: topics.map(|names| names.into_iter().map(|name| name.to_string()).collect()),
        client_id: context.client_id.clone(),
        client_host: context.client_host(),
    };
    kafka.groups_for(context).share_heartbeat(group, heartbeat).await
}

fn to_response(answer: ShareHeartbeatAnswer) -> ShareGroupHeartbeatResponse {
    ShareGroupHeartbeatResponse::default()
        .with_member_id(Some(StrBytes::from_string(answer.member_id)))
        .with_member_epoch(answer.member_epoch)
        .with_heartbeat_interval_ms(i32::try_from(answer.interval.as_millis()).unwrap_or(i32::MAX))
        .with_assignment(answer.assignment.as_ref().map(assignment))
}

fn assignment(partitions: &PartitionSet) -> Assignment {
    let topics = partitions.iter().map(|(id, indexes)| {
        TopicPartitions::default()
            .with_topic_id(Uuid::from_bytes(*id))
            .with_partitions(indexes.iter().map(|index| *index as i32).collect())
    });
    Assignment::default().with_topic_partitions(topics.collect())
}
