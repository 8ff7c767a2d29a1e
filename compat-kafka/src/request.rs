//! A request on its way to a handler: its context, its body, and its response.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
#[cfg(test)]
use engine::security::Principal;
use engine::security::Requester;
use kafka_client_metrics::ClientInstanceGuard;
use kafka_connections::{
    AdvertisedAddress, ConnectionQuota, KafkaListener, QuotaPermit, RequestQuotas, units,
};
use kafka_guard::RequestBodyError;
use kafka_protocol::messages::ResponseHeader;
use kafka_protocol::protocol::{Encodable, HeaderVersion, Request, VersionRange};
use kafka_sasl::Authentication;
use kafka_share_groups::ShareSessionGuard;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::kafka_server::KafkaServer;
use crate::link_session::LinkSession;
use crate::quotas::{CachedLimits, MutationQuota, Mute, RequestQuota};
use crate::response::KafkaResponse;

/// From this length on, a body may take much more memory once it is decoded.
pub(crate) const LONG_BODY_BYTES: usize = 16 << 10;
/// The most memory of a decoded request that needs no room.
const DECODED_BYTES_MIN: usize = 256 << 10;
/// A request and its response may take so many times what decoding takes: a key of 32 bytes is
/// answered by a coordinator of 150.
const RESPONSE_FACTOR: usize = 6;
/// The room is at most one part in this many of what an address may hold.
const ROOM_SHARE: u32 = 4;
/// Clients are not told, in any version, that they create too much by asking for something else.
pub(crate) const NEVER_STRICT: i16 = i16::MAX;

/// Everything that a handler knows of a request besides its body.
#[derive(Clone, Debug)]
pub(crate) struct RequestContext {
    pub(crate) api_key: i16,
    pub(crate) version: i16,
    pub(crate) correlation_id: i32,
    pub(crate) client_id: String,
    /// The address of the client.
    pub(crate) peer: SocketAddr,
    /// The address of the server that the client connected to.
    pub(crate) local: SocketAddr,
    pub(crate) connection: Arc<ConnectionState>,
    /// The time of its arrival. A client is not throttled at the server's cost: if it was
    /// throttled after that, the end of that time.
    pub(crate) received_at: Instant,
    /// The quotas of the request, if there are any.
    pub(crate) quota: Option<Arc<RequestQuota>>,
}

impl RequestContext {
    /// The advertised address of the client's listener.
    pub(crate) fn advertised_address(&self) -> AdvertisedAddress {
        self.connection.listener.advertised_address(self.local)
    }

    /// The address of the client as Java writes it: all eight numbers of an address of IPv6.
    pub(crate) fn client_address(&self) -> String {
        match self.peer.ip().to_canonical() {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) => {
                let [first, rest @ ..] = address.segments();
                rest.iter().fold(format!("{first:x}"), |text, number| format!("{text}:{number:x}"))
            }
        }
    }

    /// The host of the client as tools show it: a name, which is empty here, a slash and the
    /// address.
    pub(crate) fn client_host(&self) -> String {
        format!("/{}", self.client_address())
    }

    /// The quota for the partitions that the request creates and deletes. From version
    /// `strict_since` on, a request over it is refused; earlier clients wait after their change.
    pub(crate) fn mutation_quota(&self, strict_since: i16) -> MutationQuota<'_> {
        let is_strict = self.version >= strict_since;
        let requester = self.connection.requester();
        MutationQuota { quota: self.quota.as_deref(), is_strict, requester }
    }
}

/// The state that the requests of one connection share.
#[derive(Debug)]
pub(crate) struct ConnectionState {
    /// The port that the client connected to.
    pub(crate) listener: Arc<KafkaListener>,
    /// The identity of the client, and the state of SASL.
    pub(crate) authentication: Authentication,
    /// The number of times that its requests were authorized, for the test that every API asks.
    #[cfg(test)]
    pub(crate) authorizations: std::sync::atomic::AtomicUsize,
    /// A produce request holds it until it has its place in the journal's queue.
    pub(crate) produce_lock: tokio::sync::Mutex<()>,
    /// The quotas that applied to its last request.
    pub(crate) limits: Mutex<Option<CachedLimits>>,
    /// The time for which the client is muted, because it has used too much.
    pub(crate) mute: Mute,
    /// The memory that requests hold.
    pub(crate) request_quotas: Arc<RequestQuotas>,
    /// The memory that responses hold.
    pub(crate) response_quota: Arc<ConnectionQuota>,
    pub(crate) link: tokio::sync::Mutex<LinkSession>,
    /// The share sessions that end with it. A client has one.
    pub(crate) share_session: Mutex<Option<ShareSessionGuard>>,
    /// The client whose metrics are forgotten with it.
    pub(crate) metrics_client: Mutex<Option<ClientInstanceGuard>>,
    /// The name and the version of the client's software, from ApiVersions.
    pub(crate) software: OnceLock<(String, String)>,
}

