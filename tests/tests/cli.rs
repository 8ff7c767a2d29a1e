//! The binary as a new user meets it: the output of its commands, their exit codes, and whether
//! their error messages say what to do.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use serde_json::Value;
use testkit::directory::TestDirectory;
use testkit::process::{CommandOutput, OwnServer, TIMEOUT, TestServer, run};

fn json(text: &str) -> Value {
    assert_eq!(text.matches('\n').count(), 1, "one line: {text}");
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn lines_go_in_and_come_out_also_as_of_a_moment_and_in_every_format() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "orders"]);
    assert_eq!(shell.run_with_input(&["produce", "orders"], "one\ntwo\n"), "");
    let then = shell.now();
    assert_eq!(
        shell.run_with_input(&["produce", "orders", "--compression", "zstd"], "three\nfour"),
        ""
    );
    assert_eq!(shell.stdout_of(&["cat", "orders"]), "one\ntwo\nthree\nfour\n");
    assert_eq!(shell.stdout_of(&["cat", "orders/0"]), "one\ntwo\nthree\nfour\n");
    assert_eq!(shell.stdout_of(&["cat", &format!("orders@{then}")]), "one\ntwo\n");
    assert_eq!(shell.stdout_of(&["cat", "orders", "--at", &then]), "one\ntwo\n");
    let now = shell.now();
    assert_eq!(shell.stdout_of(&["cat", &format!("orders@{then}..{now}")]), "three\nfour\n");
    let lines = shell.stdout_of(&["cat", &format!("orders@{then}"), "--format", "jsonl"]);
    let records: Vec<Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(records.len(), 2);
    for (offset, (record, value)) in records.iter().zip(["one", "two"]).enumerate() {
        assert_eq!(record["topic"], "orders");
        assert_eq!((&record["partition"], &record["offset"]), (&0.into(), &offset.into()));
        assert_eq!((&record["key"], &record["value"]), (&Value::Null, &value.into()));
        assert!(record["timestamp"].as_i64().expect("a time") > 1_700_000_000_000);
    }
    // The output can be produced again, and is the same except for its place.
    shell.stdout_of(&["topics", "create", "copy"]);
    shell.run_with_input(&["produce", "copy", "--json"], &lines);
    let copied = shell.stdout_of(&["cat", "copy", "--format", "jsonl"]);
    let without_place = |lines: &str| -> Vec<Value> {
        let parse = |line: &str| {
            let mut record: Value = serde_json::from_str(line).expect("JSON");
            for field in ["topic", "accepted", "stamp"] {
                assert!(record.as_object_mut().expect("an object").remove(field).is_some());
            }
            record
        };
        lines.lines().map(parse).collect()
    };
    assert_eq!(without_place(&copied), without_place(&lines));
    let raw = shell.run(&["cat", &format!("orders/0@{then}"), "--format", "raw"], "");
    let headers: Vec<_> = kafka_records::BatchIterator::new(&raw.bytes)
        .map(|batch| batch.expect("a whole batch").0)
        .collect();
    assert_eq!(headers.iter().map(|header| header.record_count).sum::<i32>(), 2);
    let last = headers.last().expect("a batch").last_offset();
    assert_eq!((raw.code, last), (Some(0), 1));
}

/// Records of several partitions and topics, as lines of their stamp, topic, partition and value.
const BY_STAMP: &str = "%m %t/%p %v";

