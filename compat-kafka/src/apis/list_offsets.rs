//! ListOffsets (2): the start and the end of a log, and the offset of a time.
//!
//! A time finds the first record at or after it, exactly, even if timestamps are out of order.

use std::collections::HashMap;
use std::sync::Arc;

use engine::security::Operation;
use engine::{EngineError, OffsetAndTimestamp};
use hlc::UserTime;
use kafka_errors::engine_error;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::list_offsets_response::{
    ListOffsetsPartitionResponse, ListOffsetsTopicResponse,
};
use kafka_protocol::messages::{ListOffsetsRequest, ListOffsetsResponse, TopicName};
use kafka_protocol::protocol::VersionRange;
use kafka_topics::{MomentRowQuota, ReadableTopic};

use super::fetch::READ_COMMITTED;
use crate::cluster_view::{check_leader_epoch, leader_epoch};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const LATEST_BY_TIME: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;
const NONE: i64 = -1;
/// Offset, timestamp, leader epoch.
type ListOffsetsEntry = (i64, i64, i32);

impl ApiHandler for ListOffsetsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 10 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ListOffsetsResponse {
        // As in Kafka: a duplicate partition gets an error in both places.
        let mut counts: HashMap<TopicName, HashMap<i32, usize>> = HashMap::new();
        for topic in &self.topics {
            let times = counts.entry(topic.name.clone()).or_default();
            for partition in &topic.partitions {
                *times.entry(partition.partition_index).or_default() += 1;
            }
        }
        let mut rows = MomentRowQuota::default();
        let mut topics = Vec::with_capacity(self.topics.len());
        for topic in self.topics {
            let readable =
                kafka.readable_for(context, Operation::Describe, &topic.name, &mut rows).await;
            let times = &counts[&topic.name];
            let mut partitions = Vec::with_capacity(topic.partitions.len());
            for partition in topic.partitions {
                let index = partition.partition_index;
                let offset = match &readable {
                    Err(ResponseError::TopicAuthorizationFailed) => {
                        Err(ResponseError::TopicAuthorizationFailed)
                    }
                    _ if times[&index] > 1 => Err(ResponseError::InvalidRequest),
                    Ok(readable) => find_offset(
                        kafka,
                        readable,
                        index,
                        partition.current_leader_epoch,
                        self.isolation_level,
                        partition.timestamp,
                    )
                    .and_then(|offset| readable.check_partition_kept(index).map(|()| offset)),
                    Err(error) => Err(*error),
                };
                let answer = ListOffsetsPartitionResponse::default()
                    .with_partition_index(partition.partition_index);
                partitions.push(match offset {
                    Ok((offset, time, epoch)) => {
                        // Responses have no epoch before version 4.
                        let epoch = if context.version >= 4 { epoch } else { -1 };
                        answer.with_offset(offset).with_timestamp(time).with_leader_epoch(epoch)
                    }
                    Err(error) => answer
                        .with_error_code(error.code())
                        .with_offset(NONE)
                        .with_timestamp(NONE)
                        .with_leader_epoch(-1),
                });
            }
            topics.push(
                ListOffsetsTopicResponse::default()
                    .with_name(topic.name)
                    .with_partitions(partitions),
            );
        }
        ListOffsetsResponse::default().with_topics(topics)
    }
}

fn find_offset(
    kafka: &KafkaServer,
    readable: &ReadableTopic,
    index: i32,
    current_leader_epoch: i32,
    isolation_level: i8,
    time: i64,
) -> Result<ListOffsetsEntry, ResponseError> {
    let (mut view, stable_end) =
        readable.view_and_stable_end(index).ok_or(ResponseError::UnknownTopicOrPartition)?;
    if isolation_level == READ_COMMITTED {
        view.end = Some(stable_end);
    }
    check_leader_epoch(&view.partition, current_leader_epoch)?;
    let epoch = leader_epoch(&view.partition);
    let offset_of = |result: Result<Option<OffsetAndTimestamp>, EngineError>| match result {
        Ok(Some(record)) => Ok((record.offset.0 as i64, record.time.0, record.epoch as i32)),
        Ok(None) => Ok((NONE, NONE, -1)),
        Err(error) => {
            tracing::error!(%error, "a time cannot be looked up");
            Err(engine_error(&error))
        }
    };
    match time {
        LATEST => Ok((view.end().0 as i64, NONE, epoch)),
        EARLIEST | EARLIEST_LOCAL => Ok((view.start().0 as i64, NONE, epoch)),
        LATEST_BY_TIME => offset_of(kafka.engine.seek().latest_by_user_time(&view)),
        // There is no tiered storage.
        LATEST_TIERED | EARLIEST_PENDING_UPLOAD => Ok((NONE, NONE, -1)),
        time if time < 0 => Err(ResponseError::UnsupportedVersion),
        time => offset_of(kafka.engine.seek().first_at_or_after(&view, UserTime(time))),
    }
}
