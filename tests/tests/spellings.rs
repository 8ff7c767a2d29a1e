//! One grammar of moments at every door: the command line, paths of the tree, and HTTP.

use serde_json::Value;
use testkit::process::{OwnServer, TestServer, http_get};

fn printed(server: &TestServer, words: &[&str], input: &str) -> String {
    server.run_with_input(words, input).trim_end().to_owned()
}

/// Asks HTTP where a moment is. A moment in a query is percent-encoded.
fn over_http(server: &TestServer, at: &str) -> (u16, Value) {
    let escaped: String = at.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let (status, body) =
        http_get(server.http, &format!("/v1/cut?at={escaped}")).expect("an answer");
    (status, serde_json::from_str(&body).expect("JSON"))
}

#[test]
fn a_spelling_means_the_same_at_every_door() {
    let server = OwnServer::start(&[]);
    printed(&server, &["topics", "create", "orders"], "");
    printed(&server, &["produce", "orders"], "one\n");
    let then = printed(&server, &["moment", "--json"], "");
    let then: Value = serde_json::from_str(&then).expect("JSON");
    let (stamp, ms) = (then["at"].as_str().expect("a stamp"), &then["at_ms"]);
    printed(&server, &["pins", "set", "audit", "--at", stamp], "");
    printed(&server, &["produce", "orders"], "two\n");
    // A time in whole milliseconds that has the first record and not the second one.
    let second = printed(&server, &["cat", "orders", "-f", "%A"], "");
    let second = second.lines().next_back().expect("a line").to_owned();
    let date = printed(&server, &["moment", &format!("s{second}"), "--json"], "");
    let date: Value = serde_json::from_str(&date).expect("JSON");
    let date = date["date"].as_str().expect("a date");
    assert!(ms.as_i64() <= second.parse().ok(), "{ms} {second}");

    for at in [
        stamp,
        &format!("s{second}"),
        &format!("s{date}"),
        &format!("s{}", date.replace('Z', "+00:00")),
        "pin:audit",
        "orders/0:1",
    ] {
        assert_eq!(printed(&server, &["cat", "orders", "--at", at], ""), "one", "--at {at}");
        assert_eq!(printed(&server, &["cat", &format!("orders@{at}")], ""), "one", "orders@{at}");
        let (status, cut) = over_http(&server, at);
        assert_eq!((status, &cut["partitions"][0]["end"]), (200, &1.into()), "{at}: {cut}");
        let resolved = printed(&server, &["moment", at], "");
        assert_eq!(cut["at"], resolved.as_str(), "{at}");
        for path in [
            format!("/.at/{resolved}/topics/orders/0.values"),
            format!("/topics@{resolved}/orders/0.values"),
            format!("/topics/orders@{resolved}/0.values"),
            format!("/topics/orders/0.values@{resolved}"),
        ] {
            assert_eq!(printed(&server, &["cat", &path], ""), "one", "{path}");
        }
    }
    // A date needs no letter, and a pin none before it after @ and in a path.
    assert_eq!(printed(&server, &["cat", "orders", "--at", date], ""), "one");
    assert_eq!(over_http(&server, date).1["at"], over_http(&server, &format!("s{date}")).1["at"]);
    for path in
        ["orders@audit", "/topics/orders@audit/0.values", "/.at/pin:audit/topics/orders/0.values"]
    {
        assert_eq!(printed(&server, &["cat", path], ""), "one", "{path}");
    }
    for word in ["now", "0s"] {
        assert_eq!(printed(&server, &["cat", "orders", "--at", word], ""), "one\ntwo", "{word}");
        assert_eq!(over_http(&server, word).1["partitions"][0]["end"], 2, "{word}");
    }
    assert_eq!(over_http(&server, "start").1["partitions"], Value::Array(Vec::new()));
    for bad in ["soon", "s", "u2023-13-45", "pin:none", "orders/0:9", "s5..", "orders/0"] {
        let refused = server.run(&["cat", "orders", "--at", bad], "");
        assert!(matches!(refused.code, Some(1 | 2)), "{bad}: {:?}", refused.code);
        assert_eq!((refused.stdout(), over_http(&server, bad).0), ("", 400), "{bad}");
    }
}

