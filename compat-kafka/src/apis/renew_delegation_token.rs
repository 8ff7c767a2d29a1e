//! RenewDelegationToken (39): a token expires later.

use std::sync::Arc;

use engine::security::TokenExpiry;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{RenewDelegationTokenRequest, RenewDelegationTokenResponse};
use kafka_protocol::protocol::VersionRange;

use super::cluster_security::actor;
use super::delegation_tokens::{NO_TIME, check_tokens, failure, refusal, timestamp, until};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for RenewDelegationTokenRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> RenewDelegationTokenResponse {
        let response = RenewDelegationTokenResponse::default();
        match renew(kafka, context, self).await {
            Ok(expires) => response.with_expiry_timestamp_ms(timestamp(expires)),
            Err(error) => response.with_error_code(error.code()).with_expiry_timestamp_ms(NO_TIME),
        }
    }
}

async fn renew(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: RenewDelegationTokenRequest,
) -> Result<u64, ResponseError> {
    check_tokens(kafka, context)?;
    let expiry = until(kafka, request.renew_period_ms, kafka.options.token_renewal_max);
    let (security, expiry) = (kafka.engine.security(), TokenExpiry::At(expiry));
    let renewed = security.expire_token(actor(context), request.hmac.to_vec(), expiry).await;
    renewed.map_err(|error| failure(&error))?.map_err(refusal)
}
