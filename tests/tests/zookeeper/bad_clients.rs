//! The answers to bad clients, which others do not notice.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use testkit::directory::TestDirectory;
use zk_wire::JuteWriter;

use super::client::*;

/// Each of them is answered as by ZooKeeper, or cut off, and others do not notice.
#[test]
fn bad_clients_harm_nobody_else() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut witness = ZkClient::begin(address(&server));
    assert_eq!(witness.create("/w", b"", 0), 0);
    for length in [i32::MAX, 1_048_576, -1, i32::MIN] {
        let mut client = ZkClient::begin(address(&server));
        client.stream.write_all(&length.to_be_bytes()).expect("it reads");
        assert!(receive(&mut client.stream).is_none(), "a frame of {length} bytes");
    }
    let mut unknown = ZkClient::begin(address(&server));
    unknown.ask(77, |_| {});
    assert_eq!(unknown.reply().1, -6);
    assert!(receive(&mut unknown.stream).is_none(), "the connection ends");
    let mut malformed = ZkClient::begin(address(&server));
    malformed.ask(GET_DATA, |out| out.int(1 << 20));
    assert_eq!(malformed.reply().1, -5);
    assert_eq!(malformed.get("/w"), Ok(Bytes::new()), "the connection goes on");
    for path in ["", "no-slash", "/w/", "/..", "/\u{1}"] {
        assert_eq!(malformed.create(path, b"", 0), -8, "{path:?}");
    }
    let mut stranger = connect(address(&server));
    let forged = shake_hands(&mut stranger, witness.session_id, &Bytes::from_static(&[9; 16]));
    assert_eq!(forged.session_id, 0, "the password is wrong");
    // Twenty that begin a request and never end it, and twenty that say nothing at all.
    let _slow: Vec<TcpStream> = (0..40)
        .map(|nth| {
            let mut stream = connect(address(&server));
            if nth % 2 == 0 {
                stream.write_all(&[0, 0, 1]).expect("it reads");
            }
            stream
        })
        .collect();
    witness.ask(EXISTS, |out| put_path(out, "/w"));
    assert_eq!(witness.reply().1, 0);
}

/// A short request can ask for the same long data many times: its connection ends, and nothing of
/// the size of the reply is ever in memory.
#[test]
fn a_reply_that_is_too_long_ends_its_connection() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut witness = ZkClient::begin(address(&server));
    assert_eq!(witness.create("/big", &vec![7; 1_000_000], 0), 0);
    let mut greedy = ZkClient::begin(address(&server));
    let before = testkit::process::resident_bytes(server.pid());
    greedy.ask(MULTI_READ, |out| {
        for _ in 0..20_000 {
            put_multi_header(out, GET_DATA, false);
            put_path(out, "/big");
        }
        put_multi_header(out, -1, true);
    });
    assert!(receive(&mut greedy.stream).is_none(), "the connection ends");
    let grown = testkit::process::resident_bytes(server.pid()).saturating_sub(before);
    assert!(grown < 200 << 20, "{grown} bytes for one request");
    assert_eq!(witness.get("/big").map(|data| data.len()), Ok(1_000_000));
}

/// A client that asks for much and reads nothing is stopped by its own window, and others are not.
#[test]
fn a_client_that_reads_no_answers_is_not_served_further() {
    let data = TestDirectory::new();
    let server = serve_with(&data, &["zookeeper.maxSessionTimeout=10000"]);
    let mut witness = ZkClient::begin(address(&server));
    assert_eq!(witness.create("/big", &vec![7; 1_000_000], 0), 0);
    let mut greedy = ZkClient::begin(address(&server));
    greedy.stream.set_write_timeout(Some(Duration::from_millis(500))).expect("it can be set");
    let question = {
        let mut body = BytesMut::new();
        body.int(1);
        body.int(GET_DATA);
        put_path(&mut body, "/big");
        [&(body.len() as i32).to_be_bytes()[..], &body].concat()
    };
    let before = testkit::process::resident_bytes(server.pid());
    for _ in 0..200_000 {
        if greedy.stream.write_all(&question).is_err() {
            break;
        }
    }
    assert_eq!(witness.get("/big").map(|data| data.len()), Ok(1_000_000));
    let grown = testkit::process::resident_bytes(server.pid()).saturating_sub(before);
    assert!(grown < 100 << 20, "{grown} bytes for one client that does not read");
    // Its session ends, because its pings are not read either, and then its connection.
    let begun = Instant::now();
    while connections(address(&server)) > 1 {
        assert!(begun.elapsed() < TIMEOUT, "its connection stays");
        witness.ask(PING, |_| {});
        witness.reply();
    }
}

