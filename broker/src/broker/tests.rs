use std::collections::{BTreeMap, BTreeSet};

use compat_kafka::AdvertisedAddress;
use engine::security::{
    AclRule, Actor, ITERATIONS_MIN, Operation, PatternType, Permission, ResourceType,
    ScramCredential, ScramMechanism, SecurityChange,
};
use storage::timekeeper::{BOUND_FILE, BoundRecord};
use testkit::directory::TestDirectory;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::config::ListenAddress;
use crate::control::{ControlRequest, request_clock};

/// A free port.
fn any_port() -> ListenAddress {
    ListenAddress::At(AdvertisedAddress { host: "127.0.0.1".to_owned(), port: 0 })
}

fn config(directory: &TestDirectory) -> Config {
    let (kafka, http) = (any_port(), any_port());
    Config { data_dir: directory.path().to_owned(), kafka, http, ..Config::default() }
}

async fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    answer
}

async fn http_request(running: &RunningBroker, method: &str, path: &str, header: &str) -> String {
    let header = format!("Host: localhost\r\n{header}");
    http_request_with(running, method, path, &header).await
}

async fn http_request_with(
    running: &RunningBroker,
    method: &str,
    path: &str,
    headers: &str,
) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    let address = running.admin_address().unwrap();
    String::from_utf8(exchange(address, request.as_bytes()).await).unwrap()
}

async fn client(running: &RunningBroker) -> TcpStream {
    TcpStream::connect(running.kafka_address().unwrap()).await.unwrap()
}

/// Sends ApiVersions, version 0.
async fn api_versions(stream: &mut TcpStream) -> Vec<u8> {
    let request = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 7, 0xff, 0xff];
    stream.write_all(&request).await.unwrap();
    let length = stream.read_u32().await.unwrap();
    let mut answer = vec![0; length as usize];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn it_starts_answers_on_both_ports_and_starts_again_as_the_same_cluster() {
    let directory = TestDirectory::new();
    let running = Broker::start(config(&directory)).await.unwrap();
    let cluster = running.cluster_id().to_owned();
    assert_eq!(cluster.len(), 22);
    let answer = api_versions(&mut client(&running).await).await;
    assert_eq!(answer[..6], [0, 0, 0, 7, 0, 0], "the id, and no error");
    assert!(http_request(&running, "GET", "/healthz", "").await.starts_with("HTTP/1.1 200"));
    assert!(http_request(&running, "GET", "/readyz", "").await.starts_with("HTTP/1.1 200"));
    running.close("the test ends").await;
    let running = Broker::start(config(&directory)).await.unwrap();
    assert_eq!(running.cluster_id(), cluster);
    running.close("the test ends").await;
}

#[tokio::test]
async fn metrics_cover_every_part() {
    let directory = TestDirectory::new();
    let running = Broker::start(config(&directory)).await.unwrap();
    api_versions(&mut client(&running).await).await;
    let text = http_request(&running, "GET", "/metrics", "").await;
    for line in [
        "freezeframe_ready 1",
        "freezeframe_requests_total{api=\"ApiVersions\"} 1",
        "freezeframe_received_bytes_total 14",
        "freezeframe_journal_end_bytes 0",
        "freezeframe_fenced 0",
        "freezeframe_topics 0",
        "freezeframe_groups 0",
        "freezeframe_frontier_lag_ms ",
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
        "# EOF",
    ] {
        assert!(text.contains(&format!("\n{line}")), "{line}\n{text}");
    }
    running.close("the test ends").await;
}

#[tokio::test]
async fn the_clock_is_confirmed_by_operators_and_not_by_web_pages() {
    let directory = TestDirectory::new();
    let running = Broker::start(config(&directory)).await.unwrap();
    let answer = http_request(&running, "POST", "/clock/confirm", "Content-Length: 0\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let header = "Content-Length: 0\r\nOrigin: http://evil.example\r\n";
    let answer = http_request(&running, "POST", "/clock/confirm", header).await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(http_request(&running, "GET", "/clock/confirm", "").await.starts_with("HTTP/1.1 405"));
    let answer = http_request(&running, "GET", "/nothing", "").await;
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("/metrics"), "{answer}");
    running.close("the test ends").await;
}

