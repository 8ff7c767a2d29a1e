//! The pages of metrics, in the text formats that Prometheus reads.
//!
//! Each component owns its counters. This module reads them on each request.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use admission::BudgetUsage;
use compat_kafka::{ClientMetric, ClientMetricSeries};
use compat_zk::{MonitorEntry, MonitorValue};
use engine::AuditOutcome;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use storage::LatencyCounts;

use self::largest_rows::LargestRows;
use crate::process;
use crate::status::{ServerParts, ServerStatus};

mod certificates;
mod disk_trend;
mod group_lag;
mod largest_rows;

pub(crate) use certificates::CertificateEnds;
pub(crate) use disk_trend::DiskTrend;
pub(crate) use group_lag::GroupLags;
pub use group_lag::IMPORT_GROUP_PREFIX;

/// The name of the row for everything that has no row of its own. No topic has such a name.
const OTHERS: &str = "(others)";

/// The text formats of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricsFormat {
    OpenMetrics,
    /// The format of Prometheus, version 0.0.4.
    Prometheus,
}

impl MetricsFormat {
    /// The format that the header `Accept` of a request asks for.
    pub(crate) fn accepted(accept: &str) -> MetricsFormat {
        let is_other = !accept.is_empty() && !accept.contains("application/openmetrics-text");
        let is_text = accept.contains("text/plain") || accept.contains("text/*");
        if is_other && is_text { MetricsFormat::Prometheus } else { MetricsFormat::OpenMetrics }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::OpenMetrics => {
                "application/openmetrics-text; version=1.0.0; charset=utf-8"
            }
            MetricsFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The text in this format. In that of Prometheus, a counter's description has the name of its
    /// samples, and nothing marks the end.
    pub(crate) fn of_open_metrics(self, text: String) -> String {
        if self == MetricsFormat::OpenMetrics {
            return text;
        }
        let described = |line: &'_ str| -> Option<(String, bool)> {
            let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
            Some((name.to_owned(), kind == "counter"))
        };
        let kinds: BTreeMap<String, bool> = text.lines().filter_map(described).collect();
        let mut page = String::with_capacity(text.len());
        for line in text.lines().filter(|line| *line != "# EOF") {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", word, name, rest] if kinds.get(name) == Some(&true) => {
                    page.push_str(&format!("# {word} {name}_total {rest}\n"));
                }
                _ => {
                    page.push_str(line);
                    page.push('\n');
                }
            }
        }
        page
    }
}

/// Encodes all metrics with their current values, as OpenMetrics.
pub(crate) fn encode_text(status: &Arc<ServerStatus>) -> Result<String, fmt::Error> {
    encode_page(StatusCollector(Arc::clone(status)))
}

/// Encodes what clients of Kafka have pushed last (KIP-714).
pub(crate) fn encode_clients(status: &Arc<ServerStatus>) -> Result<String, fmt::Error> {
    let metrics = status.parts().map(|server| server.kafka.client_metrics()).unwrap_or_default();
    encode_page(ClientMetricsCollector(metrics))
}

/// Encodes the figures that ZooKeeper's own exporter has, under its names.
pub(crate) fn encode_zookeeper(status: &Arc<ServerStatus>) -> Result<String, fmt::Error> {
    let server = status.parts().and_then(|server| server.zookeeper.as_ref());
    encode_page(ZooKeeperCollector(server.map(|server| server.monitor()).unwrap_or_default()))
}

fn encode_page(collector: impl Collector) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(collector));
    let mut text = String::with_capacity(8 << 10);
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct ClientMetricsCollector(BTreeMap<String, ClientMetric>);

