//! AddOffsetsToTxn (25): adds a group to a transaction that will commit offsets for it. Clients of
//! KIP-890 do without it.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::transaction_error;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{AddOffsetsToTxnRequest, AddOffsetsToTxnResponse};
use kafka_protocol::protocol::VersionRange;
use kafka_transactions::ProducerIdAndEpoch;

use super::init_producer_id::fenced_error;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// From here on, clients know the error for a producer that is fenced.
const REPORTS_FENCED: i16 = 2;

impl ApiHandler for AddOffsetsToTxnRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 4 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> AddOffsetsToTxnResponse {
        let producer = ProducerIdAndEpoch { id: self.producer_id.0, epoch: self.producer_epoch };
        let (id, group) = (&self.transactional_id, &self.group_id);
        let allowed = kafka
            .authorize(context, Operation::Write, Resource::transactional_id(id))
            .and_then(|()| kafka.authorize(context, Operation::Read, Resource::group(group)));
        let added = match allowed {
            Err(error) => Err(error),
            Ok(()) if group.is_empty() => Err(ResponseError::InvalidGroupId),
            Ok(()) => {
                let added = kafka.coordinators.transactions.add_group(
                    id,
                    producer,
                    group,
                    &kafka.holder(context),
                );
                added.map_err(|error| transaction_error(&error))
            }
        };
        let error = added.map_or_else(
            |error| fenced_error(error, context.version, REPORTS_FENCED).code(),
            |()| 0,
        );
        AddOffsetsToTxnResponse::default().with_error_code(error)
    }
}
