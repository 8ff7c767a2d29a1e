//! Metrics that clients push (KIP-714). Subscriptions say which clients are to push which metrics,
//! and how often; the last push of a client is kept until the client is gone, for Prometheus to
//! read.
//!
//! Subscriptions are settings, stored as those of groups are. Pushed metrics are not stored.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use admission::{
    Budget, BudgetGrant, BudgetKind, BudgetRegistry, BudgetSpec, Holder, SessionTable,
};
use bytes::Bytes;
use kafka_protocol::ResponseError;
use kafka_records::{CompressionType, DecompressionLimit, decompress};
use parking_lot::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

mod instance;
mod otlp;
mod subscription;

pub use instance::{ClientMetric, ClientMetricSeries};
pub use subscription::SubscriptionError;

use instance::ClientInstance;
pub use subscription::ClientIdentity;
use subscription::{MetricsRequest, Subscription};

/// The most clients that are known at a time, as in Kafka.
const INSTANCES_MAX: u64 = 16_384;
/// The most memory of all that was pushed.
const BYTES_MAX: u64 = 64 << 20;
/// A client that is silent for longer is forgotten, but not before three of its intervals.
const EXPIRY_MIN: Duration = Duration::from_secs(60);

const INSTANCES: BudgetSpec = BudgetSpec {
    name: "metric-clients",
    unit: "clients that push metrics",
    setting: None,
    kind: BudgetKind::Yielding,
};
const SERIES_BYTES: BudgetSpec = BudgetSpec {
    name: "metric-bytes",
    unit: "bytes of metrics of clients",
    setting: None,
    kind: BudgetKind::Kept,
};

/// The codecs that clients may use, the best first.
pub const ACCEPTED_CODECS: [CompressionType; 4] =
    [CompressionType::Zstd, CompressionType::Lz4, CompressionType::Gzip, CompressionType::Snappy];

/// The metrics that a client is to push.
#[derive(Debug, PartialEq)]
pub struct RequestedMetrics {
    pub instance: Uuid,
    pub subscription: i32,
    pub interval: Duration,
    /// Prefixes of names; `*` for all.
    pub metrics: Vec<String>,
}

/// A push of a client.
#[derive(Debug)]
pub struct PushedMetrics {
    pub instance: Uuid,
    pub subscription: i32,
    pub is_last: bool,
    pub codec: i8,
    pub data: Bytes,
}

/// The subscriptions, and the metrics that clients have pushed.
#[derive(Debug)]
pub struct ClientMetrics {
    /// The most bytes of one push, packed and unpacked (`telemetry.max.bytes`).
    bytes_max: usize,
    state: Mutex<ClientMetricsState>,
}

#[derive(Debug)]
struct ClientMetricsState {
    instance_budget: Arc<Budget>,
    bytes_budget: Arc<Budget>,
    subscriptions: BTreeMap<String, Subscription>,
    /// Rises with every change of subscriptions.
    version: u64,
    /// By id, ranked by when they were last heard of.
    instances: SessionTable<Uuid, ClientInstance, Instant>,
    /// The number of connections that have owned a client.
    owners: u64,
    refused: u64,
}

/// Checks the settings of a subscription.
///
/// # Errors
/// There is no such setting, or it cannot have that value.
pub fn check_subscription(config: &BTreeMap<String, String>) -> Result<(), SubscriptionError> {
    Subscription::parse(config).map(drop)
}

/// The settings of a subscription: names, and Kafka's names of their types.
pub const SUBSCRIPTION_KEYS: [(&str, &str); 3] =
    [("interval.ms", "INT"), ("match", "LIST"), ("metrics", "LIST")];

