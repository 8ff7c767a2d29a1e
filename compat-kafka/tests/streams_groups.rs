//! Streams groups (KIP-1071) on the wire: internal topics, what a restart leaves, what a moment
//! shows, and what is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use compat_kafka::KafkaOptions;
use engine::WaitPolicy;
use hlc::Cut;
use kafka_groups::{StoredStreamsGroup, StreamsGroupState};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::*;
use storage::disk::MemoryDisk;
use testkit::kafka::{TestKafkaConnection, TestKafkaServer};
use testkit::requests::{str_bytes, topic_name};
use testkit::streams::{TestStreamsHeartbeat, TestTopology, body_of, describe_streams_frame};

fn options() -> KafkaOptions {
    let mut options = KafkaOptions::default();
    options.groups.streams.initial_rebalance_delay = Duration::ZERO;
    options
}

async fn server_on(disk: Arc<MemoryDisk>) -> TestKafkaServer {
    TestKafkaServer::start(disk, options(), 64 << 20).await
}

async fn create(server: &TestKafkaServer, name: &str, id: u8, partitions: u32) {
    let topics = server.engine.topics();
    topics.create(name, partitions, BTreeMap::new(), [id; 16], false).await.unwrap();
}

fn topology(source: &str) -> TestTopology {
    TestTopology::counting(source, "app-repartition", "app-changelog")
}

fn joining(member: &str) -> TestStreamsHeartbeat {
    TestStreamsHeartbeat {
        group: "app".to_owned(),
        member: member.to_owned(),
        topology: Some(topology("t")),
        owned: Some(Vec::new()),
        ..TestStreamsHeartbeat::default()
    }
}

fn alive(member: &str, epoch: i32) -> TestStreamsHeartbeat {
    TestStreamsHeartbeat { epoch, topology: None, owned: None, ..joining(member) }
}

/// A member that has joined, with its tasks.
async fn join(connection: &mut TestKafkaConnection, member: &str) -> i32 {
    let first = connection.streams_heartbeat(&joining(member)).await.unwrap();
    assert_eq!(first.error, 0, "{first:?}");
    let second = connection.streams_heartbeat(&alive(member, first.epoch)).await.unwrap();
    assert_eq!((second.error, second.statuses.len()), (0, 0), "{second:?}");
    second.epoch
}

