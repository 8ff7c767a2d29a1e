//! The real binary and ZooKeeper's wire: what bad clients get, what a crash leaves, and the past.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use testkit::directory::TestDirectory;
use testkit::process::TestServer;
use zk_wire::{ConnectRequest, ConnectResponse, JuteReader, JuteWriter};

const TIMEOUT: Duration = Duration::from_secs(30);
const CREATE: i32 = 1;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_CHILDREN: i32 = 8;
const PING: i32 = 11;
const MULTI_READ: i32 = 22;
const BAD_ARGUMENTS: i32 = -8;
const NO_NODE: i32 = -101;

/// A connection with a session.
struct ZkClient {
    stream: TcpStream,
    session_id: i64,
    password: Bytes,
    xid: i32,
}

fn serve(data: &TestDirectory) -> TestServer {
    let arguments = ["--set", "server.zookeeper=127.0.0.1:0", "--set", "zookeeper.tickTime=100"];
    TestServer::start(data.path(), &arguments).expect("it starts")
}

fn address(server: &TestServer) -> SocketAddr {
    server.zookeeper.expect("it is asked for")
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("it can be set");
    stream
}

fn send(stream: &mut TcpStream, write: impl FnOnce(&mut BytesMut)) {
    let mut body = BytesMut::new();
    write(&mut body);
    let frame = [&(body.len() as i32).to_be_bytes()[..], &body].concat();
    stream.write_all(&frame).expect("it reads");
}

/// The next frame; `None` once the server has closed the connection.
fn receive(stream: &mut TcpStream) -> Option<JuteReader> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; i32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(JuteReader::new(frame.into()))
}

fn shake_hands(stream: &mut TcpStream, session_id: i64, password: &Bytes) -> ConnectResponse {
    let request = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout_ms: 2000,
        session_id,
        password: Some(password.clone()),
        read_only: Some(false),
    };
    send(stream, |out| request.write(out));
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("an answer");
    let mut frame = vec![0; i32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).expect("an answer");
    ConnectResponse::read(frame.into()).expect("it reads")
}

impl ZkClient {
    fn begin(address: SocketAddr) -> ZkClient {
        let mut stream = connect(address);
        let granted = shake_hands(&mut stream, 0, &Bytes::from_static(&[0; 16]));
        assert_ne!(granted.session_id, 0);
        let password = granted.password.expect("there is one");
        ZkClient { stream, session_id: granted.session_id, password, xid: 0 }
    }

    /// Another connection for the session; `None` if it is over.
    fn resume(&self, address: SocketAddr) -> Option<ZkClient> {
        let mut stream = connect(address);
        let granted = shake_hands(&mut stream, self.session_id, &self.password);
        let (session_id, password) = (granted.session_id, self.password.clone());
        (session_id == self.session_id).then_some(ZkClient { stream, session_id, password, xid: 0 })
    }

    fn ask(&mut self, opcode: i32, write: impl FnOnce(&mut BytesMut)) {
        self.xid += 1;
        let xid = if opcode == PING { -2 } else { self.xid };
        send(&mut self.stream, |out| {
            out.int(xid);
            out.int(opcode);
            write(out);
        });
    }

    /// The next reply: its zxid, its error, and its body.
    fn reply(&mut self) -> (i64, i32, JuteReader) {
        let mut fields = receive(&mut self.stream).expect("a reply");
        fields.int().expect("an xid");
        let (zxid, err) = (fields.long().expect("a zxid"), fields.int().expect("an error"));
        (zxid, err, fields)
    }

    fn create(&mut self, path: &str, data: &[u8], flags: i32) -> i32 {
        self.ask(CREATE, |out| put_create(out, path, data, flags));
        self.reply().1
    }

    fn set(&mut self, path: &str, data: &[u8]) -> i32 {
        self.ask(SET_DATA, |out| {
            out.string(Some(path));
            out.buffer(Some(data));
            out.int(-1);
        });
        self.reply().1
    }

    fn get(&mut self, path: &str) -> Result<Bytes, i32> {
        self.ask(GET_DATA, |out| put_path(out, path));
        match self.reply() {
            (_, 0, mut body) => Ok(body.buffer().expect("it reads").expect("it is not null")),
            (_, err, _) => Err(err),
        }
    }

    fn children(&mut self, path: &str) -> Vec<String> {
        self.ask(GET_CHILDREN, |out| put_path(out, path));
        let (_, err, mut body) = self.reply();
        assert_eq!(err, 0);
        let mut names =
            body.vector(4, JuteReader::required_string).expect("it reads").expect("a list");
        names.sort();
        names
    }
}

fn put_path(out: &mut BytesMut, path: &str) {
    out.string(Some(path));
    out.bool(false);
}

fn put_multi_header(out: &mut BytesMut, opcode: i32, done: bool) {
    out.int(opcode);
    out.bool(done);
    out.int(-1);
}

