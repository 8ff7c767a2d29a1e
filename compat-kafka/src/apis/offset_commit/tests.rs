use std::time::Duration;

use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::{OffsetFetchRequest, OffsetFetchResponse};
use kafka_protocol::protocol::StrBytes;

use super::super::join_group::test_kafka_api::{
    TestGroupMember, TestKafkaApi, group_id, topic_name,
};
use super::*;

const FETCH: std::ops::RangeInclusive<i16> = 1..=9;
const NO_OFFSET: (i64, &str) = (-1, "");

fn partition(index: i32, offset: i64, metadata: &str) -> OffsetCommitRequestPartition {
    OffsetCommitRequestPartition::default()
        .with_partition_index(index)
        .with_committed_offset(offset)
        .with_committed_metadata(Some(StrBytes::from_string(metadata.to_owned())))
}

fn commit_request(topics: &[(&str, Vec<OffsetCommitRequestPartition>)]) -> OffsetCommitRequest {
    let topic = |(name, partitions): &(&str, Vec<OffsetCommitRequestPartition>)| {
        OffsetCommitRequestTopic::default()
            .with_name(topic_name(name))
            .with_partitions(partitions.clone())
    };
    let topics = topics.iter().map(topic).collect();
    OffsetCommitRequest::default().with_group_id(group_id("g")).with_topics(topics)
}

fn by(member: &TestGroupMember, request: OffsetCommitRequest) -> OffsetCommitRequest {
    request.with_member_id(member.id.clone()).with_generation_id_or_member_epoch(member.generation)
}

fn codes(response: &OffsetCommitResponse) -> Vec<i16> {
    let topics = response.topics.iter();
    topics.flat_map(|topic| topic.partitions.iter().map(|partition| partition.error_code)).collect()
}

/// The requested offsets of one group, or all of them: topic, partition, offset, metadata.
async fn fetch(
    api: &TestKafkaApi,
    version: i16,
    topics: Option<&[(&str, &[i32])]>,
) -> Vec<(String, i32, i64, String)> {
    let request = fetch_request(version, topics);
    let response = api.ask(version, request).await;
    assert_eq!(response.error_code, 0);
    flat(version, response)
}

fn fetch_request(version: i16, topics: Option<&[(&str, &[i32])]>) -> OffsetFetchRequest {
    if version < 8 {
        let topic = |(name, indexes): &(&str, &[i32])| {
            OffsetFetchRequestTopic::default()
                .with_name(topic_name(name))
                .with_partition_indexes(indexes.to_vec())
        };
        let topics = topics.map(|requested| requested.iter().map(topic).collect());
        return OffsetFetchRequest::default().with_group_id(group_id("g")).with_topics(topics);
    }
    let topic = |(name, indexes): &(&str, &[i32])| {
        OffsetFetchRequestTopics::default()
            .with_name(topic_name(name))
            .with_partition_indexes(indexes.to_vec())
    };
    let topics = topics.map(|requested| requested.iter().map(topic).collect());
    let group = OffsetFetchRequestGroup::default().with_group_id(group_id("g")).with_topics(topics);
    OffsetFetchRequest::default().with_groups(vec![group])
}

fn flat(version: i16, response: OffsetFetchResponse) -> Vec<(String, i32, i64, String)> {
    let mut offsets = Vec::new();
    if version < 8 {
        for topic in response.topics {
            for partition in topic.partitions {
                assert_eq!(partition.error_code, 0);
                let metadata = partition.metadata.unwrap().to_string();
                offsets.push((
                    topic.name.to_string(),
                    partition.partition_index,
                    partition.committed_offset,
                    metadata,
                ));
            }
        }
        return offsets;
    }
    assert_eq!(response.groups.len(), 1);
    assert_eq!((&response.groups[0].group_id, response.groups[0].error_code), (&group_id("g"), 0));
    for topic in &response.groups[0].topics {
        for partition in &topic.partitions {
            assert_eq!(partition.error_code, 0);
            let metadata = partition.metadata.clone().unwrap().to_string();
            let name = topic.name.to_string();
            offsets.push((name, partition.partition_index, partition.committed_offset, metadata));
        }
    }
    offsets
}

fn row(topic: &str, index: i32, (offset, metadata): (i64, &str)) -> (String, i32, i64, String) {
    (topic.to_owned(), index, offset, metadata.to_owned())
}

#[tokio::test]
async fn what_is_committed_in_any_version_is_fetched_in_any() {
    let api = TestKafkaApi::new();
    api.topic("a", 2).await;
    api.topic("b", 1).await;
    for version in 2..=9 {
        let offset = 100 + i64::from(version);
        let request = commit_request(&[
            ("b", vec![partition(0, offset, "")]),
            ("a", vec![partition(1, offset + 1, "note")]),
        ]);
        let committed = api.ask(version, request).await;
        assert_eq!(codes(&committed), [0, 0], "version {version}");
        assert_eq!(committed.topics[0].name, topic_name("b"));
        for version in FETCH {
            let requested: &[(&str, &[i32])] = &[("a", &[1, 0, -1]), ("no", &[7]), ("b", &[0])];
            let expected = [
                row("a", 1, (offset + 1, "note")),
                row("a", 0, NO_OFFSET),
                row("a", -1, NO_OFFSET),
                row("no", 7, NO_OFFSET),
                row("b", 0, (offset, "")),
            ];
            assert_eq!(fetch(&api, version, Some(requested)).await, expected, "version {version}");
            if version >= 2 {
                let expected = [row("a", 1, (offset + 1, "note")), row("b", 0, (offset, ""))];
                assert_eq!(fetch(&api, version, None).await, expected, "version {version}");
            }
        }
    }
}

