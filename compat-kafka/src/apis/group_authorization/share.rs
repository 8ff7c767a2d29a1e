//! Share groups.

use kafka_protocol::messages::alter_share_group_offsets_request::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use kafka_protocol::messages::delete_share_group_offsets_request::DeleteShareGroupOffsetsRequestTopic;
use kafka_protocol::messages::describe_share_group_offsets_request::{
    DescribeShareGroupOffsetsRequestGroup, DescribeShareGroupOffsetsRequestTopic,
};
use kafka_protocol::messages::share_acknowledge_request::{
    AcknowledgePartition, AcknowledgeTopic, AcknowledgementBatch,
};
use kafka_protocol::messages::share_fetch_request::{FetchPartition, FetchTopic};
use kafka_protocol::messages::{
    AlterShareGroupOffsetsRequest, DeleteShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequest, ShareAcknowledgeRequest, ShareFetchRequest,
    ShareGroupDescribeRequest, ShareGroupHeartbeatRequest,
};
use uuid::Uuid;

use super::super::join_group::test_kafka_api::{group_id, topic_name};
use super::*;

const UNKNOWN_TOPIC_ID: i16 = 100;

fn join(topics: &[&str]) -> ShareGroupHeartbeatRequest {
    let topics = topics.iter().map(|name| topic_name(name)).collect();
    ShareGroupHeartbeatRequest::default()
        .with_group_id(group_id("g"))
        .with_member_id(text("m"))
        .with_subscribed_topic_names(Some(topics))
}

fn beat(epoch: i32) -> ShareGroupHeartbeatRequest {
    join(&[]).with_member_epoch(epoch).with_subscribed_topic_names(None)
}

fn fetch(epoch: i32, ids: &[TopicId]) -> ShareFetchRequest {
    let topic = |id: &TopicId| {
        FetchTopic::default()
            .with_topic_id(Uuid::from_bytes(*id))
            .with_partitions(vec![FetchPartition::default()])
    };
    ShareFetchRequest::default()
        .with_group_id(Some(group_id("g")))
        .with_member_id(Some(text("m")))
        .with_share_session_epoch(epoch)
        .with_max_bytes(1000)
        .with_max_records(10)
        .with_topics(ids.iter().map(topic).collect())
}

fn acknowledge(epoch: i32, ids: &[TopicId]) -> ShareAcknowledgeRequest {
    let batch = AcknowledgementBatch::default().with_acknowledge_types(vec![1]);
    let partition = AcknowledgePartition::default().with_acknowledgement_batches(vec![batch]);
    let topic = |id: &TopicId| {
        AcknowledgeTopic::default()
            .with_topic_id(Uuid::from_bytes(*id))
            .with_partitions(vec![partition.clone()])
    };
    ShareAcknowledgeRequest::default()
        .with_group_id(Some(group_id("g")))
        .with_member_id(Some(text("m")))
        .with_share_session_epoch(epoch)
        .with_topics(ids.iter().map(topic).collect())
}

