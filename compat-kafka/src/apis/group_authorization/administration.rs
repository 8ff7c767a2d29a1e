//! Coordinators, and what administrators ask of groups.

use kafka_protocol::messages::{
    DeleteGroupsRequest, DescribeGroupsRequest, FindCoordinatorRequest, ListGroupsRequest,
};

use super::super::join_group::test_kafka_api::group_id;
use super::*;

const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const SHARE: i8 = 2;
const TRANSACTION_REFUSED: i16 = 53;
const CLUSTER_REFUSED: i16 = 31;
const INVALID_REQUEST: i16 = 42;

/// The codes of a coordinator by each version that can ask for it.
async fn coordinator_codes(guarded: &GuardedKafkaApi, key: &str, key_type: i8) -> Vec<i16> {
    let mut codes = Vec::new();
    for version in [3, 4, 6] {
        let request = FindCoordinatorRequest::default().with_key_type(key_type);
        let answer = match version {
            3 => guarded.ask(version, request.with_key(text(key))).await,
            _ => guarded.ask(version, request.with_coordinator_keys(vec![text(key)])).await,
        };
        let code = answer
            .coordinators
            .first()
            .map_or(answer.error_code, |coordinator| coordinator.error_code);
        let node =
            answer.coordinators.first().map_or(answer.node_id, |coordinator| coordinator.node_id);
        assert_eq!(node.0 == -1, code != 0, "{code}");
        codes.push(code);
    }
    codes
}

#[tokio::test]
async fn coordinators_are_found_by_those_who_may_describe_what_they_coordinate() {
    let guarded = GuardedKafkaApi::new();
    assert_eq!(coordinator_codes(&guarded, "g", GROUP).await, [GROUP_REFUSED; 3]);
    assert_eq!(coordinator_codes(&guarded, "x", TRANSACTION).await, [TRANSACTION_REFUSED; 3]);
    let share = coordinator_codes(&guarded, "g:t:0", SHARE).await;
    assert_eq!(share, [INVALID_REQUEST, INVALID_REQUEST, CLUSTER_REFUSED]);
    guarded.allow(Operation::Describe, Resource::group("g")).await;
    guarded.allow(Operation::Write, Resource::transactional_id("x")).await;
    guarded.allow(Operation::ClusterAction, Resource::CLUSTER).await;
    assert_eq!(coordinator_codes(&guarded, "g", GROUP).await, [0; 3]);
    assert_eq!(coordinator_codes(&guarded, "x", TRANSACTION).await, [0; 3]);
    assert_eq!(coordinator_codes(&guarded, "g:t:0", SHARE).await, [INVALID_REQUEST; 3]);
    let keys = ["g", "other"].map(text).to_vec();
    let request = FindCoordinatorRequest::default().with_coordinator_keys(keys);
    let coordinators = guarded.ask(6, request).await.coordinators;
    assert_eq!((coordinators[0].error_code, coordinators[1].error_code), (0, GROUP_REFUSED));
    assert_eq!(coordinators[1].error_message.as_deref(), Some("Group authorization failed."));
}

#[tokio::test]
async fn lists_have_the_groups_that_the_client_may_describe() {
    let guarded = GuardedKafkaApi::new();
    for group in ["g", "other"] {
        guarded.api.kafka.coordinators.groups.restore_without_members(group);
    }
    let list = async || {
        let groups = guarded.ask(5, ListGroupsRequest::default()).await.groups;
        groups.iter().map(|group| group.group_id.to_string()).collect::<Vec<_>>()
    };
    assert!(list().await.is_empty());
    guarded.allow(Operation::Delete, Resource::group("g")).await;
    assert_eq!(list().await, ["g"]);
    guarded.allow(Operation::Describe, Resource::CLUSTER).await;
    assert_eq!(list().await, ["g", "other"]);
}

#[tokio::test]
async fn classic_groups_are_described_with_what_the_client_may_do_to_them() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.stable_group("g").await;
    let request = || {
        DescribeGroupsRequest::default()
            .with_groups(vec![group_id("g"), group_id("x")])
            .with_include_authorized_operations(true)
    };
    let groups = guarded.ask(6, request()).await.groups;
    for group in &groups {
        assert_eq!((group.error_code, group.group_state.as_str()), (GROUP_REFUSED, ""));
        assert_eq!((group.error_message.as_deref(), group.members.len()), (None, 0));
        assert_eq!(group.authorized_operations, i32::MIN);
    }
    guarded.allow(Operation::Describe, Resource::group("g")).await;
    guarded.allow(Operation::Delete, Resource::group("g")).await;
    let group = guarded.ask(6, request()).await.groups.remove(0);
    assert_eq!((group.error_code, group.members.len()), (0, 1));
    let operations = [Operation::Describe, Operation::Delete];
    let bits = operations.iter().map(|operation| 1 << operation.code()).sum::<i32>();
    assert_eq!(group.authorized_operations, bits);
}

#[tokio::test]
async fn groups_are_deleted_by_those_who_may() {
    let guarded = GuardedKafkaApi::new();
    for group in ["g", "other"] {
        guarded.api.kafka.coordinators.groups.restore_without_members(group);
    }
    let names = ["g", "other", "g", "x"].map(group_id).to_vec();
    let request = || DeleteGroupsRequest::default().with_groups_names(names.clone());
    let codes = async || {
        let results = guarded.ask(2, request()).await.results;
        results.iter().map(|result| result.error_code).collect::<Vec<_>>()
    };
    guarded.allow(Operation::Read, Resource::group("g")).await;
    assert_eq!(codes().await, [GROUP_REFUSED; 3]);
    guarded.allow(Operation::Delete, Resource::group("g")).await;
    assert_eq!(codes().await, [0, GROUP_REFUSED, GROUP_REFUSED]);
    assert!(
        guarded.api.kafka.coordinators.groups.contains("other")
            && !guarded.api.kafka.coordinators.groups.contains("g")
    );
}