impl ClientMetrics {
    pub fn new(bytes_max: usize, budgets: &BudgetRegistry) -> Arc<ClientMetrics> {
        let state = ClientMetricsState {
            instance_budget: budgets.budget(INSTANCES, INSTANCES_MAX),
            bytes_budget: budgets.budget(SERIES_BYTES, BYTES_MAX),
            subscriptions: BTreeMap::new(),
            version: 0,
            instances: SessionTable::default(),
            owners: 0,
            refused: 0,
        };
        Arc::new(ClientMetrics { bytes_max, state: Mutex::new(state) })
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Takes the settings of a subscription; without any it ends.
    ///
    /// # Errors
    /// As [`check_subscription`].
    pub fn subscribe(
        &self,
        name: &str,
        config: &BTreeMap<String, String>,
    ) -> Result<(), SubscriptionError> {
        let subscription = Subscription::parse(config)?;
        let mut state = self.state.lock();
        if config.is_empty() {
            state.subscriptions.remove(name);
        } else {
            state.subscriptions.insert(name.to_owned(), subscription);
        }
        state.version += 1;
        Ok(())
    }

    /// True if clients are to push anything.
    pub fn has_subscriptions(&self) -> bool {
        !self.state.lock().subscriptions.is_empty()
    }

    /// The metrics that a client is to push. A client without an id gets `new_id`.
    ///
    /// # Errors
    /// It asks too often, or there are too many clients.
    pub fn requested(
        &self,
        instance: Option<Uuid>,
        new_id: Uuid,
        client: &ClientIdentity,
        holder: &Holder,
    ) -> Result<RequestedMetrics, ResponseError> {
        let (id, now) = (instance.unwrap_or(new_id), Instant::now());
        let mut state = self.state.lock();
        let instance = state.instance(id, client, holder, now)?;
        if !instance.may_ask(now) {
            state.refused += 1;
            return Err(ResponseError::ThrottlingQuotaExceeded);
        }
        let MetricsRequest { id: subscription, interval, metrics } = instance.requested.clone();
        Ok(RequestedMetrics { instance: id, subscription, interval, metrics })
    }

    /// Takes what a client pushes.
    ///
    /// # Errors
    /// It is not what the client was asked for, too large, or cannot be read.
    pub fn push(
        &self,
        pushed: &PushedMetrics,
        client: &ClientIdentity,
        holder: &Holder,
    ) -> Result<(), ResponseError> {
        // The reserved ids: none, and those of Kafka's metadata log.
        if pushed.instance.as_u128() <= 1 {
            return Err(ResponseError::InvalidRequest);
        }
        let now = Instant::now();
        let checked = {
            let mut state = self.state.lock();
            let instance = state.instance(pushed.instance, client, holder, now)?;
            let checked = instance.check_push(now, pushed, self.bytes_max);
            instance.last_error = checked.err();
            instance.is_over |= pushed.is_last;
            checked
        };
        let samples = checked.and_then(|codec| self.read(codec, pushed.data.clone()));
        let mut state = self.state.lock();
        if samples.is_err() {
            state.refused += 1;
        }
        let ClientMetricsState { instances, bytes_budget, .. } = &mut *state;
        let Some(instance) = instances.get_mut(&pushed.instance) else { return samples.map(drop) };
        instance.last_error = samples.as_ref().err().copied();
        if let Some(metrics) = samples? {
            let room = bytes_budget.room(instance.holder()) as usize;
            instance.take(metrics, room + instance.bytes());
        }
        Ok(())
    }

    /// Unpacks and decodes a push; `None` if there is nothing in it.
    fn read(
        &self,
        codec: CompressionType,
        data: Bytes,
    ) -> Result<Option<Vec<otlp::Sample>>, ResponseError> {
        if data.is_empty() {
            return Ok(None);
        }
        let limit = DecompressionLimit { decompressed_bytes_max: self.bytes_max };
        let unpacked = decompress(codec, data, limit).map_err(|_| ResponseError::InvalidRecord)?;
        otlp::decode(&unpacked).map(Some).ok_or(ResponseError::InvalidRecord)
    }

    /// Has a client forgotten when a connection ends: the last one that it used. Returns the guard
    /// of that connection, unless this one, of which the guard is given, is it already.
    pub fn own(
        self: &Arc<Self>,
        instance: Uuid,
        guard: Option<&ClientInstanceGuard>,
    ) -> Option<ClientInstanceGuard> {
        let mut state = self.state.lock();
        state.owners += 1;
        let owner = state.owners;
        let client_instance = state.instances.get_mut(&instance)?;
        if guard
            .is_some_and(|guard| guard.instance == instance && guard.owner == client_instance.owner)
        {
            return None;
        }
        client_instance.owner = owner;
        Some(ClientInstanceGuard { metrics: Arc::downgrade(self), instance, owner })
    }

    /// Forgets a client, whose connection has ended.
    fn forget(&self, instance: Uuid, owner: u64) {
        let mut state = self.state.lock();
        if state.instances.get(&instance).is_none_or(|instance| instance.owner != owner) {
            return;
        }
        state.instances.remove(&instance);
    }

    /// The metrics that clients have pushed last, by name.
    pub fn metrics(&self) -> BTreeMap<String, ClientMetric> {
        let mut state = self.state.lock();
        state.expire(Instant::now());
        let mut metrics = BTreeMap::new();
        for (id, instance, _) in state.instances.iter() {
            instance.append_to(*id, &mut metrics);
        }
        metrics
    }

    /// The number of known clients, and of refused requests.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.instances.len() as u64, state.refused)
    }
}

