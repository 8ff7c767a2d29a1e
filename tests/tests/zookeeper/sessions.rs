//! What a crash leaves.

use std::time::Instant;

use bytes::Bytes;
use testkit::directory::TestDirectory;

use crate::client::*;

/// 500 writes are on their way when the server is killed. What was acknowledged is there, sessions go
/// on, and so do ephemeral znodes.
#[test]
fn what_was_acknowledged_and_who_was_connected_survives_a_kill() {
    let data = TestDirectory::new();
    let server = serve(&data);
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
    let server = serve(&data);
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
