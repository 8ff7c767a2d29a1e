//! One grammar of moments at every door: the command line, paths of the tree, and HTTP.

use serde_json::Value;
use testkit::directory::TestDirectory;
use testkit::process::{CommandOutput, TestServer, http_get, run};

fn command(server: &TestServer, words: &[&str], input: &str) -> CommandOutput {
    let bootstrap = server.kafka.to_string();
    run(&[&["--bootstrap", &bootstrap], words].concat(), input)
}

fn printed(server: &TestServer, words: &[&str], input: &str) -> String {
    let ended = command(server, words, input);
    assert_eq!(ended.code, Some(0), "{words:?}: {}", ended.stderr);
    ended.stdout().trim_end().to_owned()
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
    let data = TestDirectory::new();
    let server = TestServer::start(data.path(), &[]).expect("it starts");
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
    for now in ["now", "0s"] {
        assert_eq!(printed(&server, &["cat", "orders", "--at", now], ""), "one\ntwo", "{now}");
        assert_eq!(over_http(&server, now).1["partitions"][0]["end"], 2, "{now}");
    }
    assert_eq!(over_http(&server, "start").1["partitions"], Value::Array(Vec::new()));
    for bad in ["soon", "s", "u2023-13-45", "pin:none", "orders/0:9", "s5..", "orders/0"] {
        let refused = command(&server, &["cat", "orders", "--at", bad], "");
        assert!(matches!(refused.code, Some(1 | 2)), "{bad}: {:?}", refused.code);
        assert_eq!((refused.stdout(), over_http(&server, bad).0), ("", 400), "{bad}");
    }
}
