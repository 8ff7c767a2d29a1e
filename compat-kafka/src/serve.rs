//! One request, from its frame to its response: its header, whether its client has logged in, its
//! quotas, the room for what decoding takes, the handler of its API, and the room for the response.

use std::sync::Arc;

use bytes::Bytes;
use kafka_connections::{QuotaPermit, units};
use kafka_guard::RequestBodyError;
use kafka_protocol::messages::{ApiKey, RequestHeader, ResponseHeader};
use kafka_protocol::protocol::{Decodable, Encodable, HeaderVersion, Request};
use rdma::protocol::LINK_API_KEY;

use crate::apis::metadata::refuse_in_login;
use crate::apis::sasl_authenticate::handle_bare;
use crate::conn::KafkaConnection;
use crate::connection_error::ConnectionError;
use crate::connection_loop::ReceivedRequest;
use crate::frame_reader::RequestFrame;
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::quotas::serve_within_quota;
use crate::request::{BadRequest, RequestContext, ResponseFuture};
use crate::response::KafkaResponse;
use crate::routes::{is_served, route};
use crate::stream::ByteStream;
use crate::{apis, extension, link};

/// Stands for the API key where a frame is a message of SASL without a header.
const BARE_MESSAGE: i16 = i16::MIN;

/// From this length on, a body may take much more memory once it is decoded.
const LONG_BODY_BYTES: usize = 16 << 10;
/// The most memory of a decoded request that needs no room.
const DECODED_BYTES_MIN: usize = 256 << 10;
/// A request and its response may take so many times what decoding takes: a key of 32 bytes is
/// answered by a coordinator of 150.
const RESPONSE_FACTOR: usize = 6;
/// The room is at most one part in this many of what an address may hold.
const ROOM_SHARE: u32 = 4;
/// The version of the header of a flexible request.
const FLEXIBLE_HEADER: i16 = 2;

impl<S: ByteStream> KafkaConnection<S> {
    /// Decodes a request's header.
    pub(crate) fn read_header(
        &self,
        frame: RequestFrame,
    ) -> Result<ReceivedRequest, ConnectionError> {
        if self.state.authentication.expects_bare_message() {
            let body = frame.bytes.clone();
            let context = self.context(BARE_MESSAGE, 0, RequestHeader::default());
            return Ok(ReceivedRequest::new(context, frame, body));
        }
        let opened = header(frame.bytes.clone());
        if opened.is_err() {
            add(&self.kafka.metrics().bad_frames, 1);
        }
        let (api_key, version, header, body) = opened?;
        if api_key == BARE_MESSAGE {
            // It stands for messages without a header, and comes from no client.
            let reason = "there is no such API".to_owned();
            return Err(BadRequest { api: api_key, version, reason }.into());
        }
        self.kafka.metrics().count_request(api_key, frame.bytes.len() + 4);
        let context = self.context(api_key, version, header);
        Ok(ReceivedRequest::new(context, frame, body))
    }

    fn context(&self, api_key: i16, version: i16, header: RequestHeader) -> RequestContext {
        RequestContext {
            api_key,
            version,
            correlation_id: header.correlation_id,
            client_id: header.client_id.map(|id| id.to_string()).unwrap_or_default(),
            peer: self.ends.peer,
            local: self.ends.local,
            connection: Arc::clone(&self.state),
            quota: None,
        }
    }

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

