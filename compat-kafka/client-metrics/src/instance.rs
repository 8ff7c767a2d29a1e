//! One client: the metrics that it is to push, the times when it asked and pushed, and its last
//! push.

use std::collections::BTreeMap;

use admission::{BudgetGrant, Holder};
use kafka_protocol::ResponseError;
use kafka_records::CompressionType;
use tokio::time::Instant;
use uuid::Uuid;

use crate::PushedMetrics;
use crate::otlp::{SERIES_BYTES_MAX, SERIES_MAX, Sample, SampleKind};
use crate::subscription::{ClientIdentity, MetricsRequest, kafka_id};

/// About the memory of a client, and of a series without its texts.
const OVERHEAD_BYTES: usize = 256;

/// A metric of clients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientMetric {
    /// True if the metric only rises.
    pub is_counter: bool,
    pub series: Vec<ClientMetricSeries>,
}

/// The value of a metric of one client.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientMetricSeries {
    /// By name.
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

/// The name and the attributes of a series.
type SeriesKey = (String, Vec<(String, String)>);

#[derive(Debug)]
pub(crate) struct ClientInstance {
    client: ClientIdentity,
    /// The version of subscriptions that it was asked by.
    pub(crate) version: u64,
    pub(crate) requested: MetricsRequest,
    /// The number of the connection with whose end it is forgotten.
    pub(crate) owner: u64,
    asked: Option<Instant>,
    pushed: Option<Instant>,
    /// It said that it would end.
    pub(crate) is_over: bool,
    pub(crate) last_error: Option<ResponseError>,
    series: BTreeMap<SeriesKey, (SampleKind, f64)>,
    bytes: usize,
    /// For its bytes.
    grant: BudgetGrant,
}

impl ClientInstance {
    /// The memory of a client that has pushed nothing.
    pub(crate) fn overhead_bytes(client: &ClientIdentity) -> usize {
        OVERHEAD_BYTES + client.bytes()
    }

    pub(crate) fn new(
        client: ClientIdentity,
        version: u64,
        requested: MetricsRequest,
        grant: BudgetGrant,
    ) -> ClientInstance {
        let bytes = ClientInstance::overhead_bytes(&client);
        ClientInstance {
            client,
            version,
            requested,
            owner: 0,
            asked: None,
            pushed: None,
            is_over: false,
            last_error: None,
            series: BTreeMap::new(),
            bytes,
            grant,
        }
    }

    /// It is asked for something else. As in Kafka, it is as if it had just come.
    pub(crate) fn change(&mut self, requested: MetricsRequest) {
        (self.requested, self.asked, self.pushed) = (requested, None, None);
        (self.is_over, self.last_error) = (false, None);
    }