/// Changes the bound file: the clock was last confirmed eight days earlier, as if it were that far
/// ahead now.
fn age_confirmed_time(directory: &TestDirectory) {
    const EIGHT_DAYS_MS: u64 = 8 * 24 * 60 * 60 * 1000;
    let path = directory.path().join("journal").join(BOUND_FILE);
    let mut bytes = std::fs::read(&path).unwrap();
    for slot in [0, 4096] {
        let Some(bytes) = bytes[slot..].first_chunk_mut::<64>() else { continue };
        if let Some(mut bound) = BoundRecord::decode(bytes) {
            bound.mark.wall.0 -= EIGHT_DAYS_MS;
            *bytes = bound.encode();
        }
    }
    std::fs::write(&path, bytes).unwrap();
}

#[tokio::test]
async fn a_clock_that_is_far_ahead_at_the_start_is_reported_and_confirmed_without_http() {
    let directory = TestDirectory::new();
    let running = Broker::start(config(&directory)).await.unwrap();
    running.engine.topics().create("t", 1, BTreeMap::new(), [7; 16], false).await.unwrap();
    running.close("the test ends").await;
    age_confirmed_time(&directory);
    let running = Broker::start(config(&directory)).await.unwrap();
    let data_dir = directory.path().to_owned();
    let clock = async |request| {
        let data_dir = data_dir.clone();
        let asking = tokio::task::spawn_blocking(move || request_clock(&data_dir, &request));
        asking.await.unwrap().unwrap()
    };
    let status = clock(ControlRequest::ClockStatus).await;
    assert_eq!((status.fenced, status.ahead_ms, status.skew_ms), (None, 0, 500));
    let ready = http_request(&running, "GET", "/readyz", "").await;
    assert!(ready.starts_with("HTTP/1.1 200"), "{ready}");
    // If the kernel reports a synchronised clock, it has confirmed the clock.
    if !status.clock_synchronised {
        let reason = status.unconfirmed.unwrap();
        assert!(reason.contains("clock confirm") && ready.contains(&reason), "{reason}\n{ready}");
        let metrics = http_request(&running, "GET", "/metrics", "").await;
        assert!(metrics.contains("\nfreezeframe_clock_unconfirmed 1"), "{metrics}");
    }
    assert_eq!(clock(ControlRequest::ClockConfirm).await.unconfirmed, None);
    let ready = http_request(&running, "GET", "/readyz", "").await;
    assert!(ready.ends_with("\r\n\r\nok\n"), "{ready}");
    running.close("the test ends").await;
}

#[tokio::test]
async fn a_directory_is_used_by_one_server_at_a_time() {
    let directory = TestDirectory::new();
    let running = Broker::start(config(&directory)).await.unwrap();
    let error = format!("{:#}", Broker::start(config(&directory)).await.unwrap_err());
    assert!(error.contains("in use by process"), "{error}");
    assert!(error.contains("use another directory"), "{error}");
    running.close("the test ends").await;
}

#[tokio::test]
async fn every_metric_is_in_the_manual_and_everything_in_the_manual_is_a_metric() {
    let directory = TestDirectory::new();
    let with_zookeeper = Config { zookeeper: any_port(), ..config(&directory) };
    let running = Broker::start(with_zookeeper).await.unwrap();
    let mut client = client(&running).await;
    api_versions(&mut client).await;
    let page = http_request(&running, "GET", "/metrics", "").await;
    let metrics: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter(|family| family.starts_with("freezeframe_") || family.starts_with("process_"))
        .map(|family| match family.split_once(' ').unwrap() {
            (name, "counter") => format!("{name}_total"),
            (name, _) => name.to_owned(),
        })
        .collect();
    let manual = include_str!("../../../docs/OPERATING.md");
    let documented: BTreeSet<String> = manual
        .lines()
        .filter(|line| line.starts_with("| `freezeframe_") || line.starts_with("| `process_"))
        .flat_map(|line| line.split('|').nth(1).unwrap().split(',').collect::<Vec<_>>())
        .map(|name| name.trim().trim_matches('`').split('{').next().unwrap().to_owned())
        .collect();
    assert_eq!(metrics, documented);
    running.close("the test ends").await;
}

