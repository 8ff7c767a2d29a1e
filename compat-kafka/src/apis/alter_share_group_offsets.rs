//! AlterShareGroupOffsets (91): sets where a share group without members stands (KIP-932). A group
//! that does not exist is made, so that it begins there.

use std::sync::Arc;

use engine::groups::OffsetCommit;
use engine::security::{Operation, Resource};
use engine::{Engine, EngineError, TopicId};
use kafka_errors::{error_message, group_error};
use kafka_groups::GroupError;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_share_group_offsets_request::{
    AlterShareGroupOffsetsRequestPartition, AlterShareGroupOffsetsRequestTopic,
};
use kafka_protocol::messages::alter_share_group_offsets_response::{
    AlterShareGroupOffsetsResponsePartition, AlterShareGroupOffsetsResponseTopic,
};
use kafka_protocol::messages::{AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse};
use kafka_protocol::protocol::VersionRange;
use uuid::Uuid;

use super::offset_commit::{NAMES_BYTES_MAX, coordinator_error};
use crate::cluster_view::leader_epoch;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for AlterShareGroupOffsetsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> AlterShareGroupOffsetsResponse {
        match alter(kafka, context, self).await {
            Ok(topics) => AlterShareGroupOffsetsResponse::default().with_responses(topics),
            Err(error) => AlterShareGroupOffsetsResponse::default()
                .with_error_code(error.code())
                .with_error_message(Some(error_message(error))),
        }
    }
}

async fn alter(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: AlterShareGroupOffsetsRequest,
) -> Result<Vec<AlterShareGroupOffsetsResponseTopic>, ResponseError> {
    let group = request.group_id.as_str();
    kafka.authorize(context, Operation::Read, Resource::group(group))?;
    let mut offsets = Vec::new();
    let mut topics = Vec::with_capacity(request.topics.len());
    for topic in request.topics {
        topics.push(alter_topic(kafka, context, topic, &mut offsets));
    }
    if offsets.is_empty() {
        // No group is made for that.
        return match kafka.coordinators.groups.describe_share(group) {
            Ok(described) if !described.members.is_empty() => Err(ResponseError::NonEmptyGroup),
            Ok(_) | Err(GroupError::GroupIdNotFound) => Ok(topics),
            Err(error) => Err(group_error(error)),
        };
    }
    let names = |(_, offset): &(TopicId, OffsetCommit)| group.len() + offset.topic.len();
    if offsets.iter().map(names).sum::<usize>() > NAMES_BYTES_MAX {
        return Err(ResponseError::InvalidRequest);
    }
    kafka.groups_for(context).create_share(group).await.map_err(group_error)?;
    let hold = kafka.groups_for(context).hold(group).map_err(group_error)?;
    let (engine, group) = (Arc::clone(&kafka.engine), group.to_owned());
    let result = hold.while_held(async move { commit(&engine, &group, offsets).await }).await;
    result.map_err(|error| coordinator_error(&error))?;
    Ok(topics)
}

/// Commits the offsets of the topics that still exist.
async fn commit(
    engine: &Engine,
    group: &str,
    offsets: Vec<(TopicId, OffsetCommit)>,
) -> Result<(), EngineError> {
    // While this is held no topic is deleted: a later topic of that name must not inherit its
    // offsets.
    let changing = engine.lock_changes().await;
    let is_there = |(id, _): &(TopicId, OffsetCommit)| engine.topics().by_id(id).is_some();
    let offsets: Vec<OffsetCommit> =
        offsets.into_iter().filter(is_there).map(|(_, offset)| offset).collect();
    if offsets.is_empty() {
        return Ok(());
    }
    let committing = engine.groups().begin_commit(group, offsets)?;
    drop(changing);
    committing.wait().await.map(drop)
}

fn alter_topic(
    kafka: &KafkaServer,
    context: &RequestContext,
    topic: AlterShareGroupOffsetsRequestTopic,
    offsets: &mut Vec<(TopicId, OffsetCommit)>,
) -> AlterShareGroupOffsetsResponseTopic {
    let name = topic.topic_name;
    let allowed = kafka.authorize(context, Operation::Read, Resource::topic(&name));
    // A client that may not read the topic learns neither its id nor whether there is one.
    let named_topic = allowed.is_ok().then(|| kafka.engine.topics().named(&name)).flatten();
    let mut set = |requested: &AlterShareGroupOffsetsRequestPartition| {
        if let Err(error) = allowed {
            return Some(error);
        }
        let index = usize::try_from(requested.partition_index).ok();
        let topic = named_topic
            .as_ref()
            .zip(index)
            .filter(|(topic, index)| *index < topic.partitions.len());
        let Some((topic, index)) = topic else {
            return Some(ResponseError::UnknownTopicOrPartition);
        };
        if requested.start_offset < 0 {
            return Some(ResponseError::InvalidRequest);
        }
        let offset = OffsetCommit {
            topic: name.to_string(),
            partition: requested.partition_index as u32,
            offset: requested.start_offset,
            leader_epoch: leader_epoch(&topic.partitions[index]),
            metadata: String::new(),
            retention_ms: None,
        };
        offsets.push((topic.id, offset));
        None
    };
    let partition = |requested: AlterShareGroupOffsetsRequestPartition| {
        let error = set(&requested);
        AlterShareGroupOffsetsResponsePartition::default()
            .with_partition_index(requested.partition_index)
            .with_error_code(error.map_or(0, |error| error.code()))
            .with_error_message(error.map(error_message))
    };
    let partitions = topic.partitions.into_iter().map(partition).collect();
    let id = named_topic.as_ref().map_or(Uuid::nil(), |topic| Uuid::from_bytes(topic.id));
    AlterShareGroupOffsetsResponseTopic::default()
        .with_topic_name(name)
        .with_topic_id(id)
        .with_partitions(partitions)
}
