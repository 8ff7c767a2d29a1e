//! A restore that is killed, and a merge of many partitions: what takes long enough to be
//! interrupted.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Instant;

use testkit::process::{OwnServer, TIMEOUT, TestServer, freezeframe, http_get};

/// Lines of a key and a value, with a blank between.
fn sorted(lines: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = lines.lines().collect();
    lines.sort_unstable();
    lines
}

/// The number of records that the server has taken since its start.
fn produced(server: &TestServer) -> u64 {
    let (_, page) = http_get(server.http, "/metrics").expect("an answer");
    let name = "freezeframe_produced_records_total ";
    let line = page.lines().find_map(|line| line.strip_prefix(name)).expect("a counter");
    line.parse().expect("a number")
}

#[test]
fn a_restore_that_is_killed_half_way_shows_nothing_and_starts_over() {
    const RECORDS: u64 = 60_000;
    let server = OwnServer::start(&[]);
    server.stdout_of(&["topics", "create", "orders", "--partitions", "3"]);
    let (filler, mut lines) = ("x".repeat(500), String::new());
    for key in 0..RECORDS {
        let _ = writeln!(lines, "{key}:{filler}");
    }
    server.run_with_input(&["produce", "orders", "-K:"], &lines);
    let read = |server: &TestServer| server.stdout_of(&["cat", "orders", "-f", "%k:%v"]);
    let then = server.now();
    server.stdout_of(&["topics", "delete", "orders"]);
    let restore = ["topics", "restore", "orders", "--at", &then, "--yes"];
    let mut killed = Command::new(freezeframe())
        .args(["--bootstrap", &server.bootstrap()])
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
    assert_eq!(read(&server), "", "nothing of the half is committed");
    server.stdout_of(&restore);
    assert_eq!(sorted(&read(&server)), sorted(&lines));
    // Once it is there, it is not restored onto itself.
    server.assert_fails(&restore, 1, &["--as"]);
}

#[test]
fn ten_thousand_partitions_are_merged_in_the_order_of_their_stamps() {
    let server = OwnServer::start(&[]);
    server.stdout_of(&["topics", "create", "wide", "--partitions", "10000"]);
    let lines: String = (0..20_000).fold(String::new(), |mut lines, key| {
        let _ = writeln!(lines, "{key}:{key}");
        lines
    });
    server.run_with_input(&["produce", "wide", "-K:"], &lines);
    let merged = server.stdout_of(&["cat", "wide", "--by", "time", "-f", "%m %k:%v"]);
    let fields = merged.lines().map(|line| line.split_once(' ').expect("two fields"));
    let (stamps, records): (Vec<&str>, Vec<&str>) = fields.unzip();
    assert!(stamps.is_sorted());
    assert_eq!(sorted(&records.join("\n")), sorted(&lines));
}
