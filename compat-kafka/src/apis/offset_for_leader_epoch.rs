//! OffsetForLeaderEpoch (23): where an epoch ended, so that a client can detect truncation
//! (KIP-320). On one node there is none: there is one epoch, and it ends where the log does.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderTopicResult,
};
use kafka_protocol::messages::{OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse};
use kafka_protocol::protocol::VersionRange;
use kafka_topics::{MomentRowQuota, ReadableTopic};

use crate::cluster_view::{check_leader_epoch, leader_epoch};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for OffsetForLeaderEpochRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 2, max: 4 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> OffsetForLeaderEpochResponse {
        // Brokers ask without a right to any topic.
        let is_broker = kafka.is_authorized(context, Operation::ClusterAction, Resource::CLUSTER);
        let mut rows = MomentRowQuota::default();
        let mut topics = Vec::with_capacity(self.topics.len());
        for topic in self.topics {
            let authorized = if is_broker {
                Ok(())
            } else {
                kafka.authorize(context, Operation::Describe, Resource::topic(&topic.topic))
            };
            let readable = match authorized {
                Ok(()) => {
                    let resolved = kafka.topics.resolve_within_quota(&topic.topic, &rows).await;
                    let resolved = resolved.ok().flatten();
                    if let Some(ReadableTopic::Past(view)) = &resolved {
                        // The last one may have more than are left.
                        let _ = rows.take(view.partitions.len());
                    }
                    Ok(resolved)
                }
                Err(error) => Err(error),
            };
            let partitions = topic
                .partitions
                .iter()
                .map(|partition| {
                    let answer = EpochEndOffset::default().with_partition(partition.partition);
                    let (current, epoch) = (partition.current_leader_epoch, partition.leader_epoch);
                    match readable.as_ref().map_err(|error| *error).and_then(|readable| {
                        end_offset(readable.as_ref(), partition.partition, current, epoch)
                    }) {
                        Ok((epoch, end)) => answer.with_leader_epoch(epoch).with_end_offset(end),
                        Err(error) => answer
                            .with_error_code(error.code())
                            .with_leader_epoch(-1)
                            .with_end_offset(-1),
                    }
                })
                .collect();
            topics.push(
                OffsetForLeaderTopicResult::default()
                    .with_topic(topic.topic)
                    .with_partitions(partitions),
            );
        }
        OffsetForLeaderEpochResponse::default().with_topics(topics)
    }
}

fn end_offset(
    readable: Option<&ReadableTopic>,
    index: i32,
    current: i32,
    epoch: i32,
) -> Result<(i32, i64), ResponseError> {
    let view = readable.and_then(|topic| topic.view(index));
    let view = view.ok_or(ResponseError::UnknownTopicOrPartition)?;
    check_leader_epoch(&view.partition, current)?;
    if epoch == leader_epoch(&view.partition) {
        return Ok((epoch, view.end().0 as i64));
    }
    // Neither past nor future epochs exist.
    Ok((-1, -1))
}