#[test]
fn records_of_several_topics_come_in_the_order_in_which_they_were_accepted() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "orders", "payments", "--partitions", "3"]);
    let write = |range: std::ops::Range<u32>| {
        for nth in range {
            let topic = ["orders", "payments"][nth as usize % 2];
            let key = (nth * 7 % 10).to_string();
            shell.run_with_input(&["produce", topic, "--key", &key], &format!("{nth}\n"));
        }
    };
    write(0..20);
    let then = shell.stdout_of(&["moment"]);
    write(20..40);
    let values = |lines: &str| -> Vec<String> {
        lines.lines().map(|line| line.rsplit(' ').next().expect("a value").to_owned()).collect()
    };
    let expected: Vec<String> = (0..40).map(|nth| nth.to_string()).collect();
    let all = shell.stdout_of(&["cat", "orders", "payments", "--by", "time", "-f", BY_STAMP]);
    assert_eq!(values(&all), expected);
    assert!(all.lines().is_sorted(), "stamps rise: {all}");
    // The same records, one partition after the other, and sorted by their stamps.
    let apart =
        shell.stdout_of(&["cat", "orders", "payments", "--by", "partition", "-f", BY_STAMP]);
    assert_ne!(apart, all);
    let mut sorted: Vec<&str> = apart.lines().collect();
    sorted.sort_unstable();
    assert_eq!(sorted, all.lines().collect::<Vec<_>>());
    let past = ["cat", "orders", "payments", "--by", "time", "--at", then.trim(), "-f", BY_STAMP];
    assert_eq!(values(&shell.stdout_of(&past)), expected[..20]);
    let counted = ["consume", "orders", "payments", "--from-beginning", "-n", "7", "-f", BY_STAMP];
    assert_eq!(values(&shell.stdout_of(&counted)), expected[..7]);
    shell.assert_fails(&["cat", "/topics", "--by", "time"], 2, &["--by time goes with a topic"]);
    shell.assert_fails(&["cat", "orders", "nothing", "--by", "time"], 1, &["nothing"]);
    shell.assert_fails(&["cat", "orders", "-f", "%x"], 2, &["%x is nothing", "%k key"]);
}

#[test]
fn new_records_of_several_topics_come_in_order_too() {
    const RECORDS: usize = 30;
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "orders", "payments", "--partitions", "2"]);
    let count = RECORDS.to_string();
    let mut consumer = Command::new(testkit::process::freezeframe())
        .args(["--bootstrap", &shell.bootstrap(), "consume", "orders", "payments", "--by", "time"])
        .args(["--from-beginning", "--follow", "-n", &count, "-f", BY_STAMP])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    for nth in 0..RECORDS {
        let topic = ["orders", "payments"][nth % 2];
        shell.run_with_input(&["produce", topic, "--partition", "0"], &format!("{nth}\n"));
    }
    let mut shown = String::new();
    consumer.stdout.take().expect("it is piped").read_to_string(&mut shown).expect("text");
    assert!(consumer.wait().expect("it ends").success());
    let values: Vec<&str> = shown.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(values, (0..RECORDS).map(|nth| nth.to_string()).collect::<Vec<_>>());
    assert!(shown.lines().is_sorted(), "{shown}");
}

#[test]
fn a_moment_has_names_that_mean_it_wherever_one_is_asked_for() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "orders"]);
    shell.run_with_input(&["produce", "orders"], "one\n");
    let then = shell.stdout_of(&["moment"]);
    let then = then.trim();
    shell.run_with_input(&["produce", "orders"], "two\n");
    shell.stdout_of(&["pins", "set", "audit", "--at", then]);
    let same = |text: &str| shell.stdout_of(&["moment", text]).trim().to_owned();
    assert_eq!(same(then), then);
    assert_eq!(same("pin:audit"), then);
    for arguments in [
        &["cat", "orders@audit"][..],
        &["cat", "orders@pin:audit"],
        &["cat", "orders", "--at", "pin:audit"],
        &["cat", "orders@start..pin:audit"],
        // A record's own moment is what was there before it.
        &["cat", "orders", "--at", "orders/0:1"],
        &["cat", "/.at/audit/topics/orders/0.values"],
    ] {
        assert_eq!(shell.stdout_of(arguments), "one\n", "{arguments:?}");
    }
    assert_eq!(shell.stdout_of(&["cat", "orders", "--at", "pin:audit..now"]), "two\n");
    let first = shell.stdout_of(&["consume", "orders", "--from-beginning", "-n", "1", "-f", "%m"]);
    // A stamp at the beginning of a millisecond is spelled by that.
    assert_eq!(same("orders/0:0"), same(first.trim()));
    let names = json(&shell.stdout_of(&["moment", "pin:audit", "--json"]));
    assert_eq!(names["at"], then);
    let topic = format!("orders{}", names["topic_suffix"].as_str().expect("text"));
    let mut wire = testkit::process::RawKafkaConnection::connect(shell.kafka);
    assert_eq!(wire.offset_at(&topic, 0, -1), (0, 1));
    for (text, words) in [
        ("pin:nothing", "there is no pin nothing"),
        ("orders/0:99", "there is no record orders/0:99"),
        ("zxid:0x99", "there is no transaction zxid:0x99"),
    ] {
        shell.assert_fails(&["cut", "--at", text], 1, &[words]);
    }
    shell.assert_fails(&["cat", "orders@nothing"], 1, &["not a time", "no pin"]);
}

