//! Members of classic groups and of the consumer protocol.

use kafka_protocol::messages::join_group_response::JoinGroupResponse;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::{
    ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse,
    HeartbeatRequest, LeaveGroupRequest, SyncGroupRequest,
};

use super::super::join_group::test_kafka_api::{group_id, join_request, topic_name};
use super::*;

const MEMBER_ID_REQUIRED: i16 = 79;

fn sync(joined: &JoinGroupResponse) -> SyncGroupRequest {
    SyncGroupRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(joined.member_id.clone())
        .with_generation_id(joined.generation_id)
        .with_protocol_type(Some(text("consumer")))
        .with_protocol_name(joined.protocol_name.clone())
}

fn alive(joined: &JoinGroupResponse) -> HeartbeatRequest {
    HeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(joined.member_id.clone())
        .with_generation_id(joined.generation_id)
}

fn leave(joined: &JoinGroupResponse) -> LeaveGroupRequest {
    let member = MemberIdentity::default().with_member_id(joined.member_id.clone());
    LeaveGroupRequest::default().with_group_id(group_id("g")).with_members(vec![member])
}

fn heartbeat(member: &str) -> ConsumerGroupHeartbeatRequest {
    ConsumerGroupHeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(text(member))
        .with_rebalance_timeout_ms(1000)
        .with_topic_partitions(Some(Vec::new()))
}

fn join(member: &str, topics: &[&str]) -> ConsumerGroupHeartbeatRequest {
    let topics = topics.iter().map(|name| topic_name(name)).collect();
    heartbeat(member).with_subscribed_topic_names(Some(topics))
}

fn join_regex(member: &str, regex: &str) -> ConsumerGroupHeartbeatRequest {
    heartbeat(member)
        .with_subscribed_topic_names(None)
        .with_subscribed_topic_regex(Some(text(regex)))
}

fn beat(member: &str, epoch: i32) -> ConsumerGroupHeartbeatRequest {
    heartbeat(member)
        .with_member_epoch(epoch)
        .with_rebalance_timeout_ms(-1)
        .with_subscribed_topic_names(None)
        .with_topic_partitions(None)
}

fn assigned(guarded: &GuardedKafkaApi, answer: &ConsumerGroupHeartbeatResponse) -> Vec<String> {
    let topics = &answer.assignment.as_ref().expect("an assignment").topic_partitions;
    let name = |id: uuid::Uuid| guarded.api.kafka.topics.name_of(id.as_bytes()).unwrap();
    let mut names: Vec<String> = topics.iter().map(|topic| name(topic.topic_id)).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn a_client_that_may_not_read_a_group_is_no_member_of_it() {
    let guarded = GuardedKafkaApi::new();
    for version in [0, 6, 9] {
        let refused = guarded.ask(version, join_request("g", version)).await;
        assert_eq!((refused.error_code, refused.generation_id), (GROUP_REFUSED, -1));
        let protocol = (version < 7).then_some("");
        assert_eq!((refused.protocol_name.as_deref(), refused.member_id.as_str()), (protocol, ""));
    }
    let joined = JoinGroupResponse::default().with_protocol_name(Some(text("range")));
    assert_eq!(guarded.ask(5, sync(&joined)).await.error_code, GROUP_REFUSED);
    assert_eq!(guarded.ask(4, alive(&joined)).await.error_code, GROUP_REFUSED);
    let answer = guarded.ask(5, leave(&joined)).await;
    assert_eq!((answer.error_code, answer.members.len()), (GROUP_REFUSED, 0));
    assert!(guarded.api.kafka.coordinators.groups.list().is_empty(), "nothing was done");
    // A request without its protocol type is refused before authorization.
    let unnamed = sync(&JoinGroupResponse::default());
    let inconsistent = guarded.ask(5, unnamed.with_protocol_type(None)).await.error_code;
    assert_eq!(inconsistent, kafka_protocol::ResponseError::InconsistentGroupProtocol.code());
}

#[tokio::test]
async fn a_rule_that_is_revoked_ends_the_session_of_a_member() {
    let guarded = GuardedKafkaApi::new();
    guarded.allow(Operation::Read, Resource::group("g")).await;
    let challenge = guarded.ask(9, join_request("g", 9)).await;
    assert_eq!(challenge.error_code, MEMBER_ID_REQUIRED);
    let joined = guarded.ask(9, join_request("g", 9).with_member_id(challenge.member_id)).await;
    assert_eq!(joined.error_code, 0);
    assert_eq!(guarded.ask(5, sync(&joined)).await.error_code, 0);
    let before = guarded.authorizations();
    assert_eq!(guarded.ask(4, alive(&joined)).await.error_code, 0);
    assert_eq!(guarded.authorizations() - before, 1, "the group alone");
    guarded.revoke(Operation::Read, Resource::group("g")).await;
    assert_eq!(guarded.ask(4, alive(&joined)).await.error_code, GROUP_REFUSED);
    guarded.allow(Operation::Read, Resource::group("g")).await;
    assert_eq!(guarded.ask(5, leave(&joined)).await.members[0].error_code, 0);
}

#[tokio::test]
async fn a_member_of_the_consumer_protocol_names_topics_that_it_may_describe() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    guarded.api.topic("other", 1).await;
    let moment = guarded.moment_of("t").await;
    let refused = guarded.ask(1, join("m", &["t"])).await;
    assert_eq!((refused.error_code, refused.error_message), (GROUP_REFUSED, None));
    guarded.allow(Operation::Read, Resource::group("g")).await;
    for topics in [["t", "t"], [&moment, &moment], ["gone", "gone"]] {
        let refused = guarded.ask(1, join("m", &topics)).await;
        assert_eq!((refused.error_code, refused.error_message), (TOPIC_REFUSED, None));
    }
    guarded.allow(Operation::Describe, Resource::topic("t")).await;
    assert_eq!(guarded.ask(1, join("m", &["t", "other"])).await.error_code, TOPIC_REFUSED);
    assert!(guarded.api.kafka.coordinators.groups.list().is_empty(), "nobody has joined");
    let joined = guarded.ask(1, join("m", &["t", &moment])).await;
    assert_eq!((joined.error_code, joined.member_epoch), (0, 1));
    assert_eq!(assigned(&guarded, &joined), ["t", &moment]);

    let before = guarded.authorizations();
    assert_eq!(guarded.ask(1, beat("m", 1)).await.error_code, 0);
    assert_eq!(guarded.authorizations() - before, 1, "the group alone");
    guarded.revoke(Operation::Read, Resource::group("g")).await;
    let refused = guarded.ask(1, beat("m", 1)).await;
    assert_eq!((refused.error_code, refused.member_epoch), (GROUP_REFUSED, 0));
    assert_eq!(guarded.ask(1, beat("m", -1)).await.error_code, GROUP_REFUSED);
}

