//! `freezeframe export`: files that are whole or not there, all as of one moment.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use testkit::directory::TestDirectory;
use testkit::process::{OwnServer, TestServer, freezeframe, wait_until};

use crate::full_disk::SmallDisk;

fn fill(server: &TestServer, topic: &str, records: usize, bytes: usize) {
    server.stdout_of(&["topics", "create", topic, "--partitions", "2"]);
    let filler = "x".repeat(bytes);
    let lines = (0..records).fold(String::new(), |mut lines, key| {
        let _ = writeln!(lines, "{key}:{filler}");
        lines
    });
    server.run_with_input(&["produce", topic, "-K:"], &lines);
}

fn text_of(path: &Path) -> &str {
    path.to_str().expect("a path of letters")
}

fn names_in(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("it is there");
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn an_export_has_the_lines_of_cat_and_produce_reads_them_back() {
    let server = OwnServer::start(&[]);
    fill(&server, "orders", 1000, 20);
    let line = r#"{"partition":1,"timestamp":7,"key":"last","value":null,"headers":[["h","v"],["h",null]]}"#;
    server.run_with_input(&["produce", "orders", "--json"], &format!("{line}\n"));
    let directory = TestDirectory::new();
    let file = directory.path().join("copy.jsonl");
    let table = server.stdout_of(&["export", "orders", "-f", "jsonl", "-o", text_of(&file)]);
    assert!(table.contains("orders\t2\t1001\t0\t"), "{table}");
    let exported = fs::read_to_string(&file).unwrap();
    assert_eq!(
        exported,
        server.stdout_of(&["cat", "orders", "--format", "jsonl", "--by", "partition"])
    );
    assert_eq!(exported, server.stdout_of(&["export", "orders", "-f", "jsonl", "-o", "-"]));
    server.stdout_of(&["topics", "create", "copy", "--partitions", "2"]);
    server.run_with_input(&["produce", "copy", "--json"], &exported);
    let records = |topic: &str| server.stdout_of(&["cat", topic, "-f", "%p %o %T %k=%v %h\\n"]);
    assert_eq!(records("copy"), records("orders"));
}

#[test]
fn all_topics_are_exported_as_of_one_moment() {
    let server = OwnServer::start(&[]);
    fill(&server, "orders", 10, 1);
    fill(&server, "payments", 10, 1);
    let then = server.now();
    server.run_with_input(&["produce", "orders"], "late\n");
    server.stdout_of(&["topics", "delete", "payments"]);
    let directory = TestDirectory::new();
    for format in ["jsonl", "parquet", "arrow"] {
        let output = directory.path().join(format);
        let line = ["export", "--all", "--at", &then, "-f", format, "-o", text_of(&output)];
        let table = server.stdout_of(&[&line[..], &["--rate-limit", "1GB"]].concat());
        assert!(table.contains("orders\t2\t10\t0\t") && table.contains("payments\t2\t10\t0\t"));
        let names = ["orders", "payments"].map(|topic| format!("{topic}.{format}"));
        assert_eq!(names_in(&output), BTreeSet::from(names));
    }
    let exported = fs::read_to_string(directory.path().join("jsonl/payments.jsonl")).unwrap();
    assert_eq!(exported.lines().count(), 10);
    let magic = |name: &str| fs::read(directory.path().join(name)).unwrap();
    let (parquet, arrow) = (magic("parquet/orders.parquet"), magic("arrow/orders.arrow"));
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    assert!(arrow.starts_with(b"ARROW1") && arrow.ends_with(b"ARROW1"));
    // A window has what came between two moments.
    let now = server.now();
    let line = ["export", "orders", "--from", &then, "--to", &now, "-f", "jsonl", "-o", "-"];
    let window = server.stdout_of(&line);
    assert!(window.contains("late") && window.lines().count() == 1, "{window}");
}

#[test]
fn by_user_time_an_export_has_the_exact_set_of_records() {
    let server = OwnServer::start(&[]);
    server.stdout_of(&["topics", "create", "orders", "--partitions", "2"]);
    for (time, value) in [("2020-01-02T00:00:00Z", "second\n"), ("2020-01-01T00:00:00Z", "first\n")]
    {
        server.run_with_input(&["produce", "orders", "-p", "0", "--timestamp", time], value);
    }
    let line = ["export", "orders", "--at", "u:2020-01-01T12:00:00Z", "-f", "jsonl", "-o", "-"];
    let exported = server.stdout_of(&line);
    assert!(exported.contains("first") && exported.lines().count() == 1, "{exported}");
}

/// The ends of a window of user time may name two system times; records are read as of the later.
#[test]
fn all_topics_are_those_of_the_moment_that_records_are_read_as_of() {
    let server = OwnServer::start(&[]);
    let write = |topic: &str| {
        server.stdout_of(&["topics", "create", topic]);
        server.run_with_input(&["produce", topic, "--timestamp", "2020-01-01T00:00:00Z"], "one\n");
        server.now()
    };
    let (before, after) = (write("orders"), write("payments"));
    let directory = TestDirectory::new();
    for ends in [[&before, &after], [&after, &before]] {
        let [first, second] = ends;
        let window = format!("u1577836800000@{first}..u1577836800001@{second}");
        let output = text_of(directory.path());
        let line = ["export", "--all", "--at", &window, "-f", "jsonl", "-o", output];
        let table = server.stdout_of(&line);
        assert!(table.contains("orders\t1\t1\t") && table.contains("payments\t1\t1\t"), "{table}");
    }
}

#[test]
fn an_export_that_is_killed_leaves_no_file_that_looks_whole() {
    let server = OwnServer::start(&[]);
    fill(&server, "large", 20_000, 300);
    let directory = TestDirectory::new();
    let (file, partial) = ("large.parquet", "large.parquet.partial");
    let line = ["export", "large", "-f", "parquet", "-o", text_of(directory.path())];
    let mut killed = Command::new(freezeframe())
        .args(["--bootstrap", &server.bootstrap()])
        .args(line)
        .args(["--rate-limit", "1MB"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    wait_until("the export writes", || names_in(directory.path()).contains(partial));
    killed.kill().expect("it runs");
    killed.wait().expect("it was killed");
    assert_eq!(names_in(directory.path()), BTreeSet::from([partial.to_owned()]));
    server.stdout_of(&line);
    assert_eq!(names_in(directory.path()), BTreeSet::from([file.to_owned()]));
}

#[test]
fn an_export_to_a_full_disk_fails_and_leaves_nothing() {
    let test = "an_export_to_a_full_disk_fails_and_leaves_nothing";
    let Some(disk) = SmallDisk::mount(test, c"size=64k") else { return };
    let server = OwnServer::start(&[]);
    fill(&server, "orders", 2000, 100);
    for format in ["jsonl", "arrow", "parquet"] {
        let line = ["export", "orders", "-f", format, "-o", text_of(&disk.path)];
        let ended = server.run(&line, "");
        if ended.code == Some(0) {
            // It compresses well enough to fit.
            assert_eq!(format, "parquet");
            continue;
        }
        ended.assert_failed(1, &["No space left", "orders"]);
        assert_eq!(names_in(&disk.path), BTreeSet::new());
    }
}

#[test]
fn options_that_do_not_fit_are_explained() {
    let server = OwnServer::start(&[]);
    fill(&server, "orders", 1, 1);
    fill(&server, "payments", 1, 1);
    let fails = |line: &[&str], code: i32, words: &[&str]| server.assert_fails(line, code, words);
    fails(&["export", "orders", "payments", "-f", "jsonl", "-o", "-"], 2, &["give a directory"]);
    fails(&["export", "orders", "orders", "-f", "jsonl", "-o", "/tmp/"], 2, &["written twice"]);
    fails(&["export", "nothing", "-f", "jsonl", "-o", "-"], 1, &["no such topic", "nothing"]);
    fails(&["export", "orders"], 2, &["--format"]);
    fails(&["export", "-f", "jsonl"], 2, &["TOPIC"]);
    fails(&["export", "orders", "-f", "jsonl", "--from", "s5"], 2, &["--to"]);
    let lines =
        server.stdout_of(&["export", "orders/1", "orders/0", "-f", "jsonl", "-o", "/dev/shm/"]);
    assert_eq!(sorted(&lines).len(), 2);
    for partition in 0..2 {
        fs::remove_file(format!("/dev/shm/orders-{partition}.jsonl")).unwrap();
    }
}
