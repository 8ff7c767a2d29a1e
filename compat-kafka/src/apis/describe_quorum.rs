//! DescribeQuorum (55): this server alone decides. An offset of the log of the cluster is the stamp
//! of an event here.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::error_message;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_quorum_response::{
    Listener, Node, PartitionData, ReplicaState, TopicData,
};
use kafka_protocol::messages::{BrokerId, DescribeQuorumRequest, DescribeQuorumResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::support::{CLUSTER_METADATA_TOPIC, authorize, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// The one partition of the one topic that can be asked for.
const PARTITION: i32 = 0;
/// From here on the response says where the nodes are.
const NODES_SINCE: i16 = 2;
/// The name of the listener through which the node is reached.
const LISTENER: &str = "CONTROLLER";

impl ApiHandler for DescribeQuorumRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeQuorumResponse {
        let allowed = authorize(kafka, context, Operation::Describe, Resource::CLUSTER);
        if allowed.is_err() {
            let (code, message) = error_fields(&allowed);
            return DescribeQuorumResponse::default()
                .with_error_code(code)
                .with_error_message(message);
        }
        let is_quorum = match self.topics.as_slice() {
            [topic] if *topic.topic_name == *CLUSTER_METADATA_TOPIC => {
                matches!(&topic.partitions[..], [partition] if partition.partition_index == PARTITION)
            }
            _ => false,
        };
        let topics = self.topics.into_iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|requested| {
                if is_quorum { quorum(kafka) } else { unknown(requested.partition_index) }
            });
            TopicData::default()
                .with_topic_name(topic.topic_name)
                .with_partitions(partitions.collect())
        });
        let has_nodes = is_quorum && context.version >= NODES_SINCE;
        let nodes = if has_nodes { nodes(kafka, context) } else { Vec::new() };
        DescribeQuorumResponse::default()
            .with_error_message(None)
            .with_topics(topics.collect())
            .with_nodes(nodes)
    }
}

fn quorum(kafka: &KafkaServer) -> PartitionData {
    let leader = kafka.cluster.controller();
    let end = i64::try_from(kafka.engine.topics().last_change().bits()).unwrap_or(i64::MAX);
    let now = i64::try_from(kafka.engine.wall_now().0).unwrap_or(i64::MAX);
    let voter = ReplicaState::default()
        .with_replica_id(leader)
        .with_log_end_offset(end)
        .with_last_fetch_timestamp(now)
        .with_last_caught_up_timestamp(now);
    PartitionData::default()
        .with_partition_index(PARTITION)
        .with_error_message(None)
        .with_leader_id(leader)
        .with_high_watermark(end)
        .with_current_voters(vec![voter])
}

fn unknown(partition: i32) -> PartitionData {
    let error = ResponseError::UnknownTopicOrPartition;
    PartitionData::default()
        .with_partition_index(partition)
        .with_error_code(error.code())
        .with_error_message(Some(error_message(error)))
        .with_leader_id(BrokerId(-1))
}

fn nodes(kafka: &KafkaServer, context: &RequestContext) -> Vec<Node> {
    let nodes = kafka.cluster.nodes(context).into_iter().map(|node| {
        let listener = Listener::default()
            .with_name(StrBytes::from_static_str(LISTENER))
            .with_host(node.host)
            .with_port(node.port);
        Node::default().with_node_id(node.id).with_listeners(vec![listener])
    });
    nodes.collect()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::describe_quorum_request;

    use super::*;
    use crate::apis::test_server::{ask, kafka, name, topic};

    fn of(topic: &str, partitions: &[i32]) -> DescribeQuorumRequest {
        let partition = |index: &i32| {
            describe_quorum_request::PartitionData::default().with_partition_index(*index)
        };
        let topic = describe_quorum_request::TopicData::default()
            .with_topic_name(name(topic))
            .with_partitions(partitions.iter().map(partition).collect());
        DescribeQuorumRequest::default().with_topics(vec![topic])
    }

    #[tokio::test]
    async fn the_quorum_is_this_server_and_nothing_else_has_one() {
        let kafka = kafka();
        topic(&kafka, "a", 1).await;
        for version in 0..=2 {
            let answer = ask(&kafka, version, of(CLUSTER_METADATA_TOPIC, &[0])).await;
            assert_eq!(answer.error_code, 0);
            let quorum = &answer.topics[0].partitions[0];
            assert_eq!((quorum.error_code, quorum.leader_id), (0, BrokerId(1)));
            let [voter] = &quorum.current_voters[..] else { panic!("{quorum:?}") };
            assert_eq!(voter.log_end_offset, quorum.high_watermark);
            assert!(quorum.high_watermark > 0 && quorum.observers.is_empty());
            assert_eq!(answer.nodes.len(), usize::from(version == 2));
            for topics in [of("a", &[0]), of(CLUSTER_METADATA_TOPIC, &[1]), of("b", &[])] {
                let answer = ask(&kafka, version, topics).await;
                let unknown = ResponseError::UnknownTopicOrPartition.code();
                let mut partitions = answer.topics.iter().flat_map(|topic| &topic.partitions);
                assert!(partitions.all(|partition| partition.error_code == unknown));
            }
        }
    }
}
