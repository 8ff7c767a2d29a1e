//! DescribeTopicPartitions (75): topics in the order of their names, a page of partitions at a
//! time.

use std::collections::BTreeSet;
use std::sync::Arc;

use engine::check_topic_name;
use engine::security::{Operation, Resource};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
};
use kafka_protocol::messages::{
    DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, TopicName,
};
use kafka_protocol::protocol::VersionRange;
use kafka_topics::ReadableTopic;
use uuid::Uuid;

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// The most partitions in one response (`max.request.partition.size.limit`).
const PARTITIONS_MAX: usize = 2000;
/// The operations that the present allows: all.
const ALL_OPERATIONS: i32 = i32::MAX;
/// The past can be read and described.
const MOMENT_OPERATIONS: i32 = 0x0508;
const NOT_REQUESTED: i32 = i32::MIN;

impl ApiHandler for DescribeTopicPartitionsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeTopicPartitionsResponse {
        let mut response = DescribeTopicPartitionsResponse::default().with_next_cursor(None);
        let Ok(page) = TopicPartitionPage::from(kafka, &self) else {
            response.topics = self
                .topics
                .into_iter()
                .map(|topic| error_topic(topic.name, ResponseError::InvalidRequest, NOT_REQUESTED))
                .collect();
            return response;
        };
        let mut partitions_left = page.partitions_max;
        let (names, denied): (Vec<TopicName>, Vec<TopicName>) =
            page.names.into_iter().partition(|name| {
                kafka.is_authorized(context, Operation::Describe, Resource::topic(name))
            });
        let operations =
            |name: &TopicName| kafka.authorized_operations(context, Resource::topic(name));
        for name in names {
            if partitions_left == 0 {
                response.next_cursor = Some(cursor(name, 0));
                break;
            }
            let first = if Some(&name) == page.first.as_ref() { page.from } else { 0 };
            let readable = match find_topic(kafka, &name).await {
                Ok(readable) => readable,
                // A topic that the request did not name was deleted meanwhile.
                Err(ResponseError::UnknownTopicOrPartition) if page.all => continue,
                Err(error) => {
                    let operations = operations(&name);
                    response.topics.push(error_topic(name, error, operations));
                    continue;
                }
            };
            let count = readable.topic().partitions.len();
            let first = first.min(count);
            let until = count.min(first + partitions_left);
            partitions_left -= until - first;
            let mut topic = describe_topic(kafka, &readable, name.clone(), first..until);
            topic.topic_authorized_operations &= operations(&name);
            response.topics.push(topic);
            if until < count {
                response.next_cursor = Some(cursor(name, until));
                break;
            }
        }
        // As in Kafka: each page has all of them.
        if !page.all {
            let error = ResponseError::TopicAuthorizationFailed;
            let denied = denied.into_iter().map(|name| error_topic(name, error, NOT_REQUESTED));
            response.topics.extend(denied);
        }
        response
    }
}

/// The topics that a request asks for.
struct TopicPartitionPage {
    /// In order, from the first one in the response.
    names: BTreeSet<TopicName>,
    /// True if the request named none, and these are all topics.
    all: bool,
    /// The topic that does not start at its first partition, and the partition where it starts.
    first: Option<TopicName>,
    from: usize,
    partitions_max: usize,
}

/// No response can have had this cursor.
struct InvalidCursor;

impl TopicPartitionPage {
    fn from(
        kafka: &KafkaServer,
        request: &DescribeTopicPartitionsRequest,
    ) -> Result<TopicPartitionPage, InvalidCursor> {
        let is_all = request.topics.is_empty();
        let first = request.cursor.as_ref().map(|cursor| cursor.topic_name.clone());
        let mut names: BTreeSet<TopicName> = if is_all {
            let topics = kafka.engine.topics().all();
            topics.iter().map(|topic| TopicName(topic.name.to_string().into())).collect()
        } else {
            request.topics.iter().map(|topic| topic.name.clone()).collect()
        };
        if let Some(first) = &first {
            // A topic that was not named may have been deleted since the last response.
            if !is_all && !names.contains(first) {
                return Err(InvalidCursor);
            }
            names = names.split_off(first);
        }
        let from = request.cursor.as_ref().map_or(0, |cursor| cursor.partition_index);
        let from = usize::try_from(from).map_err(|_| InvalidCursor)?;
        let partitions_max = usize::try_from(request.response_partition_limit).unwrap_or(0);
        Ok(TopicPartitionPage {
            names,
            all: is_all,
            first,
            from,
            partitions_max: partitions_max.clamp(1, PARTITIONS_MAX),
        })
    }
}

