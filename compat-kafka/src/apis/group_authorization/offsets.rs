//! Offsets of groups, by topics' names and ids.

use bytes::BufMut;
use engine::groups::OffsetCommit;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::{
    ApiKey, OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest,
};

use super::super::join_group::test_kafka_api::{group_id, topic_name};
use super::*;
use crate::topic_id_versions::BY_ID;
use crate::wire::{put_array, put_count, put_no_tags, put_text};

const UNKNOWN_TOPIC_ID: i16 = 100;

fn commit(topics: &[&str]) -> OffsetCommitRequest {
    let partition = OffsetCommitRequestPartition::default().with_committed_offset(7);
    let topic = |name: &&str| {
        OffsetCommitRequestTopic::default()
            .with_name(topic_name(name))
            .with_partitions(vec![partition.clone()])
    };
    OffsetCommitRequest::default()
        .with_group_id(group_id("g"))
        .with_generation_id_or_member_epoch(-1)
        .with_topics(topics.iter().map(topic).collect())
}

async fn commit_codes(guarded: &GuardedKafkaApi, topics: &[&str]) -> Vec<i16> {
    let answer = guarded.ask(9, commit(topics)).await;
    answer.topics.iter().map(|topic| topic.partitions[0].error_code).collect()
}

async fn commit_codes_by_id(guarded: &GuardedKafkaApi, ids: &[TopicId]) -> Vec<i16> {
    let mut out = BytesMut::new();
    put_text(&mut out, Some("g"));
    out.put_i32(-1);
    put_text(&mut out, Some(""));
    put_text(&mut out, None);
    put_array(&mut out, ids.iter(), |out, id| {
        out.put_slice(id);
        put_count(out, 1);
        out.put_i32(0);
        out.put_i64(7);
        out.put_i32(-1);
        put_text(out, Some(""));
        put_no_tags(out);
        put_no_tags(out);
    });
    put_no_tags(&mut out);
    let mut answer = guarded.ask_raw(ApiKey::OffsetCommit as i16, BY_ID, out.freeze()).await;
    let code = |reader: &mut WireReader| {
        reader.i32()?;
        let code = reader.i16()?;
        reader.end()?;
        Some(code)
    };
    let topic = |reader: &mut WireReader| {
        reader.i64()?;
        reader.i64()?;
        let codes = reader.array(code)?;
        reader.end()?;
        Some(codes[0])
    };
    answer.array(topic).unwrap()
}

fn fetch(topics: Option<&[&str]>) -> OffsetFetchRequest {
    let topic = |name: &&str| {
        OffsetFetchRequestTopics::default()
            .with_name(topic_name(name))
            .with_partition_indexes(vec![0])
    };
    let topics = topics.map(|topics| topics.iter().map(topic).collect());
    let group = OffsetFetchRequestGroup::default().with_group_id(group_id("g")).with_topics(topics);
    OffsetFetchRequest::default().with_groups(vec![group])
}

/// The error of the group; the name, the error and the offset of each topic.
async fn fetched(
    guarded: &GuardedKafkaApi,
    topics: Option<&[&str]>,
) -> (i16, Vec<(String, i16, i64)>) {
    let group = guarded.ask(9, fetch(topics)).await.groups.remove(0);
    let offset =
        |topic: &kafka_protocol::messages::offset_fetch_response::OffsetFetchResponseTopics| {
            let partition = &topic.partitions[0];
            (topic.name.to_string(), partition.error_code, partition.committed_offset)
        };
    (group.error_code, group.topics.iter().map(offset).collect())
}

async fn fetched_by_id(guarded: &GuardedKafkaApi, ids: &[TopicId]) -> Vec<(i64, i16)> {
    let mut out = BytesMut::new();
    put_count(&mut out, 1);
    put_text(&mut out, Some("g"));
    put_text(&mut out, None);
    out.put_i32(-1);
    put_array(&mut out, ids.iter(), |out, id| {
        out.put_slice(id);
        put_count(out, 1);
        out.put_i32(0);
        put_no_tags(out);
    });
    put_no_tags(&mut out);
    out.put_u8(0);
    put_no_tags(&mut out);
    let mut answer = guarded.ask_raw(ApiKey::OffsetFetch as i16, BY_ID, out.freeze()).await;
    let offset = |reader: &mut WireReader| {
        reader.i32()?;
        let offset = reader.i64()?;
        reader.i32()?;
        reader.nullable_text()?;
        let code = reader.i16()?;
        reader.end()?;
        Some((offset, code))
    };
    let topic = |reader: &mut WireReader| {
        reader.i64()?;
        reader.i64()?;
        let offsets = reader.array(offset)?;
        reader.end()?;
        Some(offsets[0])
    };
    let group = |reader: &mut WireReader| {
        reader.text()?;
        let topics = reader.array(topic)?;
        assert_eq!(reader.i16(), Some(0));
        reader.end()?;
        Some(topics)
    };
    answer.array(group).unwrap().remove(0)
}

async fn store(guarded: &GuardedKafkaApi, topics: &[&str]) {
    let offset = |topic: &&str| OffsetCommit {
        topic: (*topic).to_owned(),
        partition: 0,
        offset: 7,
        leader_epoch: -1,
        metadata: String::new(),
        retention_ms: None,
    };
    let offsets = topics.iter().map(offset).collect();
    guarded.api.kafka.engine.groups().commit("g", offsets).await.unwrap();
    guarded.api.kafka.coordinators.groups.restore_without_members("g");
}

