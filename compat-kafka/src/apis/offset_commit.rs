//! OffsetCommit (8): commits all offsets of a request, or none of them.
//!
//! A moment of a topic has offsets of its own, under the name by which it was read.

use std::sync::Arc;

use bytes::Bytes;
use engine::EngineError;
use engine::groups::OffsetCommit;
use engine::security::{Operation, Resource};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse, TopicName};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::core::KafkaServer;
use crate::error_code::{engine_error, group_error};
use crate::groups::{CommitFence, CommitKind, CommittedPartition, GroupError};
use crate::moment_cache::MomentRowQuota;
use crate::request::{RequestContext, ResponseResult, encode};
use crate::topic_id_versions::{BY_ID, decode_by_id, encode_by_id, id_of_name};

#[cfg(test)]
mod tests;

/// From here on, clients know the error for a missing group.
const REPORTS_MISSING_GROUP: i16 = 9;
/// From here on, members of the consumer protocol may commit (KIP-848).
const MEMBER_EPOCH: i16 = 9;
/// The value in versions up to 4 for offsets with the group's retention. Later versions have no
/// other.
const GROUP_RETENTION: i64 = -1;

/// The most bytes of the names of a request's group and topics, once for each offset.
pub(super) const NAMES_BYTES_MAX: usize = 128 << 20;

/// The error of each partition of one topic, in order; `None` if there is none so far.
type PartitionErrors = Vec<Option<ResponseError>>;

pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 2, max: BY_ID };

pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: Bytes,
) -> ResponseResult {
    let request = decode_by_id::<OffsetCommitRequest>(&context, body)?;
    if context.version < BY_ID {
        let response = commit_offsets(&kafka, &context, request).await;
        return encode::<OffsetCommitRequest>(&context, &response).map(Some);
    }
    let response = commit_by_id(&kafka, &context, request).await;
    encode_by_id::<OffsetCommitRequest>(&context, &response).map(Some)
}

/// Commits for topics whose names stand for ids.
async fn commit_by_id(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    mut request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let ids: Vec<TopicName> = request.topics.iter().map(|topic| topic.name.clone()).collect();
    for topic in &mut request.topics {
        let name = id_of_name(&topic.name).and_then(|id| kafka.readable_name(&id));
        if let Some(name) = name {
            topic.name = TopicName(StrBytes::from_string(name));
        }
    }
    let mut response = commit_offsets(kafka, context, request).await;
    for (topic, id) in response.topics.iter_mut().zip(ids) {
        topic.name = id;
        for partition in &mut topic.partitions {
            if partition.error_code == ResponseError::UnknownTopicOrPartition.code() {
                partition.error_code = ResponseError::UnknownTopicId.code();
            }
        }
    }
    response
}

async fn commit_offsets(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: OffsetCommitRequest,
) -> OffsetCommitResponse {
    let mut rows = MomentRowQuota::default();
    let mut verdicts = Vec::with_capacity(request.topics.len());
    let group = Resource::group(&request.group_id);
    let mut done = kafka.authorize(context, Operation::Read, group);
    for topic in &request.topics {
        verdicts.push(match done {
            Ok(()) => check_partitions(kafka, context, topic, &mut rows).await,
            Err(_) => vec![None; topic.partitions.len()],
        });
    }
    if done.is_ok() {
        done = commit(kafka, context, &request, &mut verdicts).await;
    }
    if let Err(error) = done {
        verdicts.iter_mut().flatten().for_each(|verdict| _ = verdict.get_or_insert(error));
    }
    let topics = request.topics.into_iter().zip(verdicts).map(to_response).collect();
    OffsetCommitResponse::default().with_topics(topics)
}

/// Marks the partitions that do not exist, and those of topics that the client may not read.
async fn check_partitions(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    topic: &OffsetCommitRequestTopic,
    rows: &mut MomentRowQuota,
) -> PartitionErrors {
    // An id that is not known has no name by which there could be rules.
    let is_unknown_id = context.version >= BY_ID && id_of_name(&topic.name).is_some();
    if !is_unknown_id {
        let name = Resource::topic(&topic.name);
        if let Err(error) = kafka.authorize(context, Operation::Read, name) {
            return vec![Some(error); topic.partitions.len()];
        }
    }
    let found = kafka.readable_limited(&topic.name, rows).await;
    let verdict = |partition: &OffsetCommitRequestPartition| match &found {
        Ok(readable) => {
            let view = readable.view(partition.partition_index);
            view.is_none().then_some(ResponseError::UnknownTopicOrPartition)
        }
        Err(error) => Some(*error),
    };
    topic.partitions.iter().map(verdict).collect()
}