#[test]
fn what_a_topic_had_is_written_again_all_or_nothing() {
    let shell = OwnServer::start(&[]);
    let create = ["topics", "create", "prices", "--partitions", "2", "--config", "retention.ms=-1"];
    shell.stdout_of(&create);
    let write = |lines: &str| {
        shell.run_with_input(&["produce", "prices", "-K:"], lines);
    };
    let keys = |at: &str| {
        let mut keys: Vec<String> = shell
            .stdout_of(&["cat", "prices", "--keys", "--at", at])
            .lines()
            .map(str::to_owned)
            .collect();
        keys.sort();
        keys
    };
    write("a:1\nb:2\nc:3\n");
    let then = shell.stdout_of(&["moment"]);
    let then = then.trim();
    write("a:100\nb:200\nz:9\n");
    let restore = ["topics", "restore", "prices", "--keys", "--at", then];
    let planned = shell.run(&restore, "");
    assert_eq!((planned.code, planned.stdout()), (Some(0), "a\t1\nb\t2\nz\t(deleted)\n"));
    assert!(planned.stderr.contains("--yes"), "{}", planned.stderr);
    assert_eq!(keys("now").len(), 4, "a plan changes nothing");
    let before = shell.stdout_of(&["moment"]);
    shell.stdout_of(&[&restore[..], &["--yes"]].concat());
    let restored = shell.stdout_of(&["moment"]);
    assert_eq!(keys(restored.trim()), ["a\t1", "b\t2", "c\t3"]);
    assert_eq!(keys(before.trim()), ["a\t100", "b\t200", "c\t3", "z\t9"], "the past stays");

    let deleted = shell.run(&["topics", "delete", "prices"], "").stderr;
    assert!(deleted.contains("topics restore prices --at sh"), "{deleted}");
    shell.stdout_of(&["topics", "restore", "prices", "--at", then]);
    shell.assert_fails(&["cat", "prices"], 1, &["prices"]);
    shell.stdout_of(&["topics", "restore", "prices", "--at", then, "--yes"]);
    let again = shell.stdout_of(&["cat", "prices", "--by", "partition", "-f", "%p %k %v"]);
    let past = ["cat", "prices", "--by", "partition", "-f", "%p %k %v", "--at", then];
    shell.stdout_of(&["topics", "restore", "prices", "--at", then, "--as", "copy", "--yes"]);
    assert_eq!(shell.stdout_of(&["cat", "copy", "--by", "partition", "-f", "%p %k %v"]), again);
    assert_eq!(again.lines().count(), 3, "{again}");
    let described = json(&shell.stdout_of(&["topics", "describe", "copy", "--json"]));
    assert_eq!(described["configs"]["retention.ms"], "-1");
    // Of the deleted topic, by its name at the moment.
    assert_eq!(shell.stdout_of(&past), again);
    let taken = ["topics", "restore", "prices", "--at", then, "--yes"];
    shell.assert_fails(&taken, 1, &["prices exists and has records", "--as"]);
    let nothing = ["topics", "restore", "copy", "--keys", "--at", "now", "--yes"];
    assert!(shell.run(&nothing, "").stderr.contains("0 keys"), "nothing differs");
    // A topic of that name that is younger than the moment keeps its records.
    let trimmed = shell.run(&["topics", "trim", "prices", "--at", then], "");
    assert!(trimmed.stderr.contains("nothing to trim"), "{}", trimmed.stderr);
    assert_eq!(shell.stdout_of(&["cat", "prices"]).lines().count(), 3);
    let missing = ["topics", "restore", "never", "--at", then, "--yes"];
    shell.assert_fails(&missing, 1, &["there was no topic never"]);
}

