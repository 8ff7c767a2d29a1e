//! Groups that are reset to a moment, the differences between two moments, and the same over HTTP.
//! The server, the command line and the responses to stock clients are real.

use kafka_protocol::messages::offset_commit_request::{
    OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use kafka_protocol::messages::offset_fetch_request::OffsetFetchRequestTopic;
use kafka_protocol::messages::{
    GroupId, OffsetCommitRequest, OffsetFetchRequest, ShareGroupHeartbeatRequest,
};
use kafka_protocol::protocol::StrBytes;
use serde_json::Value;
use testkit::process::{OwnServer, RawKafkaConnection, TestServer, http_get};
use testkit::requests::topic_name;

/// The output of a command as JSON.
fn json(server: &TestServer, arguments: &[&str]) -> Value {
    serde_json::from_str(&server.stdout_of(arguments)).expect("JSON")
}

fn connect(server: &TestServer) -> RawKafkaConnection {
    RawKafkaConnection::connect(server.kafka)
}

fn group_id(group: &str) -> GroupId {
    GroupId(StrBytes::from_string(group.to_owned()))
}

/// Commits as a stock client that is in no group.
fn commit(wire: &mut RawKafkaConnection, group: &str, partition: i32, offset: i64) {
    let partition = OffsetCommitRequestPartition::default()
        .with_partition_index(partition)
        .with_committed_offset(offset);
    let topic = OffsetCommitRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partitions(vec![partition]);
    let request =
        OffsetCommitRequest::default().with_group_id(group_id(group)).with_topics(vec![topic]);
    let answer = wire.call(8, &request).expect("an answer");
    assert_eq!(answer.topics[0].partitions[0].error_code, 0);
}

/// The offsets at which a stock client would continue: −1 where its own policy decides.
fn resume_offsets(wire: &mut RawKafkaConnection, group: &str, partitions: &[i32]) -> Vec<i64> {
    let topic = OffsetFetchRequestTopic::default()
        .with_name(topic_name("t"))
        .with_partition_indexes(partitions.to_vec());
    let request =
        OffsetFetchRequest::default().with_group_id(group_id(group)).with_topics(Some(vec![topic]));
    let answer = wire.call(7, &request).expect("an answer");
    let partitions = &answer.topics[0].partitions;
    partitions.iter().map(|partition| partition.committed_offset).collect()
}

#[test]
fn a_group_resumes_at_the_moment_it_was_set_to_also_after_a_restart() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t", "--partitions", "2"]);
    shell.run_with_input(&["produce", "t", "--partition", "0"], "a\nb\n");
    shell.run_with_input(&["produce", "t", "--partition", "1"], "c\n");
    let then = shell.now();
    shell.run_with_input(&["produce", "t", "--partition", "0"], "d\ne\n");
    let mut wire = connect(&shell);
    commit(&mut wire, "g", 0, 4);
    let committed = shell.now();
    assert_eq!(resume_offsets(&mut wire, "g", &[0, 1, 2]), [4, -1, -1]);
    let dry = shell.stdout_of(&["groups", "seek", "g", "--at", &then, "--dry-run"]);
    assert_eq!(dry, "t\t0\t4\t2\nt\t1\t-\t1\n");
    assert_eq!(resume_offsets(&mut wire, "g", &[0, 1]), [4, -1]);
    let done = shell.run(&["groups", "seek", "g", "--at", &then], "");
    assert_eq!((done.code, done.stdout()), (Some(0), dry.as_str()), "{}", done.stderr);
    assert!(done.stderr.contains(&format!("g is set to {then}")), "{}", done.stderr);
    assert_eq!(resume_offsets(&mut wire, "g", &[0, 1]), [2, 1]);
    let grown = shell.run_with_input(&["topics", "create", "u"], "");
    assert_eq!(grown, "");
    let shell = shell.kill_and_restart();
    let mut wire = connect(&shell);
    assert_eq!(resume_offsets(&mut wire, "g", &[0, 1]), [2, 1], "all of it survived");
    let mut restored = shell.run(&["groups", "restore", "g", "--at", &committed], "");
    assert_eq!(restored.stdout(), "t\t0\t2\t4\nt\t1\t1\t-\n");
    assert_eq!(resume_offsets(&mut wire, "g", &[0, 1]), [4, -1]);
    // Each change says how to undo it.
    for offsets in [[2, 1], [4, -1]] {
        let (_, undo) =
            restored.stderr.split_once("to undo this: freezeframe ").expect("it is said");
        let undo: Vec<&str> = undo.split_whitespace().collect();
        restored = shell.run(&undo, "");
        assert_eq!(resume_offsets(&mut wire, "g", &[0, 1]), offsets, "{}", restored.stderr);
    }
    // By user time, for a group that never committed anything.
    let seek = ["groups", "seek", "new", "--at", "u5", "--topic", "t", "--json"];
    let set = json(&shell, &seek);
    assert!(set["at"].as_str().expect("text").starts_with("u5@s"), "{set}");
    assert_eq!(resume_offsets(&mut wire, "new", &[0, 1]), [0, 0]);
    let seek = ["groups", "seek", "newer", "--at", "u5", "--topic", "t"];
    let set = shell.run(&seek, "");
    assert!(set.stderr.contains("newer is set") && !set.stderr.contains("undo"), "{}", set.stderr);
    let described = shell.run(&["groups", "describe", "new", "--at", &shell.now()], "");
    assert_eq!(described.code, Some(0), "{}", described.stderr);
    assert!(described.stderr.contains("t was set to u5@s"), "{}", described.stderr);
}

