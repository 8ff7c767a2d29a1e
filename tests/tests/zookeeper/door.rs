//! A stranger that takes all it can get, beside a client that needs a little.

use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use testkit::directory::TestDirectory;
use testkit::process::{TestServer, connect_from};

use super::client::*;

const SYSTEM_ERROR: i32 = -1;
const AUTHORIZER: &str =
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer";

/// The log, once it has a line that comes after what is looked for.
fn log_with(server: &TestServer, last: &str) -> String {
    let begun = Instant::now();
    loop {
        let log = server.stderr();
        if log.contains(last) {
            return log;
        }
        assert!(begun.elapsed() < TIMEOUT, "no {last} in {log}");
        std::thread::yield_now();
    }
}

/// Takes sessions and leaves them; then znodes, until they are refused; then sends more than may be
/// in flight.
fn flood(address: SocketAddr) {
    for _ in 0..100 {
        let mut stream = connect_from(2, address).expect("it listens");
        send(&mut stream, |out| connect_request(0, &Bytes::from_static(&[0; 16])).write(out));
        // It may be refused.
        let _ = receive(&mut stream);
    }
    let mut client = ZkClient::begin_on(connect_from(2, address).expect("it listens"));
    let refusal =
        (0..200).map(|nth| client.create(&format!("/b{nth}"), b"x", 0)).find(|code| *code != 0);
    assert_eq!(refusal, Some(SYSTEM_ERROR));
    for _ in 0..40 {
        client.ask(SET_DATA, |out| put_set(out, "/b0", &vec![7; 500_000]));
    }
    for _ in 0..40 {
        assert_eq!(client.reply().1, 0);
    }
}

#[test]
fn a_stranger_that_floods_the_door_leaves_room_for_others() {
    let data = TestDirectory::new();
    let settings = ["zookeeper.sessions-max=32", "zookeeper.znodes-max=100"];
    let server = serve_with(&data, &settings);
    let address = address(&server);
    let mut client = ZkClient::begin(address);
    assert_eq!(client.create("/e", b"", 1), 0);
    let flooding = std::thread::spawn(move || flood(address));
    for nth in 0..15 {
        assert_eq!(client.create(&format!("/a{nth}"), b"x", 0), 0, "{nth}");
        let mut other = ZkClient::begin(address);
        assert_eq!(other.get("/e"), Ok(Bytes::new()));
        other.ask(CLOSE_SESSION, |_| {});
        assert_eq!(other.reply().1, 0);
    }
    flooding.join().expect("it is served as long as it does not take too much");
    assert_eq!(client.create("/after", b"x", 0), 0);
    assert_eq!(client.get("/e"), Ok(Bytes::new()), "its session went on");
    log_with(&server, "zookeeper.sessions-max");
    log_with(&server, "zookeeper.znodes-max");
}

#[test]
fn an_open_door_beside_an_authorizer_is_warned_of() {
    let warning = "ZooKeeper at 127.0.0.1";
    for (settings, is_open) in [
        (vec![AUTHORIZER], true),
        (vec![AUTHORIZER, "zookeeper.enforce.auth.schemes=digest"], true),
        (vec![AUTHORIZER, "zookeeper.enforce.auth.schemes=x509"], false),
        (vec![], false),
    ] {
        let data = TestDirectory::new();
        let server = serve_with(&data, &settings);
        let log = log_with(&server, "ready kafka");
        assert_eq!(log.contains(warning), is_open, "{settings:?}");
    }
}