/// Commits the offsets that have no error yet. A failure applies to all of them.
async fn commit(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: &OffsetCommitRequest,
    verdicts: &mut [PartitionErrors],
) -> Result<(), ResponseError> {
    if verdicts.iter().flatten().all(Option::is_some) {
        return Ok(());
    }
    // Each offset is kept by both names.
    let names = |topic: &OffsetCommitRequestTopic| {
        topic.partitions.len() * (request.group_id.len() + topic.name.len())
    };
    if request.topics.iter().map(names).sum::<usize>() > NAMES_BYTES_MAX {
        return Err(ResponseError::InvalidCommitOffsetSize);
    }
    let metadata_max = kafka.options.offset_metadata_bytes_max;
    let queue = || {
        let offsets = offsets(request, verdicts, metadata_max);
        let is_any = !offsets.is_empty();
        is_any.then(|| kafka.engine.groups().begin_commit(&request.group_id, offsets))
    };
    let fence = fence(request, context.version);
    let partitions = || committed_partitions(kafka, request);
    let queued = kafka.groups_for(context).commit(&request.group_id, &fence, &partitions, queue);
    let queued = queued.map_err(|error| fence_error(error, context.version))?;
    let committed = match queued {
        None => return Ok(()),
        Some(Ok(committing)) => committing.wait().await.map(drop),
        Some(Err(error)) => Err(error),
    };
    committed.map_err(|error| {
        tracing::error!(group = request.group_id.as_str(), %error, "offsets cannot be committed");
        coordinator_error(&error)
    })
}

/// The offsets without an error so far. Offsets with too much metadata get one.
fn offsets(
    request: &OffsetCommitRequest,
    verdicts: &mut [PartitionErrors],
    metadata_max: usize,
) -> Vec<OffsetCommit> {
    // As in Kafka, another negative retention expires at once.
    let is_own = request.retention_time_ms != GROUP_RETENTION;
    let retention_ms = is_own.then(|| u64::try_from(request.retention_time_ms).unwrap_or(0));
    let mut offsets = Vec::new();
    for (topic, verdicts) in request.topics.iter().zip(verdicts) {
        for (partition, verdict) in topic.partitions.iter().zip(verdicts) {
            if verdict.is_none() && is_too_long(partition, metadata_max) {
                *verdict = Some(ResponseError::OffsetMetadataTooLarge);
            }
            if verdict.is_none() {
                offsets.push(offset(topic, partition, retention_ms));
            }
        }
    }
    offsets
}

/// The partitions of a commit that exist.
fn committed_partitions(
    kafka: &KafkaServer,
    request: &OffsetCommitRequest,
) -> Vec<CommittedPartition> {
    let of_topic = |topic: &OffsetCommitRequestTopic| {
        let indexes = topic.partitions.iter().map(|one| one.partition_index);
        kafka.committed_partitions(&topic.name, indexes)
    };
    request.topics.iter().flat_map(of_topic).collect()
}

fn fence(request: &OffsetCommitRequest, version: i16) -> CommitFence {
    CommitFence {
        member_id: request.member_id.to_string(),
        group_instance_id: request.group_instance_id.as_ref().map(|id| id.to_string()),
        generation_id: request.generation_id_or_member_epoch,
        kind: CommitKind::Plain,
        knows_epochs: version >= MEMBER_EPOCH,
    }
}

fn fence_error(error: GroupError, version: i16) -> ResponseError {
    match error {
        GroupError::GroupIdNotFound if version < REPORTS_MISSING_GROUP => {
            ResponseError::IllegalGeneration
        }
        error => group_error(error),
    }
}

fn is_too_long(partition: &OffsetCommitRequestPartition, max: usize) -> bool {
    is_metadata_too_long(partition.committed_metadata.as_deref().unwrap_or_default(), max)
}

/// Kafka counts UTF-16 units, whatever the setting is called. This does the same, to accept what
/// Kafka accepts.
pub(super) fn is_metadata_too_long(metadata: &str, max: usize) -> bool {
    // There are at most as many units as bytes.
    metadata.len() > max && metadata.encode_utf16().count() > max
}

fn offset(
    topic: &OffsetCommitRequestTopic,
    partition: &OffsetCommitRequestPartition,
    retention_ms: Option<u64>,
) -> OffsetCommit {
    OffsetCommit {
        topic: topic.name.to_string(),
        partition: partition.partition_index.try_into().expect("the partition was found"),
        offset: partition.committed_offset,
        leader_epoch: partition.committed_leader_epoch,
        metadata: partition.committed_metadata.as_deref().unwrap_or_default().to_owned(),
        retention_ms,
    }
}

fn to_response(
    (topic, verdicts): (OffsetCommitRequestTopic, PartitionErrors),
) -> OffsetCommitResponseTopic {
    let answer = |(partition, verdict): (OffsetCommitRequestPartition, Option<ResponseError>)| {
        OffsetCommitResponsePartition::default()
            .with_partition_index(partition.partition_index)
            .with_error_code(verdict.map_or(0, |error| error.code()))
    };
    let partitions = topic.partitions.into_iter().zip(verdicts).map(answer).collect();
    OffsetCommitResponseTopic::default().with_name(topic.name).with_partitions(partitions)
}

/// The coordinator's error in place of a partition leader's "not leader" or "cannot write". The
/// client then looks up the group's coordinator, and retries.
pub(super) fn coordinator_error(error: &EngineError) -> ResponseError {
    match engine_error(error) {
        ResponseError::NotLeaderOrFollower | ResponseError::KafkaStorageError => {
            ResponseError::NotCoordinator
        }
        error => error,
    }
}
