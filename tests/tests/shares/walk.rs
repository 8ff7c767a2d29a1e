//! Every budget of a server is flooded from one address, and a client at another one goes on.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testkit::directory::TestDirectory;
use testkit::process::{TIMEOUT, TestServer, http_get};

use super::floods::{FLOODER, FLOODS, Flood};
use super::go_on::GoingOn;
use super::{EndOfFlood, budget};

/// Budgets that other tests flood: of two, only the connections of a listener with logins take
/// (`early_connections`, `sasl`); of the third, each connection takes one (`client_metrics`); of
/// the fourth, a user has 20 at most (`http_sessions` of `broker`); and the last one is large
/// (`output` of `compat-zk`).
const ELSEWHERE: [&str; 5] = [
    "login-memory",
    "metric-clients",
    "password-checks",
    "http-sessions",
    "zookeeper-unread-bytes",
];
/// Budgets that count no refusals: their users wait for room, or their metrics are left out.
const NOT_REFUSED: [&str; 9] = [
    "flight-bytes",
    "group-answers",
    "history-turns",
    "large-requests",
    "metric-bytes",
    "pipelined-requests",
    "responses",
    "zookeeper-reads",
    "zookeeper-restores",
];

/// Small limits, so that a flood is short.
const SETTINGS: [&str; 26] = [
    "group.initial.rebalance.delay.ms=0",
    "group.share.max.share.sessions=32",
    "limits.all-partitions-max=4000",
    "limits.answer-bytes=1MiB",
    "limits.flight-bytes=1MiB",
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
    "zookeeper.watches-bytes-max=1MiB",
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

/// The time for which each flood is repeated, where floods are measured.
fn flood_time() -> Option<Duration> {
    let seconds = std::env::var("FREEZEFRAME_FLOOD_SECONDS").ok()?;
    Some(Duration::from_secs(seconds.parse().expect("a number of seconds")))
}

/// The floods to measure; all, if none is named.
fn is_measured(name: &str) -> bool {
    let named = std::env::var("FREEZEFRAME_FLOODS").unwrap_or_default();
    named.is_empty() || named.split(',').any(|one| one == name)
}

/// The processor seconds of a process so far.
fn processor_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    let ticks = |nth: usize| -> f64 {
        let field = fields.split(' ').nth(nth).expect("the kernel has more fields");
        field.parse().expect("a number")
    };
    // utime and stime, of which proc(5) says that they are fields 14 and 15.
    (ticks(11) + ticks(12)) / 100.0
}

/// The time in milliseconds below which 99 of 100 rounds are.
fn p99_ms(mut rounds: Vec<Duration>) -> f64 {
    rounds.sort();
    rounds[(rounds.len() - 1) * 99 / 100].as_secs_f64() * 1e3
}

/// The rounds of the client for so long.
fn rounds(client: &mut GoingOn<'_>, name: &str, time: Duration) -> Vec<Duration> {
    let begun = Instant::now();
    let mut rounds = Vec::new();
    while begun.elapsed() < time {
        let round = Instant::now();
        client.repeat(name);
        rounds.push(round.elapsed());
    }
    rounds
}

/// Repeats a flood, and prints how long the client's rounds take beside it, and afterwards without
/// it.
fn measure(
    server: &TestServer,
    client: &mut GoingOn<'_>,
    name: &str,
    flood: Flood,
    time: Duration,
) {
    let is_over = AtomicBool::new(false);
    let processes = [server.pid(), std::process::id()];
    let before = processes.map(processor_seconds);
    let flooded = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // A flood fails where the server ends its connection, and begins again.
                drop(catch_unwind(AssertUnwindSafe(|| flood(server))));
            }
        });
        let _end = EndOfFlood(&is_over);
        rounds(client, name, time)
    });
    let after = processes.map(processor_seconds);
    let alone = p99_ms(rounds(client, "nothing", time / 4));
    let (count, flooded) = (flooded.len(), p99_ms(flooded));
    let ratio = flooded / alone;
    let [of_server, of_clients] = [0, 1].map(|nth| after[nth] - before[nth]);
    println!(
        "{name:<26} {count:>6} rounds {alone:>8.1} ms {flooded:>8.1} ms {ratio:>6.2} \
         {of_server:>6.1} s in the server, {of_clients:>6.1} s in the clients"
    );
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
    let flood_time = flood_time();
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
        if let Some(time) = flood_time
            && is_measured(name)
        {
            measure(&server, &mut client, name, flood, time);
        }
    }
}