/// Fields that have a moment, which may be a stamp: it can be asked for again.
const MOMENTS: [&str; 3] = ["at", "from", "until"];

/// The names of the fields that have stamps. Each is checked to have its milliseconds beside it.
fn stamps(document: &Value) -> Vec<String> {
    match document {
        Value::Array(items) => items.iter().flat_map(stamps).collect(),
        Value::Object(fields) => {
            let mut found: Vec<String> = fields.values().flat_map(stamps).collect();
            for (name, value) in fields {
                let hex = value.as_str().and_then(|text| text.strip_prefix("sh"));
                let stamp = hex.and_then(|hex| u64::from_str_radix(hex, 16).ok());
                if let Some(stamp) = stamp
                    && !MOMENTS.contains(&name.as_str())
                {
                    let ms = &fields[&format!("{name}_ms")];
                    assert_eq!(ms.as_u64(), Some(stamp >> 16), "{name} in {document}");
                    found.push(name.clone());
                }
            }
            found
        }
        _ => Vec::new(),
    }
}

#[test]
fn a_stamp_in_a_document_has_its_milliseconds_beside_it() {
    let server = OwnServer::start(&["--zookeeper", "127.0.0.1:0"]);
    let begin = server.now();
    server.stdout_of(&["topics", "create", "orders", "gone"]);
    server.stdout_of(&["topics", "delete", "gone"]);
    server.run_with_input(&["produce", "orders"], "one\n");
    server.stdout_of(&["pins", "set", "audit"]);
    server.stdout_of(&["groups", "seek", "billing", "--at", "now", "--topic", "orders"]);
    server.run_with_input(&["users", "add", "alice"], "a password\n");
    let zookeeper = server.zookeeper.expect("an address").to_string();
    server.stdout_of(&["zk", "--zookeeper", &zookeeper, "create", "/app", "x"]);
    let then = server.now();
    for (path, expected) in [
        (format!("/v1/cut?at={then}"), &["frontier"][..]),
        ("/v1/cut?at=s9999999999999&when=refuse".to_owned(), &["frontier"]),
        (format!("/v1/diff?from={begin}&until={then}"), &["frontier", "stamp"]),
        (format!("/v1/topics?at={then}"), &["created", "frontier"]),
        (format!("/v1/groups?at={then}"), &["committed", "frontier"]),
        (format!("/v1/offsets?at={then}"), &["committed", "frontier"]),
        ("/v1/pins".to_owned(), &["set"]),
        (format!("/v1/users?at={then}"), &["frontier"]),
        (format!("/v1/acls?at={then}"), &["frontier"]),
        (format!("/v1/quotas?at={then}"), &["frontier"]),
        (format!("/v1/security-log?from={begin}&until={then}"), &["frontier", "stamp"]),
    ] {
        let (_, body) = http_get(server.http, &path).expect("an answer");
        let mut found = stamps(&serde_json::from_str(&body).expect("JSON"));
        found.sort();
        found.dedup();
        assert_eq!(found, expected, "{path}: {body}");
    }
    let journal = server.data.path().join("journal/00000000000000000000.journal");
    let journal = journal.to_str().expect("text");
    for (words, expected) in [
        (&["topics", "list", "--at", &then, "--json"][..], "created"),
        (&["groups", "describe", "billing", "--at", &then, "--json"], "committed_stamp"),
        (&["zk", "--zookeeper", &zookeeper, "log", "/app", "--json"], "stamp"),
        (&["inspect", journal, "--frames", "2", "--json"], "stamp"),
    ] {
        let printed = server.stdout_of(words);
        let documents = printed.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let found: Vec<String> = documents.flat_map(|document: Value| stamps(&document)).collect();
        assert!(found.iter().any(|name| name == expected), "{words:?}: {printed}");
    }
}
