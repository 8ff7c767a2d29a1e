//! OffsetFetch (9): the committed offsets of groups.
//!
//! A partition without a committed offset gets offset -1, which is no error. So does a missing
//! group. A member of the consumer protocol has to name its epoch (KIP-848); classic groups ignore
//! it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use engine::EngineError;
use engine::groups::{CommittedOffset, GroupOffset};
use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_fetch_request::{
    OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
};
use kafka_protocol::messages::offset_fetch_response::{
    OffsetFetchResponseGroup, OffsetFetchResponsePartition, OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use kafka_protocol::messages::{GroupId, OffsetFetchRequest, OffsetFetchResponse, TopicName};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::offset_commit::coordinator_error;
use crate::kafka_server::KafkaServer;
use crate::request::{RequestBody, RequestContext, ResponseResult, encode};
use crate::topic_id_versions::{BY_ID, decode_by_id, encode_by_id, id_of_name, name_of_id};

/// From here on, a response has a top-level error in addition to those of its partitions.
const TOP_LEVEL_ERROR: i16 = 2;
/// From here on, a request asks for several groups.
const BATCHED: i16 = 8;
const NONE: i64 = -1;

pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: BY_ID };

pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let request = decode_by_id::<OffsetFetchRequest>(&context, body)?;
    if context.version < BY_ID {
        let response = fetch_offsets(&kafka, &context, request);
        return encode::<OffsetFetchRequest>(&context, &response).map(Some);
    }
    let response = fetch_by_id(&kafka, &context, request);
    encode_by_id::<OffsetFetchRequest>(&context, &response).map(Some)
}

/// Fetches for topics whose names stand for ids. A request for all offsets of a group leaves out
/// topics that do not exist.
fn fetch_by_id(
    kafka: &KafkaServer,
    context: &RequestContext,
    mut request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    let mut ids = HashMap::new();
    for topic in request.groups.iter_mut().flat_map(|group| group.topics.iter_mut().flatten()) {
        let name = id_of_name(&topic.name).and_then(|id| kafka.topics.name_of(&id));
        if let Some(name) = name {
            let name = TopicName(StrBytes::from_string(name));
            ids.insert(name.clone(), std::mem::replace(&mut topic.name, name));
        }
    }
    let mut response = fetch_offsets(kafka, context, request);
    for group in &mut response.groups {
        group.topics.retain_mut(|topic| {
            let is_unknown = id_of_name(&topic.name).is_some();
            if is_unknown {
                for partition in &mut topic.partitions {
                    partition.error_code = ResponseError::UnknownTopicId.code();
                }
                return true;
            }
            let id = ids.get(&topic.name).cloned();
            let id = id.or_else(|| kafka.topics.id_of(&topic.name).as_ref().map(name_of_id));
            id.map(|id| topic.name = id).is_some()
        });
    }
    response
}

fn fetch_offsets(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: OffsetFetchRequest,
) -> OffsetFetchResponse {
    let mut deduplicator = OffsetFetchDeduplicator::default();
    if context.version >= BATCHED {
        let groups =
            request.groups.into_iter().filter_map(|group| deduplicator.remove_duplicates(group));
        let groups = groups
            .map(|group| to_response(kafka, context, group, request.require_stable))
            .collect();
        return OffsetFetchResponse::default().with_groups(groups);
    }
    let topics = request.topics.map(|topics| topics.into_iter().map(as_batched).collect());
    let group =
        OffsetFetchRequestGroup::default().with_group_id(request.group_id).with_topics(topics);
    let group = deduplicator.remove_duplicates(group).expect("nothing was asked before");
    unbatched(to_response(kafka, context, group, request.require_stable), context.version)
}

/// The offsets that a request has named already: each gets one response. Kafka repeats them, but
/// its clients send sets, and a few bytes can ask for all that a group has committed.
#[derive(Default)]
struct OffsetFetchDeduplicator {
    groups: HashSet<GroupId>,
    /// Groups of which all offsets were requested.
    all_offsets: HashSet<GroupId>,
    partitions: HashMap<(GroupId, TopicName), HashSet<i32>>,
}