#[tokio::test]
async fn members_read_the_group_and_describe_its_topics() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    let moment = guarded.moment_of("t").await;
    assert_eq!(guarded.ask(1, join(&["t"])).await.error_code, GROUP_REFUSED);
    guarded.allow(Operation::Read, Resource::group("g")).await;
    for topic in ["t", &moment, "gone"] {
        let refused = guarded.ask(1, join(&[topic])).await;
        assert_eq!((refused.error_code, refused.error_message), (TOPIC_REFUSED, None));
    }
    guarded.allow(Operation::Describe, Resource::topic("t")).await;
    let joined = guarded.ask(1, join(&["t", &moment])).await;
    assert_eq!(joined.error_code, 0);
    let before = guarded.authorizations();
    assert_eq!(guarded.ask(1, beat(joined.member_epoch)).await.error_code, 0);
    assert_eq!(guarded.authorizations() - before, 1, "the group alone");
    let describe = || {
        ShareGroupDescribeRequest::default()
            .with_group_ids(vec![group_id("g")])
            .with_include_authorized_operations(true)
    };
    let group = guarded.ask(1, describe()).await.groups.remove(0);
    let (read, described) = (Operation::Read.code(), Operation::Describe.code());
    assert_eq!((group.error_code, group.members.len()), (0, 1));
    assert_eq!(group.authorized_operations, 1 << read | 1 << described);
    guarded.revoke(Operation::Describe, Resource::topic("t")).await;
    let hidden = guarded.ask(1, describe()).await.groups.remove(0);
    let message = "The group has described topic(s) that the client is not authorized to describe.";
    assert_eq!(
        (hidden.error_code, hidden.error_message.as_deref()),
        (TOPIC_REFUSED, Some(message))
    );
    assert_eq!((hidden.members.len(), hidden.authorized_operations), (0, i32::MIN));
    guarded.revoke(Operation::Read, Resource::group("g")).await;
    assert_eq!(guarded.ask(1, beat(joined.member_epoch)).await.error_code, GROUP_REFUSED);
    let refused = guarded.ask(1, describe()).await.groups.remove(0);
    assert_eq!((refused.error_code, refused.error_message), (GROUP_REFUSED, None));
}

#[tokio::test]
async fn records_are_shared_of_topics_that_the_client_may_read() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    guarded.api.topic("other", 1).await;
    let moment = guarded.moment_of("t").await;
    let hidden = guarded.moment_of("other").await;
    guarded.api.kafka.coordinators.groups.create_share("g").await.unwrap();
    let ids = ["t", "other", &moment, &hidden].map(|name| guarded.id_of(name));
    let ids = [&ids[..], &[[9; 16]]].concat();
    let refused = guarded.ask(1, fetch(0, &ids)).await;
    assert_eq!((refused.error_code, refused.responses.len()), (GROUP_REFUSED, 0));
    assert_eq!(refused.acquisition_lock_timeout_ms, 0);
    let refused = guarded.ask(1, acknowledge(1, &ids)).await;
    assert_eq!((refused.error_code, refused.responses.len()), (GROUP_REFUSED, 0));
    guarded.allow(Operation::Read, Resource::group("g")).await;
    guarded.allow(Operation::Read, Resource::topic("t")).await;
    let codes = |guarded: &GuardedKafkaApi, id: &Uuid| match () {
        () if *id == Uuid::from_bytes([9; 16]) => UNKNOWN_TOPIC_ID,
        () => {
            let name = guarded.api.kafka.topics.name_of(id.as_bytes()).unwrap();
            if name.starts_with('t') { 0 } else { TOPIC_REFUSED }
        }
    };
    let fetched = guarded.ask(1, fetch(0, &ids)).await;
    assert_eq!(fetched.error_code, 0);
    let refused = |errors: &[(Uuid, i16)]| {
        let mut expected: Vec<(Uuid, i16)> = ids
            .iter()
            .map(|id| (Uuid::from_bytes(*id), codes(&guarded, &Uuid::from_bytes(*id))))
            .collect();
        expected.retain(|(_, code)| *code != 0);
        expected.sort_unstable();
        assert_eq!(errors, expected);
    };
    let topics = fetched.responses.iter();
    let errors: Vec<(Uuid, i16)> =
        topics.map(|topic| (topic.topic_id, topic.partitions[0].error_code)).collect();
    refused(&errors);
    let answer = guarded.ask(1, acknowledge(1, &ids)).await;
    assert_eq!(answer.error_code, 0);
    for topic in &answer.responses {
        let code = topic.partitions[0].error_code;
        match codes(&guarded, &topic.topic_id) {
            // Nothing was acquired, but that is not for lack of a rule.
            0 => assert_ne!(code, TOPIC_REFUSED),
            refused => assert_eq!(code, refused),
        }
    }
    assert_eq!(answer.responses.len(), ids.len());
    guarded.revoke(Operation::Read, Resource::group("g")).await;
    assert_eq!(guarded.ask(1, fetch(2, &[])).await.error_code, GROUP_REFUSED);
}