    /// Starts to serve a request, which holds its share of the budget until it is served. `is_only`
    /// says whether nothing else of the connection is in flight.
    pub(crate) fn start_request(
        &self,
        request: ReceivedRequest,
        is_only: bool,
    ) -> Result<ResponseFuture, ConnectionError> {
        let ReceivedRequest { context, frame, body, .. } = request;
        let (kafka, share) = (Arc::clone(&self.kafka), frame.permit);
        let frame_bytes = frame.bytes.len();
        drop(frame.bytes);
        let (api, version) = (context.api_key, context.version);
        let serving = match (self.check_login(api)?, api) {
            (LoginCheck::Interrupted, _) => {
                Box::pin(refuse_in_login(self.kafka.clone(), context, body)) as ResponseFuture
            }
            (LoginCheck::Allowed, LINK_API_KEY) => {
                Box::pin(link::handle(self.kafka.clone(), context, body))
            }
            (LoginCheck::Allowed, BARE_MESSAGE) => {
                Box::pin(handle_bare(self.kafka.clone(), context, body))
            }
            (LoginCheck::Allowed, _) => serve(self.kafka.clone(), context, body, frame_bytes)?,
        };
        let answers = Arc::clone(&self.state.response_quota);
        Ok(Box::pin(async move {
            let mut served = serving.await;
            drop(share);
            match &mut served {
                Ok(Some(answer)) => {
                    let granted = answer.acquire_permit(&answers, is_only).await;
                    granted.map_err(|error| BadRequest {
                        api,
                        version,
                        reason: error.to_string(),
                    })?;
                }
                Ok(None) => {}
                Err(_) => add(&kafka.metrics().bad_frames, 1),
            }
            served
        }))
    }
}

/// The login of a client that sends a request.
enum LoginCheck {
    Allowed,
    /// The request comes in the middle of a login.
    Interrupted,
}

/// Splits a frame into its header and its body.
pub(crate) fn header(mut frame: Bytes) -> Result<(i16, i16, RequestHeader, Bytes), BadRequest> {
    let (Some(api), Some(version)) = (i16_at(&frame, 0), i16_at(&frame, 2)) else {
        let reason = format!("a request has a header of 8 bytes and more. bytes={}", frame.len());
        return Err(BadRequest { api: -1, version: -1, reason });
    };
    let bad = |reason| BadRequest { api, version, reason };
    let header_version = match ApiKey::try_from(api) {
        Ok(ApiKey::ApiVersions) if version > apis::api_versions::SERVED_VERSIONS.max => 2,
        Ok(key)
            if version >= 0 && (key.valid_versions().max >= version || is_served(api, version)) =>
        {
            key.request_header_version(version)
        }
        // The codec does not know it, so it is new, and flexible.
        Err(_) if is_served(api, version) => FLEXIBLE_HEADER,
        // An extension API key, or an unknown one: the fields that all header versions share come
        // first.
        _ => 1,
    };
    kafka_guard::check_header(header_version, &frame).map_err(|error| bad(error.to_string()))?;
    let header = RequestHeader::decode(&mut frame, header_version)
        .map_err(|error| bad(format!("the request's header cannot be decoded: {error:#}")))?;
    Ok((api, version, header, frame))
}

