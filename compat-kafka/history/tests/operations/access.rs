//! Authorization of requests about the past, for reads and for changes.

use std::collections::{BTreeMap, BTreeSet};

use engine::EngineOptions;
use engine::groups::OffsetCommit;
use engine::security::{
    AclRule, Actor, AuthorizerOptions, DelegationToken, Operation, PatternType, Permission,
    QuotaEntity, QuotaName, Resource, SecurityChange, SecurityOptions,
};
use history_documents::{HistoryRequest, TreeRequest};
use serde_json::{Value, json};

use crate::fixture::{
    DAY_MS, TestHistoryApi, answer_json, answer_text_as, api_with, append_to, moment,
};

/// A name with this in it is not for the users of these tests.
const SECRET: &str = "secret";

async fn answer_as(api: &TestHistoryApi, user: &str, document: &Value) -> Value {
    serde_json::from_str(&answer_text_as(api, user, document.clone()).await).unwrap()
}

async fn code_as(api: &TestHistoryApi, user: &str, document: &Value) -> String {
    let answer = answer_as(api, user, document).await;
    answer["error"]["code"].as_str().unwrap_or("none").to_owned()
}

async fn commit(api: &TestHistoryApi, group: &str, topic: &str) {
    let commit = OffsetCommit {
        topic: topic.to_owned(),
        partition: 0,
        offset: 2,
        leader_epoch: -1,
        metadata: String::new(),
        retention_ms: None,
    };
    api.engine.groups().commit(group, vec![commit]).await.unwrap();
}

async fn allow(api: &TestHistoryApi, user: &str, operation: Operation, resource: Resource<'_>) {
    let rule = AclRule {
        resource_type: resource.kind,
        pattern: PatternType::Literal,
        name: resource.name.to_owned(),
        principal: format!("User:{user}"),
        host: "*".to_owned(),
        operation,
        permission: Permission::Allow,
    };
    let actor = Actor { principal: "User:admin".to_owned(), from: "a test".to_owned() };
    let changes = vec![SecurityChange::AclAdded(rule)];
    api.engine.security().change(actor, |_| (changes, ())).await.unwrap();
}

/// Makes two topics, two groups and a pin at two moments: half of it is secret. Returns the
/// moments.
async fn guarded_api() -> (TestHistoryApi, String, String) {
    let authorizer = AuthorizerOptions {
        is_enabled: true,
        super_users: BTreeSet::from(["User:admin".to_owned()]),
        allow_everyone_if_no_acl_found: false,
    };
    let security = SecurityOptions { authorizer, ..SecurityOptions::default() };
    let api = api_with(EngineOptions { security, ..EngineOptions::default() }).await;
    let from = moment(&api).await;
    for (name, id) in [("secret-topic", [2; 16]), ("open-topic", [3; 16])] {
        api.engine.topics().create(name, 1, BTreeMap::new(), id, false).await.unwrap();
        append_to(&api, name).await;
    }
    for (group, topic) in [
        ("secret-group", "open-topic"),
        ("open-group", "open-topic"),
        ("open-group", "secret-topic"),
        ("own-group", "open-topic"),
    ] {
        commit(&api, group, topic).await;
    }
    let until = moment(&api).await;
    let pin = json!({"op": "pin", "name": "secret-pin", "at": until, "for_ms": DAY_MS});
    assert!(answer_json(&api, pin).await["pin"].is_object());
    (api, from, until)
}

