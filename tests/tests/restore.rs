//! A restore that is killed, and a merge of many partitions: what takes long enough to be interrupted.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use testkit::directory::TestDirectory;
use testkit::process::{CommandOutput, TIMEOUT, TestServer, freezeframe, http_get, run};

fn shell(server: &TestServer, words: &[&str], input: &str) -> CommandOutput {
    let bootstrap = server.kafka.to_string();
    let ended = run(&[&["--bootstrap", &bootstrap], words].concat(), input);
    assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.stderr);
    ended
}

/// Lines of a key and a value, with a blank between.
fn sorted(lines: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = lines.lines().collect();
    lines.sort_unstable();
    lines
}

/// How many records the server has taken since its start.
fn produced(server: &TestServer) -> u64 {
    let (_, page) = http_get(server.http, "/metrics").expect("an answer");
    let name = "freezeframe_produced_records_total ";
    let line = page.lines().find_map(|line| line.strip_prefix(name)).expect("a counter");
    line.parse().expect("a number")
}

#[test]
fn a_restore_that_is_killed_half_way_shows_nothing_and_starts_over() {
    const RECORDS: u64 = 60_000;
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    shell(&server, &["topics", "create", "orders", "--partitions", "3"], "");
    let (filler, mut lines) = ("x".repeat(500), String::new());
    for key in 0..RECORDS {
        let _ = writeln!(lines, "{key}:{filler}");
    }
    shell(&server, &["produce", "orders", "-K:"], &lines);
    let read = |server: &TestServer| shell(server, &["cat", "orders", "-f", "%k:%v"], "");
    let then = shell(&server, &["moment"], "");
    shell(&server, &["topics", "delete", "orders"], "");
    let restore = ["topics", "restore", "orders", "--at", then.stdout().trim(), "--yes"];
    let mut killed = Command::new(freezeframe())
        .args(["--bootstrap", &server.kafka.to_string()])
        .args(restore)
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let begun = Instant::now();
    while produced(&server) == RECORDS {
        assert!(begun.elapsed() < TIMEOUT, "the restore writes nothing");
    }
    killed.kill().expect("it runs");
    killed.wait().expect("it was killed");
    let half = produced(&server) - RECORDS;
    assert!(0 < half && half < RECORDS, "{half} records were written");
    assert_eq!(read(&server).stdout(), "", "nothing of the half is committed");
    shell(&server, &restore, "");
    assert_eq!(sorted(read(&server).stdout()), sorted(&lines));
    // Once it is there, it is not restored onto itself.
    let bootstrap = server.kafka.to_string();
    let again = run(&[&["--bootstrap", &bootstrap], &restore[..]].concat(), "");
    assert!(again.code == Some(1) && again.stderr.contains("--as"), "{}", again.stderr);
}

#[test]
fn ten_thousand_partitions_are_merged_in_the_order_of_their_stamps() {
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    shell(&server, &["topics", "create", "wide", "--partitions", "10000"], "");
    let lines: String = (0..20_000).fold(String::new(), |mut lines, key| {
        let _ = writeln!(lines, "{key}:{key}");
        lines
    });
    shell(&server, &["produce", "wide", "-K:"], &lines);
    let merged = shell(&server, &["cat", "wide", "--by", "time", "-f", "%m %k:%v"], "");
    let fields = merged.stdout().lines().map(|line| line.split_once(' ').expect("two fields"));
    let (stamps, records): (Vec<&str>, Vec<&str>) = fields.unzip();
    assert!(stamps.is_sorted());
    assert_eq!(sorted(&records.join("\n")), sorted(&lines));
}
