//! Groups of the consumer protocol over the wire, and through restarts.

use engine::WaitPolicy;
use history_api::HistoryGroups;
use hlc::Cut;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_groups_response::ListedGroup;
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestGroup;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, DeleteGroupsRequest, DescribeGroupsRequest, JoinGroupRequest,
    ListGroupsRequest, OffsetFetchRequest,
};

use super::super::join_group::test_kafka_api::{TestKafkaApi, group_id, join_request, topic_name};
use super::*;
use crate::history_support::HistoryGroupCoordinator;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn join(member: &str, topics: &[&str]) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(text(member))
        .with_rebalance_timeout_ms(1000)
        .with_subscribed_topic_names(Some(topics.iter().map(|name| topic_name(name)).collect()))
        .with_topic_partitions(Some(Vec::new()))
}

fn beat(member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(text(member))
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(-1)
        .with_subscribed_topic_names(None)
        .with_topic_partitions(None)
}

fn indexes(answer: &ConsumerGroupHeartbeatResponse) -> Vec<Vec<i32>> {
    let assignment = answer.assignment.as_ref().expect("an assignment");
    assignment.topic_partitions.iter().map(|topic| topic.partitions.clone()).collect()
}

async fn listed(api: &TestKafkaApi) -> Vec<ListedGroup> {
    api.ask(5, ListGroupsRequest::default()).await.groups
}

#[tokio::test]
async fn a_member_joins_is_described_and_goes_on_after_a_restart() {
    let api = TestKafkaApi::new();
    api.topic("read", 3).await;
    let joined = api.ask(1, join("m", &["read"])).await;
    assert_eq!((joined.error_code, joined.member_epoch), (0, 1));
    assert_eq!((indexes(&joined), joined.heartbeat_interval_ms), (vec![vec![0, 1, 2]], 5000));
    let api = api.restart();
    let alive = api.ask(1, beat("m", 1)).await;
    assert_eq!((alive.error_code, alive.member_epoch, alive.assignment), (0, 1, None));
    let request = ConsumerGroupDescribeRequest::default()
        .with_group_ids(vec![group_id("g")])
        .with_include_authorized_operations(true);
    let group = api.ask(1, request).await.groups.remove(0);
    assert_eq!((group.error_code, group.group_state.as_str()), (0, "Stable"));
    assert_eq!((group.group_epoch, group.assignment_epoch), (1, 1));
    assert_eq!((group.assignor_name.as_str(), group.authorized_operations), ("uniform", 0x0d48));
    let member = &group.members[0];
    assert_eq!((member.member_id.as_str(), member.member_epoch, member.member_type), ("m", 1, 1));
    assert_eq!(member.client_host.as_str(), "/10.1.2.3");
    assert_eq!(member.assignment, member.target_assignment);
    assert_eq!(member.assignment.topic_partitions[0].topic_name, topic_name("read"));
    let group = &listed(&api).await[0];
    assert_eq!((group.group_type.as_str(), group.group_state.as_str()), ("consumer", "Stable"));
    let classic = DescribeGroupsRequest::default().with_groups(vec![group_id("g")]);
    let classic = api.ask(6, classic).await.groups.remove(0);
    assert_eq!(classic.error_message.as_deref(), Some("Group g is not a classic group."));
    let delete = || DeleteGroupsRequest::default().with_groups_names(vec![group_id("g")]);
    let refused = api.ask(2, delete()).await.results[0].error_code;
    assert_eq!(refused, ResponseError::NonEmptyGroup.code());
    assert_eq!(api.ask(1, beat("m", -1)).await.error_code, 0);
    assert_eq!(api.ask(2, delete()).await.results[0].error_code, 0);
    assert!(listed(&api.restart()).await.is_empty());
}

