//! DeleteRecords (21): removes the records before an offset.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use engine::{EngineError, Topic};
use kafka_errors::engine_error;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_records_request::DeleteRecordsPartition;
use kafka_protocol::messages::delete_records_response::{
    DeleteRecordsPartitionResult, DeleteRecordsTopicResult,
};
use kafka_protocol::messages::{DeleteRecordsRequest, DeleteRecordsResponse};
use kafka_protocol::protocol::VersionRange;

use super::support::find_changeable_topic;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// "Up to the high watermark." The engine uses the same number.
const ALL: i64 = -1;
const UNKNOWN_LOW_WATERMARK: i64 = -1;

impl ApiHandler for DeleteRecordsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DeleteRecordsResponse {
        let mut topics = Vec::with_capacity(self.topics.len());
        for requested in self.topics {
            let topic = kafka
                .authorize(context, Operation::Delete, Resource::topic(&requested.name))
                .and_then(|()| {
                    find_changeable_topic(kafka, &requested.name).map_err(|refusal| refusal.error)
                });
            let mut partitions = Vec::with_capacity(requested.partitions.len());
            for partition in requested.partitions {
                let deleted = match &topic {
                    Ok(topic) => {
                        let deleted = delete(kafka, topic, &partition).await;
                        if let Ok(start) = deleted {
                            let (name, index) = (&topic.name, partition.partition_index);
                            let resource = format_args!("TOPIC {name}/{index} below {start}");
                            kafka.record_change(context, resource);
                        }
                        deleted
                    }
                    Err(error) => Err(*error),
                };
                partitions.push(to_result(partition.partition_index, deleted));
            }
            topics.push(
                DeleteRecordsTopicResult::default()
                    .with_name(requested.name)
                    .with_partitions(partitions),
            );
        }
        DeleteRecordsResponse::default().with_topics(topics)
    }
}

fn to_result(index: i32, deleted: Result<i64, ResponseError>) -> DeleteRecordsPartitionResult {
    let result = DeleteRecordsPartitionResult::default().with_partition_index(index);
    match deleted {
        Ok(low_watermark) => result.with_low_watermark(low_watermark),
        Err(error) => {
            result.with_low_watermark(UNKNOWN_LOW_WATERMARK).with_error_code(error.code())
        }
    }
}

/// Checks that records of a partition may be deleted: not in a topic that is only compacted.
fn check_deletable(kafka: &KafkaServer, topic: &Topic, index: i32) -> Result<(), ResponseError> {
    topic.partition(index).map_err(|error| engine_error(&error))?;
    let defaults = kafka.engine.topic_defaults();
    if topic.config.is_compacted(&defaults) && !topic.config.has_delete_policy(&defaults) {
        return Err(ResponseError::PolicyViolation);
    }
    Ok(())
}

