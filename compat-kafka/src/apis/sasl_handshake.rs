//! SaslHandshake (17): the client chooses its SASL mechanism.

use std::sync::Arc;

use kafka_protocol::ResponseError;
use kafka_protocol::messages::{SaslHandshakeRequest, SaslHandshakeResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for SaslHandshakeRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 1 };

    async fn handle(
        self,
        _kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> SaslHandshakeResponse {
        let authentication = &context.connection.authentication;
        let refuse =
            |error: ResponseError| SaslHandshakeResponse::default().with_error_code(error.code());
        let Some(options) = authentication.options() else {
            return refuse(ResponseError::IllegalSaslState);
        };
        let offered = options.mechanisms.iter();
        let mechanisms =
            offered.map(|mechanism| StrBytes::from_static_str(mechanism.as_str())).collect();
        match authentication.begin(&self.mechanism, context.version == 0) {
            Ok(()) => SaslHandshakeResponse::default().with_mechanisms(mechanisms),
            Err(_) => refuse(ResponseError::UnsupportedSaslMechanism).with_mechanisms(mechanisms),
        }
    }
}
