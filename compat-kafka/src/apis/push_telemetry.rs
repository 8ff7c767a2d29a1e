//! PushTelemetry (72): a client pushes metrics (KIP-714).

use std::sync::Arc;

use engine::blocking::block_in_place;
use kafka_client_metrics::PushedMetrics;
use kafka_protocol::messages::{PushTelemetryRequest, PushTelemetryResponse};
use kafka_protocol::protocol::VersionRange;

use super::get_telemetry_subscriptions::{client, forget_with_connection};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for PushTelemetryRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 0 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> PushTelemetryResponse {
        let pushed = PushedMetrics {
            instance: self.client_instance_id,
            subscription: self.subscription_id,
            is_last: self.terminating,
            codec: self.compression_type,
            data: self.metrics,
        };
        let (client, holder) = (client(context), kafka.holder(context));
        let result = {
            // Decoded, a push may take many times its size: so few are at a time.
            let _permit = kafka.admission.decompressions.acquire().await;
            block_in_place(|| kafka.client_metrics.push(&pushed, &client, &holder))
        };
        // Even if the push failed: a connection has one client at a time.
        forget_with_connection(kafka, context, pushed.instance);
        let error = result.err();
        PushTelemetryResponse::default().with_error_code(error.map_or(0, |error| error.code()))
    }
}