#[test]
fn a_topic_is_changed_and_trimmed() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "orders"]);
    shell.run_with_input(&["produce", "orders"], "one\n");
    let then = shell.stdout_of(&["moment"]);
    let then = then.trim();
    shell.run_with_input(&["produce", "orders"], "two\n");
    let alter = ["topics", "alter", "orders", "--set", "retention.ms=5000000", "--partitions", "2"];
    shell.stdout_of(&alter);
    let described = json(&shell.stdout_of(&["topics", "describe", "orders", "--json"]));
    assert_eq!(described["configs"]["retention.ms"], "5000000");
    assert_eq!(described["partitions"].as_array().map(Vec::len), Some(2));
    shell.stdout_of(&["topics", "alter", "orders", "--reset", "retention.ms"]);
    let described = json(&shell.stdout_of(&["topics", "describe", "orders", "--json"]));
    assert_eq!(described["configs"]["retention.ms"], "604800000");
    shell.assert_fails(&["topics", "alter", "orders"], 2, &["--set"]);
    shell.stdout_of(&["pins", "set", "audit", "--at", then]);
    let trim = ["topics", "trim", "orders", "--at", then];
    shell.assert_fails(&trim, 1, &["a pin shows records of orders"]);
    shell.stdout_of(&["pins", "remove", "audit"]);
    let trimmed = shell.run(&["topics", "trim", "orders", "--at", then], "");
    assert_eq!(trimmed.code, Some(0), "{}", trimmed.stderr);
    assert!(trimmed.stderr.contains("orders/0 begins at 1"), "{}", trimmed.stderr);
    assert_eq!(shell.stdout_of(&["cat", "orders/0"]), "two\n");
}

#[test]
fn a_pin_is_set_listed_holds_and_is_removed() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "orders"]);
    shell.run_with_input(&["produce", "orders"], "one\ntwo\n");
    let then = shell.now();
    assert_eq!(shell.stdout_of(&["pins"]), "");
    let set = shell.run(&["pins", "set", "audit", "--at", &then, "--for", "7d"], "");
    assert_eq!((set.code, set.stdout()), (Some(0), ""), "{}", set.stderr);
    assert!(set.stderr.contains(&format!("pinned {then} as audit until 2")), "{}", set.stderr);
    shell.stdout_of(&["pins", "set", "b", "--at", &then, "--for", "90s", "--topic", "orders"]);
    let listed = shell.stdout_of(&["pins"]);
    let cells: Vec<Vec<&str>> = listed.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(cells.len(), 2, "{listed}");
    assert_eq!((cells[0][0], cells[0][1], cells[0][3]), ("audit", then.as_str(), "*"));
    assert_eq!((cells[1][0], cells[1][3]), ("b", "orders"));
    assert_eq!(shell.stdout_of(&["cat", &format!("orders@{then}")]), "one\ntwo\n");
    shell.stdout_of(&["pins", "remove", "audit"]);
    let left = json(&shell.stdout_of(&["pins", "list", "--json"]));
    assert_eq!((&left["name"], &left["topics"]), (&"b".into(), &serde_json::json!(["orders"])));
    shell.assert_fails(&["pins", "remove", "audit"], 1, &["there is no pin audit"]);
    let later = shell.now();
    shell.assert_fails(
        &["pins", "set", "b", "--at", &later, "--for", "1h"],
        1,
        &["remove it first", &then],
    );
    shell.assert_fails(&["pins", "set", "a b", "--at", &then, "--for", "1h"], 1, &["pin name"]);
    shell.assert_fails(&["pins", "set", "c", "--at", &then, "--for", "7"], 2, &["its unit"]);
}