/// The operation of a request. One that is new has no case below.
fn operation(request: &HistoryRequest) -> &'static str {
    match request {
        HistoryRequest::Cut(_) => "cut",
        HistoryRequest::Diff(_) => "diff",
        HistoryRequest::Topics(_) => "topics",
        HistoryRequest::Offsets(_) => "offsets",
        HistoryRequest::Groups(_) => "groups",
        HistoryRequest::SeekGroup(_) => "seek_group",
        HistoryRequest::RestoreGroup(_) => "restore_group",
        HistoryRequest::Pin(_) => "pin",
        HistoryRequest::Unpin(_) => "unpin",
        HistoryRequest::Pins(_) => "pins",
        HistoryRequest::Budgets(_) => "budgets",
        HistoryRequest::Health(_) => "health",
        HistoryRequest::Plugins(_) => "plugins",
        HistoryRequest::AddPlugin(_) => "plugin-add",
        HistoryRequest::RemovePlugin(_) => "plugin-remove",
        HistoryRequest::TestPlugin(_) => "plugin-test",
        HistoryRequest::UserTimes(_) => "user-times",
        HistoryRequest::Acls(_) => "acls",
        HistoryRequest::Users(_) => "users",
        HistoryRequest::Quotas(_) => "quotas",
        HistoryRequest::SecurityLog(_) => "security-log",
        HistoryRequest::Moment(_) => "moment",
        HistoryRequest::Tree(
            TreeRequest::Stat { .. }
            | TreeRequest::List { .. }
            | TreeRequest::Open { .. }
            | TreeRequest::Read { .. }
            | TreeRequest::Close { .. }
            | TreeRequest::Keys { .. },
        ) => "tree",
    }
}

/// Requests of every operation, for what is there and for what is not, and the code of those who
/// may do nothing.
fn requests(from: &str, until: &str, open: &Value) -> Vec<(Value, &'static str)> {
    let refused = "unauthorized";
    let tree = |request: Value| {
        let mut request = request;
        request["op"] = json!("tree");
        request
    };
    let path = |request: &str, path: &str| tree(json!({"do": request, "path": path}));
    let mut requests = vec![
        (json!({"op": "topics"}), refused),
        (json!({"op": "topics", "at": until}), refused),
        (json!({"op": "offsets"}), refused),
        (json!({"op": "groups"}), refused),
        (json!({"op": "pins"}), refused),
        (json!({"op": "budgets"}), refused),
        (json!({"op": "health"}), refused),
        (json!({"op": "moment"}), refused),
        (json!({"op": "moment", "at": "secret-topic/0:0"}), refused),
        (json!({"op": "topics", "at": "pin:secret-pin"}), refused),
        (json!({"op": "topics", "at": "pin:no-pin"}), refused),
        (json!({"op": "acls"}), refused),
        (json!({"op": "acls", "at": until}), refused),
        (json!({"op": "users"}), refused),
        (json!({"op": "quotas"}), refused),
        (json!({"op": "security-log"}), refused),
        (json!({"op": "plugins"}), refused),
        (json!({"op": "plugin-add", "name": "p", "module": "00"}), refused),
        (json!({"op": "plugin-remove", "name": "p"}), refused),
        (json!({"op": "plugin-test", "spec": "wasm:p"}), refused),
        (json!({"op": "cut", "at": until}), refused),
        (json!({"op": "cut", "at": "u5"}), refused),
        (json!({"op": "diff", "from": from, "until": until}), refused),
        (json!({"op": "pin", "name": "p", "at": until, "for_ms": DAY_MS}), refused),
        (json!({"op": "pin", "name": "p", "at": until, "for_ms": DAY_MS, "topics": []}), refused),
        (json!({"op": "unpin", "name": "secret-pin"}), refused),
        (json!({"op": "unpin", "name": "no-pin"}), refused),
        // Names that are the same everywhere.
        (path("list", "/"), "none"),
        (path("stat", "/.at"), "none"),
        // A handle that somebody else has open, and one that nobody has.
        (tree(json!({"do": "read", "open": open, "at": 0, "length": 9})), "gone"),
        (tree(json!({"do": "read", "open": 99, "at": 0, "length": 9})), "gone"),
        (tree(json!({"do": "close", "open": open})), "none"),
    ];
    for section in ["topics", "records", "pins", "offsets", "groups", "znodes"] {
        requests.push((
            json!({"op": "diff", "from": from, "until": until, "only": [section]}),
            refused,
        ));
    }
    for topic in ["secret-topic", "no-topic", &format!("secret-topic.__at.{until}")] {
        let topics = json!([topic]);
        for request in [
            json!({"op": "cut", "at": until, "topics": topics}),
            json!({"op": "diff", "from": from, "until": until, "topics": topics}),
            json!({"op": "pin", "name": "p", "at": until, "for_ms": DAY_MS, "topics": topics}),
            json!({"op": "user-times", "topic": topic, "partition": 0, "from": 0}),
            json!({"op": "seek_group", "group": "open-group", "at": until, "topics": topics}),
            tree(json!({"do": "keys", "topic": topic})),
            path("stat", &format!("/topics/{topic}")),
            path("list", &format!("/topics/{topic}")),
            path("open", &format!("/topics/{topic}/0.log")),
            path("open", &format!("/topics/{topic}/0.log@{until}")),
            path("open", &format!("/topics/{topic}@{until}/0.log")),
            path("stat", &format!("/.at/{until}/topics/{topic}")),
            path("list", &format!("/.at/{until}/topics/{topic}/by-key")),
        ] {
            requests.push((request, refused));
        }
    }
    for group in ["secret-group", "no-group"] {
        for request in [
            json!({"op": "offsets", "group": group}),
            json!({"op": "groups", "group": group}),
            json!({"op": "seek_group", "group": group, "at": until, "dry_run": true}),
            json!({"op": "restore_group", "group": group, "at": until, "dry_run": true}),
            path("list", &format!("/offsets/{group}")),
            path("open", &format!("/offsets/{group}/open-topic/0")),
            path("open", &format!("/offsets/{group}/open-topic/0@{until}")),
        ] {
            requests.push((request, refused));
        }
    }
    for place in [
        "/topics",
        "/offsets",
        "/files",
        "/files/secret",
        "/files/secret@s5",
        "/znodes",
        "/znodes/secret/data",
        "/.at/secret-pin",
        "/.at/no-pin",
        "/topics/../files",
    ] {
        requests.push((path("stat", place), refused));
        requests.push((path("list", place), refused));
        requests.push((path("open", place), refused));
    }
    requests
}

