//! ExpireDelegationToken (40): a token ends now, or at another time.

use std::sync::Arc;

use engine::security::TokenExpiry;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{ExpireDelegationTokenRequest, ExpireDelegationTokenResponse};
use kafka_protocol::protocol::VersionRange;

use super::cluster_security::actor;
use super::delegation_tokens::{NO_TIME, check_tokens, failure, refusal, timestamp};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for ExpireDelegationTokenRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> ExpireDelegationTokenResponse {
        let response = ExpireDelegationTokenResponse::default();
        match expire(kafka, context, self).await {
            Ok(expires) => response.with_expiry_timestamp_ms(timestamp(expires)),
            Err(error) => response.with_error_code(error.code()).with_expiry_timestamp_ms(NO_TIME),
        }
    }
}

async fn expire(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: ExpireDelegationTokenRequest,
) -> Result<u64, ResponseError> {
    check_tokens(kafka, context)?;
    let expiry = match u64::try_from(request.expiry_time_period_ms) {
        Ok(period) => TokenExpiry::At(kafka.engine.wall_now().0.saturating_add(period)),
        Err(_) => TokenExpiry::Now,
    };
    let security = kafka.engine.security();
    let expired = security.expire_token(actor(context), request.hmac.to_vec(), expiry).await;
    expired.map_err(|error| failure(&error))?.map_err(refusal)
}