fn i16_at(bytes: &Bytes, at: usize) -> Option<i16> {
    Some(i16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// Serves a request of any API but that of links. It has `request_bytes` bytes.
///
/// # Errors
/// The API is not served in this version.
pub(crate) fn serve(
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
    // Batches must not overtake each other while they wait for it, and take it in their turn.
    if body.len() < LONG_BODY_BYTES || api == ApiKey::Produce as i16 {
        return Ok(row.call(kafka, context, body));
    }
    let mut body = RequestBody::from(body);
    Ok(Box::pin(async move {
        let _room = take_room_to_decode(&context, &mut body).await?;
        row.call(kafka, context, body).await
    }))
}

/// Waits for room for what a request takes besides its own bytes, if that is much.
///
/// # Errors
/// The body must not be decoded, or there was no room in time.
pub(crate) async fn take_room_to_decode(
    context: &RequestContext,
    body: &mut RequestBody,
) -> Result<Option<QuotaPermit>, BadRequest> {
    if body.len() < LONG_BODY_BYTES {
        return Ok(None);
    }
    let bad = |reason| BadRequest { api: context.api_key, version: context.version, reason };
    let bytes = match body.check_once(context) {
        Ok(bytes) if bytes > DECODED_BYTES_MIN => RESPONSE_FACTOR * bytes,
        Ok(_) => return Ok(None),
        // Requests that the codec does not know are read otherwise.
        Err(RequestBodyError::NoSchema { .. }) => {
            RESPONSE_FACTOR * kafka_guard::memory_bytes_max(body.len())
        }
        Err(error) => return Err(bad(error.to_string())),
    };
    let quota = &context.connection.request_quotas.large;
    // The room fits beside the frame that the connection holds.
    let units = units(bytes).min(quota.units_max() / ROOM_SHARE);
    let room = quota.take_out_of_turn(units).await;
    room.map(Some).map_err(|error| bad(error.to_string()))
}

/// The body of a request. The guard walks it once for a version, before it is decoded.
pub(crate) struct RequestBody {
    bytes: Bytes,
    /// The API and the version for which the guard has accepted it.
    checked_for: Option<(i16, i16)>,
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> RequestBody {
        RequestBody { bytes, checked_for: None }
    }
}

impl RequestBody {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Checks the body's counts, because the codec reserves memory for what they announce. Returns
    /// the memory that decoding takes.
    pub(crate) fn check_once(
        &mut self,
        context: &RequestContext,
    ) -> Result<usize, RequestBodyError> {
        let (api, version) = (context.api_key, context.version);
        let memory_bytes = kafka_guard::check(api, version, &self.bytes)?;
        self.checked_for = Some((api, version));
        Ok(memory_bytes)
    }
}

/// Decodes a body. The guard checks it first, unless it has for this version.
pub(crate) fn decode<R: Request>(
    context: &RequestContext,
    body: impl Into<RequestBody>,
) -> Result<R, BadRequest> {
    let bad = |reason| BadRequest { api: context.api_key, version: context.version, reason };
    let mut body = body.into();
    if body.checked_for != Some((context.api_key, context.version)) {
        body.check_once(context).map_err(|error| bad(error.to_string()))?;
    }
    R::decode(&mut body.bytes, context.version)
        .map_err(|error| bad(format!("the request cannot be decoded: {error:#}")))
}

pub(crate) fn encode<R: Request>(
    context: &RequestContext,
    response: &R::Response,
) -> Result<KafkaResponse, BadRequest> {
    let mut answer = KafkaResponse::new();
    let mut result = Ok(());
    answer.write(|out| {
        let header = R::Response::header_version(context.version);
        result = ResponseHeader::default()
            .with_correlation_id(context.correlation_id)
            .encode(out, header)
            .and_then(|()| response.encode(out, context.version));
    });
    result.map(|()| answer).map_err(|error| BadRequest {
        api: context.api_key,
        version: context.version,
        reason: format!("the answer cannot be encoded: {error:#}"),
    })
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::{ApiKey, MetadataRequest};

    use super::*;
    use crate::request::ConnectionState;

    fn context(version: i16) -> RequestContext {
        RequestContext {
            api_key: ApiKey::Metadata as i16,
            version,
            correlation_id: 0,
            client_id: String::new(),
            peer: ([127, 0, 0, 1], 1).into(),
            local: ([127, 0, 0, 1], 2).into(),
            connection: ConnectionState::for_test(),
            quota: None,
        }
    }

    #[test]
    fn a_body_is_checked_for_each_version_that_it_is_decoded_in() {
        // All topics in version 9; 65,536 topics in version 0.
        let bytes = Bytes::from_static(&[0, 1, 0, 0, 0]);
        let mut body = RequestBody::from(bytes.clone());
        body.check_once(&context(9)).expect("the guard accepts it");
        decode::<MetadataRequest>(&context(9), body).expect("so does the codec");
        let mut body = RequestBody::from(bytes);
        body.check_once(&context(9)).expect("the guard accepts it");
        let refused = decode::<MetadataRequest>(&context(0), body).unwrap_err();
        assert!(refused.reason.contains("announced=65536"), "{}", refused.reason);
    }
}
