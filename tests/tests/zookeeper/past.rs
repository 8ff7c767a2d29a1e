//! The past.

use std::time::Instant;

use bytes::Bytes;
use serde_json::{Value, json};
use testkit::directory::TestDirectory;
use testkit::process::TestServer;

use zk_wire::{JuteWriter, ZnodeStat};

use super::client::*;
use super::command_line::{zk, zk_error};

#[test]
fn the_past_is_below_a_chroot_and_repeats() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut client = ZkClient::begin(address(&server));
    assert_eq!(client.create("/a", b"one", 0), 0);
    assert_eq!(client.create("/a/x", b"", 0), 0);
    let moment = next_millisecond();
    let at = |path: &str| format!("/.at/s{moment}{path}");
    next_millisecond();
    assert_eq!(client.set("/a", b"two"), 0);
    assert_eq!(client.create("/a/y", b"", 0), 0);
    let look = |client: &mut ZkClient| {
        assert_eq!(client.get(&at("/a")), Ok(Bytes::from_static(b"one")));
        assert_eq!(client.children(&at("/a")), ["x"]);
        assert_eq!(client.get(&at("/a/y")), Err(NO_NODE));
        assert_eq!(client.children(&at("")), ["a", "zookeeper"]);
    };
    look(&mut client);
    // Several at once, of then and of now.
    client.ask(MULTI_READ, |out| {
        for path in [at("/a"), "/a".to_owned(), at("/a/y")] {
            put_multi_header(out, GET_DATA, false);
            put_path(out, &path);
        }
        put_multi_header(out, -1, true);
    });
    let (_, err, mut body) = client.reply();
    assert_eq!(err, 0);
    for expected in [Some("one"), Some("two"), None] {
        let kind = body.int().expect("the kind of a result");
        body.bool().expect("whether it is the last");
        let err = body.int().expect("its error");
        match expected {
            Some(data) => {
                assert_eq!((kind, err), (GET_DATA, 0));
                let found = body.buffer().expect("it reads").expect("it is there");
                assert_eq!(found, data.as_bytes());
                ZnodeStat::read(&mut body).expect("a stat");
            }
            None => {
                assert_eq!((kind, err), (-1, NO_NODE));
                assert_eq!(body.int().expect("the error again"), NO_NODE);
            }
        }
    }
    assert_eq!(client.set(&at("/a"), b"three"), -119, "the past does not change");
    // The past is read between: an event could come before the reply.
    client.ask(MULTI_READ, |out| {
        for (path, watch) in [(at("/a"), false), ("/a".to_owned(), true), ("/a".to_owned(), false)]
        {
            put_multi_header(out, GET_DATA, false);
            out.string(Some(&path));
            out.bool(watch);
        }
        put_multi_header(out, -1, true);
    });
    let (_, err, mut body) = client.reply();
    assert_eq!(err, 0);
    let mut errors = Vec::new();
    for _ in 0..3 {
        let opcode = body.int().expect("an opcode");
        body.bool().expect("whether it was the last");
        errors.push(body.int().expect("an error"));
        if opcode == GET_DATA {
            body.buffer().expect("data");
            ZnodeStat::read(&mut body).expect("a stat");
        } else {
            body.int().expect("the error again");
        }
    }
    assert_eq!(errors, [0, BAD_ARGUMENTS, 0]);
    assert_eq!(client.create("/.at", b"", 0), -119);
    assert_eq!(client.get("/a"), Ok(Bytes::from_static(b"two")));
    server.kill().expect("it runs");
    let server = serve(&data);
    look(&mut ZkClient::begin(address(&server)));
}

const ZNODE_HISTORY: i32 = 17990;

/// The answer to a request of the history API.
fn history(client: &mut ZkClient, document: Value) -> Value {
    client.ask(ZNODE_HISTORY, |out| out.buffer(Some(document.to_string().as_bytes())));
    let (_, err, mut body) = client.reply();
    assert_eq!(err, 0);
    let answer = body.buffer().expect("it reads").expect("it is there");
    serde_json::from_slice(&answer).expect("it is JSON")
}