async fn delete(
    kafka: &KafkaServer,
    topic: &Topic,
    requested: &DeleteRecordsPartition,
) -> Result<i64, ResponseError> {
    check_deletable(kafka, topic, requested.partition_index)?;
    if requested.offset < ALL {
        return Err(ResponseError::OffsetOutOfRange);
    }
    let start = kafka
        .engine
        .topics()
        .delete_records(topic, requested.partition_index, requested.offset)
        .await;
    start.map(|start| start.0 as i64).map_err(|error| {
        if let EngineError::Pinned { .. } = &error {
            // Kafka's response has an error code and no message.
            tracing::info!(%error, "DeleteRecords is refused");
        }
        engine_error(&error)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kafka_protocol::messages::delete_records_request::DeleteRecordsTopic;

    use super::super::support::new_topic_id;
    use super::*;
    use crate::apis::test_server::{ask, kafka, name, topic, topic_with_records};

    async fn before(kafka: &Arc<KafkaServer>, topic: &str, index: i32, offset: i64) -> (i16, i64) {
        let partition =
            DeleteRecordsPartition::default().with_partition_index(index).with_offset(offset);
        let topic =
            DeleteRecordsTopic::default().with_name(name(topic)).with_partitions(vec![partition]);
        let request = DeleteRecordsRequest::default().with_topics(vec![topic]);
        let result = ask(kafka, 2, request).await.topics.remove(0).partitions.remove(0);
        (result.error_code, result.low_watermark)
    }

    #[tokio::test]
    async fn the_start_moves_up_and_never_back() {
        let kafka = kafka();
        topic_with_records(&kafka, "a", 5).await;
        assert_eq!(before(&kafka, "a", 0, 2).await, (0, 2));
        assert_eq!(before(&kafka, "a", 0, 1).await, (0, 2));
        assert_eq!(before(&kafka, "a", 0, -1).await, (0, 5));
        assert_eq!(before(&kafka, "a", 0, 5).await, (0, 5));
        assert_eq!(kafka.engine.topics().named("a").unwrap().partitions[0].start().0, 5);
    }

    #[tokio::test]
    async fn what_is_not_in_the_log_cannot_be_deleted() {
        let kafka = kafka();
        topic_with_records(&kafka, "a", 5).await;
        for (topic, index, offset, error) in [
            ("a", 0, 6, ResponseError::OffsetOutOfRange),
            ("a", 0, -2, ResponseError::OffsetOutOfRange),
            ("a", 0, i64::MIN, ResponseError::OffsetOutOfRange),
            ("a", 1, 0, ResponseError::UnknownTopicOrPartition),
            ("a", -1, 0, ResponseError::UnknownTopicOrPartition),
            ("b", 0, 0, ResponseError::UnknownTopicOrPartition),
            ("a@s5", 0, 0, ResponseError::InvalidTopicException),
        ] {
            let answer = before(&kafka, topic, index, offset).await;
            assert_eq!(answer, (error.code(), -1), "{topic} {index} {offset}");
        }
    }

    #[tokio::test]
    async fn what_a_pin_holds_is_refused_until_the_pin_is_gone() {
        let kafka = kafka();
        topic_with_records(&kafka, "a", 5).await;
        let (cut, _) = kafka
            .engine
            .wait_until_closed(hlc::Cut::ALL, engine::WaitPolicy::AtFrontier)
            .await
            .unwrap();
        let expires = hlc::SysTime(kafka.engine.wall_now().0 + 3_600_000);
        kafka.engine.pins().set("p", cut, engine::WaitPolicy::Refuse, expires, None).await.unwrap();
        let refused = (ResponseError::PolicyViolation.code(), -1);
        assert_eq!(before(&kafka, "a", 0, 2).await, refused);
        assert_eq!(before(&kafka, "a", 0, -1).await, refused);
        kafka.engine.pins().remove("p").await.unwrap();
        assert_eq!(before(&kafka, "a", 0, 2).await, (0, 2));
    }

    #[tokio::test]
    async fn a_topic_that_is_only_compacted_deletes_no_records() {
        let kafka = kafka();
        for (name, policy, code) in [
            ("compacted", "compact", ResponseError::PolicyViolation.code()),
            ("both", "compact,delete", 0),
            ("neither", "", 0),
        ] {
            let configs = BTreeMap::from([("cleanup.policy".to_owned(), policy.to_owned())]);
            kafka
                .engine
                .topics()
                .create(name, 1, configs, new_topic_id(&kafka), false)
                .await
                .unwrap();
            assert_eq!(before(&kafka, name, 0, 0).await.0, code, "{name}");
            let unknown = ResponseError::UnknownTopicOrPartition.code();
            assert_eq!(before(&kafka, name, 7, 0).await.0, unknown, "{name}");
        }
    }

    #[tokio::test]
    async fn every_version_can_be_answered() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        for version in 0..=2 {
            let partition = DeleteRecordsPartition::default().with_offset(-1);
            let topic =
                DeleteRecordsTopic::default().with_name(name("a")).with_partitions(vec![partition]);
            let request = DeleteRecordsRequest::default().with_topics(vec![topic]);
            let answer = ask(&kafka, version, request).await;
            assert_eq!(answer.topics[0].partitions[0].error_code, 0);
        }
    }
}
