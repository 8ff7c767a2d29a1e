use serde_json::json;

use super::*;
use crate::hex::HexBytes;
use crate::moment::{Isolation, PendingMomentPolicy};
use crate::tree::{TreeKeysFormat, TreeName};

/// Each request has one spelling, and reads back.
#[track_caller]
fn agreed(request: &HistoryRequest, text: &str) {
    assert_eq!(serde_json::to_string(request).unwrap(), text);
    assert_eq!(HistoryRequest::from_slice(text.as_bytes()).unwrap(), *request);
}

#[test]
fn a_question_is_the_document_that_was_agreed_on() {
    let (at, topics) = ("s5".to_owned(), Some(vec!["a".to_owned()]));
    let cut = CutRequest {
        at: at.clone(),
        topics: topics.clone(),
        when: PendingMomentPolicy::Wait,
        patience_ms: Some(5000),
        isolation: Isolation::default(),
    };
    agreed(
        &HistoryRequest::Cut(cut),
        r#"{"op":"cut","at":"s5","topics":["a"],"when":"wait","patience_ms":5000}"#,
    );
    let everything = TopicsRequest::default();
    agreed(&HistoryRequest::Topics(everything), r#"{"op":"topics","at":null}"#);
    let of_group = GroupMomentRequest {
        at: Some(at.clone()),
        group: Some("g".to_owned()),
        ..GroupMomentRequest::default()
    };
    agreed(&HistoryRequest::Offsets(of_group), r#"{"op":"offsets","at":"s5","group":"g"}"#);
    let of_all = GroupMomentRequest::default();
    agreed(&HistoryRequest::Groups(of_all), r#"{"op":"groups","at":null,"group":null}"#);
    let pin = PinRequest { name: "p".to_owned(), at: at.clone(), for_ms: 7, topics: None };
    agreed(
        &HistoryRequest::Pin(pin),
        r#"{"op":"pin","name":"p","at":"s5","for_ms":7,"topics":null}"#,
    );
    let unpin = UnpinRequest { name: "p".to_owned() };
    agreed(&HistoryRequest::Unpin(unpin), r#"{"op":"unpin","name":"p"}"#);
    agreed(&HistoryRequest::Pins(PinsRequest {}), r#"{"op":"pins"}"#);
}

#[test]
fn a_group_is_set_by_the_document_that_was_agreed_on() {
    let (group, at) = ("g".to_owned(), "s5".to_owned());
    let seek = SeekGroupRequest {
        group: group.clone(),
        at: at.clone(),
        topics: Some(vec!["a".to_owned()]),
        dry_run: true,
        when: PendingMomentPolicy::Wait,
        patience_ms: None,
        isolation: Isolation::default(),
    };
    agreed(
        &HistoryRequest::SeekGroup(seek),
        r#"{"op":"seek_group","group":"g","at":"s5","topics":["a"],"dry_run":true}"#,
    );
    let restore = RestoreGroupRequest {
        group,
        at,
        dry_run: false,
        when: PendingMomentPolicy::Frontier,
        patience_ms: Some(1),
    };
    agreed(
        &HistoryRequest::RestoreGroup(restore.clone()),
        r#"{"op":"restore_group","group":"g","at":"s5","dry_run":false,"when":"frontier","patience_ms":1}"#,
    );
    let when = PendingMomentPolicy::Wait;
    agreed(
        &HistoryRequest::RestoreGroup(RestoreGroupRequest { when, patience_ms: None, ..restore }),
        r#"{"op":"restore_group","group":"g","at":"s5","dry_run":false}"#,
    );
}

#[test]
fn a_page_of_differences_is_asked_for_as_it_was_agreed_on() {
    let diff = DiffRequest {
        from: "s5".to_owned(),
        until: "s6".to_owned(),
        topics: None,
        only: Some(vec![crate::DiffCategory::Offsets]),
        isolation: Isolation::default(),
        when: PendingMomentPolicy::Refuse,
        patience_ms: Some(0),
        after: None,
        limit: None,
    };
    agreed(
        &HistoryRequest::Diff(diff.clone()),
        r#"{"op":"diff","from":"s5","until":"s6","topics":null,"only":["offsets"],"when":"refuse","patience_ms":0,"after":null}"#,
    );
    let uncommitted = DiffRequest { isolation: Isolation::Uncommitted, ..diff };
    agreed(
        &HistoryRequest::Diff(uncommitted),
        r#"{"op":"diff","from":"s5","until":"s6","topics":null,"only":["offsets"],"isolation":"uncommitted","when":"refuse","patience_ms":0,"after":null}"#,
    );
}

#[test]
fn a_plug_in_is_asked_for_as_it_was_agreed_on() {
    agreed(&HistoryRequest::Plugins(PluginsRequest {}), r#"{"op":"plugins"}"#);
    let add = AddPluginRequest { name: "p".to_owned(), module: HexBytes(vec![0, 0xab]) };
    agreed(&HistoryRequest::AddPlugin(add), r#"{"op":"plugin-add","name":"p","module":"00ab"}"#);
    let remove = RemovePluginRequest { name: "p".to_owned() };
    agreed(&HistoryRequest::RemovePlugin(remove), r#"{"op":"plugin-remove","name":"p"}"#);
    let test = TestPluginRequest {
        spec: "header:h".to_owned(),
        key: None,
        value: Some(HexBytes(b"v".to_vec())),
        timestamp: Some(5),
        headers: vec![("h".to_owned(), HexBytes(b"1".to_vec()))],
    };
    agreed(
        &HistoryRequest::TestPlugin(test),
        r#"{"op":"plugin-test","spec":"header:h","key":null,"value":"76","timestamp":5,"headers":[["h","31"]]}"#,
    );
    let times = UserTimesRequest { topic: "t".to_owned(), partition: 1, from: 2 };
    agreed(
        &HistoryRequest::UserTimes(times),
        r#"{"op":"user-times","topic":"t","partition":1,"from":2}"#,
    );
}

#[test]
fn the_tree_is_asked_by_the_documents_that_were_agreed_on() {
    let path = || TreeName::Text("/a".to_owned());
    let bytes = TreeName::from_bytes(b"\xff");
    for (request, text) in [
        (TreeRequest::Stat { path: path() }, r#"{"op":"tree","do":"stat","path":"/a"}"#),
        (
            TreeRequest::List { path: path(), after: Some("0".to_owned()), max: None, stat: true },
            r#"{"op":"tree","do":"list","path":"/a","after":"0","stat":true}"#,
        ),
        (
            TreeRequest::Open { path: bytes, isolation: Isolation::Committed },
            r#"{"op":"tree","do":"open","path":{"base64":"/w=="}}"#,
        ),
        (
            TreeRequest::Read { open: 7, at: 1 << 60, length: 5 },
            r#"{"op":"tree","do":"read","open":7,"at":1152921504606846976,"length":5}"#,
        ),
        (TreeRequest::Close { open: 7 }, r#"{"op":"tree","do":"close","open":7}"#),
        (
            TreeRequest::Keys {
                topic: "t".to_owned(),
                at: None,
                format: TreeKeysFormat::Jsonl,
                isolation: Isolation::Uncommitted,
                after: None,
            },
            r#"{"op":"tree","do":"keys","topic":"t","at":null,"format":"jsonl","isolation":"uncommitted","after":null}"#,
        ),
    ] {
        agreed(&HistoryRequest::Tree(request), text);
    }
}

#[test]
fn what_may_be_left_out_is() {
    for (text, whole) in [
        (
            json!({"op": "cut", "at": "s5"}),
            json!({"op": "cut", "at": "s5", "topics": null, "when": "wait", "patience_ms": null}),
        ),
        (
            json!({"op": "offsets"}),
            json!({"op": "offsets", "at": null, "group": null, "when": "wait"}),
        ),
        (
            json!({"op": "seek_group", "group": "g", "at": "s5"}),
            json!({"op": "seek_group", "group": "g", "at": "s5", "topics": null, "dry_run": false}),
        ),
        (
            json!({"op": "tree", "do": "list", "path": "/"}),
            json!({"op": "tree", "do": "list", "path": "/", "after": null, "max": null, "stat": false}),
        ),
        (
            json!({"op": "plugin-test", "spec": "csv:1"}),
            json!({"op": "plugin-test", "spec": "csv:1", "key": null, "value": null, "timestamp": null, "headers": []}),
        ),
    ] {
        let read = HistoryRequest::from_document(text).unwrap();
        assert_eq!(read, HistoryRequest::from_document(whole).unwrap());
    }
}

#[test]
fn every_operation_has_a_name_of_its_own_and_no_field_that_it_does_not_know() {
    for op in HistoryRequest::OPERATIONS {
        let text = json!({"op": op, "no such field": 1});
        let error = HistoryRequest::from_document(text).unwrap_err();
        assert!(matches!(error, RequestError::Fields(_)), "{op}: {error}");
    }
    for document in [
        json!({"op": "pins", "more": 1}),
        json!({"op": "plugins", "more": 1}),
        json!({"op": "cut", "at": "s5", "more": 1}),
        json!({"op": "tree", "do": "close", "open": 5, "more": 1}),
        json!({"op": "tree", "do": "dance"}),
        json!({"op": "tree"}),
    ] {
        let error = HistoryRequest::from_document(document.clone()).unwrap_err();
        assert!(matches!(error, RequestError::Fields(_)), "{document}: {error}");
    }
}

#[test]
fn what_is_no_request_says_why() {
    for (text, why) in [
        ("?", "not JSON: "),
        ("null", "a request is an object with a field op, as in {\"op\":\"pins\"}"),
        ("[1]", "a request is an object"),
        ("{}", "a request is an object"),
        (r#"{"op":5}"#, "a request is an object"),
        (r#"{"op":"none"}"#, "there is no operation \"none\""),
        (r#"{"op":"cut"}"#, "not a request: missing field `at`"),
        (r#"{"op":"cut","at":5}"#, "not a request: invalid type: "),
        (r#"{"op":"pins","more":1}"#, "not a request: unknown field `more`"),
    ] {
        let error = HistoryRequest::from_slice(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(why), "{text}: {error}");
    }
}