/// Names below a znode that only its owner may list are told by no place where a page begins, and
/// by no dry run.
#[test]
fn who_may_not_read_a_znode_learns_nothing_of_it() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let at = address(&server);
    let mut client = ZkClient::begin(at);
    assert_eq!(client.create("/begin", b"", 0), 0);
    let from = format!("s{}", next_millisecond());
    let (owner, list) = (["--auth", "digest:me:secret"], ["--acl", "auth::cdrwa"]);
    for path in ["/box", "/box/hidden", "/box/hidden2"] {
        zk(at, &[&["create", path, "x"], &list[..], &owner[..]].concat(), "");
    }
    assert_eq!(client.create("/open", b"", 0), 0);
    assert_eq!(client.set("/open", b"1"), 0);
    let until = format!("s{}", next_millisecond());
    next_millisecond();

    let (mut after, mut shown, mut pages) = (Value::Null, Vec::new(), 0);
    loop {
        let ask = json!({"op": "diff", "path": "/", "from": from, "until": until, "after": after, "limit": 1});
        let page = history(&mut client, ask);
        let text = page.to_string();
        assert!(!text.contains("hidden") && !text.contains("68696464656e"), "{text}");
        let found = page["changes"].as_array().expect("a list").iter();
        shown.extend(found.map(|change| change["path"].as_str().expect("a path").to_owned()));
        after = page["next"].clone();
        pages += 1;
        if after.is_null() {
            break;
        }
    }
    assert_eq!(shown, ["/open"]);
    assert!(pages >= 3, "the others have pages too");
    let foreign = json!({"op": "diff", "path": "/", "from": from, "until": until, "after": "00"});
    assert_eq!(history(&mut client, foreign)["error"]["code"], "bad_request");

    let restore = json!({"op": "restore", "path": "/", "at": from, "dry_run": true});
    let refused = history(&mut client, restore);
    assert_eq!(refused["error"]["code"], "unauthorized", "{refused}");
    assert!(!refused.to_string().contains("hidden"), "{refused}");
    // Whoever may make the changes is told of them.
    let dry = zk(at, &[&["restore", "/", "--at", &from, "--dry-run"], &owner[..]].concat(), "");
    assert!(dry.contains("/box/hidden") && dry.contains("/open"), "{dry}");
}

/// History older than the retention is removed with its disk space, a start loads a checkpoint, and
/// all that is kept reads as before.
#[test]
fn history_is_kept_for_as_long_as_asked() {
    const VALUES: usize = 40;
    let data = TestDirectory::new();
    let start = |retention| {
        let settings =
            ["server.zookeeper=127.0.0.1:0", retention, "log.retention.check.interval.ms=50"];
        let arguments = settings.map(|setting| ["--set", setting]).concat();
        TestServer::start(data.path(), &arguments).expect("it starts")
    };
    let server = start("zookeeper.history-retention=1s");
    let mut client = ZkClient::begin(address(&server));
    assert_eq!(client.create("/a", b"first", 0), 0);
    assert_eq!(client.create("/e", b"", 1), 0);
    let old = format!("/.at/s{}/a", next_millisecond());
    assert_eq!(client.get(&old), Ok(Bytes::from_static(b"first")));
    let begun = Instant::now();
    // A checkpoint is written after 16 MiB of transactions, and counts once it is older than a
    // second.
    let mut value = 0;
    while client.get(&old) != Err(BAD_ARGUMENTS) {
        assert!(begun.elapsed() < TIMEOUT, "the old history stays");
        value = (value + 1) % VALUES;
        assert_eq!(client.set("/a", &vec![value as u8; 1_000_000]), 0);
    }
    let recent = next_millisecond();
    assert_eq!(client.set("/a", b"last"), 0);
    server.kill().expect("it runs");
    // The history that is kept so far stays: nobody knows how long a start takes.
    let server = start("zookeeper.history-retention=1h");
    let mut again = client.resume(address(&server)).expect("the session goes on");
    assert_eq!(again.get("/a"), Ok(Bytes::from_static(b"last")));
    assert_eq!(again.get("/e"), Ok(Bytes::new()));
    let recent = again.get(&format!("/.at/s{recent}/a")).expect("it is kept");
    assert_eq!(recent, vec![value as u8; 1_000_000]);
    assert_eq!(again.get(&old), Err(BAD_ARGUMENTS));
    let (code, why) = zk_error(address(&server), &["watch", "/a", "--from", "1"]);
    assert!(code == Some(1) && why.contains("has been removed"), "{why}");
    drop(again);
    server.stop().expect("it ends");
    let checked = testkit::process::run(&["check", &data.path().to_string_lossy()], "");
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
}

/// The numbers that a queue gave before it was deleted are not given again.
#[test]
fn sequential_names_go_on_after_a_restore() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let at = address(&server);
    zk(at, &["create", "/app/queue", "--parents"], "");
    for _ in 0..3 {
        zk(at, &["create", "/app/queue/n-", "--sequential"], "");
    }
    zk(at, &["delete", "/app/queue/n-0000000000"], "");
    zk(at, &["delete", "/app/queue/n-0000000001"], "");
    let moment = format!("s{}", next_millisecond());
    next_millisecond();
    let next = || zk(at, &["create", "/app/queue/n-", "--sequential"], "");
    zk(at, &["delete", "/app/queue", "--recursive"], "");
    zk(at, &["restore", "/app", "--at", &moment], "");
    assert_eq!(next(), "/app/queue/n-0000000003\n");
    zk(at, &["delete", "/app", "--recursive"], "");
    zk(at, &["create", "/app/queue", "--parents"], "");
    zk(at, &["restore", "/app/queue/n-0000000002", "--at", &moment], "");
    assert_eq!(next(), "/app/queue/n-0000000003\n");
}