impl Collector for ClientMetricsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, metric) in &self.0 {
            // The encoder gives the names of counters their ending.
            let (name, kind) = if metric.is_counter {
                (name.strip_suffix("_total").unwrap_or(name), MetricType::Counter)
            } else {
                (name.as_str(), MetricType::Gauge)
            };
            let mut family = encoder.encode_descriptor(name, "From clients", None, kind)?;
            for ClientMetricSeries { labels, value } in &metric.series {
                let mut series = family.encode_family(labels)?;
                match kind {
                    MetricType::Counter => {
                        series.encode_counter::<NoLabelSet, _, f64>(value, None)?;
                    }
                    _ => series.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct StatusCollector(Arc<ServerStatus>);

impl Collector for StatusCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut page = MetricsPage(encoder);
        page.gauge(
            "freezeframe_ready",
            "Whether clients are served and writes are taken",
            u64::from(self.0.readiness().is_ok()),
        )?;
        if let Some(server) = self.0.parts() {
            encode_kafka(&mut page, server)?;
            encode_latencies(&mut page, server)?;
            encode_audit(&mut page, server)?;
            encode_budgets(&mut page, server)?;
            encode_journal(&mut page, server)?;
            encode_time(&mut page, server)?;
            encode_contents(&mut page, server)?;
            encode_cuts(&mut page, server)?;
            encode_disk(&mut page, server)?;
            encode_certificates(&mut page, server)?;
            encode_topic_bytes(&mut page, server)?;
            encode_group_lags(&mut page, server)?;
        }
        encode_build(&mut page)?;
        encode_process(&mut page)
    }
}

fn encode_kafka(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    let metrics = server.kafka.metrics();
    let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
    page.gauge("freezeframe_connections", "Connections open", now(&metrics.connections))?;
    page.counter(
        "freezeframe_logins_failed",
        "Failed authentications, by SASL, over HTTP and of ZooKeeper's clients",
        server.engine.security().audit().count(AuditOutcome::Failure),
    )?;
    let counters = [
        ("connections_accepted", "Connections accepted", &metrics.connections_accepted),
        (
            "connections_refused",
            "Connections refused for want of room",
            &metrics.connections_refused,
        ),
        (
            "connections_slow",
            "Connections ended because their client sent or read too slowly",
            &metrics.connections_slow,
        ),
        (
            "handshakes_failed",
            "Handshakes of TLS that failed, at the ports for Kafka's clients",
            &metrics.handshakes_failed,
        ),
        (
            "throttled_requests",
            "Requests whose client has to wait, because it has used more than its quotas",
            &metrics.throttled_requests,
        ),
        ("throttled_ms", "For how long clients have to wait for that", &metrics.throttled_ms),
        ("bad_frames", "Frames that could not be read", &metrics.bad_frames),
        ("received_bytes", "Bytes of requests", &metrics.bytes_in),
        ("sent_bytes", "Bytes of answers", &metrics.bytes_out),
        ("produced_records", "Records produced", &metrics.records_produced),
        ("produced_bytes", "Bytes of batches produced", &metrics.bytes_produced),
        ("fetched_bytes", "Bytes of batches fetched", &metrics.bytes_fetched),
        (
            "corrupt_reads",
            "Batches read from disk whose checksum did not match",
            &metrics.corrupt_reads,
        ),
        (
            "link_written_bytes",
            "Bytes written into clients' memory by RDMA",
            &metrics.link_bytes_written,
        ),
        ("link_read_bytes", "Bytes read from clients' memory by RDMA", &metrics.link_bytes_read),
        (
            "link_copied_bytes",
            "Bytes of batches that had to be copied, because memory for devices ran out",
            &metrics.link_bytes_copied,
        ),
    ];
    for (name, help, count) in counters {
        page.counter(&format!("freezeframe_{name}"), help, now(count))?;
    }
    let sessions = server.kafka.fetch_session_counts();
    page.gauge("freezeframe_fetch_sessions", "Fetch sessions", sessions.sessions)?;
    page.gauge(
        "freezeframe_fetch_session_partitions",
        "Partitions of fetch sessions",
        sessions.partitions,
    )?;
    page.counter(
        "freezeframe_fetch_sessions_evicted",
        "Fetch sessions that made room for others",
        sessions.evicted,
    )?;
    let sessions = server.kafka.share_session_counts();
    page.gauge("freezeframe_share_sessions", "Share sessions", sessions.sessions)?;
    page.gauge(
        "freezeframe_share_session_partitions",
        "Partitions of share sessions",
        sessions.partitions,
    )?;
    let (clients, refused) = server.kafka.client_metrics_counts();
    page.gauge(
        "freezeframe_metrics_clients",
        "Clients that push metrics, or ask what to push",
        clients,
    )?;
    page.counter(
        "freezeframe_metrics_clients_refused",
        "Requests of such clients that were refused",
        refused,
    )?;
    page.gauge("freezeframe_links", "RDMA links that are open", now(&metrics.links))?;
    let pinned = rdma::resources().pinned_bytes;
    page.gauge("freezeframe_rdma_pinned_bytes", "Memory that RDMA devices may use", pinned)?;
    for (name, bytes, evictions) in server.kafka.budgets() {
        page.gauge(&format!("freezeframe_{name}_bytes"), "Bytes held of this budget", bytes)?;
        page.counter(
            &format!("freezeframe_{name}_connections_ended"),
            "Connections ended because others needed the memory that waited for their client",
            evictions,
        )?;
    }
    let requests = metrics.requests().map(|(api, count)| ([("api", api)], count));
    page.counter_rows("freezeframe_requests", "Requests", requests)
}

/// The time for which clients wait for the server.
fn encode_latencies(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    let metrics = server.kafka.metrics();
    page.histogram(
        "freezeframe_produce_seconds",
        "From the arrival of a produce request until its response is ready",
        &metrics.produce_latency.counts(),
    )?;
    page.histogram(
        "freezeframe_fetch_seconds",
        "From the arrival of a fetch request until its response is ready, without the wait that its client asked for (fetch.min.bytes, fetch.max.wait.ms), and with the first read from the disk",
        &metrics.fetch_latency.counts(),
    )?;
    page.histogram(
        "freezeframe_request_queue_seconds",
        "From the arrival of a request until it is started: it waits for earlier requests of its connection, also for their long polls; a delay by quotas does not count",
        &metrics.queue_time.counts(),
    )?;
    page.histogram(
        "freezeframe_journal_sync_seconds",
        "How long a group of appends took to be written and synced, if it was synced",
        &server.engine.stats().sync_latency.counts(),
    )?;
    let Some(zookeeper) = &server.zookeeper else { return Ok(()) };
    let latencies = zookeeper.latencies();
    let (name, help) = (
        "freezeframe_zookeeper_request_seconds",
        "From the arrival of a request of ZooKeeper's protocol until its reply is ready",
    );
    let mut family = page.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (kind, counts) in [("read", latencies.reads.counts()), ("write", latencies.writes.counts())]
    {
        let labels = [("kind", kind)];
        encode_histogram(&mut family.encode_family(&labels)?, &counts)?;
    }
    Ok(())
}

fn encode_histogram(metric: &mut MetricEncoder<'_>, counts: &LatencyCounts) -> fmt::Result {
    let buckets: Vec<(f64, u64)> = counts.buckets().collect();
    let no_exemplars: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;
    metric.encode_histogram(counts.sum().as_secs_f64(), counts.count(), &buckets, no_exemplars)
}

fn encode_audit(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    let audit = server.engine.security().audit();
    let row = |outcome: AuditOutcome| ([("outcome", outcome.as_str())], audit.count(outcome));
    page.counter_rows(
        "freezeframe_audit_events",
        "Changes that were made, requests that were denied, and logins that failed",
        AuditOutcome::ALL.map(row),
    )
}

fn encode_budgets(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    let usages = server.engine.budgets().usages();
    let by_budget = |value: fn(&BudgetUsage) -> u64| {
        usages.iter().map(move |usage| ([("budget", usage.name)], value(usage)))
    };
    let help = "What clients may hold of a budget";
    page.gauge_rows("freezeframe_budget_limit", help, by_budget(|usage| usage.limit))?;
    let help = "What clients hold of a budget";
    page.gauge_rows("freezeframe_budget_used", help, by_budget(|usage| usage.used))?;
    let largest = usages.iter().filter_map(|usage| {
        let largest = usage.largest.as_ref()?;
        Some(([("budget", usage.name), ("holder", largest.name.as_str())], largest.used))
    });
    let help = "What the largest holder of a budget holds";
    page.gauge_rows("freezeframe_budget_largest_holder", help, largest)?;
    page.counter_rows(
        "freezeframe_budget_refused",
        "How often a client was refused or had to make room",
        by_budget(|usage| usage.refused),
    )
}

/// Under the names that ZooKeeper's own exporter has; there they are gauges too.
#[derive(Debug)]
struct ZooKeeperCollector(Vec<MonitorEntry>);

impl Collector for ZooKeeperCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut page = MetricsPage(encoder);
        for MonitorEntry { name, help, value } in &self.0 {
            match value {
                MonitorValue::Text(_) => {}
                MonitorValue::Integer(value) => page.gauge(name, help, *value)?,
                MonitorValue::Decimal(value) => page.gauge(name, help, *value)?,
            }
        }
        Ok(())
    }
}

