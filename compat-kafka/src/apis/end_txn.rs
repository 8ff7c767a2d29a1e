//! EndTxn (26): commits or aborts a transaction. From version 5 on it also gives the producer its
//! next epoch (KIP-890).

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::transaction_error;
use kafka_protocol::messages::{EndTxnRequest, EndTxnResponse, ProducerId};
use kafka_protocol::protocol::VersionRange;
use kafka_transactions::{EndVersion, ProducerIdAndEpoch};

use super::init_producer_id::fenced_error;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// From here on, clients know the error for a producer that is fenced.
const REPORTS_FENCED: i16 = 2;
/// From here on, the end of a transaction raises the epoch.
const RAISES_EPOCH: i16 = 5;

impl ApiHandler for EndTxnRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 5 };

    async fn handle(self, kafka: &Arc<KafkaServer>, context: &RequestContext) -> EndTxnResponse {
        let transaction = Resource::transactional_id(&self.transactional_id);
        if let Err(error) = kafka.authorize(context, Operation::Write, transaction) {
            return EndTxnResponse::default().with_error_code(error.code());
        }
        let raises = context.version >= RAISES_EPOCH;
        let version = if raises { EndVersion::V2 } else { EndVersion::V1 };
        let producer = ProducerIdAndEpoch { id: self.producer_id.0, epoch: self.producer_epoch };
        let id = &self.transactional_id;
        match kafka.coordinators.transactions.end(id, producer, self.committed, version).await {
            Ok(next) if raises => EndTxnResponse::default()
                .with_producer_id(ProducerId(next.id))
                .with_producer_epoch(next.epoch),
            Ok(_) => EndTxnResponse::default(),
            Err(error) => {
                let error = transaction_error(&error);
                EndTxnResponse::default()
                    .with_error_code(fenced_error(error, context.version, REPORTS_FENCED).code())
            }
        }
    }
}
