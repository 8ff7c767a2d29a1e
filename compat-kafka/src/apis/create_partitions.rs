//! CreatePartitions (37).

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::create_partitions_request::CreatePartitionsTopic;
use kafka_protocol::messages::create_partitions_response::CreatePartitionsTopicResult;
use kafka_protocol::messages::{CreatePartitionsRequest, CreatePartitionsResponse, TopicName};
use kafka_protocol::protocol::VersionRange;

use super::support::{
    KafkaApiError, authorize, check_replicas, duplicates, error_fields, find_changeable_topic,
};
use crate::kafka_server::KafkaServer;
use crate::quotas::MutationQuota;
use crate::request::{ApiHandler, RequestContext};

/// From here on clients know that they may create too much (KIP-599).
const STRICT_SINCE: i16 = 3;

impl ApiHandler for CreatePartitionsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 3 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> CreatePartitionsResponse {
        let repeated = duplicates(self.topics.iter().map(|topic| topic.name.clone()));
        let mut results = Vec::with_capacity(self.topics.len());
        let quota = context.mutation_quota(STRICT_SINCE);
        for topic in self.topics.iter().filter(|topic| !repeated.contains(&topic.name)) {
            let name = Resource::topic(&topic.name);
            let added = match authorize(kafka, context, Operation::Alter, name) {
                Ok(()) => add(kafka, topic, self.validate_only, &quota).await,
                denied => denied,
            };
            results.push(to_result(topic.name.clone(), added));
        }
        let duplicate =
            || KafkaApiError::new(ResponseError::InvalidRequest, "Duplicate topic name.");
        results.extend(repeated.into_iter().map(|name| to_result(name, Err(duplicate()))));
        CreatePartitionsResponse::default().with_results(results)
    }
}

fn to_result(name: TopicName, added: Result<(), KafkaApiError>) -> CreatePartitionsTopicResult {
    let (code, message) = error_fields(&added);
    CreatePartitionsTopicResult::default()
        .with_name(name)
        .with_error_code(code)
        .with_error_message(message)
}

async fn add(
    kafka: &KafkaServer,
    topic: &CreatePartitionsTopic,
    validate_only: bool,
    quota: &MutationQuota<'_>,
) -> Result<(), KafkaApiError> {
    let name = &*topic.name;
    let count = find_changeable_topic(kafka, name)?.partitions.len();
    let total = u32::try_from(topic.count).unwrap_or(0);
    if total as usize == count {
        return Err(KafkaApiError::new(
            ResponseError::InvalidPartitions,
            format!("Topic already has {count} partition(s)."),
        ));
    }
    // The engine refuses a total that is lower than now or too high. Then the number of assignments
    // does not matter.
    if let Some(added) = (total as usize).checked_sub(count) {
        check_assignments(kafka, topic, added)?;
    }
    let holder = kafka.engine.security().holder(&quota.requester);
    let topics = kafka.engine.topics().on_behalf_of(&holder);
    let adding = topics.add_partitions(name, total, validate_only);
    if validate_only {
        adding.await?
    } else {
        quota.charge((total as usize).saturating_sub(count), adding).await??;
        let resource = format_args!("TOPIC {name} with {total} partitions");
        kafka.record_change_by(&quota.requester, "CreatePartitions", resource);
    }
    Ok(())
}

fn check_assignments(
    kafka: &KafkaServer,
    topic: &CreatePartitionsTopic,
    added: usize,
) -> Result<(), KafkaApiError> {
    let Some(assignments) = &topic.assignments else { return Ok(()) };
    let assigned = assignments.len();
    if assigned != added {
        return Err(KafkaApiError::new(
            ResponseError::InvalidReplicaAssignment,
            format!(
                "Attempted to add {added} additional partition(s), but only {assigned} \
                 assignment(s) were specified."
            ),
        ));
    }
    assignments.iter().try_for_each(|assignment| check_replicas(kafka, &assignment.broker_ids))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::BrokerId;
    use kafka_protocol::messages::create_partitions_request::CreatePartitionsAssignment;

    use super::*;
    use crate::apis::test_server::{ask, kafka, name, topic};

    fn to(topic: &str, count: i32) -> CreatePartitionsTopic {
        CreatePartitionsTopic::default()
            .with_name(name(topic))
            .with_count(count)
            .with_assignments(None)
    }

    fn assigned(count: i32, brokers: &[i32]) -> CreatePartitionsTopic {
        let assignment = |broker: &i32| {
            CreatePartitionsAssignment::default().with_broker_ids(vec![BrokerId(*broker)])
        };
        to("a", count).with_assignments(Some(brokers.iter().map(assignment).collect()))
    }

    async fn add_one(kafka: &Arc<KafkaServer>, topic: CreatePartitionsTopic) -> (i16, String) {
        let request = CreatePartitionsRequest::default().with_topics(vec![topic]);
        let result = ask(kafka, 3, request).await.results.remove(0);
        (result.error_code, result.error_message.map_or(String::new(), |text| text.to_string()))
    }

    fn count(kafka: &KafkaServer) -> usize {
        kafka.engine.topics().named("a").unwrap().partitions.len()
    }

    #[tokio::test]
    async fn partitions_are_added_in_every_version() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        for version in 0..=3 {
            let request = CreatePartitionsRequest::default()
                .with_topics(vec![to("a", 2 + i32::from(version))]);
            let results = ask(&kafka, version, request).await.results;
            assert_eq!((results[0].error_code, &results[0].error_message), (0, &None));
        }
        assert_eq!(count(&kafka), 5);
        assert_eq!(add_one(&kafka, assigned(7, &[1, 1])).await.0, 0);
        assert_eq!(count(&kafka), 7);
    }

    #[tokio::test]
    async fn what_is_refused_says_why_and_adds_nothing() {
        let kafka = kafka();
        topic(&kafka, "a", 3).await;
        let assignment = ResponseError::InvalidReplicaAssignment;
        for (topic, error, words) in [
            (to("a", 3), ResponseError::InvalidPartitions, "already has 3 partition(s)"),
            (to("a", 2), ResponseError::InvalidPartitions, "would not be an increase"),
            (to("a", -1), ResponseError::InvalidPartitions, ""),
            (to("a", i32::MAX), ResponseError::InvalidPartitions, "10000"),
            (to("b", 3), ResponseError::UnknownTopicOrPartition, "does not exist"),
            (to("a@s5", 4), ResponseError::InvalidTopicException, "read-only"),
            (assigned(5, &[1]), assignment, "Attempted to add 2"),
            (assigned(4, &[2]), assignment, "no such broker"),
        ] {
            let (code, message) = add_one(&kafka, topic.clone()).await;
            assert_eq!(code, error.code(), "{topic:?}: {message}");
            assert!(message.contains(words), "{message}");
        }
        assert_eq!(count(&kafka), 3);
    }

    #[tokio::test]
    async fn what_is_only_validated_or_comes_twice_is_not_done() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let duplicate =
            CreatePartitionsRequest::default().with_topics(vec![to("a", 2), to("a", 3)]);
        let results = ask(&kafka, 3, duplicate).await.results;
        assert_eq!(results.len(), 1);
        assert_eq!(results[0].error_code, ResponseError::InvalidRequest.code());
        let tried = CreatePartitionsRequest::default()
            .with_topics(vec![to("a", 9)])
            .with_validate_only(true);
        assert_eq!(ask(&kafka, 3, tried).await.results[0].error_code, 0);
        assert_eq!(count(&kafka), 1);
    }
}
