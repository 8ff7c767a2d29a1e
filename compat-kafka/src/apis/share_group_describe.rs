//! ShareGroupDescribe (77): share groups (KIP-932), and their members.

use std::collections::HashSet;
use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_groups::{GroupError, PartitionSet, ShareGroupSummary, ShareMemberSummary};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::share_group_describe_response::{
    Assignment, DescribedGroup, Member, TopicPartitions,
};
use kafka_protocol::messages::{
    GroupId, ShareGroupDescribeRequest, ShareGroupDescribeResponse, TopicName,
};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use uuid::Uuid;

use super::consumer_group_describe::HIDDEN_TOPICS;
use crate::apis::topic_permissions::TopicPermissions;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for ShareGroupDescribeRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ShareGroupDescribeResponse {
        let operations = self.include_authorized_operations;
        let mut seen_topics = TopicPermissions::new(kafka, context, Operation::Describe);
        let describe = |id: GroupId| {
            let group = Resource::group(&id);
            if let Err(error) = kafka.authorize(context, Operation::Describe, group) {
                let refused = DescribedGroup::default().with_error_code(error.code());
                return refused.with_group_id(id);
            }
            let described = match kafka.coordinators.groups.describe_share(&id) {
                Ok(group) => described_group(kafka, group),
                Err(error) => refused(&id, error),
            };
            let described = without_hidden_topics(described, &mut seen_topics);
            let described = if operations && described.error_code == 0 {
                let operations = kafka.authorized_operations(context, Resource::group(&id));
                described.with_authorized_operations(operations)
            } else {
                described
            };
            described.with_group_id(id)
        };
        // Each group once. Kafka repeats them, but its clients send a set.
        let mut ids = HashSet::new();
        let groups = self.group_ids.into_iter().filter(|id| ids.insert(id.clone()));
        ShareGroupDescribeResponse::default().with_groups(groups.map(describe).collect())
    }
}

/// The group, unless members have topics of which the client may not know.
fn without_hidden_topics(
    described: DescribedGroup,
    seen_topics: &mut TopicPermissions<'_>,
) -> DescribedGroup {
    let assignments = described.members.iter().map(|member| &member.assignment);
    let mut topics = assignments.flat_map(|assignment| &assignment.topic_partitions);
    let sees_all = topics.all(|topic| seen_topics.allows(&topic.topic_name));
    drop(topics);
    if sees_all {
        return described;
    }
    DescribedGroup::default()
        .with_error_code(ResponseError::TopicAuthorizationFailed.code())
        .with_error_message(Some(StrBytes::from_static_str(HIDDEN_TOPICS)))
}

fn refused(id: &str, error: GroupError) -> DescribedGroup {
    let message = match error {
        GroupError::OtherGroupType => format!("Group {id} is not a share group."),
        GroupError::GroupIdNotFound => format!("Group {id} not found."),
        error => error.to_string(),
    };
    DescribedGroup::default()
        .with_error_code(group_error(error).code())
        .with_error_message(Some(StrBytes::from_string(message)))
}

fn described_group(kafka: &KafkaServer, group: ShareGroupSummary) -> DescribedGroup {
    let members = group.members.into_iter().map(|summary| member(kafka, summary));
    DescribedGroup::default()
        .with_group_state(StrBytes::from_static_str(group.state.name()))
        .with_group_epoch(group.epoch)
        .with_assignment_epoch(group.assignment_epoch)
        .with_assignor_name(StrBytes::from_static_str(group.assignor))
        .with_members(members.collect())
}

fn member(kafka: &KafkaServer, member: ShareMemberSummary) -> Member {
    let topics = member.topics.into_iter().map(|name| TopicName(StrBytes::from_string(name)));
    Member::default()
        .with_member_id(StrBytes::from_string(member.id))
        .with_rack_id(member.rack.map(StrBytes::from_string))
        .with_member_epoch(member.epoch)
        .with_client_id(StrBytes::from_string(member.client_id))
        .with_client_host(StrBytes::from_string(member.client_host))
        .with_subscribed_topic_names(topics.collect())
        .with_assignment(assignment(kafka, &member.assigned))
}

/// Topics that do not exist any more are left out, as in Kafka.
fn assignment(kafka: &KafkaServer, partitions: &PartitionSet) -> Assignment {
    let topics = partitions.iter().filter_map(|(id, indexes)| {
        let name = kafka.topics.name_of(id)?;
        let topic = TopicPartitions::default()
            .with_topic_id(Uuid::from_bytes(*id))
            .with_topic_name(TopicName(StrBytes::from_string(name)))
            .with_partitions(indexes.iter().map(|index| *index as i32).collect());
        Some(topic)
    });
    Assignment::default().with_topic_partitions(topics.collect())
}