impl OffsetFetchDeduplicator {
    /// The part of `group` that is new; `None` if nothing is.
    fn remove_duplicates(
        &mut self,
        mut group: OffsetFetchRequestGroup,
    ) -> Option<OffsetFetchRequestGroup> {
        let id = &group.group_id;
        let is_first = self.groups.insert(id.clone());
        let Some(topics) = &mut group.topics else {
            return self.all_offsets.insert(id.clone()).then_some(group);
        };
        for topic in &mut *topics {
            // A name is hashed once: it may be long, and have millions of indexes.
            let indexes = self.partitions.entry((id.clone(), topic.name.clone())).or_default();
            topic.partition_indexes.retain(|index| indexes.insert(*index));
        }
        let is_any = topics.iter().any(|topic| !topic.partition_indexes.is_empty());
        (is_first || is_any).then_some(group)
    }
}

fn as_batched(topic: OffsetFetchRequestTopic) -> OffsetFetchRequestTopics {
    OffsetFetchRequestTopics::default()
        .with_name(topic.name)
        .with_partition_indexes(topic.partition_indexes)
}

fn to_response(
    kafka: &KafkaServer,
    context: &RequestContext,
    requested: OffsetFetchRequestGroup,
    require_stable: bool,
) -> OffsetFetchResponseGroup {
    let group = Resource::group(&requested.group_id);
    if let Err(error) = kafka.authorize(context, Operation::Describe, group) {
        return refused(requested, error);
    }
    let member = requested.member_id.as_deref();
    if let Err(error) =
        kafka.coordinators.groups.check_fetch(&requested.group_id, member, requested.member_epoch)
    {
        return refused(requested, group_error(error));
    }
    // Before the committed ones are read: offsets that are not pending by now are among them.
    let pending = if require_stable {
        kafka.coordinators.transactions.pending_offsets(&requested.group_id)
    } else {
        HashSet::new()
    };
    let mut response = committed(kafka, context, requested);
    if !pending.is_empty() {
        mark_unstable(&pending, &mut response);
    }
    response
}

/// Marks the offsets that an open transaction may still commit (KIP-447), unless the client may not
/// see them.
fn mark_unstable(pending: &HashSet<(String, u32)>, response: &mut OffsetFetchResponseGroup) {
    for topic in &mut response.topics {
        for partition in &mut topic.partitions {
            if partition.error_code != 0 {
                continue;
            }
            let Ok(index) = u32::try_from(partition.partition_index) else { continue };
            if pending.contains(&(topic.name.to_string(), index)) {
                *partition = OffsetFetchResponsePartitions::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(ResponseError::UnstableOffsetCommit.code())
                    .with_committed_offset(NONE)
                    .with_committed_leader_epoch(-1);
            }
        }
    }
}