/// Somebody writes to what is put back, and is not done when that begins.
#[test]
fn a_restore_of_a_busy_subtree_tries_again() {
    const SETS: usize = 3000;
    let data = TestDirectory::new();
    let server = serve(&data);
    let at = address(&server);
    let (mut writer, mut client) = (ZkClient::begin(at), ZkClient::begin(at));
    for path in ["/app", "/app/busy", "/app/gone"] {
        assert_eq!(writer.create(path, b"then", 0), 0);
    }
    let moment = format!("s{}", next_millisecond());
    next_millisecond();
    zk(at, &["delete", "/app/gone"], "");
    let writing = std::thread::spawn(move || {
        let mut replies = writer.stream.try_clone().expect("it can be cloned");
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..SETS {
                    writer.ask(SET_DATA, |out| put_set(out, "/app/busy", b"now"));
                }
            });
            for _ in 0..SETS {
                receive(&mut replies).expect("a reply");
            }
        });
    });
    while client.get("/app/busy") != Ok(Bytes::from_static(b"now")) {}
    let restored = history(&mut client, json!({"op": "restore", "path": "/app", "at": moment}));
    assert!(restored["zxid"].is_i64(), "{restored}");
    writing.join().expect("all is written");
    assert_eq!(client.get("/app/gone"), Ok(Bytes::from_static(b"then")));
}

/// The author of a change is shown to those who may administer the znode, and to the identity
/// itself.
#[test]
fn a_log_shows_identities_to_administrators() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let at = address(&server);
    let (me, other) = (["--auth", "digest:me:secret"], ["--auth", "digest:other:secret"]);
    let list = ["--acl", "auth::cdrwa", "--acl", "world:anyone:rw"];
    zk(at, &[&["create", "/a", "x"], &list[..], &me[..]].concat(), "");
    zk(at, &[&["set", "/a", "y"], &other[..]].concat(), "");
    let identities = |identity: &[&str]| -> Vec<String> {
        let lines = zk(at, &[&["log", "/a"], identity].concat(), "");
        lines.lines().map(|line| line.split('\t').nth(7).expect("who").to_owned()).collect()
    };
    let (by_me, by_other) = ("ip:127.0.0.1,digest:me", "ip:127.0.0.1,digest:other");
    assert_eq!(identities(&me), [by_me, by_other]);
    assert_eq!(identities(&other), ["-", by_other]);
    assert_eq!(identities(&[]), ["-", "-"]);
}

const SET_WATCHES: i32 = 101;
const ADD_WATCH: i32 = 106;

/// Clients that set a watch with each read, as Patroni's does, read the past too; also after they
/// have reconnected.
#[test]
fn a_watch_on_the_past_is_taken_and_never_fires() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut client = ZkClient::begin(address(&server));
    assert_eq!(client.create("/a", b"one", 0), 0);
    let moment = next_millisecond();
    let at = |path: &str| format!("/.at/s{moment}{path}");
    next_millisecond();
    let watched = |client: &mut ZkClient, opcode: i32, path: &str| {
        client.ask(opcode, |out| {
            out.string(Some(path));
            out.bool(true);
        });
        client.reply().1
    };
    for opcode in [GET_DATA, EXISTS, GET_CHILDREN] {
        assert_eq!(watched(&mut client, opcode, &at("/a")), 0);
        assert_eq!(watched(&mut client, opcode, &at("/b")), NO_NODE);
    }
    client.ask(ADD_WATCH, |out| {
        out.string(Some(&at("")));
        out.int(1);
    });
    assert_eq!(client.reply().1, 0);
    assert_eq!(client.set("/a", b"two"), 0);
    assert_eq!(client.create("/b", b"", 0), 0);
    // The request that a client sends after it has reconnected.
    client.ask(SET_WATCHES, |out| {
        out.long(1);
        for path in ["/a", "/b", "/a"] {
            out.vector(Some(&[at(path)]), |out, path| out.string(Some(path)));
        }
    });
    assert_eq!(client.reply().1, 0);
    // An event would come before the reply.
    assert_eq!(client.get("/a"), Ok(Bytes::from_static(b"two")));
    assert_eq!(client.get(&at("/a")), Ok(Bytes::from_static(b"one")));
}

/// A command that fails does not leave a session behind.
#[test]
fn the_command_line_closes_its_session_also_when_it_fails() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let at = address(&server);
    let mut client = ZkClient::begin(at);
    let mut zxid = || {
        client.ask(EXISTS, |out| put_path(out, "/"));
        client.reply().0
    };
    let before = zxid();
    zk(at, &["ls", "/"], "");
    let after = zxid();
    let (code, _) = zk_error(at, &["get", "/none"]);
    assert_eq!((code, zxid() - after), (Some(1), after - before), "opened and closed");
}