async fn find_topic(kafka: &Arc<KafkaServer>, name: &str) -> Result<ReadableTopic, ResponseError> {
    match kafka.topics.resolve(name).await {
        Ok(Some(readable)) => Ok(readable),
        Ok(None) if check_topic_name(name).is_err() => Err(ResponseError::InvalidTopicException),
        Ok(None) => Err(ResponseError::UnknownTopicOrPartition),
        Err(refused) => Err(refused.error()),
    }
}

fn describe_topic(
    kafka: &KafkaServer,
    readable: &ReadableTopic,
    name: TopicName,
    indexes: std::ops::Range<usize>,
) -> DescribeTopicPartitionsResponseTopic {
    let partitions = readable.topic().partitions[indexes].iter().map(|partition| {
        let leadership = kafka.cluster.leadership(partition);
        DescribeTopicPartitionsResponsePartition::default()
            .with_partition_index(partition.index as i32)
            .with_leader_id(leadership.leader)
            .with_leader_epoch(leadership.epoch)
            .with_replica_nodes(leadership.replicas)
            .with_isr_nodes(leadership.in_sync)
            .with_eligible_leader_replicas(Some(Vec::new()))
            .with_last_known_elr(Some(Vec::new()))
    });
    let (id, operations) = match readable {
        ReadableTopic::Present(topic) => (topic.id, ALL_OPERATIONS),
        ReadableTopic::Past(_) => (kafka.topics.moment_id(&name), MOMENT_OPERATIONS),
    };
    DescribeTopicPartitionsResponseTopic::default()
        .with_name(Some(name))
        .with_topic_id(Uuid::from_bytes(id))
        .with_partitions(partitions.collect())
        .with_topic_authorized_operations(operations)
}

fn error_topic(
    name: TopicName,
    error: ResponseError,
    operations: i32,
) -> DescribeTopicPartitionsResponseTopic {
    DescribeTopicPartitionsResponseTopic::default()
        .with_error_code(error.code())
        .with_name(Some(name))
        .with_topic_authorized_operations(operations)
}

