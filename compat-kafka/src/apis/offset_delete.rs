//! OffsetDelete (47): deletes a group's offsets of topics that no member reads.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use engine::EngineError;
use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_groups::{GroupError, GroupSubscriptions};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_delete_request::{
    OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use kafka_protocol::messages::offset_delete_response::{
    OffsetDeleteResponsePartition, OffsetDeleteResponseTopic,
};
use kafka_protocol::messages::{OffsetDeleteRequest, OffsetDeleteResponse};
use kafka_protocol::protocol::VersionRange;
use kafka_topics::ReadableTopic;

use super::offset_commit::coordinator_error;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for OffsetDeleteRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> OffsetDeleteResponse {
        match delete(kafka, context, self).await {
            Ok(topics) => OffsetDeleteResponse::default().with_topics(topics),
            Err(error) => OffsetDeleteResponse::default().with_error_code(error.code()),
        }
    }
}

async fn delete(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: OffsetDeleteRequest,
) -> Result<Vec<OffsetDeleteResponseTopic>, ResponseError> {
    let group = request.group_id.as_str();
    kafka.authorize(context, Operation::Delete, Resource::group(group))?;
    if group.is_empty() {
        return Err(group_error(GroupError::InvalidGroupId));
    }
    let mut requested = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        let name = Resource::topic(&topic.name);
        let checked = match kafka.authorize(context, Operation::Read, name) {
            Ok(()) => {
                let readable = kafka.topics.resolve(&topic.name).await.ok().flatten();
                Ok(AskedOffsets::read(kafka, group, &topic, readable.as_ref())?)
            }
            Err(error) => Err(error),
        };
        requested.push((topic, checked));
    }
    let changing = kafka.engine.lock_changes().await;
    // Checked and queued under the group's lock, behind all waits: a member that joined meanwhile
    // keeps its offsets.
    let queue = |subscriptions: &GroupSubscriptions| {
        let mut deleted = BTreeSet::new();
        let answer = |(topic, checked)| match checked {
            Ok(partitions) => answer_topic(subscriptions, topic, partitions, &mut deleted),
            Err(error) => refused_topic(topic, error),
        };
        let topics = requested.into_iter().map(answer).collect();
        let deleting = if deleted.is_empty() {
            None
        } else {
            let deleted = deleted.into_iter().collect();
            let deleting = kafka.engine.groups().begin_delete_offsets(group, deleted, changing);
            Some(deleting.map_err(|error| coordinator_error(&error))?)
        };
        Ok::<_, ResponseError>((topics, deleting))
    };
    let (topics, deleting) =
        kafka.coordinators.groups.delete_offsets(group, queue).map_err(group_error)??;
    if let Some(deleting) = deleting {
        deleting.wait().await.map_err(|error| coordinator_error(&error))?;
    }
    Ok(topics)
}

fn refused_topic(
    topic: OffsetDeleteRequestTopic,
    error: ResponseError,
) -> OffsetDeleteResponseTopic {
    let refused = |partition: OffsetDeleteRequestPartition| {
        OffsetDeleteResponsePartition::default()
            .with_partition_index(partition.partition_index)
            .with_error_code(error.code())
    };
    let partitions = topic.partitions.into_iter().map(refused).collect();
    OffsetDeleteResponseTopic::default().with_name(topic.name).with_partitions(partitions)
}

/// The partitions of a topic that a request names, each once.
struct AskedOffsets(HashMap<i32, AskedOffset>);

#[derive(Clone, Copy)]
enum AskedOffset {
    /// It is committed, or an open transaction may commit it. Also where the moment in its name is
    /// not readable any more.
    Committed(u32),
    NotCommitted,
    /// Nothing is committed, and there is no such partition.
    UnknownPartition,
}

impl AskedOffsets {
    /// Reads what is committed, which may take long: no lock is held.
    fn read(
        kafka: &KafkaServer,
        group: &str,
        topic: &OffsetDeleteRequestTopic,
        readable: Option<&ReadableTopic>,
    ) -> Result<AskedOffsets, ResponseError> {
        let mut by_index = HashMap::new();
        for partition in &topic.partitions {
            let index = partition.partition_index;
            if by_index.contains_key(&index) {
                continue;
            }
            let number = u32::try_from(index).ok();
            let committed = match number {
                Some(number) => is_committed(kafka, group, &topic.name, number)
                    .map_err(|error| coordinator_error(&error))?,
                None => false,
            };
            let offset = match number {
                Some(number) if committed => AskedOffset::Committed(number),
                _ if has_partition(readable, index) => AskedOffset::NotCommitted,
                _ => AskedOffset::UnknownPartition,
            };
            by_index.insert(index, offset);
        }
        Ok(AskedOffsets(by_index))
    }
}