fn put_create(out: &mut BytesMut, path: &str, data: &[u8], flags: i32) {
    out.string(Some(path));
    out.buffer(Some(data));
    out.int(1);
    out.int(31);
    out.string(Some("world"));
    out.string(Some("anyone"));
    out.int(flags);
}

/// How many connections the server says that it has, besides the one that asks.
fn connections(address: SocketAddr) -> usize {
    let mut stream = connect(address);
    stream.write_all(b"srvr").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it is text");
    let line = text.lines().find_map(|line| line.strip_prefix("Connections: "));
    line.and_then(|count| count.parse::<usize>().ok()).expect("it is in the answer") - 1
}

fn wall_ms() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("it is later").as_millis()
}

/// Waits until the wall clock shows a later millisecond.
fn next_millisecond() -> u128 {
    let begun = wall_ms();
    while wall_ms() == begun {
        std::hint::spin_loop();
    }
    wall_ms()
}

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

/// A short request can ask for the same long data many times: its connection ends, and nothing of the
/// size of the reply is ever in memory.
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
    let server = serve(&data);
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
    assert_eq!(client.set(&at("/a"), b"three"), -119, "the past does not change");
    assert_eq!(client.create("/.at", b"", 0), -119);
    assert_eq!(client.get("/a"), Ok(Bytes::from_static(b"two")));
    server.kill().expect("it runs");
    let server = serve(&data);
    look(&mut ZkClient::begin(address(&server)));
}

