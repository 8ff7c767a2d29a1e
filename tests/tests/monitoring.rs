//! Dashboards, alerts and their runbook: they ask for metrics that are served, a real Prometheus
//! answers every query, and every alert fires when what it watches breaks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testkit::certificates::CertificateDirectory;
use testkit::directory::TestDirectory;
use testkit::process::{RawKafkaConnection, TestServer, http_get};

mod breakage;
mod prometheus;

/// The root of the repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The dashboards: their files, and their content.
fn dashboards() -> Vec<(PathBuf, Value)> {
    let files = std::fs::read_dir(root().join("ops/grafana")).expect("a directory");
    let dashboard = |file: std::io::Result<std::fs::DirEntry>| {
        let path = file.expect("a file").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let json = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        (path, json)
    };
    files.map(dashboard).collect()
}

/// The queries of all dashboards, for all servers.
fn dashboard_queries() -> Vec<String> {
    let dashboards = dashboards();
    let targets = dashboards
        .iter()
        .flat_map(|(_, dashboard)| dashboard["panels"].as_array().expect("panels"))
        .flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let query = |target: &Value| {
        let query = target["expr"].as_str().expect("a query");
        query.replace("$instance", ".*").replace("$__rate_interval", "5s")
    };
    targets.map(query).collect()
}

/// The alerts: their names, and their expressions.
fn alerts() -> Vec<(String, String)> {
    let text = read("ops/alerts.yaml");
    let values = |key: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix(key));
        lines.map(str::to_owned).collect()
    };
    let (names, queries) = (values("- alert: "), values("expr: "));
    assert_eq!(names.len(), queries.len());
    names.into_iter().zip(queries).collect()
}

/// The names of metrics in a query.
fn metrics_of(query: &str) -> BTreeSet<String> {
    let mut text = String::new();
    let mut depth = 0;
    // Without matchers, which are in braces, and ranges, which are in brackets.
    for letter in query.chars() {
        match letter {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            letter if depth == 0 => text.push(letter),
            _ => {}
        }
    }
    // Without the labels of groupings.
    for grouping in ["by (", "on (", "without ("] {
        while let Some((before, rest)) = text.split_once(grouping) {
            let (_, after) = rest.split_once(')').expect("it ends");
            text = format!("{before} {after}");
        }
    }
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':';
    let mut names = BTreeSet::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find(|letter: char| letter.is_alphabetic() || letter == '_') {
        let word = &rest[start..];
        let end = word.find(|letter| !is_word(letter)).unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        let is_call = after.trim_start().starts_with('(');
        if !is_call && !["and", "or", "unless"].contains(&word) {
            names.insert(word.to_owned());
        }
        rest = after;
    }
    names
}

/// The names of the samples that a page of metrics may have.
fn samples_of(page: &str) -> BTreeSet<String> {
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let names = |(name, kind): (&str, &str)| -> Vec<String> {
        match kind {
            "counter" => vec![format!("{name}_total")],
            "histogram" => ["bucket", "sum", "count"].map(|part| format!("{name}_{part}")).into(),
            _ => vec![name.to_owned()],
        }
    };
    families.flat_map(names).collect()
}

/// A server with every part that has metrics.
fn full_server(data: &TestDirectory, certificates: &CertificateDirectory) -> TestServer {
    let key = certificates.setting("ssl.keystore.location", "server.pem");
    let settings = [
        "--zookeeper=127.0.0.1:0",
        "--set",
        "listeners=PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "--set",
        "advertised.listeners=PLAINTEXT://127.0.0.1:0,SSL://localhost:0",
        "--set",
        &key,
    ];
    TestServer::start(data.path(), &settings).expect("it starts")
}

#[test]
fn dashboards_and_alerts_ask_for_metrics_that_are_served() {
    let (data, certificates) = (TestDirectory::new(), CertificateDirectory::new());
    let server = full_server(&data, &certificates);
    // The counter of requests has a row for each API that was called.
    RawKafkaConnection::connect(server.kafka).create_topic("t", 1, &[]);
    let pages = ["/metrics", "/metrics/zookeeper"].map(|path| http_get(server.http, path));
    let mut served = BTreeSet::from(["up".to_owned()]);
    for page in pages {
        served.append(&mut samples_of(&page.expect("a page").1));
    }
    let queries = alerts().into_iter().map(|(_, query)| query).chain(dashboard_queries());
    let mut count = 0;
    for query in queries {
        let metrics = metrics_of(&query);
        assert!(!metrics.is_empty(), "{query}");
        for metric in metrics {
            assert!(served.contains(&metric), "{metric} is not served: {query}");
        }
        count += 1;
    }
    assert!(count > 50, "{count} queries");
}

#[test]
fn names_of_metrics_are_found_in_queries() {
    let query = "histogram_quantile(0.99, sum by (instance, le) (rate(a_bucket{b=\"c\"}[5m]))) > 1 and d != 1";
    let expected: BTreeSet<String> = ["a_bucket", "d"].map(str::to_owned).into();
    assert_eq!(metrics_of(query), expected);
}

#[test]
fn dashboards_have_what_grafana_needs() {
    let dashboards = dashboards();
    assert_eq!(dashboards.len(), 2);
    let mut uids = BTreeSet::new();
    for (path, dashboard) in &dashboards {
        for field in ["title", "uid", "description"] {
            assert!(dashboard[field].as_str().is_some_and(|text| !text.is_empty()), "{path:?}");
        }
        assert!(uids.insert(dashboard["uid"].to_string()), "{path:?}: a uid of its own");
        assert!(dashboard["schemaVersion"].as_u64() >= Some(36), "{path:?}");
        let variables = dashboard["templating"]["list"].as_array().expect("variables");
        let names: Vec<&str> =
            variables.iter().map(|variable| variable["name"].as_str().expect("a name")).collect();
        assert_eq!(names, ["datasource", "instance"], "{path:?}");
        let panels = dashboard["panels"].as_array().expect("panels");
        let mut ids = BTreeSet::new();
        let mut taken = BTreeSet::new();
        for panel in panels {
            let title = panel["title"].as_str().expect("a title");
            assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}");
            assert!(["timeseries", "stat"].contains(&panel["type"].as_str().expect("a type")));
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            let [x, y, w, h] =
                ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().expect("a side"));
            assert!(x + w <= 24, "{title} is beside the page");
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(taken.insert(cell), "{title} covers another panel");
            }
            for target in panel["targets"].as_array().expect("targets") {
                assert!(target["refId"].is_string() && target["expr"].is_string(), "{title}");
            }
        }
    }
}

#[test]
fn every_alert_has_a_page_that_begins_with_a_command() {
    let rules = read("ops/alerts.yaml");
    let index = read("docs/runbook/README.md");
    for (name, _) in alerts() {
        let page = read(&format!("docs/runbook/{name}.md"));
        let mut lines = page.lines().filter(|line| !line.is_empty());
        assert_eq!(lines.next(), Some(&*format!("# {name}")));
        assert!(lines.next().is_some_and(|line| line.starts_with("    ")), "{name}");
        for section in ["## What to look at", "## What to do"] {
            assert!(page.contains(section), "{name}: {section}");
        }
        assert!(rules.contains(&format!("runbook_url: docs/runbook/{name}.md")), "{name}");
        assert!(index.contains(&format!("[{name}]({name}.md)")), "{name}");
    }
}