fn encode_journal(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    let stats = server.engine.stats();
    let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let counters = [
        ("journal_groups", "Groups of appends written", &stats.groups),
        ("journal_syncs", "Groups put on stable storage", &stats.syncs),
        ("journal_appends", "Appends that became visible", &stats.appends),
        ("journal_written_bytes", "Bytes of journal written", &stats.bytes),
    ];
    for (name, help, count) in counters {
        page.counter(&format!("freezeframe_{name}"), help, now(count))?;
    }
    let help = "How long these groups took to be written and synced";
    let sync_micros = u64::try_from(stats.sync_latency.counts().sum().as_micros());
    page.counter("freezeframe_journal_sync_us", help, sync_micros.unwrap_or(u64::MAX))?;
    let gauges = [
        ("journal_end_bytes", "The position behind the journal's last entry", &stats.journal_end),
        ("journal_synced_bytes", "The position below which all is stable", &stats.synced_to),
        ("tail_bytes", "Bytes of the newest payloads in memory", &stats.tail_bytes),
    ];
    for (name, help, value) in gauges {
        page.gauge(&format!("freezeframe_{name}"), help, now(value))?;
    }
    let segments = server.engine.segment_count() as u64;
    page.gauge("freezeframe_journal_segments", "Files of the journal", segments)?;
    let history = server.engine.history_stats();
    for (name, help, count) in [
        ("segments_indexed", "Segments of the journal indexed in files", &history.indexed),
        ("segments_proved", "Sealed segments of which a proof was written", &history.proved),
        ("segments_sorted", "Sealed segments rewritten sorted by log", &history.sorted),
        ("segments_merged", "Sorted segments merged into larger ones", &history.merged),
        ("sorted_bytes", "Bytes that sorting and merging wrote", &history.sorted_bytes),
        ("files_removed", "Data files removed", &history.removed_files),
        ("reclaimed_bytes", "Bytes reclaimed inside files that stay", &history.reclaimed_bytes),
        ("indexes_rebuilt", "Indexes rebuilt because they were lost or corrupt", &history.rebuilt),
        (
            "logs_compacted",
            "Times that a log's beginning was compacted",
            &history.replaced_prefixes,
        ),
        ("logs_removed", "Logs of deleted topics that were removed", &history.removed_logs),
    ] {
        page.counter(&format!("freezeframe_{name}"), help, now(count))?;
    }
    let index_bytes = server.engine.index_bytes() as u64;
    page.gauge("freezeframe_index_bytes", "Bytes of index files in memory", index_bytes)?;
    let blocks = server.engine.data_cache().stats();
    let bytes = blocks.bytes.load(Ordering::Relaxed) as u64;
    page.gauge("freezeframe_block_bytes", "Bytes of old data in memory, that was read", bytes)?;
    page.counter("freezeframe_block_hits", "Reads of old data from memory", now(&blocks.hits))?;
    page.counter("freezeframe_block_loads", "Blocks of old data read", now(&blocks.loads))?;
    let maintenance = server.engine.core().maintenance();
    let age = maintenance.backup_age().map_or(0, |age| age.as_secs());
    let help = "How long the oldest running backup has kept the server from reclaiming space";
    page.gauge("freezeframe_backup_age_seconds", help, age)?;
    let help = "Bytes of files that only a running backup still needs";
    page.gauge("freezeframe_backup_held_bytes", help, maintenance.backup_held_bytes())?;
    let stopped = u64::from(server.engine.stop_reason().is_some());
    page.gauge("freezeframe_stopped", "Whether the store has stopped", stopped)
}

