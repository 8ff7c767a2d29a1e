//! DescribeGroups (15): groups and their members, as an administrator sees them.

use std::collections::HashSet;
use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_groups::{ClassicGroupState, GroupError, GroupSummary, MemberSummary};
use kafka_protocol::messages::describe_groups_response::{DescribedGroup, DescribedGroupMember};
use kafka_protocol::messages::{DescribeGroupsRequest, DescribeGroupsResponse, GroupId};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// From here on, a missing group is an error. Before, it is a dead group.
const REPORTS_MISSING_GROUP: i16 = 6;

impl ApiHandler for DescribeGroupsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 6 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeGroupsResponse {
        let describe = |id: GroupId| {
            let group = Resource::group(&id);
            if let Err(error) = kafka.authorize(context, Operation::Describe, group) {
                let refused = DescribedGroup::default().with_error_code(error.code());
                return refused.with_group_id(id);
            }
            let described = match kafka.coordinators.groups.describe(&id) {
                Ok(group) => described_group(group),
                Err(GroupError::GroupIdNotFound) => {
                    missing_group(format!("Group {} not found.", id.as_str()), context.version)
                }
                Err(GroupError::OtherGroupType) => {
                    let message = format!("Group {} is not a classic group.", id.as_str());
                    missing_group(message, context.version)
                }
                Err(error) => DescribedGroup::default().with_error_code(group_error(error).code()),
            };
            let described = if self.include_authorized_operations && described.error_code == 0 {
                let operations = kafka.authorized_operations(context, Resource::group(&id));
                described.with_authorized_operations(operations)
            } else {
                described
            };
            described.with_group_id(id)
        };
        // Each group once. Kafka repeats them, but its clients send a set.
        let mut ids = HashSet::new();
        let groups = self.groups.into_iter().filter(|id| ids.insert(id.clone()));
        let groups = groups.map(describe).collect();
        DescribeGroupsResponse::default().with_groups(groups)
    }
}

fn described_group(group: GroupSummary) -> DescribedGroup {
    DescribedGroup::default()
        .with_group_state(StrBytes::from_static_str(group.state.name()))
        .with_protocol_type(StrBytes::from_string(group.protocol_type))
        .with_protocol_data(StrBytes::from_string(group.protocol_data))
        .with_members(group.members.into_iter().map(member).collect())
}

fn member(member: MemberSummary) -> DescribedGroupMember {
    DescribedGroupMember::default()
        .with_member_id(StrBytes::from_string(member.member_id))
        .with_group_instance_id(member.group_instance_id.map(StrBytes::from_string))
        .with_client_id(StrBytes::from_string(member.client_id))
        .with_client_host(StrBytes::from_string(member.client_host))
        .with_member_metadata(member.metadata)
        .with_member_assignment(member.assignment)
}

fn missing_group(message: String, version: i16) -> DescribedGroup {
    let dead = StrBytes::from_static_str(ClassicGroupState::Dead.name());
    let described = DescribedGroup::default().with_group_state(dead);
    if version < REPORTS_MISSING_GROUP {
        return described;
    }
    described
        .with_error_code(group_error(GroupError::GroupIdNotFound).code())
        .with_error_message(Some(StrBytes::from_string(message)))
}

#[cfg(test)]
mod tests {
    use super::super::join_group::test_kafka_api::{PROTOCOL, TestKafkaApi, group_id};
    use super::*;

    fn request(group: &str) -> DescribeGroupsRequest {
        DescribeGroupsRequest::default().with_groups(vec![group_id(group)])
    }

    #[tokio::test]
    async fn a_stable_group_is_shown_with_its_members_in_every_version() {
        let api = TestKafkaApi::new();
        let joined = api.stable_group("g").await;
        for version in 0..=6 {
            let group = api.ask(version, request("g")).await.groups.remove(0);
            assert_eq!((group.error_code, group.authorized_operations), (0, i32::MIN));
            assert_eq!(group.group_id, group_id("g"));
            assert_eq!(group.group_state.as_str(), "Stable");
            assert_eq!(group.protocol_type.as_str(), "consumer");
            assert_eq!(group.protocol_data.as_str(), PROTOCOL);
            assert_eq!(group.members[0].member_id, joined.id);
            assert_eq!(group.members[0].client_id.as_str(), "test");
            assert_eq!(group.members[0].client_host.as_str(), "/10.1.2.3");
            assert_eq!(&group.members[0].member_assignment[..], b"yours");
        }
    }

    #[tokio::test]
    async fn a_group_that_is_not_there_is_dead_or_later_an_error() {
        let api = TestKafkaApi::new();
        for version in 0..=6 {
            let group = api.ask(version, request("g")).await.groups.remove(0);
            assert_eq!(group.group_state.as_str(), "Dead");
            assert_eq!(group.error_code, if version < 6 { 0 } else { 69 }, "version {version}");
            let message = (version >= 6).then_some("Group g not found.");
            assert_eq!(group.error_message.as_deref(), message);
        }
    }

    #[tokio::test]
    async fn operations_are_returned_where_they_are_requested() {
        let api = TestKafkaApi::new();
        api.stable_group("g").await;
        let with_operations = request("g").with_include_authorized_operations(true);
        let group = api.ask(3, with_operations).await.groups.remove(0);
        let operations = [3, 6, 8, 10, 11].iter().map(|bit| 1 << bit).sum::<i32>();
        assert_eq!(group.authorized_operations, operations);
        let absent = request("x").with_include_authorized_operations(true);
        let group = api.ask(6, absent).await.groups.remove(0);
        assert_eq!(group.authorized_operations, i32::MIN);
    }
}