#[test]
fn a_moment_of_user_time_gives_the_exact_set() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t"]);
    let lines = [(300, "c"), (100, "a"), (400, "d"), (200, "b")]
        .map(|(time, value)| format!("{{\"timestamp\":{time},\"value\":\"{value}\"}}\n"));
    shell.run_with_input(&["produce", "t", "--json"], &lines.concat());
    assert_eq!(shell.stdout_of(&["cat", "t@u300"]), "a\nb\n");
    assert_eq!(shell.stdout_of(&["cat", "t@u200..u400"]), "c\nb\n");
    // The moment in its message gives the same result for ever.
    let ended = shell.run(&["cat", "t@u401"], "");
    assert_eq!((ended.code, ended.stdout()), (Some(0), "c\na\nd\nb\n"));
    let pinned = ended.stderr.split_whitespace().find(|word| word.starts_with("u401@s"));
    let pinned = pinned.expect("it says for which moment").trim_end_matches(';');
    shell.run_with_input(&["produce", "t", "--json"], "{\"timestamp\":1,\"value\":\"late\"}\n");
    assert_eq!(shell.stdout_of(&["cat", &format!("t@{pinned}")]), "c\na\nd\nb\n");
    assert_eq!(shell.stdout_of(&["cat", "t@u401"]), "c\na\nd\nb\nlate\n");
    shell.assert_fails(&["cat", "t@u300", "--format", "raw"], 2, &["raw"]);
}

#[test]
fn ls_and_topics_show_what_there_is_and_what_there_was() {
    let shell = OwnServer::start(&[]);
    assert_eq!(shell.stdout_of(&["ls", "--json"]), "");
    shell.stdout_of(&["topics", "create", "a", "--partitions", "2"]);
    shell.run_with_input(&["produce", "a", "--partition", "1"], "x\ny\nz\n");
    let then = shell.now();
    shell.run_with_input(&["produce", "a", "--partition", "1"], "later\n");
    shell.stdout_of(&["topics", "create", "b"]);
    assert_eq!(shell.stdout_of(&["ls"]), "a\t2\nb\t1\n");
    assert_eq!(
        shell.stdout_of(&["ls", "--json"]),
        "{\"topic\":\"a\",\"partitions\":2}\n{\"topic\":\"b\",\"partitions\":1}\n"
    );
    assert_eq!(shell.stdout_of(&["ls", "--at", &then]), "a\t2\n");
    let listed = shell.stdout_of(&["ls", &format!("a@{then}"), "--json"]);
    let ends: Vec<Value> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["end"].clone())
        .collect();
    assert_eq!(ends, [Value::from(0), Value::from(3)]);
    let one: Value =
        serde_json::from_str(&shell.stdout_of(&["ls", "a/1", "--json"])).expect("JSON");
    assert_eq!((&one["start"], &one["end"]), (&0.into(), &4.into()));
    shell.stdout_of(&["topics", "delete", "a"]);
    assert_eq!(shell.stdout_of(&["ls"]), "b\t1\n");
    let topics = shell.stdout_of(&["topics", "list", "--at", &then]);
    let names: Vec<_> = topics.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(names, ["a"]);
    assert_eq!(shell.stdout_of(&["cat", &format!("a@{then}")]), "x\ny\nz\n");
}

