//! The quotas of one request: its use, and the wait of its client.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::security::Requester;
use kafka_protocol::messages::ApiKey;
use tokio::time::Instant;

use super::thread_time::ThreadTime;
use super::throttle_field::set_throttle_time;
use super::{ClientLimit, ClientLimits, QuotaKind, Sensor};
use crate::kafka_server::KafkaServer;
use crate::metrics::add;
use crate::request::{RequestContext, ResponseFuture, ResponseResult};

/// No client waits for longer than that, or than a connection may be idle. Use in the meantime is
/// forgotten.
const THROTTLE_MAX: Duration = Duration::from_secs(600);

/// The quotas of one request.
#[derive(Debug)]
pub(crate) struct RequestQuota {
    limits: Arc<ClientLimits>,
    /// The wait of its client, in milliseconds: the longest of all that its quotas say.
    throttle_ms: AtomicU64,
    /// No wait is longer.
    throttle_max: Duration,
}

/// The quota of creating and deleting partitions is used up.
#[derive(Debug)]
pub(crate) struct TooManyMutations;

impl RequestQuota {
    fn limit(&self, kind: QuotaKind) -> Option<(&ClientLimit, &Sensor)> {
        let limit = self.limits.limit(kind)?;
        Some((limit, &*limit.sensor))
    }

    /// Counts what is used of a rate; returns how long the client waits for that.
    fn record(&self, kind: QuotaKind, used: f64) -> Duration {
        let Some((limit, Sensor::Rate(window))) = self.limit(kind) else { return Duration::ZERO };
        let (now, rates) = (Instant::now(), &self.limits.rates.clients);
        let mut window = window.lock();
        window.record(used, now, rates);
        window.delay(limit.rate_max, now, rates)
    }

    /// Makes the client wait for so long, if not longer.
    fn throttle(&self, delay: Duration) {
        let ms = delay.min(self.throttle_max).as_millis() as u64;
        self.throttle_ms.fetch_max(ms, Ordering::Relaxed);
    }

    /// The most bytes that a fetch may return at once, if there is a quota.
    pub(crate) fn fetch_bytes_max(&self) -> Option<usize> {
        let (limit, _) = self.limit(QuotaKind::Fetch)?;
        Some(self.limits.rates.clients.burst(limit.rate_max) as usize)
    }

    /// Counts the bytes of the response to a fetch. False if they are too many: they are not
    /// counted then, and the client gets none of them.
    pub(crate) fn record_fetch(&self, bytes: usize) -> bool {
        let Some((limit, Sensor::Rate(window))) = self.limit(QuotaKind::Fetch) else { return true };
        let (now, rates) = (Instant::now(), &self.limits.rates.clients);
        let mut window = window.lock();
        // A batch that is more than all that is ever free comes when nothing is owed: otherwise it
        // never would.
        let is_too_large = bytes as f64 > rates.burst(limit.rate_max);
        let comes_anyway = is_too_large && window.delay(limit.rate_max, now, rates).is_zero();
        window.record(bytes as f64, now, rates);
        let delay = window.delay(limit.rate_max, now, rates);
        self.throttle(delay);
        if delay.is_zero() || comes_anyway {
            return true;
        }
        window.record(-(bytes as f64), now, rates);
        false
    }

    /// Counts the bytes of a response that is sent in any case.
    pub(crate) fn record_sent(&self, bytes: usize) {
        self.throttle(self.record(QuotaKind::Fetch, bytes as f64));
    }

    /// Takes partitions that are created or deleted. That is done if one more may be, as in Kafka,
    /// or if `is_strict` is not.
    fn take_mutations(&self, partitions: f64, is_strict: bool) -> Result<(), TooManyMutations> {
        let Some((limit, Sensor::Tokens(bucket))) = self.limit(QuotaKind::Mutation) else {
            return Ok(());
        };
        let (now, rates) = (Instant::now(), &self.limits.rates.mutations);
        // Checked and taken at once: of many requests at a time only one takes the last.
        let mut bucket = bucket.lock();
        let delay = bucket.delay(limit.rate_max, now, rates);
        if is_strict && !delay.is_zero() {
            self.throttle(delay);
            return Err(TooManyMutations);
        }
        bucket.take(partitions, limit.rate_max, now, rates);
        Ok(())
    }