fn cursor(name: TopicName, partition: usize) -> Cursor {
    Cursor::default().with_topic_name(name).with_partition_index(partition as i32)
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::BrokerId;

    use kafka_protocol::messages::describe_topic_partitions_request::{
        Cursor as AskedCursor, TopicRequest,
    };

    use super::*;
    use crate::apis::test_server::{ask, kafka, name, topic};

    fn named(names: &[&str]) -> DescribeTopicPartitionsRequest {
        let topics = names.iter().map(|n| TopicRequest::default().with_name(name(n)));
        DescribeTopicPartitionsRequest::default()
            .with_topics(topics.collect())
            .with_response_partition_limit(2000)
            .with_cursor(None)
    }

    fn from(topic: &str, index: i32) -> Option<AskedCursor> {
        Some(AskedCursor::default().with_topic_name(name(topic)).with_partition_index(index))
    }

    /// Name, error, partitions.
    fn topics(response: &DescribeTopicPartitionsResponse) -> Vec<(&str, i16, Vec<i32>)> {
        let plain = |topic: &'_ DescribeTopicPartitionsResponseTopic| -> (i16, Vec<i32>) {
            (topic.error_code, topic.partitions.iter().map(|p| p.partition_index).collect())
        };
        response
            .topics
            .iter()
            .map(|topic| {
                let (code, partitions) = plain(topic);
                (&**topic.name.as_ref().unwrap() as &str, code, partitions)
            })
            .collect()
    }

    #[tokio::test]
    async fn pages_follow_one_another_without_gap_or_overlap() {
        let kafka = kafka();
        for (name, partitions) in [("b", 3), ("a", 2), ("c", 1)] {
            topic(&kafka, name, partitions).await;
        }
        for limit in 1..=7 {
            for requested in [named(&[]), named(&["c", "a", "b", "a"])] {
                let mut listed = Vec::new();
                let mut request = requested.with_response_partition_limit(limit);
                loop {
                    let page = ask(&kafka, 0, request.clone()).await;
                    let before = listed.len();
                    for topic in &page.topics {
                        let name = topic.name.as_ref().unwrap().to_string();
                        listed.extend(
                            topic.partitions.iter().map(|p| (name.clone(), p.partition_index)),
                        );
                    }
                    assert!(listed.len() - before <= limit as usize && listed.len() > before);
                    let Some(next) = page.next_cursor else { break };
                    request.cursor = from(&next.topic_name, next.partition_index);
                }
                let expected = [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)];
                assert_eq!(
                    listed,
                    expected.map(|(name, index)| (name.to_owned(), index)),
                    "{limit}"
                );
            }
        }
    }

    #[tokio::test]
    async fn each_partition_has_this_node_and_no_other() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let response = ask(&kafka, 0, named(&["a"])).await;
        let topic = &response.topics[0];
        assert_eq!(topic.topic_id, Uuid::from_bytes(kafka.engine.topics().named("a").unwrap().id));
        assert_eq!((topic.is_internal, topic.topic_authorized_operations), (false, 3576));
        let partition = &topic.partitions[0];
        let node = BrokerId(1);
        assert_eq!((partition.leader_id, partition.leader_epoch), (node, 0));
        assert_eq!((&partition.replica_nodes, &partition.isr_nodes), (&vec![node], &vec![node]));
        assert_eq!(partition.eligible_leader_replicas, Some(Vec::new()));
        assert!(response.next_cursor.is_none());
    }

    #[tokio::test]
    async fn a_topic_that_is_not_there_is_said_so_only_if_it_was_named() {
        let kafka = kafka();
        topic(&kafka, "c", 1).await;
        let unknown = ResponseError::UnknownTopicOrPartition.code();
        let invalid = ResponseError::InvalidTopicException.code();
        let response = ask(&kafka, 0, named(&["b", "c", "d e"])).await;
        assert_eq!(
            topics(&response),
            [("b", unknown, vec![]), ("c", 0, vec![0]), ("d e", invalid, vec![])]
        );
        let after_deleted = named(&[]).with_cursor(from("b", 5));
        assert_eq!(topics(&ask(&kafka, 0, after_deleted).await), [("c", 0, vec![0])]);
    }

    #[tokio::test]
    async fn a_cursor_that_no_answer_had_is_refused() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let invalid = ResponseError::InvalidRequest.code();
        for cursor in [from("b", 0), from("a", -1)] {
            let response = ask(&kafka, 0, named(&["a"]).with_cursor(cursor)).await;
            assert_eq!(topics(&response), [("a", invalid, vec![])]);
        }
        let behind = ask(&kafka, 0, named(&["a"]).with_cursor(from("a", i32::MAX))).await;
        assert_eq!(topics(&behind), [("a", 0, vec![])]);
    }

    #[tokio::test]
    async fn a_moment_shows_the_partitions_that_there_were() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        let created = kafka.engine.topics().named("a").unwrap().created;
        let moment = format!("a@sh{:016x}", hlc::Cut::through(created).bound().bits());
        kafka.engine.topics().add_partitions("a", 2, false).await.unwrap();
        let response = ask(&kafka, 0, named(&[&moment, "a"])).await;
        assert_eq!(topics(&response), [("a", 0, vec![0, 1]), (&*moment, 0, vec![0])]);
        let id = Uuid::from_bytes(kafka.topics.moment_id(&moment));
        assert_eq!(response.topics[1].topic_id, id);
    }
}