#[test]
fn a_cut_as_json_has_exactly_its_keys_and_the_same_hash_whenever_it_is_asked_for() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t", "--partitions", "3"]);
    shell.run_with_input(&["produce", "t"], "x\ny\n");
    let then = shell.now();
    let first = json(&shell.stdout_of(&["cut", "--at", &then, "--json"]));
    let mut keys: Vec<&str> =
        first.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected = [
        "ahead_ms",
        "at",
        "clock_error_ms",
        "clock_synchronised",
        "closed",
        "durable",
        "frontier",
        "frontier_ms",
        "hash",
        "isolation",
        "kind",
        "partitions",
        "security",
        "skew_ms",
        "zxid",
    ];
    assert_eq!(keys, expected);
    assert_eq!((&first["at"], &first["durable"]), (&then.as_str().into(), &true.into()));
    assert!(first["clock_error_ms"].as_u64() <= first["skew_ms"].as_u64(), "{first}");
    assert!(first["skew_ms"].is_u64() && first["frontier"].is_string(), "{first}");
    let hash = first["hash"].as_str().expect("text");
    assert!(hash.len() == 32 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");
    let partitions = first["partitions"].as_array().expect("an array");
    assert_eq!(partitions.len(), 3);
    for held in partitions {
        let mut keys: Vec<&str> =
            held.as_object().expect("an object").keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["end", "partition", "start", "topic"]);
    }
    let ends: i64 = partitions.iter().filter_map(|held| held["end"].as_i64()).sum();
    assert_eq!(ends, 2);
    shell.run_with_input(&["produce", "t"], "later\n");
    shell.stdout_of(&["topics", "create", "other"]);
    let again = json(&shell.stdout_of(&["cut", "--at", &then, "--json"]));
    assert_eq!((&again["hash"], &again["partitions"]), (&first["hash"], &first["partitions"]));
    let now = json(&shell.stdout_of(&["cut", "--at", "now", "--json"]));
    assert_ne!(now["hash"], first["hash"]);
    let table = shell.stdout_of(&["cut", "--at", &then]);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.lines().all(|line| line.split('\t').count() == 4), "{table}");
}

#[test]
fn a_reader_that_has_enough_ends_cat_quietly() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t"]);
    let lines: String = (0..200_000).map(|line| format!("line {line} of many\n")).collect();
    shell.run_with_input(&["produce", "t"], &lines);
    let mut cat = Command::new(testkit::process::freezeframe())
        .args(["--bootstrap", &shell.bootstrap(), "cat", "t"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    // As `head -1` does: it reads one line, and then closes the pipe.
    let mut head = BufReader::new(cat.stdout.take().expect("it is piped"));
    head.read_line(&mut line).expect("a line");
    drop(head);
    assert_eq!(line, "line 0 of many\n");
    let status = testkit::process::wait_for_exit(&mut cat, TIMEOUT).expect("it ends");
    let mut said = String::new();
    cat.stderr.take().expect("it is piped").read_to_string(&mut said).expect("text");
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
    assert_eq!(shell.stdout_of(&["cat", "t"]).len(), lines.len(), "and without a head it is whole");
}

#[test]
fn a_server_that_is_not_there_and_one_that_is_no_server_have_their_own_errors() {
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.local_addr().expect("an address").to_string()
    };
    for command in [&["ls"][..], &["cat", "t"], &["cut", "--at", "now"], &["produce", "t"]] {
        let ended = run(&[&["--bootstrap", &nobody], command].concat(), "x\n");
        assert_eq!((ended.code, ended.stdout()), (Some(1), ""));
        for word in [&nobody, "connection refused", "freezeframe serve"] {
            assert!(ended.stderr.contains(word), "it does not say {word:?}: {}", ended.stderr);
        }
    }
    let ended = run(&["--bootstrap", "not an address", "ls"], "");
    ended.assert_failed(1, &["HOST:PORT"]);
    // An HTTP server answers, and not in Kafka's protocol.
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
    let ended = run(&["--bootstrap", &server.http.to_string(), "ls"], "");
    ended.assert_failed(1, &[&server.http.to_string()]);
}

