//! ShareAcknowledge (79): a member of a share group is done with records (KIP-932), or needs more
//! time (KIP-1222).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::TopicId;
use engine::security::{Operation, Resource};
use kafka_errors::error_message;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::share_acknowledge_request::AcknowledgePartition;
use kafka_protocol::messages::share_acknowledge_response::{
    PartitionData, ShareAcknowledgeTopicResponse,
};
use kafka_protocol::messages::{GroupId, ShareAcknowledgeResponse};
use kafka_protocol::protocol::VersionRange;
use kafka_share_groups::{
    AcknowledgedBatch, CLOSING_EPOCH, OPENING_EPOCH, SessionKey, SessionPartition, SharePartitions,
};
use uuid::Uuid;

use crate::kafka_server::KafkaServer;
use crate::request::{RequestBody, RequestContext, ResponseResult};
use crate::share_versions::{RENEWS, decode_share_acknowledge, encode_share_acknowledge};

pub(crate) const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: RENEWS };

/// The longest id of a member.
const MEMBER_ID_CHARS_MAX: usize = 36;

/// The acknowledgements of a request, by partition.
pub(super) type Acknowledgements = BTreeMap<SessionPartition, Vec<AcknowledgedBatch>>;

/// The result of each partition's acknowledgements.
pub(super) type AcknowledgeResults = BTreeMap<SessionPartition, Result<(), ResponseError>>;

pub(crate) async fn handle(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: RequestBody,
) -> ResponseResult {
    let (request, is_renewing) = decode_share_acknowledge(&context, body)?;
    let partition = |id: Uuid| {
        move |partition: AcknowledgePartition| {
            let batches =
                partition.acknowledgement_batches.into_iter().map(|batch| AcknowledgedBatch {
                    first: batch.first_offset,
                    last: batch.last_offset,
                    kinds: batch.acknowledge_types,
                });
            ((id.into_bytes(), partition.partition_index), batches.collect())
        }
    };
    let topics = request.topics.into_iter();
    let acknowledged: Acknowledgements = topics
        .flat_map(|topic| topic.partitions.into_iter().map(partition(topic.topic_id)))
        .collect();
    let epoch = request.share_session_epoch;
    let (group, member) = (request.group_id.as_ref(), request.member_id.as_deref());
    let result = match session_key(&kafka, &context, group, member) {
        Ok(key) => {
            acknowledge_in_session(&kafka, &context, key, epoch, &acknowledged, is_renewing).await
        }
        Err(error) => Err(error),
    };
    let (response, lock_ms) = match result {
        Ok(results) => {
            let lock_ms = group.map_or(0, |group| lock_ms(&kafka, group));
            (ShareAcknowledgeResponse::default().with_responses(to_topics(results)), lock_ms)
        }
        Err(error) => {
            let refused = ShareAcknowledgeResponse::default()
                .with_error_code(error.code())
                .with_error_message(Some(error_message(error)));
            (refused, 0)
        }
    };
    encode_share_acknowledge(&context, &response, lock_ms).map(Some)
}

/// The member of a group that a request names, if the client may be one.
pub(super) fn session_key(
    kafka: &KafkaServer,
    context: &RequestContext,
    group: Option<&GroupId>,
    member: Option<&str>,
) -> Result<SessionKey, ResponseError> {
    let group = group.ok_or(ResponseError::InvalidRequest)?;
    kafka.authorize(context, Operation::Read, Resource::group(group))?;
    let is_member = |id: &&str| !id.is_empty() && id.encode_utf16().count() <= MEMBER_ID_CHARS_MAX;
    let member = member.filter(is_member).ok_or(ResponseError::InvalidRequest)?;
    Ok((group.to_string(), member.to_owned()))
}

/// For how long a group's members have records, in milliseconds.
pub(super) fn lock_ms(kafka: &KafkaServer, group: &str) -> i32 {
    let lock = kafka.coordinators.shares.options_of(group).record_lock;
    i32::try_from(lock.as_millis()).unwrap_or(i32::MAX)
}