impl ConnectionState {
    pub(crate) fn new(
        listener: Arc<KafkaListener>,
        requester: Requester,
        request_quotas: Arc<RequestQuotas>,
        response_quota: Arc<ConnectionQuota>,
    ) -> Arc<ConnectionState> {
        let (limits, produce_lock, link, share_session, metrics_client) = Default::default();
        Arc::new(ConnectionState {
            authentication: Authentication::new(listener.sasl.clone(), requester),
            #[cfg(test)]
            authorizations: Default::default(),
            listener,
            limits,
            mute: Mute::new(),
            produce_lock,
            request_quotas,
            response_quota,
            link,
            share_session,
            metrics_client,
            software: OnceLock::new(),
        })
    }

    /// The identity of the client.
    pub(crate) fn requester(&self) -> Arc<Requester> {
        self.authentication.requester()
    }

    /// Counts that a request was authorized.
    pub(crate) fn count_authorization(&self) {
        #[cfg(test)]
        self.authorizations.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn for_test() -> Arc<ConnectionState> {
        ConnectionState::for_test_as(Principal::anonymous())
    }

    #[cfg(test)]
    pub(crate) fn for_test_as(principal: Principal) -> Arc<ConnectionState> {
        let there = AdvertisedAddress { host: "there".to_owned(), port: 9092 };
        let listener = KafkaListener { advertised: Some(there), ..KafkaListener::plain() };
        ConnectionState::for_test_on(Arc::new(listener), principal)
    }

    #[cfg(test)]
    pub(crate) fn for_test_on(
        listener: Arc<KafkaListener>,
        principal: Principal,
    ) -> Arc<ConnectionState> {
        use kafka_connections::{MemoryBudget, MemoryBudgetSpec};
        // A budget that is large enough for every test.
        let quota = || {
            let spec = MemoryBudgetSpec { name: "test", setting: "none" };
            let budget = MemoryBudget::new(spec, 1 << 30, 0, std::time::Duration::MAX);
            budget.quota([127, 0, 0, 1].into(), futures_util::future::AbortHandle::new_pair().0)
        };
        let requests = RequestQuotas { large: quota(), pipelined: quota() };
        let requester = Requester::new(principal, [127, 0, 0, 1].into());
        ConnectionState::new(listener, requester, Arc::new(requests), quota())
    }
}

/// A request that is decoded into a message, and answered by one.
pub(crate) trait ApiHandler: Request + Send + Sized {
    /// The versions that are served and tested.
    const SERVED_VERSIONS: VersionRange;

    /// Returns the response. Errors are part of the response.
    fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> impl Future<Output = Self::Response> + Send;
}

/// A request that cannot be answered. The connection ends.
#[derive(Debug, thiserror::Error)]
#[error("{reason}. api={api}, version={version}")]
pub(crate) struct BadRequest {
    pub(crate) api: i16,
    pub(crate) version: i16,
    pub(crate) reason: String,
}

/// A response, or `None` if the client wants none.
pub(crate) type ResponseResult = Result<Option<KafkaResponse>, BadRequest>;
pub(crate) type ResponseFuture = Pin<Box<dyn Future<Output = ResponseResult> + Send>>;

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

    fn context(version: i16) -> RequestContext {
        RequestContext {
            api_key: ApiKey::Metadata as i16,
            version,
            correlation_id: 0,
            client_id: String::new(),
            peer: ([127, 0, 0, 1], 1).into(),
            local: ([127, 0, 0, 1], 2).into(),
            connection: ConnectionState::for_test(),
            received_at: Instant::now(),
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
