//! Serves a request: checks its login, applies its quotas, takes room for a large body, and calls the
//! handler of its API.

use std::sync::Arc;

use bytes::Bytes;
use kafka_protocol::messages::ApiKey;
use rdma::protocol::LINK_API_KEY;

use crate::apis::metadata::refuse_in_login;
use crate::apis::sasl_authenticate::handle_bare;
use crate::conn::KafkaConnection;
use crate::connection_error::ConnectionError;
use crate::frame_reader::BARE_MESSAGE;
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::quotas::serve_within_quota;
use crate::request::{
    BadRequest, LONG_BODY_BYTES, RequestBody, RequestContext, ResponseFuture, take_room_to_decode,
};
use crate::routes::route;
use crate::stream::ByteStream;
use crate::{apis, extension, link};

impl<S: ByteStream> KafkaConnection<S> {
    /// Refuses a request before authentication, and after the session has expired.
    fn check_login(&self, api_key: i16) -> Result<LoginCheck, ConnectionError> {
        let authentication = &self.state.authentication;
        let is_login = api_key == BARE_MESSAGE
            || api_key == ApiKey::SaslHandshake as i16
            || api_key == ApiKey::SaslAuthenticate as i16;
        if is_login || authentication.options().is_none() {
            return Ok(LoginCheck::Allowed);
        }
        if !authentication.is_done() && api_key != ApiKey::ApiVersions as i16 {
            if api_key == ApiKey::Metadata as i16 && authentication.is_under_way() {
                return Ok(LoginCheck::Interrupted);
            }
            return Err(ConnectionError::NotAuthenticated(api_key));
        }
        if authentication.is_expired() {
            return Err(ConnectionError::SessionExpired);
        }
        Ok(LoginCheck::Allowed)
    }

    /// Serves a request. It has `request_bytes` bytes.
    ///
    /// # Errors
    /// It comes without the login that it needs, or its API is not served in this version.
    pub(crate) fn serve(
        &self,
        context: RequestContext,
        body: Bytes,
        request_bytes: usize,
    ) -> Result<ResponseFuture, ConnectionError> {
        let (kafka, api) = (Arc::clone(&self.kafka), context.api_key);
        if let LoginCheck::Interrupted = self.check_login(api)? {
            return Ok(Box::pin(refuse_in_login(kafka, context, body)));
        }
        Ok(match api {
            LINK_API_KEY => Box::pin(link::handle(kafka, context, body)),
            BARE_MESSAGE => Box::pin(handle_bare(kafka, context, body)),
            _ => serve_api(kafka, context, body, request_bytes)?,
        })
    }
}

/// The login of a client that sends a request.
enum LoginCheck {
    Allowed,
    /// The request comes in the middle of a login.
    Interrupted,
}

/// Serves a request of any API but that of links. It has `request_bytes` bytes.
///
/// # Errors
/// The API is not served in this version.
pub(crate) fn serve_api(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: Bytes,
    request_bytes: usize,
) -> Result<ResponseFuture, BadRequest> {
    let Some(quota) = kafka.request_quota(&context) else {
        return serve_unlimited(kafka, context, body);
    };
    let limited = RequestContext { quota: Some(Arc::clone(&quota)), ..context.clone() };
    let serving = serve_unlimited(Arc::clone(&kafka), limited, body)?;
    Ok(Box::pin(serve_within_quota(kafka, context, quota, request_bytes, serving)))
}

fn serve_unlimited(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    body: Bytes,
) -> Result<ResponseFuture, BadRequest> {
    let (api, version) = (context.api_key, context.version);
    if api == extension::API_KEY {
        return Ok(Box::pin(async move { extension::handle(&kafka, &context, body).await }));
    }
    if api == ApiKey::ApiVersions as i16 && version > apis::api_versions::SERVED_VERSIONS.max {
        return Ok(Box::pin(
            async move { apis::api_versions::unsupported_version(&kafka, &context) },
        ));
    }
    let Some(row) = route(api).filter(|row| row.serves(version)) else {
        add(&kafka.metrics().bad_frames, 1);
        let reason = "this API is not served in this version".to_owned();
        return Err(BadRequest { api, version, reason });
    };
    // Produce takes its room itself, in its turn: batches must not overtake each other.
    if body.len() < LONG_BODY_BYTES || api == ApiKey::Produce as i16 {
        return Ok(row.call(kafka, context, body));
    }
    let mut body = RequestBody::from(body);
    Ok(Box::pin(async move {
        let _room = take_room_to_decode(&context, &mut body).await?;
        row.call(kafka, context, body).await
    }))
}