fn encode_time(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    let timekeeper = server.engine.timekeeper();
    let frontier = timekeeper.frontier().time().0;
    page.gauge(
        "freezeframe_frontier_lag_ms",
        "How far the newest moment that is final lies behind the wall clock",
        timekeeper.wall_now().0.saturating_sub(frontier),
    )?;
    let (carries, peers_refused) = timekeeper.counts();
    page.counter("freezeframe_clock_carries", "Stamps that ran ahead of the clock", carries)?;
    page.counter("freezeframe_clock_peers_refused", "Stamps of peers refused", peers_refused)?;
    let fenced = u64::from(timekeeper.fence().is_some());
    page.gauge("freezeframe_fenced", "Whether the clock holds writes back", fenced)?;
    let precision = timekeeper.precision();
    for (name, help, value) in [
        (
            "unconfirmed",
            "Whether retention by age is suspended because nobody has confirmed the wall clock",
            u64::from(timekeeper.doubt().is_some()),
        ),
        (
            "synchronised",
            "Whether the kernel says that the wall clock is synchronised",
            u64::from(precision.is_synchronised),
        ),
        ("error_ms", "How far the wall clock may be wrong", precision.error_ms),
        ("ahead_ms", "How far stamps run ahead of the wall clock", precision.ahead_ms),
    ] {
        page.gauge(&format!("freezeframe_clock_{name}"), help, value)?;
    }
    Ok(())
}