#[tokio::test]
async fn a_server_whose_journal_is_gone_does_not_begin_an_empty_history() {
    let directory = TestDirectory::new();
    let running = Broker::start(config(&directory)).await.unwrap();
    running.close("the test ends").await;
    for is_made_anew in [false, true] {
        std::fs::remove_dir_all(directory.path().join("journal")).unwrap();
        if is_made_anew {
            // As if its file system were not mounted.
            std::fs::create_dir(directory.path().join("journal")).unwrap();
        }
        let error = format!("{:#}", Broker::start(config(&directory)).await.unwrap_err());
        assert!(error.contains("its journal is gone"), "{error}");
        assert!(!directory.path().join("journal/bound").exists(), "nothing was changed");
        std::fs::create_dir_all(directory.path().join("journal")).unwrap();
    }
}

#[tokio::test]
async fn a_first_start_that_was_cut_short_is_begun_again() {
    let directory = TestDirectory::new();
    std::fs::create_dir_all(directory.path().join("journal")).unwrap();
    std::fs::write(directory.path().join("journal/bound"), b"").unwrap();
    std::fs::write(directory.path().join("FREEZEFRAME.new"), b"form").unwrap();
    let running = Broker::start(config(&directory)).await.unwrap();
    running.close("the test ends").await;
    assert!(directory.path().join("FREEZEFRAME").exists());
    Broker::start(config(&directory)).await.unwrap().close("the test ends").await;
}

#[tokio::test]
async fn closing_releases_the_ports_and_the_directory_with_clients_connected() {
    let directory = TestDirectory::new();
    let running = Broker::start(config(&directory)).await.unwrap();
    let (kafka, admin) = (running.kafka_address().unwrap(), running.admin_address().unwrap());
    let mut idle = client(&running).await;
    api_versions(&mut idle).await;
    // Clients whose answers are on their way would hold it up for five seconds.
    let closed = tokio::time::timeout(Duration::from_secs(5), running.close("the test ends"));
    closed.await.expect("an idle client holds nobody up");
    assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
    assert!(TcpStream::connect(kafka).await.is_err());
    assert!(TcpStream::connect(admin).await.is_err());
    DataDirectory::open_existing(directory.path()).unwrap();
}

#[tokio::test]
async fn the_ready_line_names_the_ports_that_were_taken() {
    let directory = TestDirectory::new();
    let off = Config { http: ListenAddress::Off, ..config(&directory) };
    let running = Broker::start(off).await.unwrap();
    let address = running.kafka_address().unwrap();
    assert_ne!(address.port(), 0);
    assert_eq!(running.to_string(), format!("ready kafka={address} zookeeper=off http=off"));
    running.close("the test ends").await;
}

#[test]
fn a_cluster_s_name_is_22_letters_that_stand_for_16_bytes() {
    for _ in 0..200 {
        let id = new_cluster_id();
        assert_eq!(id.len(), 22);
        assert!(!id.starts_with('-'));
        assert!(id.ends_with(['A', 'Q', 'g', 'w']), "two bits are left for the last: {id}");
    }
}

/// The status, the headers, and the document of a response.
fn parse_response(answer: &str) -> (u16, String, serde_json::Value) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_ascii_lowercase(), serde_json::from_str(body).unwrap())
}