async fn acknowledge_in_session(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    key: SessionKey,
    epoch: i32,
    acknowledged: &Acknowledgements,
    is_renewing: bool,
) -> Result<AcknowledgeResults, ResponseError> {
    if epoch == OPENING_EPOCH {
        return Err(ResponseError::InvalidShareSessionEpoch);
    }
    let nothing = || std::iter::empty::<SessionPartition>();
    kafka.coordinators.shares.sessions.continue_session(&key, epoch, nothing(), nothing())?;
    let topics = acknowledged.keys().map(|(id, _)| *id);
    let refused = kafka.refused_topics(context, Operation::Read, topics);
    let results = acknowledge(kafka, &key, acknowledged, is_renewing, &refused).await;
    if epoch == CLOSING_EPOCH {
        kafka.coordinators.shares.end_session(&key, None);
    }
    Ok(results)
}

/// Takes what a member says of its records, and waits until that is stored. Of `refused` topics it
/// may say nothing.
pub(super) async fn acknowledge(
    kafka: &Arc<KafkaServer>,
    key: &SessionKey,
    acknowledged: &Acknowledgements,
    is_renewing: bool,
    refused: &BTreeSet<TopicId>,
) -> AcknowledgeResults {
    let (group, member) = key;
    let member: Arc<str> = member.as_str().into();
    let progress = match kafka.coordinators.shares.progress(group) {
        Ok(progress) => progress,
        Err(error) => return acknowledged.keys().map(|key| (*key, Err(error))).collect(),
    };
    let acknowledge =
        |(id, index): &SessionPartition, batches: &Vec<AcknowledgedBatch>| {
            if !AcknowledgedBatch::are_valid(batches, is_renewing) {
                return Err(ResponseError::InvalidRequest);
            }
            if refused.contains(id) {
                return Err(ResponseError::TopicAuthorizationFailed);
            }
            let key = (*id, existing(kafka, id, *index)?);
            kafka.coordinators.shares.update(&progress, key, |partition, now, options| {
                match partition.acknowledge(now, &member, batches, options) {
                    Ok(is_changed) => (Ok(is_changed), is_changed),
                    Err(error) => (Err(error.code()), false),
                }
            })?
        };
    let results: BTreeMap<SessionPartition, Result<bool, ResponseError>> =
        acknowledged.iter().map(|(key, batches)| (*key, acknowledge(key, batches))).collect();
    let saved = SharePartitions::wait_until_saved(&progress).await;
    let result = |is_saved: Result<bool, ResponseError>| match is_saved {
        Ok(true) => saved,
        // A renewal alone is not stored.
        Ok(false) => Ok(()),
        Err(error) => Err(error),
    };
    results.into_iter().map(|(key, acknowledged)| (key, result(acknowledged))).collect()
}

/// The number of a partition, if there is such a partition.
fn existing(kafka: &KafkaServer, id: &TopicId, index: i32) -> Result<u32, ResponseError> {
    let readable = kafka.topics.by_id(id).ok_or(ResponseError::UnknownTopicId)?;
    readable.view(index).ok_or(ResponseError::UnknownTopicOrPartition)?;
    Ok(index as u32)
}

fn to_topics(results: AcknowledgeResults) -> Vec<ShareAcknowledgeTopicResponse> {
    let mut topics: Vec<ShareAcknowledgeTopicResponse> = Vec::new();
    for ((id, index), result) in results {
        let id = Uuid::from_bytes(id);
        if topics.last().is_none_or(|last| last.topic_id != id) {
            topics.push(ShareAcknowledgeTopicResponse::default().with_topic_id(id));
        }
        let error = result.err();
        let partition = PartitionData::default()
            .with_partition_index(index)
            .with_error_code(error.map_or(0, |error| error.code()))
            .with_error_message(error.map(error_message));
        topics.last_mut().expect("it was just pushed").partitions.push(partition);
    }
    topics
}