impl ClientMetricsState {
    /// A client, with its current subscription.
    fn instance(
        &mut self,
        id: Uuid,
        client: &ClientIdentity,
        holder: &Holder,
        now: Instant,
    ) -> Result<&mut ClientInstance, ResponseError> {
        if !self.instances.contains(&id) {
            let slot = self.take(holder, now).ok_or(ResponseError::ThrottlingQuotaExceeded)?;
            let overhead = ClientInstance::overhead_bytes(client) as u64;
            let bytes = self.bytes_budget.take(holder, overhead);
            let bytes = bytes.map_err(|_| ResponseError::ThrottlingQuotaExceeded)?;
            let requested = MetricsRequest::of(self.subscriptions.values(), id, client);
            let instance = ClientInstance::new(client.clone(), self.version, requested, bytes);
            self.instances.insert(id, instance, slot, now);
        }
        self.instances.set_rank(&id, now);
        let instance = self.instances.get_mut(&id).expect("it was just looked up");
        if instance.version < self.version {
            instance.version = self.version;
            instance.change(MetricsRequest::of(self.subscriptions.values(), id, client));
        }
        Ok(instance)
    }

    /// Takes room for a client. A full table forgets the clients that are silent for long, and then
    /// the client of the holder with the most that is silent for longest.
    fn take(&mut self, holder: &Holder, now: Instant) -> Option<BudgetGrant> {
        if self.instance_budget.room(holder) == 0 {
            self.expire(now);
        }
        let budget = Arc::clone(&self.instance_budget);
        let permit = budget.take_evicting(holder, 1, |refusal| {
            let yields = refusal.yields.as_ref();
            yields.is_some_and(|yields| self.instances.remove_lowest_of(yields).is_some())
        });
        permit.ok()
    }

    fn expire(&mut self, now: Instant) {
        let expired = self.instances.iter().filter(|(_, instance, seen)| {
            now - *seen > EXPIRY_MIN.max(instance.requested.interval * 3)
        });
        let expired: Vec<Uuid> = expired.map(|(id, ..)| *id).collect();
        for id in expired {
            self.instances.remove(&id);
        }
    }
}

/// Forgets a client when its connection ends.
#[derive(Debug)]
pub struct ClientInstanceGuard {
    metrics: Weak<ClientMetrics>,
    instance: Uuid,
    owner: u64,
}

impl Drop for ClientInstanceGuard {
    fn drop(&mut self) {
        if let Some(metrics) = self.metrics.upgrade() {
            metrics.forget(self.instance, self.owner);
        }
    }
}

#[cfg(test)]
mod tests;
