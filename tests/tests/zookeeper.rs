//! The real binary and ZooKeeper's wire: what bad clients get, what a crash leaves, and the past.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use compat_zk::{ConnectRequest, ConnectResponse, JuteReader, JuteWriter};
use testkit::directory::TestDirectory;
use testkit::process::TestServer;

const TIMEOUT: Duration = Duration::from_secs(30);
const CREATE: i32 = 1;
const EXISTS: i32 = 3;
const GET_DATA: i32 = 4;
const SET_DATA: i32 = 5;
const GET_CHILDREN: i32 = 8;
const PING: i32 = 11;
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
