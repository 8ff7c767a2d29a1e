//! ListGroups (16): all groups, or those in some states and of some types.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_groups::GroupOverview;
use kafka_protocol::messages::list_groups_response::ListedGroup as Listed;
use kafka_protocol::messages::{GroupId, ListGroupsRequest, ListGroupsResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for ListGroupsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 5 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ListGroupsResponse {
        let sees_all = kafka.is_authorized(context, Operation::Describe, Resource::CLUSTER);
        let sees = |group: &str| {
            sees_all || kafka.is_authorized(context, Operation::Describe, Resource::group(group))
        };
        let groups = kafka.coordinators.groups.list().into_iter();
        let matching = groups.filter(|group| {
            matches_filter(&self.types_filter, group.group_type.name())
                && matches_filter(&self.states_filter, group.state)
                && sees(&group.group_id)
        });
        ListGroupsResponse::default().with_groups(matching.map(to_listed_group).collect())
    }
}

/// An empty filter matches all. An unknown name is no error, as in Kafka.
fn matches_filter(filter: &[StrBytes], name: &str) -> bool {
    filter.is_empty()
        || filter.iter().any(|filter_name| filter_name.trim().eq_ignore_ascii_case(name))
}

fn to_listed_group(group: GroupOverview) -> Listed {
    Listed::default()
        .with_group_id(GroupId(StrBytes::from_string(group.group_id)))
        .with_protocol_type(StrBytes::from_string(group.protocol_type))
        .with_group_state(StrBytes::from_static_str(group.state))
        .with_group_type(StrBytes::from_static_str(group.group_type.name()))
}

#[cfg(test)]
mod tests {
    use super::super::join_group::test_kafka_api::TestKafkaApi;
    use super::*;

    async fn ids(
        api: &TestKafkaApi,
        states: &[&'static str],
        types: &[&'static str],
    ) -> Vec<String> {
        let names = |names: &[&'static str]| {
            names.iter().map(|name| StrBytes::from_static_str(name)).collect()
        };
        let request = ListGroupsRequest::default()
            .with_states_filter(names(states))
            .with_types_filter(names(types));
        let groups = api.ask(5, request).await.groups;
        groups.iter().map(|group| group.group_id.to_string()).collect()
    }

    #[tokio::test]
    async fn every_version_lists_every_group() {
        let api = TestKafkaApi::new();
        api.stable_group("g").await;
        for version in 0..=5 {
            let answer = api.ask(version, ListGroupsRequest::default()).await;
            assert_eq!((answer.error_code, answer.groups.len()), (0, 1));
            let group = &answer.groups[0];
            assert_eq!(group.group_id.as_str(), "g");
            assert_eq!(group.protocol_type.as_str(), "consumer");
            assert_eq!(group.group_state.as_str(), if version < 4 { "" } else { "Stable" });
            assert_eq!(group.group_type.as_str(), if version < 5 { "" } else { "classic" });
        }
    }

    #[tokio::test]
    async fn filters_take_names_in_any_case() {
        let api = TestKafkaApi::new();
        api.stable_group("stable").await;
        api.kafka.coordinators.groups.restore_without_members("empty");
        assert_eq!(ids(&api, &[], &[]).await, ["empty", "stable"]);
        assert_eq!(ids(&api, &["sTABLE"], &["CLASSIC"]).await, ["stable"]);
        assert_eq!(ids(&api, &["Dead", " empty"], &[]).await, ["empty"]);
        assert_eq!(ids(&api, &["nonsense"], &[]).await, [""; 0]);
        assert_eq!(ids(&api, &[], &["consumer"]).await, [""; 0]);
        assert_eq!(ids(&api, &[], &["consumer", "classic"]).await, ["empty", "stable"]);
    }
}
