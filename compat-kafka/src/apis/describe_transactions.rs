//! DescribeTransactions (65): transactional ids, and their open transactions (KIP-664).

use std::collections::HashSet;
use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_transactions_response::{TopicData, TransactionState};
use kafka_protocol::messages::{
    DescribeTransactionsRequest, DescribeTransactionsResponse, ProducerId, TopicName,
    TransactionalId,
};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for DescribeTransactionsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeTransactionsResponse {
        // A transaction may have many partitions, and is described once.
        let mut ids = HashSet::new();
        let ids = self.transactional_ids.into_iter().filter(|id| ids.insert(id.clone()));
        let states = ids.map(|id| describe(kafka, context, id)).collect();
        DescribeTransactionsResponse::default().with_transaction_states(states)
    }
}

fn describe(
    kafka: &KafkaServer,
    context: &RequestContext,
    id: TransactionalId,
) -> TransactionState {
    let response = TransactionState::default().with_transactional_id(id.clone());
    let transaction = Resource::transactional_id(&id);
    if let Err(error) = kafka.authorize(context, Operation::Describe, transaction) {
        return response.with_error_code(error.code());
    }
    if id.is_empty() {
        return response.with_error_code(ResponseError::InvalidRequest.code());
    }
    let Some(transaction) = kafka.coordinators.transactions.describe(&id) else {
        return response.with_error_code(ResponseError::TransactionalIdNotFound.code());
    };
    let is_visible =
        |topic: &str| kafka.is_authorized(context, Operation::Describe, Resource::topic(topic));
    let visible = transaction.partitions.into_iter().filter(|(topic, _)| is_visible(topic));
    let topics = visible.map(|(topic, partitions)| {
        TopicData::default()
            .with_topic(TopicName(StrBytes::from_string(topic)))
            .with_partitions(partitions.into_iter().map(|index| index as i32).collect())
    });
    response
        .with_transaction_state(StrBytes::from_static_str(transaction.status.name()))
        .with_transaction_timeout_ms(transaction.timeout_ms as i32)
        .with_transaction_start_time_ms(transaction.began_ms.map_or(-1, |began| began as i64))
        .with_producer_id(ProducerId(transaction.producer.id))
        .with_producer_epoch(transaction.producer.epoch)
        .with_topics(topics.collect())
}
