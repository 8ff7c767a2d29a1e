//! ElectLeaders (43): each partition has its one replica as its leader, so there is nothing to
//! elect.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::error_message;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::elect_leaders_response::{PartitionResult, ReplicaElectionResult};
use kafka_protocol::messages::{ElectLeadersRequest, ElectLeadersResponse, TopicName};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::cluster_security::shown_to_each;
use super::support::{KafkaApiError, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// The types of elections: of the preferred leader, and of any.
const PREFERRED: i8 = 0;
const UNCLEAN: i8 = 1;

impl ApiHandler for ElectLeadersRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ElectLeadersResponse {
        let allowed = kafka.authorize(context, Operation::Alter, Resource::CLUSTER);
        let checked = match self.election_type {
            PREFERRED | UNCLEAN => Ok(()),
            _ => Err(ResponseError::InvalidRequest),
        };
        if let Err(error) = allowed.and(checked) {
            let results = match context.version {
                // It has no error of the whole.
                0 => refuse_all(self, error),
                _ => Vec::new(),
            };
            let code = if context.version == 0 { 0 } else { error.code() };
            return ElectLeadersResponse::default()
                .with_error_code(code)
                .with_replica_election_results(results);
        }
        let results = match self.topic_partitions {
            // Partitions that have the right leader are not in the answer.
            None => kafka.engine.topics().all().iter().map(|topic| unneeded(&topic.name)).collect(),
            Some(topics) => topics
                .into_iter()
                .map(|requested| elect(kafka, requested.topic, requested.partitions))
                .collect(),
        };
        ElectLeadersResponse::default().with_replica_election_results(results)
    }
}

fn unneeded(topic: &str) -> ReplicaElectionResult {
    ReplicaElectionResult::default().with_topic(TopicName(StrBytes::from_string(topic.to_owned())))
}

fn elect(kafka: &KafkaServer, name: TopicName, partitions: Vec<i32>) -> ReplicaElectionResult {
    let topic = kafka.engine.topics().named(&name);
    let results = partitions.into_iter().map(|partition| {
        let error = match &topic {
            None => KafkaApiError::new(
                ResponseError::UnknownTopicOrPartition,
                format!("No such topic as {}", shown_to_each(&name)),
            ),
            Some(topic) if topic.partition(partition).is_err() => KafkaApiError::new(
                ResponseError::UnknownTopicOrPartition,
                format!("No such partition as {}-{partition}", shown_to_each(&name)),
            ),
            Some(_) => {
                let error = ResponseError::ElectionNotNeeded;
                KafkaApiError::new(error, error_message(error).to_string())
            }
        };
        let (code, message) = error_fields(&Err(error));
        PartitionResult::default()
            .with_partition_id(partition)
            .with_error_code(code)
            .with_error_message(message)
    });
    let results = results.collect();
    ReplicaElectionResult::default().with_topic(name).with_partition_result(results)
}

fn refuse_all(request: ElectLeadersRequest, error: ResponseError) -> Vec<ReplicaElectionResult> {
    let refuse = |partition: i32| {
        PartitionResult::default()
            .with_partition_id(partition)
            .with_error_code(error.code())
            .with_error_message(Some(error_message(error)))
    };
    let topics = request.topic_partitions.unwrap_or_default().into_iter();
    let refused = topics.map(|requested| {
        let results = requested.partitions.into_iter().map(refuse).collect();
        ReplicaElectionResult::default().with_topic(requested.topic).with_partition_result(results)
    });
    refused.collect()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::elect_leaders_request::TopicPartitions;

    use super::super::cluster_security::tests::fixture;
    use super::*;
    use crate::apis::test_server::{ask, kafka, name, topic};

    fn asked(topic: &str, partitions: &[i32]) -> TopicPartitions {
        TopicPartitions::default().with_topic(name(topic)).with_partitions(partitions.to_vec())
    }

    #[tokio::test]
    async fn nothing_is_elected_and_what_is_not_there_is_named() {
        let kafka = kafka();
        topic(&kafka, "a", 2).await;
        for version in 0..=2 {
            let topics = vec![asked("a", &[0, 1, 2]), asked("b", &[0])];
            let request = ElectLeadersRequest::default().with_topic_partitions(Some(topics));
            let answer = ask(&kafka, version, request).await;
            assert_eq!(answer.error_code, 0);
            let results = answer.replica_election_results.iter().flat_map(|topic| {
                topic.partition_result.iter().map(|result| {
                    let message = result.error_message.as_ref().map(ToString::to_string);
                    (result.error_code, message.unwrap())
                })
            });
            let (needless, unknown) = (
                ResponseError::ElectionNotNeeded.code(),
                ResponseError::UnknownTopicOrPartition.code(),
            );
            let text = "Leader election not needed for topic partition.";
            assert_eq!(
                results.collect::<Vec<_>>(),
                [
                    (needless, text.to_owned()),
                    (needless, text.to_owned()),
                    (unknown, "No such partition as a-2".to_owned()),
                    (unknown, "No such topic as b".to_owned()),
                ]
            );
            let request = ElectLeadersRequest::default().with_topic_partitions(None);
            let answer = ask(&kafka, version, request).await;
            assert_eq!(answer.error_code, 0);
            assert!(
                answer
                    .replica_election_results
                    .iter()
                    .all(|topic| topic.partition_result.is_empty())
            );
        }
        let unknown_type = ElectLeadersRequest::default().with_election_type(2);
        let answer = ask(&kafka, 2, unknown_type).await;
        assert_eq!(answer.error_code, ResponseError::InvalidRequest.code());
    }

    #[tokio::test]
    async fn a_refusal_is_said_in_every_version() {
        let fixture = fixture();
        let code = ResponseError::ClusterAuthorizationFailed.code();
        for version in 0..=2 {
            let request =
                ElectLeadersRequest::default().with_topic_partitions(Some(vec![asked("a", &[0])]));
            let answer = fixture.ask_as("x", version, request).await;
            let answer_code = match version {
                0 => answer.replica_election_results[0].partition_result[0].error_code,
                _ => answer.error_code,
            };
            assert_eq!(answer_code, code, "version {version}");
        }
    }
}
