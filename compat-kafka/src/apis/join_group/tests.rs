use std::sync::Arc;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::leave_group_request::MemberIdentity;
use kafka_protocol::messages::sync_group_request::SyncGroupRequestAssignment;
use kafka_protocol::messages::{HeartbeatRequest, LeaveGroupRequest, SyncGroupRequest};

use super::test_kafka_api::{PROTOCOL, TestKafkaApi, group_id, join_request};
use super::*;

const ASSIGNMENT: &[u8] = b"yours";

fn sync_request(joined: &JoinGroupResponse, version: i16) -> SyncGroupRequest {
    let assignment = SyncGroupRequestAssignment::default()
        .with_member_id(joined.member_id.clone())
        .with_assignment(ASSIGNMENT.into());
    let request = SyncGroupRequest::default()
        .with_group_id(group_id("g"))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
        .with_assignments(vec![assignment]);
    if version < 5 {
        return request;
    }
    request
        .with_protocol_type(Some(StrBytes::from_static_str("consumer")))
        .with_protocol_name(Some(StrBytes::from_static_str(PROTOCOL)))
}

fn heartbeat_request(joined: &JoinGroupResponse) -> HeartbeatRequest {
    HeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_generation_id(joined.generation_id)
        .with_member_id(joined.member_id.clone())
}

fn leave_request(member_id: StrBytes, version: i16) -> LeaveGroupRequest {
    let request = LeaveGroupRequest::default().with_group_id(group_id("g"));
    if version < 3 {
        return request.with_member_id(member_id);
    }
    request.with_members(vec![MemberIdentity::default().with_member_id(member_id)])
}

#[tokio::test]
async fn a_member_joins_syncs_beats_and_leaves_in_every_version() {
    for version in 0..=9 {
        let api = TestKafkaApi::new();
        let joined = api.join(version, "g").await;
        assert_eq!((joined.error_code, joined.generation_id), (0, 1), "version {version}");
        assert_eq!(joined.leader, joined.member_id);
        assert!(joined.member_id.starts_with("test-"));
        assert_eq!(joined.protocol_name.as_deref(), Some(PROTOCOL));
        assert_eq!(joined.protocol_type.as_deref(), (version >= 7).then_some("consumer"));
        assert_eq!(joined.members.len(), 1);

        let sync_version = version.min(5);
        let synced = api.ask(sync_version, sync_request(&joined, sync_version)).await;
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, ASSIGNMENT));
        assert_eq!(synced.protocol_name.as_deref(), (sync_version >= 5).then_some(PROTOCOL));

        let answer = api.ask(version.min(4), heartbeat_request(&joined)).await;
        assert_eq!(answer.error_code, 0);

        let leave_version = version.min(5);
        let leave = leave_request(joined.member_id.clone(), leave_version);
        let answer = api.ask(leave_version, leave.clone()).await;
        assert_eq!(answer.error_code, 0);
        let repeated = api.ask(leave_version, leave).await;
        let unknown = ResponseError::UnknownMemberId.code();
        if leave_version < 3 {
            assert_eq!(repeated.error_code, unknown);
        } else {
            assert_eq!((repeated.error_code, repeated.members[0].error_code), (0, unknown));
            assert_eq!(repeated.members[0].member_id, joined.member_id);
        }
    }
}

#[test]
fn the_first_version_has_no_rebalance_timeout_but_the_sessions() {
    let context = |version| RequestContext {
        api_key: 11,
        version,
        correlation_id: 0,
        client_id: "c".to_owned(),
        peer: "[::ffff:10.1.2.3]:4".parse().unwrap(),
        local: "127.0.0.1:1".parse().unwrap(),
        connection: crate::request::ConnectionState::for_test(),
        received_at: tokio::time::Instant::now(),
        quota: None,
    };
    let old = to_join_request(join_request("g", 0), &context(0));
    assert_eq!(old.rebalance_timeout, Duration::from_secs(10));
    assert!(!old.require_known_member_id && !old.supports_skip_assignment);
    let new = to_join_request(join_request("g", 9), &context(9));
    assert_eq!(new.rebalance_timeout, Duration::from_secs(20));
    assert!(new.require_known_member_id && new.supports_skip_assignment);
    assert_eq!(new.client_host, "/10.1.2.3");
}

