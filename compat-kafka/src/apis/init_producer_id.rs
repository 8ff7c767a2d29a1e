//! InitProducerId (22): a unique id for an idempotent producer; and for a transactional one, an id
//! and an epoch that fence its predecessors (KIP-98, KIP-360).

use std::sync::Arc;

use engine::security::{Operation, Resource, ResourceType};
use kafka_errors::transaction_error;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse, ProducerId};
use kafka_protocol::protocol::VersionRange;
use kafka_transactions::ProducerIdAndEpoch;

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// From here on, clients know the error for a producer that is fenced.
const REPORTS_FENCED: i16 = 4;

impl ApiHandler for InitProducerIdRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 5 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> InitProducerIdResponse {
        match initialize(kafka, context, &self).await {
            Ok(producer) => InitProducerIdResponse::default()
                .with_producer_id(ProducerId(producer.id))
                .with_producer_epoch(producer.epoch),
            Err(error) => InitProducerIdResponse::default()
                .with_error_code(fenced_error(error, context.version, REPORTS_FENCED).code())
                .with_producer_id(ProducerId(-1))
                .with_producer_epoch(-1),
        }
    }
}

async fn initialize(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: &InitProducerIdRequest,
) -> Result<ProducerIdAndEpoch, ResponseError> {
    let Some(id) = &request.transactional_id else {
        authorize_idempotent(kafka, context)?;
        // A producer that lost its state (KIP-360) gets a new id, as in Kafka.
        return match kafka.engine.new_producer_id().await {
            Ok(id) => Ok(ProducerIdAndEpoch { id, epoch: 0 }),
            Err(error) => {
                tracing::error!(%error, "no producer id can be allocated");
                Err(ResponseError::CoordinatorNotAvailable)
            }
        };
    };
    kafka.authorize(context, Operation::Write, Resource::transactional_id(id))?;
    let expected = ProducerIdAndEpoch { id: request.producer_id.0, epoch: request.producer_epoch };
    // Both or neither.
    if (expected.id < 0) != (expected.epoch < 0) {
        return Err(ResponseError::InvalidRequest);
    }
    let expected = Some(expected).filter(|expected| expected.id >= 0);
    let timeout_ms = request.transaction_timeout_ms;
    let holder = kafka.holder(context);
    let initialized =
        kafka.coordinators.transactions.init_producer(id, timeout_ms, expected, &holder).await;
    initialized.map_err(|error| transaction_error(&error))
}

/// Checks the right to write without duplicates: a client that may write to any topic has it
/// (KIP-679).
fn authorize_idempotent(
    kafka: &KafkaServer,
    context: &RequestContext,
) -> Result<(), ResponseError> {
    match kafka.authorize(context, Operation::IdempotentWrite, Resource::CLUSTER) {
        Err(_) if kafka.is_authorized_for_any(context, Operation::Write, ResourceType::Topic) => {
            Ok(())
        }
        decision => decision,
    }
}

/// The code for a producer that is fenced, in versions below `known_since` of an API.
pub(super) fn fenced_error(error: ResponseError, version: i16, known_since: i16) -> ResponseError {
    match error {
        ResponseError::ProducerFenced if version < known_since => {
            ResponseError::InvalidProducerEpoch
        }
        error => error,
    }
}