fn stored(guarded: &GuardedKafkaApi) -> Vec<String> {
    let stored = guarded.api.kafka.engine.groups().committed_offsets(Some("g")).unwrap();
    stored.into_iter().map(|offset| offset.topic).collect()
}

#[tokio::test]
async fn offsets_are_committed_for_topics_that_the_client_may_read() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    guarded.api.topic("other", 1).await;
    let moment = guarded.moment_of("t").await;
    let hidden = guarded.moment_of("other").await;
    let ids = ["t", "other", &*moment, &*hidden].map(|name| guarded.id_of(name));
    let ids = [&ids[..], &[[9; 16]]].concat();
    let topics = ["t", "other", &moment, &hidden, "gone"];
    assert_eq!(commit_codes(&guarded, &topics).await, [GROUP_REFUSED; 5]);
    assert_eq!(commit_codes_by_id(&guarded, &ids).await, [GROUP_REFUSED; 5]);
    guarded.allow(Operation::Read, Resource::group("g")).await;
    guarded.allow(Operation::Describe, Resource::topic("t")).await;
    assert_eq!(commit_codes(&guarded, &topics).await, [TOPIC_REFUSED; 5]);
    let by_id = [TOPIC_REFUSED, TOPIC_REFUSED, TOPIC_REFUSED, TOPIC_REFUSED, UNKNOWN_TOPIC_ID];
    assert_eq!(commit_codes_by_id(&guarded, &ids).await, by_id);
    assert!(stored(&guarded).is_empty());
    guarded.allow(Operation::Read, Resource::topic("t")).await;
    let by_name = [0, TOPIC_REFUSED, 0, TOPIC_REFUSED, TOPIC_REFUSED];
    assert_eq!(commit_codes(&guarded, &topics).await, by_name);
    assert_eq!(stored(&guarded), ["t", &moment]);
    let by_id = [0, TOPIC_REFUSED, 0, TOPIC_REFUSED, UNKNOWN_TOPIC_ID];
    assert_eq!(commit_codes_by_id(&guarded, &ids).await, by_id);
}

#[tokio::test]
async fn offsets_are_shown_for_topics_that_the_client_may_describe() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    guarded.api.topic("other", 1).await;
    let moment = guarded.moment_of("t").await;
    store(&guarded, &["t", "other", &moment]).await;
    let topics = ["t", "other", &moment];
    assert_eq!(fetched(&guarded, None).await, (GROUP_REFUSED, Vec::new()));
    let (code, refused) = fetched(&guarded, Some(&topics)).await;
    assert_eq!(code, GROUP_REFUSED);
    assert!(refused.iter().all(|(_, code, offset)| (*code, *offset) == (GROUP_REFUSED, -1)));
    guarded.allow(Operation::Read, Resource::group("g")).await;
    assert_eq!(fetched(&guarded, None).await, (0, Vec::new()));
    guarded.allow(Operation::Describe, Resource::topic("t")).await;
    let offset_of = |name: &str| (name.to_owned(), 0, 7);
    assert_eq!(fetched(&guarded, None).await, (0, vec![offset_of("t"), offset_of(&moment)]));
    let hidden = ("other".to_owned(), TOPIC_REFUSED, -1);
    assert_eq!(
        fetched(&guarded, Some(&topics)).await,
        (0, vec![offset_of("t"), hidden, offset_of(&moment)])
    );
    let ids = ["t", "other", &moment].map(|name| guarded.id_of(name));
    let ids = [&ids[..], &[[9; 16]]].concat();
    let by_id = [(7, 0), (-1, TOPIC_REFUSED), (7, 0), (-1, UNKNOWN_TOPIC_ID)];
    assert_eq!(fetched_by_id(&guarded, &ids).await, by_id);
}

#[tokio::test]
async fn offsets_are_deleted_of_topics_that_the_client_may_read() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    guarded.api.topic("other", 1).await;
    let moment = guarded.moment_of("t").await;
    let topics = ["t", "other", &moment, "gone"];
    store(&guarded, &["t", "other", &moment]).await;
    let topic = |name: &str| {
        OffsetDeleteRequestTopic::default()
            .with_name(topic_name(name))
            .with_partitions(vec![OffsetDeleteRequestPartition::default()])
    };
    let request = || {
        OffsetDeleteRequest::default()
            .with_group_id(group_id("g"))
            .with_topics(topics.iter().map(|name| topic(name)).collect())
    };
    guarded.allow(Operation::Read, Resource::group("g")).await;
    guarded.allow(Operation::Read, Resource::topic("t")).await;
    let refused = guarded.ask(0, request()).await;
    assert_eq!((refused.error_code, refused.topics.len()), (GROUP_REFUSED, 0));
    guarded.allow(Operation::Delete, Resource::group("g")).await;
    let answer = guarded.ask(0, request()).await;
    let codes: Vec<i16> =
        answer.topics.iter().map(|topic| topic.partitions[0].error_code).collect();
    assert_eq!((answer.error_code, codes), (0, vec![0, TOPIC_REFUSED, 0, TOPIC_REFUSED]));
    assert_eq!(stored(&guarded), ["other"]);
}