#[test]
fn what_is_not_there_and_what_does_not_read_is_named_and_has_its_exit_code() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t"]);
    shell.run_with_input(&["produce", "t"], "x\n");
    shell.assert_fails(&["cat", "nowhere"], 1, &["there is no topic nowhere"]);
    shell.assert_fails(
        &["produce", "nowhere"],
        1,
        &["there is no topic nowhere", "topics create nowhere"],
    );
    shell.stdout_of(&["topics", "create", "orders"]);
    shell.assert_fails(&["cat", "ordres"], 1, &["there is no topic ordres; did you mean orders?"]);
    shell.assert_fails(&["produce", "order"], 1, &["topics create order; did you mean orders?"]);
    shell.stdout_of(&["topics", "delete", "orders"]);
    shell.assert_fails(&["ls", "nowhere"], 1, &["there is no topic nowhere"]);
    shell.assert_fails(&["topics", "delete", "nowhere"], 1, &["there is no topic nowhere"]);
    shell.assert_fails(&["cat", "t/7"], 1, &["no partition 7", "it has 1"]);
    shell.assert_fails(&["topics", "create", "t"], 1, &["TopicAlreadyExists"]);
    shell.assert_fails(&["cat", "t@s1"], 1, &["there was no such topic at that moment"]);
    shell.assert_fails(
        &["cut", "--at", "s1", "--topic", "t"],
        1,
        &["no such topic at that moment"],
    );
    shell.assert_fails(&["cat", "t@s9999999999999"], 1, &["the moment lies in the future"]);
    shell.assert_fails(&["cut", "--at", "s9999999999999"], 1, &["the moment lies in the future"]);
    // A command line that does not parse: exit code 2, and the right syntax.
    shell.assert_fails(
        &["cat", "t@no sense"],
        2,
        &["\"no sense\" is not a time", "milliseconds since 1970"],
    );
    shell.assert_fails(&["cat", "t@nonsense"], 1, &["no pin", "milliseconds since 1970"]);
    shell.assert_fails(&["cut", "--at", "soon"], 2, &["soon"]);
    shell.assert_fails(&["cut", "--at", "s1..s2"], 2, &["one moment"]);
    shell.assert_fails(&["cat", "t@s5..s4"], 2, &["empty"]);
    shell.assert_fails(&["cat", "../etc/passwd"], 2, &["../etc/passwd"]);
    shell.assert_fails(&["cat", "t@s5", "--at", "s6"], 2, &["twice"]);
    shell.assert_fails(&["no-such-command"], 2, &["no-such-command"]);
    assert_eq!(shell.stdout_of(&["ls"]), "t\t1\n", "nothing was made on the way");
}

#[test]
fn what_is_wrong_is_said_once_and_in_a_person_s_words() {
    let shell = OwnServer::start(&[]);
    let setting = "freezeframe.user.time=json:/at";
    shell.stdout_of(&["topics", "create", "events", "--config", setting]);
    let refused = shell.run(&["produce", "events"], "none\n");
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert_eq!(refused.stderr.matches("no user time can be read").count(), 1, "{}", refused.stderr);
    assert!(!refused.stderr.contains("RecordError("), "{}", refused.stderr);
    // Seconds, as `date +%s` prints them.
    shell.assert_fails(
        &["cat", "events@s1795251600"],
        2,
        &["looks like seconds", "did you mean 1795251600000"],
    );
    shell.assert_fails(&["cut", "--at", "1795251600"], 2, &["did you mean 1795251600000"]);
    let soon = shell.run(&["cut", "--at", "s9999999999999"], "");
    assert!(
        soon.stderr.contains("in the future: s9999999999999, and now is s1"),
        "{}",
        soon.stderr
    );
    let now = shell.run(&["cut", "--at", "now"], "");
    assert_eq!(now.stderr.lines().filter(|line| line.starts_with("at ")).count(), 1, "{now:?}");
    let directory = TestDirectory::new();
    let module = directory.path().join("long.wasm");
    std::fs::write(&module, vec![0; 600 << 10]).expect("it is written");
    let module = module.to_str().expect("text");
    shell.assert_fails(
        &["plugins", "add", "p", module],
        1,
        &["too long for a plug-in", "614400 bytes"],
    );
}