#[test]
fn groups_of_any_kind_are_described_as_they_are_now() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t"]);
    let mut wire = connect(&shell);
    for member in ["a", "b"] {
        let join = ShareGroupHeartbeatRequest::default()
            .with_group_id(group_id("shared"))
            .with_member_id(StrBytes::from_static_str(member))
            .with_subscribed_topic_names(Some(vec![topic_name("t")]));
        assert_eq!(wire.call(1, &join).expect("an answer").error_code, 0);
    }
    let described = shell.run(&["groups", "describe", "shared"], "");
    assert_eq!(described.code, Some(0), "{}", described.stderr);
    let columns: Vec<&str> = described.stdout().trim_end().split('\t').collect();
    assert_eq!(columns[..5], ["t", "0", "-", "0", "-"], "{}", described.stderr);
    assert_eq!(columns[5].split(',').count(), 2, "both members read it: {columns:?}");
    assert!(described.stderr.contains("shared: Stable, 2 members"), "{}", described.stderr);
    shell.assert_fails(&["groups", "describe", "shaped"], 1, &["no group shaped", "mean shared?"]);
}

#[test]
fn what_cannot_be_set_is_said_in_a_sentence() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t"]);
    let now = shell.now();
    let seek = |group: &'static str, at: &str, code: i32, words: &[&str]| {
        shell.assert_fails(&["groups", "seek", group, "--at", at], code, words);
    };
    seek("none", &now, 1, &["has committed nothing", "with --topic"]);
    seek("none", "soon", 2, &["not a time"]);
    seek("none", "s5..s6", 2, &["one moment"]);
    let restore = ["groups", "restore", "none", "--at", &now];
    shell.assert_fails(&restore, 1, &["had committed nothing at that moment"]);
    shell.assert_fails(&["groups", "restore", "g", "--at", "u5"], 2, &["system times"]);
    shell.assert_fails(&["groups", "describe", "none", "--at", &now], 1, &["no such group"]);
    shell.assert_fails(&["diff", &now, &now], 2, &["the window is empty"]);
    shell.assert_fails(&["diff", "u5", "u6"], 2, &["system time"]);
    shell.assert_fails(&["diff", "s5", &now, "--topic", "none"], 1, &["no such topic"]);
    shell.assert_fails(&["diff", "s5", "s9999999999999"], 1, &["lies in the future"]);
    shell.assert_fails(&["cut", "--at", "s5..s6"], 2, &["one moment"]);
}

