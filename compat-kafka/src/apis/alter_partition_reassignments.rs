//! AlterPartitionReassignments (45): there is one broker, so a partition may only be where it is.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::error_message;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_partition_reassignments_request::ReassignablePartition;
use kafka_protocol::messages::alter_partition_reassignments_response::{
    ReassignablePartitionResponse, ReassignableTopicResponse,
};
use kafka_protocol::messages::{
    AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse,
};
use kafka_protocol::protocol::VersionRange;

use super::cluster_security::shown_to_each;
use super::support::{KafkaApiError, authorize, check_replicas, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for AlterPartitionReassignmentsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> AlterPartitionReassignmentsResponse {
        let allowed = authorize(kafka, context, Operation::Alter, Resource::CLUSTER);
        let (code, message) = error_fields(&allowed);
        let response = AlterPartitionReassignmentsResponse::default()
            .with_allow_replication_factor_change(self.allow_replication_factor_change)
            .with_error_code(code)
            .with_error_message(message);
        if allowed.is_err() {
            return response;
        }
        let topics = self.topics.into_iter().map(|topic| {
            let of_partition = |partition: &ReassignablePartition| {
                let (code, message) = error_fields(&reassign(kafka, &topic.name, partition));
                ReassignablePartitionResponse::default()
                    .with_partition_index(partition.partition_index)
                    .with_error_code(code)
                    .with_error_message(message)
            };
            let partitions = topic.partitions.iter().map(of_partition).collect();
            ReassignableTopicResponse::default().with_name(topic.name).with_partitions(partitions)
        });
        response.with_responses(topics.collect())
    }
}

fn reassign(
    kafka: &KafkaServer,
    name: &str,
    partition: &ReassignablePartition,
) -> Result<(), KafkaApiError> {
    let unknown =
        |message: String| KafkaApiError::new(ResponseError::UnknownTopicOrPartition, message);
    let (index, shown_name) = (partition.partition_index, shown_to_each(name));
    let topic = kafka.engine.topics().named(name);
    let topic =
        topic.ok_or_else(|| unknown(format!("Unable to find a topic named {shown_name}.")))?;
    if topic.partition(index).is_err() {
        return Err(unknown(format!("Unable to find partition {shown_name}:{index}.")));
    }
    match &partition.replicas {
        Some(replicas) => check_replicas(kafka, replicas),
        None => {
            let error = ResponseError::NoReassignmentInProgress;
            Err(KafkaApiError::new(error, error_message(error).to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::BrokerId;
    use kafka_protocol::messages::alter_partition_reassignments_request::ReassignableTopic;

    use super::*;
    use crate::apis::test_server::{ask, kafka, name, topic};

    #[tokio::test]
    async fn a_partition_stays_where_it_is_and_goes_nowhere_else() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        for (topic, index, replicas, error, words) in [
            ("a", 0, Some(vec![1]), None, ""),
            (
                "a",
                0,
                Some(vec![2]),
                Some(ResponseError::InvalidReplicaAssignment),
                "no such broker",
            ),
            ("a", 0, Some(vec![1, 2]), Some(ResponseError::InvalidReplicaAssignment), "broker 2"),
            ("a", 0, Some(vec![]), Some(ResponseError::InvalidReplicaAssignment), "empty"),
            (
                "a",
                0,
                None,
                Some(ResponseError::NoReassignmentInProgress),
                "No partition reassignment",
            ),
            ("a", 1, Some(vec![1]), Some(ResponseError::UnknownTopicOrPartition), "partition a:1"),
            ("b", 0, None, Some(ResponseError::UnknownTopicOrPartition), "topic named b"),
        ] {
            let brokers = |ids: Vec<i32>| ids.into_iter().map(BrokerId).collect();
            let partition = ReassignablePartition::default()
                .with_partition_index(index)
                .with_replicas(replicas.clone().map(brokers));
            let requested = ReassignableTopic::default()
                .with_name(name(topic))
                .with_partitions(vec![partition]);
            let request =
                AlterPartitionReassignmentsRequest::default().with_topics(vec![requested]);
            for version in 0..=1 {
                let answer = ask(&kafka, version, request.clone()).await;
                assert_eq!((answer.error_code, &answer.error_message), (0, &None));
                let result = &answer.responses[0].partitions[0];
                let code = error.map_or(0, |error: ResponseError| error.code());
                assert_eq!(result.error_code, code, "{topic} {index} {replicas:?}");
                let message = result.error_message.as_ref().map_or("", |message| message);
                assert!(message.contains(words), "{message}");
            }
        }
    }
}