fn committed(
    kafka: &KafkaServer,
    context: &RequestContext,
    group: OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup {
    let offsets_of = |topic| match check_topic(kafka, context, topic) {
        Ok(()) => topic_offsets(kafka, &group.group_id, topic),
        Err(error) => Ok(error_topic(topic, error)),
    };
    let offsets = match &group.topics {
        None => all_offsets(kafka, context, &group.group_id),
        Some(topics) => topics.iter().map(offsets_of).collect(),
    };
    match offsets {
        Ok(topics) => OffsetFetchResponseGroup::default().with_topics(topics),
        Err(error) => {
            if !matches!(error, EngineError::Loading(_)) {
                tracing::error!(group = group.group_id.as_str(), %error, "offsets cannot be read");
            }
            return refused(group, coordinator_error(&error));
        }
    }
    .with_group_id(group.group_id)
}

fn refused(group: OffsetFetchRequestGroup, error: ResponseError) -> OffsetFetchResponseGroup {
    let topics = group.topics.iter().flatten().map(|topic| error_topic(topic, error));
    OffsetFetchResponseGroup::default()
        .with_topics(topics.collect())
        .with_error_code(error.code())
        .with_group_id(group.group_id)
}

/// Fails if the client may not know of the topic.
fn check_topic(
    kafka: &KafkaServer,
    context: &RequestContext,
    topic: &OffsetFetchRequestTopics,
) -> Result<(), ResponseError> {
    // An id that is not known has no name by which there could be rules.
    if context.version >= BY_ID && id_of_name(&topic.name).is_some() {
        return Ok(());
    }
    kafka.authorize(context, Operation::Describe, Resource::topic(&topic.name))
}

/// All committed offsets of the group, by topic, without those of topics of which the client may
/// not know.
fn all_offsets(
    kafka: &KafkaServer,
    context: &RequestContext,
    group: &str,
) -> Result<Vec<OffsetFetchResponseTopics>, EngineError> {
    let offsets = kafka.engine.groups().committed_offsets(Some(group))?;
    let by_topic = offsets.chunk_by(|a, b| a.topic == b.topic);
    let visible = by_topic.filter(|offsets| {
        let topic = Resource::topic(&offsets[0].topic);
        kafka.is_authorized(context, Operation::Describe, topic)
    });
    Ok(visible.map(|offsets| topic(offsets[0].topic.clone(), offsets)).collect())
}

fn topic(name: String, offsets: &[GroupOffset]) -> OffsetFetchResponseTopics {
    let partition =
        |offset: &GroupOffset| partition(offset.partition as i32, Some(offset.committed.clone()));
    OffsetFetchResponseTopics::default()
        .with_name(TopicName(StrBytes::from_string(name)))
        .with_partitions(offsets.iter().map(partition).collect())
}

fn topic_offsets(
    kafka: &KafkaServer,
    group: &str,
    topic: &OffsetFetchRequestTopics,
) -> Result<OffsetFetchResponseTopics, EngineError> {
    let partitions = topic.partition_indexes.iter().map(|&index| {
        let committed = match u32::try_from(index) {
            Ok(index) => kafka.engine.groups().committed_offset(group, &topic.name, index)?,
            Err(_) => None,
        };
        Ok(partition(index, committed))
    });
    let partitions = partitions.collect::<Result<_, EngineError>>()?;
    let name = topic.name.clone();
    Ok(OffsetFetchResponseTopics::default().with_name(name).with_partitions(partitions))
}

fn partition(index: i32, committed: Option<CommittedOffset>) -> OffsetFetchResponsePartitions {
    let answer = OffsetFetchResponsePartitions::default().with_partition_index(index);
    match committed {
        None => answer.with_committed_offset(NONE),
        Some(committed) => answer
            .with_committed_offset(committed.offset)
            .with_committed_leader_epoch(committed.leader_epoch)
            .with_metadata(Some(StrBytes::from_string(committed.metadata))),
    }
}

fn error_topic(
    topic: &OffsetFetchRequestTopics,
    error: ResponseError,
) -> OffsetFetchResponseTopics {
    let refused = |&index| partition(index, None).with_error_code(error.code());
    OffsetFetchResponseTopics::default()
        .with_name(topic.name.clone())
        .with_partitions(topic.partition_indexes.iter().map(refused).collect())
}

/// The response for one group, in the format before requests had several.
fn unbatched(group: OffsetFetchResponseGroup, version: i16) -> OffsetFetchResponse {
    let error = if version >= TOP_LEVEL_ERROR { group.error_code } else { 0 };
    OffsetFetchResponse::default()
        .with_error_code(error)
        .with_topics(group.topics.into_iter().map(unbatched_topic).collect())
}

fn unbatched_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic {
    let partition = |partition: OffsetFetchResponsePartitions| {
        OffsetFetchResponsePartition::default()
            .with_partition_index(partition.partition_index)
            .with_committed_offset(partition.committed_offset)
            .with_committed_leader_epoch(partition.committed_leader_epoch)
            .with_metadata(partition.metadata)
            .with_error_code(partition.error_code)
    };
    OffsetFetchResponseTopic::default()
        .with_name(topic.name)
        .with_partitions(topic.partitions.into_iter().map(partition).collect())
}