    /// The delay until another partition may be created or deleted.
    fn mutation_delay(&self) -> Duration {
        let Some((limit, Sensor::Tokens(bucket))) = self.limit(QuotaKind::Mutation) else {
            return Duration::ZERO;
        };
        let rates = &self.limits.rates.mutations;
        bucket.lock().delay(limit.rate_max, Instant::now(), rates)
    }

    /// Counts the bytes of a request before it is served: a client that goes away then has sent
    /// them too.
    fn record_received(&self, api_key: i16, bytes: usize) {
        if api_key == ApiKey::Produce as i16 {
            self.throttle(self.record(QuotaKind::Produce, bytes as f64));
        }
    }

    /// Counts how long a request kept threads busy.
    fn record_time(&self, api_key: i16, time: Duration) {
        if !is_exempt(api_key) {
            let delay = self.record(QuotaKind::RequestTime, time.as_secs_f64() * 100.0);
            // One sample at most, as in Kafka.
            self.throttle(delay.min(self.limits.rates.clients.sample));
        }
    }

    fn throttle_ms(&self) -> u64 {
        self.throttle_ms.load(Ordering::Relaxed)
    }
}

/// The quota for the partitions that a request creates and deletes.
pub(crate) struct MutationQuota<'a> {
    pub(crate) quota: Option<&'a RequestQuota>,
    /// True if a change over the quota is refused. Otherwise it is made, and its client waits.
    pub(crate) is_strict: bool,
    /// The client, which is charged for what it creates.
    pub(crate) requester: Arc<Requester>,
}

impl MutationQuota<'_> {
    /// Makes a change that creates or deletes so many partitions, and counts them if it succeeds,
    /// or if nobody waits for it to the end.
    ///
    /// # Errors
    /// Too many were lately, and the client is told so: the change is not made.
    pub(crate) async fn charge<T, E>(
        &self,
        partitions: usize,
        change: impl Future<Output = Result<T, E>>,
    ) -> Result<Result<T, E>, TooManyMutations> {
        let Some(quota) = self.quota else { return Ok(change.await) };
        let partitions = partitions as f64;
        quota.take_mutations(partitions, self.is_strict)?;
        let changed = change.await;
        if changed.is_err() {
            quota.take_mutations(-partitions, false)?;
        } else if !self.is_strict {
            quota.throttle(quota.mutation_delay());
        }
        Ok(changed)
    }
}

/// True if it is a request of brokers, for which no client pays.
fn is_exempt(api_key: i16) -> bool {
    api_key == ApiKey::WriteTxnMarkers as i16
}

impl KafkaServer {
    /// The quotas of a request, if there are any.
    pub(crate) fn request_quota(&self, context: &RequestContext) -> Option<Arc<RequestQuota>> {
        let security = self.engine.security();
        let version = security.quota_version();
        // A client that has not authenticated has no quota: it may do nothing.
        if version == 0 || !context.connection.authentication.is_done() {
            return None;
        }
        let (requester, client_id) = (context.connection.requester(), context.client_id.as_str());
        let mut cache = context.connection.limits.lock();
        let limits = self
            .admission
            .client_quotas
            .limits(security, version, requester, client_id, &mut cache);
        let throttle_max = self.options.idle_max.max(THROTTLE_MAX);
        Some(Arc::new(RequestQuota { limits, throttle_ms: AtomicU64::new(0), throttle_max }))
    }
}

/// Serves a request of `bytes` bytes. If its client has used too much, the response says for how
/// long nothing more is read from it.
pub(crate) async fn serve_within_quota(
    kafka: Arc<KafkaServer>,
    context: RequestContext,
    quota: Arc<RequestQuota>,
    bytes: usize,
    serving: ResponseFuture,
) -> ResponseResult {
    let (api_key, version) = (context.api_key, context.version);
    let connection = context.connection;
    quota.record_received(api_key, bytes);
    if quota.throttle_ms() > 0 {
        // Before the response: no more that is on its way is taken meanwhile.
        connection.mute.extend(quota.throttle_ms());
    }
    let (mut served, time) = ThreadTime::of(serving).await;
    quota.record_time(api_key, time);
    let throttle_ms = quota.throttle_ms();
    if throttle_ms > 0 {
        connection.mute.extend(throttle_ms);
        add(&kafka.metrics().throttled_requests, 1);
        add(&kafka.metrics().throttled_ms, throttle_ms);
        if let Ok(Some(response)) = &mut served {
            set_throttle_time(response, api_key, version, throttle_ms);
        }
    }
    served
}