#[tokio::test]
async fn a_refused_join_is_an_answer_in_every_version() {
    let api = TestKafkaApi::new();
    for version in 0..=9 {
        let short_timeout = join_request("g", version).with_session_timeout_ms(-1);
        let answer = api.ask(version, short_timeout).await;
        assert_eq!(answer.error_code, ResponseError::InvalidSessionTimeout.code());
        assert_eq!(answer.generation_id, -1);
        assert_eq!(answer.protocol_name.as_deref(), (version < 7).then_some(""));
        let answer = api.ask(version, join_request("", version)).await;
        assert_eq!(answer.error_code, ResponseError::InvalidGroupId.code());
    }
}

#[tokio::test]
async fn a_static_member_joins_at_once_and_fences_who_held_its_name() {
    let api = TestKafkaApi::new();
    let instance = Some(StrBytes::from_static_str("i"));
    let request = join_request("g", 9).with_group_instance_id(instance.clone());
    let first = api.ask(9, request.clone()).await;
    assert_eq!(first.error_code, 0);
    assert_eq!(first.members[0].group_instance_id, instance);
    api.ask(5, sync_request(&first, 5).with_group_instance_id(instance.clone())).await;
    let second = api.ask(9, request).await;
    assert_eq!((second.error_code, second.generation_id), (0, 1));
    let beat = heartbeat_request(&first).with_group_instance_id(instance);
    assert_eq!(api.ask(4, beat).await.error_code, ResponseError::FencedInstanceId.code());
}

#[tokio::test]
async fn the_newest_sync_must_say_which_protocol_it_knows() {
    let api = TestKafkaApi::new();
    let joined = api.join(9, "g").await;
    let silent = sync_request(&joined, 4);
    let answer = api.ask(5, silent.clone()).await;
    assert_eq!(answer.error_code, ResponseError::InconsistentGroupProtocol.code());
    let other_protocol =
        sync_request(&joined, 5).with_protocol_name(Some(StrBytes::from_static_str("x")));
    let answer = api.ask(5, other_protocol).await;
    assert_eq!(answer.error_code, ResponseError::InconsistentGroupProtocol.code());
    assert_eq!(api.ask(4, silent).await.error_code, 0);
}

#[tokio::test]
async fn strangers_are_refused() {
    let api = TestKafkaApi::new();
    let member = api.stable_group("g").await;
    let mut joined = JoinGroupResponse::default()
        .with_member_id(member.id)
        .with_generation_id(member.generation + 1);
    let code = |error: ResponseError| error.code();
    let beat = api.ask(4, heartbeat_request(&joined)).await;
    assert_eq!(beat.error_code, code(ResponseError::IllegalGeneration));
    let sync = api.ask(5, sync_request(&joined, 5)).await;
    assert_eq!(sync.error_code, code(ResponseError::IllegalGeneration));
    joined.member_id = StrBytes::from_static_str("x");
    let beat = api.ask(4, heartbeat_request(&joined)).await;
    assert_eq!(beat.error_code, code(ResponseError::UnknownMemberId));
    let nowhere = heartbeat_request(&joined).with_group_id(group_id("nowhere"));
    assert_eq!(api.ask(4, nowhere).await.error_code, code(ResponseError::UnknownMemberId));
}

#[tokio::test]
async fn several_leave_at_once_and_each_hears_of_itself() {
    let api = TestKafkaApi::new();
    let member = api.stable_group("g").await;
    let leaving = [member.id.clone(), StrBytes::from_static_str("x")]
        .map(|id| MemberIdentity::default().with_member_id(id));
    let request =
        LeaveGroupRequest::default().with_group_id(group_id("g")).with_members(leaving.to_vec());
    let answer = api.ask(5, request.clone()).await;
    let codes: Vec<i16> = answer.members.iter().map(|member| member.error_code).collect();
    assert_eq!((answer.error_code, codes), (0, vec![0, ResponseError::UnknownMemberId.code()]));
    let answer = api.ask(3, request.with_group_id(group_id(""))).await;
    assert_eq!(answer.error_code, ResponseError::InvalidGroupId.code());
    assert!(answer.members.is_empty());
}

#[tokio::test]
async fn who_waits_is_answered_when_the_server_closes() {
    let api = Arc::new(TestKafkaApi::new());
    api.stable_group("g").await;
    let waiting = tokio::spawn({
        let api = Arc::clone(&api);
        async move { api.join(9, "g").await }
    });
    // Until the group has the waiting member.
    let gathers = async {
        while api.kafka.coordinators.groups.describe("g").unwrap().state.name() == "Stable" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gathers).await.unwrap();
    api.kafka.close();
    let answer = waiting.await.unwrap();
    assert_eq!(answer.error_code, ResponseError::CoordinatorNotAvailable.code());
}
