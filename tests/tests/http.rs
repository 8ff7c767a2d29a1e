//! Records and files over HTTP: pages, formats, ranges, and what a browser may keep.

use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::directory::TestDirectory;
use testkit::process::{HttpAnswer, TestServer, http_get_with, run};

fn get(http: SocketAddr, path: &str, headers: &str) -> HttpAnswer {
    http_get_with(http, path, headers).expect("an answer")
}

fn ff(server: &TestServer, args: &[&str], input: &str) -> String {
    let mut all = args.to_vec();
    let address = server.kafka.to_string();
    all.extend(["--bootstrap", &address]);
    let result = run(&all, input);
    assert_eq!(result.code, Some(0), "{args:?}: {}", result.stderr);
    result.stdout().to_owned()
}

fn serve(data: &TestDirectory) -> TestServer {
    TestServer::start(data.path(), &[]).expect("it starts")
}

/// All pages from `path` on, which has a cursor, by the header that names the next.
fn pages(server: &TestServer, path: &str) -> Vec<HttpAnswer> {
    let mut pages = vec![get(server.http, path, "")];
    loop {
        let page = pages.last().expect("one at least");
        assert_eq!(page.status, 200, "{}", page.text());
        assert!(pages.len() < 100, "no end");
        let Some(next) = page.header("freezeframe-next") else { return pages };
        let (query, _) = path.rsplit_once("&after=").expect("a page after another");
        pages.push(get(server.http, &format!("{query}&after={next}"), ""));
    }
}

#[test]
fn pages_of_records_are_those_of_their_first_moment() {
    let data = TestDirectory::new();
    let server = serve(&data);
    ff(&server, &["topics", "create", "orders", "--partitions", "3"], "");
    let lines: String = (0..20).map(|nth| format!("key-{nth}\tvalue {nth}\n")).collect();
    ff(&server, &["produce", "orders", "-K", "\\t"], &lines);
    let at = get(server.http, "/v1/moment", "").json()["at"].as_str().expect("a moment").to_owned();
    let expected = ff(&server, &["cat", &format!("orders@{at}"), "--format", "jsonl"], "");
    let first = get(server.http, "/v1/records/orders?format=jsonl&limit=7", "");
    let next = first.header("freezeframe-next").expect("there are more").to_owned();
    assert_eq!(first.header("content-type"), Some("application/x-ndjson"));
    // What comes later is not on the pages that follow.
    ff(&server, &["produce", "orders", "-K", "\\t"], &lines);
    let mut text = first.text().to_owned();
    for page in pages(&server, &format!("/v1/records/orders?format=jsonl&limit=7&after={next}")) {
        assert_eq!(page.header("freezeframe-at"), first.header("freezeframe-at"));
        text.push_str(page.text());
    }
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&text), sorted(&expected));
    assert_eq!(text.lines().count(), 20);

    // The same, by words, as one document, and of one partition.
    let document = get(server.http, &format!("/v1/records/orders?at={at}"), "").json();
    assert_eq!(document["at"], json!(at));
    assert_eq!(document["next"], json!(null));
    let records = document["records"].as_array().expect("an array");
    let whole: Vec<String> = records.iter().map(Value::to_string).collect();
    assert_eq!(whole.len(), 20);
    let parse = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
    assert!(text.lines().map(parse).eq(records.iter().cloned()), "{text}");
    let one = get(server.http, &format!("/v1/records/orders/1?at={at}"), "").json();
    let of_one = |record: &&Value| record["partition"] == json!(1);
    let expected: Vec<&Value> = records.iter().filter(of_one).collect();
    assert_eq!(one["records"].as_array().expect("an array").iter().collect::<Vec<_>>(), expected);
    let now = get(server.http, "/v1/records/orders?at=now&limit=100", "").json();
    assert_eq!(now["records"].as_array().expect("an array").len(), 40);

    let arrow = get(server.http, &format!("/v1/records/orders?at={at}&format=arrow"), "");
    assert_eq!(arrow.header("content-type"), Some("application/vnd.apache.arrow.stream"));
    assert_eq!(arrow.header("freezeframe-at"), Some(&*at));
    assert!(arrow.body.starts_with(&[0xff; 4]), "it begins with a message of the stream");

    // A window has the records between two moments.
    let window = get(server.http, &format!("/v1/records/orders?from={at}&limit=100"), "").json();
    assert_eq!(window["records"].as_array().expect("an array").len(), 20);
    let empty = get(server.http, &format!("/v1/records/orders?from={at}&until={at}"), "");
    assert_eq!((empty.status, empty.code()), (400, json!("bad_moment")));
}

