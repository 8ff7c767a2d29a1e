//! `freezeframe zk`.

use std::net::SocketAddr;
use std::time::Duration;

use testkit::directory::TestDirectory;

use super::client::*;

/// `freezeframe zk` with these arguments: what it prints. It has to end well.
pub(crate) fn zk(address: SocketAddr, arguments: &[&str], input: &str) -> String {
    let address = address.to_string();
    let all = [&["zk", "--zookeeper", &*address][..], arguments].concat();
    let output = testkit::process::run(&all, input);
    assert_eq!(output.code, Some(0), "{arguments:?}: {}", output.stderr);
    output.stdout().to_owned()
}

/// A command that has to fail: its exit code, and what it says.
pub(crate) fn zk_error(address: SocketAddr, arguments: &[&str]) -> (Option<i32>, String) {
    let address = address.to_string();
    let all = [&["zk", "--zookeeper", &*address][..], arguments].concat();
    let output = testkit::process::run(&all, "");
    (output.code, output.stderr)
}

#[test]
fn the_command_line_reads_and_changes_znodes_and_puts_them_back() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let at = address(&server);
    assert_eq!(zk(at, &["create", "/app/config", "size=3", "--parents"], ""), "/app/config\n");
    zk(at, &["create", "/app/list"], "");
    let mut client = ZkClient::begin(at);
    client.ask(EXISTS, |out| put_path(out, "/app"));
    let (last_then, ..) = client.reply();
    let moment = format!("s{}", next_millisecond());
    next_millisecond();
    zk(at, &["set", "/app/config", "--version", "0"], "size=4");
    zk(at, &["delete", "/app/list"], "");
    assert_eq!(zk(at, &["create", "/app/n-", "--sequential"], ""), "/app/n-0000000002\n");
    let me = ["--auth", "digest:me:secret"];
    zk(at, &[&["create", "/app/secret", "x", "--acl", "auth::cdrwa"], &me[..]].concat(), "");

    assert_eq!(zk(at, &["get", "/app/config"], ""), "size=4");
    assert_eq!(zk(at, &["get", "/app/config", "--at", &moment], ""), "size=3");
    assert_eq!(zk(at, &["ls", "/app", "--at", &moment], ""), "config\nlist\n");
    assert!(zk(at, &["stat", "/app/config", "--json"], "").contains(r#""version":1"#));
    let (code, why) = zk_error(at, &["get", "/app/secret"]);
    assert!(code == Some(1) && why.contains("--auth"), "{why}");
    assert_eq!(zk(at, &[&["get", "/app/secret"], &me[..]].concat(), ""), "x");

    let changes = |arguments: &[&str]| -> Vec<String> {
        let lines = zk(at, &[&["log", "/app", "--recursive"], arguments].concat(), "");
        let fields = |line: &str| {
            let fields: Vec<&str> = line.split('\t').collect();
            format!("{} {} {}", fields[2], fields[3], fields[7])
        };
        lines.lines().map(fields).collect()
    };
    let since = ["--from", &*moment];
    let expected = [
        "data /app/config ip:127.0.0.1",
        "deleted /app/list ip:127.0.0.1",
        "created /app/n-0000000002 ip:127.0.0.1",
    ];
    assert_eq!(changes(&since), expected, "what may not be read is left out");
    let with_identity = changes(&[&since[..], &me].concat());
    assert_eq!(with_identity[3], "created /app/secret ip:127.0.0.1,digest:me");
    let kafka = server.kafka.to_string();
    let cut = testkit::process::run(&["--bootstrap", &kafka, "cut", "--at", &moment], "");
    assert_eq!(cut.code, Some(0), "{}", cut.stderr);
    let expected = format!("znodes up to zxid {last_then:#x}");
    assert!(cut.stderr.lines().any(|line| line == expected), "{expected}: {}", cut.stderr);
    let differs = zk(at, &["diff", "/app", &moment, "now"], "");
    let kinds: Vec<&str> = differs.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(kinds, ["changed", "deleted", "created"]);

    zk(at, &["restore", "/app", "--at", &moment, "--dry-run"], "");
    assert_eq!(zk(at, &["get", "/app/config"], ""), "size=4", "a dry run changes nothing");
    zk(at, &["restore", "/app", "--at", &moment], "");
    assert_eq!(zk(at, &["ls", "/app"], ""), "config\nlist\n");
    assert_eq!(zk(at, &["get", "/app/config"], ""), "size=3");
    assert_eq!(zk(at, &["restore", "/app", "--at", &moment], ""), "", "nothing is left to change");

    let other = TestDirectory::new();
    let copy = serve(&other);
    zk(address(&copy), &["import", &at.to_string()], "");
    assert_eq!(zk(address(&copy), &["get", "/app/config"], ""), "size=3");
    for (arguments, says) in [
        (&["get", "/nope"][..], "there is no such znode"),
        (&["restore", "/nope", "--at", &moment], "/nope did not exist then"),
        (&["create", "/app"], "it exists already"),
        (&["set", "/app", "x", "--version", "7"], "it has another version"),
        (&["delete", "/app"], "it has children"),
    ] {
        let (code, why) = zk_error(at, arguments);
        assert!(code == Some(1) && why.contains(says), "{arguments:?}: {why}");
    }
}

/// A reader that has seen a transaction asks what came after it, also where it came after a crash.
#[test]
fn no_change_is_missed_from_one_answer_to_the_next() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut writer = ZkClient::begin(address(&server));
    assert_eq!(writer.create("/a", b"0", 0), 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let changes = |address: SocketAddr, after, wait_ms| {
        let asking = async {
            let mut client =
                client::zookeeper::ZkClient::connect(&address.to_string(), None).await?;
            let request = client::zookeeper::ZnodeLogRequest {
                path: "/a".to_owned(),
                after: Some(after),
                wait_ms,
                ..Default::default()
            };
            let request = client::zookeeper::ZnodeHistoryRequest::Log(request);
            let wait = Duration::from_millis(wait_ms);
            client.request_history::<client::zookeeper::ZnodeLogResponse>(&request, wait).await
        };
        runtime.block_on(asking).expect("an answer")
    };
    let first = changes(address(&server), 0, 0);
    assert_eq!(first.transactions.len(), 1);
    assert!(first.complete);
    for value in 1..=20 {
        assert_eq!(writer.set("/a", value.to_string().as_bytes()), 0);
    }
    server.kill().expect("it runs");
    let server = serve(&data);
    let at = address(&server);
    let setting = std::thread::spawn(move || {
        let mut writer = ZkClient::begin(at);
        assert_eq!(writer.set("/a", b"21"), 0);
    });
    let (mut after, mut versions) = (first.through, Vec::new());
    while versions.len() < 21 {
        let page = changes(at, after, 10_000);
        after = page.through;
        let changes = page.transactions.into_iter().flat_map(|entry| entry.changes);
        versions.extend(changes.map(|change| change.znode.version));
    }
    setting.join().expect("it is set");
    assert_eq!(versions, (1..=21).collect::<Vec<i32>>());
}