#[tokio::test]
async fn where_a_group_stands_is_set_shown_and_forgotten_by_topic() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    guarded.api.topic("other", 1).await;
    let alter = || {
        let partition = AlterShareGroupOffsetsRequestPartition::default();
        let topic = |name: &str| {
            AlterShareGroupOffsetsRequestTopic::default()
                .with_topic_name(topic_name(name))
                .with_partitions(vec![partition.clone()])
        };
        AlterShareGroupOffsetsRequest::default().with_group_id(group_id("g")).with_topics(vec![
            topic("t"),
            topic("other"),
            topic("gone"),
        ])
    };
    assert_eq!(guarded.ask(0, alter()).await.error_code, GROUP_REFUSED);
    guarded.allow(Operation::Read, Resource::group("g")).await;
    guarded.allow(Operation::Read, Resource::topic("t")).await;
    let altered = guarded.ask(0, alter()).await;
    assert_eq!(altered.error_code, 0);
    let t = Uuid::from_bytes(guarded.id_of("t"));
    let errors: Vec<(Uuid, i16)> = altered
        .responses
        .iter()
        .map(|topic| (topic.topic_id, topic.partitions[0].error_code))
        .collect();
    let hidden = (Uuid::nil(), TOPIC_REFUSED);
    assert_eq!(errors, [(t, 0), hidden, hidden]);
    assert_eq!(guarded.api.ask(0, alter()).await.responses[1].partitions[0].error_code, 0);

    let describe = |topics: Option<&[&str]>| {
        let topic = |name: &&str| {
            DescribeShareGroupOffsetsRequestTopic::default()
                .with_topic_name(topic_name(name))
                .with_partitions(vec![0])
        };
        let topics = topics.map(|topics| topics.iter().map(topic).collect());
        let group = DescribeShareGroupOffsetsRequestGroup::default()
            .with_group_id(group_id("g"))
            .with_topics(topics);
        DescribeShareGroupOffsetsRequest::default().with_groups(vec![group])
    };
    let group = guarded.ask(0, describe(None)).await.groups.remove(0);
    let names: Vec<&str> = group.topics.iter().map(|topic| topic.topic_name.as_str()).collect();
    assert_eq!((group.error_code, names), (0, vec!["t"]));
    let group = guarded.ask(0, describe(Some(&["t", "other"]))).await.groups.remove(0);
    let offsets = group.topics.iter().map(|topic| {
        let partition = &topic.partitions[0];
        (topic.topic_id, partition.start_offset, partition.error_code)
    });
    let offsets: Vec<(Uuid, i64, i16)> = offsets.collect();
    assert_eq!(offsets, [(Uuid::nil(), -1, TOPIC_REFUSED), (t, 0, 0)]);

    let delete = || {
        let topic = |name: &str| {
            DeleteShareGroupOffsetsRequestTopic::default().with_topic_name(topic_name(name))
        };
        DeleteShareGroupOffsetsRequest::default()
            .with_group_id(group_id("g"))
            .with_topics(vec![topic("t"), topic("other")])
    };
    assert_eq!(guarded.ask(0, delete()).await.error_code, GROUP_REFUSED);
    guarded.allow(Operation::Delete, Resource::group("g")).await;
    let deleted = guarded.ask(0, delete()).await;
    let errors: Vec<(Uuid, i16)> =
        deleted.responses.iter().map(|topic| (topic.topic_id, topic.error_code)).collect();
    assert_eq!((deleted.error_code, errors), (0, vec![(t, 0), hidden]));
    guarded.revoke(Operation::Delete, Resource::group("g")).await;
    guarded.revoke(Operation::Read, Resource::group("g")).await;
    let refused = guarded.ask(0, describe(None)).await.groups.remove(0);
    assert_eq!((refused.error_code, refused.error_message), (GROUP_REFUSED, None));
}
