//! Quotas: the amounts that a client may use, and its wait for more (KIP-13, KIP-124, KIP-219,
//! KIP-599).
//!
//! A quota belongs to users, to client ids, or to both together. The most specific one of a kind
//! applies, in Kafka's order ([`QuotaEntity::candidates`]). A client that has used more than it may
//! is answered at once, and told for how long; for that long its connection is not read from.
//!
//! Where there are no quotas, a request pays for one load of an atomic number.

mod connection_rates;
mod mute;
mod rate;
mod request_quota;
mod sensors;
mod thread_time;
mod throttle_field;

use std::sync::Arc;

use engine::security::{QuotaEntity, Requester, Security};
use parking_lot::Mutex;

pub(crate) use connection_rates::{ConnectionRates, record_connection};
pub(crate) use mute::Mute;
pub use rate::RateOptions;
pub(crate) use rate::RateWindow;
pub(crate) use request_quota::{MutationQuota, RequestQuota, TooManyMutations, serve_within_quota};
pub use sensors::QuotaRates;
use sensors::{QuotaKind, Sensor, SensorName, Sensors};

/// Kafka's names of quotas.
pub(crate) const PRODUCER_BYTE_RATE: &str = "producer_byte_rate";
pub(crate) const CONSUMER_BYTE_RATE: &str = "consumer_byte_rate";
pub(crate) const REQUEST_PERCENTAGE: &str = "request_percentage";
pub(crate) const CONTROLLER_MUTATION_RATE: &str = "controller_mutation_rate";
pub(crate) const CONNECTION_CREATION_RATE: &str = "connection_creation_rate";

/// The recent use of all clients.
#[derive(Debug, Default)]
pub(crate) struct ClientQuotas {
    rates: QuotaRates,
    sensors: Mutex<Sensors>,
}

/// A quota that applies to a client, and the use of all clients to which it applies.
#[derive(Debug)]
struct ClientLimit {
    /// The most a second.
    rate_max: f64,
    sensor: Arc<Sensor>,
}

/// The quotas that apply to a client.
#[derive(Debug, Default)]
pub(crate) struct ClientLimits {
    rates: QuotaRates,
    produce: Option<ClientLimit>,
    fetch: Option<ClientLimit>,
    request_time: Option<ClientLimit>,
    mutation: Option<ClientLimit>,
}

impl ClientLimits {
    fn limit(&self, kind: QuotaKind) -> Option<&ClientLimit> {
        match kind {
            QuotaKind::Produce => self.produce.as_ref(),
            QuotaKind::Fetch => self.fetch.as_ref(),
            QuotaKind::RequestTime => self.request_time.as_ref(),
            QuotaKind::Mutation => self.mutation.as_ref(),
        }
    }
}

/// The quotas that applied to the last request of a connection.
#[derive(Debug)]
pub(crate) struct CachedLimits {
    version: u64,
    requester: Arc<Requester>,
    client_id: String,
    limits: Arc<ClientLimits>,
}

impl ClientQuotas {
    pub(crate) fn new(rates: QuotaRates) -> ClientQuotas {
        ClientQuotas { rates, sensors: Mutex::default() }
    }

    /// The quotas of a client. `cache` is of its connection.
    pub(crate) fn limits(
        &self,
        security: &Security,
        version: u64,
        requester: Arc<Requester>,
        client_id: &str,
        cache: &mut Option<CachedLimits>,
    ) -> Arc<ClientLimits> {
        if let Some(cached) = cache
            && cached.version == version
            && Arc::ptr_eq(&cached.requester, &requester)
            && cached.client_id == client_id
        {
            return Arc::clone(&cached.limits);
        }
        let (limits, is_own) = self.find_limits(security, requester.principal.name(), client_id);
        let limits = Arc::new(limits);
        let (client_id, of_client) = (client_id.to_owned(), Arc::clone(&limits));
        // Without a sensor of its own the client is not cached: there may be room next time.
        *cache =
            is_own.then_some(CachedLimits { version, requester, client_id, limits: of_client });
        limits
    }

    /// Forgets what clients have used.
    pub(crate) fn clear(&self) {
        *self.sensors.lock() = Sensors::default();
    }

    /// The quotas of a client, and whether it has sensors of its own.
    fn find_limits(
        &self,
        security: &Security,
        user: &str,
        client_id: &str,
    ) -> (ClientLimits, bool) {
        let mut has_own = true;
        let candidates = QuotaEntity::candidates(user, client_id);
        let state = security.state();
        let mut limit = |kind, name: &str| {
            let quota = |entity: &QuotaEntity| state.quotas().get(entity)?.get(name).copied();
            let (entity, rate_max) =
                candidates.iter().find_map(|entity| Some((entity, quota(entity)?)))?;
            let user = if entity.user.is_some() { user } else { "" };
            let client_id = if entity.client_id.is_some() { client_id } else { "" };
            let name = SensorName::new(kind, user, client_id);
            let (sensor, is_own) = self.sensors.lock().get(name, rate_max, &self.rates);
            has_own &= is_own;
            Some(ClientLimit { rate_max, sensor })
        };
        let limits = ClientLimits {
            rates: self.rates,
            produce: limit(QuotaKind::Produce, PRODUCER_BYTE_RATE),
            fetch: limit(QuotaKind::Fetch, CONSUMER_BYTE_RATE),
            request_time: limit(QuotaKind::RequestTime, REQUEST_PERCENTAGE),
            mutation: limit(QuotaKind::Mutation, CONTROLLER_MUTATION_RATE),
        };
        (limits, has_own)
    }
}
