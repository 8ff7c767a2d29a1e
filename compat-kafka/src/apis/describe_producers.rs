//! DescribeProducers (61): the producers that a partition remembers, and their open transactions
//! (KIP-664).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use engine::security::{Operation, Resource};
use engine::{ActiveProducer, Topic};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_producers_request::TopicRequest;
use kafka_protocol::messages::describe_producers_response::{
    PartitionResponse, ProducerState, TopicResponse,
};
use kafka_protocol::messages::{
    DescribeProducersRequest, DescribeProducersResponse, ProducerId, TopicName,
};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::support::{authorize, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// The coordinator never moves. Its epoch is in the markers of transactions.
const COORDINATOR_EPOCH: i32 = 0;
/// In Kafka, a partition knows no epoch of a coordinator until there was a marker.
const NO_COORDINATOR_EPOCH: i32 = -1;

impl ApiHandler for DescribeProducersRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeProducersResponse {
        // A partition may have many producers, and is described once.
        let mut described: HashMap<TopicName, HashSet<i32>> = HashMap::new();
        let mut topics = Vec::with_capacity(self.topics.len());
        for mut topic in self.topics {
            let indexes = described.entry(topic.name.clone()).or_default();
            topic.partition_indexes.retain(|index| indexes.insert(*index));
            topics.push(describe_topic(kafka, context, topic));
        }
        DescribeProducersResponse::default().with_topics(topics)
    }
}

fn describe_topic(
    kafka: &KafkaServer,
    context: &RequestContext,
    requested: TopicRequest,
) -> TopicResponse {
    let allowed = authorize(kafka, context, Operation::Read, Resource::topic(&requested.name));
    let topic = kafka.engine.topics().named(&requested.name);
    let describe = |index: &i32| match &allowed {
        Ok(()) => describe_partition(kafka, topic.as_deref(), *index),
        Err(_) => {
            let (code, message) = error_fields(&allowed);
            PartitionResponse::default()
                .with_partition_index(*index)
                .with_error_code(code)
                .with_error_message(message)
        }
    };
    let partitions = requested.partition_indexes.iter().map(describe).collect();
    TopicResponse::default().with_name(requested.name).with_partitions(partitions)
}

fn describe_partition(kafka: &KafkaServer, topic: Option<&Topic>, index: i32) -> PartitionResponse {
    let response =
        PartitionResponse::default().with_partition_index(index).with_error_message(None);
    let Some(partition) = topic.and_then(|topic| topic.partition(index).ok()) else {
        let error = ResponseError::UnknownTopicOrPartition;
        return response
            .with_error_code(error.code())
            .with_error_message(Some(StrBytes::from_string(error.to_string())));
    };
    let producers = kafka.engine.active_producers(partition).into_iter().map(to_response);
    response.with_active_producers(producers.collect())
}

fn to_response(producer: ActiveProducer) -> ProducerState {
    let ActiveProducer { id, epoch, last_sequence, last_stamp, open_from, has_marker } = producer;
    let coordinator_epoch = if has_marker { COORDINATOR_EPOCH } else { NO_COORDINATOR_EPOCH };
    ProducerState::default()
        .with_producer_id(ProducerId(id))
        .with_producer_epoch(i32::from(epoch))
        .with_last_sequence(last_sequence.unwrap_or(-1))
        .with_last_timestamp(last_stamp.time().0 as i64)
        .with_coordinator_epoch(coordinator_epoch)
        .with_current_txn_start_offset(open_from.map_or(-1, |first| first.0 as i64))
}
