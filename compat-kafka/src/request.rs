//! A request on its way to a handler: its context, its body, and its response.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

#[cfg(test)]
use engine::security::Principal;
use engine::security::Requester;
use kafka_client_metrics::ClientInstanceGuard;
use kafka_connections::{AdvertisedAddress, ConnectionQuota, KafkaListener, RequestQuotas};
use kafka_protocol::protocol::{Request, VersionRange};
use kafka_sasl::Authentication;
use kafka_share_groups::ShareSessionGuard;
use parking_lot::Mutex;

use crate::kafka_server::KafkaServer;
use crate::link_session::LinkSession;
use crate::quotas::{CachedLimits, MutationQuota, Mute, RequestQuota};
use crate::response::KafkaResponse;

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