#[tokio::test]
async fn leader_epochs_are_kept_from_the_version_that_has_them() {
    let api = TestKafkaApi::new();
    api.topic("a", 1).await;
    let commit = partition(0, 5, "").with_committed_leader_epoch(3);
    api.ask(9, commit_request(&[("a", vec![commit])])).await;
    for (version, expected) in [(5, 3), (7, 3), (4, -1)] {
        let request = fetch_request(version, Some(&[("a", &[0])]));
        let response = api.ask(version, request).await;
        assert_eq!(response.topics[0].partitions[0].committed_leader_epoch, expected);
    }
    let response = api.ask(8, fetch_request(8, None)).await;
    assert_eq!(response.groups[0].topics[0].partitions[0].committed_leader_epoch, 3);
}

#[tokio::test]
async fn groups_that_are_asked_for_together_are_answered_apart() {
    let api = TestKafkaApi::new();
    api.topic("a", 1).await;
    api.ask(9, commit_request(&[("a", vec![partition(0, 5, "")])])).await;
    let group =
        |id| OffsetFetchRequestGroup::default().with_group_id(group_id(id)).with_topics(None);
    let request = OffsetFetchRequest::default()
        .with_groups(vec![group("other"), group("g"), group("")])
        .with_require_stable(true);
    let response = api.ask(9, request).await;
    let groups = response.groups.iter();
    let counts: Vec<(&str, usize)> =
        groups.map(|group| (group.group_id.as_str(), group.topics.len())).collect();
    assert_eq!(counts, [("other", 0), ("g", 1), ("", 0)]);
}

#[tokio::test]
async fn what_is_not_there_is_refused_and_the_rest_is_committed() {
    let api = TestKafkaApi::new();
    api.topic("a", 1).await;
    let request = commit_request(&[
        ("no", vec![partition(0, 1, "")]),
        ("a", vec![partition(1, 2, ""), partition(0, 3, ""), partition(-1, 4, "")]),
    ]);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    let committed = api.ask(9, request).await;
    assert_eq!(codes(&committed), [unknown, unknown, 0, unknown]);
    assert_eq!(fetch(&api, 9, None).await, [row("a", 0, (3, ""))]);
}

#[tokio::test]
async fn metadata_that_is_too_long_is_refused_alone() {
    let api = TestKafkaApi::new();
    api.topic("a", 3).await;
    let request = commit_request(&[(
        "a",
        // Eight are allowed, counted as Java counts them.
        vec![partition(0, 1, "123456789"), partition(1, 2, "12345678"), partition(2, 3, "ööööööö")],
    )]);
    let too_large = ResponseError::OffsetMetadataTooLarge.code();
    assert_eq!(codes(&api.ask(9, request).await), [too_large, 0, 0]);
    assert_eq!(
        fetch(&api, 9, None).await,
        [row("a", 1, (2, "12345678")), row("a", 2, (3, "ööööööö"))]
    );
}

#[tokio::test]
async fn no_metadata_is_fetched_as_empty() {
    let api = TestKafkaApi::new();
    api.topic("a", 1).await;
    let commit = partition(0, 1, "").with_committed_metadata(None);
    api.ask(9, commit_request(&[("a", vec![commit])])).await;
    assert_eq!(fetch(&api, 9, None).await, [row("a", 0, (1, ""))]);
}

#[tokio::test]
async fn a_member_of_no_group_gets_the_error_that_its_version_knows() {
    let api = TestKafkaApi::new();
    api.topic("a", 1).await;
    let lost = TestGroupMember { id: StrBytes::from_static_str("m"), generation: 3 };
    let request = by(&lost, commit_request(&[("a", vec![partition(0, 1, "")]), ("no", vec![])]));
    for version in 2..9 {
        let codes = codes(&api.ask(version, request.clone()).await);
        assert_eq!(codes, [ResponseError::IllegalGeneration.code()], "version {version}");
    }
    let codes = codes(&api.ask(9, request).await);
    assert_eq!(codes, [ResponseError::GroupIdNotFound.code()]);
    assert_eq!(fetch(&api, 9, None).await, []);
}