fn encode_contents(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    let topics = server.engine.topics().all();
    let partitions: usize = topics.iter().map(|topic| topic.partitions.len()).sum();
    page.gauge("freezeframe_topics", "Topics", topics.len() as u64)?;
    page.gauge("freezeframe_partitions", "Partitions of all topics", partitions as u64)?;
    let (rebuilds, in_memory) = server.engine.catalog_rebuilds();
    page.counter(
        "freezeframe_catalog_rebuilds",
        "Times that offsets, groups and names were loaded again because their catalog failed",
        rebuilds,
    )?;
    page.gauge(
        "freezeframe_catalog_in_memory",
        "Whether the catalog lies in memory, for the disk has no room for it",
        u64::from(in_memory),
    )?;
    match server.engine.groups().snapshot_count() {
        Ok(groups) => page.gauge("freezeframe_groups", "Consumer groups", groups as u64),
        // A missing gauge is better than a wrong one.
        Err(_) => Ok(()),
    }
}

fn encode_cuts(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    let stats = server.engine.cuts().cache_stats();
    for (name, help, count) in [
        ("hits", "Cuts answered without a look at the logs", stats.hits),
        ("misses", "Cuts for which the logs were searched", stats.misses),
        ("shared", "Cuts searched for that hold what another moment holds", stats.shared),
    ] {
        page.counter(&format!("freezeframe_cut_cache_{name}"), help, count)?;
    }
    for (name, help, value) in [
        ("moments", "Moments whose cuts are kept", stats.moments),
        ("snapshots", "Snapshots that the moments kept share", stats.snapshots),
        ("bytes", "What the cuts that are kept weigh", stats.bytes),
    ] {
        page.gauge(&format!("freezeframe_cut_cache_{name}"), help, value)?;
    }
    let pins = server.engine.pins().all().len() as u64;
    page.gauge("freezeframe_pins", "Pins that stand", pins)
}

/// The disk of the data directory.
fn encode_disk(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    // A missing gauge is better than a wrong one.
    let Ok(volume) = storage::disk::volume_bytes(&server.data_dir) else { return Ok(()) };
    let help = "Bytes of the data directory's disk";
    page.gauge("freezeframe_disk_total_bytes", help, volume.total)?;
    let help = "Bytes of that disk that can still be written";
    page.gauge("freezeframe_disk_free_bytes", help, volume.usable)?;
    let (name, help) = (
        "freezeframe_disk_days_left",
        "Days until that disk is full, if it fills as over the last day; absent before the server has run for an hour, and while it does not fill",
    );
    let mut metric = page.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
    match server.disk_trend.days_left(volume.usable) {
        Some(days) => metric.encode_gauge(&days),
        None => Ok(()),
    }
}

fn encode_certificates(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    let row = |(listener, end): (String, SystemTime)| {
        let end = end.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        ([("listener", listener)], end.as_secs())
    };
    page.gauge_rows(
        "freezeframe_certificate_expiry_timestamp_seconds",
        "When the first of a listener's certificates ends, since 1970",
        server.certificates.read().into_iter().map(row),
    )
}

