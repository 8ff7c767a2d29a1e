//! The log on standard error: JSON, priorities for the journal, and the audit log.

use std::process::Command;

use serde_json::Value;
use testkit::directory::TestDirectory;
use testkit::process::{
    RawKafkaConnection, TestServer, freezeframe, http_get, http_get_with, wait_until,
};

const AUTHORIZER: &str =
    "--set=authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer";

/// The lines of a log, each of which is an object.
fn objects(log: &str) -> Vec<Value> {
    // The last line may not be whole yet.
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    let object = |line: &str| -> Value {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    whole.lines().map(object).collect()
}

fn audit_events(server: &TestServer) -> Vec<Value> {
    let mut events = objects(&server.stderr());
    events.retain(|event| event["target"] == "freezeframe::audit");
    events
}

fn start_with_json(data: &TestDirectory, arguments: &[&str]) -> TestServer {
    let preparation = "export FREEZEFRAME_LOG_FORMAT=json";
    TestServer::start_after(preparation, data.path(), arguments).expect("it starts")
}

#[test]
fn each_line_of_a_json_log_is_an_object() {
    let data = TestDirectory::new();
    let server = start_with_json(&data, &[]);
    RawKafkaConnection::connect(server.kafka).create_topic("orders", 3, &[]);
    wait_until("the change is in the log", || !audit_events(&server).is_empty());
    for object in objects(&server.stderr()) {
        for field in ["timestamp", "level", "message", "target"] {
            assert!(object[field].is_string(), "{field} in {object}");
        }
    }
    let event = &audit_events(&server)[0];
    for (field, value) in [
        ("level", "INFO"),
        ("principal", "User:ANONYMOUS"),
        ("address", "127.0.0.1"),
        ("operation", "CreateTopics"),
        ("resource", "TOPIC orders with 3 partitions"),
        ("outcome", "success"),
    ] {
        assert_eq!(event[field], value, "{event}");
    }
    let (_, page) = http_get(server.http, "/metrics").expect("an answer");
    assert!(page.contains("\nfreezeframe_audit_events_total{outcome=\"success\"} 1\n"), "{page}");
}

#[test]
fn denials_and_failed_logins_are_logged_once_and_counted() {
    let data = TestDirectory::new();
    let server = start_with_json(&data, &[AUTHORIZER, "--set=super.users=User:admin"]);
    for _ in 0..3 {
        let (status, _) = http_get(server.http, "/metrics").expect("an answer");
        assert_eq!(status, 401);
        // alice:secret
        let login = "Authorization: Basic YWxpY2U6c2VjcmV0\r\n";
        let answer = http_get_with(server.http, "/metrics", login).expect("an answer");
        assert_eq!(answer.status, 401);
    }
    wait_until("both are in the log", || audit_events(&server).len() >= 2);
    let events = audit_events(&server);
    let fields = |event: &Value| {
        ["outcome", "principal", "address", "operation", "resource"]
            .map(|field| event[field].as_str().expect("text").to_owned())
    };
    assert_eq!(
        events.iter().map(fields).collect::<Vec<_>>(),
        [
            ["denied", "User:ANONYMOUS", "127.0.0.1", "DESCRIBE", "CLUSTER kafka-cluster"],
            ["failure", "", "127.0.0.1", "Login", "HTTP"],
        ]
    );
    assert!(!server.stderr().contains("alice"), "a name may be a password: {}", server.stderr());
}

#[test]
fn an_unknown_log_format_is_refused_with_the_known_ones() {
    let data = TestDirectory::new();
    let output = Command::new(freezeframe())
        .arg("serve")
        .arg("--data-dir")
        .arg(data.path())
        .args(["--kafka", "127.0.0.1:0"])
        .env("FREEZEFRAME_LOG_FORMAT", "xml")
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    for word in ["FREEZEFRAME_LOG_FORMAT", "xml", "text", "json"] {
        assert!(stderr.contains(word), "{word} in {stderr}");
    }
}

#[test]
fn each_line_in_the_journal_of_systemd_has_a_priority() {
    let data = TestDirectory::new();
    // Standard error as systemd names it.
    let preparation = "export JOURNAL_STREAM=$(stat -L -c %d:%i /dev/fd/2)";
    let server = TestServer::start_after(preparation, data.path(), &[]).expect("it starts");
    wait_until("it logs its start", || server.stderr().contains("ready kafka="));
    for line in server.stderr().lines() {
        assert!(["<3>", "<4>", "<6>"].contains(&&line[..3]), "{line}");
    }
    let data = TestDirectory::new();
    let preparation = "export JOURNAL_STREAM=1:1";
    let server = TestServer::start_after(preparation, data.path(), &[]).expect("it starts");
    wait_until("it logs its start", || server.stderr().contains("ready kafka="));
    assert!(!server.stderr().contains("<6>"), "that is another stream: {}", server.stderr());
}
