//! The tree of files on the command line, without a mount: `ls`, `cat` and `stat`, now and as of a
//! moment (F43, F44).

use serde_json::Value;
use testkit::directory::TestDirectory;
use testkit::process::{CommandOutput, TestServer, run};

struct TreeShell {
    bootstrap: String,
    _server: TestServer,
    _data: TestDirectory,
}

impl TreeShell {
    fn new() -> TreeShell {
        let data = TestDirectory::new();
        let server = TestServer::start(data.path(), &[]).expect("it starts");
        TreeShell { bootstrap: server.kafka.to_string(), _server: server, _data: data }
    }

    fn run(&self, arguments: &[&str], input: &str) -> CommandOutput {
        run(&[&["--bootstrap", &self.bootstrap], arguments].concat(), input)
    }

    fn run_with_input(&self, arguments: &[&str], input: &str) -> String {
        let ended = self.run(arguments, input);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {}", ended.stderr);
        ended.stdout().to_owned()
    }

    fn stdout_of(&self, arguments: &[&str]) -> String {
        self.run_with_input(arguments, "")
    }

    fn now(&self) -> String {
        let cut = self.stdout_of(&["cut", "--at", "now", "--when", "frontier", "--json"]);
        let cut: Value = serde_json::from_str(&cut).expect("JSON");
        cut["at"].as_str().expect("a moment").to_owned()
    }
}

#[test]
fn a_partition_is_listed_measured_and_printed_as_a_file() {
    let shell = TreeShell::new();
    shell.stdout_of(&["topics", "create", "orders", "--partitions", "11"]);
    shell.run_with_input(&["produce", "orders", "--partition", "10"], "one\ntwo\n");
    let then = shell.now();
    shell.run_with_input(&["produce", "orders", "--partition", "10"], "three\n");
    assert_eq!(shell.stdout_of(&["ls", "/"]), ".at/\nfiles/\noffsets/\ntopics/\nznodes/\n");
    assert_eq!(shell.stdout_of(&["ls", "/topics"]), "orders/\n");
    let names = shell.stdout_of(&["ls", "/topics/orders"]);
    assert_eq!(names.lines().count(), 34, "{names}");
    let last: Vec<&str> = names.lines().rev().take(3).collect();
    assert_eq!(last, ["10.values", "10.log", "10.jsonl"], "{names}");
    let path = "/topics/orders/10.values";
    assert_eq!(shell.stdout_of(&["cat", path]), "one\ntwo\nthree\n");
    assert_eq!(shell.stdout_of(&["cat", path, "--at", &then]), "one\ntwo\n");
    assert_eq!(shell.stdout_of(&["cat", &format!("{path}@{then}")]), "one\ntwo\n");
    let stat: Value =
        serde_json::from_str(&shell.stdout_of(&["stat", path, "--json"])).expect("JSON");
    assert_eq!((&stat["size"], &stat["kind"]), (&14.into(), &"file".into()), "{stat}");
    let long = shell.stdout_of(&["ls", "-l", "/topics/orders", "--at", &then]);
    let line = long.lines().find(|line| line.ends_with("\t10.values")).expect("it is listed");
    let cells: Vec<&str> = line.split('\t').collect();
    assert_eq!((cells[0], cells[4]), ("-r--r--r--", "8"), "{line}");
    let stat = shell.stdout_of(&["stat", path, "--at", &then]);
    assert!(stat.contains("bytes\t8\n") && stat.contains("grows\tno\n"), "{stat}");
    // The batches are what Kafka's clients would get.
    let raw = shell.run(&["cat", "orders/10", "--format", "raw"], "").bytes;
    assert_eq!(shell.run(&["cat", "/topics/orders/10.log"], "").bytes, raw);
    // Larger than one read.
    let many: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    shell.run_with_input(&["produce", "orders", "--partition", "3"], &many);
    assert_eq!(shell.stdout_of(&["cat", "/topics/orders/3.values"]), many);
}

