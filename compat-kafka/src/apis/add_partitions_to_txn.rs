//! AddPartitionsToTxn (24): adds partitions to a transaction, or asks whether they are in it.
//! Clients of KIP-890 do without it.

use std::sync::Arc;

use engine::Topic;
use engine::security::{Operation, Resource};
use kafka_errors::transaction_error;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use kafka_protocol::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use kafka_protocol::messages::{AddPartitionsToTxnRequest, AddPartitionsToTxnResponse};
use kafka_protocol::protocol::VersionRange;
use kafka_transactions::ProducerIdAndEpoch;

use super::init_producer_id::fenced_error;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// From here on, clients know the error for a producer that is fenced.
const REPORTS_FENCED: i16 = 2;
/// From here on, a request has several transactions.
const BATCHED: i16 = 4;

/// A topic of a request, or why its partitions are not added.
type FoundTopic<'a> = (&'a AddPartitionsToTxnTopic, Result<Arc<Topic>, ResponseError>);

impl ApiHandler for AddPartitionsToTxnRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 5 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> AddPartitionsToTxnResponse {
        if context.version >= BATCHED {
            // Between Kafka's brokers. They have authorized their clients.
            let allowed = kafka.authorize(context, Operation::ClusterAction, Resource::CLUSTER);
            if let Err(error) = allowed {
                return AddPartitionsToTxnResponse::default().with_error_code(error.code());
            }
            let results = self.transactions.iter().map(|transaction| {
                AddPartitionsToTxnResult::default()
                    .with_transactional_id(transaction.transactional_id.clone())
                    .with_topic_results(add(kafka, context, transaction))
            });
            let results = results.collect();
            return AddPartitionsToTxnResponse::default().with_results_by_transaction(results);
        }
        let transaction = AddPartitionsToTxnTransaction::default()
            .with_transactional_id(self.v3_and_below_transactional_id)
            .with_producer_id(self.v3_and_below_producer_id)
            .with_producer_epoch(self.v3_and_below_producer_epoch)
            .with_topics(self.v3_and_below_topics);
        let results = add(kafka, context, &transaction);
        AddPartitionsToTxnResponse::default().with_results_by_topic_v3_and_below(results)
    }
}

/// Adds all partitions of a transaction, or none.
fn add(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: &AddPartitionsToTxnTransaction,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let by_broker = context.version >= BATCHED;
    let id = Resource::transactional_id(&request.transactional_id);
    let denied =
        if by_broker { None } else { kafka.authorize(context, Operation::Write, id).err() };
    if let Some(error) = denied {
        let topics: Vec<FoundTopic<'_>> =
            request.topics.iter().map(|requested| (requested, Err(error))).collect();
        return results(&topics, |_, _| Some(error));
    }
    let find = |requested: &AddPartitionsToTxnTopic| {
        if !by_broker {
            kafka.authorize(context, Operation::Write, Resource::topic(&requested.name))?;
        }
        let topic = kafka.engine.topics().named(&requested.name);
        topic.ok_or(ResponseError::UnknownTopicOrPartition)
    };
    let topics: Vec<FoundTopic<'_>> =
        request.topics.iter().map(|requested| (requested, find(requested))).collect();
    let check = |topic: &Result<Arc<Topic>, ResponseError>, index: i32| match topic {
        Ok(topic) if topic.partition(index).is_ok() => Ok(()),
        Ok(_) => Err(ResponseError::UnknownTopicOrPartition),
        Err(error) => Err(*error),
    };
    let is_refused = |(requested, topic): &FoundTopic<'_>| {
        requested.partitions.iter().any(|index| check(topic, *index).is_err())
    };
    if topics.iter().any(is_refused) {
        return results(&topics, |topic, index| match check(topic, index) {
            Ok(()) => Some(ResponseError::OperationNotAttempted),
            Err(error) => Some(error),
        });
    }
    let partitions: Vec<(Arc<Topic>, u32)> = topics
        .iter()
        .filter(|(requested, _)| !requested.partitions.is_empty())
        .flat_map(|(requested, topic)| {
            let topic = topic.as_ref().expect("each partition was found");
            requested.partitions.iter().map(|index| (Arc::clone(topic), *index as u32))
        })
        .collect();
    let (id, coordinator) = (&request.transactional_id, &kafka.coordinators.transactions);
    let producer = ProducerIdAndEpoch { id: request.producer_id.0, epoch: request.producer_epoch };
    let verdicts = if request.verify_only {
        coordinator.verify_partitions(id, producer, &partitions)
    } else {
        let holder = kafka.holder(context);
        let added = coordinator.add_partitions(id, producer, &partitions, &holder);
        added.map(|()| vec![true; partitions.len()])
    };
    match verdicts {
        Err(error) => {
            let error = fenced_error(transaction_error(&error), context.version, REPORTS_FENCED);
            results(&topics, |_, _| Some(error))
        }
        Ok(verdicts) => {
            let mut verdicts = verdicts.into_iter();
            results(&topics, |_, _| {
                let is_in = verdicts.next().unwrap_or(false);
                (!is_in).then_some(ResponseError::InvalidTxnState)
            })
        }
    }
}

fn results(
    topics: &[FoundTopic<'_>],
    mut verdict: impl FnMut(&Result<Arc<Topic>, ResponseError>, i32) -> Option<ResponseError>,
) -> Vec<AddPartitionsToTxnTopicResult> {
    let mut answers = Vec::with_capacity(topics.len());
    for (requested, topic) in topics {
        let partitions = requested.partitions.iter().map(|index| {
            AddPartitionsToTxnPartitionResult::default()
                .with_partition_index(*index)
                .with_partition_error_code(verdict(topic, *index).map_or(0, |error| error.code()))
        });
        let partitions = partitions.collect();
        answers.push(
            AddPartitionsToTxnTopicResult::default()
                .with_name(requested.name.clone())
                .with_results_by_partition(partitions),
        );
    }
    answers
}