/// Adds the deletable offsets to `deleted`; returns a result for each partition.
fn answer_topic(
    subscriptions: &GroupSubscriptions,
    topic: OffsetDeleteRequestTopic,
    partitions: AskedOffsets,
    deleted: &mut BTreeSet<(String, u32)>,
) -> OffsetDeleteResponseTopic {
    let is_read = subscriptions.include(&topic.name);
    let answer = |partition: OffsetDeleteRequestPartition| {
        let index = partition.partition_index;
        let code = match partitions.0[&index] {
            AskedOffset::UnknownPartition => ResponseError::UnknownTopicOrPartition.code(),
            _ if is_read => ResponseError::GroupSubscribedToTopic.code(),
            AskedOffset::NotCommitted => 0,
            AskedOffset::Committed(number) => {
                deleted.insert((topic.name.to_string(), number));
                0
            }
        };
        OffsetDeleteResponsePartition::default().with_partition_index(index).with_error_code(code)
    };
    let partitions = topic.partitions.into_iter().map(answer).collect();
    OffsetDeleteResponseTopic::default().with_name(topic.name.clone()).with_partitions(partitions)
}

/// True if an offset is committed, or an open transaction may commit it.
fn is_committed(
    kafka: &KafkaServer,
    group: &str,
    topic: &str,
    partition: u32,
) -> Result<bool, EngineError> {
    let groups = kafka.engine.groups();
    Ok(groups.committed_offset(group, topic, partition)?.is_some()
        || groups.has_pending_offset(group, topic, partition)?)
}

fn has_partition(readable: Option<&ReadableTopic>, index: i32) -> bool {
    readable.is_some_and(|readable| readable.view(index).is_some())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use engine::groups::OffsetCommit;

    use super::super::join_group::test_kafka_api::{TestKafkaApi, group_id, topic_name};
    use super::*;

    fn request(group: &str, topics: &[(&str, &[i32])]) -> OffsetDeleteRequest {
        let partition =
            |index: &i32| OffsetDeleteRequestPartition::default().with_partition_index(*index);
        let topic = |(name, indexes): &(&str, &[i32])| {
            OffsetDeleteRequestTopic::default()
                .with_name(topic_name(name))
                .with_partitions(indexes.iter().map(partition).collect())
        };
        OffsetDeleteRequest::default()
            .with_group_id(group_id(group))
            .with_topics(topics.iter().map(topic).collect())
    }

    fn codes(response: &OffsetDeleteResponse) -> Vec<i16> {
        let topics = response.topics.iter();
        topics
            .flat_map(|topic| topic.partitions.iter().map(|partition| partition.error_code))
            .collect()
    }

    async fn commit(api: &TestKafkaApi, topic: &str) {
        let offset = OffsetCommit {
            topic: topic.to_owned(),
            partition: 0,
            offset: 5,
            leader_epoch: -1,
            metadata: String::new(),
            retention_ms: None,
        };
        api.kafka.engine.groups().commit("g", vec![offset]).await.unwrap();
    }

    fn committed_topics(api: &TestKafkaApi) -> Vec<String> {
        let committed = api.kafka.engine.groups().committed_offsets(Some("g")).unwrap();
        committed.into_iter().map(|offset| offset.topic).collect()
    }

    #[tokio::test]
    async fn what_a_member_reads_is_kept_and_the_rest_goes() {
        let api = TestKafkaApi::new();
        api.topic("read", 1).await;
        api.topic("left", 1).await;
        api.stable_group("g").await;
        for topic in ["read", "left", "a.__at.s5"] {
            commit(&api, topic).await;
        }
        let topics: &[(&str, &[i32])] =
            &[("read", &[0]), ("left", &[0, 1, -1]), ("no", &[0]), ("a.__at.s5", &[0])];
        let answer = api.ask(0, request("g", topics)).await;
        let unknown = ResponseError::UnknownTopicOrPartition.code();
        let subscribed = ResponseError::GroupSubscribedToTopic.code();
        assert_eq!(answer.error_code, 0);
        assert_eq!(codes(&answer), [subscribed, 0, unknown, unknown, unknown, 0]);
        assert_eq!(committed_topics(&api), ["read"]);
        let repeated = api.ask(0, request("g", &[("left", &[0])])).await;
        assert_eq!(codes(&repeated), [0]);
    }

    /// The deletion waits while the namespace changes.
    #[tokio::test]
    async fn a_member_that_joins_meanwhile_keeps_its_commit() {
        let api = TestKafkaApi::new();
        api.topic("read", 1).await;
        commit(&api, "read").await;
        api.kafka.coordinators.groups.restore_without_members("g");
        let changing = api.kafka.engine.lock_changes().await;
        let mut deleting = Box::pin(api.ask(0, request("g", &[("read", &[0])])));
        let outcome = tokio::time::timeout(Duration::ZERO, &mut deleting).await;
        assert!(outcome.is_err(), "it waits");
        api.stable_group("g").await;
        commit(&api, "read").await;
        drop(changing);
        let subscribed = ResponseError::GroupSubscribedToTopic.code();
        assert_eq!(codes(&deleting.await), [subscribed]);
        assert_eq!(committed_topics(&api), ["read"]);
    }

    #[tokio::test]
    async fn groups_that_are_not_there_or_have_no_name_are_one_error() {
        let api = TestKafkaApi::new();
        api.topic("read", 1).await;
        for (group, error) in
            [("", ResponseError::InvalidGroupId), ("x", ResponseError::GroupIdNotFound)]
        {
            let answer = api.ask(0, request(group, &[("read", &[0])])).await;
            assert_eq!((answer.error_code, answer.topics.len()), (error.code(), 0));
        }
    }
}