#[test]
fn what_differs_is_printed_in_lines_and_the_same_for_ever() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t", "--partitions", "2"]);
    let from = shell.now();
    shell.run_with_input(&["produce", "t", "--partition", "1"], "one\ntwo\n");
    shell.stdout_of(&["topics", "create", "new", "--config", "retention.ms=5000"]);
    let mut wire = connect(&shell);
    commit(&mut wire, "g", 1, 1);
    shell.stdout_of(&["pins", "set", "p", "--at", &from, "--for", "1h"]);
    let until = shell.now();
    let printed = shell.stdout_of(&["diff", &from, &until]);
    let rows: Vec<Vec<&str>> = printed.lines().map(|line| line.split('\t').collect()).collect();
    let shown: Vec<[&str; 4]> = rows.iter().map(|row| [row[0], row[1], row[2], row[3]]).collect();
    let expected = [
        ["topic created", "new", "-", "1 partition, retention.ms=5000"],
        ["appended", "t/1", "0", "2"],
        ["pin set", "p", "", &from],
        ["committed", "g t/1", "-", "1"],
    ];
    assert_eq!(shown, expected);
    assert!(rows[1][4].starts_with("2 records, "), "{printed}");
    let only = shell.stdout_of(&["diff", &from, &until, "--only", "pins", "--only", "offsets"]);
    let firsts: Vec<&str> = only.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(firsts, ["pin set", "committed"]);
    // Later records are not in it.
    shell.run_with_input(&["produce", "t"], "later\n");
    shell.stdout_of(&["topics", "delete", "new"]);
    let lines = shell.stdout_of(&["diff", &format!("{from}..{until}"), "--json"]);
    assert_eq!(shell.stdout_of(&["diff", &from, &until]), printed);
    let kinds: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["kind"].to_string())
        .collect();
    assert_eq!(kinds, [r#""topic_created""#, r#""appended""#, r#""pin_set""#, r#""offset""#]);
    let later = shell.stdout_of(&["diff", &until, &shell.now(), "--topic", "new"]);
    assert!(later.starts_with("topic deleted\tnew\t1 partition\t-\t"), "{later}");
    // Over HTTP it is the same document.
    let path = format!("/v1/diff?from={from}&until={until}");
    let (status, body) = http_get(shell.server.http, &path).expect("an answer");
    let page: Value = serde_json::from_str(&body).expect("JSON");
    let changes = page["changes"].as_array().expect("changes").iter();
    let over_http: Vec<String> = changes.map(|change| change["kind"].to_string()).collect();
    assert_eq!((status, over_http), (200, kinds));
    let (status, body) =
        http_get(shell.server.http, "/v1/cut?at=s9999999999999").expect("an answer");
    let refused: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, &refused["error"]["code"]), (400, &Value::from("far_future")));
}

#[test]
fn a_cut_by_user_time_says_as_known_when_and_repeats_after_a_restart() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t"]);
    let line = |time: i64| format!("{{\"timestamp\":{time},\"value\":\"v\"}}\n");
    shell.run_with_input(&["produce", "t", "--json"], &[300, 100, 400].map(line).concat());
    let first = json(&shell, &["cut", "--at", "u400", "--json"]);
    assert_eq!((&first["kind"], &first["closed"]), (&"prefix".into(), &false.into()));
    assert_eq!(first["partitions"][0]["end"], 2);
    let at = first["at"].as_str().expect("a moment").to_owned();
    assert!(at.starts_with("u400@s"), "{at}");
    shell.run_with_input(&["produce", "t", "--json"], &line(1));
    let shell = shell.kill_and_restart();
    let again = json(&shell, &["cut", "--at", &at, "--json"]);
    assert_eq!((&again["hash"], &again["at"]), (&first["hash"], &first["at"]));
    let said = shell.run(&["cut", "--at", &at], "");
    assert!(
        said.stderr.contains("prefix of each partition, not causally closed"),
        "{}",
        said.stderr
    );
}
