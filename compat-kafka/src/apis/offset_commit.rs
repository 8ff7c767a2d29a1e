//! OffsetCommit (8): commits all offsets of a request, or none of them.
//!
//! A moment of a topic has offsets of its own, under the name by which it was read.

use std::sync::Arc;

use engine::groups::OffsetCommit;
use engine::security::{Operation, Resource};
use engine::{EngineError, Namespace, TopicId};
use kafka_errors::{engine_error, group_error};
use kafka_groups::{CommitFence, CommitKind, CommittedPartition, GroupError};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_commit_response::{
    OffsetCommitResponsePartition, OffsetCommitResponseTopic,
};
use kafka_protocol::messages::{OffsetCommitRequest, OffsetCommitResponse, TopicName};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use kafka_topics::{MomentRowQuota, ReadableTopic};

use crate::kafka_server::KafkaServer;
use crate::request::{RequestBody, RequestContext, ResponseResult, encode};
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

/// A topic of a request, and what is wrong with its partitions.
pub(super) struct CommittedTopic {
    /// `None` for a moment of a topic, which nobody can delete.
    id: Option<TopicId>,
    /// The error of each partition, in order; `None` if there is none so far.
    pub(super) errors: Vec<Option<ResponseError>>,
}

impl CommittedTopic {
    /// A topic whose partitions all have the same error.
    pub(super) fn refused(error: ResponseError, partitions: usize) -> CommittedTopic {
        CommittedTopic { id: None, errors: vec![Some(error); partitions] }
    }

    pub(super) fn new(
        readable: &ReadableTopic,
        errors: Vec<Option<ResponseError>>,
    ) -> CommittedTopic {
        let id = match readable {
            ReadableTopic::Present(topic) => Some(topic.id),
            ReadableTopic::Past(_) => None,
        };
        CommittedTopic { id, errors }
    }

    /// Refuses the partitions of a topic that is gone, or about to go. Offsets that are queued
    /// behind the deletion would outlive it, and a later topic of that name would inherit them.
    pub(super) fn refuse_deleted(&mut self, namespace: &Namespace) {
        if self.id.is_some_and(|id| !namespace.accepts_offsets(&id)) {
            let error = ResponseError::UnknownTopicOrPartition;
            self.errors.iter_mut().for_each(|verdict| _ = verdict.get_or_insert(error));
        }
    }
}

pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 2, max: BY_ID };

pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let request = decode_by_id::<OffsetCommitRequest>(&context, body)?;
    if context.version < BY_ID {
        let ids = vec![None; request.topics.len()];
        let response = commit_offsets(&kafka, &context, request, &ids).await;
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
    let names: Vec<TopicName> = request.topics.iter().map(|topic| topic.name.clone()).collect();
    let ids: Vec<Option<TopicId>> = names.iter().map(|name| id_of_name(name)).collect();
    for (topic, id) in request.topics.iter_mut().zip(&ids) {
        let name = id.and_then(|id| kafka.topics.name_of(&id));
        if let Some(name) = name {
            topic.name = TopicName(StrBytes::from_string(name));
        }
    }
    let mut response = commit_offsets(kafka, context, request, &ids).await;
    for (topic, name) in response.topics.iter_mut().zip(names) {
        topic.name = name;
        for partition in &mut topic.partitions {
            if partition.error_code == ResponseError::UnknownTopicOrPartition.code() {
                partition.error_code = ResponseError::UnknownTopicId.code();
            }
        }
    }
    response
}