#[tokio::test(flavor = "multi_thread")]
async fn internal_topics_are_made_and_tasks_follow() {
    let server = server_on(Arc::new(MemoryDisk::new())).await;
    create(&server, "t", 1, 3).await;
    let mut connection = server.connect().await;
    let first = connection.streams_heartbeat(&joining("m")).await.unwrap();
    let detail = "Internal topics are missing: app-changelog, app-repartition";
    assert_eq!(first.statuses, [(3, detail.to_owned())]);
    assert_eq!(first.active, Some(Vec::new()));
    let topics = server.engine.topics();
    for (name, policy) in [("app-changelog", "compact"), ("app-repartition", "delete")] {
        let topic = topics.named(name).unwrap();
        assert_eq!(topic.partitions.len(), 3);
        assert_eq!(topic.config.overrides().get("cleanup.policy").unwrap(), policy);
    }
    let second = connection.streams_heartbeat(&alive("m", first.epoch)).await.unwrap();
    let all = |id: &str| (id.to_owned(), vec![0, 1, 2]);
    assert_eq!(second.active, Some(vec![all("0"), all("1")]));
    assert_eq!((second.statuses, second.standby), (Vec::new(), Some(Vec::new())));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_prevents_an_internal_topic_is_told() {
    let server = server_on(Arc::new(MemoryDisk::new())).await;
    create(&server, "t", 1, 3).await;
    // Kafka takes no two topics that differ in these signs alone.
    create(&server, "app_changelog", 2, 1).await;
    let mut request = joining("m");
    request.topology.as_mut().unwrap().0[1].changelog = Some("app.changelog".to_owned());
    let answer = server.connect().await.streams_heartbeat(&request).await.unwrap();
    let (code, detail) = &answer.statuses[0];
    assert_eq!(*code, 3);
    assert!(
        detail.contains("Creation failed: app.changelog (Topic 'app.changelog' collides"),
        "{detail}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_survives_a_restart_and_can_be_read_as_of_a_moment() {
    let disk = Arc::new(MemoryDisk::new());
    let (epoch, before) = {
        let server = server_on(Arc::clone(&disk)).await;
        create(&server, "t", 1, 2).await;
        let before = Cut::through(server.engine.frontier());
        (join(&mut server.connect().await, "m").await, before)
    };
    let server = server_on(disk).await;
    let mut connection = server.connect().await;
    let answer = connection.streams_heartbeat(&alive("m", epoch)).await.unwrap();
    assert_eq!((answer.error, answer.epoch, answer.active), (0, epoch, None));
    let at = Cut::through(server.engine.frontier());
    let groups = server.engine.groups();
    let (_, _, found) = groups.at(Some("app"), at, WaitPolicy::Refuse).await.unwrap();
    let stored = StoredStreamsGroup::decode(&found[0].snapshot.as_ref().unwrap().1).unwrap();
    assert_eq!(stored.state(), StreamsGroupState::Stable);
    let reads = stored.reads(&stored.members["m"]);
    assert_eq!(reads.keys().collect::<Vec<_>>(), ["app-repartition", "t"]);
    assert_eq!(stored.topology.unwrap().subtopologies.len(), 2);
    let (_, _, found) = groups.at(Some("app"), before, WaitPolicy::Refuse).await.unwrap();
    assert_eq!(found.len(), 0, "there was no such group yet");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_classic_group_without_members_goes_over_and_keeps_its_offsets() {
    let server = server_on(Arc::new(MemoryDisk::new())).await;
    create(&server, "t", 1, 1).await;
    let mut connection = server.connect().await;
    let commit = |member: &str, epoch: i32| {
        let partition =
            offset_commit_request::OffsetCommitRequestPartition::default().with_committed_offset(5);
        let topic = offset_commit_request::OffsetCommitRequestTopic::default()
            .with_name(topic_name("t"))
            .with_partitions(vec![partition]);
        OffsetCommitRequest::default()
            .with_group_id(GroupId(str_bytes("app")))
            .with_member_id(str_bytes(member))
            .with_generation_id_or_member_epoch(epoch)
            .with_topics(vec![topic])
    };
    let code = |answer: OffsetCommitResponse| answer.topics[0].partitions[0].error_code;
    let committed = connection.ask(9, &commit("", -1)).await.unwrap();
    assert_eq!(code(committed), 0);
    let epoch = join(&mut connection, "m").await;
    let fetch = OffsetFetchRequest::default().with_groups(vec![
        offset_fetch_request::OffsetFetchRequestGroup::default()
            .with_group_id(GroupId(str_bytes("app")))
            .with_topics(None),
    ]);
    let offsets = connection.ask(9, &fetch).await.unwrap();
    assert_eq!(offsets.groups[0].topics[0].partitions[0].committed_offset, 5);
    for (member, at, expected) in [
        ("m", epoch, 0),
        ("m", epoch + 1, ResponseError::StaleMemberEpoch.code()),
        ("x", epoch, ResponseError::UnknownMemberId.code()),
    ] {
        let answer = connection.ask(9, &commit(member, at)).await.unwrap();
        assert_eq!(code(answer), expected, "{member} {at}");
    }
    // A group with members is not deleted, and is not another kind of group.
    let delete = DeleteGroupsRequest::default().with_groups_names(vec![GroupId(str_bytes("app"))]);
    let deleted = connection.ask(2, &delete).await.unwrap();
    assert_eq!(deleted.results[0].error_code, ResponseError::NonEmptyGroup.code());
    let listed = connection.ask(5, &ListGroupsRequest::default()).await.unwrap();
    let listed = &listed.groups[0];
    assert_eq!((listed.group_type.as_str(), listed.group_state.as_str()), ("streams", "Stable"));
    let left = connection.streams_heartbeat(&alive("m", -1)).await.unwrap();
    assert_eq!((left.error, left.epoch), (0, -1));
    let deleted = connection.ask(2, &delete).await.unwrap();
    assert_eq!(deleted.results[0].error_code, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_cannot_be_are_refused() {
    let server = server_on(Arc::new(MemoryDisk::new())).await;
    create(&server, "t", 1, 1).await;
    let mut connection = server.connect().await;
    let mut expect = async |request: TestStreamsHeartbeat, error: ResponseError, words: &str| {
        let answer = connection.streams_heartbeat(&request).await.unwrap();
        let message = answer.message.unwrap_or_default();
        assert_eq!((answer.error, message.contains(words)), (error.code(), true), "{message}");
    };
    let with = |change: fn(&mut TestStreamsHeartbeat)| {
        let mut request = joining("m");
        change(&mut request);
        request
    };
    expect(with(|it| it.group.clear()), ResponseError::InvalidGroupId, "empty").await;
    expect(with(|it| it.member.clear()), ResponseError::InvalidRequest, "member").await;
    expect(with(|it| it.epoch = -3), ResponseError::InvalidRequest, "epoch").await;
    expect(alive("m", 1), ResponseError::GroupIdNotFound, "not a streams group").await;
    let prohibited = with(|it| it.topology = Some(topology("__consumer_offsets")));
    expect(prohibited, ResponseError::StreamsInvalidTopology, "prohibited").await;
    let unnamed = with(|it| it.topology = Some(topology("a/b")));
    expect(unnamed, ResponseError::StreamsInvalidTopology, "not valid topic names").await;
    let mut connection = server.connect().await;
    let epoch = join(&mut connection, "m").await;
    let other = with(|it| it.topology.as_mut().unwrap().0[1].changelog = Some("other".to_owned()));
    let refused = connection.streams_heartbeat(&other).await.unwrap();
    assert_eq!(refused.error, ResponseError::InvalidRequest.code());
    assert!(server.engine.topics().named("other").is_none());
    let mut negative = alive("m", epoch);
    negative.owned = Some(vec![("0".to_owned(), vec![-1])]);
    let refused = connection.streams_heartbeat(&negative).await.unwrap();
    assert_eq!(refused.error, ResponseError::InvalidRequest.code());
    // A request that ends early ends its connection, and nothing else.
    let body = joining("n").body();
    for length in 0..body.len() {
        let mut connection = server.connect().await;
        connection.send(&TestStreamsHeartbeat::frame_of(&body[..length])).await.unwrap();
        connection.response_bytes().await.expect_err("the connection ends");
    }
    assert_eq!(connection.streams_heartbeat(&alive("m", epoch)).await.unwrap().error, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_described_each_once_and_unknown_ones_are_named() {
    let server = server_on(Arc::new(MemoryDisk::new())).await;
    create(&server, "t", 1, 1).await;
    let mut connection = server.connect().await;
    join(&mut connection, "m").await;
    connection.send(&describe_streams_frame(&["app", "app", "none"])).await.unwrap();
    let described = body_of(connection.response_bytes().await.unwrap());
    let has = |text: &[u8]| described.windows(text.len()).filter(|part| *part == text).count();
    assert_eq!(described[4], 3, "two groups");
    assert_eq!((has(b"app-changelog"), has(b"Stable"), has(b"Group none not found.")), (1, 1, 1));
}