    /// The account that it is charged to.
    pub(crate) fn holder(&self) -> &Holder {
        self.grant.holder()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if the client may ask now for the metrics that it is to push: once in an
    /// interval, or after an error that says so.
    pub(crate) fn may_ask(&mut self, now: Instant) -> bool {
        let last = self.asked.max(self.pushed);
        let is_time = last.is_none_or(|last| now - last >= self.requested.interval);
        let is_told = matches!(
            self.last_error,
            Some(ResponseError::UnknownSubscriptionId | ResponseError::UnsupportedCompressionType)
        );
        if is_time {
            self.asked = Some(now);
        }
        if is_time || is_told {
            self.last_error = None;
        }
        is_time || is_told
    }

    /// Checks a push before it is read: once in an interval, and once after asking.
    pub(crate) fn check_push(
        &mut self,
        now: Instant,
        push: &PushedMetrics,
        bytes_max: usize,
    ) -> Result<CompressionType, ResponseError> {
        if self.is_over {
            return Err(ResponseError::InvalidRequest);
        }
        let has_asked = self.asked > self.pushed;
        let is_time = self.pushed.is_none_or(|last| now - last >= self.requested.interval);
        if has_asked || is_time {
            self.pushed = Some(now);
        } else if !push.is_last {
            return Err(ResponseError::ThrottlingQuotaExceeded);
        }
        if push.subscription != self.requested.id {
            return Err(ResponseError::UnknownSubscriptionId);
        }
        let codec = CompressionType::ALL.into_iter().find(|codec| *codec as i8 == push.codec);
        let codec = codec.ok_or(ResponseError::UnsupportedCompressionType)?;
        if push.data.len() > bytes_max { Err(ResponseError::TelemetryTooLarge) } else { Ok(codec) }
    }

    /// Takes samples in place of those before, as far as there is room.
    pub(crate) fn take(&mut self, samples: Vec<Sample>, room: usize) {
        let before = std::mem::take(&mut self.series);
        self.bytes = ClientInstance::overhead_bytes(&self.client);
        for Sample { name, mut attributes, value, kind } in samples {
            attributes.sort_unstable();
            let key = (name, attributes);
            let risen = before.get(&key).filter(|(before, _)| *before == kind);
            let value = match kind {
                SampleKind::Increase => value + risen.map_or(0.0, |(_, before)| *before),
                SampleKind::Gauge | SampleKind::Counter => value,
            };
            self.insert(key, kind, value, room);
        }
        // A sum that has not risen since may be left out of a push.
        let risen = before.into_iter().filter(|(_, (kind, _))| *kind == SampleKind::Increase);
        for (key, (kind, value)) in risen {
            if !self.series.contains_key(&key) {
                self.insert(key, kind, value, room);
            }
        }
        self.grant.resize_always(self.bytes as u64);
    }

    fn insert(&mut self, key: SeriesKey, kind: SampleKind, value: f64, room: usize) {
        let (name, attributes) = &key;
        let texts = attributes.iter().map(|(name, value)| name.len() + value.len());
        let bytes = name.len() + texts.sum::<usize>();
        // Each is shown with what the client says of itself.
        let memory = OVERHEAD_BYTES + bytes + self.client.bytes();
        let is_known = self.series.contains_key(&key);
        let is_too_much = bytes > SERIES_BYTES_MAX
            || self.series.len() >= SERIES_MAX
            || self.bytes + memory > room;
        if is_known || !is_too_much {
            self.bytes += if is_known { 0 } else { memory };
            self.series.insert(key, (kind, value));
        }
    }

    /// Adds what it has pushed to metrics by name.
    pub(crate) fn append_to(&self, id: Uuid, metrics: &mut BTreeMap<String, ClientMetric>) {
        let client_attributes = [
            ("client_instance_id", kafka_id(id)),
            ("client_id", self.client.client_id.clone()),
            ("client_software_name", self.client.software_name.clone()),
            ("client_software_version", self.client.software_version.clone()),
        ];
        for ((name, attributes), (kind, value)) in &self.series {
            let mut labels: BTreeMap<String, String> =
                attributes.iter().map(|(name, value)| (label_name(name), value.clone())).collect();
            labels.extend(
                client_attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())),
            );
            let is_counter = *kind != SampleKind::Gauge;
            let metric = metrics
                .entry(metric_name(name))
                .or_insert_with(|| ClientMetric { is_counter, series: Vec::new() });
            // Another client may call something else by this name.
            if metric.is_counter == is_counter {
                let labels = labels.into_iter().collect();
                metric.series.push(ClientMetricSeries { labels, value: *value });
            }
        }
    }
}

/// A name of a label as Prometheus allows it, which has those that begin with two underscores for
/// itself.
fn label_name(name: &str) -> String {
    let name = metric_name(name);
    if name.starts_with("__") { format!("label{name}") } else { name }
}

/// A name as Prometheus allows it.
fn metric_name(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let starts_wrong = name.chars().next().is_none_or(|c| c.is_ascii_digit());
    let prefix = if starts_wrong { "_" } else { "" };
    format!("{prefix}{}", name.chars().map(allowed).collect::<String>())
}