fn encode_topic_bytes(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    let mut rows = LargestRows::default();
    for topic in server.engine.topics().all() {
        let bytes = topic.partitions.iter().map(|partition| partition.log.stored_bytes());
        rows.push(bytes.sum(), Arc::clone(&topic.name));
    }
    let largest = rows.iter().map(|(topic, bytes)| ([("topic", &**topic)], bytes));
    let others = rows.others().map(|bytes| ([("topic", OTHERS)], bytes));
    page.gauge_rows(
        "freezeframe_topic_bytes",
        "Bytes of batches stored, of the 20 largest topics",
        largest.chain(others),
    )
}

fn encode_group_lags(page: &mut MetricsPage<'_>, server: &ServerParts) -> fmt::Result {
    // A missing gauge is better than a wrong one.
    let Ok(Some(rows)) = server.group_lags.read(&server.engine) else { return Ok(()) };
    let row = |group, topic, lag| ([("group", group), ("topic", topic)], lag);
    let largest = rows.iter().map(|((group, topic), lag)| row(group.as_str(), &**topic, lag));
    let others = rows.others().map(|lag| row(OTHERS, OTHERS, lag));
    page.gauge_rows(
        "freezeframe_group_lag",
        "Records that a consumer group has not committed in a topic, of the 20 that are furthest behind",
        largest.chain(others),
    )
}

fn encode_build(page: &mut MetricsPage<'_>) -> fmt::Result {
    let target = process::build_target();
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("target", target.as_str())];
    page.gauge_rows("freezeframe_build_info", "The program; always 1", [(labels, 1_u64)])
}

fn encode_process(page: &mut MetricsPage<'_>) -> fmt::Result {
    if let Some(bytes) = process::resident_bytes() {
        page.gauge("process_resident_memory_bytes", "Memory that is resident", bytes)?;
    }
    if let Some(count) = process::open_files() {
        page.gauge("process_open_fds", "Files and sockets open", count)?;
    }
    if let Some(started_at) = process::started_at() {
        let seconds = started_at.as_secs_f64();
        page.gauge("process_start_time_seconds", "When it started, since 1970", seconds)?;
    }
    let seconds = process::cpu_time().as_secs_f64();
    let mut metric = page.0.encode_descriptor(
        "process_cpu_seconds",
        "Time computed",
        None,
        MetricType::Counter,
    )?;
    metric.encode_counter::<NoLabelSet, f64, u64>(&seconds, None)
}

/// A page that is being written.
struct MetricsPage<'a>(DescriptorEncoder<'a>);

impl MetricsPage<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn counter(&mut self, name: &str, help: &str, count: u64) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, u64, u64>(&count, None)
    }

    fn histogram(&mut self, name: &str, help: &str, counts: &LatencyCounts) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        encode_histogram(&mut metric, counts)
    }

    /// A gauge with a row for each set of labels.
    fn gauge_rows<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// A counter with a row for each set of labels.
    fn counter_rows<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, count) in rows {
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, u64>(&count, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_in_the_format_that_its_reader_accepts() {
        for (accept, format) in [
            ("", MetricsFormat::OpenMetrics),
            ("*/*", MetricsFormat::OpenMetrics),
            (
                "text/plain;version=0.0.4;q=0.5,application/openmetrics-text",
                MetricsFormat::OpenMetrics,
            ),
            ("text/plain", MetricsFormat::Prometheus),
            ("text/plain; version=0.0.4, */*;q=0.1", MetricsFormat::Prometheus),
        ] {
            assert_eq!(MetricsFormat::accepted(accept), format, "{accept}");
        }
    }

    #[test]
    fn in_the_format_of_prometheus_a_counter_is_described_by_the_name_of_its_samples() {
        let text = "# HELP a Bytes of a.\n# TYPE a counter\na_total{b=\"c\"} 1\n\
                    # HELP d D.\n# TYPE d gauge\nd 2\n# EOF\n";
        let expected = "# HELP a_total Bytes of a.\n# TYPE a_total counter\na_total{b=\"c\"} 1\n\
                        # HELP d D.\n# TYPE d gauge\nd 2\n";
        assert_eq!(MetricsFormat::Prometheus.of_open_metrics(text.to_owned()), expected);
        assert_eq!(MetricsFormat::OpenMetrics.of_open_metrics(text.to_owned()), text);
    }
}
