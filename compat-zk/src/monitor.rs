//! Figures for monitoring: the word `mntr`, the command `monitor`, and Prometheus have the same.

use crate::server::ZkServer;
use crate::traffic::LatencyStats;

#[derive(Clone, Debug, PartialEq)]
pub enum MonitorValue {
    Text(String),
    Integer(u64),
    Decimal(f64),
}

/// A figure, under the name that ZooKeeper's `mntr` gives it after `zk_`, and its Prometheus
/// exporter.
#[derive(Clone, Debug)]
pub struct MonitorEntry {
    pub name: &'static str,
    pub help: &'static str,
    pub value: MonitorValue,
}

impl ZkServer {
    /// All figures.
    pub fn monitor(&self) -> Vec<MonitorEntry> {
        let mut entries = Vec::new();
        let mut put = |name, help, value| entries.push(MonitorEntry { name, help, value });
        let text = |text: &str| MonitorValue::Text(text.to_owned());
        put("version", "The server", text(&self.version()));
        put("server_state", "Its role", text("standalone"));
        let traffic = self.traffic();
        let requests = traffic.sent.requests();
        let integer = MonitorValue::Integer;
        put(
            "avg_latency",
            "Milliseconds that a request took",
            MonitorValue::Decimal(requests.average()),
        );
        put("min_latency", "The least of them", integer(requests.min()));
        put("max_latency", "The most of them", integer(requests.max));
        put("packets_received", "Requests", integer(traffic.received));
        put("packets_sent", "Replies and events", integer(traffic.sent.packets));
        put("bytes_received_count", "Bytes of requests", integer(traffic.received_bytes));
        let sizes = traffic.sent.sizes;
        put("response_bytes", "Bytes of replies", integer(sizes.sum));
        put("last_client_response_size", "Bytes of the last reply", integer(sizes.last));
        put("min_client_response_size", "Bytes of the shortest reply", integer(sizes.min));
        put("max_client_response_size", "Bytes of the longest reply", integer(sizes.max));
        let connections = self.connection_list();
        put("num_alive_connections", "Connections open", integer(connections.len() as u64));
        let rejected = self.connections_rejected();
        put("connection_rejected", "Connections refused", integer(rejected));
        let drops = MonitorValue::Decimal(0.0);
        put("connection_drop_probability", "Connections refused at random: none", drops);
        let requests = self.connection_requests();
        put("connection_request_count", "Handshakes of clients", integer(requests));
        let outstanding = connections.iter().map(|connection| connection.outstanding() as u64);
        put("outstanding_requests", "Requests on their way", integer(outstanding.sum()));
        put("uptime", "Milliseconds since the start", integer(self.now_ms()));
        put("global_sessions", "Sessions", integer(self.session_count() as u64));
        put("stale_sessions_expired", "Sessions that expired", integer(self.expired_sessions()));
        put("local_sessions", "Sessions of one server alone: none", integer(0));
        put("auth_failed_count", "Failed authentications", integer(self.auth_failures()));
        let failed = self.failed_handshakes();
        put("unsuccessful_handshake", "Failed handshakes of TLS", integer(failed));
        {
            let tree = self.znodes.tree();
            put("znode_count", "Znodes", integer(tree.len_as_zookeeper_counts() as u64));
            let ephemerals = tree.sessions().map(|(_, session)| session.ephemerals().len() as u64);
            put("ephemerals_count", "Ephemeral znodes", integer(ephemerals.sum()));
            let bytes = tree.data_bytes() + tree.path_bytes();
            put("cached_data_size", "Bytes of data in memory", integer(tree.cached_bytes()));
            put("approximate_data_size", "Bytes of data and paths", integer(bytes));
        }
        let watches = self.watches().lock().counts();
        put("watch_count", "Watches", integer(watches.all as u64));
        if let Some((open, max)) = descriptors() {
            put("open_file_descriptor_count", "Open files and sockets", integer(open));
            put("max_file_descriptor_count", "As many may be open", integer(max));
        }
        let [reads, writes] = [&traffic.sent.reads, &traffic.sent.writes].map(latency_values);
        let names = [
            ["avg_readlatency", "avg_updatelatency"],
            ["min_readlatency", "min_updatelatency"],
            ["max_readlatency", "max_updatelatency"],
            ["cnt_readlatency", "cnt_updatelatency"],
            ["sum_readlatency", "sum_updatelatency"],
        ];
        for ([read, write], (of_reads, of_writes)) in
            names.into_iter().zip(reads.into_iter().zip(writes))
        {
            put(read, "Milliseconds that a read took", of_reads);
            put(write, "Milliseconds that a write took", of_writes);
        }
        entries
    }
}

fn latency_values(stats: &LatencyStats) -> [MonitorValue; 5] {
    let integer = MonitorValue::Integer;
    let average = MonitorValue::Decimal(stats.average());
    [average, integer(stats.min()), integer(stats.max), integer(stats.count), integer(stats.sum)]
}

/// The number of open files and sockets, and the limit.
fn descriptors() -> Option<(u64, u64)> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64;
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    Some((open, line.split_whitespace().next()?.parse().ok()?))
}