/// Commits for topics by name. `ids` are those of topics that the client named by id.
async fn commit_offsets(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    request: OffsetCommitRequest,
    ids: &[Option<TopicId>],
) -> OffsetCommitResponse {
    let mut rows = MomentRowQuota::default();
    let mut topics = Vec::with_capacity(request.topics.len());
    let group = Resource::group(&request.group_id);
    let mut result = kafka.authorize(context, Operation::Read, group);
    for (topic, id) in request.topics.iter().zip(ids) {
        topics.push(match result {
            Ok(()) => check_partitions(kafka, context, topic, *id, &mut rows).await,
            Err(error) => CommittedTopic::refused(error, topic.partitions.len()),
        });
    }
    if result.is_ok() {
        result = commit(kafka, context, &request, &mut topics).await;
    }
    if let Err(error) = result {
        let errors = topics.iter_mut().flat_map(|topic| &mut topic.errors);
        errors.for_each(|verdict| _ = verdict.get_or_insert(error));
    }
    let topics = request.topics.into_iter().zip(topics);
    let topics = topics.map(|(topic, committed)| to_response(topic, committed)).collect();
    OffsetCommitResponse::default().with_topics(topics)
}

/// Marks the partitions that do not exist, and those of topics that the client may not read.
async fn check_partitions(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    topic: &OffsetCommitRequestTopic,
    id: Option<TopicId>,
    rows: &mut MomentRowQuota,
) -> CommittedTopic {
    // An id that is not known has no name by which there could be rules.
    let is_unknown_id = context.version >= BY_ID && id_of_name(&topic.name).is_some();
    if !is_unknown_id {
        let name = Resource::topic(&topic.name);
        if let Err(error) = kafka.authorize(context, Operation::Read, name) {
            return CommittedTopic::refused(error, topic.partitions.len());
        }
    }
    let readable = match kafka.topics.resolve_limited(&topic.name, rows).await {
        Ok(readable) => readable,
        Err(error) => return CommittedTopic::refused(error, topic.partitions.len()),
    };
    let verdict = |partition: &OffsetCommitRequestPartition| {
        let view = readable.view(partition.partition_index);
        view.is_none().then_some(ResponseError::UnknownTopicOrPartition)
    };
    let errors = topic.partitions.iter().map(verdict).collect();
    let committed = CommittedTopic::new(&readable, errors);
    // The name may belong to a later topic by now.
    if committed.id.is_some_and(|topic_id| id.is_some_and(|id| id != topic_id)) {
        let error = ResponseError::UnknownTopicOrPartition;
        return CommittedTopic::refused(error, topic.partitions.len());
    }
    committed
}

/// Commits the offsets that have no error yet. A failure applies to all of them.
async fn commit(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: &OffsetCommitRequest,
    topics: &mut [CommittedTopic],
) -> Result<(), ResponseError> {
    if topics.iter().flat_map(|topic| &topic.errors).all(Option::is_some) {
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
        // While the namespace is borrowed, no deletion of a topic can begin.
        let namespace = kafka.engine.namespace();
        topics.iter_mut().for_each(|topic| topic.refuse_deleted(&namespace));
        let offsets = offsets(request, topics, metadata_max);
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
    topics: &mut [CommittedTopic],
    metadata_max: usize,
) -> Vec<OffsetCommit> {
    // As in Kafka, another negative retention expires at once.
    let is_own = request.retention_time_ms != GROUP_RETENTION;
    let retention_ms = is_own.then(|| u64::try_from(request.retention_time_ms).unwrap_or(0));
    let mut offsets = Vec::new();
    for (topic, committed) in request.topics.iter().zip(topics) {
        for (partition, verdict) in topic.partitions.iter().zip(&mut committed.errors) {
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
    let committed = |topic: &OffsetCommitRequestTopic| {
        let indexes = topic.partitions.iter().map(|partition| partition.partition_index);
        kafka.committed_partitions(&topic.name, indexes)
    };
    request.topics.iter().flat_map(committed).collect()
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
    topic: OffsetCommitRequestTopic,
    committed: CommittedTopic,
) -> OffsetCommitResponseTopic {
    let answer = |(partition, verdict): (OffsetCommitRequestPartition, Option<ResponseError>)| {
        OffsetCommitResponsePartition::default()
            .with_partition_index(partition.partition_index)
            .with_error_code(verdict.map_or(0, |error| error.code()))
    };
    let partitions = topic.partitions.into_iter().zip(committed.errors).map(answer).collect();
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
