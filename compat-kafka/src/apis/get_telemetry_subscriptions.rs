//! GetTelemetrySubscriptions (71): what metrics a client is to push (KIP-714).

use std::sync::Arc;

use kafka_client_metrics::{ACCEPTED_CODECS, ClientIdentity};
use kafka_protocol::messages::{
    GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse,
};
use kafka_protocol::protocol::{StrBytes, VersionRange};
use uuid::Uuid;

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for GetTelemetrySubscriptionsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> GetTelemetrySubscriptionsResponse {
        let instance_id = Some(self.client_instance_id).filter(|id| !id.is_nil());
        let new_id = Uuid::from_bytes((kafka.options.new_id)());
        let metrics = &kafka.client_metrics;
        let (client, holder) = (client(context), kafka.holder(context));
        let requested = match metrics.requested(instance_id, new_id, &client, &holder) {
            Ok(requested) => requested,
            Err(error) => {
                return GetTelemetrySubscriptionsResponse::default().with_error_code(error.code());
            }
        };
        forget_with_connection(kafka, context, requested.instance);
        let names = requested.metrics.into_iter().map(StrBytes::from_string);
        GetTelemetrySubscriptionsResponse::default()
            .with_client_instance_id(requested.instance)
            .with_subscription_id(requested.subscription)
            .with_accepted_compression_types(ACCEPTED_CODECS.map(|codec| codec as i8).to_vec())
            .with_push_interval_ms(
                i32::try_from(requested.interval.as_millis()).unwrap_or(i32::MAX),
            )
            .with_telemetry_max_bytes(i32::try_from(metrics.bytes_max()).unwrap_or(i32::MAX))
            // Prometheus wants totals.
            .with_delta_temporality(false)
            .with_requested_metrics(names.collect())
    }
}

/// The identity of the client of a request, as far as it is known.
pub(super) fn client(context: &RequestContext) -> ClientIdentity {
    let (software_name, software_version) =
        context.connection.software.get().cloned().unwrap_or_default();
    ClientIdentity {
        client_id: context.client_id.clone(),
        software_name,
        software_version,
        source_address: context.client_address(),
        source_port: context.peer.port(),
    }
}

/// Forgets a client when this connection ends.
pub(super) fn forget_with_connection(
    kafka: &KafkaServer,
    context: &RequestContext,
    instance: Uuid,
) {
    let mut guard = context.connection.metrics_client.lock();
    if let Some(ownership) = kafka.client_metrics.own(instance, guard.as_ref()) {
        *guard = Some(ownership);
    }
}
