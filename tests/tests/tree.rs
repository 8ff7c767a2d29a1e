//! The tree of files on the command line, without a mount: `ls`, `cat` and `stat`, now and as of a
//! moment (F43, F44).

use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    EndTxnRequest, InitProducerIdRequest, ProduceRequest, ProducerId, TransactionalId,
};
use kafka_records::{BatchBuilder, CompressionType};
use serde_json::Value;
use testkit::process::{OwnServer, RawKafkaConnection};
use testkit::requests::{str_bytes, topic_name};

#[test]
fn a_partition_is_listed_measured_and_printed_as_a_file() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "orders", "--partitions", "11"]);
    shell.run_with_input(&["produce", "orders", "--partition", "10"], "one\ntwo\n");
    let then = shell.now();
    shell.run_with_input(&["produce", "orders", "--partition", "10"], "three\n");
    assert_eq!(shell.stdout_of(&["ls", "/"]), ".at/\nfiles/\noffsets/\ntopics/\nznodes/\n");
    assert_eq!(shell.stdout_of(&["ls", "/topics"]), "orders/\n");
    // A slash behind a link asks for what it leads to.
    shell.stdout_of(&["pins", "set", "audit"]);
    assert_eq!(shell.stdout_of(&["ls", "/.at/pin:audit"]), "pin:audit\n");
    let listed = shell.stdout_of(&["ls", "/.at/pin:audit/"]);
    assert_eq!(listed, "files/\noffsets/\ntopics/\nznodes/\n");
    assert_eq!(shell.stdout_of(&["ls", "/.at/pin:audit/."]), listed);
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
    let shell = OwnServer::start(&[]);
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

/// The value that a transaction has written is a key's newest one once it is committed, also if the
/// keys were looked at before, and never if it is aborted.
#[test]
fn the_state_by_key_has_what_transactions_commit() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "state"]);
    let mut wire = RawKafkaConnection::connect(shell.server.kafka);
    let id = TransactionalId(str_bytes("t"));
    let begin = InitProducerIdRequest::default()
        .with_transactional_id(Some(id.clone()))
        .with_transaction_timeout_ms(60_000)
        .with_producer_id(ProducerId(-1))
        .with_producer_epoch(-1);
    let begun = wire.call(4, &begin).expect("it answers");
    let mut producer = (begun.producer_id, begun.producer_epoch);
    let keys = || shell.stdout_of(&["cat", "state", "--keys"]);
    let get = |key: &str| {
        shell.run(&["cat", &format!("/topics/state/by-key/{key}")], "").stdout().to_owned()
    };
    let put = |key: &str, value: &str| {
        let line = format!("{{\"key\":\"{key}\",\"value\":{value}}}\n");
        shell.run_with_input(&["produce", "state", "--json"], &line);
    };
    put("k", "\"0\"");
    let names = || shell.stdout_of(&["ls", "/topics/state/by-key"]);
    for (round, commits) in [(1, true), (2, false), (3, true)] {
        put("gone", "\"x\"");
        put("gone", "null");
        let names_before = names();
        let mut batch = BatchBuilder::new(CompressionType::None);
        batch.producer(producer.0.0, producer.1, 0).transactional();
        let value = format!("t{round}");
        batch.record(1_700_000_000_000, Some(b"k"), Some(value.as_bytes()), &[]);
        batch.record(1_700_000_000_000, Some(b"new"), Some(value.as_bytes()), &[]);
        let records = PartitionProduceData::default().with_records(Some(batch.build()));
        let topic = TopicProduceData::default()
            .with_name(topic_name("state"))
            .with_partition_data(vec![records]);
        let produce = ProduceRequest::default()
            .with_acks(-1)
            .with_timeout_ms(10_000)
            .with_transactional_id(Some(id.clone()))
            .with_topic_data(vec![topic]);
        let produced = wire.call(12, &produce).expect("it answers");
        assert_eq!(produced.responses[0].partition_responses[0].error_code, 0);
        let before = (get("k"), get("new"), keys());
        assert_eq!(names(), names_before, "what was deleted in front of it stays so");
        // Later records are read again too.
        put("gone", "\"x\"");
        put("gone", "null");
        assert_eq!((get("k"), get("new"), keys()), before, "it is not decided");
        let end = EndTxnRequest::default()
            .with_transactional_id(id.clone())
            .with_producer_id(producer.0)
            .with_producer_epoch(producer.1)
            .with_committed(commits);
        let ended = wire.call(5, &end).expect("it answers");
        assert_eq!(ended.error_code, 0);
        producer = (ended.producer_id, ended.producer_epoch);
        let newest = if commits { value } else { before.0 };
        assert_eq!((get("k"), get("new")), (newest.clone(), newest.clone()), "round {round}");
        assert_eq!(keys(), format!("k\t{newest}\nnew\t{newest}\n"), "round {round}");
        assert_eq!(names(), "k\nnew\n");
    }
}

/// F42: the topic's settings say what user time is, and only the server knows them.
#[test]
fn a_moment_of_user_time_goes_by_what_the_topic_says() {
    let shell = OwnServer::start(&[]);
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
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "orders"]);
    for (arguments, code, words) in [
        (&["cat", "/topics/none/0.log"][..], 1, "no such file or directory"),
        (&["cat", "/topics/orders"], 1, "is a directory"),
        (&["ls", "/../etc"], 1, "leaves the tree"),
        (&["stat", "/.at/yesterday"], 1, "not a moment: one begins with s"),
        (&["ls", "/.at/s99999999999999/topics"], 1, "in the future"),
        (&["stat", "topics"], 2, "begins with a slash"),
        (&["cat", "/topics/orders/0.log", "--keys"], 2, "--keys"),
        (&["cat", "orders/0", "--keys"], 2, "whole topic"),
        (&["ls", "/.at/s5/topics", "--at", "s6"], 2, "given twice"),
        (&["ls", "-l", "orders"], 2, "begins with a slash"),
        (&["zk", "--zookeeper", "zk:2181/.at/s5", "ls", "/"], 2, "no path"),
    ] {
        let ended = shell.run(arguments, "");
        assert_eq!((ended.code, ended.stdout()), (Some(code), ""), "{arguments:?}");
        assert!(ended.stderr.contains(words), "{arguments:?}: {}", ended.stderr);
    }
}
