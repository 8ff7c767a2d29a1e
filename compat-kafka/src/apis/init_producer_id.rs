//! InitProducerId (22): a unique id for an idempotent producer (KIP-98).

use std::sync::Arc;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};
use kafka_protocol::protocol::VersionRange;

use crate::core::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for InitProducerIdRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 5 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        _context: &RequestContext,
    ) -> InitProducerIdResponse {
        let refuse = |error: ResponseError| {
            InitProducerIdResponse::default()
                .with_error_code(error.code())
                .with_producer_id(ProducerId(-1))
                .with_producer_epoch(-1)
        };
        if self.transactional_id.is_some() {
            // Fatal in every client: transactions are not served.
            return refuse(ResponseError::TransactionalIdAuthorizationFailed);
        }
        // A producer that lost its state (KIP-360) gets a new id, as in Kafka. Its epoch is only
        // raised where there are transactions.
        match kafka.engine.new_producer_id().await {
            Ok(id) => InitProducerIdResponse::default()
                .with_producer_id(ProducerId(id))
                .with_producer_epoch(0),
            Err(error) => {
                tracing::error!(%error, "no producer id can be allocated");
                refuse(ResponseError::CoordinatorNotAvailable)
            }
        }
    }
}
