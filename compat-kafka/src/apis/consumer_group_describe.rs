//! ConsumerGroupDescribe (69): groups whose partitions the server assigns (KIP-848), and their
//! members.
//!
//! A classic group gets Kafka's answer for it: Java's admin client sends this request first, and on
//! that answer falls back to DescribeGroups.

use std::collections::HashSet;
use std::sync::Arc;

use engine::TopicId;
use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_groups::{ConsumerGroupSummary, ConsumerMemberSummary, GroupError};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::consumer_group_describe_response::{
    Assignment, DescribedGroup, Member, TopicPartitions,
};
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, GroupId, TopicName,
};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use uuid::Uuid;

use crate::apis::topic_permissions::TopicPermissions;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// The message in place of a group whose members have topics of which the client may not know.
pub(super) const HIDDEN_TOPICS: &str =
    "The group has described topic(s) that the client is not authorized to describe.";

/// From here on, a member says which protocol it speaks.
const MEMBER_TYPE: i16 = 1;
const CLASSIC_MEMBER: i8 = 0;
const CONSUMER_MEMBER: i8 = 1;

impl ApiHandler for ConsumerGroupDescribeRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ConsumerGroupDescribeResponse {
        let operations = self.include_authorized_operations;
        let mut seen_topics = TopicPermissions::new(kafka, context, Operation::Describe);
        let describe = |id: GroupId| {
            let group = Resource::group(&id);
            if let Err(error) = kafka.authorize(context, Operation::Describe, group) {
                let refused = DescribedGroup::default().with_error_code(error.code());
                return refused.with_group_id(id);
            }
            let described = match kafka.coordinators.groups.describe_consumer(&id) {
                Ok(group) => described_group(kafka, group, context.version),
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
        ConsumerGroupDescribeResponse::default().with_groups(groups.map(describe).collect())
    }
}

/// The group, unless members have topics of which the client may not know.
fn without_hidden_topics(
    described: DescribedGroup,
    seen_topics: &mut TopicPermissions<'_>,
) -> DescribedGroup {
    let assignments =
        described.members.iter().flat_map(|member| [&member.assignment, &member.target_assignment]);
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
        GroupError::OtherGroupType => format!("Group {id} is not a consumer group."),
        GroupError::GroupIdNotFound => format!("Group {id} not found."),
        error => error.to_string(),
    };
    DescribedGroup::default()
        .with_error_code(group_error(error).code())
        .with_error_message(Some(StrBytes::from_string(message)))
}

fn described_group(
    kafka: &KafkaServer,
    group: ConsumerGroupSummary,
    version: i16,
) -> DescribedGroup {
    let members = group.members.into_iter().map(|summary| member(kafka, summary, version));
    DescribedGroup::default()
        .with_group_state(StrBytes::from_static_str(group.state.name()))
        .with_group_epoch(group.epoch)
        .with_assignment_epoch(group.assignment_epoch)
        .with_assignor_name(StrBytes::from_static_str(group.assignor))
        .with_members(members.collect())
}

fn member(kafka: &KafkaServer, member: ConsumerMemberSummary, version: i16) -> Member {
    let topics = member.topics.into_iter().map(|name| TopicName(StrBytes::from_string(name)));
    let assigned =
        member.assigned.iter().map(|(id, indexes)| (*id, indexes.keys().copied().collect()));
    let target = member.target.iter().map(|(id, indexes)| (*id, indexes.iter().copied().collect()));
    let described = Member::default()
        .with_member_id(StrBytes::from_string(member.id))
        .with_instance_id(member.instance.map(StrBytes::from_string))
        .with_rack_id(member.rack.map(StrBytes::from_string))
        .with_member_epoch(member.epoch)
        .with_client_id(StrBytes::from_string(member.client_id))
        .with_client_host(StrBytes::from_string(member.client_host))
        .with_subscribed_topic_names(topics.collect())
        .with_subscribed_topic_regex(Some(StrBytes::from_string(member.regex)))
        .with_assignment(assignment(kafka, assigned))
        .with_target_assignment(assignment(kafka, target));
    if version < MEMBER_TYPE {
        return described;
    }
    described.with_member_type(if member.is_classic { CLASSIC_MEMBER } else { CONSUMER_MEMBER })
}

/// Topics that do not exist any more are left out, as in Kafka.
fn assignment(
    kafka: &KafkaServer,
    partitions: impl Iterator<Item = (TopicId, Vec<u32>)>,
) -> Assignment {
    let topic_partitions = |(id, indexes): (TopicId, Vec<u32>)| {
        let name = kafka.engine.topics().by_id(&id)?.name.to_string();
        let topic = TopicPartitions::default()
            .with_topic_id(Uuid::from_bytes(id))
            .with_topic_name(TopicName(StrBytes::from_string(name)))
            .with_partitions(indexes.into_iter().map(|index| index as i32).collect());
        Some(topic)
    };
    Assignment::default().with_topic_partitions(partitions.filter_map(topic_partitions).collect())
}

#[cfg(test)]
mod tests {
    use super::super::join_group::test_kafka_api::{TestKafkaApi, group_id};
    use super::*;

    #[tokio::test]
    async fn a_classic_group_is_of_another_kind() {
        let api = TestKafkaApi::new();
        api.stable_group("g").await;
        for version in 0..=1 {
            let request = ConsumerGroupDescribeRequest::default()
                .with_group_ids(vec![group_id("g"), group_id("x")])
                .with_include_authorized_operations(true);
            let groups = api.ask(version, request).await.groups;
            let answers: Vec<(&str, i16, &str)> = groups
                .iter()
                .map(|group| {
                    (group.group_id.as_str(), group.error_code, group.error_message.as_deref())
                })
                .map(|(id, code, message)| (id, code, message.unwrap()))
                .collect();
            let expected =
                [("g", 69, "Group g is not a consumer group."), ("x", 69, "Group x not found.")];
            assert_eq!(answers, expected);
        }
    }
}