/// Watches are bounded together. The client with the most of them goes; others keep theirs.
#[test]
fn whoever_has_the_most_watches_goes_when_there_are_too_many() {
    let data = TestDirectory::new();
    let server = serve_with(&data, &["zookeeper.watches-bytes-max=1MiB"]);
    let mut witness = ZkClient::begin(address(&server));
    witness.ask(EXISTS, |out| {
        out.string(Some("/w"));
        out.bool(true);
    });
    assert_eq!(witness.reply().1, NO_NODE);
    let mut greedy = ZkClient::begin(address(&server));
    let mut watches = 0;
    loop {
        greedy.ask(EXISTS, |out| {
            out.string(Some(&format!("/{watches}-{}", "x".repeat(1000))));
            out.bool(true);
        });
        match receive(&mut greedy.stream) {
            Some(_) => watches += 1,
            None => break,
        }
        assert!(watches < 10_000, "nothing stops it");
    }
    assert!(watches > 500, "{watches} of 1,200 bytes fit into a mebibyte");
    let mut other = ZkClient::begin(address(&server));
    assert_eq!(other.create("/w", b"", 0), 0);
    let mut event = receive(&mut witness.stream).expect("its watch is still there");
    assert_eq!(event.int().expect("an xid"), -1);
}

#[test]
fn there_are_only_so_many_sessions() {
    let data = TestDirectory::new();
    let server = serve_with(&data, &["zookeeper.sessions-max=3"]);
    let held: Vec<ZkClient> = (0..3).map(|_| ZkClient::begin(address(&server))).collect();
    let mut fourth = connect(address(&server));
    send(&mut fourth, |out| connect_request(0, &Bytes::from_static(&[0; 16])).write(out));
    assert!(receive(&mut fourth).is_none(), "it is closed");
    // A session that there is may come again, and one that ends makes room.
    let [mut first, ..] = <[ZkClient; 3]>::try_from(held).ok().expect("three");
    first = first.resume(address(&server)).expect("it goes on");
    first.ask(CLOSE_SESSION, |_| {});
    assert_eq!(first.reply().1, 0);
    ZkClient::begin(address(&server));
}

#[test]
fn who_has_to_say_who_it_is_is_asked_before_anything_else() {
    const AUTH: i32 = 100;
    const NOT_AUTHENTICATED: i32 = -124;
    let data = TestDirectory::new();
    let server = serve_with(&data, &["zookeeper.enforce.auth.schemes=digest"]);
    let mut stranger = ZkClient::begin(address(&server));
    assert_eq!(stranger.create("/a", b"", 0), NOT_AUTHENTICATED);
    assert!(receive(&mut stranger.stream).is_none(), "the connection ends");
    let mut member = ZkClient::begin(address(&server));
    member.ask(AUTH, |out| {
        out.int(0);
        out.string(Some("digest"));
        out.buffer(Some(b"user:password"));
    });
    assert_eq!(member.reply().1, 0);
    assert_eq!(member.create("/a", b"", 0), 0);
}

/// No stock client sets watches in a multiRead, but the protocol has a place for them, and
/// ZooKeeper sets them.
#[test]
fn a_multi_read_may_set_watches() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut writer = ZkClient::begin(address(&server));
    assert_eq!(writer.create("/w", b"before", 0), 0);
    let mut watcher = ZkClient::begin(address(&server));
    watcher.ask(MULTI_READ, |out| {
        for (opcode, path) in [(GET_DATA, "/w"), (GET_CHILDREN, "/")] {
            put_multi_header(out, opcode, false);
            out.string(Some(path));
            out.bool(true);
        }
        put_multi_header(out, -1, true);
    });
    assert_eq!(watcher.reply().1, 0);
    assert_eq!(writer.set("/w", b"after"), 0);
    assert_eq!(writer.create("/v", b"", 0), 0);
    let mut event = || {
        let mut fields = receive(&mut watcher.stream).expect("an event");
        assert_eq!(fields.int(), Ok(-1), "it answers no request");
        fields.long().expect("a zxid");
        fields.int().expect("an error");
        let kind = fields.int().expect("what happened");
        fields.int().expect("a state");
        (kind, fields.required_string().expect("a path"))
    };
    assert_eq!(event(), (3, "/w".to_owned()), "its data changed");
    assert_eq!(event(), (4, "/".to_owned()), "its children changed");
}