#[tokio::test]
async fn who_may_do_nothing_gets_nothing_by_any_operation() {
    let (api, from, until) = guarded_api().await;
    let file = json!({"op": "tree", "do": "open", "path": "/topics/secret-topic/0.log"});
    let open = answer_json(&api, file).await["open"].take();
    assert!(open.is_u64(), "{open}");
    let (mut requested, mut admitted) = (BTreeSet::new(), 0);
    for (document, expected) in requests(&from, &until, &open) {
        let request = HistoryRequest::from_document(document.clone()).unwrap();
        requested.insert(operation(&request));
        let text = answer_text_as(&api, "plain", document.clone()).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        let code = answer["error"]["code"].as_str().unwrap_or("none");
        assert_eq!(code, expected, "{document} {answer}");
        // An answer may repeat the names in the request.
        let is_named = document.to_string().contains(SECRET);
        assert!(is_named || !text.contains(SECRET), "{document} {text}");
        admitted += usize::from(code_as(&api, "admin", &document).await != "unauthorized");
    }
    let operations: BTreeSet<&str> = HistoryRequest::OPERATIONS.iter().copied().collect();
    assert_eq!(requested, operations);
    assert_eq!(admitted, requests(&from, &until, &open).len(), "the super user is not refused");
}

/// Sections that are not about topics do not tell either whether there is a topic of that name.
#[tokio::test]
async fn topics_that_a_difference_names_take_a_right_in_each_section() {
    let (api, from, until) = guarded_api().await;
    allow(&api, "watcher", Operation::Describe, Resource::group("open-group")).await;
    allow(&api, "watcher", Operation::Describe, Resource::CLUSTER).await;
    allow(&api, "watcher", Operation::Describe, Resource::topic("open-topic")).await;
    for sections in [json!([]), json!(["groups"]), json!(["pins", "znodes"]), json!(["offsets"])] {
        let diff = |topic: &str| json!({"op": "diff", "from": from, "until": until, "topics": [topic], "only": sections});
        for topic in ["secret-topic", "no-topic"] {
            assert_eq!(code_as(&api, "watcher", &diff(topic)).await, "unauthorized", "{sections}");
        }
        assert_eq!(code_as(&api, "watcher", &diff("open-topic")).await, "none", "{sections}");
    }
}

