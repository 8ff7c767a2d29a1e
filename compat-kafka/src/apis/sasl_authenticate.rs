//! SaslAuthenticate (36): a message of the exchange that SaslHandshake began.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{SaslAuthenticateRequest, SaslAuthenticateResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, BadRequest, RequestContext, ResponseResult};
use crate::response::KafkaResponse;

impl ApiHandler for SaslAuthenticateRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> SaslAuthenticateResponse {
        let authentication = &context.connection.authentication;
        let refuse = |error: ResponseError, message: String| {
            SaslAuthenticateResponse::default()
                .with_error_code(error.code())
                .with_error_message(Some(StrBytes::from_string(message)))
        };
        if authentication.options().is_none() || !authentication.is_under_way() {
            let message = "SaslAuthenticate request received without a SaslHandshake before it";
            return refuse(ResponseError::IllegalSaslState, message.to_owned());
        }
        match authentication.step(kafka.engine.security(), &self.auth_bytes).await {
            Ok(outcome) => SaslAuthenticateResponse::default()
                .with_error_message(Some(StrBytes::from_static_str("")))
                .with_auth_bytes(outcome.answer.into())
                .with_session_lifetime_ms(outcome.session.as_millis() as i64),
            Err(message) => refuse(ResponseError::SaslAuthenticationFailed, message),
        }
    }
}

/// A message without a header, after a SaslHandshake of version 0.
pub(crate) async fn handle_bare(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: Bytes,
) -> ResponseResult {
    match context.connection.authentication.step(kafka.engine.security(), &body).await {
        Ok(outcome) => {
            let mut answer = KafkaResponse::new();
            answer.write(|out: &mut BytesMut| out.extend_from_slice(&outcome.answer));
            Ok(Some(answer))
        }
        Err(reason) => Err(BadRequest { api: context.api_key, version: 0, reason }),
    }
}
