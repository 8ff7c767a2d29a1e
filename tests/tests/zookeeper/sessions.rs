//! The state after a crash, and after a lost connection.

use std::time::Instant;

use bytes::Bytes;
use testkit::directory::TestDirectory;

use super::client::*;

/// 500 writes are on their way when the server is killed. Acknowledged writes are there, sessions
/// go on, and so do ephemeral znodes.
#[test]
fn what_was_acknowledged_and_who_was_connected_survives_a_kill() {
    let data = TestDirectory::new();
    let serve = || serve_with(&data, &["zookeeper.maxSessionTimeout=5000"]);
    let server = serve();
    let mut client = ZkClient::begin(address(&server));
    assert_eq!(client.create("/e", b"", 1), 0);
    for nth in 0..500 {
        client.ask(CREATE, |out| put_create(out, &format!("/n{nth}"), b"x", 0));
    }
    let mut last_zxid = 0;
    for _ in 0..250 {
        let (zxid, err, _) = client.reply();
        assert_eq!(err, 0);
        assert!(zxid > last_zxid, "zxids rise");
        last_zxid = zxid;
    }
    server.kill().expect("it runs");
    let server = serve();
    let mut again = client.resume(address(&server)).expect("the session goes on");
    for nth in 0..250 {
        assert_eq!(again.get(&format!("/n{nth}")), Ok(Bytes::from_static(b"x")), "{nth}");
    }
    assert_eq!(again.get("/e"), Ok(Bytes::new()));
    // Nobody speaks for the session any more: it ends, and its ephemeral znode with it.
    drop(again);
    let mut other = ZkClient::begin(address(&server));
    let begun = Instant::now();
    while other.get("/e") != Err(NO_NODE) {
        assert!(begun.elapsed() < TIMEOUT, "the session does not end");
    }
    assert!(client.resume(address(&server)).is_none());
}

/// A request that a session sent on a connection that it lost is done before the session goes on,
/// or never.
#[test]
fn a_session_that_goes_on_is_behind_all_that_it_asked_for_before() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut client = ZkClient::begin(address(&server));
    assert_eq!(client.create("/a", b"", 0), 0);
    assert_eq!(client.create("/b", b"", 0), 0);
    for turn in 0..200 {
        client.ask(SET_DATA, |out| put_set(out, "/a", turn.to_string().as_bytes()));
        let before = client;
        client = before.resume(address(&server)).expect("the session goes on");
        drop(before);
        let found = client.get("/a").expect("it is there");
        assert_eq!(client.set("/b", b""), 0);
        assert_eq!(client.get("/a").expect("it is there"), found, "turn {turn}");
    }
}

/// A session that its client ends goes on at another connection or is over: nobody is served in one
/// that has ended.
#[test]
fn a_session_that_is_being_ended_does_not_go_on() {
    let data = TestDirectory::new();
    let server = serve(&data);
    for turn in 0..200 {
        let mut client = ZkClient::begin(address(&server));
        let path = format!("/e{turn}");
        assert_eq!(client.create(&path, b"", 1), 0);
        client.ask(CLOSE_SESSION, |_| ());
        if let Some(mut again) = client.resume(address(&server)) {
            assert_eq!(again.set(&path, b"x"), 0, "turn {turn}");
        }
    }
}