#[tokio::test]
async fn a_group_is_shown_as_it_was_at_a_moment() {
    let api = TestKafkaApi::new();
    api.topic("read", 2).await;
    api.ask(1, join("m", &["read"])).await;
    let with_one = api.kafka.engine.frontier();
    api.ask(1, join("n", &["read"])).await;
    api.ask(1, beat("m", -1)).await;
    let history = HistoryGroupCoordinator(Arc::clone(&api.kafka.coordinators.groups));
    let groups = &api.kafka.engine.groups();
    let groups_at =
        async |cut| groups.at(Some("g"), cut, WaitPolicy::Wait(Duration::from_secs(5))).await;
    let (_, _, snapshot) = groups_at(Cut::through(with_one)).await.unwrap();
    let membership = history.membership(&snapshot[0].snapshot.as_ref().unwrap().1).unwrap();
    assert_eq!((membership.group_type.as_str(), membership.state.as_str()), ("consumer", "Stable"));
    assert_eq!((membership.generation, membership.members.len()), (1, 1));
    let reads = membership.members[0].reads.clone().unwrap();
    assert_eq!(reads, [("read".to_owned(), vec![0, 1])].into());
    let (_, _, now) = groups_at(Cut::through(api.kafka.engine.frontier())).await.unwrap();
    let membership = history.membership(&now[0].snapshot.as_ref().unwrap().1).unwrap();
    let ids: Vec<&str> = membership.members.iter().map(|member| member.id.as_str()).collect();
    assert_eq!((ids, membership.state.as_str()), (vec!["n"], "Assigning"));
}

#[tokio::test]
async fn a_moment_of_a_topic_is_a_topic_that_does_not_change() {
    let api = TestKafkaApi::new();
    api.topic("read", 2).await;
    let moment = format!("read.__at.s{}", api.kafka.engine.wall_now().0);
    api.kafka.engine.topics().add_partitions("read", 5, false).await.unwrap();
    let joined = api.ask(1, join("m", &[&moment])).await;
    assert_eq!((joined.error_code, indexes(&joined)), (0, vec![vec![0, 1]]));
    let api = api.restart();
    let alive = api.ask(1, beat("m", 1)).await;
    assert_eq!((alive.error_code, alive.member_epoch, alive.assignment), (0, 1, None));
}

#[tokio::test]
async fn offsets_are_fetched_by_a_member_that_names_its_epoch() {
    let api = TestKafkaApi::new();
    api.topic("read", 2).await;
    api.ask(1, join("m", &["read"])).await;
    let fetch = async |member: Option<&str>, epoch| {
        let group = OffsetFetchRequestGroup::default()
            .with_group_id(group_id("g"))
            .with_member_id(member.map(text))
            .with_member_epoch(epoch)
            .with_topics(None);
        let request = OffsetFetchRequest::default().with_groups(vec![group]);
        api.ask(9, request).await.groups[0].error_code
    };
    assert_eq!(fetch(None, -1).await, 0);
    assert_eq!(fetch(Some("m"), 1).await, 0);
    assert_eq!(fetch(Some("m"), 2).await, ResponseError::StaleMemberEpoch.code());
    assert_eq!(fetch(Some("x"), 1).await, ResponseError::UnknownMemberId.code());
}

#[tokio::test]
async fn wrong_requests_get_kafka_s_errors() {
    let api = TestKafkaApi::new();
    api.topic("read", 1).await;
    let code = async |version, request: ConsumerGroupHeartbeatRequest| {
        api.ask(version, request).await.error_code
    };
    let unknown_group = code(1, beat("m", 1)).await;
    assert_eq!(unknown_group, ResponseError::GroupIdNotFound.code());
    assert_eq!(code(1, join("", &["read"])).await, ResponseError::InvalidRequest.code());
    let created = api.ask(0, join("", &["read"])).await;
    assert_eq!(created.error_code, 0);
    assert!(created.member_id.is_some_and(|id| id.len() == 36), "version 0 makes ids");
    assert_eq!(code(1, beat("x", 1)).await, ResponseError::UnknownMemberId.code());
    let regex = join("n", &[]).with_subscribed_topic_regex(Some(text("(")));
    assert_eq!(code(1, regex).await, ResponseError::InvalidRegularExpression.code());
    let assignor = join("n", &[]).with_server_assignor(Some(text("best")));
    assert_eq!(code(1, assignor).await, ResponseError::UnsupportedAssignor.code());
    let nameless = join("n", &["read"]).with_group_id(group_id(""));
    assert_eq!(code(1, nameless).await, ResponseError::InvalidGroupId.code());
}

/// Kafka answers such a join with INCONSISTENT_GROUP_PROTOCOL.
#[tokio::test]
async fn members_of_another_type_cannot_join_and_do_not_change_the_group() {
    let api = TestKafkaApi::new();
    api.topic("read", 1).await;
    api.ask(1, join("m", &["read"])).await;
    let connect: JoinGroupRequest = join_request("g", 9).with_protocol_type(text("connect"));
    let refused = api.ask(9, connect).await;
    assert_eq!(refused.error_code, ResponseError::InconsistentGroupProtocol.code());
    assert_eq!(api.ask(1, beat("m", 1)).await.error_code, 0);
}