/// No field of an answer has anything that was left out, and the answer says that it is not whole.
#[tokio::test]
async fn who_may_see_some_of_it_gets_that_and_no_trace_of_the_rest() {
    let (api, from, until) = guarded_api().await;
    allow(&api, "reader", Operation::Read, Resource::topic("open-topic")).await;
    allow(&api, "reader", Operation::Describe, Resource::group("open-group")).await;
    for document in [
        json!({"op": "topics", "at": until}),
        json!({"op": "cut", "at": until}),
        json!({"op": "offsets", "at": until}),
        json!({"op": "groups", "at": until}),
        json!({"op": "diff", "from": from, "until": until}),
        json!({"op": "tree", "do": "list", "path": "/topics"}),
        json!({"op": "tree", "do": "list", "path": "/offsets", "stat": true}),
        json!({"op": "tree", "do": "list", "path": "/offsets/open-group"}),
        json!({"op": "tree", "do": "list", "path": "/.at"}),
        json!({"op": "tree", "do": "list", "path": format!("/.at/{until}/topics")}),
    ] {
        let text = answer_text_as(&api, "reader", document.clone()).await;
        assert!(!text.contains(SECRET) && !text.contains("\"error\":"), "{document} {text}");
        let is_shown = text.contains("open-topic") || text.contains("open-group");
        assert!(is_shown || document["path"] == "/.at", "{document} {text}");
        assert!(text.contains(r#""complete":false"#), "{document} {text}");
        let full_answer = answer_text_as(&api, "admin", document.clone()).await;
        assert!(
            !full_answer.contains("complete") && full_answer.contains(SECRET),
            "{document} {full_answer}"
        );
    }
    let cut = answer_as(&api, "reader", &json!({"op": "cut", "at": until})).await;
    let named_topics = json!({"op": "cut", "at": until, "topics": ["open-topic"]});
    let named_cut = answer_json(&api, named_topics).await;
    assert_eq!((&cut["hash"], &cut["partitions"]), (&named_cut["hash"], &named_cut["partitions"]));
    assert_eq!((&cut["zxid"], &cut["security"]), (&Value::Null, &Value::Null));
    let diff = json!({"op": "diff", "from": from, "until": until, "topics": ["open-topic"], "only": ["topics", "records"]});
    assert_eq!(answer_as(&api, "reader", &diff).await["complete"], Value::Null);
    let open = json!({"op": "tree", "do": "open", "path": "/topics/open-topic/0.log"});
    let open = answer_as(&api, "reader", &open).await["open"].take();
    let read_request = json!({"op": "tree", "do": "read", "open": open, "at": 0, "length": 9});
    assert!(answer_as(&api, "reader", &read_request).await["base64"].is_string());
    assert_eq!(code_as(&api, "plain", &read_request).await, "gone");
}

/// Other names of moments tell no more than what they name.
#[tokio::test]
async fn a_name_of_a_moment_takes_the_right_to_know_what_it_names() {
    let (api, _, until) = guarded_api().await;
    allow(&api, "watcher", Operation::Describe, Resource::topic("open-topic")).await;
    let moment = |at: &str| json!({"op": "moment", "at": at});
    for at in ["secret-topic/0:0", "no-topic/0:0", "pin:secret-pin", "pin:no-pin", "zxid:1"] {
        assert_eq!(code_as(&api, "watcher", &moment(at)).await, "unauthorized", "{at}");
    }
    for at in ["secret-pin", "no-pin", "start..secret-pin"] {
        assert_eq!(code_as(&api, "watcher", &moment(at)).await, "bad_moment", "{at}");
    }
    for at in ["open-topic/0:0", "now", "start", "2026-11-21T09:00:00Z", "yesterday 14:00"] {
        assert_eq!(code_as(&api, "watcher", &moment(at)).await, "none", "{at}");
    }
    for at in ["pin:secret-pin", "secret-pin"] {
        assert_eq!(answer_json(&api, moment(at)).await["at"], until, "{at}");
    }
    for at in
        ["zxid:1", "pin:no-pin", "open-topic/0:9", "open-topic/7:0", &"start..".repeat(100_000)]
    {
        assert_eq!(code_as(&api, "admin", &moment(at)).await, "bad_moment", "{at:.50}");
    }
    let window = answer_json(&api, moment("pin:secret-pin..now")).await;
    assert!(window["at"].as_str().unwrap().starts_with(&until), "{window}");
    for (path, code) in [
        ("/topics/open-topic@secret-pin", "bad_moment"),
        ("/topics/open-topic@no-pin", "bad_moment"),
        ("/.at/secret-pin/topics", "unauthorized"),
    ] {
        let stat = json!({"op": "tree", "do": "stat", "path": path});
        assert_eq!(code_as(&api, "watcher", &stat).await, code, "{path}");
        let expected = if path.contains("no-pin") { "bad_moment" } else { "none" };
        assert_eq!(code_as(&api, "admin", &stat).await, expected, "{path}");
    }
}

/// Names are known to those who may describe a topic, and records and keys to those who may read
/// it.
#[tokio::test]
async fn who_may_describe_a_topic_does_not_read_it() {
    let (api, from, until) = guarded_api().await;
    allow(&api, "watcher", Operation::Describe, Resource::topic("open-topic")).await;
    let stat = json!({"op": "tree", "do": "stat", "path": "/topics/open-topic/0.log"});
    assert_eq!(code_as(&api, "watcher", &stat).await, "none");
    // A size at a moment would tell of each record.
    let path = format!("/.at/{until}/topics/open-topic/0.log");
    let stat = json!({"op": "tree", "do": "stat", "path": path});
    assert_eq!(code_as(&api, "watcher", &stat).await, "unauthorized");
    let full_stat = answer_as(&api, "admin", &stat).await;
    assert!(full_stat["size"].as_u64() > Some(0), "{full_stat}");
    for document in [
        json!({"op": "tree", "do": "open", "path": "/topics/open-topic/0.log"}),
        json!({"op": "tree", "do": "list", "path": "/topics/open-topic/by-key"}),
        json!({"op": "tree", "do": "stat", "path": "/topics/open-topic/by-key/k"}),
        json!({"op": "tree", "do": "keys", "topic": "open-topic"}),
        json!({"op": "user-times", "topic": "open-topic", "partition": 0, "from": 0}),
        json!({"op": "diff", "from": from, "until": until, "topics": ["open-topic"], "only": ["records"]}),
    ] {
        let answer = answer_as(&api, "watcher", &document).await;
        assert_eq!(answer["error"]["code"], "unauthorized", "{document}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains("READ on") && message.contains("TOPIC"), "{message}");
    }
    let diff = json!({"op": "diff", "from": from, "until": until, "topics": ["open-topic"]});
    let diff = answer_as(&api, "watcher", &diff).await;
    let kinds: Vec<&Value> =
        diff["changes"].as_array().unwrap().iter().map(|change| &change["kind"]).collect();
    assert_eq!(kinds, ["topic_created"]);
    assert_eq!(diff["complete"], false);
}

/// Settings are for those who may describe them, and delegation tokens for their owners.
#[tokio::test]
async fn settings_and_tokens_take_more_than_a_look_at_names() {
    let (api, from, _) = guarded_api().await;
    let settings = BTreeMap::from([("retention.ms".to_owned(), "77777".to_owned())]);
    api.engine.topics().create("set", 1, settings, [9; 16], false).await.unwrap();
    let token = DelegationToken {
        owner: "User:owner".to_owned(),
        requester: "User:owner".to_owned(),
        renewers: Vec::new(),
        issued_ms: 1,
        expires_ms: u64::MAX,
        max_ms: u64::MAX,
    };
    let actor = Actor { principal: "User:owner".to_owned(), from: "a test".to_owned() };
    let changes = vec![SecurityChange::TokenSet { id: "secret-id".to_owned(), token }];
    api.engine.security().change(actor, |_| (changes, ())).await.unwrap();
    for user in ["watcher", "owner"] {
        allow(&api, user, Operation::Describe, Resource::topic("set")).await;
        allow(&api, user, Operation::Describe, Resource::CLUSTER).await;
    }
    allow(&api, "owner", Operation::DescribeConfigs, Resource::topic("set")).await;
    let until = moment(&api).await;
    for (document, text) in [
        (json!({"op": "topics", "at": until}), "77777"),
        (json!({"op": "diff", "from": from, "until": until, "topics": ["set"]}), "77777"),
        (json!({"op": "security-log"}), "secret-id"),
    ] {
        for (user, is_shown) in [("watcher", false), ("owner", true), ("admin", true)] {
            let answer = answer_text_as(&api, user, document.clone()).await;
            assert!(!answer.contains("\"error\":"), "{answer}");
            assert_eq!(answer.contains(text), is_shown, "{user}: {answer}");
        }
    }
}

/// The place where a page begins may be a key with a name that the reader may not see.
#[tokio::test]
async fn pages_of_differences_are_followed_without_a_name_in_their_places() {
    let (api, from, until) = guarded_api().await;
    allow(&api, "reader", Operation::Read, Resource::topic("open-topic")).await;
    allow(&api, "reader", Operation::Describe, Resource::group("open-group")).await;
    allow(&api, "reader", Operation::Describe, Resource::group("own-group")).await;
    let (mut after, mut kinds) = (Value::Null, Vec::new());
    for _ in 0..20 {
        let page = json!({"op": "diff", "from": from, "until": until, "limit": 1, "after": after});
        let page = answer_as(&api, "reader", &page).await;
        let changes = page["changes"].as_array().unwrap().iter();
        kinds.extend(changes.map(|change| change["kind"].as_str().unwrap().to_owned()));
        after = page["next"].clone();
        match after.as_str() {
            Some(next) => assert!(next.starts_with('e'), "{next}"),
            None => break,
        }
    }
    assert_eq!(kinds, ["topic_created", "appended", "offset", "offset"]);
    // A cursor of an unlimited client does not read for a limited one.
    let foreign = json!({"op": "diff", "from": from, "until": until, "after": "p0"});
    assert_eq!(code_as(&api, "reader", &foreign).await, "bad_request");
}

#[tokio::test]
async fn a_pin_takes_what_its_topics_take() {
    let (api, _, until) = guarded_api().await;
    allow(&api, "keeper", Operation::Alter, Resource::topic("open-topic")).await;
    let pin = |name: &str, topics: Value| json!({"op": "pin", "name": name, "at": until, "for_ms": DAY_MS, "topics": topics});
    let unpin = |name: &str| json!({"op": "unpin", "name": name});
    assert_eq!(code_as(&api, "keeper", &pin("own", json!(["open-topic"]))).await, "none");
    let both_topics = json!(["open-topic", "secret-topic"]);
    for (document, code) in [
        (pin("all", Value::Null), "unauthorized"),
        (pin("none", json!([])), "unauthorized"),
        (pin("both", both_topics.clone()), "unauthorized"),
        (pin("secret-pin", json!(["open-topic"])), "unauthorized"),
        (unpin("secret-pin"), "unauthorized"),
        (json!({"op": "pins"}), "unauthorized"),
        (unpin("own"), "none"),
    ] {
        assert_eq!(code_as(&api, "keeper", &document).await, code, "{document}");
    }
    assert_eq!(code_as(&api, "admin", &pin("both", both_topics)).await, "none");
    let refused = answer_as(&api, "keeper", &unpin("both")).await;
    assert_eq!(refused["error"]["code"], "unauthorized");
    assert!(!refused.to_string().contains(SECRET), "{refused}");
    allow(&api, "keeper", Operation::Alter, Resource::CLUSTER).await;
    assert_eq!(code_as(&api, "keeper", &unpin("both")).await, "none");
    assert_eq!(code_as(&api, "keeper", &pin("all", Value::Null)).await, "none");
}

#[tokio::test]
async fn a_group_is_set_by_those_who_may_commit_for_it() {
    let (api, from, until) = guarded_api().await;
    let seek = json!({"op": "seek_group", "group": "open-group", "at": until});
    let restore = json!({"op": "restore_group", "group": "open-group", "at": until});
    let named_topic =
        json!({"op": "seek_group", "group": "open-group", "at": until, "topics": ["open-topic"]});
    allow(&api, "setter", Operation::Read, Resource::topic("open-topic")).await;
    assert_eq!(code_as(&api, "setter", &named_topic).await, "unauthorized");
    allow(&api, "setter", Operation::Describe, Resource::group("open-group")).await;
    assert_eq!(code_as(&api, "setter", &named_topic).await, "unauthorized");
    allow(&api, "setter", Operation::Read, Resource::group("open-group")).await;
    assert_eq!(code_as(&api, "setter", &named_topic).await, "none");
    for document in [&seek, &restore] {
        let refused = answer_as(&api, "setter", document).await;
        assert_eq!(refused["error"]["code"], "unauthorized", "{document}");
        assert!(!refused.to_string().contains(SECRET), "{refused}");
    }
    allow(&api, "setter", Operation::Read, Resource::topic("secret-topic")).await;
    for document in [&seek, &restore] {
        assert_eq!(code_as(&api, "setter", document).await, "none", "{document}");
    }
    // Commits before the moment count, too.
    commit(&api, "own-group", "secret-topic").await;
    let later = moment(&api).await;
    api.engine
        .groups()
        .delete_offsets("own-group", vec![("secret-topic".to_owned(), 0)])
        .await
        .unwrap();
    allow(&api, "owner", Operation::Read, Resource::group("own-group")).await;
    allow(&api, "owner", Operation::Read, Resource::topic("open-topic")).await;
    let restore =
        |at: &str| json!({"op": "restore_group", "group": "own-group", "at": at, "dry_run": true});
    assert_eq!(code_as(&api, "owner", &restore(&later)).await, "unauthorized");
    assert_eq!(code_as(&api, "owner", &restore(&until)).await, "none");
    assert_eq!(code_as(&api, "owner", &restore(&from)).await, "unknown_group");
}

/// A client that may describe the cluster may not read everybody's files.
#[tokio::test]
async fn the_cluster_has_the_names_of_files_and_its_owner_their_bytes() {
    let (api, ..) = guarded_api().await;
    allow(&api, "scraper", Operation::Describe, Resource::CLUSTER).await;
    let tree_request =
        |request: &str, path: &str| json!({"op": "tree", "do": request, "path": path});
    for path in ["/files", "/znodes", "/.at"] {
        assert_eq!(code_as(&api, "scraper", &tree_request("list", path)).await, "none", "{path}");
    }
    for path in ["/topics", "/offsets"] {
        assert_eq!(
            code_as(&api, "scraper", &tree_request("list", path)).await,
            "unauthorized",
            "{path}"
        );
    }
    let data = tree_request("open", "/znodes/data");
    assert_eq!(code_as(&api, "scraper", &data).await, "unauthorized");
    allow(&api, "scraper", Operation::Alter, Resource::CLUSTER).await;
    assert_eq!(code_as(&api, "scraper", &data).await, "none");
    let plugin = json!({"op": "plugin-add", "name": "p", "module": "00"});
    assert_eq!(code_as(&api, "scraper", &plugin).await, "bad_plugin");
}

/// Kafka has a right of its own for quotas.
#[tokio::test]
async fn who_may_not_describe_settings_sees_no_quotas() {
    let (api, ..) = guarded_api().await;
    let entity = QuotaEntity { user: Some(QuotaName::Default), ..QuotaEntity::default() };
    let quotas = BTreeMap::from([("request_percentage".to_owned(), 5.0)]);
    let actor = Actor { principal: "User:admin".to_owned(), from: "a test".to_owned() };
    let changes = vec![SecurityChange::QuotasSet { entity, quotas }];
    api.engine.security().change(actor, |_| (changes, ())).await.unwrap();
    allow(&api, "auditor", Operation::Describe, Resource::CLUSTER).await;
    let (log, quotas) = (json!({"op": "security-log"}), json!({"op": "quotas"}));
    let shown_log = answer_as(&api, "auditor", &log).await;
    assert_eq!(shown_log["complete"], false);
    assert!(
        !shown_log.to_string().contains("quotas_set")
            && shown_log.to_string().contains("acl_added")
    );
    assert_eq!(code_as(&api, "auditor", &quotas).await, "unauthorized");
    assert_eq!(code_as(&api, "auditor", &json!({"op": "users"})).await, "none");
    allow(&api, "auditor", Operation::DescribeConfigs, Resource::CLUSTER).await;
    let shown_log = answer_as(&api, "auditor", &log).await;
    assert_eq!(shown_log["complete"], Value::Null);
    assert!(shown_log.to_string().contains("quotas_set"));
    assert_eq!(code_as(&api, "auditor", &quotas).await, "none");
}
