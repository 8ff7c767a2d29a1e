//! Every budget of a server is flooded from one address, and a client at another one goes on.

use std::collections::BTreeSet;
use std::time::Instant;

use testkit::directory::TestDirectory;
use testkit::process::{TIMEOUT, TestServer, http_get};

use crate::budget;
use crate::floods::{FLOODER, FLOODS};
use crate::go_on::GoingOn;

/// Budgets that tests of `compat-kafka` flood: of two, only the connections of a listener with logins take
/// (`early_connections`, `sasl`); of the other, each connection takes one (`client_metrics`).
const ELSEWHERE: [&str; 3] = ["login-memory", "metric-clients", "password-checks"];
/// Who waits for room, and whose metrics are left out, is not counted as refused.
const NOT_REFUSED: [&str; 9] = [
    "group-answers",
    "history-turns",
    "large-requests",
    "metric-bytes",
    "pipelined-requests",
    "responses",
    "zookeeper-flight-bytes",
    "zookeeper-reads",
    "zookeeper-restores",
];

/// Small limits, so that a flood is short.
const SETTINGS: [&str; 24] = [
    "group.initial.rebalance.delay.ms=0",
    "group.share.max.share.sessions=32",
    "limits.all-partitions-max=4000",
    "limits.answer-bytes=1MiB",
    "limits.groups-bytes=1MiB",
    "limits.groups-max=64",
    "limits.open-files-max=32",
    "limits.pins-max=32",
    "limits.topics-max=64",
    "limits.transaction-offsets-bytes=64KiB",
    "limits.transaction-partitions-max=1000",
    "limits.transactional-ids-bytes=256KiB",
    "max.connections=128",
    "max.incremental.fetch.session.cache.slots=32",
    "queued.max.request.bytes=16MiB",
    "server.zookeeper=127.0.0.1:0",
    "socket.request.max.bytes=4194304",
    "zookeeper.maxClientCnxns=0",
    "zookeeper.maxCnxns=64",
    "zookeeper.sessions-max=48",
    "zookeeper.znode-bytes-max=1MiB",
    "zookeeper.znodes-max=200",
    "telemetry.max.bytes=10485760",
    "transaction.max.timeout.ms=900000",
];

fn names(server: &TestServer) -> BTreeSet<String> {
    let (status, body) = http_get(server.http, "/v1/budgets").expect("an answer");
    assert_eq!(status, 200, "{body}");
    let document: serde_json::Value = serde_json::from_str(&body).expect("a document");
    let budgets = document["budgets"].as_array().expect("a list");
    budgets.iter().map(|budget| budget["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn whichever_budget_is_flooded_another_client_goes_on() {
    let data = TestDirectory::new();
    let settings: Vec<&str> = SETTINGS.iter().flat_map(|setting| ["--set", setting]).collect();
    let server = TestServer::start(data.path(), &settings).expect("it starts");
    let flooded = FLOODS.iter().map(|(name, _)| *name).chain(ELSEWHERE);
    assert_eq!(names(&server), flooded.map(str::to_owned).collect(), "each budget has a flood");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/OPERATING.md");
    let page = std::fs::read_to_string(page).expect("a page");
    for name in names(&server) {
        assert!(page.contains(&format!("`{name}`")), "{name} is not in docs/OPERATING.md");
    }
    let mut client = GoingOn::new(&server);
    client.go_on("nothing");
    let flooder = format!("127.0.0.{FLOODER}");
    for (name, flood) in FLOODS {
        let refused = |server: &TestServer| budget(server, name)["refused"].as_u64();
        let before = refused(&server);
        let held = flood(&server);
        if !NOT_REFUSED.contains(&name) {
            let begun = Instant::now();
            while refused(&server) == before {
                assert!(begun.elapsed() < TIMEOUT, "{name} is not flooded");
            }
            let usage = budget(&server, name);
            assert_eq!(usage["largest"]["name"], *flooder, "{usage}");
        }
        client.go_on(name);
        drop(held);
    }
}
