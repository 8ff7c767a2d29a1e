//! TxnOffsetCommit (28): offsets that are committed if and when the transaction is.

use std::sync::Arc;

use engine::Namespace;
use engine::groups::OffsetCommit;
use engine::security::{Operation, Resource};
use kafka_errors::{group_error, transaction_error};
use kafka_groups::{CommitFence, CommitKind, CommittedPartition, GroupError};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use kafka_protocol::messages::txn_offset_commit_response::{
    TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic,
};
use kafka_protocol::messages::{TxnOffsetCommitRequest, TxnOffsetCommitResponse};
use kafka_protocol::protocol::VersionRange;
use kafka_topics::MomentRowQuota;
use kafka_transactions::{ProducerIdAndEpoch, TransactionScope};

use super::offset_commit::{CommittedTopic, coordinator_error, is_metadata_too_long};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// From here on, the group need not be added to the transaction before (KIP-890).
const ADDS_GROUP: i16 = 5;

impl ApiHandler for TxnOffsetCommitRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 5 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> TxnOffsetCommitResponse {
        let (id, group) = (&self.transactional_id, &self.group_id);
        let allowed = kafka
            .authorize(context, Operation::Write, Resource::transactional_id(id))
            .and_then(|()| kafka.authorize(context, Operation::Read, Resource::group(group)));
        let mut rows = MomentRowQuota::default();
        let mut topics = Vec::with_capacity(self.topics.len());
        for topic in &self.topics {
            topics.push(match allowed {
                Ok(()) => check_partitions(kafka, context, topic, &mut rows).await,
                Err(error) => CommittedTopic::refused(error, topic.partitions.len()),
            });
        }
        if let Err(error) = commit(kafka, context, &self, &mut topics).await {
            let errors = topics.iter_mut().flat_map(|topic| &mut topic.errors);
            errors.for_each(|verdict| _ = verdict.get_or_insert(error));
        }
        let topics = self.topics.into_iter().zip(topics);
        let topics = topics.map(|(topic, committed)| to_response(topic, committed)).collect();
        TxnOffsetCommitResponse::default().with_topics(topics)
    }
}

/// Marks the partitions that do not exist or that the client may not read, and the offsets with too
/// much metadata.
async fn check_partitions(
    kafka: &Arc<KafkaServer>,
    context: &RequestContext,
    topic: &TxnOffsetCommitRequestTopic,
    rows: &mut MomentRowQuota,
) -> CommittedTopic {
    let readable = match kafka.readable_for(context, Operation::Read, &topic.name, rows).await {
        Ok(readable) => readable,
        Err(error) => return CommittedTopic::refused(error, topic.partitions.len()),
    };
    let metadata_max = kafka.options.offset_metadata_bytes_max;
    let verdict = |partition: &TxnOffsetCommitRequestPartition| {
        if readable.view(partition.partition_index).is_none() {
            return Some(ResponseError::UnknownTopicOrPartition);
        }
        let metadata = partition.committed_metadata.as_deref().unwrap_or_default();
        is_metadata_too_long(metadata, metadata_max)
            .then_some(ResponseError::OffsetMetadataTooLarge)
    };
    CommittedTopic::new(&readable, topic.partitions.iter().map(verdict).collect())
}

/// Adds the offsets that have no error to the transaction. A failure applies to all of them.
async fn commit(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: &TxnOffsetCommitRequest,
    topics: &mut [CommittedTopic],
) -> Result<(), ResponseError> {
    if topics.iter().flat_map(|topic| &topic.errors).all(Option::is_some) {
        return Ok(());
    }
    let scope = TransactionScope {
        transactional_id: request.transactional_id.to_string(),
        may_begin: context.version >= ADDS_GROUP,
        holder: kafka.holder(context),
    };
    let producer = ProducerIdAndEpoch { id: request.producer_id.0, epoch: request.producer_epoch };
    let fence = CommitFence {
        member_id: request.member_id.to_string(),
        group_instance_id: request.group_instance_id.as_ref().map(|id| id.to_string()),
        generation_id: request.generation_id,
        kind: CommitKind::Transactional,
        knows_epochs: true,
    };
    let group = &request.group_id;
    let offsets = |namespace: &Namespace| {
        topics.iter_mut().for_each(|topic| topic.refuse_deleted(namespace));
        offsets(request, topics)
    };
    let queue =
        || kafka.coordinators.transactions.begin_add_offsets(&scope, producer, group, offsets);
    let partitions = || committed_partitions(kafka, request);
    let groups = kafka.groups_for(context);
    let queued = groups.commit(group, &fence, &partitions, queue).map_err(fence_error)?;
    let added = queued.map_err(|error| match transaction_error(&error) {
        ResponseError::ProducerFenced => ResponseError::InvalidProducerEpoch,
        error => error,
    })?;
    let Some(added) = added else { return Ok(()) };
    added.wait().await.map(drop).map_err(|error| {
        tracing::error!(%error, group = group.as_str(), "offsets cannot be added to a transaction");
        coordinator_error(&error)
    })
}

/// The partitions of a commit that exist.
fn committed_partitions(
    kafka: &KafkaServer,
    request: &TxnOffsetCommitRequest,
) -> Vec<CommittedPartition> {
    let committed = |topic: &TxnOffsetCommitRequestTopic| {
        let indexes = topic.partitions.iter().map(|partition| partition.partition_index);
        kafka.committed_partitions(&topic.name, indexes)
    };
    request.topics.iter().flat_map(committed).collect()
}

fn fence_error(error: GroupError) -> ResponseError {
    match error {
        GroupError::GroupIdNotFound | GroupError::StaleMemberEpoch => {
            ResponseError::IllegalGeneration
        }
        error => group_error(error),
    }
}

/// The offsets without an error.
fn offsets(request: &TxnOffsetCommitRequest, topics: &[CommittedTopic]) -> Vec<OffsetCommit> {
    let topics = request.topics.iter().zip(topics);
    let topic_response = |(topic, committed): (&TxnOffsetCommitRequestTopic, &CommittedTopic)| {
        let partitions = topic.partitions.iter().zip(&committed.errors);
        let fit = partitions.filter(|(_, verdict)| verdict.is_none());
        fit.map(|(partition, _)| offset(topic, partition)).collect::<Vec<_>>()
    };
    topics.flat_map(topic_response).collect()
}

fn offset(
    topic: &TxnOffsetCommitRequestTopic,
    partition: &TxnOffsetCommitRequestPartition,
) -> OffsetCommit {
    OffsetCommit {
        topic: topic.name.to_string(),
        partition: partition.partition_index.try_into().expect("the partition was found"),
        offset: partition.committed_offset,
        leader_epoch: partition.committed_leader_epoch,
        metadata: partition.committed_metadata.as_deref().unwrap_or_default().to_owned(),
        retention_ms: None,
    }
}

fn to_response(
    topic: TxnOffsetCommitRequestTopic,
    committed: CommittedTopic,
) -> TxnOffsetCommitResponseTopic {
    let answer =
        |(partition, verdict): (TxnOffsetCommitRequestPartition, Option<ResponseError>)| {
            TxnOffsetCommitResponsePartition::default()
                .with_partition_index(partition.partition_index)
                .with_error_code(verdict.map_or(0, |error| error.code()))
        };
    let partitions = topic.partitions.into_iter().zip(committed.errors).map(answer).collect();
    TxnOffsetCommitResponseTopic::default().with_name(topic.name).with_partitions(partitions)
}