#[test]
fn a_request_for_records_that_makes_no_sense_says_why() {
    let data = TestDirectory::new();
    let server = serve(&data);
    ff(&server, &["topics", "create", "orders"], "");
    for (path, status, code) in [
        ("/v1/records/nobody", 404, "unknown_topic"),
        ("/v1/records/orders/7", 404, "unknown_topic"),
        ("/v1/records/orders/x", 400, "bad_request"),
        ("/v1/records/orders/-1", 400, "bad_request"),
        ("/v1/records/a%2fb", 404, "unknown_topic"),
        ("/v1/records/orders?limit=x", 400, "bad_request"),
        ("/v1/records/orders?limit=-1", 400, "bad_request"),
        ("/v1/records/orders?format=xml", 400, "bad_request"),
        ("/v1/records/orders?after=x", 400, "bad_request"),
        ("/v1/records/orders?after=s5~0~x~0~0", 400, "bad_request"),
        ("/v1/records/orders?after=s5~0~0~0", 400, "bad_request"),
        ("/v1/records/orders?after=s5~0~0~0~0~0", 400, "bad_request"),
        ("/v1/records/orders?topic=x", 400, "bad_request"),
        ("/v1/records/orders?at=yesterdy", 400, "bad_moment"),
        ("/v1/records/orders?at=now&until=now", 400, "bad_moment"),
        ("/v1/records/orders?from=u5", 400, "bad_moment"),
        ("/v1/records/orders?from=u5&until=s6", 400, "bad_moment"),
        ("/v1/records/orders?at=s99991121T090000.000Z", 400, "far_future"),
        ("/v1/tree/topics/nobody", 404, "not_found"),
        ("/v1/tree/%zz", 400, "bad_request"),
        ("/v1/tree/../x", 400, "bad_path"),
        ("/v1/tree/topics?stat=maybe", 400, "bad_request"),
    ] {
        let answer = get(server.http, path, "");
        assert_eq!((answer.status, answer.code()), (status, json!(code)), "{path}");
    }
    let answer = get(server.http, "/v1/records/orders?after=s5~0~0~0~0", "");
    assert_eq!(answer.status, 404, "the topic was not there then: {}", answer.text());
    // A cursor past the end is at the end.
    let at = get(server.http, "/v1/moment", "").json()["at"].as_str().expect("a moment").to_owned();
    for after in ["0~18446744073709551615~0~0", "4294967295~0~0~0"] {
        let answer = get(server.http, &format!("/v1/records/orders?after={at}~{after}"), "");
        assert_eq!(answer.json()["records"], json!([]), "{after}");
    }
    let made_up = get(server.http, &format!("/v1/records/orders?after={at}~0~0~0~7"), "");
    assert_eq!((made_up.status, made_up.code()), (410, json!("gone")));
}

#[test]
fn records_that_are_removed_between_two_pages_are_missed() {
    let data = TestDirectory::new();
    let server = serve(&data);
    ff(&server, &["topics", "create", "orders"], "");
    let lines: String = (0..20).map(|nth| format!("value {nth}\n")).collect();
    ff(&server, &["produce", "orders"], &lines);
    let first = get(server.http, "/v1/records/orders?limit=5", "").json();
    ff(&server, &["topics", "trim", "orders/0", "--before", "10"], "");
    let next = first["next"].as_str().expect("there are more");
    let second = get(server.http, &format!("/v1/records/orders?after={next}"), "");
    assert_eq!(second.status, 410, "{}", second.text());
    // Also in a partition that no page has come to.
    ff(&server, &["topics", "create", "two", "--partitions", "2"], "");
    for partition in ["0", "1"] {
        ff(&server, &["produce", "two", "--partition", partition], &lines);
    }
    let first = get(server.http, "/v1/records/two?limit=5", "").json();
    let next = first["next"].as_str().expect("there are more");
    let path = format!("/v1/records/two?limit=30&after={next}");
    assert_eq!(get(server.http, &path, "").status, 200);
    ff(&server, &["topics", "trim", "two/1", "--before", "10"], "");
    assert_eq!(get(server.http, &path, "").status, 410);
}