#[tokio::test]
async fn a_regular_expression_finds_what_its_member_may_describe() {
    let guarded = GuardedKafkaApi::new();
    for topic in ["a-seen", "a-hidden", "b"] {
        guarded.api.topic(topic, 1).await;
    }
    guarded.allow(Operation::Read, Resource::group("g")).await;
    guarded.allow(Operation::Read, Resource::topic("a-seen")).await;
    let joined = guarded.ask(1, join_regex("m", "a-.*")).await;
    assert_eq!((joined.error_code, assigned(&guarded, &joined)), (0, vec!["a-seen".to_owned()]));
    let before = guarded.authorizations();
    assert_eq!(guarded.ask(1, beat("m", 1)).await.error_code, 0);
    assert_eq!(guarded.authorizations() - before, 1, "the topics are known");

    // The members are unknown after a restart: the first of them that comes back resolves it again.
    let guarded = guarded.restart();
    let alive = guarded.ask(1, beat("m", 1)).await;
    assert_eq!((alive.error_code, alive.member_epoch, alive.assignment), (0, 1, None));
    let full = join_regex("m", "a-.*").with_member_epoch(1);
    assert_eq!(assigned(&guarded, &guarded.ask(1, full).await), ["a-seen"]);
}

#[tokio::test]
async fn a_group_with_topics_that_a_client_may_not_describe_is_hidden() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    assert_eq!(guarded.api.ask(1, join("m", &["t"])).await.error_code, 0);
    let request = || {
        ConsumerGroupDescribeRequest::default()
            .with_group_ids(vec![group_id("g"), group_id("x")])
            .with_include_authorized_operations(true)
    };
    let groups = guarded.ask(1, request()).await.groups;
    let errors = groups.iter().map(|group| (group.error_code, group.error_message.clone()));
    assert_eq!(errors.collect::<Vec<_>>(), [(GROUP_REFUSED, None), (GROUP_REFUSED, None)]);
    guarded.allow(Operation::Describe, Resource::group("g")).await;
    let group = guarded.ask(1, request()).await.groups.remove(0);
    let message = "The group has described topic(s) that the client is not authorized to describe.";
    assert_eq!((group.error_code, group.error_message.as_deref()), (TOPIC_REFUSED, Some(message)));
    assert_eq!((group.members.len(), group.authorized_operations), (0, i32::MIN));
    guarded.allow(Operation::Describe, Resource::topic("t")).await;
    let group = guarded.ask(1, request()).await.groups.remove(0);
    assert_eq!((group.error_code, group.members.len()), (0, 1));
    assert_eq!(group.authorized_operations, 1 << Operation::Describe.code());
}
