//! A real Prometheus that reads running servers: it answers every query of the dashboards, and its
//! alerts fire.
//!
//! The rules run 60 times as fast as they are written: each duration of minutes is one of seconds.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::certificates::CertificateDirectory;
use testkit::directory::TestDirectory;
use testkit::process::mount::{is_installed, print_notice};
use testkit::process::{RawKafkaConnection, http_get};

use super::breakage::{Breakage, break_everything, commit, use_zookeeper, values};
use super::{alerts, dashboard_queries, full_server, read};

/// The longest wait for an alert. The longest of them takes half a minute.
const ALERT_MAX: Duration = Duration::from_secs(180);
/// The pause between two looks at Prometheus, which is asked over HTTP.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

struct Prometheus {
    process: Child,
    address: SocketAddr,
    _directory: TestDirectory,
}

impl Prometheus {
    /// Starts it: it scrapes these servers, and evaluates the rules.
    fn start(servers: &[SocketAddr], zookeeper: SocketAddr) -> Prometheus {
        let directory = TestDirectory::new();
        let write = |name: &str, text: &str| {
            std::fs::write(directory.path().join(name), text).expect("it can be written");
        };
        let rules = rules_in_seconds(&read("ops/alerts.yaml"));
        write("alerts.yaml", &rules);
        let targets: Vec<String> = servers.iter().map(|server| format!("\"{server}\"")).collect();
        let config = format!(
            "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms }}\n\
             rule_files: [alerts.yaml]\n\
             scrape_configs:\n\
             - job_name: freezeframe\n  static_configs: [{{ targets: [{}] }}]\n\
             - job_name: freezeframe-zookeeper\n  metrics_path: /metrics/zookeeper\n  static_configs: [{{ targets: [\"{zookeeper}\"] }}]\n",
            targets.join(", ")
        );
        write("prometheus.yaml", &config);
        // Prometheus does not say which port it took.
        let address = free_address();
        let process = Command::new("prometheus")
            .current_dir(directory.path())
            .args(["--config.file=prometheus.yaml", "--storage.tsdb.path=data"])
            .args([format!("--web.listen-address={address}"), "--log.level=warn".to_owned()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it is installed");
        let prometheus = Prometheus { process, address, _directory: directory };
        wait_until("Prometheus starts", || get(address, "/-/ready").ok_or("no answer").map(drop));
        prometheus
    }

    fn ask(&self, path: &str) -> Value {
        let answer = get(self.address, path).unwrap_or_else(|| panic!("no answer to {path}"));
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_eq!(answer["status"], "success", "{path}: {answer}");
        answer["data"].clone()
    }

    /// The number of rows in the answer to a query.
    fn rows(&self, query: &str) -> usize {
        let data = self.ask(&format!("/api/v1/query?query={}", percent_encoded(query)));
        data["result"].as_array().expect("rows").len()
    }

    /// The alerts that fire: name and server.
    fn firing(&self) -> BTreeSet<(String, String)> {
        let data = self.ask("/api/v1/alerts");
        let alerts = data["alerts"].as_array().expect("alerts").iter();
        let firing = alerts.filter(|alert| alert["state"] == "firing");
        let label = |alert: &Value, name: &str| {
            alert["labels"][name].as_str().unwrap_or_default().to_owned()
        };
        firing.map(|alert| (label(alert, "alertname"), label(alert, "instance"))).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An address that is free now.
pub(super) fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
    listener.local_addr().expect("it has an address")
}

/// The body of an answer; `None` without one.
fn get(address: SocketAddr, path: &str) -> Option<String> {
    let (status, body) = http_get(address, path).ok()?;
    // It answers 400 to a query that is not valid, and says why.
    [200, 400].contains(&status).then_some(body)
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// The rules with seconds in place of minutes.
fn rules_in_seconds(rules: &str) -> String {
    let in_seconds = |line: &str| match line.strip_suffix('m') {
        Some(wait) if wait.trim_start().starts_with("for: ") => format!("{wait}s\n"),
        _ => line.replace("m]", "s]") + "\n",
    };
    rules.lines().map(in_seconds).collect()
}

/// Waits until `claim` is right. Its error is what is missing.
fn wait_until<E: Debug>(what: &str, mut claim: impl FnMut() -> Result<(), E>) {
    let begun = Instant::now();
    while let Err(missing) = claim() {
        assert!(begun.elapsed() < ALERT_MAX, "{what}: {missing:?}");
        std::thread::park_timeout(LOOK_INTERVAL);
    }
}

/// Nothing, or what is missing.
fn none_of<T: Clone>(missing: &[T]) -> Result<(), Vec<T>> {
    if missing.is_empty() { Ok(()) } else { Err(missing.to_vec()) }
}

/// True if a query may have no answer although all is well: it asks for what is not there then, or
/// not known yet.
fn may_be_empty(query: &str) -> bool {
    query.ends_with("> 0") || query.ends_with("> 0.5") || query.contains("disk_days_left")
}

#[test]
fn prometheus_answers_every_query_and_fires_every_alert() {
    let test = "prometheus_answers_every_query_and_fires_every_alert";
    for program in ["prometheus", "strace"] {
        if !is_installed(program) {
            print_notice(&format!("SKIPPED {test}: {program} is not installed"));
            return;
        }
    }
    let (data, certificates) = (TestDirectory::new(), CertificateDirectory::new());
    let well = full_server(&data, &certificates);
    let Some(broken) = break_everything(test) else { return };
    let servers: Vec<SocketAddr> =
        broken.iter().map(|breakage| breakage.http).chain([well.http]).collect();
    let prometheus = Prometheus::start(&servers, well.http);

    let mut wire = RawKafkaConnection::connect(well.kafka);
    wire.create_topic("t", 1, &[]);
    commit(&mut wire, "group", "t", 0);
    let queries = dashboard_queries();
    let mut unanswered: Vec<&String> = queries.iter().collect();
    wait_until("every query is answered", || {
        // Rates need traffic.
        assert_eq!(wire.produce("t", 0, &values(10)).0, 0);
        wire.fetch("t", 0, 0);
        use_zookeeper(&well);
        unanswered.retain(|query| prometheus.rows(query) == 0 && !may_be_empty(query));
        none_of(&unanswered)
    });

    let mut missing: Vec<(String, String)> = broken
        .iter()
        .map(|Breakage { alert, http, .. }| ((*alert).to_owned(), http.to_string()))
        .collect();
    let names: BTreeSet<&str> = broken.iter().map(|breakage| breakage.alert).collect();
    let alerts = alerts();
    assert_eq!(names, alerts.iter().map(|(name, _)| name.as_str()).collect(), "each is broken");
    wait_until("every alert fires", || {
        let firing = prometheus.firing();
        missing.retain(|alert| !firing.contains(alert));
        none_of(&missing)
    });
    let well = well.http.to_string();
    let firing = prometheus.firing();
    let false_alarms: Vec<_> = firing.iter().filter(|(_, server)| *server == well).collect();
    assert!(false_alarms.is_empty(), "{false_alarms:?}");
}