#[test]
fn files_of_the_tree_have_ranges_and_may_be_kept_if_their_moment_is_fixed() {
    let data = TestDirectory::new();
    let server = serve(&data);
    ff(&server, &["topics", "create", "orders"], "");
    ff(&server, &["produce", "orders"], "first\nsecond\n");
    let at = get(server.http, "/v1/moment", "").json()["at"].as_str().expect("a moment").to_owned();
    ff(&server, &["produce", "orders"], "third\n");
    let path = format!("/v1/tree/topics/orders/0.values?at={at}");
    let whole = get(server.http, &path, "");
    assert_eq!((whole.status, whole.text()), (200, "first\nsecond\n"));
    assert_eq!(whole.header("content-length"), Some("13"));
    assert_eq!(whole.header("cache-control"), Some("private, no-cache"));
    let etag = whole.header("etag").expect("a moment is final").to_owned();
    assert!(etag.starts_with(&format!("\"{at}-")), "{etag}");
    for tags in [etag.clone(), format!("\"s5\", W/{etag}"), "*".to_owned()] {
        let unchanged = get(server.http, &path, &format!("If-None-Match: {tags}\r\n"));
        assert_eq!((unchanged.status, unchanged.text()), (304, ""), "{tags}");
    }
    for (range, status, body, place) in [
        ("bytes=6-11", 206, "second", "bytes 6-11/13"),
        ("bytes=6-", 206, "second\n", "bytes 6-12/13"),
        ("bytes=-2", 206, "d\n", "bytes 11-12/13"),
        ("bytes=0-99", 206, "first\nsecond\n", "bytes 0-12/13"),
        ("bytes=0-1,3-4", 200, "first\nsecond\n", ""),
        ("lines=1-2", 200, "first\nsecond\n", ""),
    ] {
        let part = get(server.http, &path, &format!("Range: {range}\r\n"));
        assert_eq!((part.status, part.text()), (status, body), "{range}");
        assert_eq!(part.header("content-range").unwrap_or_default(), place, "{range}");
    }
    let beyond = get(server.http, &path, "Range: bytes=13-\r\n");
    assert_eq!(beyond.status, 416);
    assert_eq!(beyond.header("content-range"), Some("bytes */13"));
    // A part of another moment's file would not fit what the client has.
    let other = get(server.http, &path, "Range: bytes=6-11\r\nIf-Range: \"s5\"\r\n");
    assert_eq!((other.status, other.text()), (200, "first\nsecond\n"));

    let present = get(server.http, "/v1/tree/topics/orders/0.values", "");
    assert_eq!(present.text(), "first\nsecond\nthird\n");
    assert_eq!((present.header("etag"), present.header("cache-control")), (None, Some("no-store")));
    // No name leads out of the moment.
    let outside = format!("/v1/tree/../../topics/orders/0.values?at={at}");
    assert_eq!(get(server.http, &outside, "").code(), json!("bad_path"));
    let in_path = get(server.http, &format!("/v1/tree/.at/{at}/topics/orders/0.values"), "");
    assert_eq!(in_path.text(), "first\nsecond\n");

    let names_in = |query: &str| {
        let list = get(server.http, &format!("/v1/tree/topics/orders?{query}"), "").json();
        list["names"].as_array().expect("an array").clone()
    };
    let (first, all) = (names_in("limit=2"), names_in("stat=true"));
    let cookie = first[1]["cookie"].as_str().expect("a cookie").to_owned();
    let rest = names_in(&format!("after={cookie}"));
    let names = |entries: &[Value]| entries.iter().map(|entry| entry["name"].clone()).collect();
    let paged: Vec<Value> = names(&[first, rest].concat());
    assert_eq!(paged, names(&all) as Vec<Value>);
    let is_values = |entry: &&Value| entry["name"] == json!("0.values");
    let values = all.iter().find(is_values).expect("a topic has values");
    assert_eq!(values["stat"]["size"], json!(19), "{values}");
    // What the moment shows has changed, and a client that has the first half learns that.
    ff(&server, &["topics", "trim", "orders/0", "--before", "1"], "");
    let rest = get(server.http, &path, &format!("Range: bytes=6-\r\nIf-Range: {etag}\r\n"));
    assert_eq!((rest.status, rest.text()), (200, "second\n"));
    assert_ne!(rest.header("etag"), Some(&*etag));
    for root in ["/v1/tree/", "/v1/tree/topics/.."] {
        let list = get(server.http, root, "").json();
        assert!(list["names"].as_array().is_some_and(|names| names.len() >= 4), "{root} {list}");
    }
}

#[test]
fn the_description_names_every_path_and_all_of_its_references_are_there() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let document = get(server.http, "/v1/openapi.json", "").json();
    assert_eq!(document["openapi"], json!("3.1.0"));
    let text = document.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().expect("a text ends");
        assert!(document.pointer(pointer).is_some(), "{pointer}");
    }
    let paths = document["paths"].as_object().expect("an object");
    assert!(paths.contains_key("/v1/cut") && paths.contains_key("/v1/tree/{path}"), "{paths:?}");
    // Each path that needs no more is served.
    for (path, methods) in paths {
        if !path.contains('{') && methods.get("get").is_some() {
            let answer = get(server.http, path, "");
            assert!(matches!(answer.status, 200 | 400), "{path} {}", answer.text());
        }
    }
    let packed = get(server.http, "/v1/openapi.json", "Accept-Encoding: gzip\r\n");
    assert_eq!(packed.header("content-encoding"), Some("gzip"));
    assert!(packed.body.len() < text.len() / 2, "{} of {}", packed.body.len(), text.len());

    let page = get(server.http, "/", "");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    for link in page.text().split("=\"/").skip(1) {
        let path = format!("/{}", link.split('"').next().expect("a text ends"));
        let query = if path == "/v1/diff" { "?from=-10m&until=now" } else { "?at=now" };
        let query = if path.starts_with("/v1/tree") || path == "/v1/diff" { query } else { "" };
        let answer = get(server.http, &format!("{path}{query}"), "");
        assert_eq!(answer.status, 200, "{path} {}", answer.text());
    }
}