#[tokio::test]
async fn a_group_with_members_takes_offsets_from_its_members_alone() {
    let api = TestKafkaApi::new();
    api.topic("a", 1).await;
    let member = api.stable_group("g").await;
    let request = commit_request(&[("a", vec![partition(0, 1, "")])]);
    let refused = api.ask(9, request.clone()).await;
    assert_eq!(codes(&refused), [ResponseError::UnknownMemberId.code()]);
    let old = TestGroupMember { id: member.id.clone(), generation: member.generation - 1 };
    let refused = api.ask(9, by(&old, request.clone())).await;
    assert_eq!(codes(&refused), [ResponseError::IllegalGeneration.code()]);
    assert_eq!(fetch(&api, 9, None).await, []);
    assert_eq!(codes(&api.ask(9, by(&member, request)).await), [0]);
    assert_eq!(fetch(&api, 9, None).await, [row("a", 0, (1, ""))]);
}

#[tokio::test]
async fn an_unknown_topic_is_named_before_the_fence_is_asked() {
    let api = TestKafkaApi::new();
    api.stable_group("g").await;
    let refused = api.ask(9, commit_request(&[("no", vec![partition(0, 1, "")])])).await;
    assert_eq!(codes(&refused), [ResponseError::UnknownTopicOrPartition.code()]);
    assert!(api.ask(9, commit_request(&[])).await.topics.is_empty());
}

#[tokio::test]
async fn a_moment_of_a_topic_has_offsets_of_its_own() {
    let api = TestKafkaApi::new();
    api.topic("a", 1).await;
    let engine = &api.kafka.engine;
    let created = engine.topics().named("a").unwrap().created.time();
    while engine.wall_now() <= created {
        tokio::task::yield_now().await;
    }
    let past = format!("a.__at.s{}", engine.wall_now().0);
    let request = commit_request(&[
        (past.as_str(), vec![partition(0, 1, ""), partition(1, 1, "")]),
        ("a", vec![partition(0, 2, "")]),
        ("a.__at.s5", vec![partition(0, 2, "")]),
    ]);
    let codes = codes(&api.ask(9, request).await);
    let unknown = ResponseError::UnknownTopicOrPartition.code();
    assert_eq!(codes[..3], [0, unknown, 0]);
    assert_ne!(codes[3], 0);
    assert_eq!(
        fetch(&api, 9, Some(&[(past.as_str(), &[0]), ("a", &[0])])).await,
        [row(&past, 0, (1, "")), row("a", 0, (2, ""))]
    );
}

#[tokio::test]
async fn offsets_and_the_group_that_has_nothing_else_outlive_the_server() {
    let api = TestKafkaApi::new();
    api.topic("a", 1).await;
    api.ask(9, commit_request(&[("a", vec![partition(0, 5, "x")])])).await;
    let api = api.restart();
    assert_eq!(fetch(&api, 9, None).await, [row("a", 0, (5, "x"))]);
    let overviews = api.kafka.coordinators.groups.list();
    assert_eq!(overviews.len(), 1);
    assert_eq!(overviews[0].group_id, "g");
}

#[tokio::test]
async fn a_server_that_is_stopping_sends_committers_to_look_for_another() {
    let api = TestKafkaApi::new();
    api.topic("a", 1).await;
    api.kafka.engine.close();
    let request = commit_request(&[("a", vec![partition(0, 5, "x")])]);
    let refused = codes(&api.ask(9, request).await);
    assert_eq!(refused, [ResponseError::NotCoordinator.code()]);
}

#[tokio::test]
async fn a_commit_behind_the_deletion_of_its_topic_is_refused() {
    let api = TestKafkaApi::manually_stepped();
    api.stepped(api.topic("t", 1)).await;
    let topic = api.kafka.engine.topics().named("t").unwrap();
    let mut deleting = Box::pin(api.kafka.engine.topics().delete(topic.id));
    let outcome = tokio::time::timeout(Duration::ZERO, &mut deleting).await;
    assert!(outcome.is_err(), "the deletion has its place, and is not applied");
    assert!(api.kafka.engine.topics().named("t").is_some());
    let request = commit_request(&[("t", vec![partition(0, 5, "")])]);
    let request = request.with_generation_id_or_member_epoch(-1);
    let committed = api.stepped(api.ask(8, request)).await;
    assert_eq!(codes(&committed), [ResponseError::UnknownTopicOrPartition.code()]);
    api.stepped(deleting).await.unwrap();
    api.stepped(api.topic("t", 1)).await;
    let committed = api.kafka.engine.groups().committed_offset("g", "t", 0).unwrap();
    assert_eq!(committed, None, "a later topic inherits nothing");
}

/// The name belongs to another topic by the time the commit is queued.
#[tokio::test]
async fn a_commit_by_id_does_not_reach_a_later_topic_of_that_name() {
    let api = TestKafkaApi::manually_stepped();
    api.stepped(api.topic("t", 1)).await;
    let topic = api.kafka.engine.topics().named("t").unwrap();
    let readable = ReadableTopic::Present(Arc::clone(&topic));
    api.stepped(api.kafka.engine.topics().delete(topic.id)).await.unwrap();
    api.stepped(api.topic("t", 1)).await;
    let mut committed = CommittedTopic::new(&readable, vec![None]);
    committed.refuse_deleted(&api.kafka.engine.namespace());
    assert_eq!(committed.errors, [Some(ResponseError::UnknownTopicOrPartition)]);
}