#[test]
fn a_server_s_settings_are_shown_and_checked_without_one() {
    let directory = TestDirectory::new();
    let file = directory.path().join("freezeframe.toml");
    std::fs::write(&file, "[kafka]\n\"num.partitions\" = 3\n").expect("it is written");
    let file = file.to_str().expect("text");
    let shown = run(&["config", "show", "--config", file, "--changed"], "");
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""));
    assert_eq!(String::from_utf8_lossy(&shown.bytes), format!("num.partitions\t3\t{file}:2\n"));
    let all = run(&["config", "show", "--config", file, "--json"], "");
    let all = String::from_utf8(all.bytes).expect("text");
    let settings: Vec<Value> =
        all.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |name: &str| settings.iter().find(|setting| setting["name"] == name).expect(name);
    assert_eq!(of("num.partitions")["source"], format!("{file}:2"));
    assert_eq!(of("server.kafka")["value"], "127.0.0.1:9092");
    assert_eq!(of("server.kafka").get("source"), None);
    let data = directory.path().join("data");
    let check = |settings: &[&str]| {
        let sets = settings.iter().flat_map(|setting| ["--set", setting]);
        let line = ["serve", "--check", "--data-dir", data.to_str().expect("text")];
        let checked = run(&line.into_iter().chain(sets).collect::<Vec<_>>(), "");
        assert!(!data.exists(), "it does not serve");
        (checked.code, checked.stderr)
    };
    let (code, stderr) = check(&["num.partitions=2"]);
    assert_eq!((code, stderr.contains("the settings are valid")), (Some(0), true), "{stderr}");
    let three = ["num.partitons=2", "node.id=x", "storage.segment-bytes=12"];
    let (code, stderr) = check(&three);
    assert_eq!(code, Some(2));
    for expected in ["has 3 problems", "did you mean num.partitions", "node.id", "segment-bytes"] {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}

/// The completions that a shell offers for the last of `words`.
fn completions(bootstrap: &str, words: &[&str]) -> CommandOutput {
    let mut command = Command::new(testkit::process::freezeframe());
    command
        .env("FREEZEFRAME_COMPLETE", "bash")
        .env("FREEZEFRAME_BOOTSTRAP", bootstrap)
        .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string())
        .env("_CLAP_IFS", "\n")
        .arg("--")
        .args(words);
    let output = command.output().expect("it runs");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    CommandOutput { code: output.status.code(), bytes: output.stdout, stderr }
}

#[test]
fn a_shell_is_offered_the_names_that_the_server_has_and_nothing_is_said_without_one() {
    let shell = OwnServer::start(&[]);
    for topic in ["orders", "order-lines", "payments"] {
        shell.stdout_of(&["topics", "create", topic]);
    }
    let names = |words: &[&str]| {
        let ended = completions(&shell.bootstrap(), &[&["freezeframe"], words].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{words:?}");
        let mut names: Vec<String> = ended.stdout().lines().map(str::to_owned).collect();
        names.sort();
        names
    };
    for words in [
        &["cat", "ord"][..],
        &["topics", "delete", "ord"],
        &["produce", "ord"],
        &["cut", "--at", "now", "--topic", "ord"],
    ] {
        assert_eq!(names(words), ["order-lines", "orders"], "{words:?}");
    }
    assert_eq!(names(&["cat", "/topics/ord"]), ["/topics/order-lines/", "/topics/orders/"]);
    assert_eq!(names(&["--bootstrap", &shell.bootstrap(), "ls", "pay"]), ["payments"]);
    let script = shell.stdout_of(&["completions", "bash"]);
    assert!(script.contains("FREEZEFRAME_COMPLETE"), "{script}");
    let nobody = completions("127.0.0.1:1", &["freezeframe", "cat", "ord"]);
    assert_eq!((nobody.code, nobody.stdout(), nobody.stderr.as_str()), (Some(0), "", ""));
}