/// What is older than the retention is removed with its disk space, a start loads a checkpoint, and all that
/// is kept reads as before.
#[test]
fn history_is_kept_for_as_long_as_asked() {
    const VALUES: usize = 40;
    let data = TestDirectory::new();
    let arguments = [
        "--set",
        "server.zookeeper=127.0.0.1:0",
        "--set",
        "zookeeper.history-retention=1s",
        "--set",
        "log.retention.check.interval.ms=50",
    ];
    let start = || TestServer::start(data.path(), &arguments).expect("it starts");
    let server = start();
    let mut client = ZkClient::begin(address(&server));
    assert_eq!(client.create("/a", b"first", 0), 0);
    assert_eq!(client.create("/e", b"", 1), 0);
    let old = format!("/.at/s{}/a", next_millisecond());
    assert_eq!(client.get(&old), Ok(Bytes::from_static(b"first")));
    let begun = Instant::now();
    // A checkpoint is written after 16 MiB of transactions, and counts once it is older than a second.
    let mut value = 0;
    while client.get(&old) != Err(BAD_ARGUMENTS) {
        assert!(begun.elapsed() < TIMEOUT, "the old history stays");
        value = (value + 1) % VALUES;
        assert_eq!(client.set("/a", &vec![value as u8; 1_000_000]), 0);
    }
    let recent = next_millisecond();
    assert_eq!(client.set("/a", b"last"), 0);
    server.kill().expect("it runs");
    let server = start();
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

/// `freezeframe zk` with these arguments: what it prints. It has to end well.
fn zk(address: SocketAddr, arguments: &[&str], input: &str) -> String {
    let address = address.to_string();
    let all = [&["zk", "--zookeeper", &*address][..], arguments].concat();
    let output = testkit::process::run(&all, input);
    assert_eq!(output.code, Some(0), "{arguments:?}: {}", output.stderr);
    output.stdout().to_owned()
}

/// A command that has to fail: its exit code, and what it says.
fn zk_error(address: SocketAddr, arguments: &[&str]) -> (Option<i32>, String) {
    let address = address.to_string();
    let all = [&["zk", "--zookeeper", &*address][..], arguments].concat();
    let output = testkit::process::run(&all, "");
    (output.code, output.stderr)
}

#[test]
fn the_command_line_reads_and_changes_znodes_and_puts_them_back() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let at = address(&server);
    assert_eq!(zk(at, &["create", "/app/config", "size=3", "--parents"], ""), "/app/config\n");
    zk(at, &["create", "/app/list"], "");
    let mut client = ZkClient::begin(at);
    client.ask(EXISTS, |out| put_path(out, "/app"));
    let (last_then, ..) = client.reply();
    let moment = format!("s{}", next_millisecond());
    next_millisecond();
    zk(at, &["set", "/app/config", "--version", "0"], "size=4");
    zk(at, &["delete", "/app/list"], "");
    assert_eq!(zk(at, &["create", "/app/n-", "--sequential"], ""), "/app/n-0000000002\n");
    let me = ["--auth", "digest:me:secret"];
    zk(at, &[&["create", "/app/secret", "x", "--acl", "auth::cdrwa"], &me[..]].concat(), "");

    assert_eq!(zk(at, &["get", "/app/config"], ""), "size=4");
    assert_eq!(zk(at, &["get", "/app/config", "--at", &moment], ""), "size=3");
    assert_eq!(zk(at, &["ls", "/app", "--at", &moment], ""), "config\nlist\n");
    assert!(zk(at, &["stat", "/app/config", "--json"], "").contains(r#""version":1"#));
    let (code, why) = zk_error(at, &["get", "/app/secret"]);
    assert!(code == Some(1) && why.contains("--auth"), "{why}");
    assert_eq!(zk(at, &[&["get", "/app/secret"], &me[..]].concat(), ""), "x");

    let changes = |arguments: &[&str]| -> Vec<String> {
        let lines = zk(at, &[&["log", "/app", "--recursive"], arguments].concat(), "");
        let fields = |line: &str| {
            let fields: Vec<&str> = line.split('\t').collect();
            format!("{} {} {}", fields[2], fields[3], fields[7])
        };
        lines.lines().map(fields).collect()
    };
    let since = ["--from", &*moment];
    let expected = [
        "data /app/config ip:127.0.0.1",
        "deleted /app/list ip:127.0.0.1",
        "created /app/n-0000000002 ip:127.0.0.1",
    ];
    assert_eq!(changes(&since), expected, "what may not be read is left out");
    let with_identity = changes(&[&since[..], &me].concat());
    assert_eq!(with_identity[3], "created /app/secret ip:127.0.0.1,digest:me");
    let kafka = server.kafka.to_string();
    let cut = testkit::process::run(&["--bootstrap", &kafka, "cut", "--at", &moment], "");
    assert_eq!(cut.code, Some(0), "{}", cut.stderr);
    let expected = format!("znodes up to zxid {last_then:#x}");
    assert!(cut.stderr.lines().any(|line| line == expected), "{expected}: {}", cut.stderr);
    let differs = zk(at, &["diff", "/app", &moment, "now"], "");
    let kinds: Vec<&str> = differs.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(kinds, ["changed", "deleted", "created"]);

    zk(at, &["restore", "/app", "--at", &moment, "--dry-run"], "");
    assert_eq!(zk(at, &["get", "/app/config"], ""), "size=4", "a dry run changes nothing");
    zk(at, &["restore", "/app", "--at", &moment], "");
    assert_eq!(zk(at, &["ls", "/app"], ""), "config\nlist\n");
    assert_eq!(zk(at, &["get", "/app/config"], ""), "size=3");
    assert_eq!(zk(at, &["restore", "/app", "--at", &moment], ""), "", "nothing is left to change");

    let other = TestDirectory::new();
    let copy = serve(&other);
    zk(address(&copy), &["import", &at.to_string()], "");
    assert_eq!(zk(address(&copy), &["get", "/app/config"], ""), "size=3");
    for (arguments, says) in [
        (&["get", "/nope"][..], "there is no such znode"),
        (&["restore", "/nope", "--at", &moment], "/nope did not exist then"),
        (&["create", "/app"], "it exists already"),
        (&["set", "/app", "x", "--version", "7"], "it has another version"),
        (&["delete", "/app"], "it has children"),
    ] {
        let (code, why) = zk_error(at, arguments);
        assert!(code == Some(1) && why.contains(says), "{arguments:?}: {why}");
    }
}

/// A reader that has seen a transaction asks what came after it, also where it came after a crash.
#[test]
fn no_change_is_missed_from_one_answer_to_the_next() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut writer = ZkClient::begin(address(&server));
    assert_eq!(writer.create("/a", b"0", 0), 0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let changes = |address: SocketAddr, after, wait_ms| {
        let asking = async {
            let mut client = client::zookeeper::ZkClient::connect(&address.to_string()).await?;
            let request = client::zookeeper::ZnodeLogRequest {
                path: "/a".to_owned(),
                after: Some(after),
                wait_ms,
                ..Default::default()
            };
            let request = client::zookeeper::ZnodeHistoryRequest::Log(request);
            let wait = Duration::from_millis(wait_ms);
            client.request_history::<client::zookeeper::ZnodeLogResponse>(&request, wait).await
        };
        runtime.block_on(asking).expect("an answer")
    };
    let first = changes(address(&server), 0, 0);
    assert_eq!(first.transactions.len(), 1);
    assert!(first.complete);
    for value in 1..=20 {
        assert_eq!(writer.set("/a", value.to_string().as_bytes()), 0);
    }
    server.kill().expect("it runs");
    let server = serve(&data);
    let at = address(&server);
    let setting = std::thread::spawn(move || {
        let mut writer = ZkClient::begin(at);
        assert_eq!(writer.set("/a", b"21"), 0);
    });
    let (mut after, mut versions) = (first.through, Vec::new());
    while versions.len() < 21 {
        let page = changes(at, after, 10_000);
        after = page.through;
        let changes = page.transactions.into_iter().flat_map(|entry| entry.changes);
        versions.extend(changes.map(|change| change.znode.version));
    }
    setting.join().expect("it is set");
    assert_eq!(versions, (1..=21).collect::<Vec<i32>>());
}