#[test]
fn the_state_by_key_is_printed_and_stands_in_files() {
    let shell = TreeShell::new();
    shell.stdout_of(&["topics", "create", "state"]);
    let line = |key: &str, value: &str| format!("{{\"key\":{key},\"value\":{value}}}\n");
    let first = [line("\"a\"", "\"1\""), line("\"b/c\"", "\"2\""), line("null", "\"x\"")].concat();
    shell.run_with_input(&["produce", "state", "--json"], &first);
    let then = shell.now();
    let second = [line("\"a\"", "\"3\""), line("\"b/c\"", "null")].concat();
    shell.run_with_input(&["produce", "state", "--json"], &second);
    assert_eq!(shell.stdout_of(&["cat", "state", "--keys"]), "a\t3\n");
    assert_eq!(shell.stdout_of(&["cat", "state", "--keys", "--at", &then]), "a\t1\nb/c\t2\n");
    let json = shell.stdout_of(&["cat", "state", "--keys", "--format", "jsonl"]);
    let record: Value = serde_json::from_str(&json).expect("one line");
    assert_eq!((&record["key"], &record["offset"]), (&"a".into(), &3.into()), "{record}");
    assert_eq!(shell.stdout_of(&["ls", "/topics/state/by-key"]), "a\n");
    assert_eq!(shell.stdout_of(&["ls", "/topics/state/by-key", "--at", &then]), "a\nb%2Fc\n");
    assert_eq!(shell.stdout_of(&["cat", &format!("/topics/state/by-key/b%2Fc@{then}")]), "2");
}

/// F42: the topic's settings say what user time is, and only the server knows them.
#[test]
fn a_moment_of_user_time_goes_by_what_the_topic_says() {
    let shell = TreeShell::new();
    let config = "freezeframe.user.time=json:/at";
    shell.stdout_of(&["topics", "create", "events", "--config", config]);
    let lines: Vec<String> = [30, 10, 20].map(|at| format!("{{\"at\":{at}}}\n")).into();
    shell.run_with_input(&["produce", "events"], &lines.concat());
    let early = lines[1..].concat();
    assert_eq!(shell.stdout_of(&["cat", "events@u30"]), early);
    assert_eq!(shell.stdout_of(&["cat", "events/0", "--at", "u10..u20"]), lines[1]);
    assert_eq!(shell.stdout_of(&["consume", "events", "--at", "u30"]), early);
    assert_eq!(shell.stdout_of(&["consume", "events", "--at", "u30", "-n", "1"]), lines[1]);
    assert_eq!(shell.stdout_of(&["cat", "/.at/u30/topics/events/0.values"]), early);
}

#[test]
fn what_is_not_there_and_a_usage_error_have_their_own_messages() {
    let shell = TreeShell::new();
    shell.stdout_of(&["topics", "create", "orders"]);
    for (arguments, code, words) in [
        (&["cat", "/topics/none/0.log"][..], 1, "no such file or directory"),
        (&["cat", "/topics/orders"], 1, "is a directory"),
        (&["ls", "/../etc"], 1, "leaves the tree"),
        (&["stat", "/.at/yesterday"], 1, "a moment begins with s"),
        (&["ls", "/.at/s99999999999999/topics"], 1, "in the future"),
        (&["stat", "topics"], 2, "begins with a slash"),
        (&["cat", "/topics/orders/0.log", "--keys"], 2, "--keys"),
        (&["cat", "orders/0", "--keys"], 2, "whole topic"),
        (&["ls", "/.at/s5/topics", "--at", "s6"], 2, "given twice"),
        (&["ls", "-l", "orders"], 2, "begins with a slash"),
    ] {
        let ended = shell.run(arguments, "");
        assert_eq!((ended.code, ended.stdout()), (Some(code), ""), "{arguments:?}");
        assert!(ended.stderr.contains(words), "{arguments:?}: {}", ended.stderr);
    }
}