async fn post(
    running: &RunningBroker,
    body: &str,
    header: &str,
) -> (u16, String, serde_json::Value) {
    let request = format!(
        "POST /v1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let address = running.admin_address().unwrap();
    parse_response(&String::from_utf8(exchange(address, request.as_bytes()).await).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_is_asked_over_http_as_over_the_wire() {
    let directory = TestDirectory::new();
    let running = Broker::start(config(&directory)).await.unwrap();
    let get = async |path: &str| parse_response(&http_request(&running, "GET", path, "").await);
    let (status, head, cut) = get("/v1/cut?at=s9999999999999&when=frontier").await;
    assert_eq!((status, &cut["kind"]), (200, &serde_json::json!("prefix")), "{cut}");
    assert!(head.contains("application/json") && head.contains("no-store"), "{head}");
    let at = cut["at"].as_str().unwrap().to_owned();
    let (status, _, same_cut) = get(&format!("/v1/cut?at={at}")).await;
    assert_eq!((status, &same_cut["hash"]), (200, &cut["hash"]));
    for path in ["/v1/topics", "/v1/groups", "/v1/offsets", "/v1/pins"] {
        assert_eq!(get(path).await.0, 200, "{path}");
    }
    assert_eq!(get(&format!("/v1/diff?from=s5&until={at}")).await.0, 200);
    for moment in ["now", "start", "yesterday%2014:00", "5m", "2026-11-21T09:00:00Z"] {
        let (status, _, cut) = get(&format!("/v1/cut?at={moment}")).await;
        assert_eq!(status, 200, "{moment}: {cut}");
    }
    for (path, expected, code) in [
        ("/v1/cut".to_owned(), 400, "bad_request"),
        ("/v1/cut?at=whenever".to_owned(), 400, "bad_moment"),
        ("/v1/cut?at=pin:nothing".to_owned(), 400, "bad_moment"),
        ("/v1/cut?at=s5&more=1".to_owned(), 400, "bad_request"),
        (format!("/v1/diff?from={at}&until={at}"), 400, "bad_moment"),
        (format!("/v1/cut?at={at}&topics=no"), 404, "unknown_topic"),
        (format!("/v1/groups?at={at}&group=no"), 404, "unknown_group"),
        ("/v1/pin?name=p".to_owned(), 404, "unknown_op"),
        ("/v1/cut?at=s9999999999999".to_owned(), 400, "far_future"),
    ] {
        let (status, _, answer) = get(&path).await;
        assert_eq!((status, answer["error"]["code"].as_str()), (expected, Some(code)), "{path}");
    }
    let expiry_ms = running.engine.wall_now().0 + 2500;
    let (status, head, answer) = get(&format!("/v1/cut?at=s{expiry_ms}&when=refuse")).await;
    assert_eq!((status, answer["error"]["code"].as_str()), (425, Some("not_yet")));
    assert!(head.contains("retry-after: 3") || head.contains("retry-after: 2"), "{head}");
    running.close("the test ends").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_something_is_posted_bounded_and_not_for_web_pages() {
    let directory = TestDirectory::new();
    let running = Broker::start(config(&directory)).await.unwrap();
    let (_, _, cut) = post(&running, r#"{"op":"cut","at":"s5"}"#, "").await;
    assert_eq!(cut["at"], "s5");
    let pin = r#"{"op":"pin","name":"p","at":"s5","for_ms":60000}"#;
    let (status, _, refused) = post(&running, pin, "Origin: http://evil\r\n").await;
    assert_eq!((status, refused["error"]["code"].as_str()), (403, Some("forbidden")));
    let (status, _, pin) = post(&running, pin, "").await;
    assert_eq!((status, &pin["pin"]["name"]), (200, &serde_json::json!("p")), "{pin}");
    assert_eq!(post(&running, "{", "").await.0, 400);
    let large = format!(r#"{{"op":"unpin","name":"{}"}}"#, "x".repeat(1 << 20));
    assert_eq!(post(&running, &large, "").await.0, 413);
    let unknown = r#"{"op":"unpin","name":"q"}"#;
    assert_eq!(post(&running, unknown, "").await.0, 404);
    running.close("the test ends").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_error_over_http_is_a_document_with_a_code() {
    let directory = TestDirectory::new();
    let running = Broker::start(config(&directory)).await.unwrap();
    for (method, path, expected, code) in [
        ("GET", "/nowhere", 404, "unknown_path"),
        ("GET", "/v1/a/b", 404, "unknown_path"),
        ("GET", "/v1/%ff", 404, "unknown_op"),
        ("GET", "/v1", 405, "method_not_allowed"),
        ("PUT", "/v1/cut", 405, "method_not_allowed"),
        ("DELETE", "/metrics", 405, "method_not_allowed"),
        ("GET", "/clock/confirm", 405, "method_not_allowed"),
    ] {
        let answer = http_request(&running, method, path, "Content-Length: 0\r\n").await;
        let (status, head, document) = parse_response(&answer);
        assert_eq!((status, &document["error"]["code"]), (expected, &code.into()), "{path}");
        assert!(head.contains("application/json"), "{path}: {head}");
        assert_eq!(head.contains("\r\nallow: "), expected == 405, "{path}: {head}");
    }
    let tree = async |path: &str| {
        let request = serde_json::json!({"op": "tree", "do": "open", "path": path});
        let (status, _, answer) = post(&running, &request.to_string(), "").await;
        (status, answer["error"]["code"].as_str().map(str::to_owned))
    };
    let refused = |status, code: &str| (status, Some(code.to_owned()));
    assert_eq!(tree("/topics/none").await, refused(404, "not_found"));
    assert_eq!(tree("/topics").await, refused(400, "is_directory"));
    assert_eq!(tree("/..").await, refused(400, "bad_path"));
    assert_eq!(tree("/.at/soon").await, refused(400, "bad_moment"));
    let unread = r#"{"op":"plugin-test","spec":"csv:2","value":"31"}"#;
    assert_eq!(post(&running, unread, "").await.0, 422);
    let closed = r#"{"op":"tree","do":"read","open":9,"at":0,"length":1}"#;
    assert_eq!(post(&running, closed, "").await.0, 410);
    let listing = post(&running, r#"{"op":"tree","do":"list","path":"/","stat":true}"#, "").await.2;
    for name in listing["names"].as_array().unwrap() {
        assert!(name["cookie"].is_string() && name["stat"]["inode"].is_string(), "{name}");
    }
    running.close("the test ends").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_other_names_and_bodies_of_other_types_are_refused() {
    let directory = TestDirectory::new();
    let mut config = config(&directory);
    config.http_hosts = vec!["metrics.example".to_owned()];
    let running = Broker::start(config).await.unwrap();
    let port = running.admin_address().unwrap().port();
    for path in ["/v1/topics", "/metrics", "/healthz", "/nowhere"] {
        for (host, is_answered) in [
            (format!("127.0.0.1:{port}"), true),
            (format!("localhost:{port}"), true),
            ("metrics.example".to_owned(), true),
            (format!("evil.example:{port}"), false),
        ] {
            let answer =
                http_request_with(&running, "GET", path, &format!("Host: {host}\r\n")).await;
            assert_eq!(!answer.starts_with("HTTP/1.1 421"), is_answered, "{host}: {answer}");
            assert_eq!(answer.contains("foreign_host"), !is_answered, "{host}: {answer}");
        }
    }
    let pins = r#"{"op":"pins"}"#;
    let post_pin = async |headers: &str| {
        let length = pins.len();
        let headers = format!("Host: localhost:{port}\r\n{headers}Content-Length: {length}\r\n");
        let request = format!("POST /v1 HTTP/1.1\r\nConnection: close\r\n{headers}\r\n{pins}");
        let answer = exchange(running.admin_address().unwrap(), request.as_bytes()).await;
        parse_response(&String::from_utf8(answer).unwrap()).0
    };
    let json = "Content-Type: application/json; charset=utf-8\r\n";
    assert_eq!(post_pin(json).await, 200);
    assert_eq!(post_pin(&format!("{json}Origin: http://localhost:{port}\r\n")).await, 200);
    assert_eq!(post_pin(&format!("{json}Origin: http://evil.example\r\n")).await, 403);
    assert_eq!(post_pin(&format!("{json}Origin: null\r\n")).await, 403);
    assert_eq!(post_pin("").await, 415);
    assert_eq!(post_pin("Content-Type: text/plain\r\n").await, 415);
    let form = "Content-Length: 0\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    assert!(
        http_request(&running, "POST", "/clock/confirm", form).await.starts_with("HTTP/1.1 415")
    );
    running.close("the test ends").await;
}

/// The header of a user with its password.
fn basic(user: &str, password: &str) -> String {
    let credentials = history_documents::base64::encode(format!("{user}:{password}").as_bytes());
    format!("Authorization: Basic {credentials}\r\n")
}

async fn add_user(running: &RunningBroker, user: &str, password: &str) {
    let (mechanism, user) = (ScramMechanism::Sha256, user.to_owned());
    let credential =
        ScramCredential::from_password(mechanism, password, vec![7; 16], ITERATIONS_MIN);
    let change = SecurityChange::CredentialSet { user, mechanism, credential };
    let actor = Actor { principal: "User:admin".to_owned(), from: "a test".to_owned() };
    running.engine.security().change(actor, |_| (vec![change], ())).await.unwrap();
}

/// A server with an authorizer, whose users `admin`, who may do everything, and `plain` have the
/// password `secret`.
async fn guarded(directory: &TestDirectory) -> RunningBroker {
    let mut config = config(directory);
    config.engine.security.authorizer.is_enabled = true;
    config.engine.security.authorizer.super_users = BTreeSet::from(["User:admin".to_owned()]);
    let running = Broker::start(config).await.unwrap();
    running.engine.topics().create("hidden", 1, BTreeMap::new(), [7; 16], false).await.unwrap();
    add_user(&running, "admin", "secret").await;
    add_user(&running, "plain", "secret").await;
    running
}

/// Requests for a path of the table of routes: method, path, and body. A new path needs a case.
fn requests_for(path: &str) -> Vec<(&'static str, String, String)> {
    let get = |path: &str| ("GET", path.to_owned(), String::new());
    match path {
        "/" | "/healthz" | "/livez" | "/readyz" | "/version" | "/metrics" | "/metrics/clients"
        | "/metrics/zookeeper" | "/commands" | "/v1/openapi.json" | "/v1/tree/" => vec![get(path)],
        "/commands/{command}" => ["stat", "watches", "none", "stat_reset"]
            .map(|name| get(&format!("/commands/{name}")))
            .into(),
        "/clock/confirm" => vec![("POST", path.to_owned(), String::new())],
        "/session" => {
            ["GET", "POST", "DELETE"].map(|method| (method, path.to_owned(), String::new())).into()
        }
        "/v1" => {
            let post = |body: &str| ("POST", "/v1".to_owned(), body.to_owned());
            vec![
                post(r#"{"op":"pins"}"#),
                post(r#"{"op":"plugins"}"#),
                post(r#"{"op":"tree","do":"list","path":"/topics"}"#),
            ]
        }
        "/v1/{op}" => {
            let query = |op: &str| match op {
                "cut" => "?at=s5",
                "diff" => "?from=s4&until=s5",
                _ => "",
            };
            let operations = crate::openapi::GET_OPERATIONS.iter();
            operations.map(|op| get(&format!("/v1/{}{}", op.name, query(op.name)))).collect()
        }
        "/v1/records/{topic}" => vec![get("/v1/records/hidden")],
        "/v1/records/{topic}/{partition}" => vec![get("/v1/records/hidden/0")],
        "/v1/tree/{*path}" => vec![get("/v1/tree/topics/hidden/0.values")],
        path => panic!("there is no request for {path}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_path_asks_who_it_is_unless_it_is_for_supervisors() {
    let directory = TestDirectory::new();
    let running = guarded(&directory).await;
    let ask = async |(method, path, body): &(&'static str, String, String), header: &str| {
        let kind = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}{kind}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = exchange(running.admin_address().unwrap(), request.as_bytes()).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_ascii_lowercase(), body.to_owned())
    };
    let challenge = "\r\nwww-authenticate: basic realm=\"freezeframe\"";
    for route in crate::admin::served_routes() {
        for request in requests_for(route.path) {
            let (status, head, body) = ask(&request, "").await;
            for header in [
                "content-security-policy: default-src 'none'; frame-ancestors 'none'",
                "x-content-type-options: nosniff",
                "referrer-policy: no-referrer",
                "cache-control: no-store",
            ] {
                assert!(head.contains(header), "{request:?} {head}");
            }
            // The last three are the same for every server.
            if matches!(
                route.path,
                "/healthz" | "/livez" | "/readyz" | "/" | "/v1/openapi.json" | "/v1/tree/"
            ) {
                assert_eq!(status, 200, "{request:?} {body}");
                assert!(!body.contains("hidden"), "{body}");
                continue;
            }
            assert_eq!(status, 401, "{request:?} {body}");
            assert!(head.contains(challenge), "{request:?} {head}");
            if route.path == "/session" {
                continue;
            }
            // A refusal repeats the name that was asked for, whether it is there or not.
            let is_told = |body: &str| body.contains("hidden") && !request.1.contains("hidden");
            assert!(body.contains("\"unauthorized\"") && !is_told(&body), "{body}");
            let (status, head, body) = ask(&request, &basic("plain", "secret")).await;
            assert_eq!(status, 403, "{request:?} {body}");
            assert!(!head.contains(challenge) && !is_told(&body), "{request:?} {body}");
            let (status, _, body) = ask(&request, &basic("admin", "secret")).await;
            assert_eq!(status, 200, "{request:?} {body}");
        }
    }
    running.close("the test ends").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_refused_and_counted() {
    let directory = TestDirectory::new();
    let running = guarded(&directory).await;
    let wrong = [
        basic("admin", "Secret"),
        basic("nobody", "secret"),
        "Authorization: Bearer x\r\n".to_owned(),
        basic("admin", "secret") + &basic("admin", "secret"),
    ];
    for header in &wrong {
        let answer = http_request(&running, "GET", "/metrics", header).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{header} {answer}");
    }
    let metrics = http_request(&running, "GET", "/metrics", &basic("admin", "secret")).await;
    let counted = format!("freezeframe_logins_failed_total {}\n", wrong.len());
    assert!(metrics.contains(&counted), "{metrics}");
    let health = http_request(&running, "GET", "/healthz", &wrong[0]).await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    running.close("the test ends").await;
}

/// The cookie that an answer gives, and the second secret of its session.
fn session_in(answer: &str) -> (String, String) {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    let (pair, attributes) = cookie.split_once("; ").unwrap();
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict; Max-Age=28800");
    let (_, _, document) = parse_response(answer);
    (format!("Cookie: {pair}\r\n"), document["csrf"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_stands_for_its_user_until_it_ends() {
    let directory = TestDirectory::new();
    let running = guarded(&directory).await;
    let ask = async |method: &str, path: &str, header: &str| {
        let header = format!("{header}Content-Length: 0\r\n");
        let answer = http_request(&running, method, path, &header).await;
        let status = answer.split(' ').nth(1).unwrap().to_owned();
        (status, answer)
    };
    let (_, session) = ask("POST", "/session", &basic("admin", "secret")).await;
    let (cookie, csrf) = session_in(&session);
    let (_, current) = ask("GET", "/session", &cookie).await;
    let (_, _, document) = parse_response(&current);
    assert_eq!(
        (&document["principal"], &document["csrf"]),
        (&"User:admin".into(), &csrf.as_str().into())
    );
    assert_eq!(ask("GET", "/metrics", &cookie).await.0, "200");
    // Other credentials win.
    let plain = basic("plain", "secret");
    assert_eq!(ask("GET", "/metrics", &format!("{cookie}{plain}")).await.0, "403");
    let (_, session) = ask("POST", "/session", &plain).await;
    let (plain_cookie, _) = session_in(&session);
    assert_eq!(ask("GET", "/metrics", &plain_cookie).await.0, "403");
    // A page of another site can send the cookie, if a browser is old, and not the secret.
    let token = format!("X-CSRF-Token: {csrf}\r\n");
    for (header, status) in [
        (cookie.clone(), "403"),
        (format!("{cookie}X-CSRF-Token: {}\r\n", csrf.replace(['0', '1'], "2")), "403"),
        (format!("{cookie}{token}Origin: http://evil.example\r\n"), "403"),
        (format!("{cookie}{token}"), "200"),
    ] {
        assert_eq!(ask("POST", "/clock/confirm", &header).await.0, status, "{header}");
    }
    // A session begins with a password or a token, and not with another session.
    assert_eq!(ask("POST", "/session", &format!("{cookie}{token}")).await.0, "400");
    assert_eq!(ask("DELETE", "/session", &cookie).await.0, "403");
    let (status, answer) = ask("DELETE", "/session", &format!("{cookie}{token}")).await;
    assert_eq!(status, "204");
    assert!(
        answer.contains("set-cookie: freezeframe=; ") && answer.contains("Max-Age=0"),
        "{answer}"
    );
    assert_eq!(ask("GET", "/metrics", &cookie).await.0, "401");
    // Another password ends the sessions that began with the one before.
    let (_, session) = ask("POST", "/session", &basic("admin", "secret")).await;
    let (cookie, _) = session_in(&session);
    assert_eq!(ask("GET", "/metrics", &cookie).await.0, "200");
    add_user(&running, "admin", "another").await;
    assert_eq!(ask("GET", "/metrics", &cookie).await.0, "401");
    // A user has a few at a time.
    assert_eq!(ask("GET", "/session", &plain_cookie).await.0, "200");
    for _ in 0..20 {
        session_in(&ask("POST", "/session", &plain).await.1);
    }
    assert_eq!(ask("GET", "/session", &plain_cookie).await.0, "401");
    running.close("the test ends").await;
}

/// A scraper with DESCRIBE on the cluster reads, and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_describe_the_cluster_reads_metrics_and_resets_nothing() {
    let directory = TestDirectory::new();
    let running = guarded(&directory).await;
    let rule = AclRule {
        resource_type: ResourceType::Cluster,
        pattern: PatternType::Literal,
        name: "kafka-cluster".to_owned(),
        principal: "User:plain".to_owned(),
        host: "127.0.0.1".to_owned(),
        operation: Operation::Describe,
        permission: Permission::Allow,
    };
    let actor = Actor { principal: "User:admin".to_owned(), from: "a test".to_owned() };
    let changes = vec![SecurityChange::AclAdded(rule)];
    running.engine.security().change(actor, |_| (changes, ())).await.unwrap();
    let plain = basic("plain", "secret");
    for (method, path, status) in [
        ("GET", "/metrics", 200),
        ("GET", "/commands/stat", 200),
        ("GET", "/v1/pins", 200),
        ("GET", "/commands/srst", 403),
        ("GET", "/commands/connection_stat_reset", 403),
        ("POST", "/clock/confirm", 403),
        ("GET", "/v1/topics", 403),
    ] {
        let header = format!("{plain}Content-Length: 0\r\n");
        let answer = http_request(&running, method, path, &header).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path} {answer}");
    }
    running.close("the test ends").await;
}
